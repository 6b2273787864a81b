/*
 * Calls of PnetCDF, drawn from a seed: puts and gets of all kinds, modes, requests, wrong arguments. Each process writes what
 * came of each call to a trace. With and without the connector the traces and the files must be the same.
 *
 *   mpiexec -n N calls FILE TRACE SEED TURNS [HINT]
 *
 * Each process has columns of its own in each variable and writes only there, so that the order of the processes does not
 * matter; it reads its own columns at any time, and those of others after a sync. Requests that are not waited for yet never
 * overlap. Arguments are wrong in all processes or in none: else a collective call of PnetCDF hangs.
 */
#include <mpi.h>
#include <pnetcdf.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WIDTH = 24, ROWS = 10, RECORDS = 7, VARIABLES = 8, REQUESTS = 16, MOST = ROWS * WIDTH * 2 };

static int rank, size, file;
static FILE *trace;
static uint64_t common, own;
static const nc_type types[VARIABLES] = { NC_INT, NC_DOUBLE, NC_SHORT, NC_FLOAT, NC_BYTE, NC_CHAR, NC_INT64, NC_UBYTE };
static int variables[VARIABLES], is_record[VARIABLES];

static uint64_t draw(uint64_t *state, uint64_t below)
{
	*state = *state * 6364136223846793005u + 1442695040888963407u;
	return (*state >> 33) % below;
}

/* The same in all processes. */
static uint64_t all(uint64_t below)
{
	return draw(&common, below);
}

static uint64_t mine(uint64_t below)
{
	return draw(&own, below);
}

__attribute__((format(printf, 1, 2))) static void note(const char *format, ...)
{
	va_list args;
	va_start(args, format);
	vfprintf(trace, format, args);
	va_end(args);
	fputc('\n', trace);
	fflush(trace);
}

static uint64_t sum(const void *data, size_t bytes)
{
	uint64_t hash = 14695981039346656037u;
	for (size_t i = 0; i < bytes; i++)
		hash = (hash ^ ((const unsigned char *)data)[i]) * 1099511628211u;
	return hash;
}

static void die(const char *what, int code)
{
	fprintf(stderr, "process %d: %s: %s\n", rank, what, ncmpi_strerror(code));
	MPI_Abort(MPI_COMM_WORLD, 1);
}

#define NC(call)                                \
	do {                                    \
		int code_ = (call);             \
		if (code_ != NC_NOERR)          \
			die(#call, code_);      \
	} while (0)

/* A part of a variable: rows that the caller gives, this process's columns. */
struct part {
	MPI_Offset start[2], count[2], stride[2], map[2];
	MPI_Offset elements;
};

/* Rows from `row` on. A few parts of each hundred are wrong. */
static struct part draw_part(MPI_Offset row, MPI_Offset rows, int is_strided)
{
	struct part part;
	MPI_Offset from = mine(WIDTH);
	part.stride[0] = 1;
	part.stride[1] = is_strided ? 1 + mine(3) : 1;
	part.start[0] = row;
	part.start[1] = (MPI_Offset)rank * WIDTH + from;
	part.count[0] = rows;
	part.count[1] = mine((WIDTH - 1 - from) / part.stride[1] + 1) + (mine(20) > 0);
	if (part.count[1] > (WIDTH - 1 - from) / part.stride[1] + 1)
		part.count[1] = (WIDTH - 1 - from) / part.stride[1] + 1;
	/* In memory the columns are apart by one, the rows by their length: transposed or not. */
	part.map[0] = mine(2) ? part.count[1] : 1;
	part.map[1] = part.map[0] == 1 ? part.count[0] : 1;
	if (all(40) == 0) {
		switch (all(5)) {
		case 0: part.start[1] = (MPI_Offset)size * WIDTH + 1; break;
		case 1: part.count[1] = (MPI_Offset)size * WIDTH + 1; break;
		case 2: part.count[1] = -1; break;
		case 3: part.start[1] = -1; break;
		case 4: part.stride[1] = is_strided ? 0 : 1; break;
		}
	}
	part.elements = part.count[0] * part.count[1];
	if (part.elements < 0 || part.elements > MOST)
		part.elements = 0;
	return part;
}

static int ints[MOST];
static double doubles[MOST];
static float floats[MOST];
static short shorts[MOST];
static long long longs[MOST];
static unsigned char bytes[MOST];
static char text[MOST];

/* Values for memory of all kinds; a few that fit not all types, if these are permitted. */
static void fill(int may_be_wide)
{
	int is_wide = may_be_wide && mine(12) == 0, lowest = may_be_wide ? -20 : 0;
	for (int i = 0; i < MOST; i++) {
		int64_t value = (int64_t)mine(is_wide ? 1u << 31 : 100) - (is_wide ? 1 << 30 : 0) + (is_wide ? 0 : lowest);
		ints[i] = (int)value;
		doubles[i] = (double)value * (is_wide ? 1e30 : 1.25);
		floats[i] = (float)value / 4;
		shorts[i] = (short)value;
		longs[i] = value * (is_wide ? 1 << 20 : 1);
		bytes[i] = (unsigned char)value;
		text[i] = (char)('a' + (value & 15));
	}
}

/* The functions of one type, by the number of the memory's type. */
#define BY_TYPE(kind, call)                                     \
	switch (kind) {                                         \
	case 0: code = call(int, ints); break;                  \
	case 1: code = call(double, doubles); break;            \
	case 2: code = call(float, floats); break;              \
	case 3: code = call(short, shorts); break;              \
	case 4: code = call(longlong, longs); break;            \
	case 5: code = call(uchar, bytes); break;               \
	default: code = call(text, text); break;                \
	}

/* Mostly a kind that fits the variable. */
static int draw_kind(int v)
{
	if (all(30) == 0)
		return types[v] == NC_CHAR ? 0 : 6;
	return types[v] == NC_CHAR ? 6 : (int)mine(6);
}

static const size_t kind_bytes[7] = { sizeof(int), 8, 4, 2, 8, 1, 1 };

static void *memory(int kind)
{
	void *all_kinds[7] = { ints, doubles, floats, shorts, longs, bytes, text };
	return all_kinds[kind];
}

static MPI_Datatype datatype(int kind)
{
	MPI_Datatype all_kinds[7] = { MPI_INT, MPI_DOUBLE, MPI_FLOAT, MPI_SHORT, MPI_LONG_LONG, MPI_UNSIGNED_CHAR, MPI_CHAR };
	return all_kinds[kind];
}

/* With text and numbers mixed the flexible functions of PnetCDF 1.12 end the program. */
static int flexible(int v, int kind)
{
	return types[v] == NC_CHAR ? 6 : kind == 6 ? 0 : kind;
}

static MPI_Offset draw_row(int v, MPI_Offset rows)
{
	return (MPI_Offset)all((is_record[v] ? RECORDS : ROWS) - rows + 1);
}

/* A blocking put; the way is the same in all processes, the rest their own. */
static void put(int is_collective)
{
	int v = (int)all(VARIABLES), kind = draw_kind(v), way = (int)all(7), code = 0;
	MPI_Offset rows = 1 + all(3), row = draw_row(v, rows);
	struct part p = draw_part(row, rows, way == 1 || way == 2);
	MPI_Offset *starts[3], *counts[3], one[3][2], two[3][2];
	MPI_Datatype apart;
	/* PnetCDF 1.12 keeps the requests of a varn put whose values do not fit, and does them later. */
	fill(way != 4);
#define VARA(name, data) (is_collective ? ncmpi_put_vara_##name##_all(file, variables[v], p.start, p.count, data) \
					: ncmpi_put_vara_##name(file, variables[v], p.start, p.count, data))
#define VARS(name, data) (is_collective ? ncmpi_put_vars_##name##_all(file, variables[v], p.start, p.count, p.stride, data) \
					: ncmpi_put_vars_##name(file, variables[v], p.start, p.count, p.stride, data))
#define VARM(name, data) (is_collective ? ncmpi_put_varm_##name##_all(file, variables[v], p.start, p.count, p.stride, p.map, data) \
					: ncmpi_put_varm_##name(file, variables[v], p.start, p.count, p.stride, p.map, data))
#define VAR1(name, data) (is_collective ? ncmpi_put_var1_##name##_all(file, variables[v], p.start, data) \
					: ncmpi_put_var1_##name(file, variables[v], p.start, data))
#define VARN(name, data) (is_collective ? ncmpi_put_varn_##name##_all(file, variables[v], 3, starts, counts, data) \
					: ncmpi_put_varn_##name(file, variables[v], 3, starts, counts, data))
	switch (way) {
	case 0: BY_TYPE(kind, VARA); break;
	case 1: BY_TYPE(kind, VARS); break;
	case 2: BY_TYPE(kind, VARM); break;
	case 3: BY_TYPE(kind, VAR1); break;
	case 4:
		for (int i = 0; i < 3; i++) {
			one[i][0] = draw_row(v, 1);
			one[i][1] = (MPI_Offset)rank * WIDTH + i * 7;
			two[i][0] = 1;
			two[i][1] = 1 + (MPI_Offset)mine(6);
			starts[i] = one[i];
			counts[i] = two[i];
		}
		BY_TYPE(kind, VARN);
		break;
	case 5:
		kind = flexible(v, kind);
		code = is_collective ? ncmpi_put_vara_all(file, variables[v], p.start, p.count, memory(kind), p.elements, datatype(kind))
				     : ncmpi_put_vara(file, variables[v], p.start, p.count, memory(kind), p.elements, datatype(kind));
		break;
	default:
		/* Every second element of memory. */
		kind = flexible(v, kind);
		if (p.elements * 2 > MOST)
			p.elements = p.count[1] = 0;
		MPI_Type_vector((int)p.elements, 1, 2, datatype(kind), &apart);
		MPI_Type_commit(&apart);
		code = is_collective ? ncmpi_put_vara_all(file, variables[v], p.start, p.count, memory(kind), 1, apart)
				     : ncmpi_put_vara(file, variables[v], p.start, p.count, memory(kind), 1, apart);
		MPI_Type_free(&apart);
	}
	note("put %d way %d kind %d rows %lld+%lld columns %lld+%lld: %d", v, way, kind, (long long)row, (long long)rows,
	     (long long)p.start[1], (long long)p.count[1], code);
}

/* A blocking get of this process's columns. */
static void get(int is_collective)
{
	int v = (int)all(VARIABLES), kind = draw_kind(v), way = (int)all(5), code = 0;
	MPI_Offset rows = 1 + all(2), row = draw_row(v, rows);
	struct part p = draw_part(row, rows, way == 1 || way == 2);
	memset(memory(kind), 0, MOST);
#define GET_VARA(name, data) (is_collective ? ncmpi_get_vara_##name##_all(file, variables[v], p.start, p.count, data) \
					    : ncmpi_get_vara_##name(file, variables[v], p.start, p.count, data))
#define GET_VARS(name, data) (is_collective ? ncmpi_get_vars_##name##_all(file, variables[v], p.start, p.count, p.stride, data) \
					    : ncmpi_get_vars_##name(file, variables[v], p.start, p.count, p.stride, data))
#define GET_VARM(name, data) (is_collective ? ncmpi_get_varm_##name##_all(file, variables[v], p.start, p.count, p.stride, p.map, data) \
					    : ncmpi_get_varm_##name(file, variables[v], p.start, p.count, p.stride, p.map, data))
#define GET_VAR1(name, data) (is_collective ? ncmpi_get_var1_##name##_all(file, variables[v], p.start, data) \
					    : ncmpi_get_var1_##name(file, variables[v], p.start, data))
	switch (way) {
	case 0: BY_TYPE(kind, GET_VARA); break;
	case 1: BY_TYPE(kind, GET_VARS); break;
	case 2: BY_TYPE(kind, GET_VARM); break;
	case 3: BY_TYPE(kind, GET_VAR1); break;
	default:
		kind = flexible(v, kind);
		code = is_collective ? ncmpi_get_vara_all(file, variables[v], p.start, p.count, memory(kind), p.elements, datatype(kind))
				     : ncmpi_get_vara(file, variables[v], p.start, p.count, memory(kind), p.elements, datatype(kind));
	}
	/* With a wrong argument, or a value that does not fit, the rest of the memory may be anything. */
	note("get %d way %d kind %d rows %lld+%lld: %d %016llx", v, way, kind, (long long)row, (long long)rows, code,
	     (unsigned long long)(code == NC_NOERR ? sum(memory(kind), MOST * kind_bytes[kind] / 8) : 0));
}

/* Requests: each has a row of its own, so that they do not overlap. */
static void requests(int is_collective)
{
	int ids[REQUESTS], statuses[REQUESTS], count = 0, pending, is_buffered = all(2) == 0, code;
	static int data[REQUESTS][WIDTH], read[WIDTH];
	int v = (int)all(2), first = (int)all(3), wanted = 1 + (int)all(4), reads = all(3) == 0;
	MPI_Offset usage = -1;
	if (is_buffered)
		NC(ncmpi_buffer_attach(file, 1 << 20));
	for (int i = 0; i < wanted; i++) {
		MPI_Offset start[2] = { first + i, (MPI_Offset)rank * WIDTH }, length[2] = { 1, WIDTH };
		for (int x = 0; x < WIDTH; x++)
			data[i][x] = (int)mine(1000);
		code = is_buffered ? ncmpi_bput_vara_int(file, variables[v], start, length, data[i], &ids[count])
				   : ncmpi_iput_vara_int(file, variables[v], start, length, data[i], &ids[count]);
		note("begin %d: %d", i, code);
		if (code == NC_NOERR)
			count++;
	}
	NC(ncmpi_inq_nreqs(file, &pending));
	if (is_buffered)
		NC(ncmpi_inq_buffer_usage(file, &usage));
	note("pending %d usage %lld", pending, (long long)usage);
	if (count > 0 && mine(8) == 0) {
		code = ncmpi_cancel(file, 1, &ids[count - 1], &statuses[0]);
		note("cancel: %d %d %d", code, statuses[0], ids[count - 1] == NC_REQ_NULL);
	}
	if (reads) {
		/* Of a row that no request writes. */
		MPI_Offset start[2] = { first + wanted, (MPI_Offset)rank * WIDTH }, length[2] = { 1, WIDTH };
		code = ncmpi_iget_vara_int(file, variables[0], start, length, read, &ids[count]);
		note("begin to read: %d", code);
		if (code == NC_NOERR)
			count++;
	}
	switch (all(3)) {
	case 0:
		code = is_collective ? ncmpi_wait_all(file, NC_REQ_ALL, NULL, NULL) : ncmpi_wait(file, NC_REQ_ALL, NULL, NULL);
		note("wait for all: %d", code);
		break;
	default:
		code = is_collective ? ncmpi_wait_all(file, count, ids, statuses) : ncmpi_wait(file, count, ids, statuses);
		note("wait for %d: %d", count, code);
		for (int i = 0; i < count; i++)
			note("status %d %d", statuses[i], ids[i] == NC_REQ_NULL);
	}
	if (reads)
		note("read %016llx", (unsigned long long)sum(read, sizeof read));
	NC(ncmpi_inq_nreqs(file, &pending));
	note("pending %d", pending);
	if (is_buffered)
		NC(ncmpi_buffer_detach(file));
}

/* Several variables in one call. */
static void multi(void)
{
	int both[2] = { variables[0], variables[1] }, code;
	MPI_Offset start[2][2], count[2][2], *starts[2] = { start[0], start[1] }, *counts[2] = { count[0], count[1] };
	float *data[2] = { floats, floats + WIDTH };
	fill(0);
	for (int i = 0; i < 2; i++) {
		start[i][0] = all(ROWS - 4);
		start[i][1] = (MPI_Offset)rank * WIDTH;
		count[i][0] = 1;
		count[i][1] = WIDTH;
	}
	code = ncmpi_mput_vara_float_all(file, 2, both, starts, counts, data);
	note("mput: %d", code);
}

/* After a sync all processes see all. */
static void check_all(void)
{
	int code;
	MPI_Offset records;
	NC(ncmpi_sync(file));
	MPI_Barrier(MPI_COMM_WORLD);
	NC(ncmpi_sync(file));
	NC(ncmpi_inq_dimlen(file, 0, &records));
	note("records %lld", (long long)records);
	for (int v = 0; v < VARIABLES; v++) {
		MPI_Offset rows = is_record[v] ? records : ROWS, wide = (MPI_Offset)size * WIDTH;
		MPI_Offset start[2] = { 0, 0 }, count[2] = { rows, wide };
		double *values = calloc((size_t)(rows * wide) + 1, sizeof(double));
		code = types[v] == NC_CHAR ? ncmpi_get_vara_text_all(file, variables[v], start, count, (char *)values)
					   : ncmpi_get_vara_double_all(file, variables[v], start, count, values);
		note("all of %d: %d %016llx", v, code, (unsigned long long)sum(values, (size_t)(rows * wide) * sizeof(double)));
		free(values);
	}
}

static void define(const char *path, MPI_Info info)
{
	int dims[2], row;
	char name[32];
	NC(ncmpi_create(MPI_COMM_WORLD, path, NC_CLOBBER | NC_64BIT_DATA, info, &file));
	NC(ncmpi_def_dim(file, "time", NC_UNLIMITED, &dims[0]));
	NC(ncmpi_def_dim(file, "row", ROWS, &row));
	NC(ncmpi_def_dim(file, "x", (MPI_Offset)size * WIDTH, &dims[1]));
	for (int v = 0; v < VARIABLES; v++) {
		int both[2] = { dims[0], dims[1] };
		is_record[v] = v % 3 != 0;
		if (!is_record[v])
			both[0] = row;
		snprintf(name, sizeof name, "variable%d", v);
		NC(ncmpi_def_var(file, name, types[v], 2, both, &variables[v]));
	}
	NC(ncmpi_set_fill(file, NC_FILL, NULL));
	NC(ncmpi_enddef(file));
}

int main(int argc, char **argv)
{
	char name[4096];
	int turns, attributes = 0;
	MPI_Info info = MPI_INFO_NULL;
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &size);
	if (argc < 5)
		return 2;
	snprintf(name, sizeof name, "%s.%d", argv[2], rank);
	trace = fopen(name, "w");
	common = strtoull(argv[3], NULL, 10) * 1000003 + 7;
	own = common + 77 * (uint64_t)rank + 1;
	turns = atoi(argv[4]);
	if (argc > 5) {
		MPI_Info_create(&info);
		MPI_Info_set(info, argv[5], "disable");
	}
	define(argv[1], info);
	/* Records exist from here on, so that fill values are those of ncmpi_fill_var_rec. */
	for (int v = 0; v < VARIABLES; v++)
		for (int r = 0; is_record[v] && r < RECORDS; r++)
			NC(ncmpi_fill_var_rec(file, variables[v], r));
	for (int turn = 0; turn < turns; turn++) {
		note("turn %d", turn);
		switch (all(14)) {
		case 0: case 1: case 2: case 3: case 4: put(1); break;
		case 5: case 6: get(1); break;
		case 7: requests(1); break;
		case 8: multi(); break;
		case 9:
			NC(ncmpi_begin_indep_data(file));
			for (int i = 0; i < 4; i++)
				switch (all(4)) {
				case 0: case 1: put(0); break;
				case 2: get(0); break;
				case 3: requests(0); break;
				}
			NC(ncmpi_end_indep_data(file));
			break;
		case 10:
			check_all();
			break;
		case 11:
			if (all(3) == 0) {
				NC(ncmpi_redef(file));
				snprintf(name, sizeof name, "attribute%d", attributes++);
				NC(ncmpi_put_att_text(file, NC_GLOBAL, name, 5, "value"));
				NC(ncmpi_enddef(file));
			}
			break;
		case 12:
			if (all(4) == 0) {
				note("close: %d", ncmpi_close(file));
				NC(ncmpi_open(MPI_COMM_WORLD, argv[1], NC_WRITE, info, &file));
			}
			break;
		default: {
			int r = (int)all(RECORDS), v = 1;
			note("fill: %d", ncmpi_fill_var_rec(file, variables[v], r));
			/* The wrong mode. */
			int code = ncmpi_put_var1_int(file, variables[0], (MPI_Offset[]){ 0, 0 }, ints);
			note("wrong mode: %d", code);
		}
		}
	}
	check_all();
	note("close: %d", ncmpi_close(file));
	if (info != MPI_INFO_NULL)
		MPI_Info_free(&info);
	fclose(trace);
	MPI_Finalize();
	return 0;
}
