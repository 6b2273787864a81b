/*
 * Threads of one process that wait for a server, beside one that need not.
 *
 *   threads OWN... -- FAR...
 *
 * Opens all files and says "ready". After a line of standard input a thread for each FAR file makes a call that asks its server, of
 * four kinds in turn; then the main thread removes, makes, writes, locks, closes and looks up the OWN files, and says how many calls of
 * threads have returned by then. At the end of the input it waits for the threads and says how many of their calls succeeded.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MOST = 64, ROUNDS = 20, SETTLE_US = 300000 };

static atomic_int begun, returned, succeeded;
static struct {
	const char *path;
	int fd, kind;
} far[MOST];

static void must(int done, const char *what)
{
	if (!done) {
		printf("%s: %s\n", what, strerror(errno));
		exit(1);
	}
}

static void *call(void *argument)
{
	long at = (long)argument;
	struct stat st;
	char byte = 'x';
	int done = -1, fd;
	begun++;
	switch (far[at].kind) {
	case 0: /* Asks for its name. */
		done = unlink(far[at].path);
		break;
	case 1: /* Asks where its bytes are. */
		done = pread(far[at].fd, &byte, 1, 0) == 1 ? 0 : -1;
		break;
	case 2: /* Publishes. */
		done = pwrite(far[at].fd, &byte, 1, 0) == 1 ? close(far[at].fd) : -1;
		break;
	case 3:
		fd = open(far[at].path, O_RDWR);
		done = fd < 0 ? -1 : flock(fd, LOCK_EX) | fstat(fd, &st);
		break;
	}
	returned++;
	if (done == 0)
		succeeded++;
	return NULL;
}

int main(int argc, char **argv)
{
	pthread_t threads[MOST];
	int owns = 0, fars = 0;
	while (owns + 1 < argc && strcmp(argv[owns + 1], "--") != 0)
		owns++;
	for (int i = owns + 2; i < argc && fars < MOST; i++, fars++) {
		far[fars].path = argv[i];
		far[fars].kind = fars % 4;
		far[fars].fd = open(argv[i], O_RDWR);
		must(far[fars].fd >= 0, argv[i]);
	}
	puts("ready");
	fflush(stdout);
	char line[16];
	must(fgets(line, sizeof line, stdin) != NULL, "standard input");
	for (long i = 0; i < fars; i++)
		must(pthread_create(&threads[i], NULL, call, (void *)i) == 0, "pthread_create");
	while (begun < fars)
		usleep(1000);
	usleep(SETTLE_US);
	for (int i = 0; i < ROUNDS * owns; i++) {
		const char *path = argv[1 + i % owns];
		struct stat st;
		must(unlink(path) == 0, "unlink");
		int fd = open(path, O_RDWR | O_CREAT | O_EXCL, 0644);
		must(fd >= 0 && write(fd, "own", 3) == 3 && fsync(fd) == 0 && flock(fd, LOCK_EX) == 0, "a new file");
		must(close(fd) == 0 && stat(path, &st) == 0 && st.st_size == 3, "a file that is closed");
	}
	printf("%d of %d\n", returned, fars);
	fflush(stdout);
	must(fgets(line, sizeof line, stdin) == NULL, "standard input");
	for (int i = 0; i < fars; i++)
		pthread_join(threads[i], NULL);
	printf("%d of %d\n", succeeded, fars);
	return 0;
}
