"""union.py TOP SEED STEPS: random operations on the names and files of TOP, each with what came of it.

Two runs with one seed on two file systems say the same. The directory has files before; `elevate.sh` makes them.
UNION_PAUSES: rest now and then, by a random time of at most so many seconds, so that files are moved and evicted.
"""
import errno
import os
import random
import sys
import time

top, seed, steps = os.path.realpath(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
rng = random.Random(seed)
os.chdir(top)
NAMES = ["a", "b", "c", "d0", "d1", "l"]

def path():
    depth = rng.choice([1, 1, 2, 2, 3])
    p = "/".join(rng.choice(NAMES) for _ in range(depth))
    style = rng.random()
    if style < 0.15:
        p = top + "/" + p
    elif style < 0.2:
        p = "./" + p
    elif style < 0.25:
        p = rng.choice(NAMES) + "/../" + p
    elif style < 0.28:
        p += "/"
    return p

def shown(stat):
    kind = stat.st_mode >> 12
    size = stat.st_size if kind == 8 else 0
    return (oct(stat.st_mode), size, stat.st_nlink if kind != 4 else 0)

def tree(dir):
    out = []
    for where, dirs, files in os.walk(dir):
        dirs.sort()
        for name in sorted(dirs + files):
            p = os.path.join(where, name)
            s = os.lstat(p)
            what = ""
            if os.path.islink(p):
                what = os.readlink(p).replace(top, "TOP")
            elif os.path.isfile(p):
                what = open(p, "rb").read()
            out.append((os.path.relpath(p, dir), shown(s), what))
    return out

def names(p):
    return sorted(os.listdir(p))

def write(p, mode):
    with open(p, mode) as f:
        f.write(f"{rng.randrange(1000)}.".encode() * rng.randrange(4))
    return shown(os.stat(p))

def exclusive(p):
    fd = os.open(p, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o640)
    os.write(fd, b"x")
    os.close(fd)

def truncating(p):
    fd = os.open(p, os.O_TRUNC | os.O_WRONLY)
    os.write(fd, b"t" * rng.randrange(9))
    os.close(fd)

def update(p):
    fd = os.open(p, os.O_RDWR)
    os.pwrite(fd, b"U", rng.randrange(8))
    os.close(fd)

def chdir(p):
    os.chdir(p)
    return os.getcwd()[len(top):]

def dirfd(p):
    fd = os.open(p, os.O_RDONLY | os.O_DIRECTORY)
    try:
        name = rng.choice(NAMES)
        f = os.open(name, os.O_CREAT | os.O_RDWR, 0o600, dir_fd=fd)
        os.write(f, b"via dirfd")
        os.close(f)
        return sorted(os.listdir(fd))
    finally:
        os.close(fd)

def held(p):
    with open(p, "rb") as f:
        before = f.read()
        try:
            os.unlink(p)
        except OSError as e:
            return e.errno
        f.seek(0)
        return (before, f.read() == before)

# Directories that were there before. Those of an elevated tree cannot be renamed, as on overlayfs.
OLD = [os.open(os.path.join(where, name), os.O_RDONLY | os.O_DIRECTORY)
       for where, dirs, _ in os.walk(".") for name in dirs]

def is_old(p):
    try:
        stat = os.lstat(p)
    except OSError:
        return False
    return any(os.path.samestat(stat, os.fstat(fd)) for fd in OLD)

def rename(p, to):
    if is_old(p.rstrip("/")) or is_old(p):
        return "old"
    os.rename(p, to)

def relink(p):
    """A directory goes, and a link to another one takes its place: with the same names in it, perhaps."""
    if os.path.islink(p) or not os.path.isdir(p):
        return "no directory"
    for where, dirs, files in os.walk(p, topdown=False):
        for name in dirs + files:
            path = os.path.join(where, name)
            os.rmdir(path) if os.path.isdir(path) and not os.path.islink(path) else os.unlink(path)
    os.rmdir(p)
    os.symlink(os.path.join(top, rng.choice(NAMES)), p.rstrip("/"))

def dated(p):
    """A new version, perhaps of the same size, with the time of others, as tar and cp -p leave them."""
    fd = os.open(p, rng.choice([os.O_CREAT | os.O_WRONLY, os.O_CREAT | os.O_TRUNC | os.O_WRONLY]), 0o644)
    os.pwrite(fd, b"%02d" % rng.randrange(100), 0)
    os.close(fd)
    os.utime(p, ns=(OLD_NS, OLD_NS))

def attribute(p):
    name = rng.choice(["user.a", "user.b"])
    if rng.random() < 0.3:
        os.removexattr(p, name)
    else:
        os.setxattr(p, name, b"%d" % rng.randrange(9))

def attributes(p):
    return {name: os.getxattr(p, name) for name in sorted(os.listxattr(p)) if name.startswith("user.")}

def home(p):
    os.chdir(top)

OLD_NS = 1577836800 * 10**9
# Each with its weight.
OPS = [
    (8, lambda p: write(p, "wb")), (3, lambda p: write(p, "ab")), (3, exclusive), (3, truncating), (3, update),
    (4, lambda p: os.mkdir(p, 0o755)), (3, os.rmdir), (6, os.unlink), (6, lambda p: rename(p, path())),
    (3, lambda p: os.link(p, path(), follow_symlinks=False)), (3, lambda p: os.symlink(rng.choice(NAMES), p)),
    (4, lambda p: shown(os.stat(p))), (4, lambda p: shown(os.lstat(p))), (3, lambda p: os.readlink(p).replace(top, "TOP")), (5, names),
    (3, lambda p: open(p, "rb").read()), (2, lambda p: os.chmod(p, rng.choice([0o644, 0o600, 0o755]))),
    (2, lambda p: os.truncate(p, rng.randrange(9))), (2, chdir), (4, home), (3, dirfd), (2, held),
    (1, lambda p: os.path.realpath(p)[len(top):]), (1, lambda p: os.access(p, os.W_OK)), (1, lambda p: tree(top)),
    (1, relink), (4, dated), (2, attribute), (2, attributes),
]
WEIGHTED = [op for weight, op in OPS for _ in range(weight)]
pauses = float(os.environ.get("UNION_PAUSES", 0))
for step in range(steps):
    if pauses and random.random() < 0.03:
        time.sleep(random.random() * pauses)
    op, p = rng.choice(WEIGHTED), path()
    state = rng.getstate()
    try:
        result = op(p)
    except OSError as e:
        result = errno.errorcode.get(e.errno, e.errno)
    rng.setstate(state)
    rng.random()
    print(step, WEIGHTED.index(op), p.replace(top, "TOP"), result)
os.chdir(top)
for line in tree(top):
    print(line)
