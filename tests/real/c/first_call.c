/*
 * Functions that connectors wrap, called by a library that a program opens:
 *
 *   first_call LIBRARY local|global FUNCTION [ARGUMENT]
 *
 * opens LIBRARY, whose symbols only its handle gives, or all libraries, calls its FUNCTION, and prints the connectors that are
 * mapped before and after. With -DPNETCDF this file is a library with some of PnetCDF's names. Those with other arguments than
 * PnetCDF's are for a run without the connector: each kind of argument must arrive. With -DCALLER it is a library that calls
 * these, and with -DMPI one that calls MPI.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef PNETCDF

long ncmpi_put_varm(long a, long b, long c, long d, long e, long f, long g, long h, double q, double r, double s, double t, double u,
		    double v, double w, double x, double y)
{
	double more[] = {q, r, s, t, u, v, w, x, y};
	long all[] = {a, b, c, d, e, f, g, h};
	for (int i = 0; i < 8; i++)
		if (all[i] != i + 1)
			return -1;
	for (int i = 0; i < 9; i++)
		if (more[i] != i + 0.5)
			return -2;
	/* The place of an aligned local shows if the stack is aligned as the convention has it. */
	struct __attribute__((aligned(16))) { char bytes[16]; } aligned;
	return (uintptr_t)__builtin_assume_aligned(&aligned, 1) % 16 ? -3 : errno;
}

double ncmpi_get_varm(int n, ...)
{
	double sum = 0;
	va_list list;
	va_start(list, n);
	for (int i = 0; i < n; i++)
		sum += va_arg(list, int) * va_arg(list, double);
	va_end(list);
	return sum;
}

struct large {
	long numbers[5];
};

struct large ncmpi_get_vars(long first)
{
	return (struct large){{first, first + 1, first + 2, first + 3, first + 4}};
}

int ncmpi_inq_nreqs(int file, int *number)
{
	*number = file + 41;
	return 0;
}

#elif defined(CALLER)

extern long ncmpi_put_varm(long, long, long, long, long, long, long, long, double, double, double, double, double, double, double, double,
			   double);
extern double ncmpi_get_varm(int, ...);
struct large {
	long numbers[5];
};
extern struct large ncmpi_get_vars(long);
extern int ncmpi_inq_nreqs(int, int *);

/* Arguments in registers and on the stack, variable ones, and results of all kinds; the first call, and a later one. */
int arguments(const char *unused)
{
	(void)unused;
	for (int i = 0; i < 2; i++) {
		errno = 1234;
		if (ncmpi_put_varm(1, 2, 3, 4, 5, 6, 7, 8, 0.5, 1.5, 2.5, 3.5, 4.5, 5.5, 6.5, 7.5, 8.5) != 1234)
			return 1;
		if (ncmpi_get_varm(3, 1, 0.5, 2, 0.25, 3, 4.0) != 13.0)
			return 2;
		struct large large = ncmpi_get_vars(70);
		for (int at = 0; at < 5; at++)
			if (large.numbers[at] != 70 + at)
				return 3;
	}
	return 0;
}

static pthread_barrier_t barrier;

static void *call(void *file)
{
	int number = 0, wanted = (int)(intptr_t)file;
	pthread_barrier_wait(&barrier);
	int code = ncmpi_inq_nreqs(wanted, &number);
	return (void *)(intptr_t)(code != 0 || number != wanted + 41);
}

/* The first call, by several threads at once. */
int race(const char *unused)
{
	enum { THREADS = 8 };
	pthread_t threads[THREADS];
	intptr_t failed = 0;
	(void)unused;
	pthread_barrier_init(&barrier, NULL, THREADS);
	for (int i = 0; i < THREADS; i++)
		if (pthread_create(&threads[i], NULL, call, (void *)(intptr_t)(100 + i)))
			return 1;
	for (int i = 0; i < THREADS; i++) {
		void *result;
		pthread_join(threads[i], &result);
		failed += (intptr_t)result;
	}
	return failed ? 2 : 0;
}

/* A function that no library has: PnetCDF's NC_ENOTBUILT, by a connector or without. */
int lacking(const char *unused)
{
	int (*find)(int) = (int (*)(int))dlsym(RTLD_DEFAULT, "ncmpi_redef");
	(void)unused;
	return !find ? 1 : find(3) == -128 && find(3) == -128 ? 0 : 2;
}

#elif defined(MPI)

#include <mpi.h>

int opens(const char *path)
{
	MPI_File file;
	int all;
	char byte = 'x';
	MPI_Init(NULL, NULL);
	MPI_Comm_rank(MPI_COMM_WORLD, &all);
	if (MPI_File_open(MPI_COMM_WORLD, path, MPI_MODE_CREATE | MPI_MODE_RDWR, MPI_INFO_NULL, &file) != MPI_SUCCESS)
		return 1;
	if (MPI_File_write_at_all(file, all, &byte, 1, MPI_BYTE, MPI_STATUS_IGNORE) != MPI_SUCCESS)
		return 2;
	if (MPI_File_close(&file) != MPI_SUCCESS)
		return 3;
	MPI_Finalize();
	return 0;
}

#else

/* The number of executable mappings of a connector. */
static int mapped(const char *file)
{
	char line[1024];
	int found = 0;
	FILE *maps = fopen("/proc/self/maps", "r");
	while (maps && fgets(line, sizeof line, maps))
		found += strstr(line, file) && strstr(line, " r-xp ");
	if (maps)
		fclose(maps);
	return found;
}

static void print_mapped(void)
{
	printf("mpiio %d pnetcdf %d\n", mapped("libweir_mpiio.so"), mapped("libweir_pnetcdf.so"));
}

int main(int argc, char **argv)
{
	if (argc < 4)
		return 125;
	print_mapped();
	void *library = dlopen(argv[1], RTLD_NOW | (strcmp(argv[2], "global") ? RTLD_LOCAL : RTLD_GLOBAL));
	int (*function)(const char *) = library ? (int (*)(const char *))dlsym(library, argv[3]) : NULL;
	if (!function) {
		fprintf(stderr, "%s\n", dlerror());
		return 124;
	}
	int code = function(argv[4]);
	print_mapped();
	return code;
}

#endif
