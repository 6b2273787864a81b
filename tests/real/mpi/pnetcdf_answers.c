/*
 * What PnetCDF says of puts that are not in the file yet: records, requests, sizes, and errors. All checks hold without weir, too.
 *
 *   mpiexec -n N pnetcdf_answers DIR
 */
#include "mpi_check.h"
#include <pnetcdf.h>

enum { WIDTH = 10 };

#define NC(call) CODE(call, NC_NOERR)
#define CODE(call, wanted) ALL(gives((call), (wanted), #call), "%s gives %s", #call, #wanted)

static int file, time_dim, wide, narrow;

static int gives(int code, int wanted, const char *call)
{
	if (code != wanted)
		printf("  process %d: %.80s: %s\n", rank, call, ncmpi_strerror(code));
	return code == wanted;
}

static long long records(void)
{
	MPI_Offset length = -1;
	ncmpi_inq_dimlen(file, time_dim, &length);
	return length;
}

static long long put_size(void)
{
	MPI_Offset bytes = -1;
	ncmpi_inq_put_size(file, &bytes);
	return bytes;
}

static int requests(void)
{
	int count = -1;
	ncmpi_inq_nreqs(file, &count);
	return count;
}

static void define(const char *path)
{
	int dims[2];
	NC(ncmpi_create(MPI_COMM_WORLD, path, NC_CLOBBER, MPI_INFO_NULL, &file));
	NC(ncmpi_def_dim(file, "time", NC_UNLIMITED, &dims[0]));
	NC(ncmpi_def_dim(file, "x", (MPI_Offset)WIDTH * size, &dims[1]));
	NC(ncmpi_def_var(file, "wide", NC_INT, 2, dims, &wide));
	NC(ncmpi_def_var(file, "narrow", NC_INT, 1, dims, &narrow));
	NC(ncmpi_enddef(file));
	time_dim = dims[0];
}

int main(int argc, char **argv)
{
	mpi_check_begin(argc, argv);
	const char *path = in_dir("answers.nc");
	int mine[WIDTH], back[WIDTH], first, second, status;
	MPI_Offset start[2] = {0, (MPI_Offset)WIDTH * rank}, count[2] = {1, WIDTH}, own = rank, far = 100;
	for (int i = 0; i < WIDTH; i++)
		mine[i] = 1000 * rank + i;
	define(path);

	/* Each process puts another record: all of them append at the same place then. */
	NC(ncmpi_put_var1_int_all(file, narrow, &own, &rank));
	ALL(records() == size, "the records of all processes: %lld", records());
	own += size;
	NC(ncmpi_put_var1_int_all(file, narrow, &own, &rank));
	ALL(records() == 2 * size, "and again: %lld", records());

	/* Of a variable that has fewer records than the file. */
	NC(ncmpi_put_vara_int_all(file, wide, start, count, mine));
	start[0] = 2 * size - 1;
	NC(ncmpi_get_vara_int_all(file, wide, start, count, back));
	start[0] = 2 * size;
	CODE(ncmpi_get_vara_int_all(file, wide, start, count, back), NC_EINVALCOORDS);

	/* A nonblocking put is done by its wait. */
	long long before = put_size();
	start[0] = 2 * size;
	NC(ncmpi_iput_vara_int(file, wide, start, count, mine, &first));
	NC(ncmpi_iput_var1_int(file, narrow, &far, &rank, &second));
	ALL(requests() == 2, "two requests");
	ALL(records() == 2 * size && put_size() == before, "they count for nothing yet");
	CODE(ncmpi_get_vara_int_all(file, wide, start, count, back), NC_EINVALCOORDS);
	NC(ncmpi_cancel(file, 1, &second, &status));
	NC(ncmpi_sync(file));
	ALL(records() == 2 * size && requests() == 1, "neither is done by a sync");
	NC(ncmpi_wait_all(file, 1, &first, &status));
	ALL(status == NC_NOERR && records() == 2 * size + 1 && requests() == 0, "one is done, the other is not");
	NC(ncmpi_get_vara_int_all(file, wide, start, count, back));
	ALL(memcmp(back, mine, sizeof mine) == 0, "it has its data");
	long long after = put_size();
	ALL(after >= before + (long long)sizeof mine, "its bytes are counted: %lld and %lld", before, after);
	NC(ncmpi_sync(file));
	ALL(put_size() >= after, "a sync counts none of them back");

	/* One that is larger than the budget of a log, after an older one that is not. */
	for (int i = 0; i < WIDTH; i++)
		back[i] = -1;
	NC(ncmpi_put_var1_int_all(file, wide, start, back));
	NC(ncmpi_iput_vara_int(file, wide, start, count, mine, &first));
	NC(ncmpi_wait_all(file, 1, &first, &status));
	NC(ncmpi_get_vara_int_all(file, wide, start, count, back));
	ALL(memcmp(back, mine, sizeof mine) == 0, "the later one stays");

	/* Values that do not fit take their place in the buffer all the same. */
	double vast[WIDTH];
	for (int i = 0; i < WIDTH; i++)
		vast[i] = 1e30;
	MPI_Offset used = -1;
	NC(ncmpi_buffer_attach(file, sizeof mine));
	CODE(ncmpi_bput_vara_double(file, wide, start, count, vast, &first), NC_ERANGE);
	NC(ncmpi_inq_buffer_usage(file, &used));
	ALL(used == sizeof mine, "bytes of the buffer: %lld", (long long)used);
	CODE(ncmpi_buffer_detach(file), NC_EPENDINGBPUT);
	ncmpi_wait_all(file, 1, &first, &status);
	NC(ncmpi_buffer_detach(file));

	/* A list of parts, which one process has with gaps in memory, and the others without. */
	MPI_Offset at[2][2] = {{0, start[1]}, {1, start[1]}}, *starts[2] = {at[0], at[1]}, *counts[2] = {count, count};
	int gaps[4 * WIDTH], plain[2 * WIDTH], is_odd = rank == size - 1;
	MPI_Datatype every_other;
	MPI_Type_vector(2 * WIDTH, 1, 2, MPI_INT, &every_other);
	MPI_Type_commit(&every_other);
	for (int i = 0; i < 2 * WIDTH; i++)
		gaps[2 * i] = plain[i] = 7000 * rank + i;
	NC(ncmpi_put_varn_all(file, wide, 2, starts, counts, is_odd ? (void *)gaps : (void *)plain, is_odd ? 1 : 2 * WIDTH,
	                      is_odd ? every_other : MPI_INT));
	start[0] = 1;
	NC(ncmpi_get_vara_int_all(file, wide, start, count, back));
	ALL(memcmp(back, plain + WIDTH, sizeof back) == 0, "the second part of the list");
	MPI_Type_free(&every_other);

	CODE(ncmpi_put_vara_int_all(file, wide, NULL, count, mine), NC_EINVALCOORDS);
	CODE(ncmpi_put_vara_int_all(file, wide, start, NULL, mine), NC_EEDGE);

	/* One that is never waited for. */
	NC(ncmpi_iput_var1_int(file, narrow, &far, &rank, &first));
	CODE(ncmpi_close(file), NC_EPENDING);
	NC(ncmpi_open(MPI_COMM_WORLD, path, NC_NOWRITE, MPI_INFO_NULL, &file));
	ALL(records() == 2 * size + 1, "it is not in the file");
	NC(ncmpi_close(file));
	return mpi_check_end();
}
