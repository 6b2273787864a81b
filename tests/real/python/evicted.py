"""evicted.py TOP WEIR: everything that programs do to files whose storage was freed, since they are on the target.

Prints the sum of each file that is left.
"""
import hashlib
import json
import mmap
import os
import subprocess
import sys
import time

top, weir = os.path.realpath(sys.argv[1]), sys.argv[2]
os.chdir(top)
content = {}

def make(*names):
    for name in names:
        content[name] = os.urandom(1 << 20)
        with open(name, "wb") as f:
            f.write(content[name])

def bytes_of(name):
    with open(name, "rb") as f:
        return f.read()

def held():
    status = subprocess.run([weir, "status", "--json"], stdout=subprocess.PIPE, check=True)
    return sum(tier["live_bytes"] for tier in json.loads(status.stdout)["tiers"])

def drained():
    subprocess.run([weir, "drain", "--wait"], stdout=subprocess.DEVNULL, check=True)

def evict_all():
    drained()
    while held() > 0:
        time.sleep(0.02)

def is_as_it_was(name, before=None):
    assert bytes_of(name) == content[before or name], name

os.mkdir("d")
make(*"abcefghijklmnopq", "d/a", "d/b", "d/c")
times = os.stat("e")
evict_all()
for name in content:
    is_as_it_was(name)

# What it says of itself is what it said, and no program takes it for a hole.
stat, fd = os.stat("e"), os.open("e", os.O_RDONLY)
assert (stat.st_ino, stat.st_mtime_ns, stat.st_size) == (times.st_ino, times.st_mtime_ns, 1 << 20)
assert os.path.samestat(stat, os.fstat(fd)) and stat.st_blocks * 512 >= stat.st_size
assert os.lseek(fd, 5, os.SEEK_DATA) == 5 and os.lseek(fd, 5, os.SEEK_HOLE) == 1 << 20
assert os.pread(fd, 9, (1 << 20) - 4) == content["e"][-4:] and os.pread(fd, 9, 1 << 20) == b""
os.close(fd)
with open("e", "rb") as f, mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ) as m:
    assert m[:] == content["e"]

# Written again.
with open("a", "ab") as f:
    f.write(b"more")
content["a"] += b"more"
fd = os.open("b", os.O_RDWR)
os.pwrite(fd, b"XYZ", 1000)
os.close(fd)
content["b"] = content["b"][:1000] + b"XYZ" + content["b"][1003:]
os.truncate("c", 100)
os.truncate("c", 200)
content["c"] = content["c"][:100] + bytes(100)
with open("f", "wb") as f:
    f.write(b"short")
content["f"] = b"short"
with open("o", "r+b") as f, mmap.mmap(f.fileno(), 0) as m:
    m[0:3] = b"abc"
content["o"] = b"abc" + content["o"][3:]

# Attributes: the bytes stay where they are, and can be read.
os.chmod("n", 0o600)
os.chmod("p", 0o640)
os.utime("p", ns=(10**18, 10**18 + 5))
os.setxattr("q", "user.mark", b"of the job")
os.utime("q")
drained()
is_as_it_was("p")
is_as_it_was("q")
os.utime("p", ns=(10**18, 10**18))
os.rename("p", "p2")
content["p2"] = content.pop("p")
make("p")

# Other names.
os.rename("d", "e.d")
for name in "abc":
    content["e.d/" + name] = content.pop("d/" + name)
os.rename("g", "g2")
content["g2"] = content["g"]
make("g")
os.rename("h", "t")
os.rename("i", "h")
os.rename("t", "i")
content["h"], content["i"] = content["i"], content["h"]
os.link("j", "j2")
os.unlink("j")
content["j2"] = content.pop("j")
os.rename("k", "t")
os.rename("l", "k")
os.rename("m", "l")
os.rename("t", "m")
content["k"], content["l"], content["m"] = content["l"], content["m"], content["k"]
for name in content:
    is_as_it_was(name)

# Removed while it is read.
with open("n", "rb") as f:
    os.unlink("n")
    drained()
    assert f.read() == content.pop("n")
evict_all()
for name in content:
    is_as_it_was(name)

assert (os.stat("p2").st_mtime_ns, os.stat("p2").st_mode & 0o777) == (10**18, 0o640)

# Programs that look twice.
subprocess.run("""set -e
cp e.d/a copy && cmp e.d/a copy
cp --sparse=always e.d/a sparse && cmp e.d/a sparse
tar -S -cf - e.d | tar -C /weir -xf - && cmp e.d/b /weir/e.d/b
mv e.d/c /weir/c && cmp /weir/c - < /weir/c && mv /weir/c e.d/c
dd if=/dev/zero of=e.d/c bs=1 count=3 conv=notrunc status=none""", shell=True, check=True)
content["e.d/c"] = bytes(3) + content["e.d/c"][3:]
content["copy"] = content["sparse"] = content["e.d/a"]
for name in sorted(content):
    is_as_it_was(name)
    print(hashlib.sha256(content[name]).hexdigest(), "", name)
drained()
# As others see it, whom weir does not know.
shown = subprocess.run(["stat", "-c", "%Y %a", "p2"], stdout=subprocess.PIPE, env={**os.environ, "LD_PRELOAD": ""})
assert shown.stdout == b"1000000000 640\n", shown.stdout
