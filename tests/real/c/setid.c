/* Set-id bits: what clears them, for whom, as on Linux. Runs as well on tmpfs. As root, whose writes clear nothing, a child
 * does the same as another user. */
#include "check.h"
#include <grp.h>

enum { USER = 12345, GROUP = 12345, OTHER_GROUP = 12346 };

static mode_t mode_of(const char *path)
{
	struct stat st;
	MUST(stat(path, &st) == 0);
	return st.st_mode & 07777;
}

static const char *file;

/* A file with this mode and contents. */
static void make(mode_t mode)
{
	unlink(file);
	put_text(file, "some text");
	MUST(chmod(file, mode) == 0);
}

static void is(mode_t wanted, const char *what, mode_t before)
{
	mode_t now = mode_of(file);
	if (now != wanted)
		printf("  %04o became %04o, wanted %04o\n", before, now, wanted);
	CHECK(now == wanted, "%s of a file of mode %04o", what, before);
}

/* Everything that changes contents, on files with each set of bits. `keeps`: the changes of root. */
static void changes(int keeps)
{
	static const struct {
		mode_t before, after;
	} modes[] = {
		{ 04755, 0755 }, { 02755, 0755 }, { 06755, 0755 }, { 04644, 0644 },
		{ 02644, 02644 }, /* no set-id bit: the group may not execute it */
		{ 06744, 02744 }, { 01755, 01755 }, { 0755, 0755 },
	};
	for (size_t i = 0; i < sizeof modes / sizeof modes[0]; i++) {
		mode_t before = modes[i].before, after = keeps ? before : modes[i].after;
		int fd;
		char byte = 0;
		make(before);
		MUST((fd = open(file, O_RDWR)) >= 0);
		is(before, "open", before);
		MUST(read(fd, &byte, 1) == 1);
		is(before, "read", before);
		MUST(write(fd, "x", 1) == 1);
		is(after, "write", before);
		MUST(fchmod(fd, before) == 0);
		is(before, "chmod of an open file", before);
		MUST(write(fd, "y", 1) == 1);
		is(after, "the next write", before);
		MUST(fchmod(fd, before) == 0 && pwrite(fd, "z", 1, 0) == 1);
		is(after, "an overwrite in place", before);
		close(fd);
		make(before);
		MUST((fd = open(file, O_WRONLY | O_APPEND)) >= 0 && write(fd, "x", 1) == 1);
		is(after, "append", before);
		MUST(fchmod(fd, before) == 0 && write(fd, "x", 1) == 1);
		is(after, "the next append", before);
		close(fd);
		make(before);
		MUST((fd = open(file, O_WRONLY)) >= 0 && write(fd, "", 0) == 0);
		is(before, "write of nothing", before);
		MUST(ftruncate(fd, 3) == 0);
		is(after, "ftruncate", before);
		close(fd);
		make(before);
		MUST(truncate(file, 100) == 0);
		is(after, "truncate", before);
		make(before);
		MUST((fd = open(file, O_WRONLY | O_TRUNC)) >= 0);
		is(after, "open with O_TRUNC", before);
		close(fd);
		make(before);
		MUST((fd = open(file, O_RDWR)) >= 0 && fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4) == 0);
		is(after, "punching a hole", before);
		close(fd);
		make(before);
		MUST((fd = open(file, O_RDWR)) >= 0 && fallocate(fd, 0, 0, 100) == 0);
		is(after, "fallocate", before);
		close(fd);
		make(before);
		FILE *stream = fopen(file, "a");
		MUST(stream && fputs("more", stream) >= 0 && fclose(stream) == 0);
		is(after, "a stream", before);
	}
}

static void chowns(void)
{
	static const struct {
		mode_t before, after;
	} modes[] = { { 04755, 0755 }, { 02755, 0755 }, { 06755, 0755 }, { 02644, 02644 }, { 06644, 02644 } };
	for (size_t i = 0; i < sizeof modes / sizeof modes[0]; i++) {
		mode_t before = modes[i].before, after = modes[i].after;
		make(before);
		MUST(chown(file, (uid_t)-1, (gid_t)-1) == 0);
		is(after, "chown of nothing", before);
		make(before);
		MUST(chown(file, (uid_t)-1, getegid()) == 0);
		is(after, "chgrp to the own group", before);
		make(before);
		int fd = open(file, O_RDONLY);
		MUST(fd >= 0 && fchown(fd, geteuid(), (gid_t)-1) == 0);
		is(after, "fchown", before);
		close(fd);
	}
	const char *dir = in_dir("dir-%d", (int)geteuid());
	MUST(mkdir(dir, 0755) == 0 && chmod(dir, 02755) == 0 && chown(dir, (uid_t)-1, getegid()) == 0);
	CHECK(mode_of(dir) == 02755, "chown leaves the bit of a directory");
}

int main(int argc, char **argv)
{
	check_begin(argc, argv);
	if (geteuid() != 0) {
		file = strdup(in_dir("own"));
		changes(0);
		chowns();
		return check_end();
	}
	file = strdup(in_dir("roots"));
	changes(1);
	chowns();
	/* Files that the child gets. */
	const char *foreign = strdup(in_dir("foreign"));
	put_text(foreign, "text");
	MUST(chown(foreign, USER, OTHER_GROUP) == 0);
	MUST(chmod(check_dir, 0777) == 0);
	fflush(stdout);
	pid_t pid = fork();
	if (pid == 0) {
		gid_t group = GROUP;
		/* The program uses the file system before: it need not be reached anew. */
		put_text(in_dir("reached"), "x");
		MUST(setgroups(1, &group) == 0 && setegid(GROUP) == 0 && seteuid(USER) == 0);
		file = strdup(in_dir("users"));
		changes(0);
		chowns();
		CHECK(chmod(foreign, 02755) == 0 && mode_of(foreign) == 0755, "chmod g+s for a group that one is not in");
		CHECK_FAILS(chown(foreign, 0, (gid_t)-1), EPERM, "chown to another user");
		printf("%d passed, %d failed\n", check_passed, check_failed);
		fflush(stdout);
		_exit(check_failed != 0);
	}
	CHECK(child_ok(pid), "the same as another user");
	MUST(chmod(foreign, 06755) == 0);
	CHECK(mode_of(foreign) == 06755, "root sets them for any group");
	return check_end();
}
