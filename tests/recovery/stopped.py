"""Stops its instance under itself: every call below the mount says ESHUTDOWN from then on, in this
program, in its children, and in programs that are started later. Arguments: the mount; `again` in
a program that is started later."""

import errno
import os
import subprocess
import sys

top, later = sys.argv[1], sys.argv[2:] == ["again"]
passed = failed = 0


def wants(what, call):
    global passed, failed
    try:
        found = call()
    except OSError as error:
        if error.errno == errno.ESHUTDOWN:
            passed += 1
            return
        found = error
    failed += 1
    print(f"FAIL {what}: {found!r}")


def loses(what, call):
    global passed, failed
    try:
        found = call()
    except OSError as error:
        if error.errno in (errno.EIO, errno.ESHUTDOWN):
            passed += 1
            return
        found = error
    failed += 1
    print(f"FAIL {what}: {found!r}")


def calls(who):
    def wanted(what, call):
        wants(f"{who}: {what}", call)

    wanted("open", lambda: os.open(top + "/f", os.O_RDONLY))
    wanted("create", lambda: os.open(top + "/g", os.O_WRONLY | os.O_CREAT, 0o600))
    wanted("fopen", lambda: open(top + "/g", "w"))
    wanted("stat", lambda: os.stat(top + "/f"))
    wanted("stat of the mount", lambda: os.stat(top))
    wanted("stat of what the kernel has", lambda: os.stat(top + "/kernels"))
    wanted("access", lambda: os.stat(top + "/f"))
    wanted("list", lambda: os.listdir(top))
    wanted("mkdir", lambda: os.mkdir(top + "/d"))
    wanted("unlink", lambda: os.unlink(top + "/f"))
    wanted("rename", lambda: os.rename(top + "/f", top + "/g"))
    wanted("rename from outside", lambda: os.rename("/proc/none", top + "/g"))
    wanted("link", lambda: os.link(top + "/f", top + "/g"))
    wanted("symlink", lambda: os.symlink("f", top + "/g"))
    wanted("readlink", lambda: os.readlink(top + "/f"))
    wanted("chmod", lambda: os.chmod(top + "/f", 0o600))
    wanted("truncate", lambda: os.truncate(top + "/f", 0))
    wanted("utime", lambda: os.utime(top + "/f"))
    wanted("statvfs", lambda: os.statvfs(top))
    wanted("chdir", lambda: os.chdir(top))


if later:
    calls("a program that was started later")
else:
    fd = os.open(top + "/f", os.O_RDWR | os.O_CREAT)
    os.write(fd, b"data")
    subprocess.run([os.environ["WEIR"], "stop", "--force"], check=True)
    calls("a program that was attached")
    for what, call in [
        ("fstat", lambda: os.fstat(fd)),
        ("ftruncate", lambda: os.ftruncate(fd, 0)),
        ("pread", lambda: os.pread(fd, 4, 0)),
        ("lseek", lambda: os.lseek(fd, 0, os.SEEK_END)),
        ("lockf", lambda: os.lockf(fd, os.F_LOCK, 0)),
        ("fchmod", lambda: os.fchmod(fd, 0o600)),
    ]:
        wants(f"a descriptor: {what}", call)
    # Of these the first that fails may say that bytes were lost.
    for what, call in [
        ("write", lambda: os.write(fd, b"more")),
        ("fsync", lambda: os.fsync(fd)),
        ("close", lambda: os.close(fd)),
    ]:
        loses(f"a descriptor: {what}", call)
    sys.stdout.flush()
    if os.fork() == 0:
        calls("a child")
        print(f"{failed} failed in the child", flush=True)
        os._exit(failed > 0)
    failed += os.wait()[1] != 0
    again = [sys.executable, __file__, top, "again"]
    failed += subprocess.run(again).returncode
    # Also where nothing is left of the environment.
    failed += subprocess.run(again, env={}).returncode
    # What is elsewhere is the kernel's, as ever.
    os.stat(os.path.dirname(top))
    os.rename(__file__, __file__)
    passed += 2
print(f"{passed} passed, {failed} failed", flush=True)
# The command itself ends well: that it lost its instance is for weir run to say.
sys.exit(min(failed, 1))
