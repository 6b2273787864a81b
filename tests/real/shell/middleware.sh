#!/bin/bash
# The examples of crates/weir-capi that concern elevated directories: prefetch. Only on weir.
. "$(dirname "$0")/check.sh"
begin_drains
build=$WEIR_TEST_BUILD

# Prefetch.
mkdir pfs pfs/in
for i in 1 2 3; do head -c 100000 /dev/urandom > "pfs/in/f$i"; done
ln pfs/in/f3 pfs/in/g3
sums=$(cd pfs/in && stat -c '%n %i %Y' f1 f2)
"$weir" run --set run.report=none --memory 256M --elevate "$outside/pfs" -- \
	"$build/prefetch" "$outside/pfs/in/f1" "$outside/pfs/in/f2" "$outside/pfs/in/f3" "$outside/pfs/in/none" > said 2> errors
same "the run" 0 $?
same "the example" "$outside/pfs/in/f1: in the instance
$outside/pfs/in/f2: in the instance
$outside/pfs/in/f3: the file has several names
$outside/pfs/in/none: no such file, directory or instance" "$(cat said)"
same "what was only read is not moved back" "$sums" "$(cd pfs/in && stat -c '%n %i %Y' f1 f2)"
check_end
