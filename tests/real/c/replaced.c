/*
 * Names that are replaced by rename while others look: a name that always names something is found by every call,
 * whether it is a file's, a link's or a directory's; so is what is in each of two directories that are exchanged.
 */
#include "check.h"
#include <dirent.h>
#include <limits.h>
#include <sys/mman.h>
#include <sys/xattr.h>
#include <time.h>

static char name[256], link_name[256], dir_name[256], below[300];
static volatile int *over;

/* What finds the name; 0 if it did. */
static int by_open(void)
{
	int fd = open(name, O_RDONLY);
	return fd < 0 ? -1 : close(fd);
}
static int by_open_write(void)
{
	int fd = open(name, O_WRONLY);
	return fd < 0 ? -1 : close(fd);
}
/* The file that is there has a byte; one that this made has none. */
static int by_creat(void)
{
	struct stat st;
	int fd = open(name, O_RDWR | O_CREAT, 0644);
	if (fd < 0 || fstat(fd, &st) != 0 || st.st_size != 1)
		return -1;
	return close(fd);
}
/* One that another removes in that moment. */
static int by_creat_of_none(void)
{
	char other[300];
	snprintf(other, sizeof other, "%s.none", name);
	int fd = open(other, O_RDWR | O_CREAT, 0644);
	return fd < 0 ? -1 : close(fd);
}
static int by_excl(void)
{
	return open(name, O_RDWR | O_CREAT | O_EXCL, 0644) == -1 && errno == EEXIST ? 0 : -1;
}
static int by_stat(void)
{
	struct stat st;
	return stat(name, &st) == 0 && st.st_size == 1 ? 0 : -1;
}
static int by_statx(void)
{
	struct statx st;
	return statx(AT_FDCWD, name, 0, STATX_ALL, &st);
}
static int by_access(void) { return access(name, R_OK); }
static int by_chmod(void) { return chmod(name, 0644); }
static int by_chown(void) { return chown(name, -1, getgid()); }
static int by_utimens(void) { return utimensat(AT_FDCWD, name, NULL, 0); }
static int by_truncate(void) { return truncate(name, 1); }
static int by_xattr(void)
{
	char value[100];
	return getxattr(name, "user.none", value, sizeof value) == -1 && errno == ENOENT ? -1 : 0;
}
static int by_realpath(void)
{
	char path[PATH_MAX];
	return realpath(name, path) != NULL ? 0 : -1;
}
static int by_link(void)
{
	char second[300];
	snprintf(second, sizeof second, "%s.%d", name, (int)getpid());
	/* The kernel's own link may find that what it was to link has lost its name (vfs_link). */
	if (link(name, second) != 0)
		return getenv("WEIR_TEST_ON_WEIR") != NULL ? -1 : 0;
	return unlink(second);
}
static int by_readlink(void)
{
	char target[100];
	return readlink(link_name, target, sizeof target) > 0 ? 0 : -1;
}
static int by_link_followed(void)
{
	struct stat st;
	return stat(link_name, &st);
}
static int by_dir(void)
{
	struct stat st;
	return stat(dir_name, &st);
}
static int by_opendir(void)
{
	DIR *dir = opendir(dir_name);
	return dir == NULL ? -1 : closedir(dir);
}
static int by_path_through(void)
{
	struct stat st;
	return stat(below, &st);
}

static const struct {
	int (*look)(void);
	const char *text;
} looks[] = {
	{by_open, "open"}, {by_open_write, "open for writing"}, {by_creat, "open with O_CREAT"},
	{by_creat_of_none, "open with O_CREAT of what others remove"}, {by_excl, "open with O_EXCL"}, {by_stat, "stat"}, {by_statx, "statx"}, {by_access, "access"},
	{by_chmod, "chmod"}, {by_chown, "chown"}, {by_utimens, "utimensat"}, {by_truncate, "truncate"},
	{by_xattr, "getxattr"}, {by_realpath, "realpath"}, {by_link, "link"}, {by_readlink, "readlink"},
	{by_link_followed, "stat through a link"}, {by_dir, "stat of a directory"}, {by_opendir, "opendir"},
	{by_path_through, "stat through a directory"},
};
enum { LOOKS = sizeof looks / sizeof *looks };

/* Looks until the replacing is over; counts what was not found. */
static void look(int which, volatile long *counts)
{
	while (!*over) {
		errno = 0;
		if (looks[which].look() != 0) {
			counts[1]++;
			counts[2] = errno;
		}
		counts[0]++;
	}
	_exit(0);
}

/* Puts new ones over each name, again and again. */
static void replace(double seconds)
{
	struct timespec begin, now;
	char new[300], other[300];
	snprintf(new, sizeof new, "%s.new", name);
	snprintf(other, sizeof other, "%s.none", name);
	clock_gettime(CLOCK_MONOTONIC, &begin);
	do {
		unlink(other);
		put_text(new, "x");
		MUST(rename(new, name) == 0);
		MUST(symlink("file", new) == 0 && rename(new, link_name) == 0);
		MUST(mkdir(new, 0755) == 0 && rename(new, dir_name) == 0);
		MUST(renameat2(AT_FDCWD, in_dir("other"), AT_FDCWD, in_dir("full"), RENAME_EXCHANGE) == 0);
		clock_gettime(CLOCK_MONOTONIC, &now);
	} while (now.tv_sec - begin.tv_sec + (now.tv_nsec - begin.tv_nsec) / 1e9 < seconds);
}

int main(int argc, char **argv)
{
	check_begin(argc, argv);
	snprintf(name, sizeof name, "%s", in_dir("file"));
	snprintf(link_name, sizeof link_name, "%s", in_dir("link"));
	snprintf(dir_name, sizeof dir_name, "%s", in_dir("dir"));
	snprintf(below, sizeof below, "%s", in_dir("full/inside"));
	put_text(name, "x");
	MUST(symlink("file", link_name) == 0 && mkdir(dir_name, 0755) == 0);
	MUST(mkdir(in_dir("full"), 0755) == 0 && mkdir(in_dir("other"), 0755) == 0);
	put_text(below, "x");
	put_text(in_dir("other/inside"), "x");
	long *shared = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	MUST(shared != MAP_FAILED);
	over = (volatile int *)(shared + 3 * LOOKS);
	double seconds = getenv("WEIR_TEST_SECONDS") != NULL ? atof(getenv("WEIR_TEST_SECONDS")) : 0.4;
	/* A few at a time: all of them at once would each look seldom. */
	for (int from = 0; from < LOOKS; from += 2) {
		pid_t pids[2] = {-1, -1};
		*over = 0;
		for (int i = 0; i < 2 && from + i < LOOKS; i++) {
			fflush(NULL);
			if ((pids[i] = fork()) == 0)
				look(from + i, shared + 3 * (from + i));
		}
		replace(seconds);
		*over = 1;
		for (int i = 0; i < 2 && from + i < LOOKS; i++)
			MUST(child_ok(pids[i]));
	}
	for (int i = 0; i < LOOKS; i++) {
		long *counts = shared + 3 * i;
		errno = (int)counts[2];
		CHECK(counts[0] > 0 && counts[1] == 0, "%s: %ld times, %ld not found", looks[i].text, counts[0],
		      counts[1]);
	}
	return check_end();
}
