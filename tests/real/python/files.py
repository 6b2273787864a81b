"""Python's own file interface: open in all modes, os, os.scandir, walk, rename, shutil, pathlib, glob, pickle and their like."""

import array
import csv
import errno
import glob
import gzip
import io
import json
import marshal
import os
import pickle
import shelve
import shutil
import stat
import tarfile
import tempfile
import time
import zipfile
from pathlib import Path

from check import begin, check, end, fails, section


def modes(d: Path) -> None:
    p = d / "modes"
    fails(FileNotFoundError, "open r of an absent file", open, p)
    fails(FileNotFoundError, "open r+ of an absent file", open, p, "r+")
    with open(p, "w") as f:
        check(f.write("first\nsecond\n") == 13 and f.tell() == 13, "w writes, tell")
    with open(p, "a") as f:
        f.writelines(["third\n", "fourth\n"])
    with open(p) as f:
        check(f.readline() == "first\n" and f.readlines() == ["second\n", "third\n", "fourth\n"], "readline, readlines")
        check(f.read() == "" and f.seek(0) == 0 and list(f)[1] == "second\n", "read at the end, seek, iteration")
    with open(p, "r+") as f:
        f.write("FIRST")
        f.seek(0, io.SEEK_END)
        f.write("fifth\n")
    check(p.read_text().split() == ["FIRST", "second", "third", "fourth", "fifth"], "r+")
    with open(p, "a+") as f:
        f.seek(0)
        check(f.read(5) == "FIRST", "a+ reads")
        f.write("sixth\n")
    check(p.read_text().endswith("fifth\nsixth\n"), "a+ writes at the end")
    with open(p, "w+") as f:
        f.write("x" * 100)
        f.seek(50)
        check(f.truncate() == 50 and len(f.read()) == 0, "w+, truncate")
        check(os.fstat(f.fileno()).st_size == 50, "fstat of it")
    fails(FileExistsError, "x of an existing file", open, p, "x")
    with open(d / "modes_x", "x") as f:
        f.write("new")
    with open(p, "wb", buffering=0) as f:
        check(f.write(b"raw") == 3 and p.read_bytes() == b"raw", "unbuffered bytes are seen at once")
    with open(p, "w", buffering=1) as f:
        f.write("line\nrest")
        check(p.read_text() == "line\nrest", "line buffering: a newline flushes")
    with open(p, "rb") as f:
        buffer = bytearray(6)
        check(f.readinto(buffer) == 6 and buffer == b"line\nr" and f.peek(1)[:1] == b"e", "readinto, peek")
    with open(p, "w", encoding="utf-16") as f:
        f.write("\u00e9\u4e2d")
    check(p.read_text(encoding="utf-16") == "\u00e9\u4e2d", "another encoding")
    with open(p, "w", newline="\r\n") as f:
        f.write("a\nb\n")
    check(p.read_bytes() == b"a\r\nb\r\n" and p.read_text() == "a\nb\n", "newline translation")
    data = os.urandom(7_000_000)
    with open(p, "wb") as f:
        f.write(data[:10])
        f.write(data[10:])
    check(p.read_bytes() == data, "7 MB in one piece")
    with open(p, "r+b") as f:
        f.seek(3_000_000)
        f.write(b"#" * 100)
        f.seek(2_999_990)
        check(f.read(120) == data[2_999_990:3_000_000] + b"#" * 100 + data[3_000_100:3_000_110], "r+b over the middle")
    fails(IsADirectoryError, "open of a directory", open, d)
    fails(NotADirectoryError, "open below a file", open, p / "x")
    opened = open(p, opener=lambda path, flags: os.open(path, flags | os.O_NOFOLLOW))
    check(opened.fileno() > 2, "an opener")
    opened.close()


def descriptors(d: Path) -> None:
    p = d / "fd"
    fd = os.open(p, os.O_RDWR | os.O_CREAT, 0o640)
    check(os.write(fd, b"0123456789") == 10 and os.pread(fd, 4, 3) == b"3456", "os.write, os.pread")
    check(os.pwritev(fd, [b"ab", b"cd"], 2) == 4 and os.lseek(fd, 0, os.SEEK_SET) == 0, "os.pwritev, os.lseek")
    one, two = bytearray(4), bytearray(100)
    check(os.readv(fd, [one, two]) == 10 and one == b"01ab" and two[:6] == b"cd6789", "os.readv")
    check(os.get_inheritable(fd) is False, "descriptors are not inheritable by default")
    os.ftruncate(fd, 3)
    os.fsync(fd)
    os.posix_fallocate(fd, 0, 5000)
    check(os.fstat(fd).st_size == 5000 and os.fpathconf(fd, "PC_NAME_MAX") >= 255, "ftruncate, fsync, posix_fallocate")
    os.fchmod(fd, 0o600)
    os.utime(fd, ns=(1_000_000_000_123_456_789, 2_000_000_000_987_654_321))
    st = os.fstat(fd)
    check((st.st_atime_ns, st.st_mtime_ns) == (1_000_000_000_123_456_789, 2_000_000_000_987_654_321), "os.utime in ns")
    check(stat.S_IMODE(st.st_mode) == 0o600, "fchmod")
    second = os.dup(fd)
    os.close(fd)
    os.lseek(second, 0, os.SEEK_SET)
    with os.fdopen(second, "r+b") as f:
        check(f.read(3) == b"01a", "dup, fdopen")
    out = os.open(d / "sent", os.O_WRONLY | os.O_CREAT)
    inp = os.open(p, os.O_RDONLY)
    try:
        check(os.sendfile(out, inp, 0, 5000) > 0, "os.sendfile copies")
    except OSError as e:
        check(e.errno in (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP), "os.sendfile refuses")
    try:
        check(os.copy_file_range(inp, out, 100) >= 0, "os.copy_file_range copies")
    except OSError as e:
        check(e.errno in (errno.EXDEV, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL), "os.copy_file_range refuses")
    os.close(out)
    os.close(inp)
    sparse = os.open(d / "sparse", os.O_RDWR | os.O_CREAT)
    os.pwrite(sparse, b"x" * 4096, 1 << 20)
    check(os.lseek(sparse, 0, os.SEEK_DATA) == 1 << 20 and os.fstat(sparse).st_blocks < 100, "SEEK_DATA in a sparse file")
    os.close(sparse)


def names(d: Path) -> None:
    tree = d / "tree"
    for a in range(3):
        for b in range(4):
            (tree / f"a{a}" / f"b{b}").mkdir(parents=True)
            (tree / f"a{a}" / f"b{b}" / "file").write_text(f"{a}{b}")
    (tree / "link").symlink_to("a0/b0/file")
    walked = [(Path(root).relative_to(tree).as_posix(), sorted(dirs), sorted(files)) for root, dirs, files in os.walk(tree)]
    check(len(walked) == 16 and walked[0] == (".", ["a0", "a1", "a2"], ["link"]), "os.walk")
    check(len(list(os.walk(tree, topdown=False))) == 16, "os.walk from below")
    check(len(list(os.fwalk(tree))) == 16, "os.fwalk")
    with os.scandir(tree) as entries:
        found = {e.name: (e.is_dir(follow_symlinks=False), e.is_file(), e.is_symlink(), e.stat(follow_symlinks=False).st_ino == e.inode()) for e in entries}
    check(found == {"a0": (True, False, False, True), "a1": (True, False, False, True), "a2": (True, False, False, True), "link": (False, True, True, True)}, "os.scandir")
    check(sorted(os.listdir(tree)) == ["a0", "a1", "a2", "link"], "os.listdir")
    dfd = os.open(tree, os.O_RDONLY | os.O_DIRECTORY)
    check(sorted(os.listdir(dfd)) == ["a0", "a1", "a2", "link"] and len(list(os.scandir(dfd))) == 4, "listdir and scandir of a descriptor")
    check(os.stat("a0/b0/file", dir_fd=dfd).st_size == 2, "dir_fd")
    os.mkdir("by_fd", dir_fd=dfd)
    os.rename("by_fd", "by_fd2", src_dir_fd=dfd, dst_dir_fd=dfd)
    os.rmdir("by_fd2", dir_fd=dfd)
    os.close(dfd)
    check(len(list(tree.rglob("file"))) == 12 and len(glob.glob(f"{tree}/*/b1/*")) == 3, "rglob, glob")
    os.rename(tree / "a0", tree / "renamed")
    os.replace(tree / "a1/b1/file", tree / "a1/b2/file")
    check((tree / "renamed/b3/file").read_text() == "03" and (tree / "a1/b2/file").read_text() == "11", "rename, replace")
    fails(OSError, "rename over a full directory", os.rename, tree / "renamed", tree / "a2")
    fails(OSError, "rmdir of a full directory", os.rmdir, tree / "a2")
    os.renames(tree / "a1/b0/file", tree / "new/place/file")
    check(not (tree / "a1/b0").exists() and (tree / "new/place/file").read_text() == "10", "renames, which removes empty parents")
    os.link(tree / "a2/b0/file", tree / "hard")
    check(os.path.samefile(tree / "hard", tree / "a2/b0/file") and os.stat(tree / "hard").st_nlink == 2, "link, samefile")
    check(os.readlink(tree / "link") == "a0/b0/file" and not (tree / "link").exists() and os.path.islink(tree / "link"), "readlink, a dangling link")
    check((tree / "a2" / ".." / "hard").resolve() == tree.resolve() / "hard", "resolve")
    check(os.path.realpath(tree / "a2/../hard") == os.path.realpath(tree) + "/hard", "realpath")
    os.chmod(tree / "hard", 0o400)
    check(stat.S_IMODE(os.lstat(tree / "hard").st_mode) == 0o400, "chmod")
    before = os.getcwd()
    os.chdir(tree)
    Path("relative").write_text("r")
    check(os.getcwd() == str(tree) and os.path.exists("../tree/relative") and os.path.abspath("relative") == str(tree / "relative"), "chdir, getcwd, relative paths")
    os.chdir(before)
    st = os.statvfs(tree)
    check(st.f_bavail > 0 and shutil.disk_usage(tree).free > 0, "statvfs, disk_usage")
    (tree / "times").touch()
    now = time.time()
    check(abs(os.stat(tree / "times").st_mtime - now) < 60, "touch is now")
    os.utime(tree / "times", (1, 2))
    check(os.stat(tree / "times").st_mtime == 2, "utime")
    os.truncate(tree / "times", 77)
    check((tree / "times").stat().st_size == 77, "truncate")
    os.unlink(tree / "times")
    shutil.rmtree(tree)
    check(not tree.exists(), "rmtree")


def shutils(d: Path) -> None:
    src = d / "src"
    (src / "sub").mkdir(parents=True)
    (src / "big").write_bytes(os.urandom(3_000_000))
    (src / "sub" / "small").write_text("small")
    (src / "link").symlink_to("big")
    os.utime(src / "big", (1_000_000_000, 1_000_000_020))
    check(Path(shutil.copy(src / "big", d / "copy")).read_bytes() == (src / "big").read_bytes(), "shutil.copy")
    shutil.copy2(src / "big", d / "copy2")
    check((d / "copy2").stat().st_mtime == 1_000_000_020, "copy2 keeps the times")
    shutil.copytree(src, d / "copied", symlinks=True)
    check((d / "copied/link").is_symlink() and (d / "copied/sub/small").read_text() == "small", "copytree")
    with tempfile.TemporaryDirectory() as outside:
        shutil.copytree(src, f"{outside}/out")
        check(Path(f"{outside}/out/link").read_bytes() == (src / "big").read_bytes(), "copytree out of the directory")
        shutil.move(d / "copied", f"{outside}/moved")
        shutil.move(f"{outside}/moved", d / "back")
        check((d / "back/big").read_bytes() == (src / "big").read_bytes() and not (d / "copied").exists(), "move out and in again")
    shutil.move(d / "back", d / "back2")
    archive = shutil.make_archive(str(d / "archive"), "gztar", src)
    shutil.unpack_archive(archive, d / "unpacked")
    check((d / "unpacked/sub/small").read_text() == "small", "make_archive, unpack_archive")
    with zipfile.ZipFile(d / "z.zip", "w", zipfile.ZIP_DEFLATED) as z:
        z.write(src / "big", "big")
    with zipfile.ZipFile(d / "z.zip", "a") as z:
        z.writestr("more", "more")
    with zipfile.ZipFile(d / "z.zip") as z:
        check(z.testzip() is None and z.read("big") == (src / "big").read_bytes() and z.read("more") == b"more", "zipfile")
    with tarfile.open(d / "t.tar", "w") as t:
        t.add(src, "src")
    with tarfile.open(d / "t.tar") as t:
        check(t.extractfile("src/sub/small").read() == b"small", "tarfile")
    with gzip.open(d / "g.gz", "wb") as g:
        g.write(b"zip" * 100000)
    with gzip.open(d / "g.gz") as g:
        check(g.read() == b"zip" * 100000, "gzip")
    shutil.rmtree(d / "back2")


def serialised(d: Path) -> None:
    value = {"list": list(range(10000)), "text": "\u00e9" * 1000, "bytes": os.urandom(100000), "nested": [{"k": (1, 2.5, None)}]}
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        with open(d / f"pickle{protocol}", "wb") as f:
            pickle.dump(value, f, protocol)
            pickle.dump("second", f, protocol)
        with open(d / f"pickle{protocol}", "rb") as f:
            check(pickle.load(f) == value and pickle.load(f) == "second", f"pickle, protocol {protocol}")
    buffers = []
    payload = pickle.PickleBuffer(bytearray(b"out of band" * 1000))
    (d / "pickle_oob").write_bytes(pickle.dumps(payload, 5, buffer_callback=buffers.append))
    (d / "pickle_buf").write_bytes(buffers[0].raw())
    check(pickle.loads((d / "pickle_oob").read_bytes(), buffers=[(d / "pickle_buf").read_bytes()]) == b"out of band" * 1000, "pickle with out-of-band buffers")
    with open(d / "json", "w") as f:
        json.dump(value["list"], f)
    with open(d / "json") as f:
        check(json.load(f) == value["list"], "json")
    with open(d / "csv", "w", newline="") as f:
        csv.writer(f).writerows([[i, f"a,{i}"] for i in range(1000)])
    with open(d / "csv", newline="") as f:
        check(list(csv.reader(f))[999] == ["999", "a,999"], "csv")
    with open(d / "marshal", "wb") as f:
        marshal.dump(value["list"], f)
    with open(d / "marshal", "rb") as f:
        check(marshal.load(f) == value["list"], "marshal")
    numbers = array.array("d", range(100000))
    with open(d / "array", "wb") as f:
        numbers.tofile(f)
    again = array.array("d")
    with open(d / "array", "rb") as f:
        again.fromfile(f, 100000)
    check(again == numbers, "array.tofile, fromfile")
    with tempfile.NamedTemporaryFile(dir=d) as f:
        f.write(b"named")
        f.flush()
        check(Path(f.name).read_bytes() == b"named", "NamedTemporaryFile")
    check(not Path(f.name).exists(), "and is removed")
    with tempfile.TemporaryFile(dir=d) as f:
        f.write(b"t" * 1000)
        f.seek(0)
        check(len(f.read()) == 1000, "TemporaryFile")
    with tempfile.TemporaryDirectory(dir=d) as t:
        Path(t, "in").write_text("x")
    check(not Path(t).exists(), "TemporaryDirectory")
    with shelve.open(str(d / "shelf"), "n") as s:
        s["key"] = [1, 2, 3]
    with shelve.open(str(d / "shelf"), "r") as s:
        check(s["key"] == [1, 2, 3], "shelve")


if __name__ == "__main__":
    directory = begin()
    section(modes, directory)
    section(descriptors, directory)
    section(names, directory)
    section(shutils, directory)
    section(serialised, directory)
    end()
