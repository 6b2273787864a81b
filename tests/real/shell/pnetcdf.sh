#!/bin/bash
# The connector of PnetCDF: what programs see of calls drawn from seeds, and the files they leave, are the same with and without
# a log of their writes. The second argument is the MPI, that of Debian's library if there is none.
. "$(dirname "$0")/check.sh"
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
mpi=${2:-openmpi}
build=$WEIR_TEST_BUILD

# on PROCESSES COMMAND...: with ROMIO. OMPIO (Open MPI 4.1) does not always read what was written, on any file system.
on() {
	local options=()
	[ "$mpi" = mpich ] || options=(--oversubscribe --mca io "${flavour:-romio321}")
	timeout 120 "mpiexec.$mpi" "${options[@]}" -n "$@"
}
# ROMIO's collective and sieving writes write back what lies between their pieces. A process that has come back from a collective put and
# writes there by itself loses that, on any file system. What is compared with must not.
printf 'romio_cb_write disable\nromio_ds_write disable\n' > "$outside/hints"

# with VARIABLE=VALUE... on ...
with() (
	while [ "$1" != on ]; do
		export "${1?}"
		shift
	done
	"$@"
)

# Runs a command of which every second process looks like one of another server: the processes agree by messages then, as on several
# nodes, and not by memory that they share.
apart=$outside/apart.sh
cat > "$apart" <<'EOS'
#!/bin/bash
[ -z "${WEIR_INSTANCE:-}" ] || [ $((${PMI_RANK:-$OMPI_COMM_WORLD_RANK} % 2)) = 0 ] || export WEIR_INSTANCE=$WEIR_INSTANCE/.
exec "$@"
EOS
chmod +x "$apart"

# calls SEED NAME [VARIABLE=VALUE]...: runs the calls on a file here and on one outside, and compares.
calls() {
	local seed=$1 text=$2
	shift 2
	ROMIO_HINTS=$outside/hints check "seed $seed, $text: without a log" on 3 "$build/pnetcdf_calls.$mpi" "$outside/plain.nc" "$outside/plain" "$seed" 120
	check "seed $seed, $text" with "$@" on 3 ${before:-} "$build/pnetcdf_calls.$mpi" "$dir/logged.nc" "$outside/logged" "$seed" 120
	for rank in 0 1 2; do
		check "seed $seed, $text: what process $rank saw" diff "$outside/plain.$rank" "$outside/logged.$rank"
	done
	check "seed $seed, $text: the file" cmp "$outside/plain.nc" "$dir/logged.nc"
}

calls 1 "a log each" A=1
calls 8 "a small log, flushed by PnetCDF" WEIR_PNETCDF_FLUSH=pnetcdf WEIR_PNETCDF_BUDGET=3000 WEIR_PNETCDF_BUFFER=1000
before=$apart calls 9 "a small log, messages" WEIR_PNETCDF_BUDGET=3000
calls 7 "a small shared log" WEIR_PNETCDF_LOG=node WEIR_PNETCDF_BUDGET=3000 WEIR_PNETCDF_BUFFER=1000
# MPICH's processes poll: with more of them than cores a test takes minutes.
if [ "$mpi" = openmpi ]; then
	calls 2 "a log each" A=1
	calls 3 "a log each, flushed by PnetCDF" WEIR_PNETCDF_FLUSH=pnetcdf
	calls 5 "a shared log" WEIR_PNETCDF_LOG=node
	calls 6 "a small log" WEIR_PNETCDF_BUDGET=3000 WEIR_PNETCDF_BUFFER=1000
fi

# PnetCDF's own burst buffer driver, which Debian's library lacks: MPI keeps the hint all the same.
driver="PNETCDF_HINTS=nc_burst_buf=enable;nc_burst_buf_dirname=$outside"
flavours=(romio)
own=A=1
[ "$mpi" = mpich ] || { flavours=(ompio romio321) && own=$driver; }
for flavour in "${flavours[@]}"; do
	for text in "a log each:$own:" "a shared log:WEIR_PNETCDF_LOG=node:" "flushed by PnetCDF:WEIR_PNETCDF_FLUSH=pnetcdf:" "a small log:WEIR_PNETCDF_BUDGET=100000:small"; do
		IFS=: read -r text variable mode <<<"$text"
		log=$outside/log
		with "$variable" on 4 "$build/pnetcdf_log.$mpi" "$dir" $mode > "$log" 2>&1
		same "$flavour, $text: ended well" 0 $?
		grep -v -e '^ok' -e 'passed' "$log"
	done
done
unset flavour
for variable in A=1 WEIR_PNETCDF_LOG=node; do
	with "$variable" on 4 "$apart" "$build/pnetcdf_log.$mpi" "$dir" > "$log" 2>&1
	same "messages, $variable: ended well" 0 $?
	grep -v -e '^ok' -e 'passed' "$log"
done
# A budget below some puts, and above others; and one for all.
for variable in A=1 WEIR_PNETCDF_FLUSH=pnetcdf WEIR_PNETCDF_BUDGET=600; do
	with "$variable" on 3 "$build/pnetcdf_answers.$mpi" "$dir" > "$outside/log" 2>&1
	same "$variable: answers of PnetCDF" 0 $?
	grep -v -e '^ok' -e 'passed' -e 'not waited for' -e 'still pending' "$outside/log"
done

flavour=ompio
# PnetCDF's Fortran is Debian's.
if [ "$mpi" = openmpi ]; then
	module=$(find /usr/lib -name pnetcdf.mod -print -quit)
	check "Fortran is compiled" mpif90.openmpi -I"${module%/*}" -o "$outside/fortran" "$WEIR_TEST_CHECKS/fortran/pnetcdf_log.f90" -lpnetcdf
	said=$(on 2 "$outside/fortran" "$dir/fortran.nc" 2>&1)
	same "Fortran" 0 $?
	check "Fortran: the file" bash -c 'ncdump "$1" | tail -n 3 | grep -q "1.5, 1.5 ;"' - "$dir/fortran.nc"
	[ -z "${WEIR_TEST_ON_WEIR:-}" ] || check "Fortran: its writes were logged" grep -q fortran.nc <<<"$said"
fi

if [ -n "${WEIR_TEST_ON_WEIR:-}" ]; then
	# MPICH's launcher does not add 128 to the number of the signal.
	killed=137
	[ "$mpi" = openmpi ] || killed=9
	[ "$mpi" = openmpi ] || check "PnetCDF's driver in the place of weir's log" with "$driver" on 3 "$build/pnetcdf_log.$mpi" "$dir" driver
	check "a flush that fails in one process" on 3 "$build/pnetcdf_log.$mpi" "$dir" fail
	for variable in A=1 WEIR_PNETCDF_LOG=node; do
		with "$variable" on 3 "$build/pnetcdf_log.$mpi" "$dir" die > "$outside/log" 2>&1
		same "$variable: killed by SIGKILL" "$killed" $?
		check "$variable: its log is left" bash -c '"$1" log show | grep -q "file.nc: 15 writes.* 3 processes; left over"' - "$WEIR_TEST_WEIR"
		same "$variable: and can be read" "4000, 4001" "$("$WEIR_TEST_WEIR" log read records | tail -n 1 | cut -d, -f1,2)"
		check "$variable: and replayed into a copy" bash -c 'cp "$1/file.nc" "$2" && "$3" log replay --keep --to "$2" &&
			ncdump -v records "$2" | grep -q "^  *4000, 4001,"' - "$dir/pnetcdf_log.$mpi" "$outside/copy.nc" "$WEIR_TEST_WEIR"
		# The file keeps its log under another name, also if another file has its old one.
		check "$variable: the log of a file that was renamed" bash -c 'cd "$1"; mv file.nc renamed.nc; cp renamed.nc file.nc
			"$2" log replay --keep && ncdump -v records renamed.nc | grep -q "^  *4000, 4001," &&
			! ncdump -v records file.nc | grep -q "^  *4000, 4001," && mv renamed.nc file.nc' - "$dir/pnetcdf_log.$mpi" "$WEIR_TEST_WEIR"
		# Another number of processes opens the file.
		check "$variable: what was logged is in the file" on 2 "$build/pnetcdf_log.$mpi" "$dir" look
	done
	on 2 "$build/pnetcdf_log.$mpi" "$dir" die > "$outside/log" 2>&1
	rm "$dir/pnetcdf_log.$mpi/file.nc"
	check "the log of a file that was removed goes with it" bash -c '"$1" log replay 2>&1 | grep "was removed"' - "$WEIR_TEST_WEIR"
fi
[ -z "${WEIR_TEST_ON_WEIR:-}" ] || check "no logs are left" test ! -e "${WEIR_AT:-/none}/.pnetcdf"
check_end
