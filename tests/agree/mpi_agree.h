/*
 * The frame of the MPI programs of this directory: PROGRAM DIR PATTERN ROUNDS, one process for each node (see at_rank.sh).
 *
 * A pattern is a function that is called for each round on all processes. A process that reads something wrong calls `wrong` and
 * goes on; at the end process 0 says how many rounds were wrong on any process.
 */
#ifndef WEIR_MPI_AGREE_H
#define WEIR_MPI_AGREE_H

#include "../real/c/check.h"
#include <dlfcn.h>
#include <mpi.h>
#include <sched.h>

enum { REPORTS_MOST = 4 };

struct pattern {
	const char *name;
	void (*round)(void);
};

static int rank, size, rounds, round_now, reports;
static const char *pattern;
static unsigned char *wrong_rounds;
static uint64_t delay_us, delay_state, state;

__attribute__((format(printf, 1, 2))) static inline void wrong(const char *format, ...)
{
	va_list args;
	char text[512];
	wrong_rounds[round_now] = 1;
	if (reports++ >= REPORTS_MOST)
		return;
	va_start(args, format);
	vsnprintf(text, sizeof text, format, args);
	va_end(args);
	printf("  %s: round %d, rank %d: %s\n", pattern, round_now, rank, text);
	fflush(stdout);
}

/* An MPI call that must return MPI_SUCCESS. */
#define MPI(call) mpi_done((call), #call)

static inline int mpi_done(int code, const char *call)
{
	char text[MPI_MAX_ERROR_STRING];
	int length;
	if (code == MPI_SUCCESS)
		return 1;
	MPI_Error_string(code, text, &length);
	wrong("%.80s: %.200s", call, text);
	return 0;
}

/* Waits for a random time, if WEIR_TEST_DELAY_US says so. */
static inline void delay(void)
{
	if (delay_us && next_random(&delay_state) % 2)
		usleep((useconds_t)(next_random(&delay_state) % delay_us));
}

static inline void barrier(void)
{
	delay();
	MPI_Barrier(MPI_COMM_WORLD);
	delay();
}

/* A random number that is the same on all processes. */
static inline uint64_t below(uint64_t limit)
{
	return next_random(&state) % limit;
}

static inline int value_of(int who, long i)
{
	return (int)(0x40000000u | (((unsigned)round_now * 2654435761u) >> 12 & 0x3ff) << 20 | (unsigned)(who & 15) << 16 | ((unsigned)i & 0xffff));
}

/* Compares an int that was read with the one that must be there. */
static inline int same_int(const char *what, long at, int got, int wanted)
{
	if (got == wanted)
		return 1;
	wrong("%s: int %ld: expected 0x%08x (rank %d), got 0x%08x%s", what, at, (unsigned)wanted, wanted >> 16 & 15, (unsigned)got,
	      got == 0 ? " (a hole)" : (got ^ wanted) & 0x3ff00000 ? " (of another round)" : "");
	return 0;
}

#ifdef MPICH_VERSION
/*
 * MPICH looks for messages without a pause, also when there are more processes than cores, and a barrier then costs each of
 * them a turn of the scheduler. It looks by this function of UCX, where it is built with that: here it gives way first.
 */
unsigned ucp_worker_progress(void *worker);
unsigned ucp_worker_progress(void *worker)
{
	static unsigned (*real)(void *);
	if (!real)
		*(void **)&real = dlsym(RTLD_NEXT, "ucp_worker_progress");
	unsigned count = real(worker);
	if (count == 0)
		sched_yield();
	return count;
}
#endif

static inline int agree_main(int argc, char **argv, const struct pattern *patterns, size_t count)
{
	const char *delay_word = getenv("WEIR_TEST_DELAY_US"), *seed_word = getenv("WEIR_TEST_SEED"), *slash = strrchr(argv[0], '/');
	unsigned long long seed = seed_word ? strtoull(seed_word, NULL, 0) : (unsigned long long)getpid() * 2654435761u;
	int bad = 0, own = getpid();
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &size);
	MUST(argc >= 4 && (rounds = atoi(argv[3])) > 0);
	pattern = argv[2];
	MPI_Bcast(&seed, 1, MPI_UNSIGNED_LONG_LONG, 0, MPI_COMM_WORLD);
	MPI_Bcast(&own, 1, MPI_INT, 0, MPI_COMM_WORLD);
	state = seed;
	delay_us = delay_word ? strtoull(delay_word, NULL, 0) : 0;
	delay_state = seed + (uint64_t)rank * 977;
	wrong_rounds = calloc(1, (size_t)rounds);
	MUST(wrong_rounds);
	snprintf(check_dir, sizeof check_dir, "%s/%s.%s.%d", argv[1], slash ? slash + 1 : argv[0], pattern, own);
	if (rank == 0)
		MUST(mkdir(check_dir, 0755) == 0);
	MPI_Barrier(MPI_COMM_WORLD);
	for (size_t p = 0; p < count; p++) {
		if (strcmp(patterns[p].name, pattern) != 0)
			continue;
		for (round_now = 0; round_now < rounds; round_now++)
			patterns[p].round();
		MPI_Allreduce(MPI_IN_PLACE, wrong_rounds, rounds, MPI_UNSIGNED_CHAR, MPI_MAX, MPI_COMM_WORLD);
		for (int i = 0; i < rounds; i++)
			bad += wrong_rounds[i];
		if (rank == 0) {
			printf("%s: %d of %d rounds wrong, seed %llu\n", pattern, bad, rounds, seed);
			printf("%d passed, %d failed\n", rounds - bad, bad);
			fflush(stdout);
		}
		MPI_Finalize();
		return bad != 0;
	}
	MUST(!"a pattern of that name");
}

#define AGREE_MAIN(patterns) \
	int main(int argc, char **argv) \
	{ \
		return agree_main(argc, argv, patterns, sizeof patterns / sizeof *patterns); \
	}

#endif
