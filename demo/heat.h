/*
 * The simulation of the demo: the heat equation on a plane of WIDTH columns, explicit steps, fixed borders of zero outside.
 *
 * Every cell is a function of its row, column and the number of steps, bit for bit, whatever the number of processes: the start
 * is a hash of the place, and one step adds in one fixed order (compiled with -ffp-contract=off). So a reader can compute
 * again what any part of a checkpoint must hold. heat_h5.py computes the same in numpy.
 */
#ifndef DEMO_HEAT_H
#define DEMO_HEAT_H

#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WIDTH = 8192, STEPS = 4 };

/* The start: a number in [0, 1) whose 53 bits depend on the place. */
static inline double start_value(uint64_t row, uint64_t column)
{
	uint64_t x = (row * WIDTH + column + 1) * 0x9e3779b97f4a7c15u;
	x ^= x >> 29;
	return (double)(x >> 11) * 0x1p-53;
}

/* One step of rows 1..rows of `from` (rows 0 and rows+1 are neighbours) into `to`. */
static inline void heat_step(const double *from, double *to, long rows)
{
	for (long r = 1; r <= rows; r++) {
		const double *up = from + (r - 1) * WIDTH, *here = from + r * WIDTH, *down = from + (r + 1) * WIDTH;
		double *out = to + r * WIDTH;
		out[0] = here[0] + 0.125 * ((up[0] + down[0]) + (0.0 + here[1]) - 4.0 * here[0]);
		for (long c = 1; c < WIDTH - 1; c++)
			out[c] = here[c] + 0.125 * ((up[c] + down[c]) + (here[c - 1] + here[c + 1]) - 4.0 * here[c]);
		long c = WIDTH - 1;
		out[c] = here[c] + 0.125 * ((up[c] + down[c]) + (here[c - 1] + 0.0) - 4.0 * here[c]);
	}
}

static inline void need(int ok, const char *what)
{
	if (!ok) {
		fprintf(stderr, "demo: %s failed\n", what);
		MPI_Abort(MPI_COMM_WORLD, 1);
	}
}

/* The slowest process's seconds, on process 0 printed as `result NAME WHAT BYTES SECONDS` for demo/run. */
static inline void result(const char *name, const char *what, double bytes, double seconds)
{
	double slowest;
	int rank;
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Reduce(&seconds, &slowest, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
	if (rank == 0) {
		printf("result %s %s %.0f %.6f\n", name, what, bytes, slowest);
		fflush(stdout);
	}
}

#endif
