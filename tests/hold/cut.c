/*
 * A process that appends lines, creates files and renames them, one after the other, over a cut of the network,
 * and writes a log elsewhere of what returned.
 *
 *   cut DIR LOG TAG    until standard input has a line
 *
 * A line of the log is written after the call it speaks of; FAIL before it: the call failed with EIO, so that it
 * may have acted or not, but once at most.
 *   A n     the line "TAG n" was appended to DIR/lines and synced
 *   C n     DIR/made-TAG-n was created (O_EXCL)
 *   R n     DIR/made-TAG-n was renamed to DIR/named-TAG-n
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static FILE *out;

static void note(const char *what, long n, int failed)
{
	int error = errno;
	if (failed && error != EIO) {
		fprintf(out, "WRONG %s %ld: %s\n", what, n, strerror(error));
		fflush(out);
		return;
	}
	fprintf(out, "%s%s %ld\n", failed ? "FAIL " : "", what, n);
	fflush(out);
}

int main(int argc, char **argv)
{
	char path[4096], made[4096], named[4096], line[64];
	struct pollfd in = { .fd = 0, .events = POLLIN };
	if (argc < 4)
		return 2;
	out = fopen(argv[2], "w");
	snprintf(path, sizeof path, "%s/lines", argv[1]);
	int fd = open(path, O_WRONLY | O_APPEND | O_CREAT, 0600);
	if (!out || fd < 0) {
		perror(path);
		return 1;
	}
	puts("ready");
	fflush(stdout);
	for (long n = 0; !poll(&in, 1, 2); n++) {
		int length = snprintf(line, sizeof line, "%s %ld\n", argv[3], n);
		ssize_t wrote = write(fd, line, (size_t)length);
		note("A", n, wrote != length || fsync(fd));
		snprintf(made, sizeof made, "%s/made-%s-%ld", argv[1], argv[3], n);
		snprintf(named, sizeof named, "%s/named-%s-%ld", argv[1], argv[3], n);
		int file = open(made, O_WRONLY | O_CREAT | O_EXCL, 0600);
		note("C", n, file < 0);
		if (file < 0)
			continue;
		close(file);
		note("R", n, rename(made, named));
	}
	return 0;
}
