/*
 * Parallel HDF5 from C: one shared file, datasets written independently and collectively by hyperslabs, contiguous,
 * strided and chunked, an extendible dataset, attributes; read back in the same job by others. The script that starts it dumps the result.
 */
#include "mpi_check.h"
#include <hdf5.h>

enum { ROWS = 400, COLUMNS = 300 };

static hid_t file;

static int expected(hsize_t row, hsize_t column)
{
	return (int)(row * 1000 + column);
}

static hid_t transfer(int collective)
{
	hid_t list = H5Pcreate(H5P_DATASET_XFER);
	H5Pset_dxpl_mpio(list, collective ? H5FD_MPIO_COLLECTIVE : H5FD_MPIO_INDEPENDENT);
	return list;
}

/* Each process writes its band of rows, or every size-th row. */
static void dataset(const char *name, int collective, int interleaved, int chunked)
{
	hsize_t dims[2] = {ROWS, COLUMNS}, chunk[2] = {40, 100};
	hsize_t rows = ROWS / (hsize_t)size;
	hsize_t start[2] = {interleaved ? (hsize_t)rank : rows * (hsize_t)rank, 0}, stride[2] = {interleaved ? (hsize_t)size : 1, 1};
	hsize_t count[2] = {rows, COLUMNS};
	int *mine = malloc(sizeof(int) * rows * COLUMNS), *back = malloc(sizeof(int) * ROWS * COLUMNS), wrong = 0;
	MUST(mine && back);
	for (hsize_t r = 0; r < rows; r++)
		for (hsize_t c = 0; c < COLUMNS; c++)
			mine[r * COLUMNS + c] = expected(interleaved ? r * (hsize_t)size + (hsize_t)rank : start[0] + r, c);
	hid_t space = H5Screate_simple(2, dims, NULL), memory = H5Screate_simple(2, count, NULL), create = H5Pcreate(H5P_DATASET_CREATE);
	if (chunked)
		H5Pset_chunk(create, 2, chunk);
	hid_t set = H5Dcreate2(file, name, H5T_NATIVE_INT, space, H5P_DEFAULT, create, H5P_DEFAULT), list = transfer(collective);
	H5Sselect_hyperslab(space, H5S_SELECT_SET, start, stride, count, NULL);
	ALL(set >= 0 && H5Dwrite(set, H5T_NATIVE_INT, memory, space, list, mine) >= 0, "%s: written", name);
	H5Fflush(file, H5F_SCOPE_GLOBAL);
	MPI_Barrier(MPI_COMM_WORLD);
	ALL(H5Dread(set, H5T_NATIVE_INT, H5S_ALL, H5S_ALL, list, back) >= 0, "%s: read", name);
	for (hsize_t r = 0; r < rows * (hsize_t)size; r++)
		for (hsize_t c = 0; c < COLUMNS; c++)
			wrong += back[r * COLUMNS + c] != expected(r, c);
	ALL(wrong == 0, "%s: every process sees the whole (%d wrong)", name, wrong);
	H5Dclose(set);
	H5Sclose(space);
	H5Sclose(memory);
	H5Pclose(create);
	H5Pclose(list);
	free(mine);
	free(back);
}

static void extendible(void)
{
	hsize_t none[1] = {0}, most[1] = {H5S_UNLIMITED}, chunk[1] = {1000};
	hid_t space = H5Screate_simple(1, none, most), create = H5Pcreate(H5P_DATASET_CREATE), list = transfer(1);
	int good = 1, value[250];
	H5Pset_chunk(create, 1, chunk);
	hid_t set = H5Dcreate2(file, "extended", H5T_NATIVE_INT, space, H5P_DEFAULT, create, H5P_DEFAULT);
	H5Sclose(space);
	for (int step = 0; step < 10; step++) {
		hsize_t length = (hsize_t)(step + 1) * 250 * (hsize_t)size, start = (hsize_t)(step * size + rank) * 250, count = 250;
		good &= H5Dset_extent(set, &length) >= 0;
		space = H5Dget_space(set);
		hid_t memory = H5Screate_simple(1, &count, NULL);
		for (int i = 0; i < 250; i++)
			value[i] = (int)start + i;
		H5Sselect_hyperslab(space, H5S_SELECT_SET, &start, NULL, &count, NULL);
		good &= H5Dwrite(set, H5T_NATIVE_INT, memory, space, list, value) >= 0;
		H5Sclose(space);
		H5Sclose(memory);
	}
	ALL(good, "a dataset extended ten times");
	int *all = malloc(sizeof(int) * 2500 * (size_t)size), wrong = 0;
	MUST(all);
	H5Dread(set, H5T_NATIVE_INT, H5S_ALL, H5S_ALL, list, all);
	for (int i = 0; i < 2500 * size; i++)
		wrong += all[i] != i;
	ALL(wrong == 0, "read back whole");
	free(all);
	H5Dclose(set);
	H5Pclose(create);
	H5Pclose(list);
}

static hid_t open_parallel(int create)
{
	hid_t access = H5Pcreate(H5P_FILE_ACCESS);
	H5Pset_fapl_mpio(access, MPI_COMM_WORLD, MPI_INFO_NULL);
	hid_t result = create ? H5Fcreate(in_dir("file.h5"), H5F_ACC_TRUNC, H5P_DEFAULT, access) : H5Fopen(in_dir("file.h5"), H5F_ACC_RDWR, access);
	H5Pclose(access);
	return result;
}

int main(int argc, char **argv)
{
	mpi_check_begin(argc, argv);
	file = open_parallel(1);
	ALL(file >= 0, "created by all");
	dataset("independent", 0, 0, 0);
	dataset("collective", 1, 0, 0);
	dataset("interleaved_independent", 0, 1, 0);
	dataset("interleaved_collective", 1, 1, 0);
	dataset("chunked_collective", 1, 0, 1);
	dataset("chunked_independent", 0, 1, 1);
	extendible();
	hid_t scalar = H5Screate(H5S_SCALAR), attribute = H5Acreate2(file, "processes", H5T_NATIVE_INT, scalar, H5P_DEFAULT, H5P_DEFAULT);
	ALL(H5Awrite(attribute, H5T_NATIVE_INT, &size) >= 0, "an attribute");
	H5Aclose(attribute);
	H5Sclose(scalar);
	ALL(H5Fclose(file) >= 0, "closed");
	file = open_parallel(0);
	ALL(file >= 0, "opened again");
	dataset("after", 1, 0, 0);
	ALL(H5Ldelete(file, "after", H5P_DEFAULT) >= 0, "a dataset deleted");
	ALL(H5Fclose(file) >= 0, "closed");
	if (rank == 0) {
		/* Without MPI-IO, by another descriptor. */
		hid_t serial = H5Fopen(in_dir("file.h5"), H5F_ACC_RDONLY, H5P_DEFAULT), set = H5Dopen2(serial, "interleaved_collective", H5P_DEFAULT);
		int *all = malloc(sizeof(int) * ROWS * COLUMNS), wrong = 0;
		MUST(all && serial >= 0 && set >= 0 && H5Dread(set, H5T_NATIVE_INT, H5S_ALL, H5S_ALL, H5P_DEFAULT, all) >= 0);
		for (int i = 0; i < ROWS / size * size * COLUMNS; i++)
			wrong += all[i] != expected((hsize_t)(i / COLUMNS), (hsize_t)(i % COLUMNS));
		CHECK(wrong == 0, "the same by the serial driver");
		free(all);
		H5Dclose(set);
		H5Fclose(serial);
	}
	return mpi_check_end();
}
