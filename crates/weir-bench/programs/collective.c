/*
 * Times parallel HDF5: each process writes its rows of a dataset, and reads them, in pieces, by collective or independent
 * transfers. Usage: collective FILE collective|independent SHAPE ROWS BYTES PIECES. SHAPE is contiguous or chunked, with bands of rows, or
 * strided or interleaved: the same with every `size`th row. ROWS a process, each of BYTES, in PIECES transfers. Prints the shortest of five times, s: of all
 * writes, of all reads, and of opening and closing the file.
 */
#include <hdf5.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Older ones have no connectors of this kind. */
#if !H5_VERSION_GE(1, 14, 0)
#error HDF5 is older than 1.14
#endif

enum { REPEATS = 5 };

static int rank, size, is_strided;
static hsize_t rows, bytes, pieces;
static unsigned char *buffer;

static void must(int holds, int line)
{
	if (!holds) {
		fprintf(stderr, "collective.c: line %d\n", line);
		MPI_Abort(MPI_COMM_WORLD, 1);
	}
}
#define MUST(holds) must((holds), __LINE__)

static double now(void)
{
	MPI_Barrier(MPI_COMM_WORLD);
	return MPI_Wtime();
}

static double transfer(hid_t set, hid_t list, int writes)
{
	hsize_t each = rows / pieces, count[2] = {each, bytes}, stride[2] = {is_strided ? (hsize_t)size : 1, 1};
	hid_t memory = H5Screate_simple(2, count, NULL), space = H5Dget_space(set);
	double begin = now();
	for (hsize_t piece = 0; piece < pieces; piece++) {
		hsize_t start[2] = {is_strided ? piece * each * (hsize_t)size + (hsize_t)rank : (hsize_t)rank * rows + piece * each, 0};
		unsigned char *at = buffer + piece * each * bytes;
		MUST(H5Sselect_hyperslab(space, H5S_SELECT_SET, start, stride, count, NULL) >= 0);
		MUST((writes ? H5Dwrite(set, H5T_NATIVE_UCHAR, memory, space, list, at)
			     : H5Dread(set, H5T_NATIVE_UCHAR, memory, space, list, at)) >= 0);
	}
	double time = now() - begin;
	H5Sclose(memory);
	H5Sclose(space);
	return time;
}

static void keep_least(double *least, double time)
{
	if (time < *least)
		*least = time;
}

int main(int argc, char **argv)
{
	double write = 1e9, read = 1e9, file_time = 1e9;
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &size);
	MUST(argc == 7);
	int is_collective = strcmp(argv[2], "collective") == 0, is_chunked = strcmp(argv[3], "chunked") == 0 || strcmp(argv[3], "interleaved") == 0;
	is_strided = strcmp(argv[3], "strided") == 0 || strcmp(argv[3], "interleaved") == 0;
	rows = strtoull(argv[4], NULL, 10);
	bytes = strtoull(argv[5], NULL, 10);
	pieces = strtoull(argv[6], NULL, 10);
	buffer = malloc(rows * bytes);
	for (int repeat = 0; repeat < REPEATS; repeat++) {
		hsize_t dims[2] = {rows * (hsize_t)size, bytes}, chunk[2] = {rows / pieces, bytes};
		memset(buffer, 'a' + rank, rows * bytes);
		double begin = now();
		hid_t access = H5Pcreate(H5P_FILE_ACCESS), create = H5Pcreate(H5P_DATASET_CREATE), list = H5Pcreate(H5P_DATASET_XFER);
		H5Pset_fapl_mpio(access, MPI_COMM_WORLD, MPI_INFO_NULL);
		H5Pset_fill_time(create, H5D_FILL_TIME_NEVER);
		H5Pset_dxpl_mpio(list, is_collective ? H5FD_MPIO_COLLECTIVE : H5FD_MPIO_INDEPENDENT);
		if (is_chunked)
			H5Pset_chunk(create, 2, chunk);
		hid_t file = H5Fcreate(argv[1], H5F_ACC_TRUNC, H5P_DEFAULT, access), space = H5Screate_simple(2, dims, NULL);
		hid_t set = H5Dcreate2(file, "set", H5T_NATIVE_UCHAR, space, H5P_DEFAULT, create, H5P_DEFAULT);
		MUST(file >= 0 && set >= 0);
		double opened = now() - begin;
		keep_least(&write, transfer(set, list, 1));
		memset(buffer, 0, rows * bytes);
		keep_least(&read, transfer(set, list, 0));
		for (hsize_t i = 0; i < rows * bytes; i++)
			MUST(buffer[i] == 'a' + rank);
		begin = now();
		H5Dclose(set);
		H5Sclose(space);
		H5Fclose(file);
		H5Pclose(access);
		H5Pclose(create);
		H5Pclose(list);
		keep_least(&file_time, opened + now() - begin);
	}
	if (rank == 0)
		printf("write_s %.6f read_s %.6f file_s %.6f\n", write, read, file_time);
	MPI_Finalize();
	return 0;
}
