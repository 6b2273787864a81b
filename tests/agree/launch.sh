#!/bin/bash
# Starts one check program of this directory: launch.sh LAUNCHER PROGRAM ARGUMENT... The launcher is `fork` for a program
# that starts its ranks itself, or an MPI: mpich, openmpi (OMPIO), openmpi-romio, openmpi-lockedfile (shared pointers as between nodes).
launcher=$1
shift
export WEIR_TEST_MPI=$launcher OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
rank=$(dirname "$0")/at_rank.sh
case $launcher in
fork) exec "$@" ;;
mpich) exec mpiexec.mpich -n 4 "$rank" "$@" ;;
openmpi) exec mpiexec.openmpi -n 4 "$rank" "$@" ;;
openmpi-romio) exec mpiexec.openmpi --mca io romio321 -n 4 "$rank" "$@" ;;
openmpi-lockedfile) exec mpiexec.openmpi --mca sharedfp lockedfile -n 4 "$rank" "$@" ;;
*) echo "FAIL no launcher $launcher" && exit 2 ;;
esac
