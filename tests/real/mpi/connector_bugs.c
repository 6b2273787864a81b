/*
 * A failed assertion of a connector, planted by WEIR_TEST_BUG in builds that check themselves: the call of that name fails with
 * the error that its library has for its own faults, all others succeed, and the program goes on to its end.
 *
 *   mpiexec -n N connector_bugs DIR CALL
 */
#include "mpi_check.h"
#include <pnetcdf.h>

static const char *planted;

static int is_planted(const char *call)
{
	return !strcmp(call, planted);
}

/* True if a call of MPI-IO ended as it should. */
static int mpi_ends(const char *call, int code)
{
	int class = MPI_SUCCESS;
	if (code != MPI_SUCCESS)
		MPI_Error_class(code, &class);
	return class == (is_planted(call) ? MPI_ERR_INTERN : MPI_SUCCESS);
}

static int nc_ends(const char *call, int code)
{
	return code == (is_planted(call) ? NC_EINTERNAL : NC_NOERR);
}

static void mpi_io(void)
{
	MPI_File file;
	MPI_Status status;
	int code;
	code = MPI_File_open(MPI_COMM_WORLD, in_dir("file"), MPI_MODE_CREATE | MPI_MODE_RDWR, MPI_INFO_NULL, &file);
	if (!ALL(mpi_ends("MPI_File_open", code), "open") || code != MPI_SUCCESS)
		return;
	ALL(mpi_ends("MPI_File_set_atomicity", MPI_File_set_atomicity(file, 0)), "set_atomicity");
	code = MPI_File_write_at_all(file, rank, "x", 1, MPI_BYTE, &status);
	ALL(mpi_ends("MPI_File_write_at_all", code), "write_at_all");
	code = MPI_File_write_at(file, rank, "x", 1, MPI_BYTE, &status);
	ALL(code == MPI_SUCCESS, "a call that is not the connector's");
	ALL(mpi_ends("MPI_File_close", MPI_File_close(&file)), "close");
}

static void pnetcdf(void)
{
	int file, dimension, variable, code, value = rank;
	MPI_Offset start = rank, count = 1;
	code = ncmpi_create(MPI_COMM_WORLD, in_dir("file.nc"), NC_CLOBBER, MPI_INFO_NULL, &file);
	if (!ALL(nc_ends("ncmpi_create", code), "create") || code != NC_NOERR)
		return;
	ALL(ncmpi_def_dim(file, "x", size, &dimension) == NC_NOERR, "def_dim");
	ALL(ncmpi_def_var(file, "v", NC_INT, 1, &dimension, &variable) == NC_NOERR, "def_var");
	code = ncmpi_enddef(file);
	if (!ALL(nc_ends("ncmpi_enddef", code), "enddef") || code != NC_NOERR)
		return;
	code = ncmpi_put_vara_int_all(file, variable, &start, &count, &value);
	ALL(nc_ends("ncmpi_put_vara_int_all", code), "put_vara_int_all");
	code = ncmpi_put_vara_int_all(file, variable, &start, &count, &value);
	ALL(nc_ends("ncmpi_put_vara_int_all", code), "put_vara_int_all, again");
	ALL(nc_ends("ncmpi_close", ncmpi_close(file)), "close");
}

int main(int argc, char **argv)
{
	planted = argc > 2 ? argv[2] : "";
	setenv("WEIR_TEST_BUG", planted, 1);
	mpi_check_begin(2, argv);
	if (!strncmp(planted, "ncmpi_", 6))
		pnetcdf();
	else
		mpi_io();
	return mpi_check_end();
}
