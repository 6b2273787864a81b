/*
 * Is blocked in a call when its server is killed, and says how that ended.
 *
 *   blocked FILE hold    takes the lock of FILE, says "ready", and keeps it until standard input ends
 *   blocked FILE lock    says "ready", then waits for that lock: `ended ERRNO at MS` (ms since 1970)
 *   blocked FILE flock   the same with flock(2)
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_SET };
	if (argc < 3)
		return 2;
	int fd = open(argv[1], O_RDWR | O_CREAT, 0600);
	if (fd < 0) {
		perror(argv[1]);
		return 1;
	}
	int holds = !strcmp(argv[2], "hold");
	if (holds && (fcntl(fd, F_SETLKW, &lock) || flock(fd, LOCK_EX))) {
		perror("lock");
		return 1;
	}
	puts("ready");
	fflush(stdout);
	if (holds) {
		char c;
		while (read(0, &c, 1) > 0)
			;
		return 0;
	}
	int result = strcmp(argv[2], "flock") ? fcntl(fd, F_SETLKW, &lock) : flock(fd, LOCK_EX);
	int error = result ? errno : 0;
	struct timespec now;
	clock_gettime(CLOCK_REALTIME, &now);
	printf("ended %d at %lld\n", error, (long long)now.tv_sec * 1000 + now.tv_nsec / 1000000);
	return 0;
}
