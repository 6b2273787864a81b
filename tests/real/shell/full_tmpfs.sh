#!/bin/bash
# Others fill the tmpfs that the memory tier lies on: what was lent there and has no pages is given back, and writes go on in
# the file tier. An instance of its own, in a mount namespace with a small tmpfs; on a directory there is nothing to check.
set -u
if [ -z "${WEIR_TEST_WEIR:-}" ]; then
	echo "ok   nothing to check on a directory"
	echo "1 passed, 0 failed"
	exit 0
fi
export LD_PRELOAD= WEIR_INSTANCE=
place=$(mktemp -d)
trap 'rmdir "$place"' EXIT
unshare -rm sh -c 'mount -t tmpfs -o size=96m weir-check "$2" && exec "$1" run --memory 256M --set memory.warm=0 \
	--set "memory.directory=$2" --set file.budget=256M -- /usr/bin/python3 -c "$3" "$2"' sh "$WEIR_TEST_WEIR" "$place" '
import errno, os, sys
piece = os.urandom(1 << 20)
fd = os.open("/weir/f", os.O_RDWR | os.O_CREAT)
os.write(fd, piece)
def left():     # of the 63 MiB that the program was lent and did not write, when all else is taken
    tmpfs = os.statvfs(sys.argv[1])
    return tmpfs.f_bavail * tmpfs.f_frsize - (16 << 20)
# In steps, each after a look: the server is taking pages at the same time, and may be quicker.
with open(sys.argv[1] + "/others", "wb") as file:
    others = 0
    while (free := left()) > 0:
        more = min(free, 4 << 20)
        try:
            os.posix_fallocate(file.fileno(), others, more)
            others += more
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
short = [n for n in (os.write(fd, piece) for _ in range(127)) if n != len(piece)]
print("FAIL" if short else "ok  ", "each write is whole")
same = all(os.pread(fd, 1 << 20, at << 20) == piece for at in range(128))
print("ok  " if same else "FAIL", "and so is the file")
print(f"{(not short) + same} passed, {bool(short) + (not same)} failed")
sys.exit(not same or bool(short))'
