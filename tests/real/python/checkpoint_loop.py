"""checkpoint_loop.py TOP FIRST LAST SECONDS: writes checkpoints into TOP from a number on.

Each is written under a name of its own, then `latest` leads to it, then the one before the last is removed. There is a
directory of many files in each, and a log that stays open. Beside it `data.N` is written, and then N into `progress`, in
place. What a killed loop left unfinished is removed first.
"""
import os
import re
import shutil
import sys
import time

top, first, last, seconds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
os.chdir(top)
kept = os.readlink("latest") if os.path.islink("latest") else None
for name in os.listdir("."):
    if re.fullmatch(r"ckpt\.\d+(\.tmp)?", name) and name != kept:
        shutil.rmtree(name)
written = [f"data.{int(open('progress').read())}"] if os.path.exists("progress") else []
for name in os.listdir("."):
    if re.fullmatch(r"data\.\d+", name) and name not in written:
        os.unlink(name)
log = open("log", "a", buffering=1)
before = kept
for number in range(first, last):
    os.mkdir(f"ckpt.{number}.tmp")
    for rank in range(4):
        with open(f"ckpt.{number}.tmp/rank.{rank}", "wb") as file:
            for _ in range(8):
                file.write(number.to_bytes(8, "little") * 16384)
    os.rename(f"ckpt.{number}.tmp", f"ckpt.{number}")
    os.symlink(f"ckpt.{number}", "next")
    os.rename("next", "latest")
    with open(f"data.{number}", "wb") as file:
        file.write(number.to_bytes(8, "little") * 65536)
    # A file of the parallel file system is updated there at once, unless it is replaced.
    name = "progress" if number > first else "progress.tmp"
    progress = os.open(name, os.O_RDWR | os.O_CREAT, 0o644)
    os.pwrite(progress, b"%08d" % number, 0)
    os.close(progress)
    os.rename(name, "progress")
    written.append(f"data.{number}")
    if len(written) > 2:
        os.unlink(written.pop(0))
    old, before, kept = before, kept, f"ckpt.{number}"
    if old is not None and old != before:
        for rank in range(4):
            os.unlink(f"{old}/rank.{rank}")
        os.rmdir(old)
    log.write(f"{number}\n")
    time.sleep(seconds)
