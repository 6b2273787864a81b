/*
 * Files in thousands of pieces, each written at random with any length and place. Every read finds what was written last,
 * also while another process syncs the file, so that its pieces are on their way to other servers; and by another process.
 * Runs as well on tmpfs.
 */
#include "check.h"

enum { SIZE = 8 << 20, MOST = 4096, PIECES = 2000, READS = 1000, ROUNDS = 12 };

static unsigned char wanted[SIZE], piece[MOST], got[SIZE];
static uint64_t state = 88172645463325252ULL;

static size_t below(size_t most)
{
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return (size_t)(state % most);
}

/* Writes somewhere. True if that is done. */
static int write_piece(int fd)
{
	size_t length = 1 + below(MOST), at = below(SIZE - length);
	memset(piece, (int)below(256), length);
	memcpy(wanted + at, piece, length);
	return pwrite(fd, piece, length, (off_t)at) == (ssize_t)length;
}

/* Reads somewhere. True if what is there was written last. */
static int read_piece(int fd)
{
	size_t length = 1 + below(MOST), at = below(SIZE - length);
	ssize_t count = pread(fd, got, length, (off_t)at);
	if (count == (ssize_t)length && memcmp(got, wanted + at, length) == 0)
		return 1;
	printf("  %zu bytes at %zu: %zd, %s\n", length, at, count, count < 0 ? strerror(errno) : "other bytes");
	return 0;
}

static pid_t in_child(int (*act)(int), int fd)
{
	pid_t child = fork();
	if (child == 0)
		_exit(act(fd) != 0);
	return child;
}

static int compare_all(int fd)
{
	return pread(fd, got, SIZE, 0) != SIZE || memcmp(got, wanted, SIZE) != 0;
}

static int is_well(pid_t child)
{
	int status = -1;
	return waitpid(child, &status, 0) == child && status == 0;
}

int main(int argc, char **argv)
{
	check_begin(argc, argv);
	for (int round = 0; round < ROUNDS; round++) {
		int fd = open(in_dir("file%d", round), O_RDWR | O_CREAT, 0600);
		int bad = fd < 0 || ftruncate(fd, SIZE) != 0;
		memset(wanted, 0, SIZE);
		for (int i = 0; i < PIECES; i++)
			bad |= !write_piece(fd);
		CHECK(!bad, "pieces are written");
		pid_t child = in_child(fsync, fd);
		for (int i = 0; i < READS && !bad; i++)
			bad |= !write_piece(fd) || !read_piece(fd);
		CHECK(!bad, "reads and writes beside a sync");
		CHECK(is_well(child), "the sync");
		CHECK(is_well(in_child(compare_all, fd)), "another process finds the same");
		close(fd);
	}
	return check_end();
}
