# The frame of every check script: `. check.sh` after setting nothing. The script is started as `script DIR`, works in
# DIR/<its name> and ends with `check_end`. One line per check, then `N passed, N failed`; the exit code
# is 0 only if nothing failed. Clean-up is the caller's. Written for bash.
set -u
passed=0
failed=0
name=$(basename "$0" .sh)
[ $# -ge 1 ] || { echo "usage: $0 DIR" >&2; exit 2; }
dir=$1/$name
here=$(cd "$(dirname "$0")" && pwd)
outside=$(mktemp -d "${TMPDIR:-/tmp}/weir-check-XXXXXX")
trap 'rm -rf "$outside"' EXIT
mkdir -p "$dir" || { echo "FAIL mkdir $dir"; exit 1; }
export LC_ALL=C

# check TEXT COMMAND...: the command must succeed. Its output shows when it does not.
check() {
	local text=$1 output
	shift
	if output=$("$@" 2>&1); then
		echo "ok   $text"
		passed=$((passed + 1))
	else
		echo "FAIL $text   [exit $?: $*]"
		[ -z "$output" ] || printf '%s\n' "$output" | head -n 10 | sed 's/^/     /'
		failed=$((failed + 1))
	fi
}

# fails TEXT COMMAND...: the command must fail, and not by a signal.
fails() {
	local text=$1
	shift
	"$@" > /dev/null 2>&1
	local code=$?
	check "$text (exit $code)" test $code -gt 0 -a $code -lt 126
}

# same TEXT WANTED GOT: two texts must be equal.
same() {
	if [ "$2" = "$3" ]; then
		echo "ok   $1"
		passed=$((passed + 1))
	else
		echo "FAIL $1"
		printf '     wanted: %.300q\n     got:    %.300q\n' "$2" "$3"
		failed=$((failed + 1))
	fi
}

check_end() {
	echo "$passed passed, $failed failed"
	[ "$failed" = 0 ]
	exit
}

# own_instances: the instances that are started from now on, and what is left of them, are of this script alone.
own_instances() {
	memory=$(mktemp -d /dev/shm/weir-check-XXXXXX)
	# Paths of sockets are short.
	runs=$(mktemp -d /tmp/wXXXXXX)
	trap 'rm -rf "$outside" "$memory" "$runs"' EXIT
	export TMPDIR=$outside XDG_RUNTIME_DIR=$runs WEIR_LAUNCH_DIRECTORY=$runs WEIR_MEMORY_DIRECTORY=$memory
}

# begin_drains: of a script that is only for weir: works in $outside, with instances of its own whose drains look all the
# time. Else the script ends.
begin_drains() {
	[ -n "${WEIR_TEST_ON_WEIR:-}" ] || check_end
	weir=$WEIR_TEST_WEIR
	export WEIR_DRAIN_INTERVAL_S=0
	export WEIR_INSTANCE=
	cd "$outside" || exit 1
	own_instances
}

# await_dead: after own_instances, waits until the instance of a run that was killed is dead.
await_dead() {
	local tries
	for tries in $(seq 200); do
		"$weir" recover --list | grep -q 'is dead' && break
		sleep 0.05
	done
}

# recovered: the same, and moves what it has to the target.
recovered() {
	await_dead
	"$weir" recover > recovered.out 2>&1
}

# shown DIRECTORY: what is in it, except times. Two names of one symbolic link become two links.
shown() {
	(cd "$1" && find . -type f -printf '%P %y %m %s %n\n' -o -printf '%P %y %m %l\n' | sed "s $PWD TOP " | sort)
	(cd "$1" && find . -type f | sort | xargs -d '\n' sha256sum)
	(cd "$1" && find . -type f ! -newermt 2021-01-01 -printf '%P %t\n' | sort)
	(cd "$1" && find . -type f | sort | xargs -r -d '\n' getfattr -d --)
}
