#!/bin/bash
# [[elevate]] in a weir.toml: files that a rule leaves on the parallel file system, takes before they are changed, keeps in
# the instance, or moves first; and [[prefetch]]: files that are taken before a command begins. Random operations must say the same as on a plain directory, whatever the rule. Only on
# weir. ELEVATE_SEEDS: how many runs of random operations. Argument: mirror, for random operations without the client, by the
# kernel.
. "$(dirname "$0")/check.sh"
begin_drains
programs=$here/../python
bare=()
if [ "${2:-}" = mirror ]; then
	bare=(env LD_PRELOAD= WEIR_INSTANCE=)
	export WEIR_RUN_MIRROR=always
fi

# ruled [OPTION...] -- COMMAND...: runs a command with the rule of weir.toml.
ruled() {
	"$weir" run --set run.report=none --set memory.warm=64M --memory "${MEMORY:-256M}" ${MEMORY:+--no-storage} "$@"
}

# rule LINE...: the rule of the directory pfs, which is made anew.
rule() {
	rm -rf pfs
	mkdir pfs
	{ printf '[[elevate]]\ndirectory = "%s/pfs"\n' "$outside"; printf '%s\n' "$@"; } > weir.toml
}

make_project() {
	mkdir -p "$1"/d0/d1 "$1"/d1
	echo la > "$1"/a
	echo l0a > "$1"/d0/a
	echo deep > "$1"/d0/d1/b
	echo deepc > "$1"/d0/d1/c
	echo c > "$1"/d1/c
	chmod 600 "$1"/d1/c
	ln -s d0 "$1"/l
}

# What random operations on a plain and on an elevated directory say, and leave, must be the same.
differ() {
	local seed=$1 steps=$2
	shift 2
	rm -rf plain pfs
	mkdir pfs
	make_project plain
	make_project pfs
	python3 "$programs/union.py" plain "$seed" "$steps" > plain.log 2>&1
	ruled "$@" -- "${bare[@]}" python3 "$programs/union.py" "$outside/pfs" "$seed" "$steps" > pfs.log 2> pfs.err ||
		{ echo "seed $seed: exit $?"; cat pfs.err; return 0; }
	diff plain.log pfs.log > different || { echo "seed $seed:"; head -n 4 different; return 0; }
	diff <(shown plain) <(shown pfs) > different || { echo "seed $seed, on the target:"; head -n 4 different; return 0; }
	return 1
}
for lines in 'skip = ["**/a", "d1"]' 'only = "**/[bc]"' 'update = "take"' $'skip = "**/b"\nupdate = "take"\ntake_up_to = "3"' \
	$'[[prefetch]]\ndirectory = "'"$outside"$'/pfs"'; do
	rule "$lines"
	wrong=
	for seed in $(seq "${ELEVATE_SEEDS:-3}"); do
		wrong=$(differ "$seed" 500) && break
	done
	[ -n "$wrong" ] || wrong=$(differ 11 300 --servers 3)
	same "random operations, $lines" '' "$wrong"
done
[ -z "${bare[*]}" ] || { check_end; exit; }

# below DIRECTORY: what the parallel file system has, from within a command.
cat > below.sh <<'PROGRAM'
below() { LD_PRELOAD= bash -c 'cd "$1"; for f in $(find . -type f | sort); do echo ${f#./}: $(cat $f); done' - "$1" | tr '\n' ' '; }
PROGRAM

# Files that are not chosen are on the parallel file system at once, and follow the program's calls there.
rule 'skip = ["**/*.log", "scratch/", "tmp"]'
mkdir pfs/old
cat > passed.sh <<'PROGRAM'
set -ex
. ./below.sh
cd "$1"
exec 5> run.log
echo 1 >&5
echo 2 > kept
[ "$(below .)" = 'run.log: 1 ' ]
# The names of a log that is open.
mv run.log old/before.log
echo 3 >&5
[ "$(below .)" = 'old/before.log: 1 3 ' ]
[ "$(cat old/before.log)" = "$(printf '1\n3')" ]
echo 4 > run.log
set -C
! echo 5 > run.log
set +C
echo 6 > old/before.log
[ "$(below .)" = 'old/before.log: 6 run.log: 4 ' ]
rm old/before.log
mkdir -p scratch/deep
echo 7 > scratch/deep/a
[ "$(below scratch)" = 'deep/a: 7 ' ]
rm -r run.log scratch
[ -z "$(ls old)" ]
# A directory that the program made is not there yet, and one that it renames is its own.
mkdir new tmp
echo 8 > new/x.log
echo 9 > tmp/y
mv tmp final
mv new/x.log x.log
[ "$(cat new/x.log x.log final/y 2>/dev/null)" = "$(printf '8\n9')" ]
PROGRAM
check "files that are not chosen" ruled --set drain.interval_s=1000 -- bash passed.sh "$outside/pfs"
. ./below.sh
same "all files are there in the end" 'final/y: 9 kept: 2 x.log: 8 ' "$(below pfs)"

# A file that is changed is taken if it has the size for it, and the parallel file system has it when it is moved.
rule 'update = "take"' 'take_from = 3' 'take_up_to = "1K"'
echo small > pfs/small
echo > pfs/tiny
head -c 2000 /dev/zero > pfs/large
echo linked > pfs/linked
ln pfs/linked pfs/other
cat > taken.sh <<'PROGRAM'
set -ex
cd "$1"
echo more >> small
echo end >> tiny
truncate -s 1 small
echo end >> large
echo more >> linked
[ "$(cat small)" = s ] && [ "$(LD_PRELOAD= cat small)" = small ]
[ "$(LD_PRELOAD= tail -c 4 large)" = end ]
[ "$(LD_PRELOAD= tail -c 4 tiny)" = end ]
[ "$(LD_PRELOAD= tail -n 1 other)" = more ]
PROGRAM
check "files that are taken before they are changed" ruled --set drain.interval_s=1000 -- bash taken.sh "$outside/pfs"
same "they are there in the end" s "$(cat pfs/small)"

# Files that are kept are not evicted: what becomes of their copies does not matter to the program.
rule 'keep = "mesh*"'
cat > keeps.sh <<'PROGRAM'
set -ex
cd "$1"
head -c 3M /dev/zero > mesh.1
for n in 1 2 3; do head -c 3M /dev/zero > other.$n; done
"$2" drain --wait
for n in $(seq 200); do
	"$2" drain --status --json | grep -q '"evicted_files":3' && break
	sleep 0.05
done
"$2" drain --status --json | grep -q '"evicted_files":3'
LD_PRELOAD= mv mesh.1 other.1 ..
cmp mesh.1 ../mesh.1
! cat other.1
LD_PRELOAD= mv ../mesh.1 ../other.1 .
cmp other.1 other.2
PROGRAM
MEMORY=64M check "files that are kept" ruled --set drain.evict_percent=1 -- bash keeps.sh "$outside/pfs" "$weir"

# Those that are first have their names before others.
rule 'first = "ckpt.*"'
check "files that are first" ruled --set drain.while_running=false -- \
	bash -ec 'cd "$1"; for n in 1 2 3; do echo $n > a$n; done; head -c 100K /dev/zero > ckpt.1' - "$outside/pfs"
same "of which the times of change tell" ckpt.1 "$(find pfs -type f -printf '%C@ %P\n' | sort -n | sed 's/.* //; q')"

# Prefetched files are read from the instance, and moved back only if the program changes them.
prefetched() {
	rule '[[prefetch]]' "directory = \"$outside/pfs/in\"" "$@"
	mkdir -p pfs/in/deep
	for n in 1 2 3 4 5; do head -c 3M /dev/urandom > pfs/in/deep/$n.h5; done
	echo text > pfs/in/text
	touch -d 2020-01-01 pfs/in/deep/* pfs/in/text
	sha256sum pfs/in/deep/* > sums
	stat -c '%i %Y %n' pfs/in/deep/* > before
}
prefetched 'only = "**/*.h5"'
cat > reads.sh <<'PROGRAM'
set -ex
LD_PRELOAD= mv pfs/in pfs/away
sha256sum -c --quiet sums
[ ! -e pfs/in/text ]
LD_PRELOAD= mv pfs/away pfs/in
[ "$(stat -c %Y pfs/in/deep/1.h5)" = "$(date -d 2020-01-01 +%s)" ]
echo more >> pfs/in/deep/5.h5
rm pfs/in/deep/4.h5
PROGRAM
ruled -- bash reads.sh 2> said
same "prefetched files" 0 $?
check "are counted" grep -q '5 files (15.0 MiB) prefetched' said
same "those that were not changed are not moved back" "$(head -n 3 before)" "$(stat -c '%i %Y %n' pfs/in/deep/[123].h5)"
same "one that was" more "$(tail -c 5 pfs/in/deep/5.h5)"
check "one that was removed" test ! -e pfs/in/deep/4.h5

prefetched
touch pfs/in/deep/*
"$weir" run --set memory.warm=64M --memory 256M -- true 2> said
check "nobody reads them again to compare" grep -q ', read 0 B' said
printf 'import os\nwith open("pfs/in/deep/1.h5", "r+b") as f: f.write(b"changed")\n' > changes.py
ruled -- python3 changes.py
same "one that is changed in place, a moment after" changed "$(head -c 7 pfs/in/deep/1.h5)"

# They are the first to be evicted, and taken only while there is room.
prefetched
cat > evicts.sh <<'PROGRAM'
set -e
for n in $(seq 10); do head -c 4M /dev/zero > pfs/new.$n; sleep 0.1; done
for n in $(seq 200); do
	grep -c evicted events | grep -q '^[5-9]' && break
	sleep 0.05
done
sha256sum -c --quiet sums
PROGRAM
printf '#!/bin/bash\nexec cat > %s/events\n' "$outside" > hook.sh
chmod +x hook.sh
MEMORY=64M check "prefetched files make room" ruled --set drain.evict_percent=50 --set "drain.hook=$outside/hook.sh" -- bash evicts.sh
check "before others" test "$(grep evicted events | head -n 5 | grep -c /in/)" = 5
prefetched
MEMORY=64M ruled --set drain.evict_percent=15 -- true 2> said
check "files that find no room" grep -q '[1-4] others stay where they are, since they find no room' said
prefetched
sed -i 's/^directory = .*in"/directory = "\/nowhere"/' weir.toml
same "files of no elevated directory" 125 "$(ruled -- true 2> said; echo $?)"
check "with a reason" grep -q '/nowhere is in no elevated directory' said

# What is wrong is said before anything begins.
rule 'onyl = "x"'
same "an unknown key" 125 "$(ruled -- true 2> said; echo $?)"
check "with the one that is meant" grep -q 'weir.toml:3: unknown key `onyl` in .*did you mean `only`' said
rule 'only = "x"'
rm -r pfs
touch pfs
fails "no directory" ruled -- true
rm pfs

check_end
