/* Files without a name: O_TMPFILE, and linkat, which gives one a name. Runs as well on tmpfs. */
#include "check.h"
#include <dirent.h>

static int entries(const char *path)
{
	DIR *dir = opendir(path);
	int count = 0;
	MUST(dir != NULL);
	while (readdir(dir) != NULL)
		count++;
	closedir(dir);
	return count - 2;
}

/* Gives an open file a name, by way of its descriptor's link. */
static int name_by_proc(int fd, const char *path)
{
	char link[64];
	snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
	return linkat(AT_FDCWD, link, AT_FDCWD, path, AT_SYMLINK_FOLLOW);
}

int main(int argc, char **argv)
{
	check_begin(argc, argv);
	struct stat st;
	char got[64] = "";
	umask(027);
	const char *name = strdup(in_dir("name"));

	int fd = open(check_dir, O_TMPFILE | O_RDWR, 0666);
	CHECK(fd >= 0, "open with O_TMPFILE");
	CHECK(entries(check_dir) == 0, "no name in the directory");
	CHECK(fstat(fd, &st) == 0 && st.st_nlink == 0 && S_ISREG(st.st_mode) && (st.st_mode & 07777) == 0640 &&
		      st.st_uid == geteuid(),
	      "a regular file without links, with the mode and the owner");
	CHECK(write(fd, "some text", 9) == 9 && pread(fd, got, sizeof got, 0) == 9 && strcmp(got, "some text") == 0,
	      "is written and read");
	CHECK(name_by_proc(fd, name) == 0, "linkat by /proc/self/fd");
	CHECK(file_is(name, "some text"), "it has a name");
	CHECK(fstat(fd, &st) == 0 && st.st_nlink == 1 && entries(check_dir) == 1, "one link");
	CHECK(write(fd, "!", 1) == 1 && file_is(name, "some text!"), "and is written on");
	CHECK_FAILS(name_by_proc(fd, name), EEXIST, "a name that is taken");
	CHECK(name_by_proc(fd, in_dir("second")) == 0 && fstat(fd, &st) == 0 && st.st_nlink == 2, "a second name");
	CHECK(unlink(name) == 0 && unlink(in_dir("second")) == 0, "both are removed");
	CHECK_FAILS(name_by_proc(fd, name), ENOENT, "what has lost its last name gets none any more");
	close(fd);

	if (geteuid() == 0) {
		fd = open(check_dir, O_TMPFILE | O_WRONLY, 0600);
		CHECK(write(fd, "other", 5) == 5 && linkat(fd, "", AT_FDCWD, name, AT_EMPTY_PATH) == 0, "AT_EMPTY_PATH");
		close(fd);
		CHECK(file_is(name, "other"), "it stays when it is closed");
		CHECK(unlink(name) == 0, "is removed");
	}

	fd = open(check_dir, O_TMPFILE | O_RDWR | O_EXCL, 0600);
	CHECK(fd >= 0 && write(fd, "x", 1) == 1, "with O_EXCL");
	CHECK_FAILS(name_by_proc(fd, name), ENOENT, "it gets no name");
	close(fd);

	CHECK_FAILS(open(check_dir, O_TMPFILE | O_RDONLY, 0600), EINVAL, "for reading only");
	CHECK_FAILS(open(in_dir("none"), O_TMPFILE | O_RDWR, 0600), ENOENT, "in no directory");
	put_text(name, "x");
	CHECK_FAILS(open(name, O_TMPFILE | O_RDWR, 0600), ENOTDIR, "in a file");
	MUST(unlink(name) == 0);
	MUST(chdir(check_dir) == 0);
	fd = open(".", O_TMPFILE | O_RDWR, 0444);
	CHECK(fd >= 0 && write(fd, "x", 1) == 1, "in the current directory, of a mode that forbids writing");
	close(fd);

	/* A child has it, too. */
	fd = open(check_dir, O_TMPFILE | O_RDWR, 0600);
	pid_t pid = fork();
	if (pid == 0)
		_exit(write(fd, "child", 5) == 5 && name_by_proc(fd, name) == 0 ? 0 : 1);
	CHECK(child_ok(pid) && file_is(name, "child"), "a child writes and names it");
	close(fd);
	MUST(unlink(name) == 0);

	/* Many that nobody names leave nothing. */
	int many = 0;
	for (; many < 2000; many++) {
		fd = open(check_dir, O_TMPFILE | O_RDWR, 0600);
		if (fd < 0 || write(fd, "some bytes", 10) != 10 || close(fd) != 0)
			break;
	}
	CHECK(many == 2000, "2000 of them");
	FILE *stream = tmpfile();
	CHECK(stream != NULL && fputs("x", stream) >= 0 && fclose(stream) == 0, "tmpfile(3)");
	CHECK(entries(check_dir) == 0, "nothing is left");
	return check_end();
}
