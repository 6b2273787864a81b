#!/bin/bash
# Transfers of libweir, and the example of them, over four servers and without the interposer.
. "$(dirname "$0")/check.sh"
cd "$outside" || exit 1
base=${WEIR_INSTANCE:?only on weir}
build=$WEIR_TEST_BUILD

# on RANK COMMAND...
on() {
	local rank=$1
	shift
	if [ "$rank" = 0 ]; then "$@"; else WEIR_INSTANCE=$base.$rank "$@"; fi
}
plain() { bash -c 'export LD_PRELOAD=; "$@"' - "$@"; }

for rank in 0 2; do
	mkdir "$dir/t$rank" "$dir/p$rank" "out$rank" "plain$rank"
	check "transfers, at $rank" on $rank "$build/transfers" "$dir/t$rank" "$outside/out$rank"
	check "transfers without the interposer, at $rank" on $rank plain "$build/transfers" "$dir/p$rank" "$outside/plain$rank"
done

# Bytes of other nodes.
mkdir ckpt
on 1 sh -c "head -c 3000000 /dev/urandom > $dir/a"
on 3 sh -c "head -c 3000000 /dev/urandom > $dir/b"
same "the example" "$outside/ckpt/a: done, 3000000 bytes
$outside/ckpt/b: done, 3000000 bytes" "$(on 0 "$build/transfer" "$outside/ckpt" "$dir/a" "$dir/b" 2> /dev/null)"
same "what other nodes wrote" "$(cat "$dir/a" "$dir/b" | md5sum)" "$(cat ckpt/a ckpt/b | md5sum)"
same "the example, of a file that is not there" "$outside/ckpt/none: no such file, directory or instance, 0 bytes" \
	"$(on 0 "$build/transfer" "$outside/ckpt" "$dir/none" 2> /dev/null)"

# The process that moves files is killed: what it had is unknown, and the next one serves.
for process in $(pgrep -x weir-transfer); do
	! grep -qzxF "$base" "/proc/$process/cmdline" || kill -KILL "$process"
done
check "after a kill" "$build/transfer" "$outside/ckpt" "$dir/a"

check_end
