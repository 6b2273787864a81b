/*
 * Writes arrays with PnetCDF, and measures.
 *
 *   mpiexec -n N puts FILE PATTERN [HINT=VALUE...]
 *
 * | pattern | what each process writes |
 * | --- | --- |
 * | small | 20,000 collective puts of 1 KiB, each one record of its own columns |
 * | flash | FLASH I/O: 24 variables of blocks of 8 x 8 x 8 doubles, 40 blocks, a blocking collective put each |
 * | btio | NPB BTIO, on a square number of processes: 5 solution vectors of a cube of 64 x 64 x 64, each process in diagonal cells, blocking puts, 4 time steps |
 * | btio-nonblocking | the same with nonblocking puts, waited for after each step |
 * | wrf | a WRF history: 4 records of 40 variables of 2 and 3 dimensions, floats, some staggered, and times as text; nonblocking puts |
 * | gets | 64 collective puts of 1 MiB, then ten times 64 gets of them |
 *
 * With the hint nc_burst_buf=enable, PnetCDF's own burst buffer driver is measured; a library that was built without it ignores
 * the hint, and the program says `no_driver 1` and does nothing.
 *
 * Prints a line: seconds of the puts, of the whole, puts a second and process, MiB; of `gets` before it one with the seconds of the
 * gets, and of copies of as many bytes in memory.
 */
#include <mpi.h>
#include <pnetcdf.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NC(call)                                                             \
	do {                                                                 \
		int code_ = (call);                                          \
		if (code_ != NC_NOERR) {                                     \
			fprintf(stderr, "%s: %s\n", #call, ncmpi_strerror(code_)); \
			MPI_Abort(MPI_COMM_WORLD, 1);                        \
		}                                                            \
	} while (0)

/* PnetCDF's burst buffer driver. */
extern void *ncbbio_inq_driver(void) __attribute__((weak));

static int rank, size, file;
static double puts_s;
static long puts_done;
static MPI_Offset put_bytes;

static void define(int rank_count, const MPI_Offset *lengths, int records, int count, int *variables)
{
	int dims[8];
	char name[32];
	for (int d = 0; d < rank_count; d++) {
		snprintf(name, sizeof name, "d%d", d);
		NC(ncmpi_def_dim(file, name, d == 0 && records ? NC_UNLIMITED : lengths[d], &dims[d]));
	}
	for (int v = 0; v < count; v++) {
		snprintf(name, sizeof name, "v%d", v);
		NC(ncmpi_def_var(file, name, NC_DOUBLE, rank_count, dims, &variables[v]));
	}
	NC(ncmpi_enddef(file));
}

static void small(void)
{
	enum { PUTS = 20000, WIDE = 128 };
	static double data[WIDE];
	int variable;
	MPI_Offset lengths[2] = { 0, (MPI_Offset)WIDE * size };
	define(2, lengths, 1, 1, &variable);
	for (int i = 0; i < WIDE; i++)
		data[i] = rank + i;
	double begun = MPI_Wtime();
	for (MPI_Offset i = 0; i < PUTS; i++) {
		MPI_Offset start[2] = { i, (MPI_Offset)WIDE * rank }, count[2] = { 1, WIDE };
		NC(ncmpi_put_vara_double_all(file, variable, start, count, data));
	}
	puts_s = MPI_Wtime() - begun;
	puts_done = PUTS;
	put_bytes = (MPI_Offset)PUTS * sizeof data;
}

static void flash(void)
{
	enum { VARIABLES = 24, BLOCKS = 40, SIDE = 8 };
	int variables[VARIABLES];
	MPI_Offset lengths[4] = { (MPI_Offset)BLOCKS * size, SIDE, SIDE, SIDE };
	MPI_Offset start[4] = { (MPI_Offset)BLOCKS * rank, 0, 0, 0 }, count[4] = { BLOCKS, SIDE, SIDE, SIDE };
	size_t elements = (size_t)BLOCKS * SIDE * SIDE * SIDE;
	double *data = malloc(elements * sizeof(double));
	for (size_t i = 0; i < elements; i++)
		data[i] = (double)i + rank;
	define(4, lengths, 0, VARIABLES, variables);
	double begun = MPI_Wtime();
	for (int v = 0; v < VARIABLES; v++)
		NC(ncmpi_put_vara_double_all(file, variables[v], start, count, data));
	puts_s = MPI_Wtime() - begun;
	puts_done = VARIABLES;
	put_bytes = (MPI_Offset)(VARIABLES * elements * sizeof(double));
	free(data);
}

static void btio(int is_blocking)
{
	enum { SIDE = 64, STEPS = 4, VALUES = 5 };
	int side = 1, variable, requests[64];
	while (side * side < size)
		side++;
	MPI_Offset lengths[5] = { 0, SIDE, SIDE, SIDE, VALUES };
	MPI_Offset cell = SIDE / side;
	size_t elements = (size_t)(cell * cell * cell) * VALUES;
	/* A cell of memory for each put: PnetCDF may turn its bytes around in place until it is waited for. */
	double *data = malloc((size_t)side * elements * sizeof(double));
	for (size_t i = 0; i < (size_t)side * elements; i++)
		data[i] = (double)i + rank;
	define(5, lengths, 1, 1, &variable);
	double begun = MPI_Wtime();
	for (MPI_Offset step = 0; step < STEPS; step++) {
		/* Diagonal multi-partitioning: one cell in each slice. */
		for (int slice = 0; slice < side; slice++) {
			MPI_Offset y = (rank / side + slice) % side, x = (rank % side + slice) % side;
			MPI_Offset start[5] = { step, slice * cell, y * cell, x * cell, 0 };
			MPI_Offset count[5] = { 1, cell, cell, cell, VALUES };
			double *mine = data + (size_t)slice * elements;
			if (is_blocking)
				NC(ncmpi_put_vara_double_all(file, variable, start, count, mine));
			else
				NC(ncmpi_iput_vara_double(file, variable, start, count, mine, &requests[slice]));
		}
		if (!is_blocking)
			NC(ncmpi_wait_all(file, side, requests, NULL));
	}
	puts_s = MPI_Wtime() - begun;
	puts_done = STEPS * side;
	put_bytes = (MPI_Offset)((size_t)(STEPS * side) * elements * sizeof(double));
	free(data);
}

/* The part of `length` points that process `index` of `count` has: where it begins, and how many. */
static void patch(MPI_Offset length, int index, int count, MPI_Offset *start, MPI_Offset *points)
{
	*start = length * index / count;
	*points = length * (index + 1) / count - *start;
}

static void wrf(void)
{
	enum { HISTORY = 4, FIELDS = 40, LEVELS = 20, NORTH = 60, EAST = 50, TEXT = 19 };
	int dims[5], times, fields[FIELDS], requests[FIELDS + 1], rows = size;
	/* Whole rows of processes, as square as can be. */
	for (int divisor = 1; divisor * divisor <= size; divisor++)
		if (size % divisor == 0)
			rows = size / divisor;
	int columns = size / rows, row = rank / columns, column = rank % columns;
	float *data = malloc(FIELDS * (LEVELS + 1) * (NORTH + 1) * (EAST + 1) * sizeof(float));
	NC(ncmpi_def_dim(file, "Time", NC_UNLIMITED, &dims[0]));
	NC(ncmpi_def_dim(file, "DateStrLen", TEXT, &dims[1]));
	NC(ncmpi_def_var(file, "Times", NC_CHAR, 2, dims, &times));
	/* Staggered fields have one point more: fields 1 from west to east, 2 from south to north, 3 from bottom to top, of each 4. */
	const char *names[6] = { "bottom_top", "bottom_top_stag", "south_north", "south_north_stag", "west_east", "west_east_stag" };
	int known[6];
	for (int i = 0; i < 6; i++)
		NC(ncmpi_def_dim(file, names[i], (MPI_Offset[]){ LEVELS, NORTH, EAST }[i / 2] + i % 2, &known[i]));
	for (int field = 0; field < FIELDS; field++) {
		char name[32];
		int is_flat = field >= FIELDS / 2, stagger = field % 4, rest = 1;
		snprintf(name, sizeof name, "field%d", field);
		if (!is_flat)
			dims[rest++] = known[0 + (stagger == 3)];
		dims[rest++] = known[2 + (stagger == 2)];
		dims[rest++] = known[4 + (stagger == 1)];
		NC(ncmpi_def_var(file, name, NC_FLOAT, rest, dims, &fields[field]));
	}
	NC(ncmpi_enddef(file));
	double begun = MPI_Wtime();
	for (MPI_Offset step = 0; step < HISTORY; step++) {
		char text[TEXT + 1];
		MPI_Offset text_start[2] = { step, 0 }, text_count[2] = { rank == 0, TEXT };
		float *next = data;
		int pending = 0;
		snprintf(text, sizeof text, "2026-01-01_%02d:00:00", (int)step);
		NC(ncmpi_put_vara_text_all(file, times, text_start, text_count, text));
		for (int field = 0; field < FIELDS; field++) {
			MPI_Offset start[4] = { step }, count[4] = { 1 };
			int is_flat = field >= FIELDS / 2, stagger = field % 4, rest = 1;
			if (!is_flat) {
				start[rest] = 0;
				count[rest++] = LEVELS + (stagger == 3);
			}
			patch(NORTH + (stagger == 2), row, rows, &start[rest], &count[rest]);
			rest++;
			patch(EAST + (stagger == 1), column, columns, &start[rest], &count[rest]);
			size_t elements = (size_t)(count[rest] * count[rest - 1] * (is_flat ? 1 : count[1]));
			for (size_t i = 0; i < elements; i++)
				next[i] = (float)(step * 1000 + field) + (float)(rank * 64 + i % 64) / 4096;
			NC(ncmpi_iput_vara_float(file, fields[field], start, count, next, &requests[pending++]));
			next += elements;
			puts_done++;
			put_bytes += (MPI_Offset)(elements * sizeof(float));
		}
		NC(ncmpi_wait_all(file, pending, requests, NULL));
	}
	puts_s = MPI_Wtime() - begun;
	free(data);
}

static void gets(void)
{
	enum { GETS = 64, WIDE = 1 << 17, ROUNDS = 10 };
	double *data = calloc(WIDE * 2, sizeof(double)), own[2], longest[2];
	int variable, wrong = 0;
	MPI_Offset lengths[2] = { GETS, (MPI_Offset)WIDE * size };
	MPI_Offset start[2] = { 0, (MPI_Offset)WIDE * rank }, count[2] = { 1, WIDE };
	define(2, lengths, 0, 1, &variable);
	double begun = MPI_Wtime();
	for (start[0] = 0; start[0] < GETS; start[0]++) {
		data[0] = (double)start[0];
		NC(ncmpi_put_vara_double_all(file, variable, start, count, data));
	}
	puts_s = MPI_Wtime() - begun;
	puts_done = GETS;
	put_bytes = (MPI_Offset)GETS * WIDE * sizeof(double);
	begun = MPI_Wtime();
	for (int round = 0; round < ROUNDS; round++)
		for (start[0] = 0; start[0] < GETS; start[0]++) {
			NC(ncmpi_get_vara_double_all(file, variable, start, count, data + WIDE));
			wrong += data[WIDE] != (double)start[0];
		}
	own[0] = MPI_Wtime() - begun;
	if (wrong) {
		fprintf(stderr, "%d gets gave other data\n", wrong);
		MPI_Abort(MPI_COMM_WORLD, 1);
	}
	/* From memory that no cache holds, as the log. */
	char *far = malloc((size_t)put_bytes);
	memset(far, 1, (size_t)put_bytes);
	begun = MPI_Wtime();
	for (int round = 0; round < ROUNDS; round++)
		for (size_t at = 0; at < (size_t)put_bytes; at += WIDE * sizeof(double)) {
			memcpy(data + WIDE, far + at, WIDE * sizeof(double));
			MPI_Barrier(MPI_COMM_WORLD);
		}
	own[1] = MPI_Wtime() - begun;
	MPI_Reduce(own, longest, 2, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
	if (rank == 0)
		printf("gets_s %.4f copies_s %.4f\n", longest[0], longest[1]);
	free(far);
	free(data);
}

int main(int argc, char **argv)
{
	MPI_Info info;
	double longest[2], own[2];
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &size);
	MPI_Info_create(&info);
	for (int i = 3; i < argc; i++) {
		char *value = strchr(argv[i], '=');
		*value = 0;
		MPI_Info_set(info, argv[i], value + 1);
		if (strcmp(argv[i], "nc_burst_buf") == 0 && ncbbio_inq_driver == NULL) {
			if (rank == 0)
				printf("no_driver 1\n");
			MPI_Info_free(&info);
			MPI_Finalize();
			return 0;
		}
	}
	MPI_Barrier(MPI_COMM_WORLD);
	double begun = MPI_Wtime();
	NC(ncmpi_create(MPI_COMM_WORLD, argv[1], NC_CLOBBER | NC_64BIT_DATA, info, &file));
	if (strcmp(argv[2], "small") == 0)
		small();
	else if (strcmp(argv[2], "flash") == 0)
		flash();
	else if (strcmp(argv[2], "wrf") == 0)
		wrf();
	else if (strcmp(argv[2], "gets") == 0)
		gets();
	else
		btio(strcmp(argv[2], "btio") == 0);
	NC(ncmpi_close(file));
	own[0] = puts_s;
	own[1] = MPI_Wtime() - begun;
	MPI_Reduce(own, longest, 2, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
	if (rank == 0)
		printf("%s puts_s %.4f whole_s %.4f puts_per_s %.0f MiB %.1f\n", argv[2], longest[0], longest[1],
		       (double)puts_done / longest[0], (double)put_bytes * size / (1 << 20));
	MPI_Info_free(&info);
	MPI_Finalize();
	return 0;
}
