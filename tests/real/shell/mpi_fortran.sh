#!/bin/bash
# MPI-IO by Fortran's three bindings, with both MPIs: each reaches MPI by functions of its own.
. "$(dirname "$0")/check.sh"
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1

# run LAUNCHER... -- PROGRAM BINDING HINT: what processes find wrong.
run() {
	local words=()
	while [ "$1" != -- ]; do
		words+=("$1")
		shift
	done
	same "${words[*]}: $3" '0 wrong' "$(timeout 120 "${words[@]}" -n 3 "$2" "$dir/fortran.$3" "$4" 2>&1)"
}

# The value of ROMIO's hint for data sieving: Open MPI does not tell it.
[ -n "${WEIR_TEST_ON_WEIR:-}" ] && large=disable || large=automatic
for binding in MPIF MODULE F08; do
	for mpi in mpich openmpi; do
		# Without the option gfortran refuses buffers of several types.
		check "$binding is compiled with $mpi" "mpif90.$mpi" -O1 -fallow-argument-mismatch "-D$binding" -J "$outside" \
			-o "$outside/$mpi.$binding" "$WEIR_TEST_CHECKS/fortran/mpiio.F90"
	done
	run mpiexec.mpich -- "$outside/mpich.$binding" "$binding" "$large"
	run mpiexec.openmpi --oversubscribe -- "$outside/openmpi.$binding" "$binding" untold
	run mpiexec.openmpi --oversubscribe --mca io romio321 -- "$outside/openmpi.$binding" "$binding" untold
done
check_end
