#!/bin/bash
# Several servers on one machine: a program that has mapped a file sees what programs at the other servers sync,
# and nothing that it stored itself is lost by that. The driver has started four servers with kernel mounts.
. "$(dirname "$0")/check.sh"
base=${WEIR_INSTANCE:?only on weir}
servers=4
cd "$dir" || exit 1

# on RANK COMMAND...
on() {
	local rank=$1
	shift
	if [ "$rank" = 0 ]; then "$@"; else WEIR_INSTANCE=$base.$rank "$@"; fi
}

cat > mapper.py <<'P'
import mmap, os, sys, time
page = 4096
fd = os.open(sys.argv[1], os.O_RDWR)
m = mmap.mmap(fd, 4 * page)
print("mapped", m[0:1].decode(), m[page:page + 1].decode(), flush=True)
for line in sys.stdin:
    command, at, text = line.split()
    at, text = int(at), text.encode()
    if command == "await":
        end = time.monotonic() + 20
        while m[at:at + len(text)] != text and time.monotonic() < end:
            time.sleep(0.001)
        print(m[at:at + len(text)].decode(), flush=True)
    elif command == "store":
        m[at:at + len(text)] = text
        print("stored", flush=True)
    elif command == "size":
        end = time.monotonic() + 20
        while os.fstat(fd).st_size != at and time.monotonic() < end:
            time.sleep(0.001)
        print(os.fstat(fd).st_size, flush=True)
    elif command == "sync":
        m.flush()
        print("synced", flush=True)
P

# put FILE OFFSET TEXT: writes and syncs.
put='import os, sys
fd = os.open(sys.argv[1], os.O_WRONLY)
os.pwrite(fd, sys.argv[3].encode(), int(sys.argv[2]))
os.fsync(fd)'

# Made at one server, its home, mapped at another one or there, and written at the others.
for ((made = 0; made < servers + 2; made++)); do
	file=file.$made
	home=$((made % servers))
	mapper=$(((home + 1) % servers))
	writer=$(((home + 2) % servers))
	if ((made >= servers)); then mapper=$home home=$(((home + 1) % servers)); fi
	on $((made % servers)) sh -c "head -c 16384 /dev/zero | tr '\0' - > $file"
	coproc MAPPER { on $mapper python3 mapper.py $file; }
	mapper_pid=$MAPPER_PID # bash unsets its own when it has seen the end
	say() { echo "$@" >&"${MAPPER[1]}"; }
	answer() { IFS= read -r -t 60 line <&"${MAPPER[0]}"; echo "$line"; }
	same "$file: mapped" "mapped - -" "$(answer)"
	# Every server but the mapper's, also more than once.
	for round in 1 2 3; do
		for at in $home $writer $(((home + 3) % servers)); do
			on $at python3 -c "$put" $file 10 "$round.$at"
			say await 10 "$round.$at"
			same "$file: written at $at" "$round.$at" "$(answer)"
		done
	done
	# What was stored in a page is written back before it is dropped.
	say store 8192 own
	same "$file: stored" stored "$(answer)"
	on $writer python3 -c "$put" $file 4096 theirs
	say await 4096 theirs
	same "$file: beside a store" theirs "$(answer)"
	say await 8192 own
	same "$file: the store" own "$(answer)"
	say sync 0 -
	same "$file: msync" synced "$(answer)"
	same "$file: read elsewhere" theirs,own "$(on $writer python3 -c '
import sys
b = open(sys.argv[1], "rb").read()
print(b[4096:4102].decode() + "," + b[8192:8195].decode())' $file)"
	# A file that another node made longer or cut.
	on $writer python3 -c "$put" $file 20000 end
	say size 20003 -
	same "$file: longer" 20003 "$(answer)"
	exec {MAPPER[1]}>&-
	wait "$mapper_pid"
	same "$file: the mapper's end" 0 $?
done
# Cut elsewhere, what was mapped behind the end is SIGBUS.
head -c 16384 /dev/zero > cut
coproc MAPPER { on 1 python3 mapper.py cut; }
mapper_pid=$MAPPER_PID
answer > /dev/null
on 2 truncate -s 4096 cut
say size 4096 -
same "cut: the size" 4096 "$(answer)"
say await 8192 x
wait "$mapper_pid" 2> /dev/null
same "cut: a load behind the end" $((128 + 7)) $?
check_end
