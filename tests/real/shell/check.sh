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
