#!/bin/bash
# Programs that change their user: root's, that drop to another one, and what they start. As another user than root there is
# nothing to change.
. "$(dirname "$0")/check.sh"
if [ "$(id -u)" != 0 ]; then
	check "only root can become another user" true
	check_end
fi
umask 022
chmod 755 "$(dirname "$dir")" "$dir" 2> /dev/null
mkdir "$dir/own" "$dir/roots"
chown 12345:12345 "$dir/own"
chmod 700 "$dir/roots"
echo secret > "$dir/roots/f"
as() { setpriv --reuid=12345 --regid=12345 --clear-groups "$@"; }

check "a program of another user writes" as sh -c "echo x > $dir/own/f"
same "what it wrote" "x 12345:12345" "$(cat "$dir/own/f") $(stat -c %u:%g "$dir/own/f")"
fails "it may not read what is root's alone" as cat "$dir/roots/f"
fails "nor make anything there" as sh -c "echo x > $dir/roots/g"
fails "nor in the directory above" as touch "$dir/g"
check "and what it starts, starts others" as bash -c "cd $dir/own && for i in 1 2 3; do (echo \$i; exec echo more) >> g; done && ls | xargs cat > all"
same "these have written" "1 more 2 more 3 more" "$(tr '\n' ' ' < "$dir/own/g" | sed 's/ $//')"
check "much is written" as dd if=/dev/zero of="$dir/own/big" bs=1M count=200 status=none
same "as much" 209715200 "$(stat -c %s "$dir/own/big")"
cd "$dir/own" || exit 1
same "in a current directory that was inherited" "$dir/own" "$(as /bin/pwd -P)"
check "relative to it" as sh -c 'mkdir d && cd d && echo x > y && cat ../d/y'
exec 5> opened
as sh -c 'echo by the descriptor >&5'
exec 5>&-
same "a descriptor that was inherited" "by the descriptor" "$(cat opened)"
check "su" su -s /bin/sh nobody -c "test -r $dir/own/f && ! touch $dir/own/n 2> /dev/null"

python3 - "$dir" <<'END'
import ctypes, errno, os, sys, subprocess, threading
top = sys.argv[1]
passed = failed = 0
def check(what, condition):
    global passed, failed
    print("ok  " if condition else "FAIL", what)
    passed, failed = passed + bool(condition), failed + (not condition)
def refused(call):
    try:
        call()
    except PermissionError:
        return True
for turn in range(3):                # a server that acts for its callers
    os.setegid(12345); os.seteuid(12345)
    with open(f"{top}/own/server", "a") as file:
        file.write("as the user\n")
    check("seteuid: a file is the user's", os.stat(f"{top}/own/server").st_uid == 12345)
    check("seteuid: root's are not", refused(lambda: open(f"{top}/roots/f")))
    with open(f"{top}/own/n{turn}", "wb") as file:
        file.write(b"x" * (20 << 20))
    os.seteuid(0); os.setegid(0)
    check("and root again", open(f"{top}/roots/f").read() == "secret\n")
libc = ctypes.CDLL(None, use_errno=True)
now, omitted, some = (0, (1 << 30) - 1), (0, (1 << 30) - 2), (5, 0)
def tried(name, times):
    spec = times and (ctypes.c_long * 4)(*times[0], *times[1])
    done = libc.utimensat(-100, name.encode(), spec, 0)
    return "ok" if done == 0 else errno.errorcode[ctypes.get_errno()]
for mode, wanted in ((0o644, "EACCES EACCES EPERM EPERM ok"), (0o666, "ok ok EPERM EPERM ok")):
    name = f"{top}/own/times"
    open(name, "w").close()
    os.chmod(name, mode)
    os.setegid(12345); os.seteuid(12345)
    got = " ".join(tried(name, times) for times in (None, (now, now), (now, omitted), (some, some), (omitted, omitted)))
    os.seteuid(0); os.setegid(0)
    check(f"the times of another user's file of mode {mode:o}: {got}", got == wanted)
pid = os.fork()
if pid == 0:                         # a daemon that drops for good
    held = open(f"{top}/roots/f")
    os.setgroups([]); os.setresgid(12345, 12345, 12345); os.setresuid(12345, 12345, 12345)
    failed = 0
    check("what was open stays open", held.read() == "secret\n")
    check("root's are refused", refused(lambda: open(f"{top}/roots/f")))
    with open(f"{top}/own/daemon", "w") as file:
        file.write("log")
    child = os.fork()
    if child == 0:
        with open(f"{top}/own/daemon", "a") as file:
            file.write("child")
        os._exit(0)
    check("its child goes on", os.waitpid(child, 0)[1] == 0 and open(f"{top}/own/daemon").read() == "logchild")
    check("what it starts", subprocess.run(["cat", f"{top}/own/daemon"], capture_output=True).stdout == b"logchild")
    os._exit(failed)
check("a daemon", os.waitpid(pid, 0)[1] == 0)
done = subprocess.run(["id", "-u"], user=12345, cwd=f"{top}/own", capture_output=True, text=True)
check("subprocess with a user", done.stdout == "12345\n")
sys.exit(failed)
END
failed=$((failed + $?))
if [ -n "${WEIR_TEST_ON_WEIR:-}" ]; then
	fails "who is admitted cannot stop the instance" as "$WEIR_TEST_WEIR" stop --force "${WEIR_INSTANCE##*/}"
	fails "nor read its journal" as sh -c "cat $(readlink "$WEIR_INSTANCE/shm")/journal"
	fails "who is not, cannot come in" sh -c "LD_PRELOAD= setpriv --reuid=23456 --clear-groups test -x $WEIR_INSTANCE"
fi
check_end
