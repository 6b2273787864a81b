"""Fifos and Unix sockets: made, opened, polled, renamed, linked and removed; stream and datagram sockets at absolute and
relative paths; multiprocessing's listeners. Runs as well on tmpfs."""

import errno
import os
import select
import socket
import stat
import subprocess
import threading
from multiprocessing.connection import Client, Listener

from check import begin, check as holds, end

top = str(begin())
os.chdir(top)


def check(what, condition):
    holds(condition, what)


def refuses(what, number, call):
    try:
        call()
        holds(False, f"{what}: nothing raised")
    except OSError as error:
        holds(error.errno == number, f"{what}: {errno.errorcode[error.errno]}")


# Fifos
os.mkfifo("fifo", 0o640)
st = os.stat("fifo")
check("a fifo", stat.S_ISFIFO(st.st_mode) and stat.S_IMODE(st.st_mode) == 0o640 and st.st_size == 0)
check("its type in a listing", [e.name for e in os.scandir(".") if stat.S_ISFIFO(e.stat(follow_symlinks=False).st_mode)] == ["fifo"])
refuses("a name that is taken", errno.EEXIST, lambda: os.mkfifo("fifo"))
refuses("no reader", errno.ENXIO, lambda: os.open("fifo", os.O_WRONLY | os.O_NONBLOCK))
refuses("as a directory", errno.ENOTDIR, lambda: os.open("fifo", os.O_RDONLY | os.O_DIRECTORY))
reader = os.open("fifo", os.O_RDONLY | os.O_NONBLOCK)
check("a reader that does not wait", os.read(reader, 10) == b"")
writer = os.open("fifo", os.O_WRONLY | os.O_NONBLOCK)
poll = select.poll()
poll.register(reader, select.POLLIN)
check("nothing to read", poll.poll(0) == [])
os.write(writer, b"hello")
check("something to read", poll.poll(1000) == [(reader, select.POLLIN)] and os.read(reader, 10) == b"hello")
os.rename("fifo", "moved")
os.link("moved", "linked")
other = os.open("linked", os.O_WRONLY | os.O_CREAT, 0o600)
os.write(other, b"by the link")
check("renamed and linked it is the same", os.read(reader, 20) == b"by the link" and os.stat("moved").st_nlink == 2)
os.unlink("moved"), os.unlink("linked")
os.write(writer, b"on")
check("removed while it is open", os.read(reader, 20) == b"on" and not os.path.exists("linked"))
for fd in (reader, writer, other):
    os.close(fd)
os.mkfifo("fifo")
refuses("a new one of the name is another", errno.ENXIO, lambda: os.open("fifo", os.O_WRONLY | os.O_NONBLOCK))
got = []
thread = threading.Thread(target=lambda: got.append(open("fifo").read()))
thread.start()
with open("fifo", "w") as file:
    file.write("waited for")
thread.join()
check("each side waits for the other", got == ["waited for"])
subprocess.run(["bash", "-c", "mkfifo p; (seq 1000 > p &) ; sort -n p | tail -n 1 > out; [ -p p ] && rm p"], check=True)
check("mkfifo, seq, sort", open("out").read() == "1000\n")
os.chmod("fifo", 0o600)
check("chmod", stat.S_IMODE(os.stat("fifo").st_mode) == 0o600)
os.mkfifo("over")
os.rename("over", "fifo")
check("renamed over another", not os.path.exists("over"))
refuses("truncate", errno.EINVAL, lambda: os.truncate("fifo", 0))
os.mknod("by_mknod", stat.S_IFIFO | 0o600)
os.mknod("socket_node", stat.S_IFSOCK | 0o600)
check("mknod", stat.S_ISFIFO(os.stat("by_mknod").st_mode) and stat.S_ISSOCK(os.stat("socket_node").st_mode))

# Stream sockets
server = socket.socket(socket.AF_UNIX)
server.bind(f"{top}/s")
check("bind makes a socket", stat.S_ISSOCK(os.stat("s").st_mode))
check("getsockname", server.getsockname() == f"{top}/s")
refuses("not listening", errno.ECONNREFUSED, lambda: socket.socket(socket.AF_UNIX).connect("s"))
server.listen()
refuses("a path that is taken", errno.EADDRINUSE, lambda: socket.socket(socket.AF_UNIX).bind("s"))
refuses("a directory that is not there", errno.ENOENT, lambda: socket.socket(socket.AF_UNIX).bind("none/s"))
refuses("open", errno.ENXIO, lambda: os.open("s", os.O_RDWR))
refuses("connect to nothing", errno.ENOENT, lambda: socket.socket(socket.AF_UNIX).connect("none"))
open("plain", "w").close()
refuses("connect to a file", errno.ECONNREFUSED, lambda: socket.socket(socket.AF_UNIX).connect("plain"))
refuses("bound twice", errno.EINVAL, lambda: server.bind("again"))
check("which leaves no name", not os.path.exists("again"))


def talk(path):
    client = socket.socket(socket.AF_UNIX)
    client.connect(path)
    peer, _ = server.accept()
    client.sendall(b"question")
    question = peer.recv(100)
    peer.sendall(b"answer")
    said = client.getpeername(), question, client.recv(100)
    client.close(), peer.close()
    return said


check("connect", talk(f"{top}/s") == (f"{top}/s", b"question", b"answer"))
check("by a relative path", talk("s") == (f"{top}/s", b"question", b"answer"))
os.symlink("s", "l")
check("through a link", talk("l")[1:] == (b"question", b"answer"))
os.rename("s", "t")
check("renamed", talk("t")[1:] == (b"question", b"answer"))
os.link("t", "control")
os.unlink("t")
check("linked under another name", talk("control")[1:] == (b"question", b"answer"))
pid = os.fork()
if pid == 0:
    client = socket.socket(socket.AF_UNIX)
    client.connect("control")
    client.sendall(b"from a child")
    os._exit(0)
peer, _ = server.accept()
check("another process", peer.recv(100) == b"from a child" and os.waitpid(pid, 0)[1] == 0)
os.unlink("control")
refuses("removed", errno.ENOENT, lambda: socket.socket(socket.AF_UNIX).connect("control"))
server.close()
server = socket.socket(socket.AF_UNIX)
server.bind("relative")
check("getsockname of a relative path", server.getsockname() == "relative")
server.close()
refuses("nobody has it any more", errno.ECONNREFUSED, lambda: socket.socket(socket.AF_UNIX).connect("relative"))

# Datagrams
left, right = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
left.bind("left"), right.bind(f"{top}/right")
left.sendto(b"to the right", "right")
text, sender = right.recvfrom(100)
check("sendto", text == b"to the right")
right.sendto(b"back", sender)
check("to the sender", left.recv(100) == b"back")
left.sendmsg([b"by ", b"message"], [], 0, "right")
check("sendmsg", right.recv(100) == b"by message")
left.connect("right")
left.send(b"connected")
check("connected datagrams", right.recv(100) == b"connected" and left.getpeername() == f"{top}/right")

# multiprocessing
with Listener(f"{top}/listener", "AF_UNIX") as listener:
    pid = os.fork()
    if pid == 0:
        with Client(f"{top}/listener") as connection:
            connection.send({"answer": 42})
        os._exit(0)
    with listener.accept() as connection:
        check("multiprocessing's listener", connection.recv() == {"answer": 42})
    os.waitpid(pid, 0)
check("takes its name away", not os.path.exists("listener"))
end()
