#!/bin/bash
# Array writes as those of FLASH, NPB's BTIO and WRF: the file is the one that PnetCDF alone makes elsewhere, bit for bit.
. "$(dirname "$0")/check.sh"
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
start=(timeout 120 mpiexec.openmpi --oversubscribe --mca io romio321 -n 4 "$WEIR_TEST_BUILD/puts.openmpi")

for kernel in flash btio btio-nonblocking wrf; do
	check "$kernel, elsewhere" "${start[@]}" "$outside/plain.nc" $kernel
	for flush in direct pnetcdf; do
		check "$kernel, flush by $flush" env WEIR_PNETCDF_FLUSH=$flush "${start[@]}" "$dir/file.nc" $kernel
		check "$kernel, flush by $flush: the file" cmp "$outside/plain.nc" "$dir/file.nc"
		rm "$dir/file.nc"
	done
	rm "$outside/plain.nc"
done
check_end
