/*
 * Shared and private mappings: what is stored in memory is what is read, by every process and every call, and the
 * other way about.
 */
#include "check.h"
#include <setjmp.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/uio.h>

static size_t page;

static char *map(int fd, size_t length, int protection, int flags, off_t offset)
{
	char *at = mmap(NULL, length, protection, flags, fd, offset);
	MUST(at != MAP_FAILED);
	return at;
}

/* Runs `act` in a child; whether it returned 0. */
static int in_child(int (*act)(const char *path), const char *path)
{
	pid_t pid = fork();
	MUST(pid >= 0);
	if (pid == 0)
		_exit(act(path));
	int status;
	MUST(waitpid(pid, &status, 0) == pid);
	return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static int file_of(const char *name, size_t length)
{
	int fd = open(name, O_RDWR | O_CREAT | O_TRUNC, 0644);
	MUST(fd >= 0);
	char *bytes = malloc(length);
	MUST(bytes);
	memset(bytes, 'a', length);
	MUST(write(fd, bytes, length) == (ssize_t)length);
	free(bytes);
	return fd;
}

static int reads_x(const char *path)
{
	char got = 0;
	int fd = open(path, O_RDONLY);
	return !(fd >= 0 && pread(fd, &got, 1, (off_t)page + 7) == 1 && got == 'x');
}

static int writes_y(const char *path)
{
	int fd = open(path, O_WRONLY);
	return !(fd >= 0 && pwrite(fd, "y", 1, (off_t)page + 9) == 1);
}

static int maps_and_stores_z(const char *path)
{
	int fd = open(path, O_RDWR);
	char *at = mmap(NULL, 3 * page, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (at == MAP_FAILED || at[page + 9] != 'y')
		return 1;
	at[2 * page] = 'z';
	return 0;
}

static int cuts(const char *path)
{
	return truncate(path, (off_t)page);
}

static int cuts_by_open(const char *path)
{
	return open(path, O_WRONLY | O_TRUNC) < 0;
}

static void between_processes(void)
{
	int fd = file_of("shared", 3 * page);
	char *at = map(fd, 3 * page, PROT_READ | PROT_WRITE, MAP_SHARED, 0);
	CHECK(at[0] == 'a' && at[3 * page - 1] == 'a', "a mapping shows the file");
	at[page + 7] = 'x';
	char got[4] = "";
	CHECK(pread(fd, got, 1, (off_t)page + 7) == 1 && got[0] == 'x', "a store is read by the same process");
	CHECK(in_child(reads_x, "shared"), "and by another one");
	CHECK(in_child(writes_y, "shared") && at[page + 9] == 'y', "another one's write shows in the mapping");
	CHECK(in_child(maps_and_stores_z, "shared") && at[2 * page] == 'z', "another one's store, too");
	struct iovec pieces[] = {{"1", 1}, {"23", 2}};
	CHECK(pwritev(fd, pieces, 2, 3) == 3 && !memcmp(at + 3, "123", 3), "pwritev shows in the mapping");
	int end = open("shared", O_WRONLY | O_APPEND);
	CHECK(write(end, "tail", 4) == 4, "an append to a mapped file");
	struct stat st;
	CHECK(fstat(fd, &st) == 0 && st.st_size == (off_t)(3 * page + 4), "makes it longer: %ld", (long)st.st_size);
	char *more = map(fd, 4 * page, PROT_READ, MAP_SHARED, 0);
	CHECK(!memcmp(more + 3 * page, "tail", 5), "and shows in a mapping, with zeros behind it");
	CHECK(msync(at, 3 * page, MS_SYNC) == 0 && msync(at, 3 * page, MS_ASYNC | MS_INVALIDATE) == 0, "msync");
	CHECK(fsync(fd) == 0, "fsync");
	char *second = map(fd, page, PROT_READ | PROT_WRITE, MAP_SHARED, (off_t)page);
	second[1] = 'S';
	CHECK(at[page + 1] == 'S', "two mappings of one page are one");
	close(fd);
	close(end);
	at[5] = 'c';
	int again = open("shared", O_RDONLY);
	CHECK(pread(again, got, 1, 5) == 1 && got[0] == 'c', "a mapping lives on when its descriptor is closed");
	munmap(at, 3 * page);
	munmap(second, page);
	munmap(more, 4 * page);
	CHECK(pread(again, got, 1, 5) == 1 && got[0] == 'c', "what was stored stays when all is unmapped");
	int rewritten = open("shared", O_RDWR);
	CHECK(pwrite(rewritten, "after", 5, 0) == 5 && pread(again, got, 4, 0) == 4 && !memcmp(got, "afte", 4),
	      "and the file is as any other then");
	close(again);
	close(rewritten);
}

static sigjmp_buf out;
static volatile sig_atomic_t signals;

static void on_bus(int signal)
{
	(void)signal;
	signals++;
	siglongjmp(out, 1);
}

/* Whether a look at the byte gives SIGBUS. */
static int is_bus(volatile char *at)
{
	int before = signals;
	if (sigsetjmp(out, 1) == 0)
		(void)*at;
	return signals > before;
}

static void sizes(void)
{
	struct sigaction action = {.sa_handler = on_bus};
	sigaction(SIGBUS, &action, NULL);
	int fd = file_of("sized", page);
	char *at = map(fd, 4 * page, PROT_READ | PROT_WRITE, MAP_SHARED, 0);
	CHECK(at[0] == 'a' && is_bus(at + page), "SIGBUS behind the end");
	MUST(ftruncate(fd, (off_t)(3 * page)) == 0);
	CHECK(!is_bus(at + 2 * page) && at[2 * page] == 0, "the file grows under its mapping");
	at[2 * page] = 'g';
	char got = 0;
	CHECK(pread(fd, &got, 1, (off_t)(2 * page)) == 1 && got == 'g', "and is stored to");
	CHECK(in_child(cuts, "sized") && is_bus(at + page), "cut by another process: SIGBUS");
	CHECK(!is_bus(at) && at[1] == 'a', "what is left is there");
	MUST(ftruncate(fd, (off_t)(3 * page)) == 0);
	CHECK(!is_bus(at + 2 * page) && at[2 * page] == 0, "what was cut is zeros when the file grows again");
	CHECK(in_child(cuts_by_open, "sized") && is_bus(at), "cut by O_TRUNC of another process");
	MUST(ftruncate(fd, (off_t)(2 * page)) == 0);
	char *moved = mremap(at, 4 * page, 8 * page, MREMAP_MAYMOVE);
	CHECK(moved != MAP_FAILED && moved[0] == 0, "mremap");
	moved[3] = 'm';
	CHECK(pread(fd, &got, 1, 3) == 1 && got == 'm', "stores behind it");
	char *room = map(-1, 4 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, 0);
	char *fixed = mmap(room + page, page, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, (off_t)page);
	CHECK(fixed == room + page, "MAP_FIXED");
	fixed[0] = 'f';
	CHECK(moved[page] == 'f', "is the same page");
	close(fd);
}

static void children(void)
{
	int fd = file_of("forked", page);
	char *shared = map(fd, page, PROT_READ | PROT_WRITE, MAP_SHARED, 0);
	char *own = map(fd, page, PROT_READ | PROT_WRITE, MAP_PRIVATE, 0);
	own[1] = 'p';
	pid_t pid = fork();
	MUST(pid >= 0);
	if (pid == 0) {
		shared[2] = 's';
		own[2] = 'q';
		_exit(own[1] != 'p');
	}
	int status;
	MUST(waitpid(pid, &status, 0) == pid);
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0 && shared[2] == 's', "a child's store to a shared mapping");
	CHECK(own[2] != 'q', "and to a private one");
	char got[4] = "";
	CHECK(pread(fd, got, 3, 0) == 3 && got[1] == 'a' && got[2] == 's', "the file has what was shared alone");
	close(fd);
}

static void permissions(void)
{
	close(file_of("closed", page));
	int reader = open("closed", O_RDONLY), writer = open("closed", O_WRONLY);
	MUST(reader >= 0 && writer >= 0);
	CHECK_FAILS((long)mmap(NULL, page, PROT_WRITE, MAP_SHARED, reader, 0), EACCES, "to write what is open for reading");
	CHECK_FAILS((long)mmap(NULL, page, PROT_READ, MAP_SHARED, writer, 0), EACCES, "to read what is open for writing");
	CHECK_FAILS((long)mmap(NULL, page, PROT_READ, MAP_PRIVATE, writer, 0), EACCES, "the same, private");
	CHECK_FAILS((long)mmap(NULL, 0, PROT_READ, MAP_SHARED, reader, 0), EINVAL, "no bytes");
	CHECK_FAILS((long)mmap(NULL, page, PROT_READ, MAP_SHARED, reader, 1), EINVAL, "an offset within a page");
	char *at = map(reader, page, PROT_READ, MAP_SHARED, 0);
	CHECK(at[0] == 'a', "a shared mapping to read");
	int dir = open(".", O_RDONLY | O_DIRECTORY);
	CHECK_FAILS((long)mmap(NULL, page, PROT_READ, MAP_SHARED, dir, 0), ENODEV, "a directory");
	close(dir);
	close(reader);
	close(writer);
}

static void names(void)
{
	int fd = file_of("old", page);
	char *at = map(fd, page, PROT_READ | PROT_WRITE, MAP_SHARED, 0);
	at[0] = '1';
	MUST(rename("old", "new") == 0);
	at[1] = '2';
	int other = open("new", O_RDWR);
	char got[4] = "";
	CHECK(pread(other, got, 2, 0) == 2 && !memcmp(got, "12", 2), "renamed while it is mapped");
	MUST(unlink("new") == 0);
	at[2] = '3';
	CHECK(pread(other, got, 3, 0) == 3 && !memcmp(got, "123", 3), "removed while it is mapped");
	close(other);
	close(fd);
	int without = file_of("without", page);
	MUST(unlink("without") == 0);
	char *unnamed = map(without, page, PROT_READ | PROT_WRITE, MAP_SHARED, 0);
	unnamed[0] = 'u';
	CHECK(pread(without, got, 1, 0) == 1 && got[0] == 'u', "mapped when it has no name any more");
	close(without);
}

static void private_ones(void)
{
	size_t length = 1 << 20;
	int fd = file_of("large", length);
	char *at = map(fd, length, PROT_READ | PROT_WRITE, MAP_PRIVATE, 0);
	CHECK(at[0] == 'a' && at[length - 1] == 'a', "a private mapping shows the file");
	memset(at, 'b', length);
	char got = 0;
	CHECK(pread(fd, &got, 1, 77) == 1 && got == 'a', "and is not the file");
	CHECK(pwrite(fd, "c", 1, 77) == 1 && at[77] == 'b', "what was stored stays");
	close(fd);
	int small = file_of("small", 100);
	char *few = map(small, 100, PROT_READ, MAP_PRIVATE, 0);
	CHECK(few[99] == 'a' && few[100] == 0, "zeros behind the end of a small file");
	close(small);
}

/* A file is written by the usual calls while another process maps it for the first time: no page stays as it was. */
static void first_mapping(void)
{
	int rounds = 200, stale = 0;
	for (int i = 0; i < rounds; i++) {
		int fd = file_of("raced", page);
		int go[2], mapped[2];
		MUST(pipe(go) == 0 && pipe(mapped) == 0);
		pid_t pid = fork();
		MUST(pid >= 0);
		if (pid == 0) {
			int own = open("raced", O_RDWR);
			char *at = mmap(NULL, page, PROT_READ, MAP_SHARED, own, 0);
			volatile char seen = at == MAP_FAILED ? 0 : at[0];
			(void)seen;
			(void)!write(mapped[1], "", 1);
			char byte;
			(void)!read(go[0], &byte, 1);
			char now = at == MAP_FAILED ? 0 : at[10], file = 0;
			(void)!pread(own, &file, 1, 10);
			_exit(now != file);
		}
		char value = (char)('A' + i % 26), byte;
		for (int n = 0; n < 50; n++)
			(void)!pwrite(fd, &value, 1, 10);
		MUST(read(mapped[0], &byte, 1) == 1);
		MUST(write(go[1], "", 1) == 1);
		int status;
		MUST(waitpid(pid, &status, 0) == pid);
		stale += !(WIFEXITED(status) && WEXITSTATUS(status) == 0);
		for (int n = 0; n < 2; n++) {
			close(go[n]);
			close(mapped[n]);
		}
		close(fd);
	}
	CHECK(stale == 0, "pages that stayed as they were: %d of %d", stale, rounds);
}

static void many(void)
{
	int count = 300, good = 0;
	char **at = calloc((size_t)count, sizeof *at);
	MUST(at);
	for (int i = 0; i < count; i++) {
		char name[32];
		snprintf(name, sizeof name, "many%d", i);
		int fd = file_of(name, page);
		at[i] = map(fd, page, PROT_READ | PROT_WRITE, MAP_SHARED, 0);
		at[i][0] = (char)i;
		close(fd);
	}
	for (int i = 0; i < count; i++) {
		char name[32], got = 0;
		snprintf(name, sizeof name, "many%d", i);
		int fd = open(name, O_RDONLY);
		good += pread(fd, &got, 1, 0) == 1 && got == (char)i;
		close(fd);
		munmap(at[i], page);
	}
	CHECK(good == count, "files mapped at once: %d of %d", good, count);
	free(at);
}

int main(int argc, char **argv)
{
	check_begin(argc, argv);
	page = (size_t)sysconf(_SC_PAGESIZE);
	between_processes();
	sizes();
	children();
	permissions();
	names();
	private_ones();
	first_mapping();
	many();
	return check_end();
}
