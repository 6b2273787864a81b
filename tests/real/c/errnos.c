/*
 * What must fail, and with which errno: a careful program decides by it. Runs also as root (where permission
 * checks of an ordinary user do not fail), so EACCES is not tested here.
 */
#include "check.h"
#include <dirent.h>
#include <limits.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>

static struct stat st;
static char buf[100];

static void absent(void)
{
	CHECK_FAILS(open(in_dir("no"), O_RDONLY), ENOENT, "open");
	CHECK_FAILS(open(in_dir("no/file"), O_WRONLY | O_CREAT, 0600), ENOENT, "open O_CREAT below an absent directory");
	CHECK_FAILS(open(in_dir("new/"), O_WRONLY | O_CREAT, 0600), EISDIR, "open O_CREAT with a trailing slash");
	CHECK_FAILS(stat(in_dir("no"), &st), ENOENT, "stat");
	CHECK_FAILS(lstat(in_dir("no"), &st), ENOENT, "lstat");
	CHECK_FAILS(stat("", &st), ENOENT, "stat of an empty path");
	CHECK_FAILS(open("", O_RDONLY), ENOENT, "open of an empty path");
	CHECK_FAILS(unlink(in_dir("no")), ENOENT, "unlink");
	CHECK_FAILS(rmdir(in_dir("no")), ENOENT, "rmdir");
	CHECK_FAILS(rename(in_dir("no"), in_dir("new")), ENOENT, "rename");
	CHECK_FAILS(rename(in_dir("file"), in_dir("no/new")), ENOENT, "rename into an absent directory");
	CHECK_FAILS(link(in_dir("no"), in_dir("new")), ENOENT, "link");
	CHECK_FAILS(mkdir(in_dir("no/new"), 0700), ENOENT, "mkdir");
	CHECK_FAILS(symlink("x", in_dir("no/new")), ENOENT, "symlink");
	CHECK_FAILS(symlink("", in_dir("new")), ENOENT, "symlink to nothing");
	CHECK_FAILS(symlink("", in_dir("file")), ENOENT, "symlink to nothing, over a file");
	CHECK_FAILS(readlink(in_dir("no"), buf, sizeof buf), ENOENT, "readlink");
	CHECK_FAILS(chmod(in_dir("no"), 0600), ENOENT, "chmod");
	CHECK_FAILS(chown(in_dir("no"), 0, 0), ENOENT, "chown");
	CHECK_FAILS(truncate(in_dir("no"), 0), ENOENT, "truncate");
	CHECK_FAILS(utimensat(AT_FDCWD, in_dir("no"), NULL, 0), ENOENT, "utimensat");
	CHECK_FAILS(access(in_dir("no"), F_OK), ENOENT, "access");
	CHECK_FAILS(chdir(in_dir("no")), ENOENT, "chdir");
	CHECK(opendir(in_dir("no")) == NULL && errno == ENOENT, "opendir");
	char longest[PATH_MAX + 1];
	memset(longest, 'a', PATH_MAX);
	longest[PATH_MAX] = 0;
	for (int i = 0; i < 3; i++)
		CHECK_FAILS(symlink(longest, in_dir((const char *[]){"file", "new", "no/new"}[i])), ENAMETOOLONG, "symlink to %d letters", PATH_MAX);
	CHECK_FAILS(open(in_dir("dangling"), O_RDONLY), ENOENT, "open of a dangling link");
	CHECK_FAILS(stat(in_dir("dangling"), &st), ENOENT, "stat of a dangling link");
}

/* In a directory: "" is no name of it, but for AT_EMPTY_PATH. */
static void empty(const char *where)
{
	char back[PATH_MAX];
	struct stat here;
	MUST(getcwd(back, sizeof back) && chdir(where) == 0 && stat(".", &here) == 0);
	CHECK_FAILS(stat("", &st), ENOENT, "stat of nothing in %s", where);
	CHECK_FAILS(lstat("", &st), ENOENT, "lstat of nothing in %s", where);
	CHECK_FAILS(open("", O_RDONLY), ENOENT, "open of nothing in %s", where);
	CHECK_FAILS(open("", O_RDONLY | O_DIRECTORY), ENOENT, "open of nothing as a directory in %s", where);
	CHECK_FAILS(open("", O_WRONLY | O_CREAT, 0600), ENOENT, "open O_CREAT of nothing in %s", where);
	CHECK_FAILS(access("", F_OK), ENOENT, "access of nothing in %s", where);
	CHECK_FAILS(chdir(""), ENOENT, "chdir to nothing in %s", where);
	CHECK_FAILS(mkdir("", 0700), ENOENT, "mkdir of nothing in %s", where);
	CHECK_FAILS(rmdir(""), ENOENT, "rmdir of nothing in %s", where);
	CHECK_FAILS(unlink(""), ENOENT, "unlink of nothing in %s", where);
	CHECK_FAILS(rename("", "new"), ENOENT, "rename of nothing in %s", where);
	CHECK_FAILS(rename(".", ""), ENOENT, "rename to nothing in %s", where);
	CHECK_FAILS(link("", "new"), ENOENT, "link of nothing in %s", where);
	CHECK_FAILS(chmod("", 0700), ENOENT, "chmod of nothing in %s", where);
	CHECK_FAILS(chown("", -1, -1), ENOENT, "chown of nothing in %s", where);
	CHECK_FAILS(truncate("", 0), ENOENT, "truncate of nothing in %s", where);
	CHECK_FAILS(readlink("", buf, sizeof buf), ENOENT, "readlink of nothing in %s", where);
	CHECK_FAILS(utimensat(AT_FDCWD, "", NULL, 0), ENOENT, "utimensat of nothing in %s", where);
	CHECK(opendir("") == NULL && errno == ENOENT, "opendir of nothing in %s", where);
	CHECK(fstatat(AT_FDCWD, "", &st, AT_EMPTY_PATH) == 0 && st.st_ino == here.st_ino, "fstatat of the current directory %s", where);
	CHECK(chdir(back) == 0, "chdir %s", back);
}

static void present(void)
{
	CHECK_FAILS(open(in_dir("file"), O_WRONLY | O_CREAT | O_EXCL, 0600), EEXIST, "open O_EXCL");
	CHECK_FAILS(open(in_dir("dangling"), O_WRONLY | O_CREAT | O_EXCL, 0600), EEXIST, "open O_EXCL of a dangling link");
	CHECK_FAILS(mkdir(in_dir("file"), 0700), EEXIST, "mkdir over a file");
	CHECK_FAILS(mkdir(in_dir("dir"), 0700), EEXIST, "mkdir over a directory");
	CHECK_FAILS(mkdir(in_dir("dangling"), 0700), EEXIST, "mkdir over a link");
	CHECK_FAILS(link(in_dir("file"), in_dir("dir")), EEXIST, "link");
	CHECK_FAILS(symlink("x", in_dir("file")), EEXIST, "symlink");
	CHECK_FAILS(rmdir(in_dir("full")), ENOTEMPTY, "rmdir of a full directory");
	CHECK_FAILS(rename(in_dir("dir"), in_dir("full")), ENOTEMPTY, "rename over a full directory");
	CHECK_FAILS(remove(in_dir("full")), ENOTEMPTY, "remove of a full directory");
}

static void kinds(void)
{
	CHECK_FAILS(open(in_dir("file/x"), O_RDONLY), ENOTDIR, "open below a file");
	CHECK_FAILS(open(in_dir("file/x"), O_WRONLY | O_CREAT, 0600), ENOTDIR, "create below a file");
	CHECK_FAILS(open(in_dir("file"), O_RDONLY | O_DIRECTORY), ENOTDIR, "open O_DIRECTORY of a file");
	CHECK_FAILS(open(in_dir("file/"), O_RDONLY), ENOTDIR, "open of a file with a trailing slash");
	CHECK_FAILS(stat(in_dir("file/."), &st), ENOTDIR, "stat of file/.");
	CHECK_FAILS(rmdir(in_dir("file")), ENOTDIR, "rmdir of a file");
	CHECK_FAILS(chdir(in_dir("file")), ENOTDIR, "chdir to a file");
	CHECK(opendir(in_dir("file")) == NULL && errno == ENOTDIR, "opendir of a file");
	CHECK_FAILS(rename(in_dir("dir"), in_dir("file")), ENOTDIR, "rename of a directory over a file");
	CHECK_FAILS(mkdir(in_dir("file/d"), 0700), ENOTDIR, "mkdir below a file");
	int fd = open(in_dir("file"), O_RDONLY);
	CHECK_FAILS(openat(fd, "x", O_RDONLY), ENOTDIR, "openat relative to a file");
	CHECK_FAILS(fchdir(fd), ENOTDIR, "fchdir to a file");
	CHECK_FAILS(getdents64(fd, buf, sizeof buf), ENOTDIR, "getdents of a file");
	close(fd);
	CHECK_FAILS(open(in_dir("dir"), O_WRONLY), EISDIR, "open of a directory for writing");
	CHECK_FAILS(open(in_dir("dir"), O_RDWR), EISDIR, "and for both");
	CHECK_FAILS(open(in_dir("dir"), O_RDONLY | O_CREAT, 0600), EISDIR, "open O_CREAT of a directory");
	CHECK_FAILS(rename(in_dir("file"), in_dir("dir")), EISDIR, "rename of a file over a directory");
	CHECK(unlink(in_dir("dir")) == -1 && (errno == EISDIR || errno == EPERM), "unlink of a directory");
	CHECK_FAILS(truncate(in_dir("dir"), 0), EISDIR, "truncate of a directory");
	CHECK(link(in_dir("dir"), in_dir("new")) == -1 && errno == EPERM, "link of a directory");
	fd = open(in_dir("dir"), O_RDONLY);
	CHECK_FAILS(read(fd, buf, 1), EISDIR, "read of a directory");
	CHECK_FAILS(pread(fd, buf, 1, 0), EISDIR, "pread of a directory");
	CHECK_FAILS(write(fd, buf, 1), EBADF, "write to a directory");
	close(fd);
	CHECK_FAILS(readlink(in_dir("file"), buf, sizeof buf), EINVAL, "readlink of a file");
	CHECK_FAILS(open(in_dir("dangling"), O_RDONLY | O_NOFOLLOW), ELOOP, "open O_NOFOLLOW of a link");
	CHECK_FAILS(rename(in_dir("dir"), in_dir("dir/below")), EINVAL, "rename of a directory below itself");
	CHECK_FAILS(rename(in_dir("full"), in_dir("full/d/x")), EINVAL, "rename of a directory further below itself");
	CHECK(rmdir(in_dir("dir/.")) == -1 && errno == EINVAL, "rmdir of dir/.");
	CHECK(rmdir(in_dir("full/d/..")) == -1 && errno == ENOTEMPTY, "rmdir of dir/..");
}

static void paths(void)
{
	char name[5000];
	MUST(symlink("loop2", in_dir("loop1")) == 0 && symlink("loop1", in_dir("loop2")) == 0);
	CHECK_FAILS(open(in_dir("loop1"), O_RDONLY), ELOOP, "open of a loop of links");
	CHECK_FAILS(stat(in_dir("loop1/x"), &st), ELOOP, "stat below it");
	CHECK_FAILS(chdir(in_dir("loop1")), ELOOP, "chdir to it");
	CHECK(lstat(in_dir("loop1"), &st) == 0, "lstat of it is fine");
	memset(name, 'n', 256);
	name[256] = 0;
	CHECK_FAILS(open(in_dir("%s", name), O_WRONLY | O_CREAT, 0600), ENAMETOOLONG, "open of a name of 256 bytes");
	CHECK_FAILS(mkdir(in_dir("%s", name), 0700), ENAMETOOLONG, "mkdir of it");
	CHECK_FAILS(stat(in_dir("%s", name), &st), ENAMETOOLONG, "stat of it");
	CHECK_FAILS(rename(in_dir("file"), in_dir("%s", name)), ENAMETOOLONG, "rename to it");
	size_t used = (size_t)snprintf(name, sizeof name, "%s", check_dir);
	while (used < PATH_MAX + 2) {
		name[used++] = '/';
		name[used++] = '.';
	}
	name[used] = 0;
	CHECK_FAILS(stat(name, &st), ENAMETOOLONG, "stat of a path beyond PATH_MAX");
	CHECK_FAILS(open(name, O_RDONLY), ENAMETOOLONG, "open of it");
}

static void descriptors(void)
{
	int reader = open(in_dir("file"), O_RDONLY), writer = open(in_dir("file"), O_WRONLY), path = open(in_dir("file"), O_PATH);
	struct iovec vector = {buf, 10};
	int volatile closed = dup(reader);
	MUST(reader >= 0 && writer >= 0 && path >= 0 && closed >= 0);
	close(closed);
	CHECK_FAILS(write(reader, "x", 1), EBADF, "write to a read-only descriptor");
	CHECK_FAILS(pwrite(reader, "x", 1, 0), EBADF, "pwrite to it");
	CHECK_FAILS(writev(reader, &vector, 1), EBADF, "writev to it");
	CHECK(ftruncate(reader, 0) == -1 && (errno == EINVAL || errno == EBADF), "ftruncate of it");
	CHECK_FAILS(fallocate(reader, 0, 0, 10), EBADF, "fallocate of it");
	CHECK_FAILS(read(writer, buf, 1), EBADF, "read of a write-only descriptor");
	CHECK_FAILS(pread(writer, buf, 1, 0), EBADF, "pread of it");
	CHECK_FAILS(readv(writer, &vector, 1), EBADF, "readv of it");
	CHECK_FAILS(read(path, buf, 1), EBADF, "read of an O_PATH descriptor");
	CHECK_FAILS(fchmod(path, 0600), EBADF, "fchmod of it");
	CHECK(fstat(path, &st) == 0, "fstat of it is fine");
	CHECK_FAILS(read(closed, buf, 1), EBADF, "read of a closed descriptor");
	CHECK_FAILS(write(closed, buf, 1), EBADF, "write");
	CHECK_FAILS(lseek(closed, 0, SEEK_SET), EBADF, "lseek");
	CHECK_FAILS(fstat(closed, &st), EBADF, "fstat");
	CHECK_FAILS(fsync(closed), EBADF, "fsync");
	CHECK_FAILS(close(closed), EBADF, "close");
	CHECK_FAILS(dup(closed), EBADF, "dup");
	CHECK_FAILS(fcntl(closed, F_GETFL), EBADF, "fcntl");
	CHECK_FAILS(openat(closed, "x", O_RDONLY), EBADF, "openat relative to it");
	CHECK_FAILS(lseek(reader, -1, SEEK_SET), EINVAL, "lseek before the start");
	CHECK_FAILS(lseek(reader, 0, 99), EINVAL, "lseek with a bad whence");
	CHECK_FAILS(pread(reader, buf, 1, -1), EINVAL, "pread at a negative offset");
	CHECK_FAILS(pwrite(writer, buf, 1, -1), EINVAL, "pwrite at a negative offset");
	CHECK_FAILS(preadv(reader, &vector, 1, -2), EINVAL, "preadv at a negative offset");
	CHECK_FAILS(ftruncate(writer, -1), EINVAL, "ftruncate to a negative length");
	CHECK_FAILS(truncate(in_dir("file"), -1), EINVAL, "truncate to a negative length");
	CHECK_FAILS(fallocate(writer, 0, 0, 0), EINVAL, "fallocate of nothing");
	CHECK_FAILS(fallocate(writer, 0, -1, 5), EINVAL, "fallocate at a negative offset");
	CHECK(posix_fallocate(writer, 0, 0) == EINVAL, "posix_fallocate returns EINVAL");
	CHECK(fstat(reader, &st) == 0 && st.st_size == 4, "none of it changed the file");
	close(reader);
	close(writer);
	close(path);
	/* Descriptors that are not ours keep their own errors. */
	int ends[2];
	MUST(pipe(ends) == 0);
	CHECK_FAILS(lseek(ends[0], 0, SEEK_SET), ESPIPE, "lseek of a pipe");
	CHECK_FAILS(pread(ends[0], buf, 1, 0), ESPIPE, "pread of a pipe");
	CHECK_FAILS(pwrite(ends[1], buf, 1, 0), ESPIPE, "pwrite to a pipe");
	close(ends[0]);
	close(ends[1]);
}

static void pointers_and_limits(void)
{
	int fd = open(in_dir("file"), O_RDWR);
	struct rlimit old, low;
	int fds[300], opened = 0;
	char *volatile bad = (char *)8; /* in the first page, which nothing can map */
	MUST(fd >= 0);
	/* Where the copy is made in the process itself, the signal of a bad address is an honest answer too. */
	for (int what = 0; what < 4; what++) {
		static const char *const WHAT[] = {"write from", "read into", "stat of", "open of"};
		pid_t pid = fork();
		if (pid == 0) {
			lseek(fd, 0, SEEK_SET);
			long done = what == 0 ? write(fd, bad, 100) : what == 1 ? read(fd, bad, 4) : what == 2 ? stat(bad, &st) : open(bad, O_RDONLY);
			_exit(done == -1 && errno == EFAULT ? 0 : 1);
		}
		int status = 0;
		waitpid(pid, &status, 0);
		CHECK((WIFEXITED(status) && WEXITSTATUS(status) == 0) || (WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV), "%s a bad address: EFAULT or SIGSEGV", WHAT[what]);
	}
	CHECK(fstat(fd, &st) == 0 && st.st_size == 4 && file_is(in_dir("file"), "four"), "none of it changed the file");
	close(fd);
	MUST(getrlimit(RLIMIT_NOFILE, &old) == 0);
	low = old;
	low.rlim_cur = 64;
	MUST(setrlimit(RLIMIT_NOFILE, &low) == 0);
	while (opened < 300 && (fds[opened] = open(in_dir("file"), O_RDONLY)) >= 0)
		opened++;
	CHECK(errno == EMFILE && opened > 20 && opened < 64, "too many descriptors: EMFILE (after %d)", opened);
	while (opened > 0)
		close(fds[--opened]);
	fd = open(in_dir("file"), O_RDONLY);
	CHECK(fd >= 0 && fd < 64, "and closing them makes room");
	close(fd);
	setrlimit(RLIMIT_NOFILE, &old);
}

static void refusals(void)
{
	/* What a file system may not offer: an errno, and never success without effect. */
	int fd = open(in_dir("file"), O_RDWR);
	CHECK_FAILS(fallocate(fd, 0x4000, 0, 1), EOPNOTSUPP, "fallocate with an unknown mode");
	CHECK(mknod(in_dir("device"), S_IFREG | 0600, 0) == 0 ? unlink(in_dir("device")) == 0 : errno == EPERM || errno == EOPNOTSUPP, "mknod of a file works or refuses");
	CHECK_FAILS(renameat2(AT_FDCWD, in_dir("file"), AT_FDCWD, in_dir("new"), 0x100), EINVAL, "renameat2 with unknown flags");
	CHECK_FAILS(unlinkat(AT_FDCWD, in_dir("file"), 0x4), EINVAL, "unlinkat with unknown flags");
	/* Whichever of these two is another file system than the one that is tested. */
	struct stat here, there;
	MUST(stat(check_dir, &here) == 0 && stat("/dev/shm", &there) == 0);
	const char *other = here.st_dev == there.st_dev ? "/tmp/weir-check-other" : "/dev/shm/weir-check-other";
	CHECK_FAILS(rename(in_dir("file"), other), EXDEV, "rename to another file system: EXDEV");
	CHECK_FAILS(link(in_dir("file"), other), EXDEV, "link to another file system: EXDEV");
	put_text(other, "other");
	CHECK_FAILS(rename(other, in_dir("new")), EXDEV, "rename from another file system: EXDEV");
	CHECK_FAILS(link(other, in_dir("new")), EXDEV, "link from another file system: EXDEV");
	unlink(other);
	close(fd);
}

/* What no program can have at an address: the kernel says so, and so must who stands before it. */
static void addresses(void)
{
	static char *volatile bad[] = {(char *)8, (char *)4095, (char *)-1, (char *)-4096};
	int fd = open(in_dir("file"), O_RDWR), other = open(in_dir("file"), O_RDONLY);
	int list = open(in_dir("full"), O_RDONLY | O_DIRECTORY);
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
		char *no = bad[i];
		struct iovec vector = {no, 10}, good = {buf, 10};
		CHECK_FAILS(read(fd, no, 10), EFAULT, "read into %p", no);
		CHECK_FAILS(write(fd, no, 10), EFAULT, "write from %p", no);
		CHECK_FAILS(pread(fd, no, 10, 0), EFAULT, "pread");
		CHECK_FAILS(pwrite(fd, no, 10, 0), EFAULT, "pwrite");
		CHECK_FAILS(readv(fd, &vector, 1), EFAULT, "readv of a piece");
		CHECK_FAILS(writev(fd, &vector, 1), EFAULT, "writev of a piece");
		CHECK_FAILS(readv(fd, (struct iovec *)no, 1), EFAULT, "readv");
		CHECK_FAILS(pwritev(fd, (struct iovec *)no, 1, 0), EFAULT, "pwritev");
		CHECK(pwritev(fd, &good, 1, 0) == 10, "a good one");
		CHECK_FAILS(open(no, O_RDONLY), EFAULT, "open");
		CHECK_FAILS(openat(list, no, O_RDONLY), EFAULT, "openat");
		CHECK_FAILS(stat(no, &st), EFAULT, "stat of a path");
		CHECK_FAILS(stat(in_dir("file"), (struct stat *)no), EFAULT, "stat");
		CHECK_FAILS(lstat(in_dir("file"), (struct stat *)no), EFAULT, "lstat");
		CHECK_FAILS(fstat(fd, (struct stat *)no), EFAULT, "fstat");
		CHECK_FAILS(fstatat(list, "d", (struct stat *)no, 0), EFAULT, "fstatat");
		CHECK_FAILS(access(no, F_OK), EFAULT, "access");
		CHECK_FAILS(unlink(no), EFAULT, "unlink");
		CHECK_FAILS(rename(in_dir("file"), no), EFAULT, "rename");
		CHECK_FAILS(mkdir(no, 0700), EFAULT, "mkdir");
		CHECK_FAILS(chdir(no), EFAULT, "chdir");
		CHECK_FAILS(truncate(no, 0), EFAULT, "truncate");
		CHECK_FAILS(readlink(in_dir("dangling"), no, 10), EFAULT, "readlink");
		CHECK_FAILS(utimensat(AT_FDCWD, in_dir("file"), (struct timespec *)no, 0), EFAULT, "utimensat");
		CHECK_FAILS(futimens(fd, (struct timespec *)no), EFAULT, "futimens");
		CHECK_FAILS(fcntl(fd, F_SETLK, no), EFAULT, "fcntl");
		CHECK_FAILS(copy_file_range(other, (off_t *)no, fd, NULL, 1, 0), EFAULT, "copy_file_range");
		CHECK_FAILS(sendfile(fd, other, (off_t *)no, 1), EFAULT, "sendfile");
		CHECK_FAILS(getdents64(list, no, 4096), EFAULT, "getdents64");
		CHECK_FAILS(syscall(SYS_getcwd, no, 4096), EFAULT, "getcwd");
	}
	close(fd);
	close(other);
	close(list);
}

/* Archivers ask how to align their reads: no answer is a failure to them. */
static void limits_of_files(void)
{
	errno = 0;
	CHECK(pathconf(in_dir("file"), _PC_REC_XFER_ALIGN) > 0, "pathconf _PC_REC_XFER_ALIGN, errno %d", errno);
	CHECK(pathconf(in_dir("file"), _PC_MAX_CANON) == 255 && pathconf(in_dir("file"), _PC_VDISABLE) == 0, "pathconf of terminals");
}

/* make(1) compares times: one that is touched is not older than one that was made before. */
static void touched_later(void)
{
	struct stat made, touched;
	int reversed = 0;
	for (int i = 0; i < 100; i++) {
		unlink(in_dir("made"));
		put_text(in_dir("touched"), "");
		put_text(in_dir("made"), "");
		MUST(utimensat(AT_FDCWD, in_dir("touched"), NULL, 0) == 0);
		MUST(stat(in_dir("made"), &made) == 0 && stat(in_dir("touched"), &touched) == 0);
		reversed += touched.st_mtim.tv_sec < made.st_mtim.tv_sec ||
			(touched.st_mtim.tv_sec == made.st_mtim.tv_sec && touched.st_mtim.tv_nsec < made.st_mtim.tv_nsec);
	}
	CHECK(reversed == 0, "%d of 100 touched files are older than what was made before", reversed);
	unlink(in_dir("made"));
	unlink(in_dir("touched"));
}

/* Where the kernel runs the file itself, it has it mapped; else a copy runs, and the file may be written. */
static void running(void)
{
	pid_t pid;
	int pipe_fds[2];
	MUST(pipe(pipe_fds) == 0);
	int from = open("/bin/cat", O_RDONLY), to = open(in_dir("program"), O_WRONLY | O_CREAT, 0700);
	MUST(from >= 0 && to >= 0);
	while (sendfile(to, from, NULL, 1 << 20) > 0)
		;
	close(from);
	close(to);
	MUST(stat(in_dir("program"), &st) == 0);
	off_t size = st.st_size;
	MUST((pid = fork()) >= 0);
	if (pid == 0) {
		dup2(pipe_fds[0], 0);
		close(pipe_fds[0]);
		close(pipe_fds[1]);
		execl(in_dir("program"), "program", (char *)NULL);
		_exit(99);
	}
	close(pipe_fds[0]);
	usleep(200000);
	int fd = open(in_dir("program"), O_WRONLY | O_TRUNC);
	int refused = fd < 0 && errno == ETXTBSY;
	CHECK(fd >= 0 || refused, "open O_TRUNC of a program that runs, errno %d", errno);
	if (refused) {
		CHECK_FAILS(open(in_dir("program"), O_RDWR), ETXTBSY, "open of a program that runs");
		CHECK_FAILS(truncate(in_dir("program"), 0), ETXTBSY, "truncate of a program that runs");
		MUST(stat(in_dir("program"), &st) == 0);
		CHECK(st.st_size == size, "its size, %ld of %ld", (long)st.st_size, (long)size);
	}
	close(fd);
	close(pipe_fds[1]);
	int status;
	MUST(waitpid(pid, &status, 0) == pid);
	CHECK(status == 0, "the program ends well: %x", status);
	unlink(in_dir("program"));
}

int main(int argc, char **argv)
{
	check_begin(argc, argv);
	put_text(in_dir("file"), "four");
	MUST(mkdir(in_dir("dir"), 0755) == 0 && mkdir(in_dir("full"), 0755) == 0 && mkdir(in_dir("full/d"), 0755) == 0);
	MUST(symlink("nowhere", in_dir("dangling")) == 0);
	absent();
	empty(in_dir("."));
	empty(in_dir("dir"));
	empty("/");
	present();
	kinds();
	paths();
	descriptors();
	pointers_and_limits();
	refusals();
	addresses();
	limits_of_files();
	touched_later();
	running();
	return check_end();
}
