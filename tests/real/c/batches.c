/*
 * Reads of what several servers hold: large ones, scattered ones, and many in one call. `batches DIR write RANK` writes
 * every fourth piece of DIR/batches/file; `batches DIR read` reads all of it in all ways.
 */
#include "check.h"
#include <aio.h>
#include <sys/uio.h>

#define PIECE 47008
#define ROUNDS 300
#define SIZE ((off_t)PIECE * 4 * ROUNDS)
#define LIST 1000

static unsigned char back[16 << 20];

static void write_mine(int fd, int rank)
{
	static unsigned char piece[PIECE];
	for (int i = 0; i < ROUNDS; i++) {
		off_t at = ((off_t)i * 4 + rank) * PIECE;
		pattern_fill(piece, PIECE, 7, (uint64_t)at);
		CHECK(pwrite(fd, piece, PIECE, at) == PIECE, "piece %d of %d", i, rank);
	}
}

static void whole(int fd)
{
	int wrong = 0;
	for (off_t at = 0; at < SIZE; at += sizeof back) {
		ssize_t want = SIZE - at < (off_t)sizeof back ? (ssize_t)(SIZE - at) : (ssize_t)sizeof back;
		wrong += pread(fd, back, sizeof back, at) != want || pattern_differs(back, (size_t)want, 7, (uint64_t)at) >= 0;
	}
	CHECK(wrong == 0, "reads of 16 MiB");
	CHECK(pread(fd, back, 100, SIZE - 10) == 10 && pread(fd, back, 100, SIZE) == 0, "and at the end");
}

static void scattered(int fd)
{
	struct iovec vector[LIST];
	uint64_t state = 99;
	size_t length = 0;
	for (int i = 0; i < LIST; i++) {
		vector[i].iov_base = back + length;
		vector[i].iov_len = next_random(&state) % 9000;
		length += vector[i].iov_len;
	}
	memset(back, 1, sizeof back);
	CHECK(preadv(fd, vector, LIST, 12345) == (ssize_t)length && pattern_differs(back, length, 7, 12345) < 0, "preadv of 1000 pieces");
	off_t from = SIZE - (off_t)length / 2;
	CHECK(preadv(fd, vector, LIST, from) == SIZE - from && pattern_differs(back, (size_t)(SIZE - from), 7, (uint64_t)from) < 0,
	      "half of it behind the end of the file");
	CHECK(lseek(fd, 777, SEEK_SET) == 777 && readv(fd, vector, LIST) == (ssize_t)length && pattern_differs(back, length, 7, 777) < 0 &&
		      lseek(fd, 0, SEEK_CUR) == 777 + (off_t)length,
	      "readv moves the offset");
}

static void listed(int fd)
{
	static struct aiocb blocks[LIST];
	static struct aiocb *list[LIST];
	uint64_t state = 5;
	size_t used = 0;
	for (int i = 0; i < LIST; i++) {
		blocks[i].aio_fildes = fd;
		blocks[i].aio_lio_opcode = LIO_READ;
		blocks[i].aio_nbytes = next_random(&state) % 9000;
		blocks[i].aio_offset = (off_t)(next_random(&state) % (uint64_t)(SIZE + 5000));
		blocks[i].aio_buf = back + used;
		used += blocks[i].aio_nbytes;
		list[i] = &blocks[i];
	}
	blocks[600].aio_offset = -1;
	CHECK(lio_listio(LIO_WAIT, list, LIST, NULL) == -1 && errno == EIO, "a list of 1000, one of them wrong");
	int wrong = 0;
	for (int i = 0; i < LIST; i++) {
		off_t left = SIZE - blocks[i].aio_offset;
		ssize_t want = left < 0 ? 0 : left < (off_t)blocks[i].aio_nbytes ? (ssize_t)left : (ssize_t)blocks[i].aio_nbytes;
		if (i == 600)
			wrong += aio_error(list[i]) != EINVAL;
		else
			wrong += aio_error(list[i]) != 0 || aio_return(list[i]) != want ||
				 pattern_differs((void *)blocks[i].aio_buf, (size_t)want, 7, (uint64_t)blocks[i].aio_offset) >= 0;
	}
	CHECK(wrong == 0, "each says how it went, and has its bytes");
}

int main(int argc, char **argv)
{
	check_begin(argc, argv);
	int writes = argc > 3 && !strcmp(argv[2], "write");
	int fd = open(in_dir("file"), writes ? O_WRONLY | O_CREAT : O_RDONLY, 0600);
	MUST(fd >= 0);
	if (writes) {
		write_mine(fd, atoi(argv[3]));
	} else {
		whole(fd);
		scattered(fd);
		listed(fd);
	}
	CHECK(close(fd) == 0, "close");
	return check_end();
}
