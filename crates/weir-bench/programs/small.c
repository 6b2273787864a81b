/*
 * Times HDF5 in one process: writes of BYTES each to one dataset, and datasets with an attribute, made, opened and closed. Usage: small
 * FILE BYTES. Prints the shortest of five times of each, s: a write, a dataset.
 */
#include <hdf5.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

enum { REPEATS = 5, SETS = 300 };

static double now(void)
{
	return MPI_Wtime();
}

static void keep_least(double *least, double time)
{
	if (time < *least)
		*least = time;
}

int main(int argc, char **argv)
{
	double write = 1e9, object = 1e9;
	MPI_Init(&argc, &argv);
	if (argc != 3)
		MPI_Abort(MPI_COMM_WORLD, 1);
	hsize_t bytes = strtoull(argv[2], NULL, 10), writes = 200000000 / (bytes + 20000);
	void *buffer = calloc(1, bytes);
	for (int repeat = 0; repeat < REPEATS; repeat++) {
		hsize_t dims[1] = {bytes * 16};
		hid_t file = H5Fcreate(argv[1], H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT), space = H5Screate_simple(1, dims, NULL);
		hid_t memory = H5Screate_simple(1, &bytes, NULL), scalar = H5Screate(H5S_SCALAR);
		hid_t set = H5Dcreate2(file, "set", H5T_NATIVE_UCHAR, space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
		double begin = now();
		for (hsize_t i = 0; i < writes; i++) {
			hsize_t start = i % 16 * bytes;
			H5Sselect_hyperslab(space, H5S_SELECT_SET, &start, NULL, &bytes, NULL);
			if (H5Dwrite(set, H5T_NATIVE_UCHAR, memory, space, H5P_DEFAULT, buffer) < 0)
				MPI_Abort(MPI_COMM_WORLD, 2);
		}
		keep_least(&write, (now() - begin) / (double)writes);
		begin = now();
		for (int i = 0; i < SETS; i++) {
			char name[16];
			snprintf(name, sizeof name, "set%d", i);
			hid_t other = H5Dcreate2(file, name, H5T_NATIVE_INT, scalar, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
			hid_t attribute = H5Acreate2(other, "a", H5T_NATIVE_INT, scalar, H5P_DEFAULT, H5P_DEFAULT);
			H5Awrite(attribute, H5T_NATIVE_INT, &i);
			H5Aclose(attribute);
			H5Dclose(other);
			other = H5Dopen2(file, name, H5P_DEFAULT);
			H5Dclose(other);
		}
		keep_least(&object, (now() - begin) / SETS);
		H5Dclose(set);
		H5Sclose(space);
		H5Sclose(memory);
		H5Sclose(scalar);
		H5Fclose(file);
	}
	printf("write_s %.9f object_s %.9f\n", write, object);
	free(buffer);
	MPI_Finalize();
	return 0;
}
