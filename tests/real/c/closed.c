/*
 * Descriptors that a program closes by system calls that no library sees: the kernel gives their numbers to
 * other files, and what is written there must not go to the file that was open before. By every function of
 * libc that gives a descriptor; by system calls for both; and with the descriptors of the library itself.
 */
#include "check.h"
#include <dirent.h>
#include <mqueue.h>
#include <pty.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/inotify.h>
#include <sys/mman.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <sys/uio.h>

/* A system call that only the kernel sees. */
static long raw(long number, long a, long b, long c, long d)
{
#if defined(__x86_64__)
	long result;
	register long r10 __asm__("r10") = d;
	__asm__ volatile("syscall"
			 : "=a"(result)
			 : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10)
			 : "rcx", "r11", "memory");
	return result;
#else
	register long x8 __asm__("x8") = number, x0 __asm__("x0") = a, x1 __asm__("x1") = b;
	register long x2 __asm__("x2") = c, x3 __asm__("x3") = d;
	__asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3) : "memory");
	return x0;
#endif
}

static int other_side = -1;
static FILE *stream;
static DIR *directory;

static int by_open(void)
{
	return open("/tmp", O_TMPFILE | O_RDWR, 0600);
}
static int by_openat(void)
{
	return openat(AT_FDCWD, "/dev/null", O_RDWR);
}
static int by_dup(void)
{
	return dup(2);
}
static int by_fcntl(void)
{
	return fcntl(2, F_DUPFD_CLOEXEC, 3);
}
static int by_pipe(void)
{
	int both[2];
	if (pipe(both) != 0)
		return -1;
	other_side = both[0];
	return both[1] < both[0] ? both[1] : both[0];
}
static int by_socketpair(void)
{
	int both[2];
	if (socketpair(AF_UNIX, SOCK_STREAM, 0, both) != 0)
		return -1;
	other_side = both[1];
	return both[0];
}
static int by_socket(void)
{
	return socket(AF_UNIX, SOCK_STREAM, 0);
}
static int by_eventfd(void)
{
	return eventfd(0, 0);
}
static int by_epoll(void)
{
	return epoll_create1(0);
}
static int by_timerfd(void)
{
	return timerfd_create(CLOCK_MONOTONIC, 0);
}
static int by_signalfd(void)
{
	sigset_t none;
	sigemptyset(&none);
	return signalfd(-1, &none, 0);
}
static int by_inotify(void)
{
	return inotify_init1(0);
}
static int by_memfd(void)
{
	return memfd_create("closed", 0);
}
static int by_mkstemp(void)
{
	char name[] = "/tmp/closed-XXXXXX";
	int fd = mkstemp(name);
	unlink(name);
	return fd;
}
static int by_fopen(void)
{
	stream = fopen("/dev/null", "w");
	return stream ? fileno(stream) : -1;
}
static int by_tmpfile(void)
{
	stream = tmpfile();
	return stream ? fileno(stream) : -1;
}
static int by_opendir(void)
{
	directory = opendir("/");
	return directory ? dirfd(directory) : -1;
}
static int by_posix_openpt(void)
{
	return posix_openpt(O_RDWR | O_NOCTTY);
}
static int by_shm_open(void)
{
	char name[64];
	snprintf(name, sizeof name, "/closed-%d", getpid());
	int fd = shm_open(name, O_CREAT | O_RDWR, 0600);
	shm_unlink(name);
	return fd;
}
static int by_syscall(void)
{
	return (int)syscall(SYS_openat, AT_FDCWD, "/dev/null", O_RDWR);
}
static int by_recvmsg(void)
{
	static int sockets[2] = {-1, -1};
	char byte = 1, control[CMSG_SPACE(sizeof(int))] = {0};
	struct iovec piece = {&byte, 1};
	struct msghdr message = {.msg_iov = &piece, .msg_iovlen = 1, .msg_control = control,
				 .msg_controllen = sizeof control};
	struct cmsghdr *header = CMSG_FIRSTHDR(&message);
	int two = 2, fd;
	if (sockets[0] < 0) {
		/* Only made: the number that was closed is for what is received. */
		if (socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) != 0)
			return -1;
		return -2;
	}
	header->cmsg_level = SOL_SOCKET;
	header->cmsg_type = SCM_RIGHTS;
	header->cmsg_len = CMSG_LEN(sizeof two);
	memcpy(CMSG_DATA(header), &two, sizeof two);
	if (sendmsg(sockets[0], &message, 0) != 1 || recvmsg(sockets[1], &message, 0) != 1)
		return -1;
	memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof fd);
	return fd;
}

static const struct {
	const char *what;
	int (*make)(void);
} makers[] = {
	{"open", by_open},	   {"openat", by_openat},	 {"dup", by_dup},
	{"fcntl", by_fcntl},	   {"pipe", by_pipe},		 {"socketpair", by_socketpair},
	{"socket", by_socket},	   {"eventfd", by_eventfd},	 {"epoll_create1", by_epoll},
	{"timerfd", by_timerfd},   {"signalfd", by_signalfd},	 {"inotify_init1", by_inotify},
	{"memfd", by_memfd},	   {"mkstemp", by_mkstemp},	 {"fopen", by_fopen},
	{"tmpfile", by_tmpfile},   {"opendir", by_opendir},	 {"posix_openpt", by_posix_openpt},
	{"shm_open", by_shm_open}, {"syscall", by_syscall},	 {"recvmsg", by_recvmsg},
};

/* A file of ours, open under the lowest free number. */
static int ours(void)
{
	put_text(in_dir("file"), "before");
	int fd = open(in_dir("file"), O_RDWR);
	MUST(fd > 2);
	return fd;
}

static void given_by_libc(void)
{
	by_recvmsg();
	for (size_t i = 0; i < sizeof makers / sizeof *makers; i++) {
		int fd = ours(), given;
		struct stat st;
		raw(SYS_close, fd, 0, 0, 0);
		other_side = -1;
		stream = NULL;
		directory = NULL;
		given = makers[i].make();
		if (given != fd) {
			CHECK(0, "%s gives number %d, not %d", makers[i].what, given, fd);
			continue;
		}
		/* Whatever these do to it: they do it to that one. */
		int is_regular = fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_size == 6;
		ssize_t wrote = pwrite(fd, "BEHIND", 6, 0);
		(void)wrote;
		CHECK(!is_regular && file_is(in_dir("file"), "before"), "%s gives a descriptor that was closed unseen",
		      makers[i].what);
		if (stream)
			fclose(stream);
		else if (directory)
			closedir(directory);
		else
			CHECK(close(fd) == 0, "and it is closed");
		if (other_side >= 0)
			close(other_side);
	}
}

/* Both by system calls that nobody sees: calls that are not the fastest ones find it out. */
static void given_unseen(void)
{
	static char big[1 << 20];
	memset(big, 'x', sizeof big);
	for (int what = 0; what < 9; what++) {
		int fd = ours();
		struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
		char *map;
		const char *name;
		raw(SYS_close, fd, 0, 0, 0);
		MUST(raw(SYS_openat, AT_FDCWD, (long)"/tmp", O_TMPFILE | O_RDWR, 0600) == fd);
		switch (what) {
		case 0:
			name = "ftruncate";
			CHECK(ftruncate(fd, 3) == 0, "%s", name);
			break;
		case 1:
			name = "fallocate";
			CHECK(posix_fallocate(fd, 0, 100) == 0, "%s", name);
			break;
		case 2:
			name = "pwrite of a megabyte";
			CHECK(pwrite(fd, big, sizeof big, 0) == (ssize_t)sizeof big, "%s", name);
			break;
		case 3:
			name = "writev";
			CHECK(writev(fd, &(struct iovec){big, 10}, 1) == 10, "%s", name);
			break;
		case 4:
			name = "fcntl lock";
			CHECK(fcntl(fd, F_SETLK, &lock) == 0, "%s", name);
			break;
		case 5:
			name = "flock";
			CHECK(flock(fd, LOCK_EX | LOCK_NB) == 0, "%s", name);
			break;
		case 6:
			name = "mmap";
			CHECK(ftruncate(fd, 4096) == 0, "ftruncate before %s", name);
			map = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
			CHECK(map != MAP_FAILED && memset(map, 'x', 4096), "%s", name);
			break;
		case 7:
			name = "dup2 onto another";
			CHECK(dup2(fd, fd + 1) == fd + 1 && write(fd + 1, "BEHIND", 6) == 6, "%s", name);
			close(fd + 1);
			break;
		default:
			name = "fchmod";
			CHECK(fchmod(fd, 0600) == 0, "%s", name);
		}
		CHECK(file_is(in_dir("file"), "before"), "%s is of the file that has the number", name);
		CHECK(close(fd) == 0, "and it is closed");
	}
	int fd = ours();
	raw(SYS_close, fd, 0, 0, 0);
	CHECK_FAILS(ftruncate(fd, 3), EBADF, "ftruncate of a number that is free");
	CHECK_FAILS(close(fd), EBADF, "close of a number that is free");
}

/* The library's own descriptors go too; all numbers are given to a file that must stay as it is. */
static void all_of_them(void)
{
	fflush(stdout);
	pid_t pid = fork();
	MUST(pid >= 0);
	if (pid == 0) {
		int fd = open(in_dir("all"), O_RDWR | O_CREAT | O_TRUNC, 0644);
		int keep = (int)raw(SYS_openat, AT_FDCWD, (long)"/tmp", O_TMPFILE | O_RDWR, 0600);
		struct stat st;
		MUST(fd > 2 && keep > 2 && write(fd, "one", 3) == 3);
		for (int number = 3; number < 70000; number++)
			if (number != keep && number != fd && (number < 500 || number > 510))
				raw(SYS_dup3, keep, number, 0, 0);
		/* Requests, files of ours, what wakes the server: none of it is written to that file. */
		for (int i = 0; i < 100; i++) {
			int another = open(in_dir("another%d", i), O_RDWR | O_CREAT, 0644);
			CHECK(another >= 500 && another <= 510 && write(another, "two", 3) == 3 && close(another) == 0 &&
				      rename(in_dir("another%d", i), in_dir("other%d", i)) == 0,
			      "files are made");
		}
		CHECK(write(fd, " and", 4) == 4 && fsync(fd) == 0 && file_is(in_dir("all"), "one and"),
		      "a file is written");
		CHECK(raw(SYS_fstat, keep, (long)&st, 0, 0) == 0 && st.st_size == 0, "nobody wrote to what was given");
		_exit(check_failed != 0);
	}
	CHECK(child_ok(pid), "all descriptors are closed, and their numbers given to something else");
	CHECK(file_is(in_dir("other99"), "two"), "what the child made is there");
}

/* What node does: everything by number. */
static void by_number(void)
{
	char buffer[4096];
	struct stat st;
	struct statx stx;
	const char *path = in_dir("number");
	int fd = (int)syscall(SYS_openat, AT_FDCWD, path, O_RDWR | O_CREAT | O_TRUNC, 0644);
	CHECK(fd > 2 && syscall(SYS_write, fd, "by number", 9) == 9, "openat, write");
	CHECK(syscall(SYS_pwrite64, fd, "BY", 2, 0L) == 2 && syscall(SYS_pread64, fd, buffer, 9, 0L) == 9 &&
		      memcmp(buffer, "BY number", 9) == 0,
	      "pwrite64, pread64");
	struct iovec pieces[2] = {{"more", 4}, {" of it", 6}};
	CHECK(syscall(SYS_pwritev, fd, pieces, 2, 9L, 0L) == 10, "pwritev");
	CHECK(syscall(SYS_lseek, fd, 2L, SEEK_SET) == 2 && syscall(SYS_read, fd, buffer, 7) == 7 &&
		      memcmp(buffer, " number", 7) == 0,
	      "lseek, read");
	CHECK(syscall(SYS_fstat, fd, &st) == 0 && st.st_size == 19, "fstat");
	CHECK(syscall(SYS_newfstatat, AT_FDCWD, path, &st, 0) == 0 && st.st_size == 19, "newfstatat");
	CHECK(syscall(SYS_statx, AT_FDCWD, path, 0, STATX_BASIC_STATS, &stx) == 0 && stx.stx_size == 19, "statx");
	CHECK(syscall(SYS_statx, fd, "", AT_EMPTY_PATH, STATX_BASIC_STATS, &stx) == 0 && stx.stx_size == 19,
	      "statx of a descriptor");
	CHECK(syscall(SYS_ftruncate, fd, 9L) == 0 && syscall(SYS_fsync, fd) == 0, "ftruncate, fsync");
	int copy = (int)syscall(SYS_dup, fd);
	CHECK(copy > fd && syscall(SYS_close, fd) == 0 && syscall(SYS_fcntl, copy, F_GETFL) == (O_RDWR | 0100000),
	      "dup, close, fcntl");
	CHECK(syscall(SYS_close, copy) == 0, "close");
	CHECK_FAILS(syscall(SYS_write, copy, "x", 1), EBADF, "write to what is closed");
	const char *renamed = in_dir("renamed");
	CHECK(syscall(SYS_renameat2, AT_FDCWD, path, AT_FDCWD, renamed, 0) == 0 && file_is(renamed, "BY number"),
	      "renameat2");
	CHECK(syscall(SYS_mkdirat, AT_FDCWD, in_dir("sub"), 0755) == 0 && syscall(SYS_chdir, in_dir("sub")) == 0, "mkdirat, chdir");
	long length = syscall(SYS_getcwd, buffer, sizeof buffer);
	CHECK(length == (long)strlen(in_dir("sub")) + 1 && strcmp(buffer, in_dir("sub")) == 0, "getcwd");
	CHECK(syscall(SYS_unlinkat, AT_FDCWD, "../renamed", 0) == 0 && access(renamed, F_OK) != 0, "unlinkat");
	fd = (int)syscall(SYS_openat, AT_FDCWD, "..", O_RDONLY | O_DIRECTORY);
	CHECK(syscall(SYS_getdents64, fd, buffer, sizeof buffer) > 0, "getdents64");
	CHECK(syscall(SYS_close, fd) == 0 && chdir("/") == 0, "and back");
	CHECK_FAILS(syscall(SYS_openat, AT_FDCWD, in_dir("no"), O_RDONLY), ENOENT, "what is not there");
	CHECK(syscall(SYS_getpid) == getpid(), "others are the kernel's");
	CHECK_FAILS(syscall(100000), ENOSYS, "and what is none");
	/* Six arguments. */
	void *map = (void *)syscall(SYS_mmap, NULL, 8192L, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0L);
	CHECK(map != MAP_FAILED, "mmap");
	pid_t pid = (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
	if (pid == 0)
		_exit(0);
	CHECK(pid > 0 && child_ok(pid), "clone");
}

/* libc's own functions that replace descriptors and the current directory. */
static void daemons(void)
{
	fflush(stdout);
	pid_t pid = fork();
	MUST(pid >= 0);
	if (pid == 0) {
		int fd = open(in_dir("log"), O_RDWR | O_CREAT | O_TRUNC, 0644);
		MUST(fd > 2 && dup2(fd, 1) == 1 && dup2(fd, 2) == 2 && chdir(in_dir(".")) == 0);
		MUST(write(1, "before\n", 7) == 7);
		if (daemon(0, 0) != 0)
			_exit(1);
		ssize_t wrote = write(1, "behind\n", 7);
		char here[100];
		int ok = wrote == 7 && getcwd(here, sizeof here) && strcmp(here, "/") == 0;
		dprintf(fd, ok ? "good" : "bad");
		_exit(0);
	}
	CHECK(child_ok(pid), "daemon");
	for (int i = 0; i < 1000; i++) {
		struct stat st;
		if (stat(in_dir("log"), &st) == 0 && st.st_size > 9)
			break;
		usleep(10000);
	}
	CHECK(file_is(in_dir("log"), "before\ngood"), "a daemon has left the file and the directory");

	int master;
	pid = forkpty(&master, NULL, NULL, NULL);
	if (pid == 0) {
		int fd = open(in_dir("terminal"), O_RDWR | O_CREAT | O_TRUNC, 0644);
		int good = isatty(0) && isatty(1) && fd > 2 && write(fd, "yes", 3) == 3;
		_exit(good ? 0 : 1);
	}
	CHECK(pid > 0 && child_ok(pid) && file_is(in_dir("terminal"), "yes"), "forkpty");
	close(master);
}

int main(int argc, char **argv)
{
	check_begin(argc, argv);
	given_by_libc();
	given_unseen();
	all_of_them();
	by_number();
	daemons();
	return check_end();
}
