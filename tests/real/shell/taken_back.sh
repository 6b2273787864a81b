#!/bin/bash
# What a program takes back before it writes data again, as a file that says that the data is whole, is gone from the parallel file
# system before the new data is there: removed or renamed, with weir run --drain-to and --elevate, with one server and three, and
# if an earlier job has written it. The target is slow, so that the data is copied for longer than a look takes. Only on weir.
. "$(dirname "$0")/check.sh"
begin_drains

cat > take_back.py <<'PROGRAM'
import os, sys, time
top, way, again = sys.argv[1:4]
os.chdir(top)
def write(number, names):
    for name in names:
        # A file of the parallel file system is updated there at once, unless it is replaced.
        with open(name + ".tmp", "wb") as file:
            file.write(bytes([number]) * (1 << 20))
        os.rename(name + ".tmp", name)
if not os.path.exists("valid"):
    write(1, ["data.a", "data.b"])
    with open("valid", "w") as file:
        file.write("1")
while not os.path.exists(again):
    time.sleep(0.05)
os.unlink("valid") if way == "removed" else os.rename("valid", "not.valid")
write(2, ["data.a", "data.b"])
while os.path.exists(again):
    time.sleep(0.05)
PROGRAM

# The first byte of a file; empty: it is not there.
first_byte() {
	head -c 1 "$1" 2> /dev/null | od -An -tu1 | tr -d ' '
}

# takes_back OPTION TOP WAY SERVERS: watches the target while a program takes `valid` back.
takes_back() {
	rm -f again
	"$weir" run --memory 256M --servers "$4" --set run.report=none --set drain.limit=2M "$1" "$outside/pfs" -- \
		python3 take_back.py "$2" "$3" "$PWD/again" 2> "$3.err" &
	local run=$!
	until [ -e pfs/valid ]; do sleep 0.05; done
	touch again
	local seen=never
	until [ "$(first_byte pfs/data.b)" = 2 ]; do
		# Its name is given once, so what is there after it was there before.
		if [ "$(first_byte pfs/data.a)" = 2 ] && [ -e pfs/valid ]; then
			seen=both
		fi
		sleep 0.02
	done
	if [ -e pfs/valid ]; then
		seen=both
	fi
	rm again
	wait $run || seen="exit code $?"
	echo $seen
}

for servers in 1 3; do
	for way in removed renamed; do
		rm -rf pfs
		same "what was $way, drained, $servers servers" never "$(takes_back --drain-to /weir $way $servers)"
		rm -rf pfs
		mkdir pfs
		same "what was $way, elevated, $servers servers" never "$(takes_back --elevate "$outside/pfs" $way $servers)"
		same "the name is gone in the end" gone "$([ -e pfs/valid ] || echo gone)"
		rm -f pfs/not.valid
		for data in a b; do head -c 1M /dev/zero > pfs/data.$data; done
		echo 1 > pfs/valid
		same "what an earlier job had written, $way, $servers servers" never \
			"$(takes_back --elevate "$outside/pfs" $way $servers)"
		same "that name is gone in the end" gone "$([ -e pfs/valid ] || echo gone)"
	done
done
check_end
