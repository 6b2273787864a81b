#!/bin/bash
# weir analyze: injected commands see each file at its own path, whole, before the parallel file system has it: HDF5 files,
# odd names, files of other servers, and more than the instance holds. Only on weir.
. "$(dirname "$0")/check.sh"
begin_drains

# analyzed DIRECTORY "OPTION..." ANALYSIS [OPTION...] -- COMMAND...: runs a command with an elevated directory, and beside it an
# analysis, whose exit code is in the file `code` then.
analyzed() {
	local pfs=$1 options=$2 analysis=$3
	shift 3
	local own=()
	while [ "$1" != -- ]; do
		own+=("$1")
		shift
	done
	shift
	rm -f code results log
	cat > beside.sh <<-PROGRAM
		(cd "$outside" && "$weir" analyze $options -- $analysis > log 2>&1; echo \$? > code.part; mv code.part code) &
		until "$weir" drain --status --json 2> /dev/null | grep -q '"analyzers":1'; do sleep 0.02; done
		exec "\$@"
	PROGRAM
	tell_names "$pfs" &
	"$weir" run --set run.report=none --set memory.warm=64M "${own[@]}" --elevate "$pfs" -- bash beside.sh "$@" 2> said
	local ended=$?
	local tries
	for tries in $(seq 200); do
		[ -e code ] && break
		sleep 0.05
	done
	touch told.end
	wait
	rm -f asked.* told.*
	return $ended
}

# tell_names DIRECTORY: tells injected programs which names are on the PFS: for each file `asked.N` a file `told.N`, until there is
# `told.end`, which is no question.
tell_names() {
	local asked
	while [ ! -e told.end ]; do
		for asked in asked.*; do
			[ -e "$asked" ] || continue
			ls "$1" > "told.part"
			rm "$asked"
			mv told.part "told.${asked#asked.}"
		done
		sleep 0.02
	done
}

# What the analyses do: they see a file that the PFS does not have, in the order of its versions.
cat > hdf5.py <<'PROGRAM'
import os, sys, time
import h5py

path = sys.argv[1]
with h5py.File(path, "r") as f:
    mean, step = f["field"][...].mean(), f.attrs["step"]
told = f"told.{os.getpid()}"
open(f"asked.{os.getpid()}", "w").close()
while not os.path.exists(told):
    time.sleep(0.02)
held = os.path.basename(path) not in open(told).read().split()
with open("results", "a") as results:
    print(os.path.basename(path), step, mean, held, file=results)
PROGRAM
cat > simulation.py <<'PROGRAM'
import sys, time
import h5py
import numpy as np

for step in range(6):
    with h5py.File(f"{sys.argv[1]}/ckpt.{step}.h5", "w") as f:
        f["field"] = np.full((200, 300), step, dtype="f8")
        f.attrs["step"] = step
    with open(f"{sys.argv[1]}/log.{step}", "w") as f:
        f.write("not analysed")
    time.sleep(0.3)
PROGRAM
wanted=$(for step in 0 1 2 3 4 5; do echo "ckpt.$step.h5 $step $step.0 True"; done)
for servers in 1 3; do
	rm -rf pfs
	mkdir pfs
	check "a simulation, with $servers servers" analyzed "$outside/pfs" "--on **/*.h5" "/usr/bin/python3 hdf5.py {}" \
		--servers $servers -- /usr/bin/python3 simulation.py "$outside/pfs"
	same "the analyses of its checkpoints" "$wanted" "$(sort results)"
	same "all of them succeeded" 0 "$(cat code)"
	same "everything is there" 12 "$(find pfs -type f | wc -l)"
	check "it was told" grep -q '6 files analysed before they were moved' said
done

# Odd names, failures, and arguments of which the path is a part.
rm -rf pfs
mkdir pfs
cat > names.sh <<'PROGRAM'
cd "$1"
mkdir 'a directory'
for name in 'a file' $'\xff\xfe' $'new\nline' '{}' 'a directory/bad'; do
	printf '%s' "$name" > "$name"
done
PROGRAM
cat > names.py <<'PROGRAM'
import os, sys

path = os.fsencode(sys.argv[1].removeprefix("--file="))
content = open(path, "rb").read()
assert path.endswith(b"/pfs/" + content), (path, content)
with open("results", "a") as results:
    print("seen", file=results)
sys.exit(5 if path.endswith(b"bad") else 0)
PROGRAM
check "odd names" analyzed "$outside/pfs" "-j 3" "/usr/bin/python3 names.py --file={}" -- bash names.sh "$outside/pfs"
same "each was seen" 5 "$(grep -c seen results)"
same "one failed" 9 "$(cat code)"
check "and is named" grep -q 'a directory/bad: exit code 5' log
same "all are moved" 5 "$(find pfs -type f -printf '.' | wc -c)"

# More than the instance holds, faster than it is analysed: files are moved before their analysis then, and evicted. Their
# analyses see the same bytes.
rm -rf pfs
mkdir pfs
cat > burst.sh <<'PROGRAM'
set -e
cd "$1"
for burst in $(seq 12); do
	head -c 15M /dev/urandom > burst.$burst.tmp
	sha256sum < burst.$burst.tmp > sum.$burst
	mv burst.$burst.tmp burst.$burst
done
PROGRAM
cat > sum.sh <<'PROGRAM'
sleep 0.5
[ "$(sha256sum < "$1")" = "$(cat "${1%/*}/sum.${1##*.}")" ] && echo "${1##*/}" >> results
PROGRAM
check "a burst of 180 MiB to an instance of 64 MiB" analyzed "$outside/pfs" "--on burst.*[0-9]" "bash sum.sh" \
	--memory 64M --no-storage -- bash burst.sh "$outside/pfs"
same "all of it was analysed" "$(seq 12 | sed 's/^/burst./' | sort)" "$(sort -u results)"
same "no analysis failed" 0 "$(cat code)"
check_end
