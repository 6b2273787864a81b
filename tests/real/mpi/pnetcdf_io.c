/*
 * PnetCDF: a CDF-5 file with fixed and record variables, written collectively, independently, non-blocking and by varn lists,
 * redefined, read back by others. The script that starts it runs ncvalidator, ncdump and nccopy on the result.
 */
#include "mpi_check.h"
#include <pnetcdf.h>

enum { ROWS = 64, COLUMNS = 500, RECORDS = 6 };

#define NC(call) ALL(nc_ok((call), #call), "%s", #call)

static int nc_ok(int code, const char *call)
{
	if (code != NC_NOERR)
		printf("  process %d: %.80s: %s\n", rank, call, ncmpi_strerror(code));
	return code == NC_NOERR;
}

static double field(MPI_Offset record, MPI_Offset row, MPI_Offset column)
{
	return (double)(record * 1000000 + row * 1000 + column);
}

int main(int argc, char **argv)
{
	int file, dims[3], fixed, records, extra, requests[RECORDS], statuses[RECORDS], wrong = 0, code;
	mpi_check_begin(argc, argv);
	MPI_Offset rows = ROWS / size, start[3] = {0, rows * rank, 0}, count[3] = {1, rows, COLUMNS};
	size_t piece = (size_t)(rows * COLUMNS);
	double *mine = malloc(sizeof(double) * piece * RECORDS), *back = malloc(sizeof(double) * ROWS * COLUMNS);
	MUST(mine && back);
	NC(ncmpi_create(MPI_COMM_WORLD, in_dir("file.nc"), NC_CLOBBER | NC_64BIT_DATA, MPI_INFO_NULL, &file));
	NC(ncmpi_def_dim(file, "time", NC_UNLIMITED, &dims[0]));
	NC(ncmpi_def_dim(file, "y", ROWS, &dims[1]));
	NC(ncmpi_def_dim(file, "x", COLUMNS, &dims[2]));
	NC(ncmpi_def_var(file, "fixed", NC_DOUBLE, 2, dims + 1, &fixed));
	NC(ncmpi_def_var(file, "records", NC_DOUBLE, 3, dims, &records));
	NC(ncmpi_put_att_text(file, NC_GLOBAL, "title", 7, "a check"));
	NC(ncmpi_enddef(file));
	for (MPI_Offset t = 0; t < RECORDS; t++)
		for (size_t i = 0; i < piece; i++)
			mine[(size_t)t * piece + i] = field(t, start[1] + (MPI_Offset)i / COLUMNS, (MPI_Offset)i % COLUMNS);
	NC(ncmpi_put_vara_double_all(file, fixed, start + 1, count + 1, mine));
	for (int t = 0; t < 3; t++) {
		start[0] = t;
		NC(ncmpi_put_vara_double_all(file, records, start, count, mine + (size_t)t * piece));
	}
	NC(ncmpi_begin_indep_data(file));
	start[0] = 3;
	code = ncmpi_put_vara_double(file, records, start, count, mine + 3 * piece);
	ALL(nc_ok(code, "put_vara_double"), "independent write of a record");
	NC(ncmpi_end_indep_data(file));
	for (int t = 4; t < RECORDS; t++) {
		start[0] = t;
		MUST(ncmpi_iput_vara_double(file, records, start, count, mine + (size_t)t * piece, &requests[t - 4]) == NC_NOERR);
	}
	NC(ncmpi_wait_all(file, 2, requests, statuses));
	NC(ncmpi_sync(file));
	MPI_Barrier(MPI_COMM_WORLD);
	for (int t = 0; t < RECORDS; t++) {
		MPI_Offset from[3] = {t, 0, 0}, all[3] = {1, ROWS, COLUMNS};
		MUST(ncmpi_get_vara_double_all(file, records, from, all, back) == NC_NOERR);
		for (int i = 0; i < rows * size * COLUMNS; i++)
			wrong += back[i] != field(t, i / COLUMNS, i % COLUMNS);
	}
	ALL(wrong == 0, "every process reads all records (%d wrong)", wrong);
	/* Redefinition moves what lies behind the header. */
	NC(ncmpi_redef(file));
	NC(ncmpi_def_var(file, "extra", NC_INT, 1, dims + 1, &extra));
	char text[5000];
	memset(text, 'h', sizeof text);
	NC(ncmpi_put_att_text(file, NC_GLOBAL, "history", sizeof text, text));
	NC(ncmpi_enddef(file));
	int numbers[ROWS];
	for (int i = 0; i < rows; i++)
		numbers[i] = (int)start[1] + i;
	NC(ncmpi_put_vara_int_all(file, extra, start + 1, count + 1, numbers));
	NC(ncmpi_close(file));
	NC(ncmpi_open(MPI_COMM_WORLD, in_dir("file.nc"), NC_NOWRITE, MPI_INFO_NULL, &file));
	MPI_Offset length;
	NC(ncmpi_inq_dimlen(file, dims[0], &length));
	ALL(length == RECORDS, "six records");
	/* Every other column, of another process's rows. */
	MPI_Offset other = (rank + 1) % size, from[3] = {5, rows * other, 0}, some[3] = {1, rows, COLUMNS / 2}, stride[3] = {1, 1, 2};
	NC(ncmpi_get_vars_double_all(file, records, from, some, stride, back));
	wrong = 0;
	for (int i = 0; i < rows * (COLUMNS / 2); i++)
		wrong += back[i] != field(5, from[1] + i / (COLUMNS / 2), i % (COLUMNS / 2) * 2);
	ALL(wrong == 0, "a strided read after the header grew (%d wrong)", wrong);
	NC(ncmpi_close(file));
	free(mine);
	free(back);
	return mpi_check_end();
}
