/*
 * MPI-IO from C: independent and collective, explicit offsets and file pointers, strided views, subarrays, set_size,
 * preallocate, sync, atomic mode, non-blocking, append and modes, delete, errors. Each result is checked by MPI-IO and by plain POSIX reads.
 */
#include "mpi_check.h"

enum { COUNT = 25000 };

static MPI_File open_file(const char *name, int mode)
{
	MPI_File file = MPI_FILE_NULL;
	MPI(MPI_File_open(MPI_COMM_WORLD, in_dir("%s", name), mode, MPI_INFO_NULL, &file));
	return file;
}

static int value_of(int who, int i)
{
	return who * 1000003 + i * 17;
}

/* Compares with what a POSIX read of the file gives: `value` of the int at each place. */
static int posix_is(const char *name, long count, int (*value)(long))
{
	size_t length;
	int good = 1;
	int *data = (int *)get_file(in_dir("%s", name), &length);
	if (!data || length != (size_t)count * sizeof(int)) {
		printf("  process %d: %s has %zu bytes, wanted %ld\n", rank, name, data ? length : 0, count * (long)sizeof(int));
		free(data);
		return 0;
	}
	for (long i = 0; good && i < count; i++)
		if (data[i] != value(i)) {
			printf("  process %d: %s: int %ld is %d, wanted %d\n", rank, name, i, data[i], value(i));
			good = 0;
		}
	free(data);
	return good;
}

static int segmented_value(long i)
{
	return value_of((int)(i / COUNT), (int)(i % COUNT));
}

static int strided_value(long i)
{
	enum { BLOCK = 50 };
	long block = i / BLOCK;
	return value_of((int)(block % size), (int)(block / size * BLOCK + i % BLOCK));
}

static void segmented(const char *name, int collective)
{
	static int mine[COUNT], back[COUNT];
	MPI_Status status;
	int got = 0, wrong = 0;
	MPI_File file = open_file(name, MPI_MODE_CREATE | MPI_MODE_RDWR);
	MPI_Offset at = (MPI_Offset)rank * COUNT * (MPI_Offset)sizeof(int), end;
	for (int i = 0; i < COUNT; i++)
		mine[i] = value_of(rank, i);
	if (collective)
		MPI(MPI_File_write_at_all(file, at, mine, COUNT, MPI_INT, &status));
	else
		MPI(MPI_File_write_at(file, at, mine, COUNT, MPI_INT, &status));
	MPI_Get_count(&status, MPI_INT, &got);
	ALL(got == COUNT, "%s: wrote %d ints each", name, COUNT);
	MPI(MPI_File_sync(file));
	MPI_Barrier(MPI_COMM_WORLD);
	MPI(MPI_File_sync(file));
	int other = (rank + 1) % size;
	at = (MPI_Offset)other * COUNT * (MPI_Offset)sizeof(int);
	if (collective)
		MPI(MPI_File_read_at_all(file, at, back, COUNT, MPI_INT, &status));
	else
		MPI(MPI_File_read_at(file, at, back, COUNT, MPI_INT, &status));
	for (int i = 0; i < COUNT; i++)
		wrong += back[i] != value_of(other, i);
	ALL(wrong == 0, "%s: another process's segment read back", name);
	MPI(MPI_File_get_size(file, &end));
	ALL(end == (MPI_Offset)size * COUNT * (MPI_Offset)sizeof(int), "%s: size", name);
	MPI(MPI_File_close(&file));
	ALL(posix_is(name, (long)size * COUNT, segmented_value), "%s: read() gives the same", name);
}

static void strided(const char *name, int collective)
{
	enum { BLOCK = 50, BLOCKS = COUNT / BLOCK };
	static int mine[COUNT], back[COUNT];
	MPI_Datatype type;
	MPI_File file = open_file(name, MPI_MODE_CREATE | MPI_MODE_RDWR);
	int wrong = 0;
	MPI_Type_vector(BLOCKS, BLOCK, BLOCK * size, MPI_INT, &type);
	MPI_Type_commit(&type);
	for (int i = 0; i < COUNT; i++)
		mine[i] = value_of(rank, i);
	MPI(MPI_File_set_view(file, (MPI_Offset)rank * BLOCK * (MPI_Offset)sizeof(int), MPI_INT, type, "native", MPI_INFO_NULL));
	if (collective)
		MPI(MPI_File_write_all(file, mine, COUNT, MPI_INT, MPI_STATUS_IGNORE));
	else
		MPI(MPI_File_write(file, mine, COUNT, MPI_INT, MPI_STATUS_IGNORE));
	MPI(MPI_File_sync(file));
	MPI_Barrier(MPI_COMM_WORLD);
	MPI(MPI_File_seek(file, 0, MPI_SEEK_SET));
	if (collective)
		MPI(MPI_File_read_all(file, back, COUNT, MPI_INT, MPI_STATUS_IGNORE));
	else
		MPI(MPI_File_read(file, back, COUNT, MPI_INT, MPI_STATUS_IGNORE));
	ALL(memcmp(mine, back, sizeof mine) == 0, "%s: own view read back", name);
	/* The view of the neighbour. */
	int other = (rank + 1) % size;
	MPI(MPI_File_set_view(file, (MPI_Offset)other * BLOCK * (MPI_Offset)sizeof(int), MPI_INT, type, "native", MPI_INFO_NULL));
	MPI(MPI_File_read_at_all(file, 0, back, COUNT, MPI_INT, MPI_STATUS_IGNORE));
	for (int i = 0; i < COUNT; i++)
		wrong += back[i] != value_of(other, i);
	ALL(wrong == 0, "%s: the neighbour's view read back", name);
	MPI(MPI_File_close(&file));
	MPI_Type_free(&type);
	ALL(posix_is(name, (long)size * COUNT, strided_value), "%s: read() gives the interleaved blocks", name);
}

static void subarray(void)
{
	/* A matrix of 240 x 200 doubles, cut into a row of column blocks, as a domain decomposition writes it. */
	enum { ROWS = 240 };
	int columns = 50, all[2] = {ROWS, columns * size}, part[2] = {ROWS, columns}, start[2] = {0, columns * rank}, wrong = 0;
	double *mine = malloc(sizeof(double) * (size_t)(ROWS * columns)), *whole;
	MPI_Datatype type;
	MUST(mine);
	for (int r = 0; r < ROWS; r++)
		for (int c = 0; c < columns; c++)
			mine[r * columns + c] = r * 10000 + columns * rank + c;
	MPI_Type_create_subarray(2, all, part, start, MPI_ORDER_C, MPI_DOUBLE, &type);
	MPI_Type_commit(&type);
	MPI_File file = open_file("matrix", MPI_MODE_CREATE | MPI_MODE_WRONLY);
	MPI(MPI_File_set_view(file, 128, MPI_DOUBLE, type, "native", MPI_INFO_NULL));
	MPI(MPI_File_write_all(file, mine, ROWS * columns, MPI_DOUBLE, MPI_STATUS_IGNORE));
	MPI(MPI_File_close(&file));
	size_t length;
	char *data = get_file(in_dir("matrix"), &length);
	ALL(data && length == 128 + sizeof(double) * (size_t)(ROWS * columns * size), "matrix: size with its header's hole");
	whole = (double *)(data + 128);
	for (int r = 0; data && r < ROWS; r++)
		for (int c = 0; c < columns * size; c++)
			wrong += whole[r * columns * size + c] != r * 10000 + c;
	ALL(data && wrong == 0 && all_bytes(data, 128, 0), "matrix: subarrays written collectively make the whole");
	free(data);
	free(mine);
	MPI_Type_free(&type);
}

static void sizes(void)
{
	MPI_Offset end, at;
	MPI_Status status;
	int got, word = rank + 1;
	char buf[100];
	MPI_File file = open_file("sizes", MPI_MODE_CREATE | MPI_MODE_RDWR);
	MPI(MPI_File_set_size(file, 1000000));
	MPI(MPI_File_get_size(file, &end));
	ALL(end == 1000000, "set_size lengthens");
	MPI(MPI_File_read_at(file, 999990, buf, 100, MPI_BYTE, &status));
	MPI_Get_count(&status, MPI_BYTE, &got);
	ALL(got == 10 && all_bytes(buf, 10, 0), "a short read of zeros at the end");
	MPI_Barrier(MPI_COMM_WORLD);
	MPI(MPI_File_set_size(file, 100));
	MPI(MPI_File_get_size(file, &end));
	ALL(end == 100, "set_size shortens");
	MPI(MPI_File_seek(file, -4, MPI_SEEK_END));
	MPI(MPI_File_get_position(file, &at));
	ALL(at == 96, "seek from the end");
	MPI_Barrier(MPI_COMM_WORLD);
	MPI(MPI_File_write_at(file, 4 * rank, &word, 1, MPI_INT, MPI_STATUS_IGNORE));
	MPI(MPI_File_sync(file));
	MPI_Barrier(MPI_COMM_WORLD);
	int all[64];
	MPI(MPI_File_read_at(file, 0, all, size, MPI_INT, MPI_STATUS_IGNORE));
	int wrong = 0;
	for (int i = 0; i < size; i++)
		wrong += all[i] != i + 1;
	ALL(wrong == 0, "writes, sync, barrier: every process sees all");
	MPI(MPI_File_close(&file));
}

static void preallocate(void)
{
	/* Alone: Open MPI's OMPIO asks every process for the size while process 0 already lengthens, and goes astray when it differs. */
	MPI_File file;
	MPI_Offset end;
	MPI(MPI_File_open(MPI_COMM_SELF, in_dir("preallocated-%d", rank), MPI_MODE_CREATE | MPI_MODE_RDWR, MPI_INFO_NULL, &file));
	MPI(MPI_File_write_at(file, 1000, "keep", 4, MPI_CHAR, MPI_STATUS_IGNORE));
	MPI(MPI_File_preallocate(file, 2000000));
	MPI(MPI_File_get_size(file, &end));
	ALL(end == 2000000, "preallocate lengthens");
	MPI(MPI_File_preallocate(file, 1000));
	MPI(MPI_File_get_size(file, &end));
	ALL(end == 2000000, "and never shortens");
	char back[6] = "";
	MPI(MPI_File_read_at(file, 999, back, 6, MPI_CHAR, MPI_STATUS_IGNORE));
	ALL(!memcmp(back, "\0keep\0", 6), "and leaves data alone");
	MPI(MPI_File_close(&file));
}

static void modes(void)
{
	MPI_File file = MPI_FILE_NULL;
	int mode, word = 7;
	MPI_Offset at;
	int code = MPI_File_open(MPI_COMM_WORLD, in_dir("absent"), MPI_MODE_RDONLY, MPI_INFO_NULL, &file), class;
	MPI_Error_class(code, &class);
	ALL(class == MPI_ERR_NO_SUCH_FILE, "open of an absent file: MPI_ERR_NO_SUCH_FILE (%d)", class);
	code = MPI_File_open(MPI_COMM_WORLD, in_dir("sizes"), MPI_MODE_RDWR | MPI_MODE_CREATE | MPI_MODE_EXCL, MPI_INFO_NULL, &file);
	ALL(code != MPI_SUCCESS, "MPI_MODE_EXCL of an existing file fails");
	file = open_file("modes", MPI_MODE_CREATE | MPI_MODE_WRONLY | MPI_MODE_APPEND);
	MPI(MPI_File_get_amode(file, &mode));
	if (rank == 0)
		MPI_File_write(file, &word, 1, MPI_INT, MPI_STATUS_IGNORE);
	MPI(MPI_File_close(&file));
	file = open_file("modes", MPI_MODE_WRONLY | MPI_MODE_APPEND);
	MPI(MPI_File_get_position(file, &at));
	ALL(at == 4, "MPI_MODE_APPEND starts at the end");
	MPI(MPI_File_close(&file));
	file = open_file("temporary", MPI_MODE_CREATE | MPI_MODE_RDWR | MPI_MODE_DELETE_ON_CLOSE);
	MPI(MPI_File_write_at(file, 4 * rank, &word, 1, MPI_INT, MPI_STATUS_IGNORE));
	MPI(MPI_File_close(&file));
	ALL(access(in_dir("temporary"), F_OK) == -1, "MPI_MODE_DELETE_ON_CLOSE deletes");
	if (rank == 0)
		code = MPI_File_delete(in_dir("modes"), MPI_INFO_NULL);
	else
		code = MPI_SUCCESS;
	ALL(code == MPI_SUCCESS, "MPI_File_delete");
	ALL(access(in_dir("modes"), F_OK) == -1, "and it is gone for all");
}

static void non_blocking(void)
{
	enum { PARTS = 8, PART = 5000 };
	static int mine[PARTS][PART], back[PARTS][PART];
	MPI_Request requests[PARTS];
	MPI_File file = open_file("non_blocking", MPI_MODE_CREATE | MPI_MODE_RDWR);
	for (int p = 0; p < PARTS; p++) {
		for (int i = 0; i < PART; i++)
			mine[p][i] = value_of(rank, p * PART + i);
		MUST(MPI_File_iwrite_at(file, (MPI_Offset)(p * size + rank) * (MPI_Offset)sizeof mine[0], mine[p], PART, MPI_INT, &requests[p]) == MPI_SUCCESS);
	}
	MPI(MPI_Waitall(PARTS, requests, MPI_STATUSES_IGNORE));
	for (int p = 0; p < PARTS; p++)
		MUST(MPI_File_iread_at(file, (MPI_Offset)(p * size + rank) * (MPI_Offset)sizeof mine[0], back[p], PART, MPI_INT, &requests[p]) == MPI_SUCCESS);
	MPI(MPI_Waitall(PARTS, requests, MPI_STATUSES_IGNORE));
	ALL(memcmp(mine, back, sizeof mine) == 0, "iwrite_at and iread_at, eight at once");
	memset(back, 0, sizeof back);
	MPI_Request request;
	/* The ROMIO inside of Open MPI 4 crashes in it, on any file system. */
	const char *mpi = getenv("WEIR_TEST_MPI");
	if (!mpi || strcmp(mpi, "openmpi-romio") != 0) {
		MPI(MPI_File_iread_at_all(file, (MPI_Offset)rank * (MPI_Offset)sizeof mine[0], back, PART, MPI_INT, &request));
		MPI(MPI_Wait(&request, MPI_STATUS_IGNORE));
		ALL(memcmp(mine[0], back[0], sizeof mine[0]) == 0, "iread_at_all");
	}
	MPI(MPI_File_read_at_all_begin(file, (MPI_Offset)rank * (MPI_Offset)sizeof mine[0], back[1], PART, MPI_INT));
	MPI(MPI_File_read_at_all_end(file, back[1], MPI_STATUS_IGNORE));
	ALL(memcmp(mine[0], back[1], sizeof mine[0]) == 0, "split collective read");
	MPI(MPI_File_close(&file));
}

static void shared_pointer(void)
{
	/* Shared file pointers: each record lands somewhere, whole and once; ordered ones by rank. */
	int record[100], all[6400], seen[64] = {0}, wrong = 0;
	MPI_File file = open_file("ordered", MPI_MODE_CREATE | MPI_MODE_RDWR);
	for (int i = 0; i < 100; i++)
		record[i] = rank;
	MPI(MPI_File_write_ordered(file, record, 100, MPI_INT, MPI_STATUS_IGNORE));
	MPI(MPI_File_sync(file));
	MPI_Barrier(MPI_COMM_WORLD);
	MPI(MPI_File_read_at(file, 0, all, 100 * size, MPI_INT, MPI_STATUS_IGNORE));
	for (int i = 0; i < 100 * size; i++)
		wrong += all[i] != i / 100;
	ALL(wrong == 0, "write_ordered writes in rank order");
	MPI_Barrier(MPI_COMM_WORLD);
	MPI(MPI_File_write_shared(file, record, 100, MPI_INT, MPI_STATUS_IGNORE));
	MPI(MPI_File_sync(file));
	MPI_Barrier(MPI_COMM_WORLD);
	MPI(MPI_File_read_at(file, 400 * size, all, 100 * size, MPI_INT, MPI_STATUS_IGNORE));
	for (int i = 0; i < size; i++) {
		int who = all[i * 100];
		if (who >= 0 && who < size)
			seen[who]++;
		for (int k = 0; k < 100; k++)
			wrong += all[i * 100 + k] != who;
	}
	for (int i = 0; i < size; i++)
		wrong += seen[i] != 1;
	ALL(wrong == 0, "write_shared: each record whole and once");
	MPI(MPI_File_close(&file));
}

static void atomic_mode(void)
{
	/* Overlapping writes in atomic mode: the result is one of them, whole. */
	enum { LENGTH = 30000 };
	static char mine[LENGTH], back[LENGTH];
	int flag = 0;
	MPI_File file = open_file("atomic", MPI_MODE_CREATE | MPI_MODE_RDWR);
	MPI(MPI_File_set_atomicity(file, 1));
	MPI(MPI_File_get_atomicity(file, &flag));
	ALL(flag == 1, "atomic mode is on");
	memset(mine, 'a' + rank, LENGTH);
	for (int round = 0; round < 20; round++)
		MUST(MPI_File_write_at(file, 0, mine, LENGTH, MPI_CHAR, MPI_STATUS_IGNORE) == MPI_SUCCESS);
	MPI_Barrier(MPI_COMM_WORLD);
	MPI(MPI_File_read_at(file, 0, back, LENGTH, MPI_CHAR, MPI_STATUS_IGNORE));
	ALL(back[0] >= 'a' && back[0] < 'a' + size && all_bytes(back, LENGTH, back[0]), "the bytes are of one writer");
	MPI(MPI_File_close(&file));
}

int main(int argc, char **argv)
{
	mpi_check_begin(argc, argv);
	segmented("independent", 0);
	segmented("collective", 1);
	strided("strided_independent", 0);
	strided("strided_collective", 1);
	subarray();
	sizes();
	preallocate();
	modes();
	non_blocking();
	shared_pointer();
	atomic_mode();
	return mpi_check_end();
}
