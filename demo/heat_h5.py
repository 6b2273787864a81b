"""The simulation of heat.h in numpy; writes or verifies one shared HDF5 checkpoint through h5py built with MPI.

Usage: heat_h5.py write|verify FILE MIB, with MIB MiB of the field a process. The verifier reads its neighbour's band and
computes again what it must hold, without messages, from the start values of more rows.
"""

import sys

import h5py
import numpy as np
from mpi4py import MPI

WIDTH, STEPS = 8192, 4
world = MPI.COMM_WORLD
rank, size = world.rank, world.size


def start(first, rows, total):
    """Start values of the rows first..first+rows, zero outside of 0..total."""
    field = np.zeros((rows, WIDTH))
    low, high = max(first, 0), min(first + rows, total)
    x = np.arange(low * WIDTH + 1, high * WIDTH + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    x ^= x >> np.uint64(29)
    field[low - first:high - first] = ((x >> np.uint64(11)).astype("f8") * 2.0**-53).reshape(-1, WIDTH)
    return field


def step(field):
    """One step of all but the first and last row, adding in the order of heat.h."""
    here = field[1:-1]
    sides = np.zeros_like(here)
    sides[:, 1:-1] = here[:, :-2] + here[:, 2:]
    sides[:, 0] = here[:, 1]
    sides[:, -1] = here[:, -2]
    return here + 0.125 * ((field[:-2] + field[2:]) + sides - 4.0 * here)


def result(what, count, seconds):
    """The slowest process's seconds, for demo/run."""
    slowest = world.reduce(seconds, MPI.MAX)
    if rank == 0:
        print(f"result hdf5 {what} {count} {slowest:.6f}", flush=True)


def simulate(rows):
    """This process's band after STEPS steps, with neighbours' rows by messages."""
    field = start(rank * rows, rows, rows * size)
    halo = np.zeros((rows + 2, WIDTH))
    for _ in range(STEPS):
        halo[1:-1] = field
        above, below = (rank - 1 if rank else MPI.PROC_NULL), (rank + 1 if rank + 1 < size else MPI.PROC_NULL)
        world.Sendrecv(field[0], above, 0, halo[-1], below, 0)
        world.Sendrecv(field[-1], below, 1, halo[0], above, 1)
        # In bands of 64 rows, which keeps numpy's temporaries small.
        for top in range(0, rows, 64):
            field[top:top + 64] = step(halo[top:min(top + 64, rows) + 2])
    return field


def write(path, rows):
    """Simulates, then writes."""
    field = simulate(rows)
    world.Barrier()
    begin = MPI.Wtime()
    with h5py.File(path, "w", driver="mpio", comm=world) as f:
        data = f.create_dataset("temperature", (rows * size, WIDTH), "f8")
        data[rank * rows:(rank + 1) * rows] = field
        written = MPI.Wtime()
        data.attrs["steps"] = STEPS
        f.flush()
    end = MPI.Wtime()
    count = rows * WIDTH * 8 * size
    result("write", count, written - begin)
    result("sync", count, end - begin)


def verify(path, rows):
    """Reads the neighbour's band and compares every byte; the exit code."""
    first = (rank + 1) % size * rows
    back = np.full((rows, WIDTH), np.nan)
    world.Barrier()
    begin = MPI.Wtime()
    with h5py.File(path, "r", driver="mpio", comm=world) as f:
        f["temperature"].read_direct(back, np.s_[first:first + rows])
        end = MPI.Wtime()
        steps = int(f["temperature"].attrs["steps"])
    result("read", rows * WIDTH * 8 * size, end - begin)
    total, wrong = rows * size, 0 if steps == STEPS else 1
    for top in range(0, rows, 64):
        count = min(64, rows - top)
        low = first + top - STEPS
        field = start(low, count + 2 * STEPS, total)
        for s in range(STEPS):
            field = step(field)
            # Outside of the plane it stays zero.
            low_now = low + s + 1
            field[:max(0, -low_now)] = 0
            field[max(0, total - low_now):] = 0
        wrong += int((field.view(np.uint8) != back[top:top + count].view(np.uint8)).sum())
    wrong = world.allreduce(wrong)
    if rank == 0:
        print(f"verified hdf5 {rows * WIDTH * 8 * size} {wrong}", flush=True)
    return wrong != 0


if __name__ == "__main__":
    action, file, mib = sys.argv[1], sys.argv[2], int(sys.argv[3])
    band = mib * 1048576 // (WIDTH * 8)
    sys.exit({"write": write, "verify": verify}[action](file, band))
