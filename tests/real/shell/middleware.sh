#!/bin/bash
# Drain state and prefetch of libweir, and the examples of them in crates/weir-capi: in elevated directories, and with
# --drain-to. Only on weir.
. "$(dirname "$0")/check.sh"
begin_drains
build=$WEIR_TEST_BUILD
drains=$build/drains
export drains

run() { "$weir" run --set run.report=none --memory 256M --set memory.warm=64M "$@"; }
# The number that a line begins with, of a command.
cat > lib.sh <<'PROGRAM'
state() { "$drains" state "$1" | cut -d' ' -f1; }
drain() { "$drains" drain "$1" "$2" | cut -d' ' -f1; }
PROGRAM

# Prefetch.
mkdir pfs pfs/in
for i in 1 2 3; do head -c 100000 /dev/urandom > "pfs/in/f$i"; done
ln pfs/in/f3 pfs/in/g3
sums=$(cd pfs/in && stat -c '%n %i %Y' f1 f2)
run --elevate "$outside/pfs" -- \
	"$build/prefetch" "$outside/pfs/in/f1" "$outside/pfs/in/f2" "$outside/pfs/in/f3" "$outside/pfs/in/none" > said 2> errors
same "the run" 0 $?
same "the example" "$outside/pfs/in/f1: in the instance
$outside/pfs/in/f2: in the instance
$outside/pfs/in/f3: the file has several names
$outside/pfs/in/none: no such file, directory or instance" "$(cat said)"
same "what was only read is not moved back" "$sums" "$(cd pfs/in && stat -c '%n %i %Y' f1 f2)"
run --elevate "$outside/pfs" -- bash -c "
	$build/prefetch $outside/pfs/in/f1 > /dev/null
	# The drain has seen it as it was.
	$drains drain $outside/pfs/in/f1 -1 > /dev/null
	LD_PRELOAD= rm $outside/pfs/in/f1
	LD_PRELOAD= bash -c 'echo other > $outside/pfs/in/f1'
	wc -c < $outside/pfs/in/f1" > said 2> errors
same "reads are served from the instance, and the other file stays" "0 100000 other" "$? $(cat said) $(cat pfs/in/f1)"

# An elevated directory.
head -c 1000 /dev/urandom > pfs/ckpt.7
run --elevate "$outside/pfs" -- bash -c "head -c 3000000 /dev/urandom > $outside/pfs/ckpt.8
	md5sum < $outside/pfs/ckpt.8 > sum
	$build/drain $outside/pfs/ckpt.8 $outside/pfs/ckpt.7
	LD_PRELOAD= md5sum < $outside/pfs/ckpt.8 > there
	test -e $outside/pfs/ckpt.7 || echo gone" > said 2> errors
same "the example" "$outside/pfs/ckpt.8: safe
gone" "$(cat said)"
same "it was there when it was safe" "$(cat sum)" "$(cat there)"
same "the old one is removed" no "$([ -e pfs/ckpt.7 ] && echo yes || echo no)"
run --elevate "$outside/pfs" -- bash -c ". ./lib.sh; cd $outside/pfs
	exec 3> open; echo text >&3; state $outside/pfs/open; drain open 0
	exec 3>&-; drain open -1; state open
	# However slow this machine is, nothing is moved before the question.
	$weir drain --pause > $outside/paused
	echo more >> open; state open
	$weir drain --resume > $outside/paused
	drain . -1; state open
	state in/f2; state none; state in; drain none 60000" > said 2> errors
same "writing, not yet, safe; safe again only after a change is moved; on the target alone; none; a directory; none" \
	"1 1 0 4 2 0 4 4 -2 -21 -2" "$(tr '\n' ' ' < said | sed 's/ $//')"

# A conflict.
run --elevate "$outside/pfs" -- bash -c ". ./lib.sh
	$weir drain --pause > paused
	echo ours > $outside/pfs/conflict
	LD_PRELOAD= bash -c 'echo theirs > $outside/pfs/conflict'
	$weir drain --resume > paused
	drain $outside/pfs/conflict -1; $drains state $outside/pfs/conflict" > said 2> errors
same "a file that cannot be moved" "-5
5 $outside/pfs/conflict is somebody else's" "$(cut -d: -f1 said)"
for left in "$runs"/weir-run-*/; do
	check "the instance that stays is given up" "$weir" stop --no-drain --force "$left"
done

# Transfers that nobody waits for.
run -- bash -c "head -c 60000000 /dev/urandom > /weir/big; md5sum < /weir/big > sum; $drains begin /weir/big $outside/big" > said 2> errors
same "the run waits for a transfer" "0 $(cat sum)" "$? $(md5sum < big)"
run -- bash -c "echo a > /weir/a; $drains begin /weir/a $outside/none/a" > said 2> errors
same "one that fails" "122 1" "$? $(grep -c '1 files of transfers that no program waited for' errors)"
for left in "$runs"/weir-run-*/; do
	check "the instance that stays is given up" "$weir" stop --no-drain --force "$left"
done

# --drain-to, with a choice; nothing is moved; several nodes.
mkdir target
run --drain-to target --set 'drain.skip=*.tmp' -- bash -c ". ./lib.sh
	$drains hostile > hostile
	echo a > /weir/a; echo b > /weir/b.tmp
	drain /weir/a -1; state /weir/a; state /weir/b.tmp; state /weir/c" > said 2> errors
same "hostile arguments" 0 "$(grep -c FAIL hostile)"
same "moved; not chosen; not there" "0 4 0 -2" "$(tr '\n' ' ' < said | sed 's/ $//')"
run -- bash -c ". ./lib.sh; echo a > /weir/a; state /weir/a; drain /weir/a -1" > said
same "nothing drains it" "0 -95" "$(tr '\n' ' ' < said | sed 's/ $//')"
run --servers 2 --drain-to target -- bash -c ". ./lib.sh; echo a > /weir/a; drain /weir/a -1
	WEIR_INSTANCE=\$WEIR_INSTANCE.1 $drains state /weir/a" > said 2> errors
same "on another node" "0
-66 no drain runs on this node; ask on that of weir run" "$(cat said)"
check_end
