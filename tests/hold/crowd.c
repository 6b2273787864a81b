/*
 * Many processes at once, each of which creates, writes, reads and renames its own files.
 *
 *   crowd DIR PROCESSES ROUNDS
 *
 * All wait for each other, with a file open, before the last round, so that all are clients at the same time; the
 * line "all there" is printed then, and a line of standard input awaited. Prints `N good` and, for each errno by
 * which processes failed, `ERRNO: N`. Exits with 1 if one read other bytes than it wrote.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BYTES = 20000, WRONG = 255 };

static const char *dir;

static int one_round(long who, long round, int keep)
{
	static unsigned char out[BYTES], in[BYTES];
	char from[4096], to[4096];
	snprintf(from, sizeof from, "%s/new-%ld-%ld", dir, who, round);
	snprintf(to, sizeof to, "%s/crowd-%ld-%ld", dir, who, round);
	memset(out, (int)(who + round) | 1, sizeof out);
	int fd = open(from, O_CREAT | O_EXCL | O_RDWR, 0600);
	if (fd < 0)
		return errno;
	if (write(fd, out, sizeof out) != (ssize_t)sizeof out)
		return errno ? errno : EIO;
	if (rename(from, to))
		return errno;
	ssize_t got = pread(fd, in, sizeof in, 0);
	if (got < 0)
		return errno;
	if (got != (ssize_t)sizeof in || memcmp(in, out, sizeof in))
		return WRONG;
	return keep ? 0 : close(fd) ? errno : 0;
}

int main(int argc, char **argv)
{
	if (argc < 4)
		return 2;
	dir = argv[1];
	long processes = atol(argv[2]), rounds = atol(argv[3]), failed[256] = { 0 }, good = 0;
	int gate[2];
	_Atomic long *there = mmap(NULL, sizeof *there, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (there == MAP_FAILED || pipe(gate))
		return 2;
	for (long who = 0; who < processes; who++) {
		pid_t child = fork();
		if (child < 0) {
			perror("fork");
			return 2;
		}
		if (child)
			continue;
		int error = 0;
		char c;
		close(gate[1]);
		for (long round = 0; round < rounds && !error; round++)
			error = one_round(who, round, round == rounds - 1);
		++*there;
		while (read(gate[0], &c, 1) > 0)
			;
		if (!error)
			error = one_round(who, rounds, 0);
		_exit(error);
	}
	close(gate[0]);
	while (*there < processes)
		usleep(1000);
	puts("all there");
	fflush(stdout);
	getchar();
	close(gate[1]);
	for (long who = 0; who < processes; who++) {
		int status;
		wait(&status);
		int error = WIFEXITED(status) ? WEXITSTATUS(status) : WRONG;
		if (error)
			failed[error]++;
		else
			good++;
	}
	printf("%ld good\n", good);
	for (int error = 1; error < 256; error++)
		if (failed[error])
			printf("%d: %ld\n", error, failed[error]);
	return failed[WRONG] != 0;
}
