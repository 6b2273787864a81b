#!/bin/bash
# Connectors are loaded when a program first calls a function that they wrap, and not before. Without one, the call reaches the
# function that it would reach without weir.
. "$(dirname "$0")/check.sh"
cd "$dir" || exit 1
built() {
	local output=$1
	shift
	cc -O2 -Wall -Wextra -pthread -o "$outside/$output" "$WEIR_TEST_CHECKS/c/first_call.c" "$@"
}
check "a program that opens libraries" built first_call -ldl
# The second is a PnetCDF in a library of another name, as in a Python module.
for library in pnetcdf_own other; do
	check "PnetCDF as lib$library.so" built "lib$library.so" -shared -fPIC -DPNETCDF
	check "and its caller" built "caller_$library.so" -shared -fPIC -DCALLER -L"$outside" "-l$library" -Wl,-rpath,"$outside"
done
check "a caller of MPI" mpicc.mpich -O2 -shared -fPIC -DMPI -o "$outside/caller_mpi.so" "$WEIR_TEST_CHECKS/c/first_call.c"

# calls TEXT AFTER COMMAND...: the command succeeds; before the call no connector is mapped, and afterwards these.
none='mpiio 0 pnetcdf 0'
pnetcdf='mpiio 0 pnetcdf 1'
mpiio='mpiio 1 pnetcdf 0'
[ -n "${WEIR_TEST_ON_WEIR:-}" ] || pnetcdf=$none mpiio=$none
calls() {
	local text=$1 after=$2 output code
	shift 2
	output=$(timeout -k 5 100 "$@" 2>&1)
	code=$?
	same "$text" "0 $none $after" "$code $(tr '\n' ' ' <<< "$output" | sed 's/ $//')"
}
opens=("$outside/first_call")
for scope in local global; do
	own=("${opens[@]}" "$outside/caller_pnetcdf_own.so" $scope)
	other=("${opens[@]}" "$outside/caller_other.so" $scope)
	calls "$scope: first calls of eight threads" "$pnetcdf" "${own[@]}" race
	calls "$scope: the same without an environment" "$pnetcdf" env -i "${own[@]}" race
	calls "$scope: the same outside of the instance" "$pnetcdf" env WEIR_INSTANCE= "${own[@]}" race
	calls "$scope: without connectors" "$none" env WEIR_CONNECTORS= "${own[@]}" race
	calls "$scope: without the connector" "$none" env WEIR_CONNECTORS=mpiio "${own[@]}" race
	calls "$scope: all kinds of arguments" "$none" env WEIR_CONNECTORS= "${own[@]}" arguments
	calls "$scope: all kinds of arguments, a library of another name" "$none" env WEIR_CONNECTORS= "${other[@]}" arguments
	calls "$scope: all kinds of arguments, outside of the instance" "$none" env WEIR_CONNECTORS= WEIR_INSTANCE= "${own[@]}" arguments
done
calls "MPI, loaded for one library alone" "$mpiio" "${opens[@]}" "$outside/caller_mpi.so" local opens "$dir/file"
same "and it has written" x "$(cat file)"
calls "the same outside of the instance" "$mpiio" env WEIR_INSTANCE= "${opens[@]}" "$outside/caller_mpi.so" local opens "$outside/file"
calls "the same without connectors" "$none" env WEIR_CONNECTORS= "${opens[@]}" "$outside/caller_mpi.so" local opens "$dir/file2"
same "and it has written" x "$(cat file2)"

if [ -n "${WEIR_TEST_ON_WEIR:-}" ]; then
	client=${LD_PRELOAD%%:*}
	place=$(dirname "$client")
	same "a program without MPI has no connector" "$client" "$(grep -o '/[^ ]*libweir_[a-z]*.so' /proc/self/maps | sort -u)"
	calls "a function that no library has" "$pnetcdf" "${opens[@]}" "$outside/caller_pnetcdf_own.so" local lacking
	calls "the same without connectors" "$none" env WEIR_CONNECTORS= "${opens[@]}" "$outside/caller_pnetcdf_own.so" local lacking
	functions() {
		nm -D --defined-only "$@" | awk '$2 == "T" { print $3 }' | grep -vE '^weir_(mpiio|pnetcdf)_loaded$' | sort
	}
	wrapped=$(functions "$place/libweir_mpiio.so" "$place/libweir_pnetcdf.so")
	check "connectors have functions" test "$(wc -l <<< "$wrapped")" -gt 700
	same "the client library has a function of each name that connectors wrap, and no other one" "$wrapped" \
		"$(functions "$client" | grep -E '^(MPI_|mpi_|ompi_|ncmpi_|weir_mpiio_)')"

	own_instances
	caller=("${opens[@]}" "$outside/caller_pnetcdf_own.so" local race)
	# The run around it has its connectors in the environment.
	inner=(env WEIR_INSTANCE= LD_PRELOAD= "$WEIR_TEST_WEIR" run --memory 64M --report none --connectors)
	calls "a run within the run, without connectors" "$none" "${inner[@]}" none -- "${caller[@]}"
	calls "with that of MPI-IO" "$none" "${inner[@]}" mpiio -- "${caller[@]}"
	calls "with that of PnetCDF" "$pnetcdf" "${inner[@]}" pnetcdf -- "${caller[@]}"

	# A client library with no connector beside it, as after half an installation.
	mkdir "$outside/alone"
	cp "$client" "$outside/alone"
	lonely() { WEIR_PRELOAD="$outside/alone/${client##*/}" timeout 100 "${inner[@]}" none -- env WEIR_CONNECTORS=pnetcdf "${caller[@]}"; }
	output=$(lonely 2>&1)
	same "a connector that is not there: the program goes on" 0 $?
	same "and it is told once" 1 "$(grep -c 'weir: the connector pnetcdf cannot be loaded' <<< "$output")"
fi
check_end
