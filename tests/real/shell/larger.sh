#!/bin/bash
# Files of an elevated directory that are larger than the instance: ranges of them go ahead to the parallel file system while
# programs write them. Random operations on such files must read what was written, and leave it there; a program that is killed
# together with everything loses nothing. Only on weir. LARGER_SEEDS: how many runs of random operations; LARGER_KILLS: how
# often a program is killed.
. "$(dirname "$0")/check.sh"
begin_drains
programs=$here/../python

# larger [OPTION...] -- COMMAND...: runs a command with an elevated directory and an instance of 64 MiB.
larger() {
	rm -rf pfs
	mkdir pfs
	"$weir" run --set run.report=none --set memory.warm=16M --memory 64M --no-storage --elevate "$outside/pfs" "$@" 2> said
}

sums() {
	(cd pfs && for name in *; do echo "$name $(stat -c %s "$name") $(sha256sum < "$name" | cut -d ' ' -f 1)"; done)
}

hidden() {
	find pfs -name '*.weir-part'
}

cat > record.py <<'PROGRAM'
"""record.py FILE LOG RECORDS: appends records to a file, and tells in a log how many; without a log: how many there are."""
import os
import struct
import sys

SIZE = 65536

def record(number):
    return struct.pack("<QQ", number, number * 2654435761 % 2**64) * (SIZE // 16)

if len(sys.argv) > 2:
    file = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
    log = os.open(sys.argv[2], os.O_WRONLY | os.O_CREAT)
    for number in range(int(sys.argv[3])):
        assert os.write(file, record(number)) == SIZE
        os.pwrite(log, b"%09d" % (number + 1), 0)
        if number % 1000 == 999:
            assert os.pread(file, SIZE, (number // 2) * SIZE) == record(number // 2)
else:
    number = 0
    with open(sys.argv[1], "rb") as file:
        while (found := file.read(SIZE)) == record(number):
            number += 1
    # The last one may be torn.
    assert file.closed and record(number).startswith(found), f"record {number} is wrong"
    print(number)
PROGRAM

check "a file of 250 MiB in an instance of 64 MiB" larger -- python3 record.py "$outside/pfs/file" log 4000
same "all of it is there" 4000 "$(python3 record.py pfs/file)"
check "ranges went ahead" grep -q 'evicted from the instance' said
same "no hidden file is left" '' "$(hidden)"

# Two at once, and one that is written again from its beginning.
cat > several.sh <<'PROGRAM'
set -e
cd "$1"
head -c 90M /dev/zero | tr '\0' a > one &
head -c 90M /dev/zero | tr '\0' b > two
wait $!
exec 5<> one
head -c 90M /dev/zero | tr '\0' c >&5
exec 5>&-
printf d >> two
mkdir dir
mv two dir/2
PROGRAM
check "files of 90 MiB, and one written again" larger -- bash several.sh "$outside/pfs"
same "the one" "$(head -c 90M /dev/zero | tr '\0' c | cksum)" "$(cksum < pfs/one)"
same "the other" "$({ head -c 90M /dev/zero | tr '\0' b; printf d; } | cksum)" "$(cksum < pfs/dir/2)"
same "and nothing else" "dir one" "$(ls -A pfs | xargs)$(hidden)"

# A file of the target that is larger than the instance: appended to once it was evicted.
cat > again.sh <<'PROGRAM'
set -e
cd "$1"
head -c 100M /dev/zero | tr '\0' a > file
"$2" drain --wait "$1/file"
echo more >> file
truncate -s 90M file
truncate -s 95M file
test "$(head -c 5 file)$(tail -c 1 file | od -An -tx1)" = "aaaaa 00"
PROGRAM
check "a file that is opened again" larger -- bash again.sh "$outside/pfs" "$weir"
same "is as it was written" "$({ head -c 90M /dev/zero | tr '\0' a; head -c 5M /dev/zero; } | cksum)" "$(cksum < pfs/file)"
same "no hidden file is left behind it" '' "$(hidden)"

export WEIR_DRAIN_EVICT_PERCENT=1
# A file that is written again after it was evicted, and gets its old time.
cat > old_time.sh <<'PROGRAM'
set -e
cd "$1"
head -c 2M /dev/zero > file
until "$2" drain --status --json | grep -q '"evicted_files":[1-9]'; do sleep 0.1; done
touch -r file ../time
printf new | dd of=file bs=1 seek=1000000 conv=notrunc status=none
touch -r ../time file
"$2" drain --wait
PROGRAM
for servers in 1 3; do
	check "a file with its old time, $servers servers" larger --servers $servers -- bash old_time.sh "$outside/pfs" "$weir"
	same "is there as it was written last" \
		"$({ head -c 1000000 /dev/zero; printf new; head -c 1097149 /dev/zero; } | cksum)" "$(cksum < pfs/file)"
	same "no hidden file is left of its first version" '' "$(hidden)"
done
wrong=
for seed in $(seq "${LARGER_SEEDS:-4}"); do
	larger -- python3 "$programs/larger.py" "$outside/pfs" "$seed" 300 > in.log || wrong="seed $seed: $(head -n 3 in.log said)"
	[ -n "$wrong" ] || wrong=$(diff in.log <(sums) && hidden)
	[ -z "$wrong" ] || break
	grep -h 'evicted from the instance' said >> evicted.log
done
same "random operations" '' "$wrong"
check "ranges were evicted meanwhile" test -s evicted.log
unset WEIR_DRAIN_EVICT_PERCENT

# Of several servers.
check "a file of 250 MiB in three servers of 64 MiB" larger --servers 3 -- python3 record.py "$outside/pfs/file" log 4000
same "all of it is there, too" 4000 "$(python3 record.py pfs/file)"
same "no hidden file is left of it" '' "$(hidden)"
wrong=
export WEIR_DRAIN_EVICT_PERCENT=1
for seed in $(seq "${LARGER_SEEDS:-2}"); do
	larger --servers 3 -- python3 "$programs/larger.py" "$outside/pfs" "1$seed" 200 > in.log ||
		wrong="seed 1$seed: $(head -n 3 in.log said)"
	[ -n "$wrong" ] || wrong=$(diff in.log <(sums) && hidden)
	[ -z "$wrong" ] || break
done
same "random operations, with three servers" '' "$wrong"
unset WEIR_DRAIN_EVICT_PERCENT

# Where nothing makes room it is told.
larger --set drain.evict_percent=0 -- bash -c 'head -c 100M /dev/zero > "$1/large"' - "$outside/pfs"
same "a file that is larger than an instance which evicts nothing" 1 $?
check "is ENOSPC" grep -q 'No space left' said

# The process that moves is killed, and a program renames the directory in which it has open what went ahead.
cat > renames.py <<'PROGRAM'
import os
import sys
import time

def meet(name):
    open(f"../{name}", "w").close()
    while not os.path.exists(f"../{name}.done"):
        time.sleep(0.05)

os.chdir(sys.argv[1])
os.mkdir("ckpt")
with open("ckpt/small", "w") as small:
    small.write("first")
file = os.open("ckpt/file", os.O_RDWR | os.O_CREAT)
for number in range(100):
    os.write(file, bytes([number]) * (1 << 20))
meet("written")
os.rename("ckpt", "ckpt.old")
os.mkdir("ckpt.tmp")
with open("ckpt.tmp/small", "w") as small:
    small.write("second")
os.rename("ckpt.tmp", "ckpt")
meet("renamed")
for number in range(100):
    assert os.pread(file, 1 << 20, number << 20) == bytes([number]) * (1 << 20), number
PROGRAM
rm -rf pfs
mkdir pfs
instance=larger-$$
"$weir" start --memory 64M --set memory.warm=16M --no-storage --elevate "$outside/pfs" $instance > said 2>&1
"$weir" run -i $instance -- python3 renames.py "$outside/pfs" > said 2>&1 &
run=$!
until [ -e written ] || ! kill -0 $run; do sleep 0.1; done
kill -KILL $(pgrep -f "drain-process.*$outside/pfs")
touch written.done
until [ -e renamed ] || ! kill -0 $run; do sleep 0.1; done
"$weir" run -i $instance -- bash -c 'sleep 2; touch renamed.done; sleep 1' 2> /dev/null
wait $run
same "a program whose drain was killed" 0 $?
check "its instance ends" "$weir" stop $instance
same "the renamed directory" "first 104857600" "$(cat pfs/ckpt.old/small) $(stat -c %s pfs/ckpt.old/file)"
same "what went ahead of it is there" '' "$(python3 -c '
for number in range(100):
    found = open("pfs/ckpt.old/file", "rb")
    found.seek(number << 20)
    if found.read(1 << 20) != bytes([number]) * (1 << 20):
        print(number)')"
same "the other one" second "$(cat pfs/ckpt/small)"
same "no hidden file is left of these" '' "$(hidden)"

# One that gets a second name before it is closed.
larger -- bash -c 'exec 5>> "$1/file"; head -c 100M /dev/urandom | tee "$2" >&5; ln "$1/file" "$1/other"; exec 5>&-' - \
	"$outside/pfs" "$outside/written"
same "the exit code of one with two names" 0 $?
check "no message of it is one of a failed assertion" test -z "$(grep panicked said)"
check "its names are there" cmp pfs/file written
check "both" cmp pfs/other written
rm written

wrong=0
for kill in $(seq "${LARGER_KILLS:-5}"); do
	rm -rf pfs log
	mkdir pfs
	# Every other time of three servers.
	setsid "$weir" run --set run.report=none --set memory.warm=16M --memory 64M --no-storage --servers $((kill % 2 ? 1 : 3)) \
		--elevate "$outside/pfs" -- \
		python3 record.py "$outside/pfs/file" "$outside/log" 100000 2> said &
	run=$!
	sleep "$((1 + RANDOM % 2)).$((RANDOM % 1000))"
	kill -KILL -- -$run
	wait $run 2> /dev/null
	recovered || { wrong=1 && cat recovered.out && break; }
	written=$(cat log)
	found=$(python3 record.py pfs/file 2>&1)
	[ "$found" -ge "$((10#$written))" ] 2> /dev/null || { wrong=1 && echo "kill $kill: $found of $written" && break; }
	[ -z "$(hidden)" ] || { wrong=1 && hidden && break; }
done
same "what was written before everything was killed is there" 0 $wrong
check_end
