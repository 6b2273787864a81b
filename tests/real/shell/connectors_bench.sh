#!/bin/bash
# weir bench --connectors: each row of a short measurement has its values, and what cannot be compiled says so. Only on weir.
. "$(dirname "$0")/check.sh"
begin_drains
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
mkdir pfs

# bench LIST OPTION...: with a report in bench.json. MPICC and MPIEXEC: other commands.
bench() {
	local subjects=$1
	shift
	timeout 300 "$weir" bench --connectors="$subjects" --quick -n 2 --mpicc "${MPICC:-mpicc.openmpi}" \
		--mpiexec "${MPIEXEC:-mpiexec.openmpi --oversubscribe --mca io romio321}" --json bench.json "$@" > bench.out 2> said
}

# The number of rows, of those with a value and one beside it, and the reasons why the others have none.
rows() {
	python3 -c '
import json
rows = json.load(open("bench.json"))["rows"]
measured = [row for row in rows if row["value"] and row["measured_beside"]["median"] > 0]
print(len(rows), len(measured), *sorted({row["why_not"] for row in rows if row["why_not"]}), sep="; ")'
}

bench mpiio,pnetcdf,pfs,overhead --pfs pfs
same "the exit code of a benchmark" 0 $?
same "its rows, and those that are measured" "12; 9; PnetCDF was built without its burst buffer driver" "$(rows)"
same "what it leaves" '' "$(ls -A pfs)"
bench mpiio --own-servers 2
same "the exit code of one of two servers" 0 $?
same "its rows" "3; 3" "$(rows)"
bench pfs
same "the rows of a directory that is not given" "6; 0; no directory: give --pfs" "$(rows)"
MPICC=/nowhere/mpicc bench mpiio --strict
same "the exit code of --strict where nothing is measured" 4 $?
same "the rows of a compiler that is not there" "3; 0; /nowhere/mpicc is not found: give --mpicc" "$(rows)"
MPIEXEC=false bench mpiio
same "the exit code of a launcher that fails" 1 $?
check_end
