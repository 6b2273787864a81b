/*
 * The MPI-IO connector: for files in weir ROMIO is told to do without data sieving, except where the user wants it, in atomic
 * mode and for files elsewhere; and what is written by collective calls is the same either way.
 */
#include "mpi_check.h"
#include <unistd.h>

enum { BLOCK = 1000, BLOCKS = 200, BYTES = BLOCK * BLOCKS };

static MPI_File open_with(const char *path, int mode, const char *key, const char *value)
{
	MPI_File file;
	MPI_Info info = MPI_INFO_NULL;
	if (key) {
		MPI_Info_create(&info);
		MPI_Info_set(info, key, value);
	}
	MPI(MPI_File_open(MPI_COMM_WORLD, path, mode, info, &file));
	if (key)
		MPI_Info_free(&info);
	return file;
}

/* True if the file's hint has this value; also if this MPI does not tell it. */
static int has_hint(MPI_File file, const char *key, const char *value)
{
	char found[MPI_MAX_INFO_VAL + 1];
	int is_set;
	MPI_Info info;
	if (MPI_File_get_info(file, &info) != MPI_SUCCESS)
		return 0;
	MPI_Info_get(info, key, MPI_MAX_INFO_VAL, found, &is_set);
	MPI_Info_free(&info);
#ifdef OPEN_MPI
	return !is_set || strcmp(found, value) == 0;
#else
	return is_set && strcmp(found, value) == 0;
#endif
}

static unsigned char byte_of(int round, long offset)
{
	return (unsigned char)(offset * 7 + offset / BLOCK + round);
}

/* Each process writes every `size`th block by collective calls, then reads those of another one. */
static void write_and_read(MPI_File file, int round, int at)
{
	MPI_Datatype view;
	MPI_Status status;
	int count, wrong = 0, other = (rank + 1) % size;
	unsigned char *buffer = malloc(BYTES);
	MUST(buffer);
	MPI(MPI_Type_vector(BLOCKS, BLOCK, BLOCK * size, MPI_BYTE, &view));
	MPI(MPI_Type_commit(&view));
	MPI(MPI_File_set_view(file, (MPI_Offset)rank * BLOCK, MPI_BYTE, view, "native", MPI_INFO_NULL));
	for (int i = 0; i < BYTES; i++)
		buffer[i] = byte_of(round, ((long)(i / BLOCK) * size + rank) * BLOCK + i % BLOCK);
	if (at) {
		MPI(MPI_File_write_at_all(file, 0, buffer, BYTES / 2, MPI_BYTE, &status));
		MPI(MPI_File_write_at_all(file, BYTES / 2, buffer + BYTES / 2, BYTES / 2, MPI_BYTE, &status));
	} else {
		MPI(MPI_File_write_all(file, buffer, BYTES / 2, MPI_BYTE, &status));
		MPI(MPI_File_write_all(file, buffer + BYTES / 2, BYTES / 2, MPI_BYTE, &status));
	}
	ALL(MPI_Get_count(&status, MPI_BYTE, &count) == MPI_SUCCESS && count == BYTES / 2, "the count of a collective write");
	MPI(MPI_File_sync(file));
	MPI(MPI_Barrier(MPI_COMM_WORLD));
	MPI(MPI_File_sync(file));
	MPI(MPI_File_set_view(file, (MPI_Offset)other * BLOCK, MPI_BYTE, view, "native", MPI_INFO_NULL));
	memset(buffer, 0, BYTES);
	if (at)
		MPI(MPI_File_read_at_all(file, 0, buffer, BYTES, MPI_BYTE, &status));
	else
		MPI(MPI_File_read_all(file, buffer, BYTES, MPI_BYTE, &status));
	for (int i = 0; i < BYTES; i++)
		wrong += buffer[i] != byte_of(round, ((long)(i / BLOCK) * size + other) * BLOCK + i % BLOCK);
	ALL(wrong == 0, "round %d: what another process wrote (%d wrong)", round, wrong);
	MPI(MPI_Type_free(&view));
	free(buffer);
}

/* In each round all write their block, and at once read that of the next process: neither MPI nor the file system promises more
 * than the exchange gives, on which programs rely. */
static void check_steps(const char *path)
{
	enum { ROUNDS = 60, LENGTH = 40000 };
	int wrong = 0, other = (rank + 1) % size;
	unsigned char *buffer = malloc(LENGTH);
	MPI_File file = open_with(path, MPI_MODE_CREATE | MPI_MODE_RDWR | MPI_MODE_DELETE_ON_CLOSE, NULL, NULL);
	MPI_Status status;
	MUST(buffer);
	for (int round = 1; round <= ROUNDS; round++) {
		memset(buffer, round * 4 + rank, LENGTH);
		int written = MPI_File_write_at_all(file, (MPI_Offset)rank * LENGTH, buffer, LENGTH, MPI_BYTE, &status);
		memset(buffer, 0, LENGTH);
		int read = MPI_File_read_at_all(file, (MPI_Offset)other * LENGTH, buffer, LENGTH, MPI_BYTE, &status);
		int found = written == MPI_SUCCESS && read == MPI_SUCCESS;
		for (int i = 0; i < LENGTH; i++)
			found = found && buffer[i] == (unsigned char)(round * 4 + other);
		wrong += !found;
	}
	ALL(wrong == 0, "a collective read finds what the collective write before it wrote: %d of %d wrong", wrong, ROUNDS);
	MPI(MPI_File_close(&file));
	free(buffer);
}

/* A process that waits for others in a collective call deals with their messages meanwhile: a broadcast is under way, which every
 * second process ends before its call, and the others, through which it may go, behind theirs. */
static void check_progress(const char *path)
{
	enum { LENGTH = 4000, MOST = 1 << 20 };
	int wrong = 0;
	unsigned char buffer[LENGTH], *message = malloc(MOST);
	MPI_File file = open_with(path, MPI_MODE_CREATE | MPI_MODE_RDWR | MPI_MODE_DELETE_ON_CLOSE, NULL, NULL);
	MPI_Status status;
	MPI_Request request;
	MUST(message);
	for (int round = 0; round < 6; round++) {
		int bytes = round % 2 ? MOST : 100;
		memset(buffer, round, LENGTH);
		memset(message, rank == 0 ? 'a' + round : 0, bytes);
		if (rank == 0)
			usleep(50000);
		/* Without MPI(), which is a collective call itself. */
		int failed = MPI_Ibcast(message, bytes, MPI_BYTE, 0, MPI_COMM_WORLD, &request) != MPI_SUCCESS;
		if (rank % 2)
			failed += MPI_Wait(&request, &status) != MPI_SUCCESS;
		failed += MPI_File_write_at_all(file, (MPI_Offset)rank * LENGTH, buffer, LENGTH, MPI_BYTE, &status) != MPI_SUCCESS;
		failed += MPI_File_read_at_all(file, (MPI_Offset)((rank + 1) % size) * LENGTH, buffer, LENGTH, MPI_BYTE, &status) != MPI_SUCCESS;
		if (rank % 2 == 0)
			failed += MPI_Wait(&request, &status) != MPI_SUCCESS;
		wrong += failed;
		wrong += message[0] != 'a' + round || message[bytes - 1] != 'a' + round || buffer[0] != round;
	}
	ALL(wrong == 0, "a broadcast around collective calls: %d wrong", wrong);
	MPI(MPI_File_close(&file));
	free(message);
}

/* Reads a file whose byte at each offset is that of round 0 by a view, independently and collectively. */
static void read_by(MPI_File file, MPI_Datatype view, const char *name, const char *expected, MPI_Info info, const char *hint)
{
	enum { MOST = 64 << 10 };
	int bytes, pieces = 0, wrong = 0;
	MPI_Aint lower_bound, extent;
	MPI_Status status;
	unsigned char *memory = calloc(2, MOST), *want = calloc(2, MOST);
	MUST(memory && want);
	MPI(MPI_Type_commit(&view));
	MPI(MPI_Type_size(view, &bytes));
	MPI(MPI_Type_get_extent(view, &lower_bound, &extent));
	MUST(2 * bytes <= MOST);
	MPI(MPI_File_set_view(file, rank, MPI_BYTE, view, "native", info));
#ifdef OPEN_MPI
	/* Its ROMIO gets hints that come with a view, but MPI_File_get_info does not tell them. */
	(void)hint, (void)expected;
#else
	ALL(has_hint(file, hint, expected), "%s: %s is %s", name, hint, expected);
#endif
	/* MPI itself says which bytes of an image of the file a view has. */
	unsigned char *image = malloc(2 * extent);
	MUST(image);
	for (long i = 0; i < 2 * extent; i++)
		image[i] = byte_of(0, i + rank);
	MPI(MPI_Pack(image, 2, view, want, MOST, &pieces, MPI_COMM_SELF));
	MPI(MPI_File_read_at(file, 0, memory, 2 * bytes, MPI_BYTE, &status));
	for (int i = 0; i < 2 * bytes; i++)
		wrong += memory[i] != want[i];
	memset(memory, 0, MOST);
	MPI(MPI_File_read_at_all(file, 0, memory, 2 * bytes, MPI_BYTE, &status));
	for (int i = 0; i < 2 * bytes; i++)
		wrong += memory[i] != want[i];
	ALL(wrong == 0 && pieces == 2 * bytes, "%s: %d wrong", name, wrong);
	MPI(MPI_Type_free(&view));
	free(image);
	free(memory);
	free(want);
}

/* Views of all kinds: reads have data sieving where pieces are small and close together. Hints of the user that come with a view win. */
static void check_views(const char *path, int on_weir)
{
	enum { LENGTH = 1 << 20 };
	const char *const ours = on_weir ? "disable" : "automatic", *const sieved = "automatic", *const read = "romio_ds_read";
	int lengths[] = {3, 0, 5}, places[] = {0, 40, 70}, sizes[] = {40, 50}, parts[] = {20, 20}, starts[] = {3, 4};
	MPI_Aint bytes[] = {0, 300, 400};
	MPI_Datatype view, inner, types[] = {MPI_INT, MPI_CHAR, MPI_DOUBLE};
	MPI_Status status;
	MPI_Info info;
	MPI_File file = open_with(path, MPI_MODE_CREATE | MPI_MODE_RDWR | MPI_MODE_DELETE_ON_CLOSE, NULL, NULL);
	unsigned char *buffer = malloc(LENGTH);
	MUST(buffer);
	for (int i = 0; i < LENGTH; i++)
		buffer[i] = byte_of(0, i);
	MPI(MPI_File_write_at_all(file, rank ? LENGTH : 0, buffer, rank ? 0 : LENGTH, MPI_BYTE, &status));
	MPI(MPI_File_sync(file));
	MPI(MPI_Barrier(MPI_COMM_WORLD));
	MPI(MPI_File_sync(file));

	MPI(MPI_Type_vector(50, 8, 32, MPI_BYTE, &view));
	read_by(file, view, "small pieces", sieved, MPI_INFO_NULL, read);
	MPI(MPI_Type_vector(10, 8, 30000, MPI_BYTE, &view));
	read_by(file, view, "far apart", ours, MPI_INFO_NULL, read);
	MPI(MPI_Type_create_hvector(5, 2, 64, MPI_DOUBLE, &view));
	read_by(file, view, "close together", sieved, MPI_INFO_NULL, read);
	MPI(MPI_Type_contiguous(1000, MPI_DOUBLE, &view));
	read_by(file, view, "no gaps, as before", sieved, MPI_INFO_NULL, read);
	MPI(MPI_Type_create_resized(MPI_INT, 0, 100, &view));
	read_by(file, view, "one of many", sieved, MPI_INFO_NULL, read);
	MPI(MPI_Type_create_resized(MPI_INT, 0, 100, &inner));
	MPI(MPI_Type_contiguous(20, inner, &view));
	MPI(MPI_Type_free(&inner));
	read_by(file, view, "gaps within", sieved, MPI_INFO_NULL, read);
	MPI(MPI_Type_create_resized(MPI_INT, 0, 9000, &inner));
	MPI(MPI_Type_vector(4, 2, 3, inner, &view));
	MPI(MPI_Type_free(&inner));
	read_by(file, view, "large gaps within", ours, MPI_INFO_NULL, read);
	MPI(MPI_Type_indexed(3, lengths, places, MPI_INT, &view));
	read_by(file, view, "indexed", sieved, MPI_INFO_NULL, read);
	MPI(MPI_Type_create_hindexed(3, lengths, bytes, MPI_INT, &view));
	read_by(file, view, "indexed by bytes", sieved, MPI_INFO_NULL, read);
	MPI(MPI_Type_create_indexed_block(3, 2, places, MPI_INT, &view));
	read_by(file, view, "blocks", sieved, MPI_INFO_NULL, read);
	MPI(MPI_Type_create_struct(3, lengths, bytes, types, &inner));
	MPI(MPI_Type_dup(inner, &view));
	MPI(MPI_Type_free(&inner));
	read_by(file, view, "a structure", sieved, MPI_INFO_NULL, read);
	MPI(MPI_Type_create_subarray(2, sizes, parts, starts, MPI_ORDER_C, MPI_DOUBLE, &view));
	read_by(file, view, "a part of an array", sieved, MPI_INFO_NULL, read);
	MPI(MPI_Type_create_subarray(2, sizes, parts, starts, MPI_ORDER_FORTRAN, MPI_DOUBLE, &view));
	read_by(file, view, "a part of a Fortran array", sieved, MPI_INFO_NULL, read);
	/* Three neighbours in each of many large records. */
	MPI_Aint next[] = {0, 8, 16};
	int three[] = {1, 1, 1};
	MPI_Datatype doubles[] = {MPI_DOUBLE, MPI_DOUBLE, MPI_DOUBLE};
	MPI(MPI_Type_create_struct(3, three, next, doubles, &inner));
	MPI(MPI_Type_create_resized(inner, 0, LENGTH / 4, &view));
	MPI(MPI_Type_free(&inner));
	read_by(file, view, "neighbours", ours, MPI_INFO_NULL, read);
	/* The hint is the same in all processes. Those whose view has no gaps have no say, and large gaps of one process win. */
	MPI(rank ? MPI_Type_contiguous(1000, MPI_DOUBLE, &view) : MPI_Type_vector(50, 8, 32, MPI_BYTE, &view));
	read_by(file, view, "small pieces of one process", sieved, MPI_INFO_NULL, read);
	MPI(MPI_Type_vector(rank ? 50 : 10, 8, rank ? 32 : 30000, MPI_BYTE, &view));
	read_by(file, view, "far apart in one process", ours, MPI_INFO_NULL, read);
	/* The hints that the file has are not the user's, but this view has them. */
	MPI(MPI_File_get_info(file, &info));
	MPI(MPI_Type_vector(50, 8, 32, MPI_BYTE, &view));
	read_by(file, view, "hints of the file", ours, info, read);
	MPI(MPI_Info_free(&info));
	/* Twice itself in each of 12 levels. */
	MPI(MPI_Type_dup(MPI_CHAR, &view));
	for (int i = 0; i < 12; i++) {
		MPI_Datatype twice[] = {view, view};
		int one[] = {1, 1};
		MPI_Aint at[] = {0, 16 << i};
		MPI(MPI_Type_create_struct(2, one, at, twice, &inner));
		MPI(MPI_Type_free(&view));
		view = inner;
	}
	read_by(file, view, "nested", sieved, MPI_INFO_NULL, read);
	sizes[1] = 5000;
	MPI(MPI_Type_create_subarray(2, sizes, parts, starts, MPI_ORDER_C, MPI_CHAR, &view));
	read_by(file, view, "a part of long rows", ours, MPI_INFO_NULL, read);

	MPI(MPI_Info_create(&info));
	MPI(MPI_Info_set(info, "romio_ds_read", "enable"));
	MPI(MPI_Type_vector(10, 8, 30000, MPI_BYTE, &view));
	read_by(file, view, "the user's hint", "enable", info, read);
	MPI(MPI_Type_vector(50, 8, 32, MPI_BYTE, &view));
	read_by(file, view, "and it stays", "enable", MPI_INFO_NULL, read);
	MPI(MPI_Info_set(info, "romio_cb_read", "enable"));
	MPI(MPI_Info_set(info, "romio_cb_write", "enable"));
	MPI(MPI_Type_vector(50, 8, 32, MPI_BYTE, &view));
	read_by(file, view, "an exchange", "enable", info, "romio_cb_write");
	MPI(MPI_Info_free(&info));
	MPI(MPI_File_set_view(file, 0, MPI_BYTE, MPI_BYTE, "native", MPI_INFO_NULL));
	write_and_read(file, 7, 0);
	MPI(MPI_File_close(&file));

	file = open_with(path, MPI_MODE_CREATE | MPI_MODE_RDWR | MPI_MODE_DELETE_ON_CLOSE, NULL, NULL);
	MPI(MPI_Info_create(&info));
	MPI(MPI_Info_set(info, "collective_buffering", "true"));
	MPI(MPI_File_set_info(file, info));
	MPI(MPI_Info_free(&info));
	write_and_read(file, 8, 1);
	MPI(MPI_File_close(&file));
	free(buffer);
}

int main(int argc, char **argv)
{
	mpi_check_begin(argc, argv);
	int on_weir = getenv("WEIR_TEST_ON_WEIR") != NULL, create = MPI_MODE_CREATE | MPI_MODE_RDWR;
	const char *ours = on_weir ? "disable" : "automatic";
	const char *path = in_dir("connector");
	char elsewhere[] = "/tmp/connector-XXXXXX";
	MPI_File file;

	file = open_with(path, create, NULL, NULL);
	ALL(has_hint(file, "romio_cb_write", "automatic") && has_hint(file, "romio_ds_write", ours), "hints of a file in weir");
	write_and_read(file, 1, 0);
	write_and_read(file, 2, 1);
	MPI(MPI_File_set_atomicity(file, 1));
	ALL(has_hint(file, "romio_ds_write", "automatic"), "in atomic mode they are the usual ones");
	MPI(MPI_File_set_atomicity(file, 0));
	ALL(has_hint(file, "romio_ds_write", ours), "and then the others again");
	write_and_read(file, 3, 0);
	MPI(MPI_File_close(&file));
	file = open_with(path, MPI_MODE_RDWR, "romio_cb_write", "enable");
	ALL(has_hint(file, "romio_cb_write", "enable"), "the user's hint wins");
	write_and_read(file, 4, 1);
	MPI(MPI_File_close(&file));
	file = open_with(path, MPI_MODE_RDWR, "romio_ds_write", "enable");
	ALL(has_hint(file, "romio_ds_write", "enable"), "each hint by itself");
	write_and_read(file, 5, 0);
	MPI(MPI_File_close(&file));
	file = open_with(path, MPI_MODE_RDWR, "romio_no_indep_rw", "true");
	write_and_read(file, 6, 1);
	MPI(MPI_File_close(&file));
	file = open_with(path, MPI_MODE_RDWR | MPI_MODE_DELETE_ON_CLOSE, "collective_buffering", "true");
	write_and_read(file, 6, 0);
	MPI(MPI_File_close(&file));
	check_views(path, on_weir);
	ALL(access(path, F_OK) != 0, "deleted on close");

	check_steps(in_dir("steps"));
	check_progress(in_dir("progress"));

	if (rank == 0) {
		int fd = mkstemp(elsewhere);
		MUST(fd >= 0 && close(fd) == 0);
	}
	MPI_Bcast(elsewhere, sizeof elsewhere, MPI_CHAR, 0, MPI_COMM_WORLD);
	file = open_with(elsewhere, MPI_MODE_RDWR | MPI_MODE_DELETE_ON_CLOSE, NULL, NULL);
	ALL(has_hint(file, "romio_ds_write", "automatic"), "a file elsewhere has the usual hints");
	write_and_read(file, 7, 1);
	MPI(MPI_File_close(&file));

	MPI_File_set_errhandler(MPI_FILE_NULL, MPI_ERRORS_RETURN);
	ALL(MPI_File_open(MPI_COMM_WORLD, in_dir("none/file"), create, MPI_INFO_NULL, &file) != MPI_SUCCESS,
	    "a file in no directory is refused");
	ALL(MPI_File_open(MPI_COMM_WORLD, in_dir("none"), MPI_MODE_RDONLY, MPI_INFO_NULL, &file) != MPI_SUCCESS,
	    "and one that is not there");
	return mpi_check_end();
}
