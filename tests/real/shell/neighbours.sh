#!/bin/bash
# Several servers on one machine: a program goes on with the current directory and the open files that it got from a
# program at another of them. With what it got from an instance that it does not use, it gets errors and no file.
# The driver has started four servers; a program uses the one whose run directory WEIR_INSTANCE names.
. "$(dirname "$0")/check.sh"
base=${WEIR_INSTANCE:?only on weir}
servers=4
top=$dir
# Programs themselves, not scripts that start them and look for their current directory.
PATH=/usr/bin:/bin:$PATH
mkdir "$top/d" "$top/d/e"
cd "$top/d" || exit 1

# on RANK COMMAND...
on() {
	local rank=$1
	shift
	if [ "$rank" = 0 ]; then "$@"; else WEIR_INSTANCE=$base.$rank "$@"; fi
}

# everywhere TEXT WANTED COMMAND...: the command says the same at each server, with what this shell has.
everywhere() {
	local text=$1 wanted=$2 rank
	shift 2
	for ((rank = servers - 1; rank >= 0; rank--)); do
		same "$text, at $rank" "$wanted" "$(on $rank "$@" 2>&1)"
	done
}

# The current directory.
echo text > f
everywhere "a relative path" text cat f
everywhere "getcwd" "$top/d" python3 -c 'import os; print(os.getcwd())'
everywhere "pwd -P" "$top/d" /bin/pwd -P
everywhere "realpath" "$top/d/e" realpath e
everywhere "an absolute path" text cat "$top/d/f"
everywhere "the directory above" d ls ..
for ((rank = 0; rank < servers; rank++)); do on $rank sh -c "cd e && echo $rank > made.$rank"; done
same "files made there" "made.0 made.1 made.2 made.3" "$(cd e && echo *)"
everywhere "back and forth" "$top/d/e" on 2 sh -c "cd e && WEIR_INSTANCE=$base.3 /bin/pwd -P"
everywhere "/proc/self/cwd" "$top/d" readlink /proc/self/cwd
mv "$top/d" "$top/moved"
everywhere "renamed" "$top/moved" /bin/pwd -P
mv "$top/moved" "$top/d"
mkdir gone
cd gone && rmdir ../gone
everywhere "removed: a file" 2 python3 -c '
try: open("f", "w")
except OSError as error: print(error.errno)'
everywhere "removed: getcwd" 2 python3 -c '
import os
try: print(os.getcwd())
except OSError as error: print(error.errno)'
cd "$top/d" || exit 1

# Files that are open for writing: one offset for all.
{ echo 0; for rank in 1 2 3; do on $rank sh -c "echo $rank; /bin/echo $rank$rank"; done; echo 4; } > out
same "redirected output" "0 1 11 2 22 3 33 4" "$(echo $(< out))"
for rank in 0 1 2 3; do on $rank sh -c "echo $rank; /bin/echo $rank$rank" >> out; done
same "appended output" "0 1 11 2 22 3 33 4 0 00 1 11 2 22 3 33" "$(echo $(< out))"
exec 4> out
echo a >&4
on 3 sh -c 'echo b >&4'
on 1 python3 -c 'print("c", file=open(4, "w"))'
echo d >&4
same "a descriptor, while it is open" "a b c d" "$(echo $(< out))"
everywhere "its file" "$(stat -c '%i %h' out)" stat -c '%i %h' -L /proc/self/fd/4
exec 4>&-
exec 4>> out
for rank in 1 2 3; do
	on $rank bash -c 'for i in {1..50}; do echo $0.$i >&4; done' $rank &
done
for i in {1..50}; do echo 0.$i >&4; done
wait %1 %2 %3
same "appends of all at a time" "200 200" "$(grep -c '\.' out) $(grep '\.' out | sort -u | wc -l)"
exec 4> out
for rank in 1 2 3; do
	on $rank bash -c 'for i in {1..50}; do echo $0.$i >&4; done' $rank &
done
wait
same "one offset of all at a time" "150 150" "$(wc -l < out) $(sort -u out | wc -l)"
exec 4>&-
printf 0123456789 > out
on 2 python3 -c '
import fcntl, os
flags = fcntl.fcntl(4, fcntl.F_GETFL)
os.write(4, b"ab"); os.pwrite(4, b"E", 4); os.lseek(4, 1, os.SEEK_CUR)
fcntl.fcntl(4, fcntl.F_SETFL, flags | os.O_APPEND)
os.ftruncate(4, 8)' 4<> out
same "seek, pwrite, ftruncate" ab23E567 "$(< out)"
python3 -c '
import fcntl, os, subprocess, sys
fd = os.open("out", os.O_RDWR)
child = "import fcntl, os; os.lseek(%d, 3, 0); fcntl.fcntl(%d, fcntl.F_SETFL, os.O_APPEND)" % (fd, fd)
subprocess.run(["python3", "-c", child], pass_fds=[fd], env=dict(os.environ, WEIR_INSTANCE=sys.argv[1]), check=True)
print(os.lseek(fd, 0, 1), bool(fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_APPEND))' "$base.1" > "$outside/flags"
same "offset and flags that a child at another server set" "3 True" "$(< "$outside/flags")"

# For reading.
printf '%s\n' 1 2 3 4 5 6 > in
same "redirected input" "0:1 1:2 2:3 4 5 6" "$(echo $({
	read -r line; echo "0:$line"
	on 1 bash -c 'read -r line; echo "1:$line"'
	on 2 bash -c 'read -r line; echo "2:$line"'
	on 3 cat
} < in))"
everywhere "/dev/stdin" "1 2 3 4 5 6" bash -c 'echo $(cat /dev/stdin < /dev/fd/0)' < in
exec 5< in
rm in
everywhere "a file without a name" 1 bash -c 'head -n 1 /proc/self/fd/5'
exec 5<&-
everywhere "O_PATH" "text 9" python3 -c '
import os
fd = os.open("f", os.O_PATH)
try: os.read(fd, 1)
except OSError as error: print(open("/proc/self/fd/%d" % fd).read().strip(), error.errno)'

# Directories.
exec 5< e
everywhere "a directory" "made.0 made.1 made.2 made.3 1 $top/d/e" python3 -c '
import os
fd = os.open("made.1", os.O_RDONLY, dir_fd=5)
print(*sorted(os.listdir(5)), os.read(fd, 1).decode(), end=" ")
os.fchdir(5)
print(os.getcwd())'
exec 5<&-

# Descriptors over a socket: the file is sent by a program at one server to one at another.
everywhere "SCM_RIGHTS" "sent over" python3 -c '
import os, socket, subprocess, sys
ours, theirs = socket.socketpair()
child = """
import os, socket
channel = socket.socket(fileno=%d)
_, fds, _, _ = socket.recv_fds(channel, 1, 4)
os.write(fds[0], b" over")
channel.send(b"!")
""" % theirs.fileno()
name = "sent.%d" % os.getpid()
fd = os.open(name, os.O_RDWR | os.O_CREAT)
os.write(fd, b"sent")
process = subprocess.Popen(["python3", "-c", child], pass_fds=[theirs.fileno()], env=dict(os.environ, WEIR_INSTANCE=sys.argv[1]))
socket.send_fds(ours, [b"x"], [fd])
ours.recv(1)
if process.wait() == 0: print(open(name).read())
os.unlink(name)' "$base.2"

# Processes that outlive each other, and the children of those that inherited.
exec 4> late
on 1 bash -c '(sleep 1; echo grandchild >&4; exec /bin/echo of another >&4) & disown' &
wait
echo parent >&4
exec 4>&-
until [ "$(wc -l < late)" = 3 ]; do sleep 0.1; done
same "who outlives those it inherited from" "parent grandchild of another" "$(echo $(< late))"
on 2 bash -c '(sleep 1; echo 1) > watched & disown'
same "a file that is made anew" 1 "$(until [ -s watched ]; do sleep 0.1; done; cat watched)"
setfattr -n user.weir.laminate -v close .
exec 4> laminated
on 3 sh -c 'sleep 1; echo text >&4' &
exec 4>&-
wait
laminated() { [ "$(getfattr --only-values -n user.weir.laminated laminated)" = 1 ]; }
for _ in {1..50}; do laminated && break; sleep 0.1; done
check "the last descriptor was another server's: the file is laminated" laminated
same "and has its text" text "$(cat laminated)"

# Locks: of the process as always; of the description they would have to be kept by the other server.
exec 4> lock
same "flock of another server's description" "37 0" "$(on 1 python3 -c '
import errno, fcntl
try: fcntl.flock(4, fcntl.LOCK_EX)
except OSError as error: print(error.errno, end=" ")
fcntl.lockf(4, fcntl.LOCK_EX)
print(0)')"
check "flock of the own" flock 4
exec 4>&-

# Instances that there are not, and others. Nothing may be written anywhere.
export MADE=made.$$
exec 4> kept 5< e
for named in "$outside/none" "$outside"; do
	same "without an instance" "5 5 5 2 2 2 [2]" "$(WEIR_INSTANCE=$named python3 -c '
import os
def tried(what, *arguments, **named):
    try: return what(*arguments, **named)
    except OSError as error: return error.errno
print(tried(os.write, 4, b"x"), tried(os.fstat, 4), tried(os.open, os.environ["MADE"], os.O_CREAT, dir_fd=5),
      tried(os.open, os.environ["MADE"], os.O_CREAT), tried(os.mkdir, os.environ["MADE"]), tried(os.getcwd), [tried(os.listdir, ".")])')"
	fails "output without an instance" bash -c 'WEIR_INSTANCE=$0 /bin/echo x >&4' "$named"
	check "files elsewhere can be made" env WEIR_INSTANCE="$named" sh -c "cd $outside && echo x > found && rm found"
done
other() { env WEIR_INSTANCE= LD_PRELOAD= "$WEIR_TEST_WEIR" run --servers 2 --memory 64M --report none -- "$@"; }
same "of another instance" "5 5 5 2 2 2" "$(other python3 -c '
import os
def tried(what, *arguments, **named):
    try: return what(*arguments, **named)
    except OSError as error: return error.errno
print(tried(os.write, 4, b"x"), tried(os.read, 5, 1), tried(os.open, os.environ["MADE"], os.O_CREAT, dir_fd=5), tried(os.open, os.environ["MADE"], os.O_CREAT), tried(os.mkdir, os.environ["MADE"]), tried(os.getcwd))')"
same "which works otherwise" "x /weir" "$(other bash -c 'cd /weir && echo x > f && echo $(< f) $(/bin/pwd -P)' 2> /dev/null)"
report=$(env WEIR_INSTANCE= LD_PRELOAD= "$WEIR_TEST_WEIR" run --memory 64M -- /bin/echo x 2>&1 >&4)
check "and it is counted" grep -q other-instance <<< "$report"
exec 4>&- 5<&-
same "nothing was written" "0 " "$(stat -c %s kept) $(find /dev/shm -name "$MADE")"

# What looks like a descriptor of weir's and is none.
mkdir -p "$outside/m/ph" "$outside/m/cwd/0000000000000002"
head -c 4096 /dev/zero > "$outside/m/open"
same "a directory made to look like a placeholder" "5 5" "$(python3 -c '
import fcntl, os, struct, subprocess, sys
fd = os.open(sys.argv[1], os.O_RDONLY | os.O_DIRECTORY)
os.lseek(fd, 8, 0)
fcntl.fcntl(fd, 37, struct.pack("hhqqi4x", 0, 0, (1 << 60) + 7, 1, 0))
ours = os.open(sys.argv[2], os.O_RDONLY)    # who inherits something of weir looks at all that it has
child = """
import os
for call in lambda: os.read(%d, 1), lambda: os.write(%d, b"x"):
    try: print("done", call())
    except OSError as error: print(error.errno, end=" ")
""" % (fd, fd)
subprocess.run(["python3", "-c", child], pass_fds=[fd, ours], check=True)' "$outside/m/ph" "$top" | sed 's/ $//')"
same "a current directory that looks like one" "$outside/m/cwd/0000000000000002" "$(cd "$outside/m/cwd/0000000000000002" && python3 -c 'import os; print(os.getcwd())')"
cd "$top" && rm -rf d
check_end
