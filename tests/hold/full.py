"""All kinds of calls while others have filled the tmpfs of the shared memory to the last page.

    full.py DIR FILL          at server 0; starts another of itself at server 1
    full.py DIR FILL helper   does what its standard input says

Each call succeeds or says ENOSPC, whatever has no room; when there is room again, all succeed.
What is read is compared. Prints one line of counts.
"""

import errno
import fcntl
import os
import subprocess
import sys

DIR, FILL = sys.argv[1:3]
DATA = bytes(i * 7 % 251 for i in range(1 << 20))
counts = {"ok": 0, "full": 0}
storms = 0


def attempt(must, call, *arguments):
    """The call's value, or None if it found no room."""
    try:
        value = call(*arguments)
        counts["ok"] += 1
        return value if value is not None else True
    except OSError as error:
        if must or error.errno != errno.ENOSPC:
            raise
        counts["full"] += 1
        return None


def write_whole(path, data, must):
    fd = attempt(must, os.open, path, os.O_CREAT | os.O_RDWR, 0o600)
    if fd is None:
        return False
    done = 0
    while done < len(data):
        wrote = attempt(must, os.pwrite, fd, data[done:], done)
        if wrote is None:
            break
        done += wrote
    attempt(must, os.fsync, fd)
    # What was written is there, also when the rest had no room.
    got = attempt(must, os.pread, fd, done, 0)
    assert got is None or got is True or got == data[:done], "other bytes"
    attempt(must, os.close, fd)
    return done == len(data)


def each_kind(tag, must):
    """Every kind of call once."""
    path = lambda name: f"{DIR}/{tag}-{name}"
    made = write_whole(path("data"), DATA, must)
    if made:
        attempt(must, os.stat, path("data"))
        if attempt(must, os.link, path("data"), path("link")):
            attempt(must, os.unlink, path("link"))
        if attempt(must, os.rename, path("data"), path("new")):
            attempt(must, os.truncate, path("new"), 1000)
            fd = attempt(must, os.open, path("new"), os.O_RDWR)
            if fd is not None:
                attempt(must, fcntl.lockf, fd, fcntl.LOCK_EX)
                attempt(must, os.lseek, fd, 0, os.SEEK_HOLE)
                os.close(fd)
    for name in ("data", "new"):
        if os.path.exists(path(name)):
            attempt(True, os.unlink, path(name))
    if attempt(must, os.mkdir, path("dir"), 0o700):
        attempt(must, os.symlink, "x" * 200, path("dir") + "/symlink")
        attempt(must, os.listdir, path("dir"))
        if os.path.lexists(path("dir") + "/symlink"):
            attempt(True, os.unlink, path("dir") + "/symlink")
        attempt(must, os.rmdir, path("dir"))


def storm(tag, must):
    """More names, descriptions, writers and bytes each time: than there was memory for."""
    global storms
    storms += 1
    names, fds = [], []
    for n in range(4000 * storms):
        path = f"{DIR}/{tag}-{'n' * 60}-{n}"
        fd = attempt(must, os.open, path, os.O_CREAT | os.O_WRONLY, 0o600)
        if fd is None:
            continue
        names.append(path)
        if len(fds) < 200 * storms:
            fds.append(fd)
        else:
            os.close(fd)
    for fd in fds:
        attempt(must, os.write, fd, b"x" * 8000)
    for fd in fds:
        # Publishing, too, may find no room.
        attempt(must, os.close, fd)
    for path in names:
        attempt(True, os.unlink, path)


def read_all(must):
    """Files of both servers, from the other one too."""
    for n in range(8):
        fd = attempt(must, os.open, f"{DIR}/kept-{n}", os.O_RDONLY)
        if fd is None:
            continue
        got = attempt(must, os.pread, fd, len(DATA), 0)
        assert got is None or got == DATA, "other bytes"
        os.close(fd)


def fill():
    """To the last page."""
    fd = os.open(FILL, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
    for size in (1 << 20, 4096):
        try:
            while True:
                os.write(fd, b"\0" * size)
        except OSError as error:
            assert error.errno == errno.ENOSPC
    os.close(fd)


def new_process(must):
    """A program that begins only now needs memory of its own."""
    ran = subprocess.run(["cat", f"{DIR}/kept-0"], capture_output=True)
    if ran.returncode == 0:
        assert ran.stdout == DATA
    else:
        assert not must and b"No space left" in ran.stderr, ran.stderr


ACTS = {"kinds": each_kind, "storm": storm, "read": lambda _, must: read_all(must)}


def helper():
    for line in sys.stdin:
        act, tag, must = line.split()
        ACTS[act]("there-" + tag, must == "must")
        print("done", counts["ok"], counts["full"], flush=True)


def main():
    environment = dict(os.environ, WEIR_INSTANCE=os.environ["WEIR_INSTANCE"] + ".1")
    words = [sys.executable, __file__, DIR, FILL, "helper"]
    there = subprocess.Popen(
        words, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )

    def both(act, tag, must):
        word = "must" if must else "may"
        there.stdin.write(f"{act} {tag} {word}\n")
        there.stdin.flush()
        ACTS[act]("here-" + tag, must)
        said = there.stdout.readline().split()
        assert said[:1] == ["done"], f"the other server's program: {said}"
        return int(said[1]), int(said[2])

    for n in range(8):
        assert write_whole(f"{DIR}/kept-{n}", DATA, True)
    for act in ACTS:
        both(act, "before", True)
    for turn in range(3):
        fill()
        for act in ACTS:
            both(act, f"full{turn}", False)
            fill()
        new_process(False)
    os.unlink(FILL)
    for act in ACTS:
        ok, full = both(act, "after", True)
    new_process(True)
    there.stdin.close()
    assert there.wait() == 0
    print(f"held: {counts['ok'] + ok} ok, {counts['full'] + full} found no room")


helper() if sys.argv[3:] else main()
