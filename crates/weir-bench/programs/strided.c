/*
 * Times collective writes and reads of MPI-IO through a view with gaps: each process has every `size`th block of a file.
 * Usage: strided FILE BLOCK COUNT. Prints the shortest of five times of each, s: of a write, of a read of the process's own
 * blocks, and of a read of those of the next process.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { REPEATS = 5 };

static int rank, size, block, count;
static unsigned char *buffer;
static MPI_Datatype view;

static double transfer(MPI_File file, int of, int writes)
{
	double begin;
	int code;
	MPI_File_set_view(file, (MPI_Offset)of * block, MPI_BYTE, view, "native", MPI_INFO_NULL);
	MPI_Barrier(MPI_COMM_WORLD);
	begin = MPI_Wtime();
	code = writes ? MPI_File_write_all(file, buffer, block * count, MPI_BYTE, MPI_STATUS_IGNORE)
		      : MPI_File_read_all(file, buffer, block * count, MPI_BYTE, MPI_STATUS_IGNORE);
	MPI_Barrier(MPI_COMM_WORLD);
	if (code != MPI_SUCCESS)
		MPI_Abort(MPI_COMM_WORLD, 1);
	return MPI_Wtime() - begin;
}

static void keep_least(double *least, double time)
{
	if (time < *least)
		*least = time;
}

static void check_content(int of)
{
	for (long i = 0; i < (long)block * count; i++)
		if (buffer[i] != 'a' + of)
			MPI_Abort(MPI_COMM_WORLD, 2);
}

int main(int argc, char **argv)
{
	double write = 1e9, own = 1e9, other = 1e9;
	MPI_File file;
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &size);
	if (argc != 4)
		MPI_Abort(MPI_COMM_WORLD, 3);
	block = atoi(argv[2]);
	count = atoi(argv[3]);
	buffer = malloc((size_t)block * count);
	MPI_Type_vector(count, block, block * size, MPI_BYTE, &view);
	MPI_Type_commit(&view);
	for (int repeat = 0; repeat < REPEATS; repeat++) {
		int next = (rank + 1) % size;
		memset(buffer, 'a' + rank, (size_t)block * count);
		if (MPI_File_open(MPI_COMM_WORLD, argv[1], MPI_MODE_CREATE | MPI_MODE_RDWR, MPI_INFO_NULL, &file) != MPI_SUCCESS)
			MPI_Abort(MPI_COMM_WORLD, 4);
		keep_least(&write, transfer(file, rank, 1));
		keep_least(&own, transfer(file, rank, 0));
		check_content(rank);
		MPI_File_sync(file);
		MPI_Barrier(MPI_COMM_WORLD);
		MPI_File_sync(file);
		keep_least(&other, transfer(file, next, 0));
		check_content(next);
		MPI_File_close(&file);
	}
	if (rank == 0)
		printf("write_s %.6f own_s %.6f other_s %.6f\n", write, own, other);
	MPI_Type_free(&view);
	MPI_Finalize();
	return 0;
}
