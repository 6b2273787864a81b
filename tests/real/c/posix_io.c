/*
 * Reading and writing through descriptors: vectors, places, holes, sizes, flags. What a descriptor means to other
 * processes is in processes.c, what must fail in errnos.c.
 */
#include "check.h"
#include <limits.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/sendfile.h>
#include <sys/uio.h>

static char buf[1 << 20];

static void plain(void)
{
	int fd = open(in_dir("plain"), O_RDWR | O_CREAT | O_EXCL, 0640);
	struct stat st;
	CHECK(fd >= 0, "open O_CREAT|O_EXCL");
	MUST(fd >= 0);
	CHECK(write(fd, "0123456789", 10) == 10 && lseek(fd, 0, SEEK_CUR) == 10, "write moves the offset");
	CHECK(pwrite(fd, "AB", 2, 4) == 2 && lseek(fd, 0, SEEK_CUR) == 10, "pwrite does not");
	CHECK(lseek(fd, 2, SEEK_SET) == 2 && read(fd, buf, 100) == 8 && !memcmp(buf, "23AB6789", 8), "read up to the end");
	CHECK(read(fd, buf, 100) == 0 && pread(fd, buf, 100, 10) == 0 && pread(fd, buf, 100, 1000) == 0, "0 at and past the end");
	CHECK(pread(fd, buf, 3, 8) == 2, "a short pread at the end");
	CHECK(lseek(fd, -3, SEEK_END) == 7 && lseek(fd, 1, SEEK_CUR) == 8, "lseek from end and current");
	CHECK(write(fd, buf, 0) == 0 && read(fd, buf, 0) == 0, "nothing written, nothing read");
	CHECK(fstat(fd, &st) == 0 && st.st_size == 10 && S_ISREG(st.st_mode) && (st.st_mode & 07777) == 0640 && st.st_nlink == 1 &&
		      st.st_uid == getuid(), "fstat");
	CHECK(lseek(fd, 20, SEEK_SET) == 20 && write(fd, "end", 3) == 3, "write past the end");
	CHECK(pread(fd, buf, 100, 0) == 23 && all_bytes(buf + 10, 10, 0) && !memcmp(buf + 20, "end", 3), "the gap is zeros");
	CHECK(fsync(fd) == 0 && fdatasync(fd) == 0 && sync_file_range(fd, 0, 0, SYNC_FILE_RANGE_WRITE) == 0, "fsync, fdatasync, sync_file_range");
	CHECK(posix_fadvise(fd, 0, 0, POSIX_FADV_SEQUENTIAL) == 0 && posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED) == 0, "posix_fadvise");
	CHECK(readahead(fd, 0, 4096) == 0, "readahead");
	int waiting = -1;
	lseek(fd, 3, SEEK_SET);
	CHECK(ioctl(fd, FIONREAD, &waiting) == 0 ? waiting == 20 : errno == ENOTTY, "ioctl FIONREAD counts or refuses");
	CHECK(isatty(fd) == 0 && errno == ENOTTY, "not a terminal");
	CHECK(close(fd) == 0, "close");
	fd = open(in_dir("plain"), O_RDWR | O_TRUNC);
	CHECK(fd >= 0 && fstat(fd, &st) == 0 && st.st_size == 0, "O_TRUNC empties");
	close(fd);
	fd = creat(in_dir("creat"), 0600);
	CHECK(fd >= 0 && (fcntl(fd, F_GETFL) & O_ACCMODE) == O_WRONLY, "creat");
	close(fd);
}

static void vectors(void)
{
	char a[3], b[5], c[100];
	struct iovec out[] = {{"one", 3}, {"", 0}, {"three", 5}, {"xyz", 3}};
	struct iovec in[] = {{a, 3}, {b, 5}, {c, 100}};
	int fd = open(in_dir("vectors"), O_RDWR | O_CREAT, 0600);
	MUST(fd >= 0);
	CHECK(writev(fd, out, 4) == 11, "writev");
	CHECK(pwritev(fd, out, 2, 11) == 3 && lseek(fd, 0, SEEK_CUR) == 11, "pwritev keeps the offset");
	CHECK(pwritev2(fd, out + 2, 1, 14, 0) == 5, "pwritev2");
	CHECK(pwritev2(fd, out + 3, 1, -1, 0) == 3 && lseek(fd, 0, SEEK_CUR) == 14, "pwritev2 at -1 uses the offset");
	CHECK(lseek(fd, 0, SEEK_SET) == 0 && readv(fd, in, 3) == 19, "readv up to the end");
	CHECK(!memcmp(a, "one", 3) && !memcmp(b, "three", 5) && !memcmp(c, "xyzxyzthree", 8), "readv spreads the bytes");
	CHECK(preadv(fd, in, 2, 3) == 8 && !memcmp(a, "thr", 3) && !memcmp(b, "eexyz", 5), "preadv");
	CHECK(preadv2(fd, in, 2, 3, 0) == 8 && preadv(fd, in, 3, 1000) == 0, "preadv2, preadv past the end");
	CHECK(readv(fd, in, 0) == 0 && writev(fd, out, 0) == 0, "no vectors at all");
	static struct iovec many[1025];
	volatile int negative = -1, too_many = 1025; /* not seen by the compiler, which would warn */
	CHECK_FAILS(readv(fd, in, negative), EINVAL, "readv of -1 vectors");
	CHECK_FAILS(writev(fd, many, too_many), EINVAL, "writev of more than IOV_MAX vectors");
	static char bytes[1024 * 100];
	for (int i = 0; i < 1024; i++)
		many[i] = (struct iovec){bytes + i * 100, 100};
	pattern_fill(bytes, sizeof bytes, 3, 0);
	CHECK(pwritev(fd, many, 1024, 50) == sizeof bytes, "pwritev of 1024 vectors");
	memset(bytes, 0, sizeof bytes);
	CHECK(preadv(fd, many, 1024, 50) == sizeof bytes && pattern_differs(bytes, sizeof bytes, 3, 0) == -1, "preadv of them");
	close(fd);
}

static void sizes(void)
{
	int fd = open(in_dir("sizes"), O_RDWR | O_CREAT, 0600);
	struct stat st;
	MUST(fd >= 0);
	pattern_fill(buf, sizeof buf, 4, 0);
	MUST(write(fd, buf, sizeof buf) == sizeof buf);
	CHECK(ftruncate(fd, 100001) == 0 && fstat(fd, &st) == 0 && st.st_size == 100001, "ftruncate shortens");
	CHECK(pread(fd, buf, sizeof buf, 0) == 100001 && pattern_differs(buf, 100001, 4, 0) == -1, "what is left is whole");
	CHECK(ftruncate(fd, 300000) == 0 && pread(fd, buf, sizeof buf, 0) == 300000, "ftruncate lengthens");
	CHECK(pattern_differs(buf, 100001, 4, 0) == -1 && all_bytes(buf + 100001, 199999, 0), "no old byte comes back: zeros");
	CHECK(truncate(in_dir("sizes"), 10) == 0 && stat(in_dir("sizes"), &st) == 0 && st.st_size == 10, "truncate by name");
	CHECK(pwrite(fd, "x", 1, 50) == 1 && pread(fd, buf, 100, 0) == 51 && all_bytes(buf + 10, 40, 0), "write after truncate leaves zeros between");
	CHECK(ftruncate(fd, 0) == 0 && pread(fd, buf, 10, 0) == 0 && fstat(fd, &st) == 0 && st.st_blocks == 0, "truncate to nothing");
	CHECK(lseek(fd, 0, SEEK_END) == 0, "the end is the start");
	for (int i = 0; i < 200; i++) {
		MUST(pwrite(fd, buf, 1000, i) == 1000);
		MUST(ftruncate(fd, 500 + i) == 0);
	}
	CHECK(fstat(fd, &st) == 0 && st.st_size == 699, "write and truncate in turn");
	off_t large = (1LL << 40) + 12345;
	CHECK(ftruncate(fd, large) == 0 && fstat(fd, &st) == 0 && st.st_size == large, "a size of one TiB");
	CHECK(pwrite(fd, "far", 3, large - 3) == 3 && pread(fd, buf, 10, large - 5) == 5 && !memcmp(buf, "\0\0far", 5), "bytes at its end");
	CHECK(st.st_blocks < 1000000, "st_blocks counts what is stored, not the size");
	close(fd);
}

/* A file of thousands of pieces: all of them are found, by steps, and so is what another process changed. */
static void fragments(void)
{
	enum { PIECES = 3000, LENGTH = 4096 };
	int fd = open(in_dir("fragments"), O_RDWR | O_CREAT, 0600), found = 0;
	MUST(fd >= 0);
	for (off_t i = 0; i < PIECES; i++)
		MUST(pwrite(fd, buf, LENGTH, i * 4 * LENGTH + i * i % 3 * LENGTH) == LENGTH);
	for (off_t at = 0; (at = lseek(fd, at, SEEK_DATA)) >= 0; found++) {
		if (at != found * (off_t)4 * LENGTH + (off_t)found * found % 3 * LENGTH)
			break;
		at = lseek(fd, at, SEEK_HOLE);
		MUST(at >= 0);
	}
	CHECK(found == PIECES && errno == ENXIO, "all pieces of a fragmented file are found (%d)", found);
	off_t middle = 1500 * (off_t)4 * LENGTH, hole = lseek(fd, middle, SEEK_HOLE);
	CHECK(hole == middle + LENGTH, "the hole behind a piece in the middle");
	pid_t pid = fork();
	if (pid == 0) {
		int own = open(in_dir("fragments"), O_RDWR);
		_exit(own < 0 || pwrite(own, buf, LENGTH, hole) != LENGTH ||
		      fallocate(own, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4 * LENGTH) != 0);
	}
	MUST(pid > 0 && child_ok(pid));
	CHECK(lseek(fd, middle, SEEK_HOLE) == hole + LENGTH, "another process wrote into it");
	CHECK(lseek(fd, 0, SEEK_DATA) == 5 * (off_t)LENGTH, "and took the first piece away");
	CHECK(lseek(fd, 0, SEEK_CUR) == 5 * (off_t)LENGTH, "the offset is where the data is");
	CHECK(ftruncate(fd, middle) == 0 && lseek(fd, middle - 1, SEEK_HOLE) == middle - 1, "a hole before the new end");
	CHECK_FAILS(lseek(fd, middle, SEEK_HOLE), ENXIO, "nothing behind it");
	close(fd);
}

static void holes(void)
{
	/* 64 KiB of data at 1 MiB and at 3 MiB of a file of 4 MiB. */
	int fd = open(in_dir("holes"), O_RDWR | O_CREAT, 0600);
	const off_t mib = 1 << 20, len = 65536;
	struct stat st;
	MUST(fd >= 0);
	pattern_fill(buf, (size_t)len, 5, 0);
	MUST(pwrite(fd, buf, (size_t)len, mib) == len && pwrite(fd, buf, (size_t)len, 3 * mib) == len && ftruncate(fd, 4 * mib) == 0);
	CHECK(lseek(fd, 0, SEEK_DATA) == mib, "SEEK_DATA finds the first data");
	CHECK(lseek(fd, mib + 5, SEEK_DATA) == mib + 5, "SEEK_DATA within data");
	CHECK(lseek(fd, mib, SEEK_HOLE) == mib + len, "SEEK_HOLE finds its end");
	CHECK(lseek(fd, mib + len, SEEK_DATA) == 3 * mib, "SEEK_DATA finds the second");
	CHECK(lseek(fd, 3 * mib, SEEK_HOLE) == 3 * mib + len, "SEEK_HOLE after it");
	CHECK(lseek(fd, 0, SEEK_HOLE) == 0, "SEEK_HOLE in a hole");
	CHECK_FAILS(lseek(fd, 3 * mib + len, SEEK_DATA), ENXIO, "SEEK_DATA in the last hole: ENXIO");
	CHECK_FAILS(lseek(fd, 4 * mib, SEEK_HOLE), ENXIO, "SEEK_HOLE at the end: ENXIO");
	CHECK(fstat(fd, &st) == 0 && st.st_blocks * 512 >= 2 * len && st.st_blocks * 512 < mib, "st_blocks counts the data only");
	CHECK(pread(fd, buf, sizeof buf, mib - 1000) == sizeof buf && all_bytes(buf, 1000, 0) &&
		      pattern_differs(buf + 1000, (size_t)len, 5, 0) == -1, "hole and data in one read");
	CHECK(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, mib, len) == 0 && lseek(fd, 0, SEEK_DATA) == 3 * mib, "punch a hole");
	CHECK(pread(fd, buf, (size_t)len, mib) == len && all_bytes(buf, (size_t)len, 0), "it reads as zeros");
	CHECK(posix_fallocate(fd, 4 * mib, mib) == 0 && fstat(fd, &st) == 0 && st.st_size == 5 * mib, "posix_fallocate lengthens");
	CHECK(pread(fd, buf, (size_t)mib, 4 * mib) == mib && all_bytes(buf, (size_t)mib, 0), "with zeros");
	CHECK(fallocate(fd, FALLOC_FL_KEEP_SIZE, 5 * mib, mib) == 0 && fstat(fd, &st) == 0 && st.st_size == 5 * mib, "fallocate KEEP_SIZE");
	CHECK(posix_fallocate(fd, 3 * mib, len) == 0 && pread(fd, buf, 10, 3 * mib) == 10 && pattern_differs(buf, 10, 5, 0) == -1, "fallocate leaves data alone");
	close(fd);
}

static void appending(void)
{
	int fd = open(in_dir("append"), O_RDWR | O_CREAT | O_APPEND, 0600);
	int other = open(in_dir("append"), O_WRONLY);
	MUST(fd >= 0 && other >= 0);
	CHECK(write(fd, "aaa", 3) == 3 && pwrite(other, "bbbbb", 5, 0) == 5, "append, and another descriptor lengthens");
	CHECK(write(fd, "c", 1) == 1 && lseek(fd, 0, SEEK_CUR) == 6, "append goes to the new end");
	CHECK(lseek(fd, 0, SEEK_SET) == 0 && read(fd, buf, 2) == 2 && write(fd, "d", 1) == 1, "reads go by the offset");
	CHECK(file_is(in_dir("append"), "bbbbbcd"), "content");
	CHECK(fcntl(fd, F_SETFL, 0) == 0 && lseek(fd, 0, SEEK_SET) == 0 && write(fd, "X", 1) == 1, "F_SETFL takes O_APPEND away");
	CHECK(fcntl(other, F_SETFL, O_APPEND) == 0 && write(other, "Y", 1) == 1, "and gives it");
	CHECK(file_is(in_dir("append"), "XbbbbcdY"), "content");
	CHECK(truncate(in_dir("append"), 2) == 0 && write(other, "Z", 1) == 1 && file_is(in_dir("append"), "XbZ"), "append after truncate");
	close(fd);
	close(other);
}

static void copying(void)
{
	int from = open(in_dir("append"), O_RDWR | O_CREAT | O_TRUNC, 0600);
	int to = open(in_dir("copy"), O_RDWR | O_CREAT | O_TRUNC, 0600);
	int ends[2];
	off_t at = 100;
	MUST(from >= 0 && to >= 0 && pipe(ends) == 0);
	pattern_fill(buf, sizeof buf, 6, 0);
	MUST(write(from, buf, sizeof buf) == sizeof buf);
	/* Each of these may refuse with an errno that makes a careful program copy by hand; none may pretend. */
	loff_t in = 5000, out = 70;
	ssize_t n = copy_file_range(from, &in, to, &out, 9000, 0);
	CHECK(n > 0 ? n <= 9000 && pread(to, buf, (size_t)n, 70) == n && pattern_differs(buf, (size_t)n, 6, 5000) == -1 && out == 70 + n
		    : errno == EXDEV || errno == EOPNOTSUPP || errno == ENOSYS || errno == EINVAL, "copy_file_range copies or refuses (%zd)", n);
	n = sendfile(to, from, &at, 5000);
	CHECK(n > 0 ? at == 100 + n && pread(to, buf, (size_t)n, 0) == n && pattern_differs(buf, (size_t)n, 6, 100) == -1
		    : errno == EINVAL || errno == ENOSYS, "sendfile file to file copies or refuses (%zd)", n);
	MUST(lseek(from, 0, SEEK_SET) == 0);
	n = splice(from, NULL, ends[1], NULL, 4096, 0);
	CHECK(n > 0 || errno == EINVAL, "splice into a pipe moves or refuses (%zd)", n);
	close(from);
	close(to);
	close(ends[0]);
	close(ends[1]);
}

static void many_small_writes(void)
{
	int fd = open(in_dir("small"), O_RDWR | O_CREAT, 0600);
	uint64_t random = 7;
	static unsigned char model[200000];
	MUST(fd >= 0);
	for (int i = 0; i < 50000; i++) {
		uint64_t at = next_random(&random) % (sizeof model - 64), length = 1 + next_random(&random) % 64;
		pattern_fill(model + at, length, (uint64_t)i, at);
		if (pwrite(fd, model + at, length, (off_t)at) != (ssize_t)length)
			MUST(!"pwrite");
	}
	CHECK(pread(fd, buf, sizeof buf, 0) > 0 && !memcmp(buf, model, 190000), "50,000 overlapping small writes equal the model");
	MUST(ftruncate(fd, 0) == 0 && lseek(fd, 0, SEEK_SET) == 0);
	for (uint64_t i = 0; i < 100000; i++)
		MUST(write(fd, &i, sizeof i) == sizeof i);
	lseek(fd, 0, SEEK_SET);
	uint64_t wrong = 0, value;
	for (uint64_t i = 0; i < 100000; i++)
		wrong += read(fd, &value, sizeof value) != sizeof value || value != i;
	CHECK(wrong == 0, "100,000 sequential writes of 8 bytes, read back one by one");
	close(fd);
}

static void strided(void)
{
	/* Four interleaved progressions from one process, as N-1 strided writers make them. */
	enum { PIECE = 4700, PIECES = 64 };
	static unsigned char model[4 * PIECE * PIECES];
	int fd = open(in_dir("strided"), O_RDWR | O_CREAT, 0600);
	MUST(fd >= 0);
	pattern_fill(model, sizeof model, 8, 0);
	for (int rank = 3; rank >= 0; rank--)
		for (int i = 0; i < PIECES; i++) {
			size_t at = (size_t)(i * 4 + rank) * PIECE;
			MUST(pwrite(fd, model + at, PIECE, (off_t)at) == PIECE);
		}
	CHECK(pread(fd, buf, sizeof buf, 0) == sizeof buf && !memcmp(buf, model, sizeof buf), "strided pieces, read in one go");
	struct stat st;
	CHECK(fstat(fd, &st) == 0 && st.st_size == sizeof model, "size");
	close(fd);
}

#ifdef __GLIBC__
/* What a compiler calls that knows the size of a buffer, the last argument. */
ssize_t __read_chk(int, void *, size_t, size_t);
ssize_t __pread_chk(int, void *, size_t, off_t, size_t);
ssize_t __readlink_chk(const char *, char *, size_t, size_t);
char *__getcwd_chk(char *, size_t, size_t);
char *__realpath_chk(const char *, char *, size_t);

/* Makes the call in a child, with `have` bytes of room; returns the signal that ended it. */
static int fortified(int call, size_t have)
{
	pid_t child = fork();
	int status = 0;
	MUST(child >= 0);
	if (child == 0) {
		static char room[PATH_MAX];
		struct rlimit none = {0, 0};
		int fd = open("digits", O_RDONLY);
		ssize_t done = -1;
		setrlimit(RLIMIT_CORE, &none);
		close(2);
		switch (call) {
		case 0: done = __read_chk(fd, room, 10, have); break;
		case 1: done = __pread_chk(fd, room, 10, 0, have); break;
		case 2: done = __readlink_chk("link", room, 10, have); break;
		case 3: done = __getcwd_chk(room, PATH_MAX, have) ? 0 : -1; break;
		case 4: done = __realpath_chk("digits", room, have) ? 0 : -1; break;
		}
		_exit(done < 0);
	}
	MUST(waitpid(child, &status, 0) == child);
	return WIFSIGNALED(status) ? WTERMSIG(status) : -WEXITSTATUS(status);
}

static void overflows(void)
{
	static const char *const names[] = {"read", "pread", "readlink", "getcwd", "realpath"};
	MUST(chdir(check_dir) == 0);
	put_text("digits", "0123456789");
	MUST(symlink("digits", "link") == 0);
	for (int call = 0; call < 5; call++) {
		CHECK(fortified(call, PATH_MAX) == 0, "a fortified %s with room", names[call]);
		CHECK(fortified(call, 5) == SIGABRT, "and one without ends the program");
	}
}
#else
static void overflows(void) {}
#endif

int main(int argc, char **argv)
{
	check_begin(argc, argv);
	plain();
	vectors();
	sizes();
	holes();
	fragments();
	appending();
	copying();
	many_small_writes();
	strided();
	overflows();
	return check_end();
}
