"""ADIOS2 (BP4, BP5): steps, blocks, attributes, appended steps; read back by steps and at random.

    adios2_io.py write DIR       writes DIR/ENGINE.bp for each engine
    adios2_io.py read DIR        checks what is there

Prints the names of what is right. WEIR_TEST_ADIOS2: the directory of the package.
"""
import os
import sys
from pathlib import Path

sys.path.insert(0, os.environ["WEIR_TEST_ADIOS2"])
import adios2  # noqa: E402
import numpy as np  # noqa: E402

ENGINES = ("BP4", "BP5")
STEPS, ROWS, COLUMNS = 5, 64, 1024


def field(step):
    return (np.arange(ROWS * COLUMNS, dtype=np.float64) + step * 1e6).reshape(ROWS, COLUMNS)


def stream(path, engine, mode):
    io = adios2.Adios().declare_io(f"{engine}-{mode}")
    io.set_engine(engine)
    if mode != "r":
        # Many small buffers: more than one write a step.
        io.set_parameters({"BufferChunkSize": "65536", "StatsLevel": "1"})
    return io, adios2.Stream(io, str(path), mode)


def write_steps(path, engine, mode, steps):
    io, out = stream(path, engine, mode)
    whole = io.define_variable("field", field(0), [ROWS, COLUMNS], [0, 0], [ROWS, COLUMNS])
    number = io.define_variable("step", np.zeros(1, dtype=np.int64))
    with out:
        if mode == "w":
            io.define_attribute("made_by", "weir's tests")
        for step in steps:
            out.begin_step()
            # In two blocks, so that a reader puts a step together.
            for first in (0, ROWS // 2):
                whole.set_selection(([first, 0], [ROWS // 2, COLUMNS]))
                out.write(whole, np.ascontiguousarray(field(step)[first:first + ROWS // 2]))
            out.write(number, np.array([step], dtype=np.int64))
            out.end_step()


def write(directory):
    for engine in ENGINES:
        path = directory / f"{engine}.bp"
        write_steps(path, engine, "w", range(STEPS - 2))
        write_steps(path, engine, "a", range(STEPS - 2, STEPS))


def read(directory):
    for engine in ENGINES:
        path = directory / f"{engine}.bp"
        seen = 0
        with adios2.Stream(str(path), "r") as steps:
            for _ in steps.steps():
                assert steps.read("step").item() == seen
                assert np.array_equal(steps.read("field"), field(seen))
                seen += 1
        assert seen == STEPS, f"{engine}: {seen} steps"
        with adios2.FileReader(str(path)) as file:
            assert file.read_attribute("made_by") == "weir's tests"
            part = file.read("field", start=[10, 100], count=[20, 300], step_selection=[STEPS - 1, 1])
            assert np.array_equal(part.reshape(20, 300), field(STEPS - 1)[10:30, 100:400])
        print(engine)


{"write": write, "read": read}[sys.argv[1]](Path(sys.argv[2]))
