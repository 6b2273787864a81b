/*
 * The log of PnetCDF's writes, as a program meets it. On weir, with the connector, data is not in the file until it is flushed;
 * elsewhere it is at once. All other checks hold in both.
 *
 *   mpiexec -n N pnetcdf_log DIR [die | look | small | fail | driver]
 *
 * With `driver` PnetCDF's own burst buffer driver has the log, and weir has none. With `fail` one process cannot write what it has logged. With `die` all processes are killed after their puts, and `look` finds these in the file. With `small` the log holds less than what is put.
 */
#include "mpi_check.h"
#include <limits.h>
#include <pnetcdf.h>
#include <signal.h>
#include <sys/resource.h>

enum { WIDTH = 1000, ROWS = 40 };

#define NC(call) ALL(nc_ok((call), #call), "%s", #call)
/* A call that must give this code in all processes. */
#define CODE(call, wanted) ALL((call) == (wanted), "%s gives %s", #call, #wanted)

static int nc_ok(int code, const char *call)
{
	if (code != NC_NOERR)
		printf("  process %d: %.80s: %s\n", rank, call, ncmpi_strerror(code));
	return code == NC_NOERR;
}

static int file, fixed, records, small;
static double mine[ROWS * WIDTH], back[ROWS * WIDTH];
static const char *path;

static off_t file_bytes(void)
{
	struct stat found;
	return stat(path, &found) == 0 ? found.st_size : -1;
}

static void define(void)
{
	int dims[3];
	NC(ncmpi_create(MPI_COMM_WORLD, path, NC_CLOBBER | NC_64BIT_DATA, MPI_INFO_NULL, &file));
	NC(ncmpi_def_dim(file, "time", NC_UNLIMITED, &dims[0]));
	NC(ncmpi_def_dim(file, "row", ROWS, &dims[1]));
	NC(ncmpi_def_dim(file, "x", (MPI_Offset)WIDTH * size, &dims[2]));
	NC(ncmpi_def_var(file, "fixed", NC_DOUBLE, 2, dims + 1, &fixed));
	NC(ncmpi_def_var(file, "small", NC_SHORT, 1, dims + 2, &small));
	dims[1] = dims[2];
	NC(ncmpi_def_var(file, "records", NC_DOUBLE, 2, dims, &records));
	NC(ncmpi_enddef(file));
}

/* What processes put that were killed is in the file once it is opened again. */
static int look(void)
{
	MPI_Offset start[2] = {0, (MPI_Offset)WIDTH * rank}, count[2] = {1, WIDTH}, length;
	int wrong = 0;
	NC(ncmpi_open(MPI_COMM_WORLD, path, NC_NOWRITE, MPI_INFO_NULL, &file));
	NC(ncmpi_inq_dimlen(file, 0, &length));
	ALL(length == 5, "five records: %d", (int)length);
	NC(ncmpi_inq_varid(file, "records", &records));
	for (start[0] = 0; start[0] < length; start[0]++) {
		wrong += ncmpi_get_vara_double_all(file, records, start, count, back) != NC_NOERR;
		wrong += memcmp(back, mine + start[0] * WIDTH, WIDTH * sizeof(double)) != 0;
	}
	ALL(wrong == 0, "with their data");
	NC(ncmpi_close(file));
	return mpi_check_end();
}

/* One process may not write as far as its part lies: only its close fails, and its log stays until the file is opened again. */
static int fail(void)
{
	enum { LENGTH = 1 << 23 };
	MPI_Offset start = LENGTH - (MPI_Offset)WIDTH * (size - rank), count = WIDTH;
	struct rlimit unlimited, few;
	int dim, code;
	NC(ncmpi_create(MPI_COMM_WORLD, path, NC_CLOBBER | NC_64BIT_DATA, MPI_INFO_NULL, &file));
	NC(ncmpi_def_dim(file, "x", LENGTH, &dim));
	NC(ncmpi_def_var(file, "far", NC_DOUBLE, 1, &dim, &fixed));
	NC(ncmpi_enddef(file));
	getrlimit(RLIMIT_FSIZE, &unlimited);
	few = unlimited;
	few.rlim_cur = 1 << 20;
	if (rank == 1) {
		signal(SIGXFSZ, SIG_IGN);
		setrlimit(RLIMIT_FSIZE, &few);
	}
	NC(ncmpi_put_vara_double_all(file, fixed, &start, &count, mine));
	code = ncmpi_close(file);
	ALL((code == NC_EWRITE) == (rank == 1) && (code == NC_NOERR) == (rank != 1), "the close fails where the write does: %d", code);
	setrlimit(RLIMIT_FSIZE, &unlimited);
	NC(ncmpi_open(MPI_COMM_WORLD, path, NC_NOWRITE, MPI_INFO_NULL, &file));
	NC(ncmpi_get_vara_double_all(file, fixed, &start, &count, back));
	ALL(memcmp(back, mine, WIDTH * sizeof(double)) == 0, "nothing is lost");
	NC(ncmpi_close(file));
	return mpi_check_end();
}

/* Where PNETCDF_HINTS asks for PnetCDF's own driver, that driver has the puts, and the connector leaves the file alone. */
static int driver(void)
{
	MPI_Offset start[2] = {0, (MPI_Offset)WIDTH * rank}, count[2] = {1, WIDTH};
	char logs[PATH_MAX];
	int wrong = 0;
	define();
	off_t empty = file_bytes();
	for (start[0] = 0; start[0] < ROWS; start[0]++)
		wrong += ncmpi_put_vara_double_all(file, fixed, start, count, mine + start[0] * WIDTH) != NC_NOERR;
	ALL(wrong == 0, "puts, row by row");
	ALL(file_bytes() == empty, "no data is in the file yet");
	snprintf(logs, sizeof logs, "%s/.pnetcdf", getenv("WEIR_AT"));
	ALL(access(logs, F_OK) != 0, "weir has no log");
	NC(ncmpi_close(file));
	NC(ncmpi_open(MPI_COMM_WORLD, path, NC_NOWRITE, MPI_INFO_NULL, &file));
	start[0] = 0;
	count[0] = ROWS;
	NC(ncmpi_get_vara_double_all(file, fixed, start, count, back));
	ALL(memcmp(back, mine, sizeof mine) == 0, "a get gives what was put");
	NC(ncmpi_close(file));
	return mpi_check_end();
}

/* All processes put all of a variable, and then each a part: the later call stays, whichever process made it. */
static void overlap(void)
{
	short *all = calloc(WIDTH * size, sizeof *all);
	int wrong = 0;
	for (int round = 1; round <= 6; round++) {
		MPI_Offset start = (MPI_Offset)WIDTH * ((rank + round) % size), count = WIDTH;
		for (int i = 0; i < WIDTH * size; i++)
			all[i] = -round;
		wrong += ncmpi_put_var_short_all(file, small, all) != NC_NOERR;
		for (int i = 0; i < WIDTH; i++)
			all[i] = round;
		wrong += ncmpi_put_vara_short_all(file, small, &start, &count, all) != NC_NOERR;
		if (round % 3 == 0)
			NC(ncmpi_sync(file));
		if (round % 2 == 0)
			continue;
		wrong += ncmpi_get_var_short_all(file, small, all) != NC_NOERR;
		for (int i = 0; i < WIDTH * size; i++)
			wrong += all[i] != round;
	}
	wrong += ncmpi_get_var_short_all(file, small, all) != NC_NOERR;
	for (int i = 0; i < WIDTH * size; i++)
		wrong += all[i] != 6;
	ALL(wrong == 0, "the later of two calls stays, whichever process made it (%d wrong)", wrong);
	free(all);
}

int main(int argc, char **argv)
{
	int wrong = 0, code, dies = argc > 2 && strcmp(argv[2], "die") == 0, is_small = argc > 2 && strcmp(argv[2], "small") == 0;
	int is_logged = getenv("WEIR_TEST_ON_WEIR") != NULL;
	mpi_check_begin(argc, argv);
	path = strdup(in_dir("file.nc"));
	MPI_Offset start[2] = {0, (MPI_Offset)WIDTH * rank}, count[2] = {1, WIDTH}, length;
	for (int i = 0; i < ROWS * WIDTH; i++)
		mine[i] = rank * 1e6 + i;
	if (argc > 2 && strcmp(argv[2], "look") == 0)
		return look();
	if (argc > 2 && strcmp(argv[2], "fail") == 0)
		return fail();
	if (argc > 2 && strcmp(argv[2], "driver") == 0)
		return driver();
	define();
	off_t empty = file_bytes();
	for (start[0] = 0; start[0] < ROWS; start[0]++)
		wrong += ncmpi_put_vara_double_all(file, fixed, start, count, mine + start[0] * WIDTH) != NC_NOERR;
	ALL(wrong == 0, "puts, row by row");
	if (dies) {
		ncmpi_sync(file);
		/* These stay in the log. */
		for (start[0] = 0; start[0] < 5; start[0]++)
			ncmpi_put_vara_double_all(file, records, start, count, mine + start[0] * WIDTH);
		MPI_Barrier(MPI_COMM_WORLD);
		kill(getpid(), SIGKILL);
	}
	if (is_logged && !is_small)
		ALL(file_bytes() == empty, "no data is in the file yet");
	start[0] = 0;
	count[0] = ROWS;
	NC(ncmpi_get_vara_double_all(file, fixed, start, count, back));
	ALL(memcmp(back, mine, sizeof mine) == 0, "a get gives what was put");
	if (is_logged && !is_small)
		ALL(file_bytes() == empty, "the get asked the log");
	start[0] = 3;
	count[0] = 1;
	NC(ncmpi_put_vara_double_all(file, records, start, count, mine));
	NC(ncmpi_inq_dimlen(file, 0, &length));
	ALL(length == 4, "the number of records counts those in the log");

	/* What one writes twice: the second one stays, also where a part of it was written a third time. */
	for (int round = 0; round < 3; round++) {
		MPI_Offset from[2] = {7, start[1] + 100 * round}, many[2] = {1, 300};
		for (int i = 0; i < 300; i++)
			back[i] = round;
		NC(ncmpi_put_vara_double_all(file, fixed, from, many, back));
		for (int i = 0; i < 300; i++)
			mine[7 * WIDTH + 100 * round + i] = round;
	}
	NC(ncmpi_put_var1_double_all(file, fixed, start, &mine[0]));
	mine[3 * WIDTH] = mine[0];

	/* Another process's: the log is flushed. */
	MPI_Offset other = (rank + 1) % size, theirs[2] = {0, other * WIDTH};
	count[0] = ROWS;
	NC(ncmpi_get_vara_double_all(file, fixed, theirs, count, back));
	wrong = 0;
	for (int i = 0; i < ROWS * WIDTH; i++) {
		int row = i / WIDTH, column = i % WIDTH;
		double wanted = (double)other * 1e6 + i;
		if (row == 7 && column < 500)
			wanted = column < 100 ? 0 : column < 200 ? 1 : 2;
		if (row == 3 && column == 0)
			wanted = (double)other * 1e6;
		wrong += back[i] != wanted;
	}
	ALL(wrong == 0, "a get of another process's part (%d wrong)", wrong);
	ALL(file_bytes() > empty, "and has it flushed");

	overlap();

	/* Errors come from the call. */
	count[0] = 1;
	MPI_Offset outside[2] = {ROWS, start[1]}, one = 1;
	short few[2] = {1, 2};
	double vast[1] = {1e9};
	double one_back[2] = {-1, -1};
	NC(ncmpi_put_vara_double_all(file, fixed, start, count, mine + start[0] * WIDTH));
	CODE(ncmpi_get_vara_all(file, fixed, start, count, one_back, 1, MPI_DOUBLE), NC_EIOMISMATCH);
	ALL(one_back[1] == -1, "a get into less memory than its part writes nothing past that");
	CODE(ncmpi_put_vara_double_all(file, fixed, outside, count, mine), NC_EINVALCOORDS);
	outside[0] = ROWS - 1;
	count[0] = 2;
	CODE(ncmpi_put_vara_double_all(file, fixed, outside, count, mine), NC_EEDGE);
	count[0] = -1;
	CODE(ncmpi_put_vara_double_all(file, fixed, outside, count, mine), NC_ENEGATIVECNT);
	CODE(ncmpi_put_vara_double_all(file, 77, start, count, mine), NC_ENOTVAR);
	CODE(ncmpi_put_vara_double(file, fixed, start, count, mine), NC_ENOTINDEP);
	CODE(ncmpi_put_vara_text_all(file, small, start + 1, &one, "a"), NC_ECHAR);
	CODE(ncmpi_put_vara_double_all(file, small, start + 1, &one, vast), NC_ERANGE);
	CODE(ncmpi_bput_vara_short(file, small, start + 1, &one, few, &code), NC_ENULLABUF);
	NC(ncmpi_buffer_attach(file, 3));
	NC(ncmpi_bput_vara_short(file, small, start + 1, &one, few, &code));
	CODE(ncmpi_bput_vara_short(file, small, start + 1, &one, few, &wrong), NC_EINSUFFBUF);
	CODE(ncmpi_buffer_detach(file), NC_EPENDINGBPUT);
	NC(ncmpi_wait_all(file, 1, &code, NULL));
	NC(ncmpi_buffer_detach(file));

	/* Far more than fits the log, if it has a small budget. */
	off_t before = file_bytes();
	count[0] = 1;
	wrong = 0;
	for (start[0] = 4; start[0] < 300; start[0]++)
		wrong += ncmpi_put_vara_double_all(file, records, start, count, mine) != NC_NOERR;
	ALL(wrong == 0, "puts of many records");
	if (is_logged && is_small)
		ALL(file_bytes() > before, "a full log is flushed");
	NC(ncmpi_begin_indep_data(file));
	for (start[0] = 300; start[0] < 600; start[0]++)
		wrong += ncmpi_put_vara_double(file, records, start, count, mine) != NC_NOERR;
	ALL(wrong == 0, "independent puts of many records");
	start[0] = 599;
	NC(ncmpi_get_vara_double(file, records, start, count, back));
	ALL(memcmp(back, mine, WIDTH * sizeof(double)) == 0, "an independent get");
	NC(ncmpi_end_indep_data(file));
	NC(ncmpi_close(file));
	NC(ncmpi_open(MPI_COMM_WORLD, path, NC_NOWRITE, MPI_INFO_NULL, &file));
	NC(ncmpi_inq_dimlen(file, 0, &length));
	ALL(length == 600, "all records are in the file");
	wrong = 0;
	for (start[0] = 3; start[0] < 600; start[0]++) {
		wrong += ncmpi_get_vara_double_all(file, records, start, count, back) != NC_NOERR;
		wrong += memcmp(back + (start[0] == 3 ? 1 : 0), mine + (start[0] == 3 ? 1 : 0), (WIDTH - 1) * sizeof(double)) != 0;
	}
	ALL(wrong == 0, "with their data");
	CODE(ncmpi_put_vara_double_all(file, records, start, count, mine), NC_EPERM);
	NC(ncmpi_close(file));
	return mpi_check_end();
}
