#!/bin/bash
# Times array writes of PnetCDF with and without the log, 4 processes: in weir, and on a target that takes 1 ms and 500 MiB/s a
# request (FUSE; it also counts the write requests).
#
#   WEIR=target/release/weir connectors/weir-pnetcdf/bench/run.sh [PATTERN...]
#
# `small` without the log takes minutes on the target: 240,000 requests.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
root=$here/../../..
WEIR=${WEIR:-$root/target/release/weir}
[ $# -gt 0 ] || set -- flash btio btio-nonblocking
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
work=$(mktemp -d "${TMPDIR:-/tmp}/weir-pnetcdf-XXXXXX")
backing=$(mktemp -d /dev/shm/weir-pnetcdf-XXXXXX)
trap 'exec 9>&- || true; wait; rm -rf "$work" "$backing"' EXIT
mpicc.openmpi -O2 -o "$work/puts" "$here/puts.c" -lpnetcdf
run=(timeout 600 mpiexec.openmpi --mca io romio321 --oversubscribe -n 4 "$work/puts")

for pattern in "$@"; do
	for connectors in none mpiio pnetcdf mpiio,pnetcdf; do
		printf 'in weir, %s: ' $connectors
		"$WEIR" run --report none --connectors $connectors -- "${run[@]}" /weir/x.nc "$pattern"
	done
done

mkdir "$work/target" "$backing/b"
mkfifo "$work/lines"
cargo run --quiet --release --manifest-path "$root/Cargo.toml" -p weir-faultfs --example mount -- "$backing/b" "$work/target" 524288000 1 \
	< "$work/lines" > "$work/mounted" &
exec 9> "$work/lines"
until grep -q mounted "$work/mounted"; do sleep 0.1; done
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
