#!/bin/bash
# Starts an MPI check program with four processes and then runs the format's tools on what it left.
# Usage: run.sh PROGRAM DIR, with WEIR_TEST_MPI as mpich, openmpi (its own OMPIO) or openmpi-romio.
set -u
program=$1
shift
set -- "$@"
dir=$1
. "$WEIR_TEST_CHECKS/shell/check.sh"
case $WEIR_TEST_MPI in
mpich) start=(mpiexec.mpich -n 4) flavour=mpich ;;
openmpi) start=(mpiexec.openmpi -n 4) flavour=openmpi ;;
openmpi-romio) start=(mpiexec.openmpi --mca io romio321 -n 4) flavour=openmpi ;;
*) echo "FAIL WEIR_TEST_MPI=$WEIR_TEST_MPI"; exit 2 ;;
esac
case $program in
*.py) command=(/usr/bin/python3 "$WEIR_TEST_CHECKS/mpi/$program") ;;
*) command=("$WEIR_TEST_BUILD/$program.$flavour") ;;
esac
# The checks of the HDF5 connector know if it is there: collective transfers of files in weir are changed then.
[ -z "${HDF5_VOL_CONNECTOR-}" ] || export WEIR_TEST_CONNECTORS=changed

log=$outside/log
"${start[@]}" "${command[@]}" "$dir" > "$log" 2>&1
code=$?
cat "$log" | grep -v ' passed, '
line=$(grep -E '^[0-9]+ passed, [0-9]+ failed$' "$log" | tail -n 1)
same "$program ended well" 0 $code
passed=$((passed + $(echo "${line:-0 passed, 1 failed}" | cut -d' ' -f1)))
failed=$((failed + $(echo "${line:-0 passed, 1 failed}" | cut -d' ' -f3)))

case $program in
phdf5)
	f=$dir/phdf5.$flavour/file.h5
	check "h5dump of a value" bash -c 'h5dump -d /interleaved_collective -s 321,123 -c 1,1 "$1" | grep -q "321123"' - "$f"
	check "h5dump of all" bash -c 'test "$(h5dump "$1" | wc -l)" -gt 1000' - "$f"
	check "h5ls, h5stat" bash -c 'h5ls -r "$1" && h5stat "$1"' - "$f"
	check "h5diff of two datasets written in different ways" h5diff "$f" "$f" /independent /chunked_independent
	check "h5repack, h5diff" bash -c 'h5repack -f GZIP=1 "$1" "$1.packed" && h5diff "$1" "$1.packed"' - "$f"
	check "copied out, h5diff" bash -c 'cp "$1" "$2/out.h5" && h5diff "$1" "$2/out.h5"' - "$f" "$outside"
	;;
hdf5_connector)
	ours=$dir/hdf5_connector.$flavour
	mkdir "$outside/alone"
	check "the same elsewhere" env WEIR_TEST_CONNECTORS= "${start[@]}" "${command[@]}" "$outside/alone"
	alone=$outside/alone/hdf5_connector.$flavour
	for f in plain file hinted serial swmr; do
		check "$f.h5: h5diff finds no difference" h5diff "$ours/$f.h5" "$alone/$f.h5"
	done
	check "plain.h5: the same bytes" cmp "$ours/plain.h5" "$alone/plain.h5"
	check "serial.h5: the same bytes" cmp "$ours/serial.h5" "$alone/serial.h5"
	;;
pnetcdf_io)
	f=$dir/pnetcdf_io.openmpi/file.nc
	check "ncvalidator" ncvalidator "$f"
	check "ncdump" bash -c 'ncdump -v extra "$1" | grep -q "extra = 0, 1, 2, 3, 4"' - "$f"
	check "ncdump -h" bash -c 'ncdump -h "$1" | grep -q "time = UNLIMITED ; // (6 currently)"' - "$f"
	check "ncmpidump agrees with ncdump" bash -c 'cmp <(ncmpidump -v fixed "$1" | grep -A100000 "^data:") <(ncdump -v fixed "$1" | grep -A100000 "^data:")' - "$f"
	check "nccopy to NetCDF-4" bash -c 'nccopy -k nc4 "$1" "$1.nc4" && cmp <(ncdump -v records "$1" | grep -A100000 "^data:") <(ncdump -v records "$1.nc4" | grep -A100000 "^data:")' - "$f"
	check "nccopy back to CDF-5, ncvalidator" bash -c 'nccopy -k cdf5 "$1.nc4" "$1.cdf5" && ncvalidator "$1.cdf5"' - "$f"
	check "ncmpidiff" ncmpidiff "$f" "$f.cdf5"
	;;
netcdf4_par)
	d=$dir/netcdf4_par.openmpi
	for n in collective chunked classic_model; do
		check "$n: ncdump" bash -c 'ncdump -h "$1" | grep -q "double field(time, y, x)"' - "$d/$n.nc"
	done
	check "nccopy to CDF-5, ncvalidator" bash -c 'nccopy -k cdf5 "$1/collective.nc" "$1/cdf5.nc" && ncvalidator "$1/cdf5.nc"' - "$d"
	check "ncdump gives the same data for all" bash -c 'for n in chunked classic_model; do cmp <(ncdump -v field "$1/collective.nc" | grep -A100000 "^data:") <(ncdump -v field "$1/$n.nc" | grep -A100000 "^data:") || exit 1; done' - "$d"
	check "nccopy, compressed" bash -c 'nccopy -d 3 "$1/collective.nc" "$1/zipped.nc" && cmp <(ncdump -v field "$1/collective.nc" | tail -n +3) <(ncdump -v field "$1/zipped.nc" | tail -n +3)' - "$d"
	check "h5dump reads it too" bash -c 'h5dump -m %.0f -d /field -s 3,63,399 -c 1,1,1 "$1/collective.nc" | grep -q 3063399' - "$d"
	;;
h5py_mpi.py)
	check "h5dump" bash -c 'h5dump -d /rows -s 399,999 -c 1,1 "$1" | grep -q 3099999\\\|3.1e+06' - "$dir/h5py_mpi/shared.h5"
	;;
esac
check_end
