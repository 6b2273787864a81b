#!/bin/bash
# weir run --drain-to beside programs that write: all that is on the target is whole at any time, and at the end it is
# what the programs left. A loop of checkpoints is killed together with everything, again and again, and begins again
# from its newest checkpoint on the target. Only on weir. DRAIN_KILLS: how often.
. "$(dirname "$0")/check.sh"
begin_drains

loop=$here/../python/checkpoint_loop.py
newest=$here/../python/checkpoint_newest.py

check "a loop of checkpoints" "$weir" run --drain-to "$outside/pfs" python3 "$loop" /weir 0 40 0.1
same "its last checkpoint" 39 "$(python3 "$newest" pfs)"
same "what is on the target" "ckpt.38 ckpt.39 data.38 data.39 latest log progress" "$(cd pfs && echo *)"
same "the log" "$(seq 0 39)" "$(cat pfs/log)"
same "no hidden file is left" '' "$(find pfs -name '*.weir-part')"

# The times of files tell which was written last, also if the clock has not ticked in between and one is written in place.
cat > written_last.py <<'PROGRAM'
import os, sys, time
os.close(os.open("/weir/progress", os.O_WRONLY | os.O_CREAT))
for number in range(20):
    with open(f"/weir/data.{number}", "wb") as file:
        file.write(bytes(1000))
    progress = os.open("/weir/progress", os.O_WRONLY)
    os.pwrite(progress, b"%02d" % number, 0)
    if number % 2:
        os.fsync(progress)
    elif number % 4:
        # A busy node may not let a program go on to the close: the time is that of the write then.
        time.sleep(0.03)
    os.close(progress)
    data, progress = [os.stat(f"/weir/{name}").st_ctime_ns for name in (f"data.{number}", "progress")]
    if progress <= data:
        print(number, progress - data)
    time.sleep(0.003)
print("all")
PROGRAM
for servers in 1 3; do
	same "what was written last was changed last, $servers servers" all \
		"$("$weir" run --servers $servers --memory 64M --set run.report=none -- python3 written_last.py)"
done

# A small file is not there before the large one that it speaks of, while that is moved.
rm -rf pfs
"$weir" run --memory 256M --set drain.limit=16M --drain-to "$outside/pfs" \
	sh -c 'head -c 64M /dev/urandom > /weir/large; echo large > /weir/says; until [ -e moved ]; do sleep 0.1; done' &
run=$!
until [ -e pfs/says ]; do sleep 0.05; done
same "the size of what a file speaks of when it is there" $((64 << 20)) "$(stat -c %s pfs/large)"
touch moved
wait $run
same "the exit code of the run that wrote them" 0 $?

# Killed with everything.
rm -rf pfs
safe=none
begun=0
wrong=0
for kill in $(seq "${DRAIN_KILLS:-6}"); do
	setsid "$weir" run --drain-to "$outside/pfs" python3 "$loop" /weir $begun 1000000 0.1 2> said &
	run=$!
	sleep "$((2 + RANDOM % 2)).$((RANDOM % 1000))"
	kill -KILL -- -$run
	wait $run 2> /dev/null
	again=$(WHOLE_FROM=$begun python3 "$newest" pfs)
	case $again in
	none) [ "$safe" = none ] || wrong=1 ;;
	*[!0-9]*) wrong=1 ;;
	*) [ "$safe" = none ] || [ "$again" -ge "$safe" ] || wrong=1 ;;
	esac
	[ $wrong = 0 ] || { echo "kill $kill: $again after $safe"; ls -l pfs; break; }
	safe=$again
	recovered || { wrong=1 && cat recovered.out && break; }
	again=$(WHOLE_FROM=$begun python3 "$newest" pfs recovered)
	[ "$safe" = none ] || [ "$again" -ge "$safe" ] || { wrong=1 && echo "kill $kill: $again recovered, $safe before" && break; }
	# What the loop had not finished.
	rm -rf pfs/ckpt.*.tmp
	safe=$again
	[ "$safe" = none ] || begun=$((safe + 1))
done
same "each loop that was killed with everything left a whole checkpoint, and none that is older" 0 $wrong
check "some checkpoint was safe ($safe)" test "$safe" != none

# What a program had taken back when it was killed with everything is not there after a recovery, be it a file or a directory;
# but what was there before it is, also if the drain has found it as it was to be.
rm -rf pfs
mkdir pfs
echo kept > pfs/kept
sleep 1.5
setsid "$weir" run --stage-in "$outside/pfs/kept" --drain-to "$outside/pfs" \
	sh -c 'mkdir /weir/old; echo 1 | tee /weir/data /weir/old/data > /weir/valid; until [ -e taken ]; do sleep 0.1; done
		rm -r /weir/valid /weir/old /weir/kept; echo 2 > /weir/data; touch again; sleep 1000' 2> said &
run=$!
until [ -e pfs/valid ] && [ -e pfs/old/data ]; do sleep 0.05; done
kill -STOP "$(pgrep -f "drain-process.*$outside/pfs")"
touch taken
until [ -e again ]; do sleep 0.05; done
kill -KILL -- -$run
wait $run 2> /dev/null
same "what was there when it was killed" "data kept old valid" "$(cd pfs && echo *)"
echo theirs > pfs/theirs
check "it is recovered" recovered
same "what is there after the recovery" "data kept theirs" "$(cd pfs && echo *)"
same "what was written last" 2 "$(cat pfs/data)"

# If all is safe, what programs remove later, to make room, stays.
(
	eval "$("$weir" start --shell room)"
	"$weir" run -i room --drain-to "$outside/pfs" sh -c 'echo first > /weir/first'
	"$weir" run -i room --drain-to "$outside/pfs" sh -c 'rm /weir/first; echo second > /weir/second'
	"$weir" stop room
)
same "what two runs of an instance have left" "data first kept second theirs" "$(cd pfs && echo *)"

# Programs that nobody wrote for this: their files come out as they are in the end.
cat > programs.sh <<'PROGRAM'
set -e
cd /weir
git init -q repository
cd repository
for n in $(seq 40); do
	seq "$n"000 > numbers
	git add -A
	git -c user.name=a -c user.email=b commit -qm "$n"
done
git gc -q
cd ..
python3 - <<'PYTHON'
import sqlite3
db = sqlite3.connect("db")
db.execute("create table t(a)")
for n in range(200):
    db.execute("insert into t values(?)", [n])
    db.commit()
PYTHON
tar cf repository.tar repository
mkdir unpacked && tar xf repository.tar -C unpacked
rm -r unpacked/repository/.git/objects
mv unpacked moved
"$1" drain --wait --timeout 20
diff -r --no-dereference /weir "$2"
PROGRAM
check "git, sqlite and tar, drained meanwhile" "$weir" run --drain-to "$outside/programs" bash "$outside/programs.sh" \
	"$weir" "$outside/programs"
check "git fsck" git -C programs/repository fsck
same "a database" 200 "$(python3 -c '
import sqlite3
print(sqlite3.connect("programs/db").execute("select count(*) from t").fetchone()[0])')"
check "a tree that lost and changed names" test -e programs/moved/repository/numbers -a \
	! -e programs/moved/repository/.git/objects -a ! -e programs/unpacked
check_end
