#!/bin/bash
# Measures array writes of PnetCDF to a target that takes 1 ms and 500 MiB/s a request (FUSE), 4 processes: the rows of
# `weir bench --connectors=pfs`, then the times and the write requests that reach the target, without a log, with one of each
# kind, elevated, and with PnetCDF's own burst buffer driver, whose log is on tmpfs.
#
#   WEIR=target/release/weir MPI=openmpi connectors/weir-pnetcdf/bench/slow_target.sh [PATTERN...]
#
# The pattern `small` takes minutes without a log: 240,000 requests.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
root=$here/../../..
WEIR=${WEIR:-$root/target/release/weir}
[ $# -gt 0 ] || set -- flash btio btio-nonblocking
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
work=$(mktemp -d "${TMPDIR:-/tmp}/weir-pnetcdf-XXXXXX")
backing=$(mktemp -d /dev/shm/weir-pnetcdf-XXXXXX)
trap 'exec 9>&- || true; wait; rm -rf "$work" "$backing"' EXIT
mpi=${MPI:-openmpi}
pnetcdf=$("$root/tools/build-pnetcdf" "$mpi")
compiler="mpicc.$mpi -I$pnetcdf/include -L$pnetcdf/lib -Wl,-rpath,$pnetcdf/lib"
$compiler -O2 -o "$work/puts" "$root/crates/weir-bench/programs/puts.c" -lpnetcdf
launcher=mpiexec.mpich
[ "$mpi" = mpich ] || launcher="mpiexec.openmpi --mca io romio321 --oversubscribe"
run=(timeout 600 $launcher -n 4 "$work/puts")

mkdir "$work/target" "$backing/b" "$backing/log"
mkfifo "$work/lines"
cargo run --quiet --release --manifest-path "$root/Cargo.toml" -p weir-faultfs --example mount -- "$backing/b" "$work/target" 524288000 1 \
	< "$work/lines" > "$work/mounted" &
exec 9> "$work/lines"
until grep -q mounted "$work/mounted"; do sleep 0.1; done
"$WEIR" bench --connectors=pfs --pfs "$work/target" --mpicc "$compiler" --mpiexec "$launcher"
count() {
	echo >&9
	sleep 0.5
	tail -n 1 "$work/mounted"
}
for pattern in "$@"; do
	count > "$work/earlier"
	printf 'target, no log: '
	"${run[@]}" "$work/target/x.nc" "$pattern"
	count
	printf "target, PnetCDF's driver: "
	"${run[@]}" "$work/target/x.nc" "$pattern" nc_burst_buf=enable "nc_burst_buf_dirname=$backing/log"
	count
	for log in process node; do
		printf 'target, log of a %s: ' $log
		WEIR_PNETCDF_FILES=all WEIR_PNETCDF_LOG=$log "$WEIR" run --report none --connectors pnetcdf -- "${run[@]}" "$work/target/x.nc" "$pattern"
		count
	done
	rm "$work/target/x.nc"
	printf 'target elevated: '
	"$WEIR" run --report none --elevate "$work/target" -- "${run[@]}" "$work/target/x.nc" "$pattern"
	count
	rm "$work/target/x.nc"
done
