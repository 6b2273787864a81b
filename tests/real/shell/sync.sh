#!/bin/bash
# What fsync asks the server for: nothing while all that was written is in memory, and which files of the file tier hold
# the bytes once some of them may be there, also after the server was killed and started again.
. "$(dirname "$0")/check.sh"
[ -n "${WEIR_TEST_ON_WEIR:-}" ] || check_end
weir() { env WEIR_INSTANCE= LD_PRELOAD= "$WEIR_TEST_WEIR" "$@"; }

# syncs MIB: what the server of a new instance of so much memory is asked for by 10 syncs of 4 MiB.
syncs() {
	weir run --memory "$1" --report none -- bash -c '
		dd if=/dev/zero of=/weir/f bs=4M count=1 status=none
		python3 -c "
import os
fd = os.open(\"/weir/f\", os.O_RDWR)
for i in range(10):
    os.pwrite(fd, b\"x\", i)
    os.fsync(fd)
    os.fdatasync(fd)" &&
		"$0" status --json' "$WEIR_TEST_WEIR" | python3 -c '
import json, sys
print(json.load(sys.stdin)["requests"].get("sync", 0))'
}
same "in memory nothing" 0 "$(syncs 64M)"
same "in the file tier each" 20 "$(syncs 1M)"

# Of an instance that goes on after its server was killed.
named=sync-$$
asked() { weir status --json "$named" | python3 -c 'import json, sys; print(json.load(sys.stdin)["requests"].get("sync", 0))'; }
check "an instance starts" weir start "$named" --memory 1M
check "bytes in its file tier" weir run --instance "$named" -- dd if=/dev/zero of=/weir/f bs=4M count=1 status=none
kill -9 "$(weir status --json "$named" | python3 -c 'import json, sys; print(json.load(sys.stdin)["pid"])')"
for ((i = 0; i < 100; i++)); do
	weir start "$named" > /dev/null 2>&1 && break
	sleep 0.05
done
check "it goes on" weir run --instance "$named" -- sync -d /weir/f
same "and is asked" 1 "$(asked)"
check "it stops" weir stop "$named"
check_end
