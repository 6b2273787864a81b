"""netCDF4 on files: the classic, 64-bit and HDF5-based formats, unlimited dimensions, groups, in-place change, append; then
ncdump, nccopy and ncgen on the result."""

import subprocess
from pathlib import Path

import netCDF4
import numpy as np

from check import begin, check, end, fails, section

FORMATS = ("NETCDF3_CLASSIC", "NETCDF3_64BIT_OFFSET", "NETCDF3_64BIT_DATA", "NETCDF4_CLASSIC", "NETCDF4")


def run(*args):
    done = subprocess.run([str(a) for a in args], capture_output=True, text=True)
    if done.returncode:
        print("  ", args[0], done.returncode, done.stderr[-300:])
    return done.returncode == 0 and (done.stdout or "-")


def formats(d: Path) -> None:
    field = np.arange(120 * 90, dtype="f8").reshape(120, 90)
    for kind in FORMATS:
        path = d / f"{kind}.nc"
        with netCDF4.Dataset(path, "w", format=kind) as n:
            n.createDimension("time", None)
            n.createDimension("y", 120)
            n.createDimension("x", 90)
            v = n.createVariable("field", "f8", ("time", "y", "x"))
            v.units = "K"
            fixed = n.createVariable("fixed", "i4", ("y",))
            fixed[:] = np.arange(120)
            for t in range(12):
                v[t] = field + t
            n.title = "made by " + kind
        with netCDF4.Dataset(path, "a") as n:
            n["field"][12] = field * 2
            n["fixed"][7] = -7
        with netCDF4.Dataset(path) as n:
            ok = all((n["field"][t] == field + t).all() for t in range(12)) and (n["field"][12] == field * 2).all()
            check(ok and n["fixed"][7] == -7 and n["fixed"][8] == 8 and n.title == "made by " + kind and n["field"].units == "K", f"{kind}: written, appended, read")
        dump = run("ncdump", "-v", "fixed", path)
        check(dump and "fixed = 0, 1, 2, 3, 4, 5, 6, -7, 8" in dump, f"{kind}: ncdump")
        check(run("ncdump", "-k", path) and run("nccopy", "-k", "nc4", path, d / f"{kind}-copy.nc"), f"{kind}: ncdump -k, nccopy")
        with netCDF4.Dataset(d / f"{kind}-copy.nc") as n:
            check((n["field"][12] == field * 2).all(), f"{kind}: what nccopy copied")
    check(run("ncvalidator", d / "NETCDF3_CLASSIC.nc") and run("ncvalidator", d / "NETCDF3_64BIT_DATA.nc"), "ncvalidator")


def more(d: Path) -> None:
    with netCDF4.Dataset(d / "groups.nc", "w") as n:
        g = n.createGroup("a/b")
        g.createDimension("k", 1000)
        g.createVariable("zipped", "f4", ("k",), zlib=True, complevel=4)[:] = np.linspace(0, 1, 1000)
        n.createDimension("s", None)
        n.createVariable("names", str, ("s",))[:] = np.array(["one", "two \u00e9", "three"], dtype=object)
        n.sync()
    with netCDF4.Dataset(d / "groups.nc") as n:
        check(abs(n["a/b/zipped"][500] - 500 / 999) < 1e-6 and list(n["names"][:]) == ["one", "two \u00e9", "three"], "groups, compression, strings")
    with netCDF4.MFDataset(sorted(str(p) for p in d.glob("NETCDF3_CLASSIC.nc")), aggdim="time") as m:
        check(m["field"].shape[0] == 13, "MFDataset")
    (d / "gen.cdl").write_text("netcdf gen { dimensions: x = 3; variables: int v(x); data: v = 4, 5, 6; }")
    check(run("ncgen", "-o", d / "gen.nc", d / "gen.cdl") and "v = 4, 5, 6" in (run("ncdump", d / "gen.nc") or ""), "ncgen, ncdump")
    with netCDF4.Dataset(d / "disk.nc", "w", diskless=True, persist=True) as n:
        n.createDimension("x", 10)
        n.createVariable("v", "i4", ("x",))[:] = range(10)
    with netCDF4.Dataset(d / "disk.nc") as n:
        check(list(n["v"][:]) == list(range(10)), "diskless, persisted at close")
    fails(OSError, "an absent file", netCDF4.Dataset, d / "absent.nc")
    fails(OSError, "clobber=False of an existing file", netCDF4.Dataset, d / "disk.nc", "w", clobber=False)


if __name__ == "__main__":
    directory = begin()
    section(formats, directory)
    section(more, directory)
    end()
