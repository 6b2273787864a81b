#!/bin/bash
# Programs that an interposer cannot be in, with a current directory and descriptors of the file system: what they are
# told is made must be there, and what they do to what they have must concern nobody else. A file system that only
# injected programs see refuses them everything.
. "$(dirname "$0")/check.sh"
cd "$dir" || exit 1

check "a static program" cc -static -O1 -o "$outside/static" "$here/../c/uninjected.c"
mkdir in-it

# are_there NAME...
are_there() {
	local name
	for name in "$@"; do
		[ -e "$name" ] || [ -L "$name" ] || return 1
	done
}
# as_it_was: the directory can be used as before.
as_it_was() {
	chmod 755 . && echo text > file && [ "$(cat file)" = text ] && ls > /dev/null && rm file
}
# left_by COMMAND...: runs it in a directory, which is descriptor 5 too.
left_by() {
	local made
	cd in-it || return 1
	made=$("$@" 5< .)
	# shellcheck disable=SC2086 # names without blanks
	are_there $made && as_it_was && cd .. && rm -rf in-it && mkdir in-it
}
check "a static program leaves what it says" left_by "$outside/static"
check "started by env -i" left_by env -i "$outside/static"
check "by a shell without the variable" left_by sh -c "unset LD_PRELOAD WEIR_INSTANCE; exec '$outside/static'"
check "by another program" left_by /usr/bin/python3 -c "import os; os.closerange(10, 20); os.spawnv(os.P_WAIT, '$outside/static', ['static'])"
check "other directories can be entered, left and listed" sh -c 'cd in-it && cd .. && pwd && ls -l in-it'
check "a thousand of them" bash -c 'for i in $(seq 500); do cd in-it; cd ..; done; pwd'
check_end
