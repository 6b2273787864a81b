#!/bin/bash
# Failed assertions of the connectors of MPI-IO and PnetCDF: each ends a call, in a line of text, and no program.
. "$(dirname "$0")/check.sh"
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
start=(timeout 120 mpiexec.openmpi --oversubscribe -n 2 "$WEIR_TEST_BUILD/connector_bugs.openmpi")
if [ -z "${WEIR_TEST_ON_WEIR:-}" ]; then
	check "without connectors nothing fails" "${start[@]}" "$dir" ""
	check_end
fi
for call in MPI_File_open MPI_File_set_atomicity MPI_File_write_at_all MPI_File_close \
	ncmpi_create ncmpi_enddef ncmpi_put_vara_int_all ncmpi_close; do
	check "$call" bash -c 'log=$1; shift; "$@" > "$log" 2>&1; code=$?; cat "$log"; exit $code' - "$outside/$call" "${start[@]}" "$dir" "$call"
	calls=2
	[ "$call" != ncmpi_put_vara_int_all ] || calls=4
	same "$call: each is told once" $calls "$(grep -c 'weir: bug: .*planted for a test; the program goes on' "$outside/$call")"
done
check_end
