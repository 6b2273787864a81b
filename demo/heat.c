/*
 * Simulates and writes one shared checkpoint by MPI-IO, each process its band of rows.
 * Usage: heat FILE MIB, with MIB MiB of the field a process.
 */
#include "heat.h"

int main(int argc, char **argv)
{
	int rank, size;
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &size);
	need(argc == 3, "usage: heat FILE MIB");
	long rows = atol(argv[2]) * 1048576 / (WIDTH * (long)sizeof(double));
	size_t room = (size_t)(rows + 2) * WIDTH;
	double *now = calloc(room, sizeof(double)), *next = calloc(room, sizeof(double));
	need(now && next && rows > STEPS, "memory");
	for (long r = 0; r < rows; r++)
		for (long c = 0; c < WIDTH; c++)
			now[(r + 1) * WIDTH + c] = start_value((uint64_t)(rank * rows + r), (uint64_t)c);
	int above = rank > 0 ? rank - 1 : MPI_PROC_NULL, below = rank + 1 < size ? rank + 1 : MPI_PROC_NULL;
	for (int step = 0; step < STEPS; step++) {
		MPI_Sendrecv(now + WIDTH, WIDTH, MPI_DOUBLE, above, 0, now + (rows + 1) * WIDTH, WIDTH, MPI_DOUBLE, below, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
		MPI_Sendrecv(now + rows * WIDTH, WIDTH, MPI_DOUBLE, below, 1, now, WIDTH, MPI_DOUBLE, above, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
		heat_step(now, next, rows);
		double *swap = now;
		now = next;
		next = swap;
	}

	MPI_File file;
	double bytes = (double)rows * WIDTH * sizeof(double) * size;
	MPI_Offset at = (MPI_Offset)rank * rows * WIDTH * (MPI_Offset)sizeof(double);
	MPI_Barrier(MPI_COMM_WORLD);
	double begin = MPI_Wtime();
	need(MPI_File_open(MPI_COMM_WORLD, argv[1], MPI_MODE_CREATE | MPI_MODE_WRONLY, MPI_INFO_NULL, &file) == MPI_SUCCESS, "open");
	need(MPI_File_write_at_all(file, at, now + WIDTH, (int)(rows * WIDTH), MPI_DOUBLE, MPI_STATUS_IGNORE) == MPI_SUCCESS, "write");
	double written = MPI_Wtime();
	need(MPI_File_sync(file) == MPI_SUCCESS, "sync");
	need(MPI_File_close(&file) == MPI_SUCCESS, "close");
	double end = MPI_Wtime();
	result("mpiio", "write", bytes, written - begin);
	result("mpiio", "sync", bytes, end - begin);
	free(now);
	free(next);
	MPI_Finalize();
	return 0;
}
