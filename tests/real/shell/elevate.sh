#!/bin/bash
# weir run --elevate: programs see one tree, of what they write and of what the parallel file system has, and it is there
# at the end. Random operations must say the same as on a plain directory. A loop of checkpoints is killed together with
# everything, again and again, and begins again from its newest checkpoint. Only on weir. ELEVATE_SEEDS: how many runs of
# random operations; ELEVATE_KILLS: how often the loop is killed.
. "$(dirname "$0")/check.sh"
begin_drains
programs=$here/../python
instance=elevate-$$

# elevated DIRECTORY [OPTION...] -- COMMAND...: runs a command with an elevated directory. MEMORY: the instance has so much,
# and nothing else.
elevated() {
	local pfs=$1
	shift
	"$weir" run --set run.report=none --set memory.warm=64M --memory "${MEMORY:-256M}" ${MEMORY:+--no-storage} \
		--elevate "$pfs" "$@"
}

# A project directory with files of an earlier job.
make_project() {
	mkdir -p "$1"/d0/d1 "$1"/d1
	echo la > "$1"/a
	echo l0a > "$1"/d0/a
	echo deep > "$1"/d0/d1/b
	echo deepc > "$1"/d0/d1/c
	echo c > "$1"/d1/c
	chmod 600 "$1"/d1/c
	ln -s d0 "$1"/l
	ln -s a "$1"/d1/l
}

# What the random operations on a plain and on an elevated directory say, and leave, must be the same.
differ() {
	local seed=$1 steps=$2
	shift 2
	rm -rf plain pfs
	make_project plain
	make_project pfs
	python3 "$programs/union.py" plain "$seed" "$steps" > plain.log 2>&1
	elevated "$outside/pfs" "$@" -- python3 "$programs/union.py" "$outside/pfs" "$seed" "$steps" > pfs.log 2> pfs.err ||
		{ echo "seed $seed: exit $?"; cat pfs.err; return 0; }
	diff plain.log pfs.log > different || { echo "seed $seed:"; head -n 4 different; return 0; }
	diff <(shown plain) <(shown pfs) > different || { echo "seed $seed, on the target:"; head -n 4 different; return 0; }
	return 1
}
wrong=
for seed in $(seq "${ELEVATE_SEEDS:-8}"); do
	wrong=$(differ "$seed" 800) && break
done
same "random operations" '' "$wrong"
for seed in $(seq "${ELEVATE_SEEDS:-4}"); do
	wrong=$(differ "1$seed" 300 --servers 3) && break
done
same "random operations, with three servers" '' "$wrong"

# The same while files are evicted as soon as they are on the target: a page that is in use is too much.
export WEIR_DRAIN_EVICT_PERCENT=1 MEMORY=64M
for seed in $(seq "${ELEVATE_SEEDS:-2}"); do
	wrong=$(UNION_PAUSES=1 differ "2$seed" 300) && break
	grep -h 'evicted from the instance' pfs.err >> evicted.log
	wrong=$(UNION_PAUSES=1 differ "3$seed" 200 --servers 3) && break
done
same "random operations on files that are evicted" '' "$wrong"
check "some were" test -s evicted.log
for servers in 1 3; do
	rm -rf pfs
	mkdir pfs
	elevated "$outside/pfs" --servers $servers -- python3 "$programs/evicted.py" "$outside/pfs" "$weir" > sums 2> said
	same "evicted files, with $servers servers" 0 $?
	same "their bytes are on the target" '' "$(cd pfs && sha256sum -c --quiet ../sums 2>&1)"
	same "no copy of them is left there" '' "$(cd pfs && find . -name '*.weir-part'; sed 's/^[^ ]* *//' ../sums | sort |
		diff - <(find . -type f -printf '%P\n' | sort))"
done
unset WEIR_DRAIN_EVICT_PERCENT

# More than the instance holds: a write waits for room, one to the instance itself does not.
rm -rf pfs
mkdir pfs
cat > burst.sh <<'PROGRAM'
set -e
cd "$1"
head -c 20M /dev/zero > /weir/kept
for burst in $(seq 12); do
	head -c 15M /dev/urandom > burst.$burst
	sha256sum burst.$burst >> sums
done
sha256sum -c --quiet sums
# Not in the instance, which is full.
! head -c 60M /dev/zero > /weir/large 2> ../burst.said || exit 9
grep -q 'No space left' ../burst.said
rm /weir/large
PROGRAM
cat > appends.py <<'PROGRAM'
import os, sys, threading

os.chdir(sys.argv[1])
log, large = os.open("log", os.O_WRONLY | os.O_CREAT | os.O_APPEND), open("large", "wb")
large.write(bytes(58 << 20))
# Only then can it be moved, and make room.
threading.Timer(0.5, large.close).start()
for number in range(60):
    assert os.write(log, bytes([number]) * 200000) == 200000
assert open("log", "rb").read() == b"".join(bytes([number]) * 200000 for number in range(60))
PROGRAM
check "appends that wait for room leave no hole" elevated "$outside/pfs" -- python3 appends.py "$outside/pfs"
rm -rf pfs
mkdir pfs
check "a burst of 180 MiB to an instance of 64 MiB" elevated "$outside/pfs" -- \
	bash burst.sh "$outside/pfs"
same "all of it is there" '' "$(cd pfs && sha256sum -c --quiet sums 2>&1)"
unset MEMORY

# An elevated directory is one tree, by whatever path.
rm -rf pfs
make_project pfs
ln -s pfs by-link
cat > story.sh <<'PROGRAM'
set -e
cd "$1"
echo new > x.tmp
mv x.tmp a
[ "$(cat a)" = new ] && [ "$(cat "$1/../by-link/a")" = new ]
echo more >> d0/a
[ "$(cat d0/a)" = "$(printf 'l0a\nmore')" ]
mkdir results
seq 1000 > results/numbers
rm d0/d1/b
[ "$(ls d0/d1)" = c ]
rm -r d1
[ ! -e d1 ]
mkdir d1
[ -z "$(ls d1)" ]
[ "$(pwd)" = "$1" ]
cd d0/d1
[ "$(pwd)" = "$1/d0/d1" ] && [ "$(cat ../a | wc -l)" = 2 ]
cp ../../results/numbers .
mv numbers ../../l/moved
PROGRAM
check "a story" elevated "$outside/pfs" -- bash -x story.sh "$outside/pfs"
same "a file that replaced one of the target" new "$(cat pfs/a)"
same "one that was appended to" "$(printf 'l0a\nmore')" "$(cat pfs/d0/a)"
same "new files, where they were moved to" "$(seq 1000)" "$(cat pfs/d0/moved)"
same "what was removed, and made again" "" "$(ls pfs/d1; ls pfs/d0/d1/b 2> /dev/null)"
same "no hidden file is left" '' "$(find pfs -name '*.weir-part')"

# A directory is moved away, and a link to its new place takes its name.
for while_running in true false; do
	rm -rf pfs
	make_project pfs
	mkdir pfs/archive
	check "a directory that is moved away" env WEIR_DRAIN_WHILE_RUNNING=$while_running "$weir" run --set run.report=none \
		--elevate "$outside/pfs" -- bash -ec 'cd "$1"; mv d1 archive/; ln -s archive/d1 d1; cat d1/c' - "$outside/pfs"
	same "it is where it was moved to" "c archive/d1" "$(cat pfs/archive/d1/c) $(readlink pfs/d1)"
	rm -rf pfs
	make_project pfs
	mkdir pfs/other
	echo kept > pfs/other/c
	check "one that is replaced by a link" env WEIR_DRAIN_WHILE_RUNNING=$while_running "$weir" run --set run.report=none \
		--elevate "$outside/pfs" -- bash -ec 'cd "$1"; rm -r d1; ln -s other d1' - "$outside/pfs"
	same "what the link leads to is as it was" kept "$(cat pfs/d1/c)"
done

# What others put in the place of a removed file is theirs, and what only looked changes nothing.
rm -rf pfs
make_project pfs
touch -d 2001-01-01 pfs/d1 pfs/d0
ln pfs/d0/a pfs/d0/d1/a
check "a file of others" elevated "$outside/pfs" -- bash -ec 'cd "$1"; find . > /dev/null; rm a d0/a d0/d1/a; LD_PRELOAD= cp /dev/stdin a <<< "of others"
	sleep 0.5' - "$outside/pfs"
same "it stays" "of others" "$(cat pfs/a)"
check "two names of one file are gone" test ! -e pfs/d0/a -a ! -e pfs/d0/d1/a
same "times of a directory" "$(date -d 2001-01-01 +%s)" "$(stat -c %Y pfs/d1)"

# The mode of a directory is that of whoever changed it last: what others close stays closed.
for servers in 1 3; do
	rm -rf pfs
	make_project pfs
	chmod 755 pfs pfs/d0 pfs/d1
	check "modes of directories" elevated "$outside/pfs" --servers $servers -- bash -ec 'cd "$1"; echo new > d0/new; echo new > d1/new
		LD_PRELOAD= chmod 700 . d0; chmod 711 d1; chmod 550 d0/d1; mkdir -m 750 d2; echo new > new' - "$outside/pfs"
	same "modes of directories" "700 700 711 550 750" "$(echo $(stat -c %a pfs pfs/d0 pfs/d1 pfs/d0/d1 pfs/d2))"
	same "files in them" "new new new" "$(echo $(cat pfs/d0/new pfs/d1/new pfs/new))"
done

# What others put on the target under a name that the job has taken stays, and is named.
rm -rf pfs
make_project pfs
echo old > pfs/removed
cat > conflicts.sh <<'PROGRAM'
set -ex
cd "$1"
echo mine > made
echo mine > a
echo mine > x.tmp
mv x.tmp d0/a
rm removed
echo mine > removed
ln -sfn free l
echo mine > free
for name in made a d0/a removed; do
	LD_PRELOAD= dd of=$name.new status=none <<< theirs
	LD_PRELOAD= mv $name.new $name
done
LD_PRELOAD= ln -sfn theirs l
[ "$(cat made a d0/a removed free; readlink l)" = "$(printf 'mine\nmine\nmine\nmine\nmine\nfree')" ]
sleep "$2"
PROGRAM
there() {
	(cd pfs && echo $(cat made a d0/a removed free; readlink l))
}
for pause in 0 2; do
	rm -rf pfs
	make_project pfs
	echo old > pfs/removed
	"$weir" start --memory 256M --elevate "$outside/pfs" $instance 2> said
	"$weir" run -i $instance -- bash conflicts.sh "$outside/pfs" $pause 2> pfs.err
	same "a run whose files have names of others, after $pause s" 122 $?
	same "each is named" 5 "$(grep -c "^weir: $outside/pfs/.* is somebody else's" pfs.err)"
	same "and stays" "theirs theirs theirs theirs mine theirs" "$(there)"
	fails "the end of the instance" "$weir" stop $instance
	rm pfs/made
	mv pfs/a pfs/a.theirs
	fails "while it is so" "$weir" stop $instance
	same "what makes way is moved" "mine mine theirs theirs mine theirs" "$(there)"
	check "and the rest if it is asked for" "$weir" stop --set drain.replace_foreign=true $instance
	same "the files of the job" "mine mine mine mine mine free" "$(there)"
done

# A file that is written again after its drain was killed is the instance's.
rm -rf pfs
mkdir pfs
cat > again.sh <<'PROGRAM'
set -ex
cd "$1"
echo first > a
echo first > b
ln -s a l
mkdir -p kept/gone gone/gone
touch kept/a kept/b kept/gone/c gone/gone/d
ln -s a kept/l
"$2" drain --wait > /dev/null
LD_PRELOAD= grep -q first "$1/b"
pkill -KILL -f "weir drain-process .*$1\$"
echo other > a
ln -sfn b l
echo other > x.tmp
mv x.tmp b
rm -r kept/a kept/l kept/gone gone
LD_PRELOAD= touch kept/of-others
PROGRAM
check "files that are written again after a drain was killed" \
	elevated "$outside/pfs" -- bash again.sh "$outside/pfs" "$weir"
same "they are there" "other other b" "$(cd pfs && echo $(cat a b; readlink l))"
same "what was removed since is not" "kept kept/b kept/of-others" "$(cd pfs && echo $(find * -path '*e*' | sort))"

# Only the process that drains is killed.
rm -rf pfs
mkdir pfs
cat > drain_killed.sh <<'PROGRAM'
seq 10000 > "$1/before"
set -e
"$2" drain --wait "$1/before"
"$2" drain --wait --json | grep -q '"safe_files":1'
! "$2" drain "$1/none" 2> /dev/null
! "$2" drain /elsewhere 2> /dev/null
cmp "$1/before" <(LD_PRELOAD= cat "$1/before")
pkill -KILL -f "weir drain-process .*$1\$"
seq 20000 > "$1/after"
rm "$1/before"
PROGRAM
check "a process that drains is killed" elevated "$outside/pfs" -- bash drain_killed.sh "$outside/pfs" "$weir"
same "what the program left is there" "after $(seq 20000 | cksum)" "$(cd pfs && echo * "$(cksum < after)")"

# The server is killed: another one goes on with what it had, names that were removed too.
rm -rf pfs
make_project pfs
export WEIR_DRAIN_WHILE_RUNNING=false
check "an instance that stays" "$weir" start --memory 256M --elevate "$outside/pfs" "$instance"
pid=$("$weir" status "$instance" --json | python3 -c 'import json, sys; print(json.load(sys.stdin)["pid"])')
cat > before.sh <<'PROGRAM'
rm "$1/a"
seq 1000 > "$1/d0/numbers"
mkdir "$1/new"
kill -KILL "$2"
PROGRAM
cat > after.sh <<'PROGRAM'
set -ex
[ ! -e "$1/a" ]
[ -d "$1/new" ]
[ "$(ls -x "$1/d0")" = "a  d1  numbers" ]
PROGRAM
fails "a run whose server is killed" "$weir" run -i "$instance" -- bash before.sh "$outside/pfs" "$pid"
check "nothing was moved" test -e pfs/a -a ! -e pfs/new
check "another server goes on" "$weir" run -i "$instance" -- bash after.sh "$outside/pfs"
same "what the program left is there" "a  d1  numbers" "$(ls -x pfs/d0)"
check "and what it removed is not" test ! -e pfs/a -a -d pfs/new
check "the end of the instance" "$weir" stop "$instance"

# The agent starts one of several servers again: the process that drains goes on with it.
rm -rf pfs
mkdir pfs
cat > restarted.sh <<'PROGRAM'
cd "$1"
echo a > a
"$2" drain --wait > /dev/null || exit 1
kill -KILL "$("$2" status | sed -n 's/^ *server 0 .*process \([0-9]*\),.*/\1/p')"
until "$2" status | grep -q 'started again'; do sleep 0.05; done
# This shell was a client of the old one.
exec bash -c 'echo b > b; "$2" drain --wait --timeout 30 > /dev/null; echo $?; cat a b; rm a; echo c > c' - "$@"
PROGRAM
same "a server that is killed and started again" "0 a b" \
	"$(echo $(WEIR_DRAIN_WHILE_RUNNING=true elevated "$outside/pfs" --servers 2 -- bash restarted.sh "$outside/pfs" "$weir" 2> said))"
same "what the program left" "b c" "$(cd pfs && echo *)"

# A batch system sends SIGTERM to all processes of a job whose time is up: what was not moved stays.
for servers in 1 3; do
	rm -rf pfs
	mkdir pfs
	"$weir" start --memory 256M --servers $servers --elevate "$outside/pfs" $instance > said 2>&1
	pid=$("$weir" status $instance --json | python3 -c 'import json, sys; print(json.load(sys.stdin)["pid"])')
	[ $servers = 1 ] || pid=$(ps -o ppid= -p "$pid")
	"$weir" run -i $instance -- bash -c 'seq 1000 > "$1/numbers"; touch written; exec sleep 1000' - "$outside/pfs" 2> said &
	run=$!
	until [ -e written ]; do sleep 0.05; done
	rm written
	kill -TERM $pid
	kill -KILL $run
	wait $run 2> /dev/null
	await_dead
	same "nothing was moved, with $servers servers" '' "$(ls pfs)"
	check "it is recovered" recovered
	same "whole" "$(seq 1000 | cksum)" "$(cksum < pfs/numbers)"
done
unset WEIR_DRAIN_WHILE_RUNNING

# Two runs of one instance: the second one knows what the first has moved.
rm -rf pfs
mkdir pfs
check "an instance that stays, again" "$weir" start --memory 256M --elevate "$outside/pfs" "$instance"
check "its first run" "$weir" run -i "$instance" -- bash -ec 'cd "$1"; mkdir new; touch new/f new/g' - "$outside/pfs"
same "what it made" "f  g" "$(ls -x pfs/new)"
check "its second run" "$weir" run -i "$instance" -- bash -ec 'cd "$1"; rm new/g; touch new/h' - "$outside/pfs"
same "what that left" "f  h" "$(ls -x pfs/new)"
check "its third run" "$weir" run -i "$instance" -- bash -ec 'cd "$1"; rm -r new; mkdir new; touch new/i' - "$outside/pfs"
same "what that left" i "$(ls -x pfs/new)"
check "its end" "$weir" stop "$instance"

# Processes that take one file of the target: one gets it.
rm -rf pfs
mkdir -p pfs/dirs
for task in $(seq 20); do head -c 100000 /dev/zero > pfs/task.$task; mkdir pfs/dirs/$task; done
cat > claims.py <<'PROGRAM'
import os
import sys

os.chdir(sys.argv[1])


def compete(*acts):
    """Each in a process of its own, all at once; how many of them succeeded."""
    ready, go = os.pipe()
    pids = []
    for act in acts:
        pids.append(os.fork())
        if pids[-1] == 0:
            os.read(ready, 1)
            try:
                act()
            except OSError:
                os._exit(0)
            os._exit(1)
    os.write(go, b"x" * len(acts))
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
    os.close(ready)
    os.close(go)
    return sum(codes)


for task in range(1, 11):
    claims = [lambda n=n: os.rename(f"task.{task}", f"claimed.{task}.{n}") for n in range(6)]
    print(compete(*claims), end=" ")
for task in range(11, 21):
    print(compete(lambda: os.rename(f"task.{task}", f"other.{task}"), lambda: os.unlink(f"task.{task}")), end=" ")
    os.path.exists(f"other.{task}") and os.unlink(f"other.{task}")
for dir in range(1, 21):
    looks = [lambda: os.stat(f"dirs/{dir}") for _ in range(2)]
    compete(lambda: os.rmdir(f"dirs/{dir}"), *looks)
print(os.listdir("dirs"))
PROGRAM
same "each is taken once" "$(printf '1 %.0s' $(seq 20))[]" \
	"$(elevated "$outside/pfs" -- python3 claims.py "$outside/pfs" 2> pfs.err)"
same "and is there once" "10 0" "$(ls pfs | grep -c claimed) $(ls pfs/dirs | wc -l)"

# Killed with everything.
loop=$programs/checkpoint_loop.py
newest=$programs/checkpoint_newest.py
rm -rf pfs
mkdir pfs
check "a loop of checkpoints" elevated "$outside/pfs" -- python3 "$loop" "$outside/pfs" 0 30 0.1
same "its last checkpoint" 29 "$(python3 "$newest" pfs)"
same "what is on the target" "ckpt.28 ckpt.29 data.28 data.29 latest log progress" "$(cd pfs && echo *)"
safe=29
wrong=0
for kill in $(seq "${ELEVATE_KILLS:-6}"); do
	# In every other run files are evicted as soon as they are safe; every third one has three servers.
	WEIR_DRAIN_EVICT_PERCENT=$((kill % 2 ? 1 : 75)) setsid "$weir" run --memory 64M --no-storage \
		--servers $((kill % 3 ? 1 : 3)) --elevate "$outside/pfs" -- \
		python3 "$loop" "$outside/pfs" $((safe + 1)) 1000000 0.1 2> said &
	run=$!
	sleep "$((2 + RANDOM % 2)).$((RANDOM % 1000))"
	kill -KILL -- -$run
	wait $run 2> /dev/null
	# Directories in which files were evicted appear file by file.
	whole=$((kill % 2 ? 1 << 60 : safe + 1))
	again=$(WHOLE_FROM=$whole python3 "$newest" pfs)
	case $again in
	none | *[!0-9]*) wrong=1 ;;
	*) [ "$again" -ge "$safe" ] || wrong=1 ;;
	esac
	[ $wrong = 0 ] || { echo "kill $kill: $again after $safe"; ls -l pfs; break; }
	safe=$again
	recovered || { wrong=1 && cat recovered.out && break; }
	again=$(WHOLE_FROM=$whole python3 "$newest" pfs recovered)
	[ "$again" -ge "$safe" ] || { wrong=1 && echo "kill $kill: $again recovered, $safe before" && break; }
	# What the loop had not finished.
	rm -rf pfs/ckpt.*.tmp
	safe=$again
done
same "each loop that was killed with everything left a whole checkpoint, and none that is older" 0 $wrong
check "some checkpoints were safe ($safe)" test "$safe" -gt 29

# What a killed run had not moved is recovered, also when its job is over and another one has been there.
for way in "elevated 1" "drained 1" "elevated 3" "drained 3"; do
	rm -rf pfs
	mkdir pfs
	case $way in
	elevated*) option=--elevate where=$outside/pfs ;;
	drained*) option=--drain-to where=/weir ;;
	esac
	WEIR_DRAIN_WHILE_RUNNING=false SLURM_JOB_ID=1 setsid "$weir" run --memory 256M --servers "${way#* }" \
		"$option" "$outside/pfs" -- bash -c 'seq 100000 > "$0/part" && mv "$0/part" "$0/numbers" && touch written && sleep 1000' "$where" 2> said &
	run=$!
	until [ -e written ]; do sleep 0.05; done
	rm written
	kill -KILL -- -$run
	wait $run 2> /dev/null
	same "$way: nothing was moved before the kill" '' "$(ls pfs)"
	await_dead
	SLURM_JOB_ID=1 SLURM_RESTART_COUNT=1 "$weir" run --memory 64M --set run.report=none -- true 2> said
	check "$way: the next run says what is left" grep -q 'weir recover' said
	check "$way: it is recovered" recovered
	same "$way: whole" "$(seq 100000 | sha256sum)" "$(sha256sum < pfs/numbers)"
	same "$way: and cleared" "weir: no dead instance on this node has files that are to be moved out of it" "$("$weir" recover)"
done

# Nothing is lost if the target is read-only for a time.
rm -rf pfs
mkdir pfs
cat > read_only.sh <<'PROGRAM'
mount --bind "$1" "$1"
"$2" start --memory 256M --elevate "$1" "$3"
mount -o remount,bind,ro "$1"
"$2" run -i "$3" -- bash -c 'mkdir "$1/new" && seq 1000 > "$1/new/numbers"' - "$1"
code=$?
"$2" stop "$3"
[ $? = 7 ] || exit 9
mount -o remount,bind,rw "$1"
"$2" stop "$3" || exit 8
exit $code
PROGRAM
if unshare -m true 2> /dev/null; then
	unshare -m bash read_only.sh "$outside/pfs" "$weir" "$instance" 2> said
	same "the exit code of a run whose target is read-only" 122 $?
	same "which stop moved in the end" "$(seq 1000)" "$(cat pfs/new/numbers)"
fi

# A bind mount is another name of the directory, or of one above it, for programs that have the client, and for others.
rm -rf pfs
cat > bound.sh <<'PROGRAM'
set -e
mount --bind "$1" bound
"$2" run --memory 256M --set run.report=none --set run.mirror="$3" --set drain.while_running=false --elevate "$1/pfs" -- bash -ec '
	cd bound/pfs
	echo new > sub/new
	rm sub/old
	mkdir d
	(cd d && echo moved > x && mv x ../sub/moved)
	cat "$1/pfs/sub/new" "$1/pfs/sub/moved"
	LD_PRELOAD= WEIR_INSTANCE= ls -A "$1/pfs/sub" ../pfs/sub' - "$1"
PROGRAM
if unshare -m true 2> /dev/null; then
	mkdir -p project/pfs/sub bound
	echo old > project/pfs/sub/old
	same "names by a bind mount, with the client alone" "new moved ../pfs/sub: old $outside/project/pfs/sub: old" \
		"$(echo $(unshare -m bash bound.sh "$outside/project" "$weir" never 2> said))"
	same "what is moved then" "d: sub: moved new" "$(echo $(cd project/pfs && ls sub d))"
	# In a namespace of mirrors.
	rm -rf project/pfs/*
	mkdir project/pfs/sub
	echo old > project/pfs/sub/old
	if [ -e /dev/fuse ]; then
		same "names by a bind mount, beside mirrors" \
			"new moved ../pfs/sub: moved new $outside/project/pfs/sub: moved new" \
			"$(echo $(unshare -m bash bound.sh "$outside/project" "$weir" always 2> said))"
		same "what is moved then" "d: sub: moved new" "$(echo $(cd project/pfs && ls sub d))"
	fi
fi

# Versions of the same size and time, as tar and cp -p leave them, are told apart, also in exchanged names; so are attributes
# of users that change later.
rm -rf pfs
mkdir pfs
for name in one other over; do echo "$name" | cut -c 1-3 > "pfs/$name"; done
touch -d 2020-01-01 pfs/*
cat > dated.sh <<'PROGRAM'
set -e
cd "$1"
write() { echo "$2" > "$1"; touch -d 2020-01-01 "$1"; }
write anew 1
write kept 1
setfattr -n user.gone -v 1 kept
"$2" drain --wait > /dev/null
sleep 2.5
rm anew
write anew 2
cp -p one new
mv new over
mv one aside
mv other one
mv aside other
setfattr -x user.gone kept
setfattr -n user.new -v 2 kept
PROGRAM
check "files with old times" elevated "$outside/pfs" -- bash dated.sh "$outside/pfs" "$weir"
same "what they hold" "2 1 oth one one" "$(cat pfs/anew pfs/kept pfs/one pfs/other pfs/over | xargs)"
same "the attributes of one" 'user.new="2"' "$(getfattr -d pfs/kept 2> /dev/null | grep user)"

# The last that a program does is to rename the directory of an evicted file.
rm -rf pfs
mkdir pfs
MEMORY=32M elevated "$outside/pfs" --set drain.evict_percent=1 -- bash -c 'cd "$1"; mkdir -p old/in; head -c 700000 /dev/urandom > old/in/file
	sha256sum < old/in/file > "$3"; "$2" drain --wait; sleep 2; mv old new' - "$outside/pfs" "$weir" "$outside/sum" > said 2>&1
same "the exit code of a run that ends with a rename" 0 $?
same "the file under its new name" "$(cat sum)" "$(sha256sum < pfs/new/in/file)"

# An evicted file gets the name of the directory that it was in.
rm -rf pfs
mkdir pfs
MEMORY=32M elevated "$outside/pfs" --set drain.evict_percent=1 -- bash -c 'cd "$1"; mkdir out; head -c 700000 /dev/urandom > out/result
	sha256sum < out/result > "$3"; "$2" drain --wait; sleep 2; mv out/result aside; rmdir out; mv aside out' - "$outside/pfs" "$weir" "$outside/sum" > said 2>&1
same "the exit code of a run that made a directory a file" 0 $?
same "the file" "$(cat sum)" "$(sha256sum < pfs/out)"
same "the hidden files that are left" '' "$(find pfs -name '*.weir-part')"

# A directory that cannot be elevated.
fails "a directory whose parent does not exist" elevated "$outside/none/none" -- true
fails "a file" elevated "$outside/story.sh" -- true
fails "one that contains the mount" "$weir" run --mount "$outside/pfs/weir" --elevate "$outside/pfs" -- true
fails "two, of which one is in the other" elevated "$outside/pfs" --elevate "$outside/pfs/d" -- true

# The benchmark of checkpoints measures each row, draws them, and clears its files away.
rm -rf pfs
mkdir pfs
echo kept > pfs/story
"$weir" bench --elevate pfs --quick -b 1m -n 2 --checkpoints 2 --json bench.json --svg bench.svg > bench.out 2> said
same "the exit code of a benchmark" 0 $?
same "the rows, and those of times with a value and one beside it" "6 4" "$(python3 -c '
import json
rows = json.load(open("bench.json"))["rows"]
times = [row for row in rows if row["unit"] == "seconds"]
print(len(rows), sum(row["value"]["median"] > 0 < row["measured_beside"]["median"] for row in times))')"
check "the picture has its lines" grep -q "written by the program" bench.svg
same "what a benchmark leaves" story "$(ls -A pfs)"

# That of single calls, in weir alone: with nothing beside it no target goes without the interposer.
check "single calls in weir alone" "$weir" run --set run.report=none -- "$weir" bench --calls=stat,unlink --quick --quiet --target weir=/weir
same "no message is one of a failed assertion" '' "$(grep -h panicked said pfs.err)"
check_end
