#!/usr/bin/python3
"""One process of a checkpoint and its restart, as weir-scale reckons with them.

worker.py FILE MEETING TASK TASKS BYTES TRANSFER segmented|strided

The processes meet in a directory of the machine after each step. Prints what each step took
here, in ms: name=value ...
"""
import os
import random
import sys
import time

path, meeting = sys.argv[1:3]
task, tasks, size, transfer = map(int, sys.argv[3:7])
strided = sys.argv[7] == "strided"
pieces = size // transfer
data = bytearray(os.urandom(transfer))
took = {}


def meet(step):
    open(f"{meeting}/{step}.{task}", "w").close()
    until = time.monotonic() + 60
    while sum(name.startswith(f"{step}.") for name in os.listdir(meeting)) < tasks:
        assert time.monotonic() < until, f"{step}: only {sorted(os.listdir(meeting))} came"
        time.sleep(0.001)


def timed(step, act):
    begun = time.perf_counter()
    result = act()
    took[step] = (time.perf_counter() - begun) * 1e3
    meet(step)
    return result


def place(who, piece):
    return (piece * tasks + who) * transfer if strided else who * size + piece * transfer


def create():
    return os.open(path, os.O_CREAT | os.O_WRONLY)


def each(act, places):
    for offset in places:
        assert act(offset) == transfer


own = [place(task, piece) for piece in range(pieces)]
meet("ready")
# The first makes the file, the others open it.
if task == 0:
    fd = timed("open", create)
else:
    while not os.path.exists(f"{meeting}/open.0"):
        time.sleep(0.001)
    fd = timed("open", create)
timed("write", lambda: each(lambda at: os.pwrite(fd, data, at), own))
timed("publish", lambda: os.close(fd))
fd = timed("reopen", lambda: os.open(path, os.O_RDONLY))
timed("look-up", lambda: os.pread(fd, 1, own[0]))
back = bytearray(transfer)
timed("read", lambda: each(lambda at: os.preadv(fd, [back], at), own))
assert back == data
dice = random.Random(task)
anywhere = [place(dice.randrange(tasks), dice.randrange(pieces)) for _ in range(pieces)]
timed("shuffled", lambda: each(lambda at: os.preadv(fd, [back], at), anywhere))
print(" ".join(f"{step}={ms:.3f}" for step, ms in took.items()))
