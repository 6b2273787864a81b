/*
 * A process killed by SIGKILL at any instant loses nothing that its finished write() calls wrote: the bytes are
 * readable at once by others, and what it was doing to the namespace is either done or not.
 *
 * The victim says through shared memory which call it has begun and which has returned; the parent lets it
 * reach a random point, spins a random while, kills it, and checks before anything else happens. Usage: kill DIR [ROUNDS].
 */
#include "check.h"
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/statvfs.h>

enum { SLOTS = 64, SLOT = 65536 };

struct shared {
	_Atomic long begun, done;     /* calls of the victim */
	uint64_t slot_seed[SLOTS];    /* what the finished overwrite of a slot left there */
	long slot_length[SLOTS];
	_Atomic long slot_now;        /* the slot that the call in flight overwrites, or -1 */
};

static struct shared *shared;
static unsigned char buf[SLOT];

static long record_length(long n)
{
	static const long LENGTHS[] = {1, 17, 64, 1000, 4096, 10000, 65536};
	return LENGTHS[(n * 2654435761u >> 7) % 7];
}

/* Sequential records: by write, or by append with several victims in other files. */
static void victim_log(int append)
{
	int fd = open(in_dir("log"), O_WRONLY | O_CREAT | (append ? O_APPEND : 0), 0600);
	uint64_t at = 0;
	for (long n = 0;; n++) {
		long length = record_length(n);
		pattern_fill(buf, (size_t)length, 1, at);
		shared->begun = n + 1;
		if (write(fd, buf, (size_t)length) != length)
			_exit(1);
		atomic_store_explicit(&shared->done, n + 1, memory_order_release);
		at += (uint64_t)length;
	}
}

static void check_log(int *whole, int *readable)
{
	uint64_t at = 0;
	int fd = open(in_dir("log"), O_RDONLY);
	struct stat st;
	*whole = *readable = fd >= 0 || shared->done == 0;
	if (fd < 0)
		return;
	for (long n = 0; n < shared->done; n++) {
		long length = record_length(n);
		errno = 0;
		ssize_t got = pread(fd, buf, (size_t)length, (off_t)at);
		long differs = got > 0 ? pattern_differs(buf, (size_t)got, 1, at) : -1;
		if (got != length || differs != -1) {
			int error = errno;
			ssize_t again = pread(fd, buf, (size_t)length, (off_t)at);
			printf("  record %ld of %ld at %llu is not whole: read %zd of %ld (%s), differs at %ld (%d there); once more: %zd, differs at %ld\n", n,
			       (long)shared->done, (unsigned long long)at, got, length, strerror(error), differs, differs >= 0 ? buf[differs] : 0, again,
			       again > 0 ? pattern_differs(buf, (size_t)again, 1, at) : -1);
			*readable = 0;
			break;
		}
		at += (uint64_t)length;
	}
	long in_flight = shared->begun > shared->done ? record_length(shared->done) : 0;
	if (fstat(fd, &st) != 0 || (uint64_t)st.st_size < at || (uint64_t)st.st_size > at + (uint64_t)in_flight) {
		printf("  size %lld, wanted %llu, at most %ld more\n", (long long)st.st_size, (unsigned long long)at, in_flight);
		*whole = 0;
	}
	close(fd);
}

/* Overwrites of random slots. */
static void victim_slots(uint64_t random)
{
	int fd = open(in_dir("slots"), O_WRONLY | O_CREAT, 0600);
	for (long n = 0;; n++) {
		long slot = (long)(next_random(&random) % SLOTS), length = 1 + (long)(next_random(&random) % SLOT);
		uint64_t seed = next_random(&random);
		pattern_fill(buf, (size_t)length, seed, 0);
		shared->slot_now = slot;
		shared->begun = n + 1;
		if (pwrite(fd, buf, (size_t)length, slot * SLOT) != length)
			_exit(1);
		shared->slot_seed[slot] = seed;
		shared->slot_length[slot] = length;
		shared->slot_now = -1;
		atomic_store_explicit(&shared->done, n + 1, memory_order_release);
	}
}

static void check_slots(int *whole)
{
	int fd = open(in_dir("slots"), O_RDONLY);
	*whole = fd >= 0 || shared->done == 0;
	for (long slot = 0; fd >= 0 && slot < SLOTS; slot++) {
		long length = shared->slot_length[slot];
		if (slot == shared->slot_now || length == 0)
			continue; /* the call in flight may have changed it in part */
		if (pread(fd, buf, (size_t)length, slot * SLOT) != length || pattern_differs(buf, (size_t)length, shared->slot_seed[slot], 0) != -1) {
			printf("  slot %ld is not what its last finished write left\n", slot);
			*whole = 0;
		}
	}
	if (fd >= 0)
		close(fd);
}

/* Create, write, rename, in a loop; odd names are removed again. */
static void victim_names(void)
{
	for (long n = 0;; n++) {
		const char *made = in_dir("made-%ld", n), *named = in_dir("named-%ld", n);
		shared->begun = n + 1;
		int fd = open(made, O_WRONLY | O_CREAT | O_EXCL, 0600);
		if (fd < 0 || write(fd, "content", 7) != 7 || close(fd) != 0 || rename(made, named) != 0)
			_exit(1);
		if (n % 2 && unlink(named) != 0)
			_exit(2);
		atomic_store_explicit(&shared->done, n + 1, memory_order_release);
	}
}

static void check_names(int *whole)
{
	*whole = 1;
	for (long n = 0; n < shared->done; n++) {
		int there = access(in_dir("named-%ld", n), F_OK) == 0;
		if (access(in_dir("made-%ld", n), F_OK) == 0 || there != (n % 2 == 0) || (there && n % 64 == 0 && !file_is(in_dir("named-%ld", n), "content"))) {
			printf("  name %ld of %ld is wrong\n", n, (long)shared->done);
			*whole = 0;
		}
	}
	for (long n = 0; n <= shared->done; n++) {
		unlink(in_dir("named-%ld", n));
		unlink(in_dir("made-%ld", n));
	}
}

static void kill_at(pid_t pid, long calls, long spins)
{
	while (atomic_load_explicit(&shared->done, memory_order_acquire) < calls && waitpid(pid, NULL, WNOHANG) == 0)
		sched_yield();
	for (volatile long i = 0; i < spins; i++) {
	}
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
}

int main(int argc, char **argv)
{
	int rounds = argc > 2 ? atoi(argv[2]) : 40, wrong[4] = {0}, killed = 0;
	struct statvfs before, after;
	check_begin(argc, argv);
	shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	MUST(shared != MAP_FAILED);
	uint64_t random = seed_from_environment();
	MUST(statvfs(check_dir, &before) == 0);
	for (int round = 0; round < rounds; round++)
		for (int kind = 0; kind < 4; kind++) {
			long calls = (long)(next_random(&random) % (kind == 3 ? 60 : 400)), spins = (long)(next_random(&random) % 20000);
			uint64_t seed = next_random(&random);
			int whole = 0, readable = 1;
			memset(shared, 0, sizeof *shared);
			shared->slot_now = -1;
			fflush(stdout);
			pid_t pid = fork();
			if (pid == 0) {
				if (kind < 2)
					victim_log(kind);
				else if (kind == 2)
					victim_slots(seed);
				else
					victim_names();
			}
			kill_at(pid, calls, spins);
			killed += shared->done >= calls;
			if (kind < 2)
				check_log(&whole, &readable);
			else if (kind == 2)
				check_slots(&whole);
			else
				check_names(&whole);
			wrong[kind] += !whole || !readable;
			if (kind < 2) {
				/* Others go on with the file of the dead: append to it, then it is removed. The call in flight may have
				 * had its place at the end reserved already; then that much may be zeros before what is appended. */
				int fd = open(in_dir("log"), O_RDWR | O_APPEND | O_CREAT, 0600);
				long most = shared->begun > shared->done ? record_length(shared->done) : 0;
				struct stat st, later;
				char tail[5];
				MUST(fd >= 0 && fstat(fd, &st) == 0);
				int good = write(fd, "after", 5) == 5 && fstat(fd, &later) == 0;
				long gap = good ? (long)(later.st_size - st.st_size - 5) : -1;
				good = good && gap >= 0 && gap <= most && pread(fd, tail, 5, later.st_size - 5) == 5 && !memcmp(tail, "after", 5) &&
				       pread(fd, buf, (size_t)gap, st.st_size) == gap && all_bytes(buf, (size_t)gap, 0);
				if (!good) {
					printf("  appending to it left a gap of %ld, at most %ld were in flight\n", gap, most);
					wrong[kind]++;
				}
				close(fd);
			}
			unlink(in_dir("log"));
			unlink(in_dir("slots"));
		}
	CHECK(killed == rounds * 4, "%d victims reached their point and were killed", killed);
	CHECK(wrong[0] == 0, "write(): all finished records readable at once, the size fits, others go on (%d wrong)", wrong[0]);
	CHECK(wrong[1] == 0, "write() with O_APPEND: the same (%d wrong)", wrong[1]);
	CHECK(wrong[2] == 0, "pwrite() over old data: each slot as its last finished write left it (%d wrong)", wrong[2]);
	CHECK(wrong[3] == 0, "create, write, rename, unlink: each done or not (%d wrong)", wrong[3]);
	/* What the dead held comes back. On a shared disk others change the free space, so the leak must stand out. */
	if (getenv("WEIR_TEST_ON_WEIR")) {
		unsigned long long margin = 64ull << 20, free_before = before.f_bavail * before.f_frsize, free_after = 0;
		for (long tries = 0; tries < 2000000 && free_after + margin < free_before; tries++) {
			MUST(statvfs(check_dir, &after) == 0);
			free_after = after.f_bavail * after.f_frsize;
			sched_yield();
		}
		CHECK(free_after + margin >= free_before, "the space comes back: %llu MiB free before, %llu after", free_before >> 20, free_after >> 20);
	}
	return check_end();
}
