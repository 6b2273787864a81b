#!/bin/bash
# Measures the MPI-IO connector: run.sh [SERVERS], with WEIR=PATH of the weir program (default target/release/weir), and
# ROUNDS=3 pairs of runs without and with it, in turns. Needs MPICH and Open MPI; 4 processes.
#
# A line for each MPI, its module for I/O and size of blocks: the least times without the connector and with it, ms, of a collective write,
# a collective read of own blocks, and one of those of another process; and how many times as fast it is.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
servers=${1:-1}
weir=$(realpath "${WEIR:-$here/../../../target/release/weir}")
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mpicc.mpich -O2 -o "$work/mpich" "$here/strided.c"
mpicc.openmpi -O2 -o "$work/openmpi" "$here/strided.c"
# Each process at the server of its rank.
at_rank=$here/../../../tests/agree/at_rank.sh
[ "$servers" = 4 ] || at_rank=

one() { # MPI BLOCK COUNT CONNECTORS
	local start=(mpiexec.mpich) program=mpich
	case $1 in
	ompio) start=(mpiexec.openmpi) program=openmpi ;;
	romio) start=(mpiexec.openmpi --mca io romio321) program=openmpi ;;
	esac
	"$weir" run --servers "$servers" --memory 2G --report none --connectors "$4" -- \
		"${start[@]}" -n 4 $at_rank "$work/$program" /weir/file "$2" "$3"
}

echo "                      write without  with          own reads             reads of others"
for mpi in mpich ompio romio; do
	for blocks in "4096 2048" "65536 256" "1048576 16"; do
		for ((round = 0; round < ${ROUNDS:-3}; round++)); do
			echo "none $(one $mpi $blocks none)"
			echo "auto $(one $mpi $blocks auto)"
		done | awk -v name="$mpi, blocks of ${blocks% *}" '
			{ for (i = 2; i <= 4; i++) if (!(($1, i) in least) || $i < least[$1, i]) least[$1, i] = $i }
			END { printf "%-22s", name
			      for (i = 2; i <= 4; i++) printf " %7.1f %6.1f %4.1f x", least["none", i], least["auto", i], least["none", i] / least["auto", i]
			      print "" }'
	done
done
