"""h5py built with MPI, with mpi4py: one shared file of all processes, independent and collective; mpi4py's MPI.File too."""

import sys
from pathlib import Path

import h5py
import numpy as np
from mpi4py import MPI

world = MPI.COMM_WORLD
rank, size = world.rank, world.size
base = Path(sys.argv[1]) / "h5py_mpi"
passed = failed = 0


def check(ok, text):
    """Holds if it holds on every process; process 0 prints."""
    global passed, failed
    good = world.allreduce(bool(ok), MPI.LAND)
    passed += good
    failed += not good
    if rank == 0:
        print("ok  " if good else "FAIL", text, flush=True)


if rank == 0:
    base.mkdir(parents=True, exist_ok=True)
world.Barrier()
check(h5py.get_config().mpi, "h5py is the MPI build")
with h5py.File(base / "shared.h5", "w", driver="mpio", comm=world) as f:
    rows = f.create_dataset("rows", (size * 100, 1000), "f8")
    cells = f.create_dataset("chunked", (size * 100, 1000), "f8", chunks=(50, 250))
    mine = np.arange(100_000, dtype="f8").reshape(100, 1000) + rank * 1e6
    rows[rank * 100:(rank + 1) * 100] = mine
    with cells.collective:
        cells[rank * 100:(rank + 1) * 100] = mine
    f.attrs["processes"] = size
    f.flush()
    world.Barrier()
    other = (rank + 1) % size
    check((rows[other * 100:(other + 1) * 100] == mine - rank * 1e6 + other * 1e6).all(), "another process's rows before close")
with h5py.File(base / "shared.h5", "r", driver="mpio", comm=world) as f:
    with f["chunked"].collective:
        whole = f["chunked"][...]
    good = all((whole[r * 100:(r + 1) * 100] == mine - rank * 1e6 + r * 1e6).all() for r in range(size))
    check(good and f.attrs["processes"] == size, "the whole, read collectively")
with h5py.File(base / f"own-{rank}.h5", "w") as f:
    f["x"] = mine
with h5py.File(base / f"own-{(rank + 1) % size}.h5", "r") if not world.Barrier() else None as f:
    check(f["x"][0, 0] == ((rank + 1) % size) * 1e6, "a file of each process, read by its neighbour")
view = MPI.File.Open(world, str(base / "raw"), MPI.MODE_CREATE | MPI.MODE_RDWR)
kind = MPI.DOUBLE.Create_vector(100, 10, 10 * size).Commit()
view.Set_view(rank * 80, MPI.DOUBLE, kind)
view.Write_all(mine[0])
view.Sync()
world.Barrier()
back = np.empty(1000)
view.Read_at_all(0, back)
view.Close()
check((back == mine[0]).all(), "MPI.File with a strided view")
raw = np.fromfile(base / "raw").reshape(100, size, 10)
check(all((raw[:, r].ravel() == np.arange(1000) + r * 1e6).all() for r in range(size)), "and numpy reads what it wrote")
if rank == 0:
    print(f"{passed} passed, {failed} failed", flush=True)
sys.exit(1 if failed else 0)
