/*
 * Mappings of files, shared and private, as mmap(2) has them: what one process stores, others load and read, and
 * what they write is seen in the mapping; the end of the file, truncation, fork, mremap, protections, permissions,
 * names that change while the file is mapped, and a writer that races with the first mapping.
 */
#include "check.h"

#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/uio.h>

#define PAGE 4096

static sigjmp_buf jump;
static void on_signal(int number)
{
	siglongjmp(jump, number);
}
/* The signal that a load from an address raises, or 0. */
static int load_raises(volatile unsigned char *at)
{
	int got = sigsetjmp(jump, 1);
	if (got == 0)
		(void)*at;
	return got;
}
static int store_raises(volatile unsigned char *at)
{
	int got = sigsetjmp(jump, 1);
	if (got == 0)
		*at = 1;
	return got;
}

static unsigned char *map(int fd, size_t length, int protection, int flags, off_t offset)
{
	void *place = mmap(NULL, length, protection, flags, fd, offset);
	MUST(place != MAP_FAILED);
	return place;
}
static unsigned char *map_shared(int fd, size_t length)
{
	return map(fd, length, PROT_READ | PROT_WRITE, MAP_SHARED, 0);
}
static int make(const char *name, size_t length)
{
	int fd = open(in_dir("%s", name), O_RDWR | O_CREAT | O_TRUNC, 0644);
	MUST(fd >= 0);
	unsigned char *bytes = malloc(length + 1);
	pattern_fill(bytes, length, 1, 0);
	MUST(write(fd, bytes, length) == (ssize_t)length);
	free(bytes);
	return fd;
}
/* Runs an act in a child; true if it returned true. */
static int in_child(int (*act)(void *), void *with)
{
	pid_t pid = fork();
	MUST(pid >= 0);
	if (pid == 0)
		_exit(act(with) ? 0 : 1);
	int status = -1;
	waitpid(pid, &status, 0);
	return status == 0;
}

static int opens_and_sees_stores(void *name)
{
	int fd = open(in_dir("%s", (char *)name), O_RDWR);
	unsigned char byte = 0;
	unsigned char *other = map_shared(fd, 3 * PAGE);
	int ok = pread(fd, &byte, 1, 5000) == 1 && byte == 'S' && other[5000] == 'S';
	other[5001] = 'T';
	ok = ok && pwrite(fd, "U", 1, 5002) == 1 && other[5002] == 'U';
	return ok && munmap(other, 3 * PAGE) == 0 && close(fd) == 0;
}

static void stores_and_calls(void)
{
	int fd = make("calls", 3 * PAGE);
	unsigned char *m = map_shared(fd, 3 * PAGE);
	CHECK(pattern_differs(m, 3 * PAGE, 1, 0) < 0, "a mapping shows what was written before");
	m[5000] = 'S';
	char got[8] = "";
	CHECK(pread(fd, got, 1, 5000) == 1 && got[0] == 'S', "pread sees a store");
	CHECK(in_child(opens_and_sees_stores, "calls"), "another process sees it by pread and by a mapping");
	CHECK(m[5001] == 'T' && m[5002] == 'U', "its store and its pwrite are seen here");
	CHECK(lseek(fd, 10, SEEK_SET) == 10 && write(fd, "wxyz", 4) == 4 && memcmp(m + 10, "wxyz", 4) == 0,
	      "write at the offset is seen in the mapping");
	struct iovec parts[2] = { { "ab", 2 }, { "cd", 2 } };
	CHECK(pwritev(fd, parts, 2, PAGE - 2) == 4 && memcmp(m + PAGE - 2, "abcd", 4) == 0,
	      "pwritev over the border of pages is seen");
	memcpy(m + 2 * PAGE - 2, "1234", 4);
	struct iovec into[2] = { { got, 2 }, { got + 2, 2 } };
	CHECK(preadv(fd, into, 2, 2 * PAGE - 2) == 4 && memcmp(got, "1234", 4) == 0, "preadv sees stores");
	CHECK(lseek(fd, 2 * PAGE - 2, SEEK_SET) > 0 && read(fd, got, 4) == 4 && memcmp(got, "1234", 4) == 0,
	      "read sees stores");
	FILE *stream = fopen(in_dir("calls"), "r");
	CHECK(fseek(stream, 5000, SEEK_SET) == 0 && fgetc(stream) == 'S', "stdio sees stores");
	fclose(stream);
	CHECK(msync(m, 3 * PAGE, MS_SYNC) == 0 && msync(m, 3 * PAGE, MS_ASYNC) == 0 &&
	      msync(m, 3 * PAGE, MS_INVALIDATE) == 0, "msync of each kind");
	CHECK_FAILS(msync(m, 3 * PAGE, MS_SYNC | MS_ASYNC), EINVAL, "msync of two kinds at once");
	CHECK(ftruncate(fd, 100 * PAGE) == 0 && lseek(fd, 3 * PAGE, SEEK_DATA) < 0 && errno == ENXIO, "a hole at the end");
	char *late = mmap(NULL, 100 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	MUST(late != MAP_FAILED);
	late[50 * PAGE + 7] = 'x';
	CHECK(lseek(fd, 3 * PAGE, SEEK_DATA) == 50 * PAGE && lseek(fd, 50 * PAGE, SEEK_HOLE) == 51 * PAGE,
	      "SEEK_DATA finds what was stored in a hole");
	MUST(munmap(late, 100 * PAGE) == 0 && ftruncate(fd, 3 * PAGE) == 0);
	CHECK_FAILS(mmap(NULL, PAGE, PROT_READ, 0, fd, 0) == MAP_FAILED ? -1 : 0, EINVAL, "a mapping of no kind");
	CHECK(fsync(fd) == 0 && close(fd) == 0, "fsync, close");
	m[7] = 'Z';
	fd = open(in_dir("calls"), O_RDONLY);
	CHECK(pread(fd, got, 1, 7) == 1 && got[0] == 'Z', "a mapping outlives its descriptor, and its stores are seen");
	CHECK(munmap(m, 3 * PAGE) == 0 && pread(fd, got, 1, 7) == 1 && got[0] == 'Z', "and its stores outlive it");
	close(fd);
}

static int appends(void *name)
{
	int fd = open(in_dir("%s", (char *)name), O_WRONLY | O_APPEND);
	return write(fd, "tail", 4) == 4 && close(fd) == 0;
}
static int cuts(void *name)
{
	return truncate(in_dir("%s", (char *)name), 100) == 0;
}
static int empties(void *name)
{
	int fd = open(in_dir("%s", (char *)name), O_WRONLY | O_TRUNC);
	return fd >= 0 && close(fd) == 0;
}

static void ends_and_growth(void)
{
	int fd = make("end", PAGE + 100);
	unsigned char *m = map_shared(fd, 4 * PAGE);
	CHECK(pattern_differs(m, PAGE + 100, 1, 0) < 0 && all_bytes(m + PAGE + 100, PAGE - 100, 0),
	      "behind an end inside of a page are zeros");
	m[PAGE + 200] = 'x';
	struct stat st;
	CHECK(msync(m, 2 * PAGE, MS_SYNC) == 0 && fstat(fd, &st) == 0 && st.st_size == PAGE + 100,
	      "a store behind the end does not grow the file");
	CHECK(load_raises(m + 2 * PAGE) == SIGBUS, "SIGBUS by a load from a page behind the end");
	CHECK(store_raises(m + 3 * PAGE) == SIGBUS, "SIGBUS by a store to one");
	CHECK(in_child(appends, "end") && memcmp(m + PAGE + 100, "tail", 4) == 0, "an append is seen in the mapping");
	CHECK(ftruncate(fd, 4 * PAGE) == 0 && load_raises(m + 3 * PAGE) == 0 && m[3 * PAGE] == 0,
	      "pages are there once the file has grown");
	CHECK(store_raises(m + 4 * PAGE - 1) == 0 && fstat(fd, &st) == 0 && st.st_size == 4 * PAGE, "and can be stored to");
	CHECK(ftruncate(fd, 5 * PAGE) == 0, "growing further");
	m = mremap(m, 4 * PAGE, 5 * PAGE, MREMAP_MAYMOVE);
	MUST(m != MAP_FAILED);
	m[4 * PAGE + 9] = 'g';
	char byte = 0;
	CHECK(pread(fd, &byte, 1, 4 * PAGE + 9) == 1 && byte == 'g', "mremap of the mapping to more");
	m[50] = 'c';
	m[200] = 'd';
	CHECK(in_child(cuts, "end") && load_raises(m + PAGE) == SIGBUS && m[50] == 'c', "SIGBUS once another cut it");
	CHECK(fstat(fd, &st) == 0 && st.st_size == 100, "and its size is what was said");
	CHECK(ftruncate(fd, PAGE) == 0 && m[200] == 0, "what was cut off is zeros when it grows again");
	CHECK(in_child(empties, "end") && load_raises(m) == SIGBUS, "SIGBUS once another opened it with O_TRUNC");
	CHECK(pwrite(fd, "new", 3, 0) == 3 && memcmp(m, "new", 3) == 0, "and what is written then is seen");
	munmap(m, 5 * PAGE);
	close(fd);
}

struct sum { unsigned char *at; int index; };
static int child_stores(void *m)
{
	((unsigned char *)m)[1] = 'k';
	return ((unsigned char *)m)[0] == 'p';
}
static void *thread_stores(void *with)
{
	struct sum *part = with;
	for (int i = 0; i < 1000; i++)
		part->at[(i * 8 + part->index) % (16 * PAGE)] = (unsigned char)('0' + part->index);
	return NULL;
}

static void kinds(void)
{
	int fd = make("kinds", 16 * PAGE);
	unsigned char *m = map_shared(fd, 16 * PAGE);
	m[0] = 'p';
	CHECK(in_child(child_stores, m) && m[1] == 'k', "a mapping is one with that of a forked child");
	unsigned char *own = map(fd, 16 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE, 0);
	CHECK(own[0] == 'p', "a private mapping shows what is stored");
	own[0] = 'q';
	char byte = 0;
	CHECK(pread(fd, &byte, 1, 0) == 1 && byte == 'p' && m[0] == 'p', "a store into it is its own");
	munmap(own, 16 * PAGE);
	unsigned char *room = map(-1, 4 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, 0);
	unsigned char *fixed = mmap(room + PAGE, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, PAGE);
	CHECK(fixed == room + PAGE && pattern_differs(fixed, PAGE, 1, PAGE) < 0, "MAP_FIXED, at an offset");
	fixed[3] = 'f';
	CHECK(m[PAGE + 3] == 'f', "and it is the same file");
	fixed = mmap(room + 2 * PAGE, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED, fd, PAGE);
	CHECK(fixed == room + 2 * PAGE && fixed[3] == 'f', "a small private one at a place that was named");
	CHECK(mprotect(m, PAGE, PROT_READ) == 0 && store_raises(m) == SIGSEGV, "mprotect takes writing away");
	CHECK(mprotect(m, PAGE, PROT_READ | PROT_WRITE) == 0 && store_raises(m) == 0, "and gives it back");
	unsigned char *none = map(fd, PAGE, PROT_NONE, MAP_SHARED, 0);
	CHECK(load_raises(none) == SIGSEGV && mprotect(none, PAGE, PROT_READ) == 0 && none[1] == 'k',
	      "PROT_NONE, then a protection that reads");
	pthread_t threads[8];
	struct sum parts[8];
	for (int i = 0; i < 8; i++) {
		parts[i] = (struct sum){ m, i };
		MUST(pthread_create(&threads[i], NULL, thread_stores, &parts[i]) == 0);
	}
	for (int i = 0; i < 8; i++)
		pthread_join(threads[i], NULL);
	char text[9] = "";
	CHECK(pread(fd, text, 8, 800) == 8 && strcmp(text, "01234567") == 0, "stores of eight threads");
	CHECK(mmap(NULL, 0, PROT_READ, MAP_SHARED, fd, 0) == MAP_FAILED && errno == EINVAL, "no bytes: EINVAL");
	CHECK(mmap(NULL, PAGE, PROT_READ, MAP_SHARED, fd, 100) == MAP_FAILED && errno == EINVAL,
	      "an offset inside of a page: EINVAL");
	close(fd);
}

static void permissions(void)
{
	int fd = make("may", PAGE);
	close(fd);
	int reads = open(in_dir("may"), O_RDONLY), writes = open(in_dir("may"), O_WRONLY);
	CHECK(mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, reads, 0) == MAP_FAILED && errno == EACCES,
	      "shared and writable of a descriptor that reads: EACCES");
	CHECK(mmap(NULL, PAGE, PROT_READ, MAP_SHARED, writes, 0) == MAP_FAILED && errno == EACCES,
	      "of one that only writes: EACCES");
	CHECK(mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE, writes, 0) == MAP_FAILED && errno == EACCES,
	      "private too: EACCES");
	unsigned char *m = map(reads, PAGE, PROT_READ, MAP_SHARED, 0);
	CHECK(mprotect(m, PAGE, PROT_READ | PROT_WRITE) == -1 && errno == EACCES,
	      "what a reading descriptor mapped cannot become writable: EACCES");
	unsigned char *own = map(reads, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE, 0);
	CHECK(store_raises(own) == 0, "but a private one may be");
	CHECK(pwrite(writes, "seen", 4, 0) == 4 && memcmp(m, "seen", 4) == 0, "it shows what another descriptor writes");
	CHECK(chmod(in_dir("may"), 0444) == 0, "chmod");
	int again = open(in_dir("may"), O_RDONLY);
	unsigned char *second = map(again, PAGE, PROT_READ, MAP_SHARED, 0);
	CHECK(pwrite(writes, "more", 4, 0) == 4 && memcmp(second, "more", 4) == 0, "also of a file of mode 0444");
}

static void names(void)
{
	int fd = make("name", PAGE);
	unsigned char *m = map_shared(fd, PAGE);
	CHECK(rename(in_dir("name"), in_dir("renamed")) == 0, "rename while mapped");
	m[0] = 'r';
	int other = open(in_dir("renamed"), O_RDWR);
	char byte = 0;
	CHECK(pread(other, &byte, 1, 0) == 1 && byte == 'r', "its new name has what is stored");
	CHECK(unlink(in_dir("renamed")) == 0, "unlink while mapped");
	m[1] = 'u';
	CHECK(pread(other, &byte, 1, 1) == 1 && byte == 'u' && pwrite(other, "v", 1, 2) == 1 && m[2] == 'v',
	      "what has it open and the mapping agree");
	close(fd);
	close(other);
	m[3] = 'w';
	CHECK(m[3] == 'w' && m[2] == 'v' && munmap(m, PAGE) == 0, "the mapping alone keeps it");
	fd = make("gone", PAGE);
	MUST(unlink(in_dir("gone")) == 0);
	m = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	CHECK(m != MAP_FAILED && pattern_differs(m, PAGE, 1, 0) < 0, "a file without a name can be mapped");
}

static void many(void)
{
	enum { FILES = 500 };
	static unsigned char *maps[FILES];
	static int fds[FILES];
	int ok = 1;
	for (int i = 0; i < FILES; i++) {
		char name[20];
		snprintf(name, sizeof name, "many%d", i);
		fds[i] = make(name, 100);
		maps[i] = map_shared(fds[i], PAGE);
		maps[i][0] = (unsigned char)i;
	}
	for (int i = 0; i < FILES; i++) {
		unsigned char byte = 0;
		ok = ok && pread(fds[i], &byte, 1, 0) == 1 && byte == (unsigned char)i;
		ok = ok && pwrite(fds[i], "+", 1, 1) == 1 && maps[i][1] == '+';
		close(fds[i]);
	}
	CHECK(ok, "%d files mapped at once", FILES);
	for (int i = 0; i < FILES; i++)
		munmap(maps[i], PAGE);
}

/* A child writes numbers that grow, on and on; the file is mapped meanwhile. */
static void race(void)
{
	int wrong = 0;
	for (int round = 0; round < 60; round++) {
		int fd = make("race", 4 * PAGE);
		int stop[2], said[2];
		MUST(pipe(stop) == 0 && pipe(said) == 0);
		pid_t writer = fork();
		MUST(writer >= 0);
		if (writer == 0) {
			int own = open(in_dir("race"), O_RDWR);
			uint64_t number = 0;
			struct pollfd told = { stop[0], POLLIN, 0 };
			while (number % 64 || poll(&told, 1, 0) == 0) {
				number++;
				MUST(pwrite(own, &number, 8, (off_t)(number % 4) * PAGE) == 8);
			}
			MUST(write(said[1], &number, 8) == 8);
			_exit(0);
		}
		usleep(500);
		volatile unsigned char *m = map_shared(fd, 4 * PAGE);
		for (int i = 0; i < 4; i++)
			(void)m[i * PAGE];
		usleep(300);
		uint64_t last = 0;
		MUST(write(stop[1], "!", 1) == 1 && read(said[0], &last, 8) == 8);
		for (uint64_t back = 0; back < 4 && back < last; back++)
			wrong += *(volatile uint64_t *)(m + (last - back) % 4 * PAGE) != last - back;
		waitpid(writer, NULL, 0);
		munmap((void *)m, 4 * PAGE);
		close(fd);
		close(stop[0]), close(stop[1]), close(said[0]), close(said[1]);
	}
	CHECK(wrong == 0, "a writer that races with the first mapping leaves no stale page (%d)", wrong);
}

/* One of several processes that have one page, each with bytes of its own: how often these were not its last ones. */
static int sharer(int number, int share, int rounds)
{
	enum { SHARES = 4, BYTES = PAGE / SHARES };
	unsigned char own[BYTES] = { 0 }, got[BYTES];
	off_t at = number * BYTES;
	int wrong = 0, fd = open(in_dir("page"), O_RDWR);
	MUST(fd >= 0);
	for (int i = 1; i <= rounds; i++) {
		unsigned char *m = NULL;
		switch ((i + share) % 4) {
		case 0:
			memset(own, i, BYTES);
			MUST(pwrite(fd, own, BYTES, at) == BYTES);
			break;
		case 1:
			m = map_shared(fd, PAGE);
			memset(own, i, BYTES / 2);
			memset(m + at, i, BYTES / 2);
			break;
		case 2:
			memset(own + BYTES / 4, 0, BYTES / 2);
			MUST(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, at + BYTES / 4, BYTES / 2) == 0);
			break;
		case 3:
			MUST(close(fd) == 0);
			fd = open(in_dir("page"), O_RDWR);
			MUST(fd >= 0);
			m = map(fd, PAGE, PROT_READ, i % 8 < 4 ? MAP_SHARED : MAP_PRIVATE, 0);
			wrong += memcmp(m + at, own, BYTES) != 0;
			break;
		}
		MUST(pread(fd, got, BYTES, at) == BYTES);
		wrong += memcmp(got, own, BYTES) != 0;
		if (m)
			MUST(munmap(m, PAGE) == 0);
	}
	close(fd);
	return wrong;
}

/* Writes, stores and holes of several processes in one page. None may bring another's bytes of before back. */
static void shared_page(void)
{
	int fd = make("page", PAGE), lost = 0;
	unsigned char *all_the_time = map_shared(fd, PAGE);
	volatile unsigned char touched = *all_the_time;
	(void)touched;
	pid_t children[4];
	for (int number = 0; number < 4; number++) {
		children[number] = fork();
		MUST(children[number] >= 0);
		if (children[number] == 0) {
			/* All begin with a write of their own. */
			unsigned char zeros[PAGE / 4] = { 0 };
			MUST(pwrite(fd, zeros, sizeof zeros, number * sizeof zeros) == sizeof zeros);
			_exit(sharer(number, number, 4000) > 0);
		}
	}
	for (int number = 0; number < 4; number++) {
		int status = -1;
		waitpid(children[number], &status, 0);
		lost += status != 0;
	}
	CHECK(lost == 0, "of processes that share a page none loses bytes (%d did)", lost);
	MUST(munmap(all_the_time, PAGE) == 0);
	close(fd);
}

/* Pages that were read for a private mapping alone need not follow what is written. Those of a shared one must. */
static void private_beside_shared(void)
{
	size_t length = 64 * PAGE;
	int fd = make("beside", length), reader = open(in_dir("beside"), O_RDONLY);
	MUST(reader >= 0);
	unsigned char *own = map(reader, length, PROT_READ, MAP_PRIVATE, 0);
	volatile unsigned char first = own[0];
	unsigned char *both = map(reader, length, PROT_READ, MAP_SHARED, 0);
	volatile unsigned char other = own[40 * PAGE];
	(void)first, (void)other;
	MUST(pwrite(fd, "new", 3, 40 * PAGE) == 3 && pwrite(fd, "new", 3, 0) == 3);
	CHECK(!memcmp(both + 40 * PAGE, "new", 3) && !memcmp(both, "new", 3),
	      "a shared mapping shows what is written, whatever private ones have read");
	MUST(munmap(both, length) == 0 && munmap(own, length) == 0 && close(fd) == 0 && close(reader) == 0);
}

/* Pages of private mappings that are given up show the file again. */
static void given_up(void)
{
	size_t lengths[] = { 20000, 60000, 200000 };
	for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
		int fd = make("given up", lengths[i]);
		unsigned char *m = map(fd, lengths[i], PROT_READ | PROT_WRITE, MAP_PRIVATE, 0);
		m[5000] ^= 1;
		CHECK(pattern_differs(m, lengths[i], 1, 0) == 5000 && madvise(m, lengths[i], MADV_DONTNEED) == 0 &&
			      pattern_differs(m, lengths[i], 1, 0) < 0,
		      "MADV_DONTNEED of %zu private bytes", lengths[i]);
		MUST(munmap(m, lengths[i]) == 0 && close(fd) == 0);
	}
	/* Also where the program may make no file of that length. */
	struct rlimit before, small = { 4096, RLIM_INFINITY };
	int limited = make("limited", 20000);
	MUST(getrlimit(RLIMIT_FSIZE, &before) == 0);
	small.rlim_max = before.rlim_max;
	MUST(setrlimit(RLIMIT_FSIZE, &small) == 0);
	unsigned char *of_limited = map(limited, 20000, PROT_READ, MAP_PRIVATE, 0);
	MUST(setrlimit(RLIMIT_FSIZE, &before) == 0);
	CHECK(pattern_differs(of_limited, 20000, 1, 0) < 0, "a private mapping beyond RLIMIT_FSIZE");
	MUST(munmap(of_limited, 20000) == 0 && close(limited) == 0);

	int fd = make("short", 100);
	unsigned char *m = map(fd, 3 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE, 0);
	CHECK(m[99] != 0 && m[100] == 0 && load_raises(m + PAGE) == SIGBUS && store_raises(m + 2 * PAGE) == SIGBUS,
	      "SIGBUS behind the end of a file that is mapped privately");
	MUST(munmap(m, 3 * PAGE) == 0 && close(fd) == 0);
}

int main(int argc, char **argv)
{
	check_begin(argc, argv);
	struct sigaction action = { .sa_handler = on_signal };
	sigaction(SIGBUS, &action, NULL);
	sigaction(SIGSEGV, &action, NULL);
	stores_and_calls();
	ends_and_growth();
	kinds();
	permissions();
	names();
	many();
	race();
	shared_page();
	private_beside_shared();
	given_up();
	return check_end();
}
