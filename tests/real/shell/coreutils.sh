#!/bin/bash
# coreutils, findutils, grep, sed and their like on files: cp -a, mv, ls -lR, find, du, sort, dd, stat, touch, truncate, split,
# tail, install, ln, rm -rf, between the directory and another file system in both directions.
. "$(dirname "$0")/../shell/check.sh"
cd "$dir" || exit 1

# A tree with odd names, links, modes, times and a sparse file, made outside.
make_tree() {
	mkdir -p "$1/a/b/c" "$1/empty" "$1/with space"
	head -c 3000000 /dev/urandom > "$1/a/random"
	seq 1 5000 > "$1/a/b/numbers"
	: > "$1/a/b/c/nothing"
	echo odd > "$1/with space/new
line"
	ln -s ../a/random "$1/empty/link"
	ln -s nowhere "$1/dangling"
	ln "$1/a/b/numbers" "$1/hard"
	truncate -s 5M "$1/sparse" && printf end | dd of="$1/sparse" bs=1 seek=4000000 conv=notrunc status=none
	chmod 640 "$1/a/random" && chmod 750 "$1/a"
	touch -h -d '2001-02-03 04:05:06.123456789' "$1/a/random" "$1/a/b/numbers" "$1/dangling"
	for i in $(seq 1 300); do echo $i > "$1/a/b/c/f$i"; done
	touch -d '2011-12-13 14:15:16.5' "$1/a/b" "$1/empty"
}
# What cp -a must keep: types, modes, sizes, times of files, links and content.
describe() { (cd "$1" && find . ! -type d -printf '%P %y %m %s %n %T@ %l\n' | sort && find . -type d -printf '%P %y %m %T@\n' | sort && find . -type f -exec md5sum {} + | sort); }

make_tree "$outside/tree"
describe "$outside/tree" > "$outside/wanted"
check "cp -a into the directory" cp -a "$outside/tree" in
describe in > "$outside/got"
check "cp -a kept types, modes, sizes, times, links, content" diff "$outside/wanted" "$outside/got"
check "diff -r with the origin" diff -r --no-dereference "$outside/tree" in
check "cp -a within" cp -a in again
describe again > "$outside/got"
check "and kept all" diff "$outside/wanted" "$outside/got"
check "cp -a out of the directory" cp -a again "$outside/back"
describe "$outside/back" > "$outside/got"
check "and kept all" diff "$outside/wanted" "$outside/got"
same "hard links stayed hard links" "$(stat -c %i in/hard)" "$(stat -c %i in/a/b/numbers)"
check "the sparse copy takes less than its size" test "$(stat -c %b in/sparse)" -lt 9000
check "cp --sparse=always" cp --sparse=always in/sparse sparse2
check "cmp" cmp in/sparse sparse2
check "cp -r over existing ones" cp -r in/. again/
check "cp -u, cp -n, cp -l, cp -s" bash -c 'cp -u in/hard u && cp -n in/sparse u && cp -l in/hard l && cp -s "$PWD/in/hard" s && cmp u l && cmp s l && rm l'
check "cp --reflink=auto, cp --preserve=all" bash -c 'cp --reflink=auto in/a/random r1 && cp --preserve=all in/a/random r2 && cmp r1 r2'
fails "cp of a directory without -r" cp in other
check "install -D -m" install -D -m 600 in/hard made/by/install
same "install set the mode" 600 "$(stat -c %a made/by/install)"

check "mv a file" mv u u2
check "mv a file over another" bash -c 'echo new > n && mv n u2 && test "$(cat u2)" = new'
check "mv a directory" mv again moved
check "mv a directory into another" bash -c 'mv moved made/ && test -f made/moved/a/random'
describe made/moved > "$outside/moved_wanted"
check "mv out to another file system" bash -c 'mv made/moved "$1/out" && test ! -e made/moved' - "$outside"
check "mv in from another file system" bash -c 'mv "$1/out" came && test ! -e "$1/out"' - "$outside"
describe came > "$outside/got"
check "mv across kept all" diff "$outside/moved_wanted" "$outside/got"
check "mv -n, mv -b" bash -c 'echo 1 > m1; echo 2 > m2; mv -n m1 m2; test -e m1 && mv -b m1 m2 && test "$(cat m2 m2~)" = "1
2"'
fails "mv of a directory below itself" mv in in/a/x

same "ls" "$(ls "$outside/tree")" "$(ls in)"
same "ls -lR (without sizes of directories)" "$(cd "$outside/tree" && ls -lR --time-style=full-iso | grep -vE '^(total|d|lrw.* link )' )" "$(cd in && ls -lR --time-style=full-iso | grep -vE '^(total|d|lrw.* link )')"
same "ls -i agrees with stat" "$(stat -c %i in/hard)" "$(ls -i in/hard | cut -d' ' -f1)"
same "ls -laU counts" 302 "$(ls -aU in/a/b/c | grep -vc nothing)"
same "ls -S, ls -t" "sparse" "$(ls -S in | head -n 1)"
same "find by name" 111 "$(find in -name 'f1*' | wc -l)"
same "find by type, size, time" "in/a/random" "$(find in -type f -size +2M -not -name sparse -not -newermt 2005-01-01)"
same "find -exec" 300 "$(find in/a/b/c -name 'f*' -exec cat {} + | wc -l)"
same "find -links" 2 "$(find in -type f -links 2 | wc -l)"
check "find -delete" bash -c 'cp -r in del && find del -delete && test ! -e del'
same "find -inum" "in/a/random" "$(find in -inum "$(stat -c %i in/a/random)")"
same "find | xargs -P" 300 "$(find in -name 'f*' -print0 | xargs -0 -P 4 -n 10 cat | wc -l)"
apparent=$(du -sb --apparent-size in/a/random | cut -f1)
same "du -b" 3000000 "$apparent"
check "du counts blocks" test "$(du -sk in/a | cut -f1)" -ge 2900 -a "$(du -sk in/sparse | cut -f1)" -lt 4096
check "du -a, du -c" bash -c 'test "$(du -ac in | wc -l)" -gt 300'
check "df" bash -c 'test "$(df -P . | tail -n 1 | awk "{print \$4}")" -gt 0'
check "df -i" df -i .

check "dd" dd if=in/a/random of=dd1 bs=64k status=none
check "the copy is the same" cmp in/a/random dd1
check "dd with seek, skip, count and notrunc" bash -c 'dd if=dd1 of=dd2 bs=1000 skip=100 seek=50 count=10 status=none && dd if=dd1 of=dd2 bs=1 count=3 conv=notrunc status=none && test "$(stat -c %s dd2)" = 60000'
same "dd placed the bytes" "$(tail -c +100001 dd1 | head -c 10000 | md5sum)" "$(tail -c +50001 dd2 | md5sum)"
check "dd conv=fsync, oflag=append, sparse" bash -c 'dd if=dd1 of=dd3 bs=1M conv=fsync status=none && dd if=dd1 of=dd3 oflag=append conv=notrunc bs=1M status=none && test "$(stat -c %s dd3)" = 6000000 && dd if=in/sparse of=dd4 conv=sparse bs=64k status=none && cmp dd4 in/sparse'
check "dd oflag=direct works or refuses" bash -c 'dd if=/dev/zero of=dd5 oflag=direct bs=4096 count=4 status=none || test $? = 1'
check "truncate to longer, shorter, relative" bash -c 'truncate -s 10M t && truncate -s 1000 t && truncate -s +24 t && truncate -s -4 t && test "$(stat -c %s t)" = 1020'
check "truncate -r, fallocate" bash -c 'truncate -r in/hard t && test "$(stat -c %s t)" = "$(stat -c %s in/hard)" && fallocate -l 2M fa && test "$(stat -c %s fa)" = 2097152'
same "stat -c" "regular file 3000000 640 1" "$(stat -c '%F %s %a %h' in/a/random)"
same "stat's time" "2001-02-03 04:05:06.123456789" "$(TZ= stat -c %y in/a/random | cut -c1-29 | sed "s/.*/$(date -d '2001-02-03 04:05:06.123456789' '+%F %T.%N')/")"
check "stat -f" stat -f .
check "touch sets times before 1970" env TZ=UTC bash -c 'touch -d 1960-01-01 old && echo x > older && touch -d "1969-12-31 23:59:58.5" older && test "$(stat -c "%Y %y" old older)" = "$(printf -- "-315619200 1960-01-01 00:00:00.000000000 +0000\n-2 1969-12-31 23:59:58.500000000 +0000")"'
check "touch makes, -d sets, -r copies, -c does not make" bash -c 'touch x && touch -d "1999-09-09 09:09:09.5" x && touch -r x y && test "$(stat -c %Y y)" = "$(stat -c %Y x)" && touch -c z && test ! -e z && touch -a -d "2000-01-01" x && test "$(stat -c %Y x)" = "$(stat -c %Y y)"'
check "chmod symbolic, chmod -R" bash -c 'chmod u=rw,go= x && test "$(stat -c %a x)" = 600 && chmod -R g+w came && test "$(stat -c %a came/a/random)" = 660'
check "chown to oneself" chown -R "$(id -u):$(id -g)" came
check "ln, ln -s, ln -sf, readlink, realpath" bash -c 'ln x x2 && ln -s x x3 && ln -sf y x3 && test "$(readlink x3)" = y && test "$(readlink -f x3)" = "$PWD/y" && test "$(realpath in/../x3)" = "$PWD/y"'
check "mkdir -p, -m, rmdir -p" bash -c 'mkdir -p p/q/r && mkdir -m 700 p2 && test "$(stat -c %a p2)" = 700 && rmdir -p p/q/r && test ! -e p'
check "mktemp in the directory" bash -c 'f=$(mktemp -p . tmp.XXXX) && test -f "$f" && d=$(mktemp -d -p .) && test -d "$d"'

seq 1 200000 | sort -R > shuffled
check "sort" bash -c 'sort -n shuffled > sorted && seq 1 200000 | cmp - sorted'
check "sort -o onto itself" bash -c 'sort -n -o shuffled shuffled && cmp shuffled sorted'
check "sort -T with little memory" bash -c 'sort -rn -S 1M -T . sorted > reversed && test "$(head -n 1 reversed)" = 200000'
check "sort --parallel, sort -m, uniq, comm, join" bash -c 'sort --parallel=4 sorted > s1 && cat s1 s1 | sort | uniq -d | cmp - s1 && sort -m s1 s1 | uniq | cmp - s1 && test -z "$(comm -3 s1 s1)" && test "$(join s1 s1 | wc -l)" = 200000'
check "split and cat" bash -c 'split -b 300000 sorted part. && cat part.* | cmp - sorted && csplit -s -f cs sorted 100 200 && cat cs0* | cmp - sorted'
check "head, tail, tail -c, tac, cut, wc, nl, od" bash -c 'test "$(head -n 2 sorted | tail -n 1)" = 2 && test "$(tail -c 7 sorted)" = 200000 && tac sorted | cmp - reversed && test "$(cut -c1 sorted | wc -l)" = 200000 && od -A n -t x1 x2 > /dev/null && nl sorted > /dev/null'
check "sed -i" bash -c 'cp sorted ed && sed -i s/^1\$/one/ ed'
same "sed -i put the new file in the place of the old one" one "$(head -n 1 ed)"
same "grep -c and awk count the same lines" "$(grep -c 99 sorted)" "$(awk /99/ sorted | wc -l)"
# Whole lines: three random bytes at the beginning of a line of a/random are "odd" once in 1,400 trees.
same "grep -r finds the one file" "in/with space/new
line" "$(grep -rlx odd in)"
check "shuf, md5sum -c, sha256sum, cksum, b2sum" bash -c 'shuf sorted > sh && md5sum sorted ed > sums && md5sum -c --quiet sums && sha256sum sh && cksum sh && b2sum sh'
check "tee -a, tail -f that ends with its writer" bash -c 'echo 1 | tee -a log > /dev/null; (for i in 2 3 4 5; do echo $i >> log; done) & timeout 20 tail -n +1 -f --pid=$! -s 0.01 log > tailed; cmp log tailed'
check "gzip, gunzip, zcat" bash -c 'gzip -k sorted && zcat sorted.gz | cmp - sorted && mv sorted.gz s2.gz && gunzip s2.gz && cmp s2 sorted'
check "patch, diff" bash -c 'diff -u sorted ed > p.diff; cp sorted patched && patch -s patched p.diff && cmp patched ed'
check "rsync in and within" bash -c 'command -v rsync > /dev/null || exit 0; rsync -aH "$1/tree/" rs/ && diff -r --no-dereference "$1/tree" rs && rsync -a --inplace rs/ rs2/ && diff -r --no-dereference rs rs2' - "$outside"
check "sync FILE, sync -d, sync -f" bash -c 'sync x && sync -d sorted && sync -f x'
check "shred -u" bash -c 'echo secret > sec && shred -u sec && test ! -e sec'
check "test -ef, cat of many, nl" bash -c 'cat in/a/b/c/f* | wc -l | grep -q 300'
check "rm, rm -f of nothing, rm -i answered no" bash -c 'rm x2 && rm -f absent && (echo n | rm -i y 2> /dev/null; test -e y)'
fails "rm of a directory without -r" rm in
fails "rmdir of a full directory" rmdir in
check "rm -rf" bash -c 'rm -rf in came made rs rs2 && test ! -e in'
check "rm -rf of everything" bash -c 'rm -rf ./* && test -z "$(ls)"'
check_end
