/*
 * The frame of the MPI check programs: a check holds if it holds on every process; process 0 prints. On top of c/check.h, whose
 * pattern helpers are used too.
 */
#ifndef WEIR_MPI_CHECK_H
#define WEIR_MPI_CHECK_H

#include "../c/check.h"
#include <mpi.h>

static int rank, size;

/* Each process says whether it holds for it; all learn the sum. */
#define ALL(cond, ...) mpi_check_report(!!(cond), __FILE__, __LINE__, #cond, __VA_ARGS__)

/* An MPI call that must return MPI_SUCCESS everywhere. */
#define MPI(call) ALL(mpi_ok((call), #call), "%s", #call)

static inline int mpi_ok(int code, const char *call)
{
	char text[MPI_MAX_ERROR_STRING];
	int length;
	if (code == MPI_SUCCESS)
		return 1;
	MPI_Error_string(code, text, &length);
	printf("  process %d: %.80s: %s\n", rank, call, text);
	fflush(stdout);
	return 0;
}

__attribute__((format(printf, 5, 6))) static inline int mpi_check_report(int ok, const char *file, int line, const char *cond,
									  const char *format, ...)
{
	int good, mine = ok;
	va_list args;
	if (!ok) {
		printf("  process %d: not so: %.120s\n", rank, cond);
		fflush(stdout);
	}
	MPI_Allreduce(&mine, &good, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
	if (good)
		check_passed++;
	else
		check_failed++;
	if (rank == 0) {
		va_start(args, format);
		printf("%s ", good ? "ok  " : "FAIL");
		vprintf(format, args);
		if (!good)
			printf("   [%s:%d]", file, line);
		printf("\n");
		fflush(stdout);
		va_end(args);
	}
	return good;
}

static inline void mpi_check_begin(int argc, char **argv)
{
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &size);
	/* Errors come back as codes for files by default; process 0 makes the directory before others use it. */
	if (rank == 0)
		check_begin(argc, argv);
	MPI_Barrier(MPI_COMM_WORLD);
	if (rank != 0)
		check_begin(argc, argv);
}

static inline int mpi_check_end(void)
{
	if (rank == 0)
		printf("%d passed, %d failed\n", check_passed, check_failed);
	fflush(stdout);
	MPI_Finalize();
	return check_failed != 0;
}

#endif
