/*
 * The end of the space: the call that did not fit says ENOSPC, everything before it is whole, and what is deleted makes
 * room at once. Usage: nospace DIR LIMIT_MIB, where the directory can hold about LIMIT_MIB (a small tmpfs, or weir with
 * both budgets set); without it the program refuses to run rather than fill a disk.
 */
#include "check.h"

enum { MIB = 1 << 20 };

static unsigned char buf[MIB];

/* Writes pieces of `piece` bytes into a new file until one does not fit; returns how many bytes were taken. */
static long long fill(const char *path, size_t piece, int *error, long long most)
{
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
	long long at = 0;
	*error = 0;
	if (fd < 0) {
		*error = errno;
		return 0;
	}
	while (at < most) {
		size_t length = most - at < (long long)piece ? (size_t)(most - at) : piece;
		pattern_fill(buf, length, 9, (uint64_t)at);
		ssize_t n = write(fd, buf, length);
		if (n < 0) {
			*error = errno;
			break;
		}
		at += n; /* a short write is an honest answer; the next one must then fail or go on */
	}
	if (close(fd) != 0)
		*error = -errno;
	return at;
}

static int whole(const char *path, long long size)
{
	static unsigned char back[MIB];
	int fd = open(path, O_RDONLY);
	struct stat st;
	int good = fd >= 0 && fstat(fd, &st) == 0 && st.st_size == size;
	if (!good)
		printf("  %s: size %lld, wanted %lld\n", path, fd >= 0 ? (long long)st.st_size : -1, size);
	for (long long at = 0; good && at < size;) {
		ssize_t n = read(fd, back, MIB);
		if (n <= 0 || pattern_differs(back, (size_t)n, 9, (uint64_t)at) != -1) {
			printf("  %s: wrong at %lld (read gave %zd)\n", path, at, n);
			good = 0;
		}
		at += n > 0 ? n : 0;
	}
	if (fd >= 0)
		close(fd);
	return good;
}

int main(int argc, char **argv)
{
	check_begin(argc, argv);
	long long limit = argc > 2 ? atoll(argv[2]) * MIB : 0;
	MUST(limit > 0 && limit <= 4096LL * MIB);
	int error;
	long long first = fill(in_dir("first"), MIB, &error, limit / 2);
	CHECK(error == 0 && first == limit / 2, "half of the space is taken without an error");
	long long second = fill(in_dir("second"), MIB, &error, limit * 4);
	CHECK(error == ENOSPC, "then a write() says ENOSPC (%s)", strerror(error < 0 ? -error : error));
	CHECK(first + second >= limit * 6 / 10 && first + second <= limit * 11 / 10 + 64LL * MIB, "after %lld of %lld MiB", (first + second) / MIB, limit / MIB);
	CHECK(whole(in_dir("first"), first), "the first file is whole");
	CHECK(whole(in_dir("second"), second), "the second is whole up to what write() returned for");
	long long small = fill(in_dir("small"), 4096, &error, limit);
	CHECK(error == ENOSPC && small < 80LL * MIB, "small writes find what is left, then ENOSPC (after %lld KiB)", small / 1024);
	CHECK(error == ENOSPC && (small == 0 || whole(in_dir("small"), small)), "and are whole");
	for (int round = 0; round < 5; round++) {
		struct stat st;
		MUST(stat(in_dir(round % 2 ? "second" : "first"), &st) == 0);
		MUST(unlink(in_dir(round % 2 ? "second" : "first")) == 0);
		long long want = st.st_size - st.st_size / 8;
		long long again = fill(in_dir(round % 2 ? "second" : "first"), MIB, &error, want);
		CHECK(error == 0 && again == want, "round %d: a delete makes room at once (%lld of %lld MiB; %s)", round, again / MIB, want / MIB, strerror(error < 0 ? -error : error));
		CHECK(whole(in_dir(round % 2 ? "second" : "first"), again), "round %d: and the new file is whole", round);
	}
	int fd = open(in_dir("first"), O_RDWR);
	struct stat st;
	MUST(fd >= 0 && fstat(fd, &st) == 0);
	CHECK(ftruncate(fd, st.st_size / 4) == 0 && close(fd) == 0, "truncate works when all is full");
	long long third = fill(in_dir("third"), MIB, &error, st.st_size / 2);
	CHECK(error == 0 && third == st.st_size / 2, "and makes room too (%lld MiB)", third / MIB);
	CHECK(whole(in_dir("third"), third), "for a file that is whole");
	CHECK(unlink(in_dir("first")) == 0 && unlink(in_dir("second")) == 0 && unlink(in_dir("third")) == 0 && unlink(in_dir("small")) == 0, "all deleted");
	long long all = fill(in_dir("all"), MIB, &error, limit * 7 / 10);
	CHECK(error == 0 && whole(in_dir("all"), all), "the space is there for one large file (%lld MiB)", all / MIB);
	return check_end();
}
