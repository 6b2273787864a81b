/*
 * A check program that runs as one process on each of several nodes.
 *
 * The program is started once. It starts itself again for each rank, with WEIR_INSTANCE set to that rank's server
 * (NAME, NAME.1, NAME.2, ...), because a process chooses its server when it starts. On a plain directory
 * WEIR_INSTANCE is not set and all ranks use the same file system.
 *
 * Ranks are ordered by pipes only: `tell` and `hear` pass a token from one rank to another, `barrier` waits for all. What
 * all ranks must know of each other besides is in `shared`, memory of the kernel's that no file system has a part in.
 *
 * A rank that finds wrong bytes reports them with `wrong` and goes on, so that the first process can say how many rounds
 * of all were wrong. Environment: WEIR_TEST_SEED repeats a run's random choices, WEIR_TEST_DELAY_US makes each rank sleep
 * for a random time of at most so many microseconds before it passes a token.
 */
#ifndef WEIR_RANKS_H
#define WEIR_RANKS_H

#include "../real/c/check.h"
#include <stdatomic.h>
#include <sys/mman.h>
#include <time.h>

enum { SERVERS = 4, RANKS_MOST = 8, ROUNDS_MOST = 1 << 17, REPORTS_MOST = 6, CELLS = 4096 };

struct shared {
	uint64_t seed;
	_Atomic int reports;
	_Atomic unsigned char wrong[ROUNDS_MOST];
	/* For the patterns: of each step, that a call failed. */
	_Atomic unsigned char failed[ROUNDS_MOST];
	/* For the patterns: what a rank knows for sure and the file must agree with. */
	_Atomic uint64_t cells[CELLS];
};

static struct shared *shared;
static int rank, ranks = SERVERS, rounds;
static const char *pattern;
static uint64_t delay_us, delay_state;
/* to_rank[r] is written to tell r, from_rank[r] is read to hear r. */
static int to_rank[RANKS_MOST], from_rank[RANKS_MOST];

__attribute__((format(printf, 2, 3))) static inline void wrong(int round, const char *format, ...)
{
	va_list args;
	char text[512];
	shared->wrong[round] = 1;
	if (shared->reports++ >= REPORTS_MOST)
		return;
	va_start(args, format);
	vsnprintf(text, sizeof text, format, args);
	va_end(args);
	printf("  %s: round %d, rank %d: %s\n", pattern, round, rank, text);
	fflush(stdout);
}

/* A call of `round` that must succeed. */
#define DO(round, call) \
	do { \
		if ((long)(call) < 0) \
			wrong(round, "%s: %s", #call, strerror(errno)); \
	} while (0)

static inline void delay(void)
{
	if (delay_us && next_random(&delay_state) % 2)
		usleep((useconds_t)(next_random(&delay_state) % delay_us));
}

static inline void tell(int other)
{
	delay();
	if (other != rank && write(to_rank[other], "!", 1) != 1)
		_exit(3); /* The other rank has died: it is reported by the first process. */
}

static inline void hear(int other)
{
	char token;
	if (other != rank && read(from_rank[other], &token, 1) != 1)
		_exit(3);
}

static inline void barrier(void)
{
	if (rank != 0) {
		tell(0);
		hear(0);
		return;
	}
	for (int other = 1; other < ranks; other++)
		hear(other);
	for (int other = 1; other < ranks; other++)
		tell(other);
}

/* The eight bytes that write number `write` leaves at `cell` * 8. */
static inline uint64_t word(uint64_t write, uint64_t cell)
{
	uint64_t x = (write + 1) * 0x9e3779b97f4a7c15ULL ^ (cell + 1) * 0xd1b54a32d192ed03ULL;
	x ^= x >> 29;
	return x * 0x94d049bb133111ebULL | 0x0101010101010101ULL; /* No byte is 0: that is a hole. */
}

static inline void fill(unsigned char *to, uint64_t at, uint64_t length, uint64_t write)
{
	for (uint64_t o = at, end = at + length; o < end;) {
		uint64_t w = word(write, o / 8), n = 8 - o % 8;
		if (n > end - o)
			n = end - o;
		memcpy(to + (o - at), (unsigned char *)&w + o % 8, n);
		o += n;
	}
}

static inline int ranks_report(const pid_t *pids)
{
	int bad = 0, died = 0;
	for (int r = 0; r < ranks; r++)
		if (!child_ok(pids[r])) {
			printf("  %s: rank %d did not end well\n", pattern, r);
			died++;
		}
	for (int round = 0; round < rounds; round++)
		bad += shared->wrong[round];
	printf("%s: %d of %d rounds wrong, seed %llu\n", pattern, bad, rounds, (unsigned long long)shared->seed);
	printf("%d passed, %d failed\n", died ? 0 : rounds - bad, bad + died);
	return bad || died;
}

/* Makes one pipe for each ordered pair of ranks; the numbers of the descriptors are the same in all ranks. */
static inline void ranks_start(char **argv)
{
	static int pipes[RANKS_MOST][RANKS_MOST][2];
	const char *instance = getenv("WEIR_INSTANCE"), *seed = getenv("WEIR_TEST_SEED");
	pid_t pids[RANKS_MOST];
	int fd = memfd_create("ranks", 0);
	MUST(fd >= 0 && ftruncate(fd, sizeof *shared) == 0);
	shared = (struct shared *)mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	MUST(shared != MAP_FAILED);
	shared->seed = seed ? strtoull(seed, NULL, 0) : (uint64_t)getpid() * 2654435761u + (uint64_t)time(NULL);
	for (int from = 0; from < ranks; from++)
		for (int to = 0; to < ranks; to++)
			MUST(pipe(pipes[from][to]) == 0);
	for (int r = 0; r < ranks; r++) {
		char words[1024], name[4200];
		pids[r] = fork();
		MUST(pids[r] >= 0);
		if (pids[r] != 0)
			continue;
		int used = snprintf(words, sizeof words, "%d %d %d", r, ranks, fd);
		for (int other = 0; other < ranks; other++)
			used += snprintf(words + used, sizeof words - (size_t)used, " %d %d", pipes[r][other][1], pipes[other][r][0]);
		for (int from = 0; from < ranks; from++)
			for (int to = 0; to < ranks; to++) {
				if (from != r)
					close(pipes[from][to][1]);
				if (to != r)
					close(pipes[from][to][0]);
			}
		setenv("WEIR_TEST_RANK", words, 1);
		if (instance)
			setenv("WEIR_TEST_INSTANCE", instance, 1);
		if (instance && r % SERVERS != 0) {
			snprintf(name, sizeof name, "%s.%d", instance, r % SERVERS);
			setenv("WEIR_INSTANCE", name, 1);
		}
		execv("/proc/self/exe", argv);
		_exit(4);
	}
	for (int from = 0; from < ranks; from++)
		for (int to = 0; to < ranks; to++) {
			close(pipes[from][to][0]);
			close(pipes[from][to][1]);
		}
	exit(ranks_report(pids));
}

/*
 * The first process starts the ranks here and does not return; a rank returns and runs its part of the pattern. The arguments are
 * DIR PATTERN ROUNDS, and then what the program itself knows. Rank 0 makes DIR/<program>.<pattern> for all.
 */
static inline void ranks_begin(int argc, char **argv)
{
	const char *words = getenv("WEIR_TEST_RANK"), *delay_word = getenv("WEIR_TEST_DELAY_US"), *ranks_word = getenv("WEIR_TEST_RANKS");
	int fd, used, step;
	if (argc < 4) {
		fprintf(stderr, "usage: %s DIR PATTERN ROUNDS ...\n", argv[0]);
		exit(2);
	}
	pattern = argv[2];
	rounds = atoi(argv[3]);
	if (ranks_word)
		ranks = atoi(ranks_word);
	MUST(rounds > 0 && rounds <= ROUNDS_MOST && ranks > 1 && ranks <= RANKS_MOST);
	if (!words)
		ranks_start(argv);
	MUST(sscanf(words, "%d %d %d%n", &rank, &ranks, &fd, &used) == 3);
	for (int other = 0; other < ranks; other++, used += step)
		MUST(sscanf(words + used, " %d %d%n", &to_rank[other], &from_rank[other], &step) == 2);
	shared = (struct shared *)mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	MUST(shared != MAP_FAILED);
	delay_us = delay_word ? strtoull(delay_word, NULL, 0) : 0;
	delay_state = shared->seed + (uint64_t)rank * 977;
	const char *slash = strrchr(argv[0], '/');
	snprintf(check_dir, sizeof check_dir, "%s/%s.%s", argv[1], slash ? slash + 1 : argv[0], pattern);
	if (getenv("WEIR_TEST_AGAIN"))
		return; /* Started again by itself in the middle: see killed.c. */
	if (rank == 0)
		MUST(mkdir(check_dir, 0755) == 0 || errno == EEXIST);
	barrier();
}

/* The last word of a rank: `rounds` were done, right or wrong. */
static inline int ranks_end(void)
{
	barrier();
	return 0;
}

#endif
