#!/bin/bash
# Measures the HDF5 connector: run.sh [PROCESSES], 4 unless said, with WEIR=PATH of the weir program (default target/release/weir), and
# ROUNDS=3 runs of each kind, in turns. Needs what tools/build-hdf5 needs.
#
# A line for each shape of the transfers: the least times of the writes, the reads and the file, ms, without connectors, with that of
# MPI-IO, with both, and of a program whose transfers are independent by themselves. Then, on tmpfs, the costs of being there
# for files that are not in weir.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
processes=${1:-4}
weir=$(realpath "${WEIR:-$here/../../../target/release/weir}")
hdf5=$("$here/../../../tools/build-hdf5" mpich)
work=$(mktemp -d)
elsewhere=$(mktemp -d /dev/shm/weir-bench-XXXXXX)
trap 'rm -rf "$work" "$elsewhere"' EXIT
for program in collective small; do
	mpicc.mpich -O2 -I"$hdf5/include" -L"$hdf5/lib" -Wl,-rpath,"$hdf5/lib" -o "$work/$program" "$here/$program.c" -lhdf5
done

one() { # CONNECTORS COMMAND...
	local connectors=$1
	shift
	"$weir" run --memory 2G --report none --connectors "$connectors" -- "$@"
}

least() { # the least of each column, of lines `KIND NUMBER...`, a line for all kinds
	awk -v name="$1" '{ if (!seen[$1]++) kinds[++n] = $1
		for (i = 2; i <= NF; i++) if (!(($1, i) in least) || $i < least[$1, i]) least[$1, i] = $i; fields = NF }
		END { printf "%-24s", name
		      for (k = 1; k <= n; k++) { printf " %s", kinds[k]; for (i = 2; i <= fields; i++) printf " %.4g", least[kinds[k], i] }
		      print "" }'
}

for shape in "contiguous 64 65536 4" "strided 64 65536 4" "chunked 64 65536 4" "contiguous 16 1048576 2" "strided 64 4096 16"; do
	for ((round = 0; round < ${ROUNDS:-3}; round++)); do
		start=(mpiexec.mpich -n "$processes" "$work/collective" /weir/file)
		echo "none $(one none "${start[@]}" collective $shape)"
		echo "mpiio $(one mpiio "${start[@]}" collective $shape)"
		echo "both $(one mpiio,hdf5 "${start[@]}" collective $shape)"
		echo "independent $(one mpiio "${start[@]}" independent $shape)"
	done | least "$shape"
done
for bytes in 4096 1048576; do
	for ((round = 0; round < ${ROUNDS:-3}; round++)); do
		echo "none $(one mpiio "$work/small" "$elsewhere/file" $bytes)"
		echo "hdf5 $(one mpiio,hdf5 "$work/small" "$elsewhere/file" $bytes)"
	done | least "elsewhere, $bytes bytes"
done
