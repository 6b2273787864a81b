#!/bin/bash
# c/batches.c: what each of four servers holds a quarter of, read at each of them.
set -u
program=$WEIR_TEST_BUILD/batches
base=${WEIR_INSTANCE:?only on weir}
failed=0
at() {
	local rank=$1
	shift
	if [ "$rank" = 0 ]; then "$@"; else WEIR_INSTANCE=$base.$rank "$@"; fi
}
for rank in 0 1 2 3; do at $rank "$program" "$1" write $rank > /dev/null || failed=1; done
for rank in 0 1 2 3; do at $rank "$program" "$1" read || failed=1; done
exit $failed
