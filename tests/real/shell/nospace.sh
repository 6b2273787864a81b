#!/bin/bash
# The end of the space: runs c/nospace.c where 256 MiB is all there is. On weir the driver has set both budgets; on a directory
# a tmpfs of that size is mounted on it, in a mount namespace of its own (which needs root).
set -u
program=$WEIR_TEST_BUILD/nospace
[ -n "${WEIR_TEST_ON_WEIR:-}" ] && exec "$program" "$1" 256
exec unshare -m sh -c 'mount -t tmpfs -o size=256m weir-check "$1" && exec "$0" "$1" 256' "$program" "$1"
