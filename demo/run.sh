#!/bin/bash
# The demo: the job of job.sh under `weir run`, then the same on tmpfs and on the disk, and a table of the bandwidths.
#
# Usage: demo/run.sh [--weir BINARY] [--out DIR] [DIRECTORY...]
#   --weir BINARY   the weir command; without it only the directories are run
#   --out DIR       keep the copied-out checkpoint there (default: a temporary directory, removed)
#   DIRECTORY...    what to compare with (default: /dev/shm and ${TMPDIR:-/tmp})
# DEMO_MPIIO_MIB and DEMO_HDF5_MIB change how much each of the four processes writes (256, 128).
# Exits non-zero when a byte is wrong, on a target or in the copy.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
weir= keep= targets=()
while [ $# -gt 0 ]; do
	case $1 in
	--weir) weir=$2; shift 2 ;;
	--out) keep=$2; shift 2 ;;
	-*) sed -n '2,10s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
	*) targets+=("$1"); shift ;;
	esac
done
[ ${#targets[@]} -gt 0 ] || targets=(/dev/shm "${TMPDIR:-/tmp}")
mpiio=${DEMO_MPIIO_MIB:-256} hdf5=${DEMO_HDF5_MIB:-128}

missing=
for need in mpicc.mpich:libmpich-dev mpiexec.mpich:mpich mpiexec.openmpi:openmpi-bin; do
	command -v "${need%%:*}" > /dev/null || missing+=" ${need##*:}"
done
for need in h5py/_debian_h5py_mpi:python3-h5py-mpi mpi4py:python3-mpi4py numpy:python3-numpy; do
	[ -e "/usr/lib/python3/dist-packages/${need%%:*}" ] || missing+=" ${need##*:}"
done
if [ -n "$missing" ]; then
	echo "demo: missing on this machine; as root: apt-get install$missing" >&2
	exit 1
fi

work=$(mktemp -d "${TMPDIR:-/tmp}/weir-demo-XXXXXX")
used=()
clean() {
	rm -rf "$work" ${used[@]+"${used[@]}"}
}
trap clean EXIT
for program in heat heat_verify; do
	mpicc.mpich -O3 -ffp-contract=off -Wall -o "$work/$program" "$here/$program.c"
done

failed=0
# one NAME COMMAND...: runs the job, its lines into $work/NAME.log
one() {
	local name=$1 log=$work/$1.log code=0
	shift
	echo "-- $name: $*" >&2
	"$@" > "$log" || code=$?
	if [ $code != 0 ] || [ "$(grep -c '^verified .* 0$' "$log")" != 2 ]; then
		echo "demo: $name FAILED (exit $code)" >&2
		grep '^verified' "$log" >&2 || true
		failed=1
	fi
}

names=()
if [ -n "$weir" ]; then
	out=${keep:-$work/out}
	mkdir -p "$out"
	names+=(weir)
	one weir "$weir" run -- bash "$here/job.sh" /weir "$out" "$work" "$mpiio" "$hdf5"
	# The copy is verified by the same programs, on an ordinary directory.
	echo "-- the copy in $out" >&2
	export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
	if mpiexec.mpich -n 4 "$work/heat_verify" "$out/checkpoint.raw" "$mpiio" > "$work/copy.log" &&
		mpiexec.openmpi -n 4 /usr/bin/python3 "$here/heat_h5.py" verify "$out/checkpoint.h5" "$hdf5" >> "$work/copy.log"; then
		echo "   every byte is right" >&2
	else
		echo "demo: the copy in $out is WRONG" >&2
		failed=1
	fi
	[ -n "$keep" ] || rm -rf "$out"
fi
for target in "${targets[@]}"; do
	dir=$(mktemp -d "$target/weir-demo-XXXXXX")
	used+=("$dir")
	name=$(df --output=fstype "$dir" | tail -n 1)
	while [ -e "$work/$name.log" ]; do name+=+; done
	names+=("$name")
	mkdir "$work/out-$name"
	one "$name" bash "$here/job.sh" "$dir" "$work/out-$name" "$work" "$mpiio" "$hdf5"
	rm -rf "$dir" "$work/out-$name"
done

# rate NAME FORMAT WHAT: GiB/s, or -
rate() {
	awk -v f="$2" -v w="$3" '$1 == "result" && $2 == f && $3 == w { printf "%.2f", $4 / $5 / 1073741824; found = 1 } END { if (!found) printf "-" }' "$work/$1.log"
}
verified() {
	awk -v f="$2" '$1 == "verified" && $2 == f { print $4 == 0 ? "every byte" : $4 " WRONG"; found = 1 } END { if (!found) print "NO" }' "$work/$1.log"
}
echo
echo "Four processes, one shared file; GiB/s of all together. MPI-IO from C: $((mpiio * 4)) MiB; parallel HDF5 from h5py: $((hdf5 * 4)) MiB."
echo "\"+ sync\" has the sync and the close in its time; without it the disk's rate is the page cache's."
printf '\n%-10s %-8s %8s %8s %8s   %s\n' target through write '+ sync' read verified
for name in "${names[@]}"; do
	for format in mpiio hdf5; do
		printf '%-10s %-8s %8s %8s %8s   %s\n' "$name" "$format" "$(rate "$name" $format write)" "$(rate "$name" $format sync)" "$(rate "$name" $format read)" "$(verified "$name" $format)"
	done
done
exit $failed
