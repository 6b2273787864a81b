#!/bin/bash
# Several servers on one machine: what a program does at one of them, programs at the others see. The driver has started
# four; a program uses the server whose run directory WEIR_INSTANCE names.
. "$(dirname "$0")/check.sh"
base=${WEIR_INSTANCE:?only on weir}
servers=4

# on RANK COMMAND...
on() {
	local rank=$1
	shift
	if [ "$rank" = 0 ]; then "$@"; else WEIR_INSTANCE=$base.$rank "$@"; fi
}

# everywhere TEXT WANTED COMMAND...: the command says the same at each server.
everywhere() {
	local text=$1 wanted=$2 rank
	shift 2
	for ((rank = servers - 1; rank >= 0; rank--)); do
		same "$text, at $rank" "$wanted" "$(on $rank "$@")"
	done
}

on 0 bash -c "mkdir $dir/d; echo one > $dir/d/a"
everywhere "a new file" one cat "$dir/d/a"
on 1 bash -c "echo two >> $dir/d/a"
everywhere "an append by another" $'one\ntwo' cat "$dir/d/a"
on 2 dd if=/dev/urandom of="$dir/d/big" bs=1M count=40 status=none
everywhere "40 MiB" "$(on 2 md5sum "$dir/d/big")" md5sum "$dir/d/big"
on 3 mv "$dir/d/big" "$dir/d/large"
everywhere "a rename" $'a\nlarge' ls "$dir/d"
on 1 truncate -s 3 "$dir/d/a"
everywhere "a truncation" one cat "$dir/d/a"
on 0 bash -c "printf XY | dd of=$dir/d/a conv=notrunc bs=1 seek=1 status=none"
everywhere "bytes written over" oXY cat "$dir/d/a"
on 2 ln "$dir/d/a" "$dir/d/b"
on 3 chmod 640 "$dir/d/b"
everywhere "a link, and its mode" "2 640" stat -c '%h %a' "$dir/d/a"
on 1 ln -s d/b "$dir/l"
everywhere "through a symbolic link" oXY cat "$dir/l"
same "sparse room is counted" "$(on 0 stat -c %b "$dir/d/large")" $((40 * 2048))

# N-1 strided by all, then read by all.
writer='
import os, sys
rank, size = int(sys.argv[2]), 47008
fd = os.open(sys.argv[1], os.O_CREAT | os.O_WRONLY)
for i in range(300): os.pwrite(fd, bytes([65 + rank]) * size, (i * 4 + rank) * size)
os.close(fd)'
reader='
import os, sys
fd, size = os.open(sys.argv[1], os.O_RDONLY), 47008
bad = [i for i in range(1200) if os.pread(fd, size, i * size) != bytes([65 + i % 4]) * size]
print(os.fstat(fd).st_size // size, bad[:5])'
for ((rank = 0; rank < servers; rank++)); do on $rank python3 -c "$writer" "$dir/d/shared" $rank & done
wait
everywhere "N-1 strided" "1200 []" python3 -c "$reader" "$dir/d/shared"

# A storm of creates in one directory, and its end.
mkdir "$dir/storm"
for ((rank = 0; rank < servers; rank++)); do on $rank bash -c "for i in {1..50}; do : > $dir/storm/$rank.\$i; done" & done
wait
everywhere "200 creates" 200 bash -c "ls $dir/storm | wc -l"
for ((rank = 0; rank < servers; rank++)); do on $rank bash -c "for i in {1..50}; do mv $dir/storm/$rank.\$i $dir/d/$rank.\$i; done" & done
wait
everywhere "200 renames" "0 200" bash -c "echo \$(ls $dir/storm | wc -l) \$(ls $dir/d | grep -c '^[0-3]\.')"
# Locks: of all nodes, and gone with a killed owner.
touch "$dir/lock"
mkfifo "$outside/go"
for ((rank = 0; rank < servers; rank++)); do
	on $rank flock "$dir/lock" bash -c "echo held > $outside/held; read < $outside/go" &
	owner=$!
	until [ -s "$outside/held" ]; do :; done
	fails "flock elsewhere while $rank has it" on $(((rank + 1) % servers)) flock -n "$dir/lock" true
	echo > "$outside/go"
	wait $owner
	check "and when it is free again" on $(((rank + 2) % servers)) flock -n "$dir/lock" true
	rm "$outside/held"
done
on 3 python3 -c "
import fcntl, os, signal, sys
fd = os.open('$dir/lock', os.O_RDWR)
fcntl.lockf(fd, fcntl.LOCK_EX)
os.kill(os.getpid(), signal.SIGKILL)"
check "the lock of a killed process is taken" on 1 timeout 20 flock "$dir/lock" true
check "and its record lock" on 2 timeout 20 python3 -c "
import fcntl, os
fcntl.lockf(os.open('$dir/lock', os.O_RDWR), fcntl.LOCK_EX)"
rm "$dir/lock"
fails "rmdir of what has entries elsewhere" on 2 rmdir "$dir/d"
on 1 rm -rf "$dir/d" "$dir/storm" "$dir/l"
everywhere "all is gone" "" ls "$dir"
check_end
