"""h5py on files: datasets contiguous, chunked and compressed, resizing, attributes, groups, links, in-place change, append,
drivers, SWMR, virtual datasets, another process that reads; then h5dump, h5ls, h5diff, h5repack and h5copy on the result."""

import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np

from check import begin, check, end, fails, section


def write_and_read(d: Path) -> None:
    a = np.arange(600_000, dtype="f8").reshape(600, 1000)
    with h5py.File(d / "file.h5", "w") as f:
        f["contiguous"] = a
        f.create_dataset("chunked", data=a, chunks=(64, 64))
        f.create_dataset("zipped", data=a, chunks=(100, 100), compression="gzip", shuffle=True, fletcher32=True)
        grown = f.create_dataset("grown", (0,), maxshape=(None,), chunks=(1000,), dtype="i4")
        for i in range(50):
            grown.resize((grown.shape[0] + 333,))
            grown[-333:] = i
        f.create_group("group/inner")["text"] = "a string \u00e9"
        f["group"].attrs["numbers"] = [1, 2, 3]
        f["soft"] = h5py.SoftLink("/contiguous")
        f["hard"] = f["chunked"]
        f.create_dataset("compound", data=np.array([(1, 2.5, b"abc")], dtype=[("i", "i4"), ("x", "f8"), ("s", "S3")]))
    with h5py.File(d / "file.h5", "r") as f:
        check((f["contiguous"][...] == a).all() and (f["chunked"][...] == a).all() and (f["zipped"][...] == a).all(), "contiguous, chunked, compressed")
        check((f["soft"][100, ::7] == a[100, ::7]).all() and (f["hard"][10:20, 30:40] == a[10:20, 30:40]).all(), "links and slices")
        check(f["grown"].shape == (16650,) and (f["grown"][...] == np.repeat(np.arange(50), 333)).all(), "a growing dataset")
        check(f["group/inner/text"][()].decode() == "a string \u00e9" and list(f["group"].attrs["numbers"]) == [1, 2, 3], "strings, attributes")
        check(f["compound"][0]["x"] == 2.5, "compound")
    with h5py.File(d / "file.h5", "r+") as f:
        f["contiguous"][5, :] = -1
        del f["zipped"]
        f["new"] = np.ones(1000)
        f.flush()
    with h5py.File(d / "file.h5", "a") as f:
        check((f["contiguous"][5] == -1).all() and "zipped" not in f and f["new"][...].sum() == 1000, "r+ and a")
    fails(FileExistsError, "w- of an existing file", h5py.File, d / "file.h5", "w-")
    fails(OSError, "a file that is no HDF5", lambda: h5py.File(Path(__file__), "r"))
    fails(OSError, "an absent file", h5py.File, d / "absent.h5", "r")


def other_ways(d: Path) -> None:
    with h5py.File(d / "stdio.h5", "w", driver="stdio") as f:
        f["x"] = np.arange(100_000)
    with h5py.File(d / "core.h5", "w", driver="core") as f:
        f["x"] = np.arange(1000)
    with h5py.File(d / "family-%d.h5", "w", driver="family", memb_size=1 << 20) as f:
        f["x"] = np.arange(500_000)
    check(len(list(d.glob("family-*.h5"))) >= 4, "the family driver makes several files")
    for name, driver in (("stdio.h5", "stdio"), ("stdio.h5", "sec2"), ("core.h5", None), ("family-%d.h5", "family")):
        kw = {"memb_size": 1 << 20} if driver == "family" else {}
        with h5py.File(d / name, "r", driver=driver, **kw) as f:
            check((f["x"][...] == np.arange(len(f["x"]))).all(), f"{name} read by {driver}")
    with open(d / "object.h5", "w+b") as raw, h5py.File(raw, "w") as f:
        f["x"] = np.arange(1000)
    with h5py.File(d / "object.h5", "r") as f:
        check(f["x"][999] == 999, "through a Python file object")
    with h5py.File(d / "external.h5", "w") as f:
        f["there"] = h5py.ExternalLink("stdio.h5", "/x")
        layout = h5py.VirtualLayout(shape=(2000,), dtype="i8")
        layout[:1000] = h5py.VirtualSource("core.h5", "x", shape=(1000,))
        layout[1000:] = h5py.VirtualSource("object.h5", "x", shape=(1000,))
        f.create_virtual_dataset("virtual", layout)
    with h5py.File(d / "external.h5", "r") as f:
        check(f["there"][77] == 77 and f["virtual"][1999] == 999 and f["virtual"][500] == 500, "external links, a virtual dataset")


def swmr(d: Path) -> None:
    with h5py.File(d / "swmr.h5", "w", libver="latest") as f:
        data = f.create_dataset("x", (0,), maxshape=(None,), chunks=(100,), dtype="i8")
        f.swmr_mode = True
        code = ("import h5py, sys\n"
                "f = h5py.File(sys.argv[1], 'r', libver='latest', swmr=True)\n"
                "for line in sys.stdin:\n"
                "    f['x'].refresh()\n"
                "    print(len(f['x']), int(f['x'][...].sum()), flush=True)\n")
        reader = subprocess.Popen([sys.executable, "-c", code, d / "swmr.h5"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        good = 0
        for i in range(1, 21):
            data.resize((i * 100,))
            data[-100:] = i
            data.flush()
            reader.stdin.write("go\n")
            reader.stdin.flush()
            good += reader.stdout.readline().split() == [str(i * 100), str(100 * i * (i + 1) // 2)]
        reader.stdin.close()
        check(reader.wait() == 0 and good == 20, f"SWMR: another process saw each of 20 flushes ({good})")


def tools(d: Path) -> None:
    def run(*args):
        done = subprocess.run([str(a) for a in args], capture_output=True, text=True)
        if done.returncode:
            print("  ", args[0], done.returncode, done.stderr[-300:])
        return done.returncode == 0 and (done.stdout or "-")
    dump = run("h5dump", "-d", "/grown", "-s", "16640", "-c", "10", d / "file.h5")
    check(dump and dump.count("49") >= 10, "h5dump of a slice")
    check(run("h5dump", "-H", d / "file.h5") and run("h5ls", "-r", d / "file.h5") and run("h5stat", d / "file.h5"), "h5dump -H, h5ls, h5stat")
    check(run("h5dump", "-d", "/contiguous", "-b", "LE", "-o", d / "dumped", d / "file.h5") and (d / "dumped").stat().st_size == 4_800_000, "h5dump -o into the directory")
    check(run("h5repack", "-f", "GZIP=1", d / "file.h5", d / "packed.h5"), "h5repack")
    check(run("h5diff", d / "file.h5", d / "packed.h5"), "h5diff finds no difference")
    check(run("h5copy", "-i", d / "file.h5", "-o", d / "copied.h5", "-s", "/contiguous", "-d", "/c"), "h5copy")
    with h5py.File(d / "copied.h5", "r") as f:
        check((f["c"][5] == -1).all(), "what h5copy copied")


if __name__ == "__main__":
    directory = begin()
    section(write_and_read, directory)
    section(other_ways, directory)
    section(swmr, directory)
    section(tools, directory)
    end()
