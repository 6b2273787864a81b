#!/bin/bash
# Array writes as those of FLASH, NPB's BTIO and WRF: the file is the one that PnetCDF alone makes elsewhere, bit for bit. The
# second argument is the MPI, that of Debian's library if there is none; the one with MPICH has a burst buffer driver of its own.
. "$(dirname "$0")/check.sh"
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
start=(timeout 120 mpiexec.openmpi --oversubscribe --mca io romio321 -n 4 "$WEIR_TEST_BUILD/puts.openmpi")
driver=()
if [ "${2:-openmpi}" = mpich ]; then
	start=(timeout 120 mpiexec.mpich -n 4 "$WEIR_TEST_BUILD/puts.mpich")
	mkdir "$outside/log"
	driver=(nc_burst_buf=enable "nc_burst_buf_dirname=$outside/log")
fi

for kernel in flash btio btio-nonblocking wrf; do
	check "$kernel, elsewhere" "${start[@]}" "$outside/plain.nc" $kernel
	for flush in direct pnetcdf; do
		check "$kernel, flush by $flush" env WEIR_PNETCDF_FLUSH=$flush "${start[@]}" "$dir/file.nc" $kernel
		check "$kernel, flush by $flush: the file" cmp "$outside/plain.nc" "$dir/file.nc"
		rm "$dir/file.nc"
	done
	if [ ${#driver[@]} -gt 0 ]; then
		check "$kernel, PnetCDF's driver" "${start[@]}" "$dir/file.nc" $kernel "${driver[@]}"
		check "$kernel, PnetCDF's driver: the file" cmp "$outside/plain.nc" "$dir/file.nc"
		rm "$dir/file.nc"
	fi
	rm "$outside/plain.nc"
done
check_end
