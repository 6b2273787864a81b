#!/bin/bash
# bash on files: redirections of every kind, `>>` from several shells at once, here-documents, subshells, process
# substitution, cd and relative paths, tests of files, globbing, read loops.
. "$(dirname "$0")/../shell/check.sh"
cd "$dir" || exit 1

echo one > file
same "> writes" "one" "$(cat file)"
echo two >> file
same ">> appends" "one
two" "$(cat file)"
same "\$(< file)" "one
two" "$(< file)"
echo three > file
same "> truncates" "three" "$(< file)"
(set -C; echo no > file) 2> /dev/null
same "noclobber keeps it" "three" "$(< file)"
(set -C; echo yes >| file)
same ">| overrules" "yes" "$(< file)"
: > file
same ": > empties" 0 "$(stat -c %s file)"
{ echo out; echo err >&2; } > out 2> err
same "1 and 2 apart" "out/err" "$(< out)/$(< err)"
{ echo out; echo err >&2; } > both 2>&1
same "2>&1 into one file, in order" "out
err" "$(< both)"
{ echo out; echo err >&2; } &> both2
same "&>" "out
err" "$(< both2)"
{ echo more; echo err2 >&2; } &>> both2
same "&>>" 4 "$(wc -l < both2)"
cat > here << END
value $((1 + 2)) of $name
END
same "here-document" "value 3 of $name" "$(< here)"
cat > here2 <<- 'END'
	raw $name
	END
same "here-document, quoted, without tabs" 'raw $name' "$(< here2)"
long=$(head -c 200000 /dev/zero | tr '\0' x)
cat > here3 <<< "$long"
same "here-string of 200,000 bytes" 200001 "$(stat -c %s here3)"
cat 0<> here > copy
same "<>" "value 3 of $name" "$(< copy)"

exec 5> five
echo a >&5
(echo b >&5)
echo c >&5
exec 5>&-
same "exec 5>, also by a subshell" "a b c" "$(echo $(< five))"
exec 6< five
read -r x <&6
y=$(head -n 1 <&6)
exec 6<&-
same "read from a descriptor, line by line" "a" "$x"
same "a program goes on where read stopped" "b" "$y"
exec {fd}<> rw
echo 12345 >&$fd
exec {fd}>&-
same "exec {fd}<>" 12345 "$(< rw)"
exec 7>> five
echo d >&7
exec 7>&-
same "exec 7>>" 4 "$(wc -l < five)"
(exec > redirected; echo inside; ls file; printf 'x%sy\n' 1)
same "exec > for a whole subshell" "inside
file
x1y" "$(< redirected)"

count=0
while read -r line; do count=$((count + line)); done < <(seq 1 100)
same "process substitution" 5050 $count
seq 1 1000 > numbers
sum=0
while IFS= read -r line; do sum=$((sum + line)); done < numbers
same "while read < file" 500500 $sum
mapfile -t lines < numbers
same "mapfile" "1000 500" "${#lines[@]} ${lines[499]}"
seq 1 1000 | tee copied | tail -n 1 > last
same "a pipe through tee" "1000 1000" "$(wc -l < copied) $(< last)"
sort -rn < numbers | head -n 3 > top
same "sort < file | head > file" "1000 999 998" "$(echo $(< top))"
paste -d, <(head -n 2 numbers) <(tail -n 2 numbers) > pasted
same "two substitutions" "1,999 2,1000" "$(echo $(< pasted))"

# `>>` from several shells at once: no line may be lost, torn or joined.
for shell in 1 2 3 4; do
	bash -c 'for i in $(seq 1 500); do echo "shell '$shell' line $i ........................................" >> shared; done' &
done
wait
same ">> from four shells: 2000 lines" 2000 "$(wc -l < shared)"
same ">> from four shells: all whole" 0 "$(grep -cvE '^shell [1-4] line [0-9]+ \.{40}$' shared)"
same ">> from four shells: none twice" 2000 "$(sort -u shared | wc -l)"
(for i in $(seq 1 200); do echo "a $i"; done >> kept) &
(for i in $(seq 1 200); do echo "b $i"; done >> kept) &
wait
same ">> kept open by two subshells" 400 "$(sort -u kept | wc -l)"
for i in 1 2 3; do (echo $i; echo $i) & done > jobs
wait
same "background jobs share one redirection" "1 1 2 2 3 3" "$(sort jobs | tr '\n' ' ' | sed 's/ $//')"

mkdir -p sub/deep && cd sub/deep || exit 1
same "pwd after cd" "$dir/sub/deep" "$(pwd)"
same "pwd of a program" "$dir/sub/deep" "$(/bin/pwd -P)"
echo rel > relative
same "a relative file" rel "$(cat ../deep/./relative)"
echo up > ../../up
cd ../.. || exit 1
same "cd ../.." "$dir" "$PWD"
check "a relative path from above" test -f sub/deep/relative -a -f up
(cd sub && echo from > sub_file)
check "cd in a subshell only" test -f sub/sub_file -a "$PWD" = "$dir"
pushd sub/deep > /dev/null && popd > /dev/null
same "pushd, popd" "$dir" "$PWD"
cd - > /dev/null
same "cd -" "$dir/sub/deep" "$PWD"
cd "$dir" || exit 1
ln -s sub/deep link
(cd link && echo > by_link && test "$(/bin/pwd -P)" = "$dir/sub/deep")
same "cd through a link" 0 $?
(cd -P link && test "$PWD" = "$dir/sub/deep")
same "cd -P" 0 $?

mkdir glob && touch glob/{a,b,c}{1,2,3}.txt glob/.hidden
cd glob || exit 1
same "glob *" "a1.txt a2.txt a3.txt b1.txt b2.txt b3.txt c1.txt c2.txt c3.txt" "$(echo *)"
same "glob [ab]?.txt" 6 "$(echo [ab]?.txt | wc -w)"
shopt -s globstar nullglob dotglob
cd "$dir" || exit 1
same "globstar" 10 "$(printf '%s\n' glob/** | grep -c 'glob/.')"
shopt -u globstar nullglob dotglob
for f in glob/*.txt; do mv "$f" "${f%.txt}.dat"; done
same "a loop of mv" 9 "$(ls glob/*.dat | wc -l)"

check "-e -f -d -L -s -r -w" test -e file -a -f file -a -d sub -a -L link -a -s here -a -r here -a -w here
check "! -s, ! -e" test ! -s file -a ! -e absent
touch -d '2020-01-01' old
check "-nt -ot" test here -nt old -a old -ot here
check "-ef" test link/relative -ef sub/deep/relative
fails "redirection from an absent file" bash -c 'cat < absent'
fails "redirection into an absent directory" bash -c 'echo x > absent/file'
fails "redirection into a directory" bash -c 'echo x > sub'
printf 'echo sourced $1\n' > script
same "source" "sourced arg" "$(. ./script arg)"
same "bash script" "sourced arg2" "$(bash script arg2)"
same "sh (dash) script" "sourced arg3" "$(sh script arg3)"
sh -c 'echo dash > dash; echo again >> dash; cat < dash > dash2; { echo g; } 2>&1 > dash3'
same "dash's redirections" "dash again g" "$(echo $(cat dash2 dash3))"
trap 'echo exit >> trapped' USR1
kill -USR1 $$
same "a trap that writes" exit "$(cat trapped)"
check_end
