/*
 * Loops of reads and writes, for counting what they ask of the kernel: `hotpath DIR MODE BYTES COUNT` makes a file
 * and does COUNT operations of BYTES each. shell/hotpath.sh runs it under strace.
 */
#include "check.h"

static char path[4096];

static int begin(size_t total)
{
	int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0644);
	MUST(fd >= 0);
	(void)total;
	return fd;
}

int main(int argc, char **argv)
{
	static char bytes[1 << 20];
	if (argc < 5)
		return 2;
	const char *mode = argv[2];
	size_t size = strtoul(argv[3], NULL, 10);
	long count = atol(argv[4]);
	MUST(size <= sizeof bytes && count > 0);
	snprintf(path, sizeof path, "%s/hotpath-%s", argv[1], mode);
	memset(bytes, 'w', sizeof bytes);
	int fd = begin(size * (size_t)count);
	long bad = 0;
	if (strcmp(mode, "write") == 0) {
		for (long i = 0; i < count; i++)
			bad += write(fd, bytes, size) != (ssize_t)size;
	} else if (strcmp(mode, "pwrite") == 0) {
		for (long i = 0; i < count; i++)
			bad += pwrite(fd, bytes, size, i * (off_t)size) != (ssize_t)size;
	} else if (strcmp(mode, "strided") == 0) {
		for (long i = 0; i < count; i++)
			bad += pwrite(fd, bytes, size, i * 4 * (off_t)size) != (ssize_t)size;
	} else if (strcmp(mode, "over") == 0) {
		for (long i = 0; i < count; i++)
			bad += pwrite(fd, bytes, size, i % 16 * (off_t)size) != (ssize_t)size;
	} else if (strcmp(mode, "read") == 0) {
		for (long i = 0; i < 16; i++)
			bad += write(fd, bytes, size) != (ssize_t)size;
		for (long i = 0; i < count; i++)
			bad += pread(fd, bytes, size, i % 16 * (off_t)size) != (ssize_t)size;
	} else if (strcmp(mode, "fstat") == 0) {
		struct stat st;
		for (long i = 0; i < count; i++)
			bad += fstat(fd, &st) != 0 || lseek(fd, 0, SEEK_CUR) != 0;
	} else {
		return 2;
	}
	MUST(close(fd) == 0);
	return bad != 0;
}
