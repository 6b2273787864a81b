/*
 * Parallel NetCDF-4 (through parallel HDF5): collective access, an unlimited dimension, chunks, the classic model. Debian's library is built
 * without PnetCDF below it, so classic files in parallel are checked by pnetcdf_io.c alone.
 */
#include "mpi_check.h"
#include <netcdf.h>
#include <netcdf_par.h>

enum { ROWS = 64, COLUMNS = 400 };

#define NC(call) ALL(nc_ok((call), #call), "%s", #call)

static int nc_ok(int code, const char *call)
{
	if (code != NC_NOERR)
		printf("  process %d: %.80s: %s\n", rank, call, nc_strerror(code));
	return code == NC_NOERR;
}

static void one(const char *name, int mode, int access, int chunked)
{
	int file, dims[3], variable, wrong = 0;
	size_t rows = ROWS / (size_t)size, start[3] = {0, rows * (size_t)rank, 0}, count[3] = {1, rows, COLUMNS}, chunks[3] = {1, 16, 100};
	double *mine = malloc(sizeof(double) * rows * COLUMNS), *back = malloc(sizeof(double) * ROWS * COLUMNS);
	MUST(mine && back);
	NC(nc_create_par(in_dir("%s.nc", name), mode | NC_CLOBBER, MPI_COMM_WORLD, MPI_INFO_NULL, &file));
	NC(nc_def_dim(file, "time", NC_UNLIMITED, &dims[0]));
	NC(nc_def_dim(file, "y", ROWS, &dims[1]));
	NC(nc_def_dim(file, "x", COLUMNS, &dims[2]));
	NC(nc_def_var(file, "field", NC_DOUBLE, 3, dims, &variable));
	if (chunked)
		NC(nc_def_var_chunking(file, variable, NC_CHUNKED, chunks));
	NC(nc_put_att_text(file, variable, "units", 1, "K"));
	NC(nc_enddef(file));
	NC(nc_var_par_access(file, variable, access));
	for (size_t t = 0; t < 4; t++) {
		start[0] = t;
		for (size_t i = 0; i < rows * COLUMNS; i++)
			mine[i] = (double)(t * 1000000 + (start[1] + i / COLUMNS) * 1000 + i % COLUMNS);
		int code = nc_put_vara_double(file, variable, start, count, mine);
		ALL(nc_ok(code, "nc_put_vara_double"), "%s: time %zu written", name, t);
	}
	NC(nc_sync(file));
	NC(nc_close(file));
	NC(nc_open_par(in_dir("%s.nc", name), NC_NOWRITE, MPI_COMM_WORLD, MPI_INFO_NULL, &file));
	NC(nc_inq_varid(file, "field", &variable));
	NC(nc_var_par_access(file, variable, NC_COLLECTIVE));
	for (size_t t = 0; t < 4; t++) {
		size_t from[3] = {t, 0, 0}, all[3] = {1, ROWS, COLUMNS};
		MUST(nc_get_vara_double(file, variable, from, all, back) == NC_NOERR);
		for (size_t i = 0; i < rows * (size_t)size * COLUMNS; i++)
			wrong += back[i] != (double)(t * 1000000 + i / COLUMNS * 1000 + i % COLUMNS);
	}
	ALL(wrong == 0, "%s: every process reads the whole (%d wrong)", name, wrong);
	NC(nc_close(file));
	free(mine);
	free(back);
}

int main(int argc, char **argv)
{
	mpi_check_begin(argc, argv);
	one("collective", NC_NETCDF4, NC_COLLECTIVE, 0);
	one("chunked", NC_NETCDF4, NC_COLLECTIVE, 1);
	one("classic_model", NC_NETCDF4 | NC_CLASSIC_MODEL, NC_COLLECTIVE, 0);
	return mpi_check_end();
}
