/*
 * A read that starts after a write() returned anywhere on the node sees it. The writer never waits for its readers:
 * it publishes by an atomic word what it has finished, and readers, at the same time, check what was published before their read.
 * Three kinds: a growing log, a block overwritten in place, and names that appear.
 */
#include "check.h"
#include <sched.h>
#include <stdatomic.h>
#include <sys/mman.h>

enum { READERS = 3, RECORDS = 60000, RECORD = 200, ROUNDS = 60000, BLOCK = 4096, NAMES = 2000 };

struct shared {
	_Atomic long done;
	_Atomic long wrong;
	_Atomic long checks;
	_Atomic int started;
};

static struct shared *shared;

static void report(const char *what, long wanted, long got)
{
	if (atomic_fetch_add(&shared->wrong, 1) < 10) {
		printf("  %s: published %ld, seen %ld\n", what, wanted, got);
		fflush(stdout);
	}
}

static void log_reader(const char *path, uint64_t random)
{
	int fd = open(path, O_RDONLY);
	unsigned char buf[RECORD];
	struct stat st;
	long done;
	shared->started++;
	do {
		done = atomic_load_explicit(&shared->done, memory_order_acquire);
		if (done == 0)
			continue;
		long which = next_random(&random) % 2 ? done - 1 : (long)(next_random(&random) % (uint64_t)done);
		ssize_t n = pread(fd, buf, RECORD, which * RECORD);
		if (n != RECORD || pattern_differs(buf, RECORD, 1, (uint64_t)which * RECORD) != -1)
			report("record of the log", which, n);
		if (which % 16 == 0 && (fstat(fd, &st) != 0 || st.st_size < done * RECORD))
			report("size of the log", done * RECORD, (long)st.st_size);
		shared->checks++;
	} while (done < RECORDS);
	_exit(0);
}

static void block_reader(const char *path)
{
	int fd = open(path, O_RDONLY);
	long block[BLOCK / sizeof(long)], done;
	shared->started++;
	do {
		done = atomic_load_explicit(&shared->done, memory_order_acquire);
		if (done == 0)
			continue;
		if (pread(fd, block, BLOCK, 0) != BLOCK || block[0] < done || block[BLOCK / sizeof(long) - 1] < done)
			report("block in place", done, block[0] < done ? block[0] : block[BLOCK / sizeof(long) - 1]);
		shared->checks++;
	} while (done < ROUNDS);
	_exit(0);
}

static void name_reader(void)
{
	long done;
	struct stat st;
	shared->started++;
	do {
		done = atomic_load_explicit(&shared->done, memory_order_acquire);
		if (done == 0)
			continue;
		if (stat(in_dir("name-%ld", done - 1), &st) != 0 || st.st_size != 3)
			report("name and size", done - 1, errno);
		if (access(in_dir("temporary-%ld", done - 1), F_OK) == 0)
			report("renamed away", done - 1, 0);
		shared->checks++;
	} while (done < NAMES);
	_exit(0);
}

static void start(pid_t *children, void (*work)(int))
{
	memset(shared, 0, sizeof *shared);
	fflush(stdout);
	for (int i = 0; i < READERS; i++)
		if ((children[i] = fork()) == 0) {
			work(i);
			_exit(1);
		}
	while (shared->started < READERS)
		sched_yield();
}

static void work_log(int i)
{
	log_reader(in_dir("log"), (uint64_t)i + 1);
}

static void work_block(int i)
{
	(void)i;
	block_reader(in_dir("block"));
}

static void work_names(int i)
{
	(void)i;
	name_reader();
}

static void finish(const char *what, pid_t *children)
{
	int good = 0;
	for (int i = 0; i < READERS; i++)
		good += child_ok(children[i]);
	CHECK(good == READERS && shared->checks > 0, "%s: %d readers checked %ld times", what, READERS, (long)shared->checks);
	CHECK(shared->wrong == 0, "%s: every read saw what was written before it (%ld did not)", what, (long)shared->wrong);
}

int main(int argc, char **argv)
{
	pid_t children[READERS];
	check_begin(argc, argv);
	shared = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	MUST(shared != MAP_FAILED);

	int fd = open(in_dir("log"), O_WRONLY | O_CREAT, 0600);
	unsigned char record[RECORD];
	MUST(fd >= 0);
	start(children, work_log);
	for (long i = 0; i < RECORDS; i++) {
		pattern_fill(record, RECORD, 1, (uint64_t)i * RECORD);
		MUST(write(fd, record, RECORD) == RECORD);
		atomic_store_explicit(&shared->done, i + 1, memory_order_release);
	}
	finish("growing log", children);
	close(fd);

	fd = open(in_dir("block"), O_WRONLY | O_CREAT, 0600);
	MUST(fd >= 0);
	start(children, work_block);
	for (long i = 1; i <= ROUNDS; i++) {
		long block[BLOCK / sizeof(long)];
		for (size_t k = 0; k < BLOCK / sizeof(long); k++)
			block[k] = i;
		MUST(pwrite(fd, block, BLOCK, 0) == BLOCK);
		atomic_store_explicit(&shared->done, i, memory_order_release);
	}
	finish("block overwritten in place", children);
	close(fd);

	start(children, work_names);
	for (long i = 0; i < NAMES; i++) {
		put_text(in_dir("temporary-%ld", i), "abc");
		MUST(rename(in_dir("temporary-%ld", i), in_dir("name-%ld", i)) == 0);
		atomic_store_explicit(&shared->done, i + 1, memory_order_release);
	}
	finish("written, then renamed", children);
	return check_end();
}
