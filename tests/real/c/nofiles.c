/*
 * Calls that make a file and cannot open it, for want of descriptors: EMFILE, and no file is left behind; what was
 * there already is as it was.
 */
#include "check.h"
#include <dirent.h>
#include <sys/resource.h>

enum { MOST = 64 };

static int count_names(void)
{
	DIR *dir = opendir(check_dir);
	int names = 0;
	MUST(dir);
	for (struct dirent *entry; (entry = readdir(dir));)
		names += entry->d_name[0] != '.';
	closedir(dir);
	return names;
}

int main(int argc, char **argv)
{
	check_begin(argc, argv);
	struct rlimit limit = {MOST, MOST};
	int taken[MOST], count = 0, dirfd;
	char pattern[4096];

	put_file(in_dir("there"), "text", 4);
	dirfd = open(check_dir, O_RDONLY | O_DIRECTORY);
	MUST(dirfd >= 0);
	/* Opened once, so that nothing of the library's own is still to be opened. */
	MUST(setrlimit(RLIMIT_NOFILE, &limit) == 0);
	while (count < MOST && (taken[count] = open("/dev/null", O_RDONLY)) >= 0)
		count++;
	CHECK(errno == EMFILE, "no descriptor is left");

	CHECK_FAILS(open(in_dir("a"), O_WRONLY | O_CREAT, 0600), EMFILE, "open");
	CHECK_FAILS(open(in_dir("b"), O_RDWR | O_CREAT | O_EXCL, 0600), EMFILE, "open, exclusive");
	CHECK_FAILS(open(in_dir("c"), O_RDONLY | O_CREAT | O_CLOEXEC, 0600), EMFILE, "open for reading");
	CHECK_FAILS(creat(in_dir("d"), 0600), EMFILE, "creat");
	CHECK_FAILS(openat(dirfd, "e", O_WRONLY | O_CREAT, 0600), EMFILE, "openat");
	CHECK(!fopen(in_dir("f"), "w") && errno == EMFILE, "fopen");
	CHECK(!fopen(in_dir("g"), "a+") && errno == EMFILE, "fopen, to append");
	snprintf(pattern, sizeof pattern, "%s/hXXXXXX", check_dir);
	CHECK_FAILS(mkstemp(pattern), EMFILE, "mkstemp");
	CHECK_FAILS(open(in_dir("there"), O_WRONLY | O_CREAT | O_TRUNC, 0600), EMFILE, "one that is there");

	for (int i = 0; i < 4; i++)
		close(taken[--count]);
	CHECK(count_names() == 1, "names that are left: %d, with the one that was there", count_names());
	struct stat st;
	CHECK(stat(in_dir("there"), &st) == 0 && st.st_size == 4, "what was there is as it was");
	int fd = open(in_dir("a"), O_WRONLY | O_CREAT | O_EXCL, 0600);
	CHECK(fd >= 0, "with descriptors again it is made");
	close(fd);
	return check_end();
}
