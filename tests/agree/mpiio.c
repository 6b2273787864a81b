/*
 * MPI-IO of processes on several nodes: what one writes, the others read, where the MPI standard or POSIX promise it.
 *
 *   mpiexec -n 4 at_rank.sh mpiio DIR PATTERN ROUNDS
 *
 * | patterns | promised by |
 * | --- | --- |
 * | sieve, sieve_open, atomic_*, shared, ordered, append, sync, reopen, delete, sparse, sizes | the standard: right with raw and ras |
 * | barrier, barrier_all, barrier_view, barrier_nonblocking, barrier_sizes, header, overlap | POSIX's order of calls: right with raw only |
 *
 * Each int in a file says which round and which process wrote it.
 */
#include "mpi_agree.h"

enum { COUNT = 3000, INT = sizeof(int), RECORD = 100 };

static int data[64 * COUNT], back[64 * COUNT];

static MPI_File open_with(const char *name, int mode, MPI_Info info)
{
	MPI_File file = MPI_FILE_NULL;
	MPI(MPI_File_open(MPI_COMM_WORLD, in_dir("%s", name), mode, info, &file));
	return file;
}

static MPI_File open_file(const char *name, int mode)
{
	return open_with(name, mode, MPI_INFO_NULL);
}

/* The file of a pattern that keeps it open over all rounds. */
static MPI_File kept_open(void)
{
	static MPI_File file = MPI_FILE_NULL;
	if (round_now == 0)
		file = open_file("kept", MPI_MODE_CREATE | MPI_MODE_RDWR);
	return file;
}

static void let_go(MPI_File file)
{
	if (round_now == rounds - 1)
		MPI(MPI_File_close(&file));
}

static void sync_barrier_sync(MPI_File file)
{
	MPI(MPI_File_sync(file));
	barrier();
	MPI(MPI_File_sync(file));
}

static void make_data(int who, int count)
{
	for (int i = 0; i < count; i++)
		data[i] = value_of(who, i);
}

/* What was read must be `who`'s ints from its number `first` on. */
static void check_back(const char *what, int who, long first, int count)
{
	for (int i = 0; i < count; i++)
		if (!same_int(what, i, back[i], value_of(who, first + i)))
			return;
}

static void read_at(MPI_File file, MPI_Offset at, int count, const char *what)
{
	MPI_Status status;
	int got = 0;
	memset(back, 0, (size_t)count * INT);
	MPI(MPI_File_read_at(file, at, back, count, MPI_INT, &status));
	MPI_Get_count(&status, MPI_INT, &got);
	if (got != count)
		wrong("%s: %d ints are read at byte %lld, not %d", what, got, (long long)at, count);
}

/* A view of pieces of `block` ints, of all processes in turn. */
static MPI_Datatype interleaved(MPI_File file, int who, int block, int blocks)
{
	MPI_Datatype type;
	MPI_Type_vector(blocks, block, block * size, MPI_INT, &type);
	MPI_Type_commit(&type);
	MPI(MPI_File_set_view(file, (MPI_Offset)who * block * INT, MPI_INT, type, "native", MPI_INFO_NULL));
	return type;
}

static void check_interleaved(const int *ints, int block, int blocks, const char *what)
{
	for (long i = 0; i < (long)block * blocks * size; i++) {
		long piece = i / block;
		if (!same_int(what, i, ints[i], value_of((int)(piece % size), piece / size * block + i % block)))
			return;
	}
}

static MPI_File open_for_sieving(void)
{
	MPI_Info info;
	MPI_Info_create(&info);
	MPI_Info_set(info, "romio_ds_write", "enable");
	MPI_Info_set(info, "romio_ds_read", "enable");
	MPI_Info_set(info, "ind_wr_buffer_size", round_now % 2 ? "4096" : "524288");
	MPI_File file = open_with("sieve", MPI_MODE_CREATE | MPI_MODE_RDWR, info);
	MPI_Info_free(&info);
	return file;
}

/*
 * Independent writes through interleaved views, at the same time. ROMIO reads a block of the file under a lock, changes
 * its own pieces and writes the block back: bytes of others that it read too early would undo their writes.
 */
static void sieve_and(int stays_open)
{
	int block = 1 + (int)below(7), blocks = 200 + (int)below(200), count = block * blocks, all = count * size;
	MPI_File file = open_for_sieving();
	MPI_Datatype type = interleaved(file, rank, block, blocks);
	make_data(rank, count);
	barrier();
	MPI(MPI_File_write(file, data, count, MPI_INT, MPI_STATUS_IGNORE));
	if (stays_open) {
		sync_barrier_sync(file);
	} else {
		MPI(MPI_File_sync(file));
		MPI(MPI_File_close(&file));
		barrier();
		file = open_file("sieve", MPI_MODE_RDWR);
	}
	MPI(MPI_File_set_view(file, 0, MPI_INT, MPI_INT, "native", MPI_INFO_NULL));
	read_at(file, 0, all, "the whole file");
	check_interleaved(back, block, blocks, "the whole file");
	MPI(MPI_File_close(&file));
	MPI_Type_free(&type);
	barrier();
}

static void sieve(void)
{
	sieve_and(0);
}

static void sieve_open(void)
{
	sieve_and(1);
}

static MPI_File open_atomic(void)
{
	static MPI_File file;
	if (round_now == 0) {
		file = open_file("atomic", MPI_MODE_CREATE | MPI_MODE_RDWR);
		MPI(MPI_File_set_atomicity(file, 1));
	}
	return file;
}

/* What was read must be of one process as a whole. */
static void check_of_one(int count)
{
	int who = back[0] >> 16 & 15;
	if (who >= size)
		wrong("int 0: 0x%08x is of nobody", (unsigned)back[0]);
	for (int i = 0; i < count; i++)
		if (!same_int("of one writer as a whole", i, back[i], value_of(who, i)))
			return;
}

/* All write the same bytes in atomic mode: afterwards they are of one. */
static void atomic_overlap(void)
{
	MPI_File file = open_atomic();
	make_data(rank, COUNT);
	barrier();
	MPI(MPI_File_write_at(file, 0, data, COUNT, MPI_INT, MPI_STATUS_IGNORE));
	barrier();
	read_at(file, 0, COUNT, "after a barrier");
	check_of_one(COUNT);
	let_go(file);
}

/* The same through a view with gaps. */
static void atomic_strided(void)
{
	int blocks = 50 + (int)below(200), block = 1 + (int)below(10), count = block * blocks;
	MPI_File file = open_atomic();
	MPI_Datatype type;
	MPI_Type_vector(blocks, block, 2 * block, MPI_INT, &type);
	MPI_Type_commit(&type);
	MPI(MPI_File_set_view(file, 0, MPI_INT, type, "native", MPI_INFO_NULL));
	make_data(rank, count);
	barrier();
	MPI(MPI_File_write_at(file, 0, data, count, MPI_INT, MPI_STATUS_IGNORE));
	barrier();
	read_at(file, 0, count, "after a barrier");
	check_of_one(count);
	MPI_Type_free(&type);
	let_go(file);
}

/* In atomic mode a barrier alone orders a write before a read. */
static void atomic_order(void)
{
	int other = (rank + 1) % size, count = 1 + (int)below(COUNT);
	MPI_File file = open_atomic();
	make_data(rank, count);
	MPI(MPI_File_write_at(file, (MPI_Offset)rank * COUNT * INT, data, count, MPI_INT, MPI_STATUS_IGNORE));
	barrier();
	read_at(file, (MPI_Offset)other * COUNT * INT, count, "the neighbour's");
	check_back("the neighbour's", other, 0, count);
	barrier();
	let_go(file);
}

/* Marks in `seen` each record among `count` in `back`; a record is RECORD ints of one process. */
static void count_records(int count, int *seen, int each, const char *what)
{
	for (int r = 0; r < count; r++) {
		int *record = back + r * RECORD, who = record[0] >> 16 & 15, number = (record[0] & 0xffff) / RECORD;
		if (who >= size || number >= each || record[0] != value_of(who, (long)number * RECORD)) {
			wrong("%s: record %d: 0x%08x begins no record of this round%s", what, r, (unsigned)record[0],
			      record[0] == 0 ? " (a hole)" : "");
			return;
		}
		for (int i = 1; i < RECORD; i++)
			if (!same_int(what, (long)r * RECORD + i, record[i], value_of(who, (long)number * RECORD + i)))
				return;
		seen[who * each + number]++;
	}
}

static void check_seen(const int *seen, int each, const char *what)
{
	for (int i = 0; i < each * size; i++)
		if (seen[i] != 1) {
			wrong("%s: record %d of rank %d is there %d times", what, i % each, i / each, seen[i]);
			return;
		}
}

/* Records through the shared file pointer: each is there once, whole; and each is read once. */
static void shared_pointer(void)
{
	enum { EACH = 6 };
	int seen[16 * EACH] = {0};
	MPI_File file = open_file("shared", MPI_MODE_CREATE | MPI_MODE_RDWR);
	make_data(rank, EACH * RECORD);
	barrier();
	for (int i = 0; i < EACH; i++) {
		MPI(MPI_File_write_shared(file, data + i * RECORD, RECORD, MPI_INT, MPI_STATUS_IGNORE));
		delay();
	}
	sync_barrier_sync(file);
	read_at(file, 0, EACH * size * RECORD, "all records");
	count_records(EACH * size, seen, EACH, "all records");
	check_seen(seen, EACH, "all records");
	MPI(MPI_File_seek_shared(file, 0, MPI_SEEK_SET));
	barrier();
	memset(seen, 0, sizeof seen);
	memset(back, 0, sizeof back);
	for (int i = 0; i < EACH; i++)
		MPI(MPI_File_read_shared(file, back + i * RECORD, RECORD, MPI_INT, MPI_STATUS_IGNORE));
	count_records(EACH, seen, EACH, "read_shared");
	MPI_Allreduce(MPI_IN_PLACE, seen, EACH * size, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
	check_seen(seen, EACH, "read_shared by all");
	MPI(MPI_File_close(&file));
	barrier();
}

/* Ordered writes, of a different length each; ordered reads. */
static void ordered(void)
{
	int part = 1 + (int)below(300), mine = part * (1 + rank % 3), before = 0;
	MPI_File file = open_file("ordered", MPI_MODE_CREATE | MPI_MODE_RDWR);
	make_data(rank, 2 * mine);
	for (int i = 0; i < 2; i++)
		MPI(MPI_File_write_ordered(file, data + i * mine, mine, MPI_INT, MPI_STATUS_IGNORE));
	sync_barrier_sync(file);
	for (int i = 0; i < 2; i++)
		for (int r = 0; r < size; r++) {
			int count = part * (1 + r % 3);
			read_at(file, (MPI_Offset)before * INT, count, "an ordered part");
			check_back("an ordered part", r, (long)i * count, count);
			before += count;
		}
	MPI(MPI_File_seek_shared(file, 0, MPI_SEEK_SET));
	for (int i = 0; i < 2; i++) {
		memset(back, 0, (size_t)mine * INT);
		MPI(MPI_File_read_ordered(file, back, mine, MPI_INT, MPI_STATUS_IGNORE));
		check_back("read_ordered", rank, (long)i * mine, mine);
	}
	MPI(MPI_File_close(&file));
	barrier();
}

/* MPI_MODE_APPEND: all begin at the end that the last round left. */
static void append(void)
{
	static MPI_Offset end;
	MPI_Offset at = -1, got = -1;
	int count = 1 + (int)below(500);
	MPI_File file = open_file("append", MPI_MODE_CREATE | MPI_MODE_RDWR | MPI_MODE_APPEND);
	MPI(MPI_File_get_position(file, &at));
	MPI(MPI_File_get_size(file, &got));
	if (at != end || got != end)
		wrong("MPI_MODE_APPEND begins at %lld, the size is %lld: expected %lld", (long long)at, (long long)got, (long long)end);
	make_data(rank, count);
	MPI(MPI_File_seek(file, (MPI_Offset)rank * count * INT, MPI_SEEK_CUR));
	barrier();
	MPI(MPI_File_write(file, data, count, MPI_INT, MPI_STATUS_IGNORE));
	sync_barrier_sync(file);
	for (int r = 0; r < size; r++) {
		read_at(file, end + (MPI_Offset)r * count * INT, count, "what was appended");
		check_back("what was appended", r, 0, count);
	}
	MPI(MPI_File_close(&file));
	end += (MPI_Offset)size * count * INT;
	barrier();
}

/* write, sync, barrier, sync, read: over the bytes of the rounds before, independently or collectively. */
static void sync_pattern(void)
{
	int other = (rank + 1 + (int)below((uint64_t)size - 1)) % size, count = 1 + (int)below(COUNT), collective = (int)below(2);
	MPI_Offset base = (MPI_Offset)below(5000);
	MPI_File file = kept_open();
	make_data(rank, count);
	if (collective)
		MPI(MPI_File_write_at_all(file, base + (MPI_Offset)rank * count * INT, data, count, MPI_INT, MPI_STATUS_IGNORE));
	else
		MPI(MPI_File_write_at(file, base + (MPI_Offset)rank * count * INT, data, count, MPI_INT, MPI_STATUS_IGNORE));
	sync_barrier_sync(file);
	memset(back, 0, (size_t)count * INT);
	if (collective)
		MPI(MPI_File_read_at_all(file, base + (MPI_Offset)other * count * INT, back, count, MPI_INT, MPI_STATUS_IGNORE));
	else
		read_at(file, base + (MPI_Offset)other * count * INT, count, "another's");
	check_back("another's", other, 0, count);
	sync_barrier_sync(file);
	let_go(file);
}

/* write, close, open, read. */
static void reopen(void)
{
	int other = (rank + 1) % size, count = 1 + (int)below(COUNT);
	MPI_File file = open_file("reopen", MPI_MODE_CREATE | MPI_MODE_WRONLY);
	make_data(rank, count);
	if (round_now % 2)
		MPI(MPI_File_write_at_all(file, (MPI_Offset)rank * count * INT, data, count, MPI_INT, MPI_STATUS_IGNORE));
	else
		MPI(MPI_File_write_at(file, (MPI_Offset)rank * count * INT, data, count, MPI_INT, MPI_STATUS_IGNORE));
	MPI(MPI_File_close(&file));
	barrier();
	file = open_file("reopen", MPI_MODE_RDONLY);
	read_at(file, (MPI_Offset)other * count * INT, count, "the neighbour's");
	check_back("the neighbour's", other, 0, count);
	MPI(MPI_File_close(&file));
	barrier();
}

/* A file that goes with its close, and another of its name. */
static void delete_on_close(void)
{
	int count = 1 + (int)below(COUNT);
	MPI_Offset end = -1;
	make_data(rank, count);
	MPI_File file = open_file("delete", MPI_MODE_CREATE | MPI_MODE_EXCL | MPI_MODE_RDWR | MPI_MODE_DELETE_ON_CLOSE);
	MPI(MPI_File_get_size(file, &end));
	if (end != 0)
		wrong("a new file has %lld bytes", (long long)end);
	barrier();
	MPI(MPI_File_write_at(file, (MPI_Offset)rank * count * INT, data, count, MPI_INT, MPI_STATUS_IGNORE));
	sync_barrier_sync(file);
	read_at(file, (MPI_Offset)((rank + 1) % size) * count * INT, count, "the neighbour's");
	check_back("the neighbour's", (rank + 1) % size, 0, count);
	barrier();
	MPI(MPI_File_close(&file));
	barrier();
	if (access(in_dir("delete"), F_OK) == 0)
		wrong("the file is there after its close");
	barrier();
}

/* Views beyond 4 GiB, with holes between. */
static void sparse(void)
{
	int other = (rank + 1) % size, count = 1 + (int)below(200);
	MPI_Offset step = (MPI_Offset)5 << 30, base = (MPI_Offset)round_now * COUNT * INT, end = -1;
	MPI_File file = kept_open();
	MPI(MPI_File_set_view(file, base + rank * step, MPI_INT, MPI_INT, "native", MPI_INFO_NULL));
	make_data(rank, count);
	MPI(MPI_File_write_at(file, 0, data, count, MPI_INT, MPI_STATUS_IGNORE));
	sync_barrier_sync(file);
	MPI(MPI_File_set_view(file, base + other * step, MPI_INT, MPI_INT, "native", MPI_INFO_NULL));
	read_at(file, 0, count, "the neighbour's");
	check_back("the neighbour's", other, 0, count);
	if (other < size - 1) {
		read_at(file, COUNT / 2, 100, "a hole");
		for (int i = 0; i < 100; i++)
			if (back[i] != 0) {
				wrong("a hole: int %d is 0x%08x", i, (unsigned)back[i]);
				break;
			}
	}
	MPI(MPI_File_get_size(file, &end));
	if (end != base + (size - 1) * step + count * INT)
		wrong("the size is %lld: expected %lld", (long long)end, (long long)(base + (size - 1) * step + count * INT));
	barrier();
	let_go(file);
}

/*
 * get_size after set_size, preallocate and writes. A truncation is seen at once; what else changes the size is a write to the standard,
 * which `syncs` or, with POSIX's order of calls, a barrier orders. OMPIO's preallocate goes astray by itself: see tests/real/mpi.
 */
static void sizes_after(int syncs)
{
	const char *mpi = getenv("WEIR_TEST_MPI");
	MPI_Offset want = (MPI_Offset)below(1000000), end = -1;
	MPI_File file = kept_open();
	MPI(MPI_File_set_size(file, want));
	MPI(MPI_File_get_size(file, &end));
	if (end != want)
		wrong("after set_size: %lld bytes, expected %lld", (long long)end, (long long)want);
	barrier();
	if (!mpi || strcmp(mpi, "openmpi") != 0) {
		want += (MPI_Offset)below(1000000);
		MPI(MPI_File_preallocate(file, want));
		if (syncs)
			sync_barrier_sync(file);
		else
			barrier();
		MPI(MPI_File_get_size(file, &end));
		if (end != want)
			wrong("after preallocate: %lld bytes, expected %lld", (long long)end, (long long)want);
	}
	barrier();
	make_data(rank, 10);
	MPI(MPI_File_write_at(file, want + (MPI_Offset)rank * 10 * INT, data, 10, MPI_INT, MPI_STATUS_IGNORE));
	if (syncs)
		sync_barrier_sync(file);
	else
		barrier();
	MPI(MPI_File_get_size(file, &end));
	want += (MPI_Offset)size * 10 * INT;
	if (end != want)
		wrong("after writes: %lld bytes, expected %lld", (long long)end, (long long)want);
	read_at(file, want - 10 * INT, 10, "the last writer's");
	check_back("the last writer's", size - 1, 0, 10);
	barrier();
	let_go(file);
}

static void sizes(void)
{
	sizes_after(1);
}

static void barrier_sizes(void)
{
	sizes_after(0);
}

/* write, barrier, read of a neighbour's. */
static void barrier_independent(void)
{
	int other = (rank + 1) % size, count = 1 + (int)below(below(2) ? 20 : 16 * COUNT);
	MPI_Offset base = (MPI_Offset)below(5000);
	MPI_File file = kept_open();
	make_data(rank, count);
	MPI(MPI_File_write_at(file, base + (MPI_Offset)rank * count * INT, data, count, MPI_INT, MPI_STATUS_IGNORE));
	barrier();
	read_at(file, base + (MPI_Offset)other * count * INT, count, "the neighbour's");
	check_back("the neighbour's", other, 0, count);
	barrier();
	let_go(file);
}

static void barrier_all(void)
{
	int other = (rank + 1) % size, count = 1 + (int)below(COUNT);
	MPI_File file = kept_open();
	make_data(rank, count);
	MPI(MPI_File_write_at_all(file, (MPI_Offset)rank * count * INT, data, count, MPI_INT, MPI_STATUS_IGNORE));
	barrier();
	memset(back, 0, (size_t)count * INT);
	MPI(MPI_File_read_at_all(file, (MPI_Offset)other * count * INT, back, count, MPI_INT, MPI_STATUS_IGNORE));
	check_back("the neighbour's", other, 0, count);
	barrier();
	let_go(file);
}

/* Interleaved views, written independently or collectively, read as one piece. */
static void barrier_view(void)
{
	int block = 1 + (int)below(10), blocks = 50 + (int)below(200), count = block * blocks;
	MPI_File file = kept_open();
	MPI_Datatype type = interleaved(file, rank, block, blocks);
	make_data(rank, count);
	barrier();
	if (round_now % 2)
		MPI(MPI_File_write_at_all(file, 0, data, count, MPI_INT, MPI_STATUS_IGNORE));
	else
		MPI(MPI_File_write_at(file, 0, data, count, MPI_INT, MPI_STATUS_IGNORE));
	MPI(MPI_File_set_view(file, 0, MPI_INT, MPI_INT, "native", MPI_INFO_NULL));
	barrier();
	read_at(file, 0, count * size, "all views");
	check_interleaved(back, block, blocks, "all views");
	barrier();
	MPI_Type_free(&type);
	let_go(file);
}

static void barrier_nonblocking(void)
{
	enum { PARTS = 6 };
	int other = (rank + 1) % size, count = 1 + (int)below(COUNT);
	MPI_Request requests[PARTS];
	MPI_File file = kept_open();
	make_data(rank, PARTS * count);
	for (int p = 0; p < PARTS; p++)
		MPI(MPI_File_iwrite_at(file, (MPI_Offset)(p * size + rank) * count * INT, data + p * count, count, MPI_INT, &requests[p]));
	MPI(MPI_Waitall(PARTS, requests, MPI_STATUSES_IGNORE));
	barrier();
	memset(back, 0, (size_t)(PARTS * count) * INT);
	for (int p = 0; p < PARTS; p++)
		MPI(MPI_File_iread_at(file, (MPI_Offset)(p * size + other) * count * INT, back + p * count, count, MPI_INT, &requests[p]));
	MPI(MPI_Waitall(PARTS, requests, MPI_STATUSES_IGNORE));
	check_back("the neighbour's parts", other, 0, PARTS * count);
	barrier();
	let_go(file);
}

/* Process 0 writes a header or makes the file longer; all read it and its size after a barrier. */
static void header(void)
{
	static MPI_Offset end;
	MPI_Offset got = -1, more = (MPI_Offset)(1 + below(300)) * INT;
	int count = 1 + (int)below(1000), who = (int)below((uint64_t)size);
	MPI_File file = kept_open();
	MPI_Offset tail = (end > count * INT ? end : count * INT) + more;
	if (rank == who) {
		make_data(rank, count);
		MPI(MPI_File_write_at(file, 0, data, count, MPI_INT, MPI_STATUS_IGNORE));
		MPI(MPI_File_write_at(file, tail, data, 1, MPI_INT, MPI_STATUS_IGNORE));
	}
	end = tail + INT;
	barrier();
	MPI(MPI_File_get_size(file, &got));
	if (got != end)
		wrong("the size is %lld: expected %lld", (long long)got, (long long)end);
	read_at(file, 0, count, "the header");
	check_back("the header", who, 0, count);
	barrier();
	let_go(file);
}

/* Processes write over each other, one after the other by messages; with and without reads between. */
static void overlap(void)
{
	int count = 1 + (int)below(COUNT), shift = (int)below((uint64_t)count), reads = (int)below(2), first = (int)below((uint64_t)size), token = 0;
	MPI_File file = kept_open();
	int turn = (rank - first + size) % size, before = (rank - 1 + size) % size, after = (rank + 1) % size;
	make_data(rank, count);
	if (turn > 0)
		MPI_Recv(&token, 1, MPI_INT, before, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
	if (turn > 0 && reads) {
		read_at(file, (MPI_Offset)((turn - 1) % 2 * shift) * INT, count, "the writer before");
		check_back("the writer before", before, 0, count);
	}
	MPI(MPI_File_write_at(file, (MPI_Offset)(turn % 2 * shift) * INT, data, count, MPI_INT, MPI_STATUS_IGNORE));
	delay();
	if (turn < size - 1)
		MPI_Send(&token, 1, MPI_INT, after, 0, MPI_COMM_WORLD);
	barrier();
	/* Of the last writer all, and of the one before it what the last one left. */
	int last = (first + size - 1) % size, odd = (size - 1) % 2;
	read_at(file, (MPI_Offset)(odd * shift) * INT, count, "the last writer's");
	check_back("the last writer's", last, 0, count);
	if (odd && shift > 0) {
		read_at(file, 0, shift, "the last writer's but one");
		check_back("the last writer's but one", (last + size - 1) % size, 0, shift);
	}
	barrier();
	let_go(file);
}

static const struct pattern patterns[] = {
	{"sieve", sieve}, {"sieve_open", sieve_open}, {"atomic_overlap", atomic_overlap}, {"atomic_strided", atomic_strided},
	{"atomic_order", atomic_order}, {"shared", shared_pointer}, {"ordered", ordered}, {"append", append}, {"sync", sync_pattern},
	{"reopen", reopen}, {"delete", delete_on_close}, {"sparse", sparse}, {"sizes", sizes}, {"barrier", barrier_independent},
	{"barrier_all", barrier_all}, {"barrier_view", barrier_view}, {"barrier_nonblocking", barrier_nonblocking},
	{"barrier_sizes", barrier_sizes}, {"header", header}, {"overlap", overlap},
};

AGREE_MAIN(patterns)
