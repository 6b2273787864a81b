/*
 * PnetCDF files that processes of several nodes write and read.
 *
 *   mpiexec -n 4 at_rank.sh pnetcdf DIR PATTERN ROUNDS
 *
 * | patterns | promised by |
 * | --- | --- |
 * | records, redefine, reopen, fill_sync, mixed_sync | ncmpi_sync and barriers, or close and open: right with raw and ras |
 * | barrier, fill, mixed | POSIX's order of writes: right with raw only |
 *
 * ncmpi_enddef fills with the collective writes of all processes, and does not sync: with ROMIO other nodes write over the fill values.
 */
#include "mpi_agree.h"
#include <pnetcdf.h>

enum { WIDTH = 120, RECORDS = 6 };

/* A PnetCDF call that must not fail. */
#define NC(call) nc_done((call), #call)

static int nc_done(int code, const char *call)
{
	if (code != NC_NOERR)
		wrong("%.100s: %s", call, ncmpi_strerror(code));
	return code;
}

static int file, fixed, records, scalar;

static void define(const char *name, int fills)
{
	int time, x, dims[2], all_x;
	MPI_Offset width = (MPI_Offset)WIDTH * size;
	NC(ncmpi_create(MPI_COMM_WORLD, in_dir("%s", name), NC_CLOBBER | NC_64BIT_DATA, MPI_INFO_NULL, &file));
	NC(ncmpi_def_dim(file, "time", NC_UNLIMITED, &time));
	NC(ncmpi_def_dim(file, "x", width, &x));
	NC(ncmpi_def_dim(file, "all", width * 4, &all_x));
	dims[0] = time;
	dims[1] = x;
	NC(ncmpi_def_var(file, "fixed", NC_INT, 1, &all_x, &fixed));
	NC(ncmpi_def_var(file, "records", NC_INT, 2, dims, &records));
	NC(ncmpi_def_var(file, "scalar", NC_INT, 0, NULL, &scalar));
	if (fills)
		NC(ncmpi_set_fill(file, NC_FILL, NULL));
	NC(ncmpi_enddef(file));
}

static void sync_all(void)
{
	NC(ncmpi_sync(file));
	barrier();
	NC(ncmpi_sync(file));
}

/* This process's part of a record; parts are handed on by one process each record, so that neighbours change. */
static int owner(int record, int part)
{
	return (part + record) % size;
}

static void place_of(int record, int part, MPI_Offset *start, MPI_Offset *count)
{
	start[0] = record;
	start[1] = (MPI_Offset)part * WIDTH;
	count[0] = 1;
	count[1] = WIDTH;
}

static void make_part(int *data, int who, int record)
{
	for (int i = 0; i < WIDTH; i++)
		data[i] = value_of(who, record * WIDTH + i);
}

static int my_part(int record)
{
	for (int part = 0; part < size; part++)
		if (owner(record, part) == rank)
			return part;
	return 0;
}

static void check_records(const char *what)
{
	static int back[16 * WIDTH];
	MPI_Offset start[2] = {0, 0}, count[2] = {1, (MPI_Offset)WIDTH * size}, have = 0;
	int dim;
	NC(ncmpi_inq_unlimdim(file, &dim));
	NC(ncmpi_inq_dimlen(file, dim, &have));
	if (have != RECORDS)
		wrong("%s: %lld records, expected %d", what, (long long)have, RECORDS);
	NC(ncmpi_begin_indep_data(file));
	for (int record = 0; record < RECORDS; record++) {
		start[0] = record;
		memset(back, 0, sizeof back);
		NC(ncmpi_get_vara_int(file, records, start, count, back));
		for (long i = 0; i < (long)WIDTH * size; i++)
			if (!same_int(what, i, back[i], value_of(owner(record, (int)(i / WIDTH)), record * WIDTH + i % WIDTH))) {
				record = RECORDS;
				break;
			}
	}
	NC(ncmpi_end_indep_data(file));
}

/* The records, by collective puts, independent puts, or nonblocking ones that are waited for together. */
static void put_records(int how)
{
	static int data[RECORDS][WIDTH];
	MPI_Offset start[2], count[2];
	int requests[RECORDS], states[RECORDS];
	if (how == 1)
		NC(ncmpi_begin_indep_data(file));
	for (int record = 0; record < RECORDS; record++) {
		place_of(record, my_part(record), start, count);
		make_part(data[record], rank, record);
		if (how == 0)
			NC(ncmpi_put_vara_int_all(file, records, start, count, data[record]));
		else if (how == 1)
			NC(ncmpi_put_vara_int(file, records, start, count, data[record]));
		else
			NC(ncmpi_iput_vara_int(file, records, start, count, data[record], &requests[record]));
		delay();
	}
	if (how == 1)
		NC(ncmpi_end_indep_data(file));
	if (how == 2)
		NC(ncmpi_wait_all(file, RECORDS, requests, states));
}

static void records_pattern(void)
{
	define("records.nc", 0);
	put_records(round_now % 3);
	sync_all();
	check_records("records after a sync");
	NC(ncmpi_close(file));
	barrier();
}

static void barrier_pattern(void)
{
	define("barrier.nc", 0);
	/* Independent puts of records leave their number to the next collective call. */
	put_records(round_now % 2 ? 0 : 2);
	barrier();
	check_records("records after a barrier");
	NC(ncmpi_close(file));
	barrier();
}

static void reopen(void)
{
	define("reopen.nc", 0);
	put_records(round_now % 3);
	NC(ncmpi_close(file));
	barrier();
	NC(ncmpi_open(MPI_COMM_WORLD, in_dir("reopen.nc"), NC_NOWRITE, MPI_INFO_NULL, &file));
	check_records("records after close and open");
	NC(ncmpi_close(file));
	barrier();
	/* And each alone. */
	NC(ncmpi_open(MPI_COMM_SELF, in_dir("reopen.nc"), NC_NOWRITE, MPI_INFO_NULL, &file));
	check_records("records read alone");
	NC(ncmpi_close(file));
	barrier();
}

static void check_fixed(const int *back, const char *what)
{
	for (long i = 0; i < (long)WIDTH * 4 * size; i++) {
		long piece = i / WIDTH;
		/* The last quarter was never written. */
		int wanted = piece % 4 == 3 ? NC_FILL_INT : value_of((int)(piece / 4), piece % 4 * WIDTH + i % WIDTH);
		if (!same_int(what, i, back[i], wanted))
			return;
	}
}

/* What is not written reads as the fill value; blocking and nonblocking puts of one process beside those of others. */
static void fill_and_put(int mixes, int syncs)
{
	static int data[3][WIDTH], back[16 * 4 * WIDTH];
	MPI_Offset start, count = WIDTH;
	int requests[3], states[3], asked = 0, value = value_of(0, 7), got = 0;
	define("fill.nc", 1);
	if (syncs)
		sync_all();
	for (int part = 0; part < 3; part++) {
		for (int i = 0; i < WIDTH; i++)
			data[part][i] = value_of(rank, part * WIDTH + i);
		start = (MPI_Offset)(rank * 4 + part) * WIDTH;
		if (mixes && part != 1)
			NC(ncmpi_iput_vara_int(file, fixed, &start, &count, data[part], &requests[asked++]));
		else
			NC(ncmpi_put_vara_int_all(file, fixed, &start, &count, data[part]));
	}
	NC(ncmpi_wait_all(file, asked, requests, states));
	NC(ncmpi_begin_indep_data(file));
	if (rank == 0)
		NC(ncmpi_put_var_int(file, scalar, &value));
	NC(ncmpi_end_indep_data(file));
	sync_all();
	memset(back, 0, sizeof back);
	NC(ncmpi_get_var_int_all(file, fixed, back));
	check_fixed(back, "filled and put");
	NC(ncmpi_get_var_int_all(file, scalar, &got));
	same_int("a scalar", 0, got, value);
	NC(ncmpi_close(file));
	barrier();
}

static void fill_pattern(void)
{
	fill_and_put(0, 0);
}

static void fill_sync(void)
{
	fill_and_put(0, 1);
}

static void mixed(void)
{
	fill_and_put(1, 0);
}

static void mixed_sync(void)
{
	fill_and_put(1, 1);
}

/* The header grows, and what is behind it moves. */
static void redefine(void)
{
	char text[3000];
	int more, dim, value = value_of(1, 9), got = 0;
	define("redefine.nc", 0);
	put_records(0);
	sync_all();
	memset(text, 'a' + round_now % 26, sizeof text);
	NC(ncmpi_redef(file));
	NC(ncmpi_put_att_text(file, NC_GLOBAL, "long", sizeof text, text));
	NC(ncmpi_def_dim(file, "more", 1, &dim));
	NC(ncmpi_def_var(file, "more", NC_INT, 1, &dim, &more));
	NC(ncmpi_enddef(file));
	NC(ncmpi_put_var_int_all(file, more, &value));
	sync_all();
	check_records("records that were moved");
	NC(ncmpi_close(file));
	barrier();
	NC(ncmpi_open(MPI_COMM_SELF, in_dir("redefine.nc"), NC_NOWRITE, MPI_INFO_NULL, &file));
	check_records("records that were moved, read alone");
	NC(ncmpi_inq_varid(file, "more", &more));
	NC(ncmpi_get_var_int_all(file, more, &got));
	same_int("a variable that was added", 0, got, value);
	NC(ncmpi_close(file));
	barrier();
}

static const struct pattern patterns[] = {
	{"records", records_pattern}, {"barrier", barrier_pattern}, {"reopen", reopen}, {"fill", fill_pattern}, {"mixed", mixed},
	{"redefine", redefine},	      {"fill_sync", fill_sync},	    {"mixed_sync", mixed_sync},
};

AGREE_MAIN(patterns)
