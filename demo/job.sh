#!/bin/bash
# One job of the demo, on any directory: four processes simulate and write one shared checkpoint by MPI-IO from C (MPICH),
# another program reads and verifies it; the same with parallel HDF5 from Python (Open MPI); both files are copied to OUT.
# Usage: job.sh DIR OUT BUILD MIB_MPIIO MIB_HDF5. Its lines `result` and `verified` are for demo/run.
set -eu
dir=$1 out=$2 build=$3 mpiio=$4 hdf5=$5
here=$(cd "$(dirname "$0")" && pwd)
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
export PYTHONDONTWRITEBYTECODE=1
mkdir -p "$dir/demo"
mpiexec.mpich -n 4 "$build/heat" "$dir/demo/checkpoint.raw" "$mpiio"
mpiexec.mpich -n 4 "$build/heat_verify" "$dir/demo/checkpoint.raw" "$mpiio"
mpiexec.openmpi -n 4 /usr/bin/python3 "$here/heat_h5.py" write "$dir/demo/checkpoint.h5" "$hdf5"
mpiexec.openmpi -n 4 /usr/bin/python3 "$here/heat_h5.py" verify "$dir/demo/checkpoint.h5" "$hdf5"
ls -l "$dir/demo" >&2
cp -a "$dir/demo/." "$out/"
