/*
 * HDF5 files that processes of several nodes write and read.
 *
 *   mpiexec -n 4 at_rank.sh phdf5 DIR PATTERN ROUNDS fill|nofill
 *
 * All of it is right with raw only, also where HDF5 syncs (H5Fflush of a parallel file) or closes before others read: between two syncs
 * its processes write over each other's bytes. With `fill`, the fill value of new chunks is ordered before what others write over it by
 * a barrier alone. Without, Open MPI's aggregator of a collective write to chunks writes the gaps too, in which other processes then
 * put nodes of the index.
 *
 * | patterns | ordered by |
 * | --- | --- |
 * | flush, reopen, extend, attributes, one_closes | H5Fflush or H5Fclose, and a barrier |
 * | barrier, one_flushes, swmr | a barrier, or the order of calls |
 */
#include "mpi_agree.h"
#include <hdf5.h>

enum { ROWS = 64, COLUMNS = 50 };

/* An HDF5 call that must not fail. */
#define H5(call) h5_done((long long)(call), #call)

static long long h5_done(long long code, const char *call)
{
	if (code < 0)
		wrong("%.120s fails", call);
	return code;
}

static int fills;
static int mine[ROWS * COLUMNS], back[16 * ROWS * COLUMNS];

static void make_data(int who)
{
	for (int i = 0; i < ROWS * COLUMNS; i++)
		mine[i] = value_of(who, i);
}

/*
 * The file of all processes, or of this one. Both formats in turn, but: SWMR needs the new one, and a file of the new one that is open
 * for writing cannot be opened without SWMR.
 */
static hid_t open_file(const char *name, unsigned flags, int parallel, int creates)
{
	int latest = strcmp(pattern, "swmr") == 0 || (round_now % 2 && strcmp(pattern, "one_flushes") != 0);
	hid_t access = H5Pcreate(H5P_FILE_ACCESS), file;
	if (latest)
		H5(H5Pset_libver_bounds(access, H5F_LIBVER_LATEST, H5F_LIBVER_LATEST));
	if (parallel)
		H5(H5Pset_fapl_mpio(access, MPI_COMM_WORLD, MPI_INFO_NULL));
	file = creates ? H5Fcreate(in_dir("%s", name), flags, H5P_DEFAULT, access) : H5Fopen(in_dir("%s", name), flags, access);
	H5(file);
	H5Pclose(access);
	return file;
}

static hid_t transfer(int collective)
{
	hid_t list = H5Pcreate(H5P_DATASET_XFER);
	H5(H5Pset_dxpl_mpio(list, collective ? H5FD_MPIO_COLLECTIVE : H5FD_MPIO_INDEPENDENT));
	return list;
}

/* Rows of all processes in turn: row r is of process r % size. */
static void rows(hid_t set, int who, int *data, int writes, int collective)
{
	hsize_t start[2] = {(hsize_t)who, 0}, step[2] = {(hsize_t)size, 1}, count[2] = {ROWS, COLUMNS};
	hid_t in_file = H5Dget_space(set), in_memory = H5Screate_simple(2, count, NULL), list = transfer(collective);
	H5(H5Sselect_hyperslab(in_file, H5S_SELECT_SET, start, step, count, NULL));
	H5(writes ? H5Dwrite(set, H5T_NATIVE_INT, in_memory, in_file, list, data) : H5Dread(set, H5T_NATIVE_INT, in_memory, in_file, list, data));
	H5Pclose(list);
	H5Sclose(in_memory);
	H5Sclose(in_file);
}

static void check_rows(const char *what, int who)
{
	for (long i = 0; i < ROWS * COLUMNS; i++)
		if (!same_int(what, i, back[i], value_of(who, i)))
			return;
}

static hid_t create_set(hid_t file, const char *name, int chunked)
{
	hsize_t all[2] = {(hsize_t)(ROWS * size), COLUMNS}, chunk[2] = {7, 13};
	hid_t space = H5Screate_simple(2, all, NULL), list = H5Pcreate(H5P_DATASET_CREATE);
	if (chunked)
		H5(H5Pset_chunk(list, 2, chunk));
	H5(H5Pset_fill_time(list, fills ? H5D_FILL_TIME_ALLOC : H5D_FILL_TIME_NEVER));
	hid_t set = H5Dcreate2(file, name, H5T_NATIVE_INT, space, H5P_DEFAULT, list, H5P_DEFAULT);
	H5(set);
	H5Pclose(list);
	H5Sclose(space);
	return set;
}

static void sync_all(hid_t file)
{
	H5(H5Fflush(file, H5F_SCOPE_GLOBAL));
	barrier();
}

/* All write their rows in each other's, then read a neighbour's: after H5Fflush and a barrier, or a barrier alone. */
static void rows_then(int flushes)
{
	int collective = (int)below(2), chunked = (int)below(2), other = (rank + 1) % size;
	hid_t file = open_file("rows.h5", H5F_ACC_TRUNC, 1, 1), set = create_set(file, "rows", chunked);
	make_data(rank);
	for (int again = 0; again < 3; again++) {
		/* The second and third time over what is there. */
		for (int i = 0; i < ROWS * COLUMNS; i++)
			mine[i] = again == 2 ? value_of(rank, i) : -again;
		rows(set, rank, mine, 1, collective);
		if (flushes)
			sync_all(file);
		else
			barrier();
	}
	memset(back, 0, sizeof mine);
	rows(set, other, back, 0, collective);
	check_rows("the neighbour's rows", other);
	H5(H5Dclose(set));
	H5(H5Fclose(file));
	barrier();
}

static void flush_pattern(void)
{
	rows_then(1);
}

static void barrier_pattern(void)
{
	rows_then(0);
}

/* Written by all, closed, and opened by each alone. */
static void reopen(void)
{
	int chunked = (int)below(2);
	hid_t file = open_file("reopen.h5", H5F_ACC_TRUNC, 1, 1), set = create_set(file, "rows", chunked);
	make_data(rank);
	rows(set, rank, mine, 1, chunked);
	H5(H5Dclose(set));
	H5(H5Fclose(file));
	barrier();
	file = open_file("reopen.h5", H5F_ACC_RDONLY, 0, 0);
	set = H5Dopen2(file, "rows", H5P_DEFAULT);
	H5(set);
	H5(H5Dread(set, H5T_NATIVE_INT, H5S_ALL, H5S_ALL, H5P_DEFAULT, back));
	for (long i = 0; i < (long)ROWS * size * COLUMNS; i++) {
		long row = i / COLUMNS;
		if (!same_int("a row read alone", i, back[i], value_of((int)(row % size), row / size * COLUMNS + i % COLUMNS)))
			break;
	}
	H5(H5Dclose(set));
	H5(H5Fclose(file));
	barrier();
}

/* A dataset that all extend, and write collectively; chunks are made anew, and their index grows. */
static void extend(void)
{
	hsize_t now[1] = {0}, most[1] = {H5S_UNLIMITED}, chunk[1] = {100}, part[1] = {250};
	hid_t file = open_file("extend.h5", H5F_ACC_TRUNC, 1, 1), space = H5Screate_simple(1, now, most), list = H5Pcreate(H5P_DATASET_CREATE);
	H5(H5Pset_chunk(list, 1, chunk));
	H5(H5Pset_fill_time(list, fills ? H5D_FILL_TIME_ALLOC : H5D_FILL_TIME_NEVER));
	hid_t set = H5Dcreate2(file, "grows", H5T_NATIVE_INT, space, H5P_DEFAULT, list, H5P_DEFAULT), memory = H5Screate_simple(1, part, NULL),
	      collective = transfer(1);
	H5Sclose(space);
	make_data(rank);
	for (int step = 0; step < 4; step++) {
		hsize_t start[1] = {now[0] + (hsize_t)rank * part[0]};
		now[0] += (hsize_t)size * part[0];
		H5(H5Dset_extent(set, now));
		space = H5Dget_space(set);
		H5(H5Sselect_hyperslab(space, H5S_SELECT_SET, start, NULL, part, NULL));
		H5(H5Dwrite(set, H5T_NATIVE_INT, memory, space, collective, mine + step * 250));
		H5Sclose(space);
	}
	sync_all(file);
	memset(back, 0, sizeof back);
	H5(H5Dread(set, H5T_NATIVE_INT, H5S_ALL, H5S_ALL, H5P_DEFAULT, back));
	for (long i = 0; i < (long)now[0]; i++) {
		long piece = i / 250;
		if (!same_int("an extended dataset", i, back[i], value_of((int)(piece % size), piece / size * 250 + i % 250)))
			break;
	}
	H5Pclose(collective);
	H5Pclose(list);
	H5Sclose(memory);
	H5(H5Dclose(set));
	H5(H5Fclose(file));
	barrier();
}

/* Groups, attributes and small datasets that exist for all; in each round the values change in place. */
static int write_metadata(hid_t file, int who)
{
	char name[64];
	hsize_t few[1] = {20};
	for (int g = 0; g < 5; g++) {
		snprintf(name, sizeof name, "group%d", g);
		hid_t group = H5Gcreate2(file, name, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT), space = H5Screate_simple(1, few, NULL);
		H5(group);
		for (int a = 0; a < 5; a++) {
			int values[20];
			for (int i = 0; i < 20; i++)
				values[i] = value_of(who, g * 1000 + a * 100 + i);
			snprintf(name, sizeof name, "attribute%d", a);
			hid_t attribute = H5Acreate2(group, name, H5T_NATIVE_INT, space, H5P_DEFAULT, H5P_DEFAULT);
			H5(H5Awrite(attribute, H5T_NATIVE_INT, values));
			H5Aclose(attribute);
		}
		H5Sclose(space);
		H5(H5Gclose(group));
	}
	return 0;
}

static void check_metadata(hid_t file, int who, const char *what)
{
	char name[64];
	for (int g = 0; g < 5; g++)
		for (int a = 0; a < 5; a++) {
			int values[20] = {0};
			snprintf(name, sizeof name, "/group%d", g);
			hid_t group = H5Gopen2(file, name, H5P_DEFAULT);
			if (H5(group) < 0)
				return;
			snprintf(name, sizeof name, "attribute%d", a);
			hid_t attribute = H5Aopen(group, name, H5P_DEFAULT);
			H5(H5Aread(attribute, H5T_NATIVE_INT, values));
			for (int i = 0; i < 20; i++)
				if (!same_int(what, i, values[i], value_of(who, g * 1000 + a * 100 + i)))
					g = 5, a = 5, i = 20;
			H5Aclose(attribute);
			H5Gclose(group);
		}
}

/* Metadata that all make together; read by each alone after the close. */
static void attributes(void)
{
	hid_t file = open_file("attributes.h5", H5F_ACC_TRUNC, 1, 1);
	write_metadata(file, 0);
	sync_all(file);
	check_metadata(file, 0, "metadata in the open file");
	H5(H5Fclose(file));
	barrier();
	file = open_file("attributes.h5", H5F_ACC_RDONLY, 0, 0);
	check_metadata(file, 0, "metadata read alone");
	H5(H5Fclose(file));
	barrier();
}

/* One process writes metadata alone and closes or flushes the file; the others open and read it. */
static void one_writes(int closes)
{
	int who = round_now % size;
	hid_t file = -1;
	if (rank == who) {
		file = open_file("one.h5", H5F_ACC_TRUNC, 0, 1);
		write_metadata(file, who);
		if (closes)
			H5(H5Fclose(file));
		else
			H5(H5Fflush(file, H5F_SCOPE_GLOBAL));
	}
	barrier();
	if (rank != who || closes) {
		hid_t reads = open_file("one.h5", H5F_ACC_RDONLY, 0, 0);
		check_metadata(reads, who, "what one process wrote");
		H5(H5Fclose(reads));
	}
	barrier();
	if (rank == who && !closes)
		H5(H5Fclose(file));
	barrier();
}

static void one_closes(void)
{
	one_writes(1);
}

static void one_flushes(void)
{
	one_writes(0);
}

/* One writer, many readers: a dataset grows, is flushed, and is refreshed by the readers, which have it open all the time. */
static void swmr(void)
{
	hsize_t now[1] = {0}, most[1] = {H5S_UNLIMITED}, chunk[1] = {64}, start[1];
	int who = round_now % size;
	hid_t file = -1, set = -1;
	if (rank == who) {
		hid_t space = H5Screate_simple(1, now, most), list = H5Pcreate(H5P_DATASET_CREATE);
		file = open_file("swmr.h5", H5F_ACC_TRUNC, 0, 1);
		H5(H5Pset_chunk(list, 1, chunk));
		set = H5Dcreate2(file, "grows", H5T_NATIVE_INT, space, H5P_DEFAULT, list, H5P_DEFAULT);
		H5(set);
		H5(H5Fstart_swmr_write(file));
		H5Sclose(space);
		H5Pclose(list);
	}
	barrier();
	if (rank != who) {
		file = open_file("swmr.h5", H5F_ACC_RDONLY | H5F_ACC_SWMR_READ, 0, 0);
		set = H5Dopen2(file, "grows", H5P_DEFAULT);
		H5(set);
	}
	make_data(who);
	for (int step = 0; step < 5; step++) {
		hsize_t more[1] = {1 + below(200)};
		start[0] = now[0];
		now[0] += more[0];
		if (rank == who) {
			hid_t memory = H5Screate_simple(1, more, NULL);
			H5(H5Dset_extent(set, now));
			hid_t space = H5Dget_space(set);
			H5(H5Sselect_hyperslab(space, H5S_SELECT_SET, start, NULL, more, NULL));
			H5(H5Dwrite(set, H5T_NATIVE_INT, memory, space, H5P_DEFAULT, mine + start[0]));
			H5Sclose(space);
			H5Sclose(memory);
			H5(H5Dflush(set));
		}
		barrier();
		if (rank != who) {
			hsize_t got[1] = {0};
			H5(H5Drefresh(set));
			hid_t space = H5Dget_space(set);
			H5Sget_simple_extent_dims(space, got, NULL);
			H5Sclose(space);
			if (got[0] != now[0]) {
				wrong("a refreshed dataset has %llu elements, expected %llu", (unsigned long long)got[0], (unsigned long long)now[0]);
			} else {
				H5(H5Dread(set, H5T_NATIVE_INT, H5S_ALL, H5S_ALL, H5P_DEFAULT, back));
				for (long i = 0; i < (long)now[0]; i++)
					if (!same_int("a refreshed dataset", i, back[i], mine[i]))
						break;
			}
		}
		barrier();
	}
	if (set >= 0)
		H5(H5Dclose(set));
	if (file >= 0)
		H5(H5Fclose(file));
	barrier();
}

static const struct pattern patterns[] = {
	{"flush", flush_pattern}, {"reopen", reopen}, {"extend", extend}, {"attributes", attributes}, {"one_closes", one_closes},
	{"barrier", barrier_pattern}, {"one_flushes", one_flushes}, {"swmr", swmr},
};

int main(int argc, char **argv)
{
	/* One process reads a file that another has open for writing: one_flushes. */
	setenv("HDF5_USE_FILE_LOCKING", "FALSE", 1);
	fills = argc > 4 && strcmp(argv[4], "fill") == 0;
	if (!getenv("WEIR_TEST_HDF5_ERRORS"))
		H5Eset_auto2(H5E_DEFAULT, NULL, NULL);
	return agree_main(argc, argv, patterns, sizeof patterns / sizeof *patterns);
}
