/*
 * What a program does to files through the kernel, one word a thing: built static, so that no interposer is in it, for
 * shell/mounted.sh. `mounted THING [FILE [ARGUMENT]]` prints what it found, and ends with 0 if the call worked.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/xattr.h>
#include <unistd.h>

static int failed(const char *what)
{
	printf("%s: %s\n", what, strerror(errno));
	return 1;
}

static int record(int fd, int kind, off_t start, off_t length)
{
	struct flock lock = { .l_type = (short)kind, .l_whence = SEEK_SET, .l_start = start, .l_len = length };
	return fcntl(fd, F_SETLK, &lock);
}

int main(int argc, char **argv)
{
	const char *thing = argc > 1 ? argv[1] : "", *file = argc > 2 ? argv[2] : "";
	const char *argument = argc > 3 ? argv[3] : "";
	int is = 0;
#define IS(word) (is = strcmp(thing, word) == 0)
	if (IS("say"))
		return puts(file) < 0;
	if (IS("pwd") || IS("exe")) {
		char path[4096] = "";
		if (strcmp(thing, "pwd") == 0 ? !getcwd(path, sizeof path) : readlink("/proc/self/exe", path, sizeof path - 1) < 0)
			return failed(thing);
		return puts(path) < 0;
	}
	if (IS("first")) { /* four bytes of standard input */
		char bytes[4];
		return read(0, bytes, 4) != 4 || write(1, bytes, 4) != 4;
	}
	if (IS("exclusive"))
		return open(file, O_CREAT | O_EXCL | O_WRONLY, 0600) < 0 ? failed("open") : 0;
	if (IS("append")) { /* so many lines, each by one write */
		int fd = open(file, O_CREAT | O_APPEND | O_WRONLY, 0644);
		if (fd < 0)
			return failed("open");
		for (int i = 0; i < atoi(argument); i++)
			if (write(fd, "static, a line\n", 15) != 15)
				return failed("write");
		return close(fd);
	}
	if (IS("flock") || IS("record")) {
		int fd = open(file, O_RDWR);
		if (fd < 0)
			return failed("open");
		if (is && strcmp(thing, "flock") == 0 ? flock(fd, LOCK_EX | LOCK_NB) : record(fd, F_WRLCK, 10, 10))
			return failed("taken");
		puts("free");
		return 0;
	}
	if (IS("load")) { /* the first byte, by a mapping */
		int fd = open(file, O_RDONLY);
		char *m = mmap(NULL, 4096, PROT_READ, *argument ? MAP_PRIVATE : MAP_SHARED, fd, 0);
		if (m == MAP_FAILED)
			return failed("mmap");
		printf("%.5s\n", m);
		return 0;
	}
	if (IS("store")) {
		int fd = open(file, O_RDWR);
		char *m = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
		if (m == MAP_FAILED)
			return failed("mmap");
		memcpy(m, argument, strlen(argument));
		return munmap(m, 4096);
	}
	if (IS("allocate")) {
		int fd = open(file, O_CREAT | O_RDWR, 0644);
		struct stat st;
		if (fallocate(fd, 0, 0, 1 << 20) || pwrite(fd, "x", 1, 500000) != 1)
			return failed("fallocate");
		if (fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 499712, 4096) || fstat(fd, &st))
			return failed("punch");
		off_t data = lseek(fd, 0, SEEK_DATA);
		printf("%ld %ld %ld\n", (long)st.st_size, (long)data, (long)lseek(fd, 0, SEEK_HOLE));
		return 0;
	}
	if (IS("copy")) {
		int from = open(file, O_RDONLY), to = open(argument, O_CREAT | O_RDWR, 0644);
		return copy_file_range(from, NULL, to, NULL, 1 << 20, 0) < 0 ? failed("copy_file_range") : 0;
	}
	if (IS("unlinked")) {
		int fd = open(file, O_RDWR);
		char byte = 0;
		struct stat st;
		if (fd < 0 || unlink(file) || pwrite(fd, "u", 1, 0) != 1 || pread(fd, &byte, 1, 0) != 1 || fstat(fd, &st))
			return failed("unlinked");
		printf("%c %d\n", byte, (int)st.st_nlink);
		return 0;
	}
	if (IS("statfs")) {
		struct statvfs st;
		if (statvfs(file, &st))
			return failed("statvfs");
		printf("%d %d\n", st.f_blocks > 0, (int)st.f_namemax);
		return 0;
	}
	if (IS("xattr")) {
		char value[100] = "";
		if (getxattr(file, "user.a", value, sizeof value) < 0 || setxattr(file, "user.b", "static", 6, 0))
			return failed("xattr");
		puts(value);
		return 0;
	}
	if (IS("times")) {
		struct timespec times[2] = { { 1, 5 }, { 1000000000, 123456789 } };
		return utimensat(AT_FDCWD, file, times, 0) ? failed("utimensat") : 0;
	}
	fprintf(stderr, "usage: mounted THING [FILE [ARGUMENT]]\n");
	return 2;
}
