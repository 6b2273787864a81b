"""Programs that map the files they write: sqlite's write-ahead log, LMDB, LevelDB, numpy."""

import multiprocessing
import os
import sqlite3

import lmdb
import numpy
import plyvel

from check import begin, check, end

PROCESSES = 3
ROUNDS = 40


def insert(number):
    connection = sqlite3.connect("wal.db", timeout=120)
    for turn in range(ROUNDS):
        with connection:
            connection.execute("insert into t values (?, ?)", (number, turn))
    connection.close()


def put(number):
    environment = lmdb.open("lmdb", map_size=1 << 26)
    for turn in range(ROUNDS):
        with environment.begin(write=True) as transaction:
            transaction.put(b"%d-%d" % (number, turn), b"x" * 100)
    environment.close()


def together(work):
    """Runs it in several processes at once; their exit codes."""
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=work, args=(number,)) for number in range(PROCESSES)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    return [process.exitcode for process in processes]


os.chdir(begin())
connection = sqlite3.connect("wal.db")
check(connection.execute("pragma journal_mode=wal").fetchone() == ("wal",), "sqlite keeps a write-ahead log")
connection.execute("create table t (a, b)")
connection.commit()
check(together(insert) == [0] * PROCESSES, "several processes insert")
check(connection.execute("select count(*) from t").fetchone() == (PROCESSES * ROUNDS,), "all is there")
check(connection.execute("pragma integrity_check").fetchone() == ("ok",), "the database is whole")
check(connection.execute("pragma wal_checkpoint(truncate)").fetchone()[0] == 0, "the log is written back")
connection.close()

check(together(put) == [0] * PROCESSES, "several processes put into LMDB")
environment = lmdb.open("lmdb", map_size=1 << 26)
check(environment.stat()["entries"] == PROCESSES * ROUNDS, "all is there")
environment.close()
environment = lmdb.open("writemap", map_size=1 << 24, writemap=True)
with environment.begin(write=True) as transaction:
    for number in range(1000):
        transaction.put(b"%05d" % number, b"v" * 100)
environment.sync(True)
environment.close()
environment = lmdb.open("writemap", map_size=1 << 24)
check(environment.stat()["entries"] == 1000, "LMDB writes by its mapping")
environment.close()

database = plyvel.DB("leveldb", create_if_missing=True)
for number in range(20000):
    database.put(b"%06d" % number, b"v" * 200)
database.compact_range()
check(sum(1 for _ in database) == 20000, "LevelDB compacts")
database.close()
database = plyvel.DB("leveldb")
check(database.get(b"000777") == b"v" * 200, "and finds what it put")
database.close()

matrix = numpy.memmap("matrix", dtype="f8", mode="w+", shape=(500, 500))
matrix[:] = numpy.arange(500)[:, None]
matrix.flush()
check((numpy.fromfile("matrix").reshape(500, 500) == matrix).all(), "numpy.memmap is read as a file")
matrix[3] = 7
with open("matrix", "rb") as file:
    file.seek(3 * 500 * 8)
    check(file.read(8) == numpy.float64(7).tobytes(), "without a flush too")
end()
