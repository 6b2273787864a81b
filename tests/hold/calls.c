/*
 * Makes one kind of call again and again, and says how long the slowest call took and what failed.
 *
 *   calls DIR TAG KIND      until standard input has an empty line; one line of result then:
 *                           KIND ok N failed N slowest_ms N errnos E,E,...
 *                           A line with a number N is answered by "made" after N more calls.
 *   calls DIR TAG prepare   makes what the kinds need: FILES files of DATA bytes in DIR/data, a file to lock
 *   calls DIR TAG all       each kind a few times, each of which must succeed
 *
 * Names have TAG in them, so that several processes do not meet. A file's home follows from its name, so that of
 * many files some are at every server. What is read is compared: bytes are right, or the call fails.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { FILES = 24, DATA = 64 << 10 };

static const char *dir, *tag;
static long slowest;

static double now_ms(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)now.tv_sec * 1e3 + (double)now.tv_nsec / 1e6;
}

static void took(double begin)
{
	int saved = errno;
	long ms = (long)(now_ms() - begin);
	if (ms > slowest)
		slowest = ms;
	errno = saved;
}

/* The value of one call of libc, whose time counts. */
#define T(call) \
	({ \
		double begin_ = now_ms(); \
		__typeof__(call) result_ = (call); \
		took(begin_); \
		result_; \
	})
static int data_fds[FILES], lock_fds[FILES], own_fd;

static const char *path(const char *kind, long n)
{
	static char paths[4][4096];
	static int next;
	char *out = paths[next++ % 4];
	snprintf(out, sizeof paths[0], "%s/%s-%s-%ld", dir, kind, tag, n);
	return out;
}

static const char *data_path(long n)
{
	static char out[4096];
	snprintf(out, sizeof out, "%s/data/%ld", dir, n % FILES);
	return out;
}

static unsigned char byte_of(long file, size_t at)
{
	return (unsigned char)(file * 31 + (long)(at % 251));
}

static int do_open(long n)
{
	int fd = T(open(data_path(n), O_RDONLY));
	return fd < 0 ? -1 : T(close(fd));
}

static int do_stat(long n)
{
	struct stat st;
	if (T(stat(data_path(n), &st)))
		return -1;
	if (st.st_size != DATA) {
		errno = ERANGE;
		return -1;
	}
	return 0;
}

static int do_readdir(long n)
{
	char name[4096];
	(void)n;
	snprintf(name, sizeof name, "%s/data", dir);
	DIR *list = T(opendir(name));
	int entries = 0;
	if (!list)
		return -1;
	errno = 0;
	while (T(readdir(list)))
		entries++;
	int failed = errno;
	T(closedir(list));
	if (!failed && entries != FILES + 2)
		failed = ERANGE;
	errno = failed;
	return failed ? -1 : 0;
}

static int do_create(long n)
{
	int fd = T(open(path("create", n), O_CREAT | O_EXCL | O_WRONLY, 0600));
	return fd < 0 ? -1 : T(close(fd));
}

/* What cannot be made needs not be removed: it is the making that failed then. */
static int do_unlink(long n)
{
	int fd = T(open(path("unlink", n), O_CREAT | O_WRONLY, 0600));
	if (fd < 0)
		return -1;
	T(close(fd));
	return T(unlink(path("unlink", n)));
}

static int do_rename(long n)
{
	int fd = T(open(path("from", n), O_CREAT | O_WRONLY, 0600));
	if (fd < 0)
		return -1;
	T(close(fd));
	return T(rename(path("from", n), path("to", n)));
}

static int do_read(long n)
{
	static unsigned char buf[4096];
	size_t at = (size_t)(n * 4096) % DATA;
	ssize_t got = T(pread(data_fds[n % FILES], buf, sizeof buf, (off_t)at));
	if (got < 0)
		return -1;
	for (ssize_t i = 0; i < got; i++)
		if (buf[i] != byte_of(n % FILES, at + (size_t)i))
			got = -1;
	if (got != (ssize_t)sizeof buf) {
		errno = ERANGE;
		return -1;
	}
	return 0;
}

static int do_write(long n)
{
	static char buf[4096];
	return T(pwrite(own_fd, buf, sizeof buf, (n % 4096) * 4096)) == (ssize_t)sizeof buf ? 0 : -1;
}

static int do_fsync(long n)
{
	return do_write(n) || T(fsync(own_fd)) ? -1 : 0;
}

static int do_lock(long n)
{
	struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = getpid(), .l_len = 1 };
	if (T(fcntl(lock_fds[n % FILES], F_SETLKW, &lock)))
		return -1;
	lock.l_type = F_UNLCK;
	return T(fcntl(lock_fds[n % FILES], F_SETLK, &lock));
}

static int do_laminate(long n)
{
	int fd = T(open(path("laminate", n), O_CREAT | O_EXCL | O_WRONLY, 0600));
	if (fd < 0)
		return -1;
	int wrote = T(write(fd, "text", 4)) == 4;
	return T(close(fd)) || !wrote || T(chmod(path("laminate", n), 0400)) ? -1 : 0;
}

static const struct {
	const char *name;
	int (*call)(long);
} kinds[] = {
	{ "open", do_open },	 { "stat", do_stat },	  { "readdir", do_readdir }, { "create", do_create },
	{ "unlink", do_unlink }, { "rename", do_rename }, { "read", do_read },	     { "write", do_write },
	{ "fsync", do_fsync },	 { "lock", do_lock },	  { "laminate", do_laminate },
};
enum { KINDS = sizeof kinds / sizeof kinds[0] };

static void must(int good, const char *what)
{
	if (!good) {
		printf("%s: %s\n", what, strerror(errno));
		exit(1);
	}
}

static void prepare(void)
{
	char name[4096];
	static unsigned char buf[DATA];
	snprintf(name, sizeof name, "%s/data", dir);
	must(!mkdir(name, 0700), "mkdir");
	for (long n = 0; n < FILES; n++) {
		int fd = open(data_path(n), O_CREAT | O_EXCL | O_WRONLY, 0600);
		must(fd >= 0, "open");
		for (size_t at = 0; at < DATA; at++)
			buf[at] = byte_of(n, at);
		must(write(fd, buf, DATA) == DATA, "write");
		must(!close(fd), "close");
	}
}

static void open_files(void)
{
	own_fd = open(path("own", 0), O_CREAT | O_RDWR, 0600);
	must(own_fd >= 0, "own file");
	for (long n = 0; n < FILES; n++) {
		data_fds[n] = open(data_path(n), O_RDONLY);
		must(data_fds[n] >= 0, "data file");
		lock_fds[n] = open(data_path(n), O_RDWR);
		must(lock_fds[n] >= 0, "file to lock");
	}
}

static int is_told(void)
{
	struct pollfd in = { .fd = 0, .events = POLLIN };
	return poll(&in, 1, 1) != 0;
}

/* The number in a line of standard input; 0 for an empty line and at the end. */
static long read_number(void)
{
	long number = 0;
	char byte;
	while (read(0, &byte, 1) == 1 && byte != '\n')
		number = number * 10 + (byte - '0');
	return number;
}

static void again_and_again(const char *name, int (*call)(long))
{
	long ok = 0, failed = 0, due = -1;
	static char seen[4096];
	char errnos[512] = "";
	puts("ready");
	fflush(stdout);
	for (long n = 0;; n++) {
		if (n == due) {
			puts("made");
			fflush(stdout);
		}
		if (is_told()) {
			long more = read_number();
			if (!more)
				break;
			due = n + more;
		}
		int result = call(n), error = errno;
		if (!result) {
			ok++;
			continue;
		}
		failed++;
		if (error >= 0 && error < (int)sizeof seen && !seen[error]) {
			seen[error] = 1;
			snprintf(errnos + strlen(errnos), sizeof errnos - strlen(errnos), "%s%d",
				 *errnos ? "," : "", error);
		}
	}
	printf("%s ok %ld failed %ld slowest_ms %ld errnos %s\n", name, ok, failed, slowest,
	       *errnos ? errnos : "0");
}

int main(int argc, char **argv)
{
	if (argc < 4)
		return 2;
	dir = argv[1];
	tag = argv[2];
	if (!strcmp(argv[3], "prepare")) {
		prepare();
		return 0;
	}
	open_files();
	if (!strcmp(argv[3], "all")) {
		for (int kind = 0; kind < KINDS; kind++)
			for (long n = 0; n < FILES; n++)
				must(!kinds[kind].call(n), kinds[kind].name);
		puts("all good");
		return 0;
	}
	for (int kind = 0; kind < KINDS; kind++)
		if (!strcmp(kinds[kind].name, argv[3])) {
			again_and_again(kinds[kind].name, kinds[kind].call);
			return 0;
		}
	return 2;
}
