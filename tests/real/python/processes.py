"""Python's ways to start programs with files of ours: subprocess with redirected and inherited files, os.fork,
multiprocessing, threads, and Python programs and modules that lie in the directory."""

import concurrent.futures
import errno
import fcntl
import importlib
import multiprocessing
import os
import subprocess
import sys
import threading
from pathlib import Path

from check import begin, check, end, section


def redirected(d: Path) -> None:
    with open(d / "out", "w") as out, open(d / "err", "w") as err:
        done = subprocess.run(["sh", "-c", "echo to out; echo to err >&2"], stdout=out, stderr=err)
    check(done.returncode == 0 and (d / "out").read_text() == "to out\n" and (d / "err").read_text() == "to err\n", "stdout and stderr redirected")
    (d / "in").write_text("c\na\nb\n")
    with open(d / "in") as inp, open(d / "sorted", "wb") as out:
        subprocess.check_call(["sort"], stdin=inp, stdout=out)
    check((d / "sorted").read_text() == "a\nb\nc\n", "stdin redirected")
    with open(d / "both", "w") as both:
        both.write("before\n")
        both.flush()
        subprocess.check_call(["sh", "-c", "echo one; echo two >&2"], stdout=both, stderr=subprocess.STDOUT)
        both.write("after\n")
    check((d / "both").read_text() == "before\none\ntwo\nafter\n", "both into one file, at the shared offset")
    with open(d / "appended", "a") as a:
        for i in range(3):
            subprocess.check_call(["echo", str(i)], stdout=a)
    check((d / "appended").read_text() == "0\n1\n2\n", "appended by three programs")
    check(subprocess.check_output(["cat", d / "out"]) == b"to out\n", "a program reads by name")
    check(subprocess.run(f"cat < {d}/in > {d}/copy && wc -l < {d}/copy", shell=True, capture_output=True, text=True).stdout.strip() == "3", "shell=True with redirections")
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=open(d / "piped", "wb")) as p:
        p.communicate(b"x" * 300000)
    check((d / "piped").stat().st_size == 300000, "a pipe into a program into a file")
    out = subprocess.run(["pwd", "-P"], cwd=d, capture_output=True, text=True).stdout.strip()
    check(out == str(d), f"cwd= ({out})")
    subprocess.check_call(["sh", "-c", "echo rel > relative"], cwd=d)
    check((d / "relative").read_text() == "rel\n", "a relative file made there")


def inherited(d: Path) -> None:
    fd = os.open(d / "inherited", os.O_RDWR | os.O_CREAT)
    os.write(fd, b"parent ")
    subprocess.check_call(["sh", "-c", f"echo child >&{fd}"], pass_fds=[fd])
    os.write(fd, b"parent again\n")
    os.close(fd)
    check((d / "inherited").read_text() == "parent child\nparent again\n", "pass_fds, shared offset")
    fd = os.open(d / "inherited", os.O_RDONLY)
    os.lseek(fd, 7, os.SEEK_SET)
    code = f"import os; print(os.read({fd}, 5).decode(), os.fstat({fd}).st_size)"
    out = subprocess.check_output([sys.executable, "-c", code], pass_fds=[fd], text=True)
    check(out.split() == ["child", "26"], "a Python child reads the inherited descriptor")
    out = subprocess.run([sys.executable, "-c", f"import os; os.fstat({fd})"], capture_output=True)
    check(out.returncode != 0 and b"Bad file descriptor" in out.stderr, "and has none that was not passed")
    os.set_inheritable(fd, True)
    out = subprocess.check_output(["sh", "-c", f"head -c 3 <&{fd}"], close_fds=False, text=True)
    check(len(out) == 3, "close_fds=False with an inheritable descriptor")
    os.close(fd)
    pid = os.fork()
    if pid == 0:
        try:
            (d / "forked").write_text("by the child")
            os._exit(0)
        finally:
            os._exit(1)
    check(os.waitpid(pid, 0)[1] == 0 and (d / "forked").read_text() == "by the child", "os.fork")
    devnull = os.open(os.devnull, os.O_RDWR)
    spawned = os.posix_spawn("/bin/echo", ["echo", "spawned"], os.environ, file_actions=[
        (os.POSIX_SPAWN_DUP2, devnull, 2), (os.POSIX_SPAWN_OPEN, 1, "/dev/null", os.O_WRONLY, 0)])
    check(os.waitpid(spawned, 0)[1] == 0, "posix_spawn with file actions outside")
    os.close(devnull)


def locked(d: Path) -> None:
    """Record locks of the process end with a descriptor of the file that is closed, also by dup2, and not by a dup2 that fails."""
    code = "import fcntl, sys; fcntl.lockf(open(sys.argv[1], 'r+'), fcntl.LOCK_EX | fcntl.LOCK_NB)"

    def is_locked() -> bool:
        return subprocess.run([sys.executable, "-c", code, d / "locked"], stderr=subprocess.DEVNULL).returncode != 0
    (d / "locked").write_text("bytes")
    fd, other = os.open(d / "locked", os.O_RDWR), os.open(d / "in", os.O_RDONLY)
    fcntl.lockf(fd, fcntl.LOCK_EX)
    check(is_locked(), "a record lock keeps another program out")
    try:
        os.dup2(1000000, fd)
        check(False, "dup2 of no descriptor fails")
    except OSError as error:
        check(error.errno == errno.EBADF, "dup2 of no descriptor fails")
    check(is_locked(), "and leaves the lock of what it did not replace")
    os.dup2(other, fd)
    check(not is_locked(), "a dup2 that replaces the descriptor ends the lock")
    os.close(other)
    os.close(fd)


def piece(args):
    path, number = args
    with open(path, "r+b") as f:
        f.seek(number * 50000)
        f.write(bytes([number]) * 50000)
    return os.path.getsize(path)


def many(d: Path) -> None:
    path = d / "pieces"
    path.write_bytes(b"\xff" * 50000 * 40)
    for method in ("fork", "spawn"):
        with multiprocessing.get_context(method).Pool(4) as pool:
            sizes = pool.map(piece, [(str(path), n) for n in range(40)])
        data = path.read_bytes()
        check(sizes == [2000000] * 40 and all(data[n * 50000:(n + 1) * 50000] == bytes([n]) * 50000 for n in range(40)), f"a {method} pool writes pieces of one file")
        path.write_bytes(b"\xff" * 50000 * 40)
    with concurrent.futures.ThreadPoolExecutor(8) as threads:
        list(threads.map(piece, [(str(path), n) for n in range(40)]))
    data = path.read_bytes()
    check(all(data[n * 50000:(n + 1) * 50000] == bytes([n]) * 50000 for n in range(40)), "threads write pieces of one file")

    def append(who):
        for n in range(200):
            with open(d / "appends", "a") as f:
                f.write(f"{who} {n} {'.' * 50}\n")
    threads = [threading.Thread(target=append, args=(t,)) for t in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    lines = (d / "appends").read_text().splitlines()
    check(len(lines) == 800 and len(set(lines)) == 800 and all(line.endswith("." * 50) for line in lines), "four threads append 200 lines each")
    small = d / "many"
    small.mkdir()
    with concurrent.futures.ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda n: (small / f"f{n}").write_text(str(n)), range(500)))
        total = sum(threads.map(lambda n: int((small / f"f{n}").read_text()), range(500)))
    check(total == 124750 and len(os.listdir(small)) == 500, "threads make and read 500 files")


def programs(d: Path) -> None:
    (d / "module_of_ours.py").write_text("VALUE = 42\n")
    (d / "package_of_ours").mkdir()
    (d / "package_of_ours" / "__init__.py").write_text("from . import inner\n")
    (d / "package_of_ours" / "inner.py").write_text("WORD = 'inner'\n")
    sys.path.insert(0, str(d))
    sys.dont_write_bytecode = False
    check(importlib.import_module("module_of_ours").VALUE == 42 and importlib.import_module("package_of_ours").inner.WORD == "inner", "import from the directory")
    check((d / "__pycache__").is_dir(), "which wrote its byte code")
    (d / "script.py").write_text("import sys, module_of_ours\nprint('ran', sys.argv[1], module_of_ours.VALUE)\n")
    out = subprocess.check_output([sys.executable, d / "script.py", "arg"], text=True)
    check(out == "ran arg 42\n", "python3 runs a script of the directory")
    out = subprocess.check_output([sys.executable, "-m", "module_of_ours"], cwd=d, text=True)
    check(out == "", "python3 -m in the directory")


if __name__ == "__main__":
    directory = begin()
    section(redirected, directory)
    section(inherited, directory)
    section(locked, directory)
    section(many, directory)
    section(programs, directory)
    end()
