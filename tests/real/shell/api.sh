#!/bin/bash
# The C API over several servers, and in programs that the interposer is not in. The driver has started four.
. "$(dirname "$0")/check.sh"
base=${WEIR_INSTANCE:?only on weir}
api=$WEIR_TEST_BUILD/api
export WEIR_TEST_LIBWEIR=$WEIR_TEST_BUILD/lib/libweir.so.1

# on RANK COMMAND...
on() {
	local rank=$1
	shift
	if [ "$rank" = 0 ]; then "$@"; else WEIR_INSTANCE=$base.$rank "$@"; fi
}

# ask RANK VERB PATH: with the API; plain: in a program that the interposer is not in.
ask() {
	on "$1" "$api" "$dir" "$2" "$3" 2>&1
}
plain() {
	(export LD_PRELOAD= && on "$1" "$api" "$dir" "$2" "$3" 2>&1)
}

for rank in 0 2; do
	mkdir "$dir/at$rank" "$dir/at$rank/plain"
	check "all of it, at $rank" on $rank "$api" "$dir/at$rank"
	check "all of it without the interposer, at $rank" \
		bash -c 'export LD_PRELOAD=; "$@"' - env WEIR_INSTANCE="$base$([ $rank = 0 ] || echo .$rank)" "$api" "$dir/at$rank"
	check "opened by dlopen, from C++, at $rank" on $rank "$WEIR_TEST_BUILD/api_dlopen" "$dir/at$rank"
done

on 0 sh -c "echo text > $dir/f"
same "laminated by its writer's node" 0 "$(ask 0 laminate "$dir/f")"
for rank in 0 1 2 3; do
	same "laminated, at $rank" 1 "$(ask $rank laminated "$dir/f")"
	same "and without the interposer" 1 "$(plain $rank laminated "$dir/f")"
	same "a write is refused at $rank" "Read-only file system" \
		"$(on $rank sh -c "echo more >> $dir/f" 2>&1 | sed 's/.*: //')"
	same "also by the API" 1 "$(plain $rank open "$dir/f" | grep -c 'read-only: the file is laminated')"
done
same "it is read elsewhere" text "$(on 3 cat "$dir/f")"

# A program has a file open for writing at 1; who asks at 2 is told, and closing laminates it.
on 1 bash -c "exec 3> $dir/due; echo text >&3
	mkfifo $outside/go; echo ready > $outside/ready; read -r < $outside/go; exec 3>&-" &
writer=$!
until [ -e "$outside/ready" ]; do sleep 0.01; done
same "open for writing elsewhere" 1 "$(plain 2 laminate "$dir/due" | grep -c 'busy: open for writing')"
echo > "$outside/go"
wait $writer
same "laminated once it is closed" 1 "$(ask 3 laminated "$dir/due")"

# Read after laminate, set by the API for what is made in a directory.
mkdir "$dir/ral"
same "a directory's visibility" 0 "$(plain 3 ral "$dir/ral")"
on 1 sh -c "echo data > $dir/ral/f"
same "nothing is seen before" 0 "$(plain 2 size "$dir/ral/f")"
same "laminated from another node" 0 "$(plain 3 laminate "$dir/ral/f")"
same "all is seen after" "5 data" "$(plain 2 size "$dir/ral/f") $(on 0 cat "$dir/ral/f")"

# What a program wrote and has neither synced nor closed, published by another process of its node.
on 2 bash -c "exec 3> $dir/open; printf bytes >&3
	echo ready > $outside/ready2; read -r < $outside/go; exec 3>&-" &
writer=$!
until [ -e "$outside/ready2" ]; do sleep 0.01; done
same "published for its writer" 0 "$(plain 2 sync "$dir/open")"
same "seen elsewhere at once" bytes "$(on 0 cat "$dir/open")"
echo > "$outside/go"
wait $writer

# Bytes of two servers.
on 0 sh -c "printf 0123 > $dir/two"
on 3 sh -c "printf 456789 >> $dir/two"
same "where bytes are" "0:4 3:6 2" "$(plain 1 where "$dir/two")"
check_end
