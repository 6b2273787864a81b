#!/bin/bash
# The connector of PnetCDF: what programs see of calls drawn from seeds, and the files they leave, are the same with and without
# a log of their writes.
. "$(dirname "$0")/check.sh"
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
# OMPIO (Open MPI 4.1) does not always read what was written, on any file system.
start=(timeout 120 mpiexec.openmpi --oversubscribe --mca io romio321 -n 3)
build=$WEIR_TEST_BUILD
# ROMIO's collective and sieving writes write back what lies between their pieces. A process that has come back from a collective put and
# writes there by itself loses that, on any file system. What is compared with must not.
printf 'romio_cb_write disable\nromio_ds_write disable\n' > "$outside/hints"

# calls SEED NAME [VARIABLE=VALUE]...: runs the calls on a file here and on one outside, and compares.
calls() {
	local seed=$1 text=$2
	shift 2
	check "seed $seed, $text: without a log" env ROMIO_HINTS="$outside/hints" "${start[@]}" "$build/pnetcdf_calls.openmpi" "$outside/plain.nc" "$outside/plain" "$seed" 120
	check "seed $seed, $text" env "$@" "${start[@]}" "$build/pnetcdf_calls.openmpi" "$dir/logged.nc" "$outside/logged" "$seed" 120
	for rank in 0 1 2; do
		check "seed $seed, $text: what process $rank saw" diff "$outside/plain.$rank" "$outside/logged.$rank"
	done
	check "seed $seed, $text: the file" cmp "$outside/plain.nc" "$dir/logged.nc"
}

for seed in 1 2; do
	calls $seed "a log each" A=1
done
calls 3 "a log each, flushed by PnetCDF" WEIR_PNETCDF_FLUSH=pnetcdf
calls 5 "a shared log" WEIR_PNETCDF_LOG=node
calls 6 "a small log" WEIR_PNETCDF_BUDGET=3000 WEIR_PNETCDF_BUFFER=1000
calls 8 "a small log, flushed by PnetCDF" WEIR_PNETCDF_FLUSH=pnetcdf WEIR_PNETCDF_BUDGET=3000 WEIR_PNETCDF_BUFFER=1000
calls 7 "a small shared log" WEIR_PNETCDF_LOG=node WEIR_PNETCDF_BUDGET=3000 WEIR_PNETCDF_BUFFER=1000

for flavour in ompio romio321; do
	for text in "a log each:A=1:" "a shared log:WEIR_PNETCDF_LOG=node:" "flushed by PnetCDF:WEIR_PNETCDF_FLUSH=pnetcdf:" "a small log:WEIR_PNETCDF_BUDGET=100000:small"; do
		IFS=: read -r text variable mode <<<"$text"
		log=$outside/log
		env "$variable" timeout 120 mpiexec.openmpi --oversubscribe --mca io $flavour -n 4 "$build/pnetcdf_log.openmpi" "$dir" $mode > "$log" 2>&1
		same "$flavour, $text: ended well" 0 $?
		grep -v -e '^ok' -e 'passed' "$log"
	done
done
# A budget below some puts, and above others; and one for all.
for variable in A=1 WEIR_PNETCDF_FLUSH=pnetcdf WEIR_PNETCDF_BUDGET=600; do
	env "$variable" timeout 120 mpiexec.openmpi --oversubscribe --mca io romio321 -n 3 "$build/pnetcdf_answers.openmpi" "$dir" > "$outside/log" 2>&1
	same "$variable: answers of PnetCDF" 0 $?
	grep -v -e '^ok' -e 'passed' -e 'not waited for' -e 'still pending' "$outside/log"
done

module=$(find /usr/lib -name pnetcdf.mod -print -quit)
check "Fortran is compiled" mpif90.openmpi -I"${module%/*}" -o "$outside/fortran" "$WEIR_TEST_CHECKS/fortran/pnetcdf_log.f90" -lpnetcdf
said=$(timeout 120 mpiexec.openmpi --oversubscribe -n 2 "$outside/fortran" "$dir/fortran.nc" 2>&1)
same "Fortran" 0 $?
check "Fortran: the file" bash -c 'ncdump "$1" | tail -n 3 | grep -q "1.5, 1.5 ;"' - "$dir/fortran.nc"
[ -z "${WEIR_TEST_ON_WEIR:-}" ] || check "Fortran: its writes were logged" grep -q fortran.nc <<<"$said"

if [ -n "${WEIR_TEST_ON_WEIR:-}" ]; then
	check "a flush that fails in one process" timeout 120 mpiexec.openmpi --oversubscribe -n 3 "$build/pnetcdf_log.openmpi" "$dir" fail
	for variable in A=1 WEIR_PNETCDF_LOG=node; do
		env "$variable" timeout 120 mpiexec.openmpi --oversubscribe -n 3 "$build/pnetcdf_log.openmpi" "$dir" die > "$outside/log" 2>&1
		same "$variable: killed by SIGKILL" 137 $?
		check "$variable: its log is left" bash -c '"$1" log show | grep -q "file.nc: 15 writes.* 3 processes; left over"' - "$WEIR_TEST_WEIR"
		same "$variable: and can be read" "4000, 4001" "$("$WEIR_TEST_WEIR" log read records | tail -n 1 | cut -d, -f1,2)"
		check "$variable: and replayed into a copy" bash -c 'cp "$1/pnetcdf_log.openmpi/file.nc" "$2" && "$3" log replay --keep --to "$2" &&
			ncdump -v records "$2" | grep -q "^  *4000, 4001,"' - "$dir" "$outside/copy.nc" "$WEIR_TEST_WEIR"
		# The file keeps its log under another name, also if another file has its old one.
		check "$variable: the log of a file that was renamed" bash -c 'cd "$1/pnetcdf_log.openmpi"; mv file.nc renamed.nc; cp renamed.nc file.nc
			"$2" log replay --keep && ncdump -v records renamed.nc | grep -q "^  *4000, 4001," &&
			! ncdump -v records file.nc | grep -q "^  *4000, 4001," && mv renamed.nc file.nc' - "$dir" "$WEIR_TEST_WEIR"
		# Another number of processes opens the file.
		check "$variable: what was logged is in the file" timeout 120 mpiexec.openmpi --oversubscribe -n 2 \
			"$build/pnetcdf_log.openmpi" "$dir" look
	done
	timeout 120 mpiexec.openmpi --oversubscribe -n 2 "$build/pnetcdf_log.openmpi" "$dir" die > "$outside/log" 2>&1
	rm "$dir/pnetcdf_log.openmpi/file.nc"
	check "the log of a file that was removed goes with it" bash -c '"$1" log replay 2>&1 | grep "was removed"' - "$WEIR_TEST_WEIR"
fi
[ -z "${WEIR_TEST_ON_WEIR:-}" ] || check "no logs are left" test ! -e "${WEIR_AT:-/none}/.pnetcdf"
check_end
