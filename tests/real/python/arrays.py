"""numpy on files: tofile and fromfile (which write through C stdio on a duplicated descriptor), save, load, savez, text."""

import os
from pathlib import Path

import numpy as np

from check import begin, check, end, fails, section


def raw(d: Path) -> None:
    a = np.arange(1_000_000, dtype="f8").reshape(1000, 1000)
    a.tofile(d / "raw")
    check((d / "raw").stat().st_size == 8_000_000, "tofile by name")
    check((np.fromfile(d / "raw").reshape(1000, 1000) == a).all(), "fromfile by name")
    check((np.fromfile(d / "raw", count=10, offset=80) == np.arange(10, 20)).all(), "fromfile with count and offset")
    with open(d / "mixed", "wb") as f:
        f.write(b"header--")
        a[0].tofile(f)
        f.write(b"between-")
        a[1].tofile(f)
        check(f.tell() == 16 + 16000, "tofile into an open file moves its position")
    with open(d / "mixed", "rb") as f:
        check(f.read(8) == b"header--", "read before fromfile")
        first = np.fromfile(f, count=1000)
        check((first == a[0]).all() and f.read(8) == b"between-", "fromfile, then read goes on behind it")
        check((np.fromfile(f) == a[1]).all() and f.read() == b"", "fromfile to the end")
    with open(d / "mixed", "r+b") as f:
        f.seek(8)
        (a[0] * 2).tofile(f)
    check((np.fromfile(d / "mixed", offset=8, count=1000) == a[0] * 2).all(), "tofile in the middle")
    with open(d / "mixed", "ab") as f:
        a[2].tofile(f)
    check((d / "mixed").stat().st_size == 16 + 24000, "tofile at the end")
    a[:, ::3].tofile(d / "strided")
    check((np.fromfile(d / "strided").reshape(1000, 334) == a[:, ::3]).all(), "tofile of a strided view")
    np.arange(100).tofile(d / "text", sep=",")
    check((np.fromfile(d / "text", sep=",", dtype=int) == np.arange(100)).all(), "as text")
    fails(FileNotFoundError, "fromfile of an absent file", np.fromfile, d / "absent")


def saved(d: Path) -> None:
    a = np.random.default_rng(1).random((300, 400))
    np.save(d / "a.npy", a)
    check((np.load(d / "a.npy") == a).all(), "save, load")
    np.savez(d / "z.npz", a=a, b=a.T)
    with np.load(d / "z.npz") as z:
        check((z["b"] == a.T).all(), "savez")
    np.savez_compressed(d / "c.npz", a=a)
    with np.load(d / "c.npz") as z:
        check((z["a"] == a).all(), "savez_compressed")
    np.savetxt(d / "t.txt", a[:20])
    check(np.allclose(np.loadtxt(d / "t.txt"), a[:20]), "savetxt, loadtxt")
    with open(d / "two.npy", "wb") as f:
        np.save(f, a)
        np.save(f, a * 2)
    with open(d / "two.npy", "rb") as f:
        check((np.load(f) == a).all() and (np.load(f) == a * 2).all(), "two arrays in one file")
    fd = os.open(d / "fd", os.O_RDWR | os.O_CREAT)
    view = np.arange(5000, dtype="i4")
    check(os.pwrite(fd, view, 100) == 20000 and os.preadv(fd, [np.empty(5000, "i4").data], 100) == 20000, "arrays as buffers of pwrite and preadv")
    os.close(fd)


if __name__ == "__main__":
    directory = begin()
    section(raw, directory)
    section(saved, directory)
    end()
