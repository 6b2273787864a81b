/*
 * Another program: reads the checkpoint that heat wrote, each process the band of its neighbour, computes again what it must
 * hold, without messages, from the start values of more rows, and compares every byte.
 * Usage: heat_verify FILE MIB
 */
#include "heat.h"

int main(int argc, char **argv)
{
	int rank, size;
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &size);
	need(argc == 3, "usage: heat_verify FILE MIB");
	long rows = atol(argv[2]) * 1048576 / (WIDTH * (long)sizeof(double)), all = rows * size;
	long first = (rank + 1) % size * rows;
	double *back = malloc((size_t)rows * WIDTH * sizeof(double));
	need(back != NULL, "memory");
	memset(back, 0xff, (size_t)rows * WIDTH * sizeof(double)); /* touched before the clock runs */

	MPI_File file;
	MPI_Offset size_now;
	double bytes = (double)rows * WIDTH * sizeof(double) * size;
	MPI_Barrier(MPI_COMM_WORLD);
	double begin = MPI_Wtime();
	need(MPI_File_open(MPI_COMM_WORLD, argv[1], MPI_MODE_RDONLY, MPI_INFO_NULL, &file) == MPI_SUCCESS, "open");
	need(MPI_File_read_at_all(file, (MPI_Offset)first * WIDTH * (MPI_Offset)sizeof(double), back, (int)(rows * WIDTH), MPI_DOUBLE, MPI_STATUS_IGNORE) == MPI_SUCCESS, "read");
	double end = MPI_Wtime();
	need(MPI_File_get_size(file, &size_now) == MPI_SUCCESS && MPI_File_close(&file) == MPI_SUCCESS, "close");
	result("mpiio", "read", bytes, end - begin);
	need((double)size_now == bytes, "the size of the file");

	/* In blocks that stay in the cache: STEPS more rows on each side than are wanted. */
	enum { BLOCK = 32 };
	size_t room = (size_t)(BLOCK + 2 * STEPS + 2) * WIDTH;
	double *now = malloc(room * sizeof(double)), *next = malloc(room * sizeof(double));
	need(now && next, "memory");
	long long wrong = 0, total;
	for (long block = 0; block < rows; block += BLOCK) {
		long want = rows - block < BLOCK ? rows - block : BLOCK, have = want + 2 * STEPS, top = first + block - STEPS;
		memset(now, 0, room * sizeof(double));
		memset(next, 0, room * sizeof(double));
		for (long r = 0; r < have; r++)
			for (long c = 0; top + r >= 0 && top + r < all && c < WIDTH; c++)
				now[(r + 1) * WIDTH + c] = start_value((uint64_t)(top + r), (uint64_t)c);
		for (int step = 0; step < STEPS; step++) {
			heat_step(now, next, have);
			/* Outside of the plane it stays zero. */
			for (long r = 0; r < have; r++)
				if (top + r < 0 || top + r >= all)
					memset(next + (r + 1) * WIDTH, 0, WIDTH * sizeof(double));
			double *swap = now;
			now = next;
			next = swap;
		}
		const unsigned char *wanted = (const unsigned char *)(now + (STEPS + 1) * WIDTH), *got = (const unsigned char *)(back + block * WIDTH);
		size_t length = (size_t)want * WIDTH * sizeof(double);
		if (memcmp(wanted, got, length) != 0)
			for (size_t i = 0; i < length; i++)
				wrong += wanted[i] != got[i];
	}
	MPI_Reduce(&wrong, &total, 1, MPI_LONG_LONG, MPI_SUM, 0, MPI_COMM_WORLD);
	int bad = 0;
	if (rank == 0) {
		bad = total != 0;
		printf("verified mpiio %.0f %lld\n", bytes, total);
	}
	MPI_Bcast(&bad, 1, MPI_INT, 0, MPI_COMM_WORLD);
	MPI_Finalize();
	return bad;
}
