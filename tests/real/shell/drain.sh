#!/bin/bash
# weir run --drain-to beside programs that write: all that is on the target is whole at any time, and at the end it is
# what the programs left. A loop of checkpoints is killed together with everything, again and again, and begins again
# from its newest checkpoint on the target. Only on weir. DRAIN_KILLS: how often.
. "$(dirname "$0")/check.sh"
[ -n "${WEIR_TEST_ON_WEIR:-}" ] || check_end
weir=$WEIR_TEST_WEIR
export WEIR_DRAIN_INTERVAL_S=0
export WEIR_INSTANCE=
cd "$outside" || exit 1

# Writes checkpoints from a number on: each under a name of its own, then `latest` leads to it, then the one before the
# last is removed. With a directory of many files, and a log that stays open.
cat > loop.py <<'PROGRAM'
import os, sys, time
first, last, seconds = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
os.chdir("/weir")
log = open("log", "a", buffering=1)
for number in range(first, last):
    os.mkdir(f"ckpt.{number}.tmp")
    for rank in range(4):
        with open(f"ckpt.{number}.tmp/rank.{rank}", "wb") as file:
            for _ in range(8):
                file.write(number.to_bytes(8, "little") * 16384)
    os.rename(f"ckpt.{number}.tmp", f"ckpt.{number}")
    os.symlink(f"ckpt.{number}", "next")
    os.rename("next", "latest")
    for old in [number - 2] if number >= first + 2 else []:
        for rank in range(4):
            os.unlink(f"ckpt.{old}/rank.{rank}")
        os.rmdir(f"ckpt.{old}")
    log.write(f"{number}\n")
    time.sleep(seconds)
PROGRAM

# Prints the number of the checkpoint that `latest` leads to, if it is whole, and complains of any file that is not.
cat > newest.py <<'PROGRAM'
import os, re, sys
top, ok = sys.argv[1], True
for dir, _, names in os.walk(top):
    for name in names:
        path = os.path.join(dir, name)
        number = re.search(r"ckpt\.(\d+)(\.tmp)?/rank", path)
        if number and not name.endswith(".weir-part"):
            if open(path, "rb").read() != int(number[1]).to_bytes(8, "little") * (8 * 16384):
                print("torn", path)
                ok = False
latest = os.path.join(top, "latest")
if not os.path.lexists(latest):
    print("none" if ok else "")
elif sorted(os.listdir(latest)) == [f"rank.{rank}" for rank in range(4)] and ok:
    print(os.readlink(latest).split(".")[1])
else:
    print("latest is not whole:", os.readlink(latest), os.listdir(latest))
PROGRAM

check "a loop of checkpoints" "$weir" run --drain-to "$outside/pfs" python3 "$outside/loop.py" 0 40 0.1
same "its last checkpoint" 39 "$(python3 newest.py pfs)"
same "what is on the target" "ckpt.38 ckpt.39 latest log" "$(cd pfs && echo *)"
same "the log" "$(seq 0 39)" "$(cat pfs/log)"
same "no hidden file is left" '' "$(find pfs -name '*.weir-part')"

# Killed with everything.
rm -rf pfs
newest=none
begun=0
wrong=0
for kill in $(seq "${DRAIN_KILLS:-6}"); do
	setsid "$weir" run --drain-to "$outside/pfs" python3 "$outside/loop.py" $begun 1000000 0.1 2> said &
	run=$!
	sleep "$((2 + RANDOM % 2)).$((RANDOM % 1000))"
	kill -KILL -- -$run
	wait $run 2> /dev/null
	again=$(python3 newest.py pfs)
	case $again in
	none) [ "$newest" = none ] || wrong=1 ;;
	*[!0-9]*) wrong=1 ;;
	*) [ "$newest" = none ] || [ "$again" -ge "$newest" ] || wrong=1 ;;
	esac
	[ $wrong = 0 ] || { echo "kill $kill: $again after $newest"; ls -l pfs; break; }
	newest=$again
	[ "$newest" = none ] || begun=$((newest + 1))
done
same "each loop that was killed with everything left a whole checkpoint, and none that is older" 0 $wrong
check "some checkpoint was safe ($newest)" test "$newest" != none

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
