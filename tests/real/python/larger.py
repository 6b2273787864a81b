"""larger.py TOP SEED STEPS [MIB]: random operations on files that stay open, and of which ranges are evicted meanwhile.

Two processes share one file and have one each; each compares what it reads with what it wrote. MIB: the size of the largest
file. Prints the sum of each file in the end.
"""
import fcntl
import hashlib
import mmap
import os
import random
import sys

top, seed, steps = os.path.realpath(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
MIB = int(sys.argv[4]) if len(sys.argv) > 4 else 24
SIZE = MIB << 20
os.chdir(top)

class Shadow:
    """A file, and what it must have. `span`: the part of it that this process writes."""
    def __init__(self, name, begin, end, may_cut):
        self.name, self.begin, self.end, self.may_cut = name, begin, end, may_cut
        self.fd = os.open(name, os.O_RDWR | os.O_CREAT, 0o600)
        self.bytes = bytearray(end - begin)
        self.size = 0

    def write(self, at, data):
        done = 0
        while done < len(data):
            done += os.pwrite(self.fd, data[done:], self.begin + at + done)
        self.bytes[at:at + len(data)] = data
        self.size = max(self.size, at + len(data))

    def cut(self, size):
        os.ftruncate(self.fd, size)
        self.bytes[size:] = bytes(len(self.bytes) - size)
        self.size = size

    def check(self, at, length):
        found = os.pread(self.fd, length, self.begin + at)
        wanted = bytes(self.bytes[at:at + length])
        if self.may_cut:
            wanted = wanted[:max(0, self.size - at)]
        found = found + bytes(len(wanted) - len(found)) if not self.may_cut else found
        if found != wanted:
            first = next((i for i, (a, b) in enumerate(zip(found, wanted)) if a != b), min(len(found), len(wanted)))
            raise SystemExit(f"{self.name}: {len(found)} of {len(wanted)} bytes at {at}, wrong from {at + first}: "
                             f"{found[first:first + 8]} for {wanted[first:first + 8]}")

    def reopen(self, rng):
        os.close(self.fd)
        self.fd = os.open(self.name, os.O_RDWR)

def work(number):
    rng = random.Random(seed * 1000 + number)
    shared = Shadow("shared", number * SIZE // 2, (number + 1) * SIZE // 2, False)
    own = Shadow(f"own{number}", 0, SIZE // 2, True)
    for step in range(steps):
        file = rng.choice((shared, own))
        room = len(file.bytes)
        at = rng.choice((rng.randrange(room), rng.randrange(room) & ~0xFFFFF, file.size % room))
        length = min(rng.choice((1, 100, 4096, 1 << 20, 4 << 20)), room - at)
        kind = rng.random()
        if kind < 0.45:
            file.write(at, rng.randbytes(length))
        elif kind < 0.75:
            file.check(at, length)
        elif kind < 0.80 and file.may_cut:
            file.cut(rng.randrange(max(1, file.size)))
        elif kind < 0.83 and file.may_cut:
            file.cut(min(room, file.size + rng.randrange(1 << 20)))
        elif kind < 0.87 and file.size > at:
            end = min(at + length, file.size)
            if not hasattr(os, "posix_fallocate"):
                continue
            punch(file, at, end - at)
        elif kind < 0.90 and file.may_cut:
            other = f"renamed{number}"
            os.rename(file.name, other)
            file.name, old = other, file.name
            if rng.random() < 0.7:
                os.rename(other, old)
                file.name = old
        elif kind < 0.93:
            file.reopen(rng)
        elif kind < 0.95 and file.size > at and length > 0:
            with mmap.mmap(file.fd, file.begin + file.size, prot=mmap.PROT_READ) as m:
                end = min(at + length, file.size)
                assert m[file.begin + at:file.begin + end] == bytes(file.bytes[at:end]), f"{file.name} mapped"
        else:
            os.fsync(file.fd)
    for file in (shared, own):
        for at in range(0, len(file.bytes), 1 << 20):
            file.check(at, min(1 << 20, len(file.bytes) - at))
    own.reopen(rng)

def punch(file, at, length):
    import ctypes
    libc = ctypes.CDLL(None, use_errno=True)
    libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
    if libc.fallocate(file.fd, 3, file.begin + at, length) != 0:
        raise OSError(ctypes.get_errno(), "fallocate")
    file.bytes[at:at + length] = bytes(length)

children = []
for number in range(2):
    pid = os.fork()
    if pid == 0:
        try:
            work(number)
        except BaseException as error:
            print(f"process {number}: {error!r}", flush=True)
            os._exit(1)
        os._exit(0)
    children.append(pid)
codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]
for name in sorted(os.listdir(".")):
    with open(name, "rb") as f:
        print(name, os.stat(name).st_size, hashlib.sha256(f.read()).hexdigest())
sys.exit(max(codes))
