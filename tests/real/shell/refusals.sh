#!/bin/bash
# What calls refuse, and how, is on weir what it is on tmpfs: tests/real/c/refusals.c prints it, line by line. What differs is
# in docs/SEMANTICS.md, and not in that program. (Kernels differ, too: this is of Linux 6.4 and later.)
. "$(dirname "$0")/check.sh"

there=$(mktemp -d /dev/shm/weir-check-XXXXXX)
mkdir "$dir/here"
"$WEIR_TEST_BUILD/refusals" "$there" > "$outside/there" 2>&1
"$WEIR_TEST_BUILD/refusals" "$dir/here" > "$outside/here" 2>&1
rm -rf "$there"
check "there are lines" test "$(wc -l < "$outside/there")" -gt 450
check "they are the same" diff "$outside/there" "$outside/here"
check_end
