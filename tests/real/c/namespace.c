/*
 * The namespace: names made, moved, linked, listed and removed, by path and relative to a directory's descriptor, with
 * modes and times. Large directories are in readdir_many.c, what must fail in errnos.c.
 */
#include "check.h"
#include <dirent.h>
#include <dlfcn.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <sys/time.h>
#include <time.h>
#include <utime.h>

static struct stat st, st2;

static int exists(const char *path)
{
	return lstat(path, &st) == 0;
}

static void directories(void)
{
	CHECK(mkdir(in_dir("d"), 0750) == 0 && stat(in_dir("d"), &st) == 0 && S_ISDIR(st.st_mode) && (st.st_mode & 07777) == 0750, "mkdir with mode");
	CHECK(st.st_nlink >= 1, "a directory has a link count");
	CHECK(mkdir(in_dir("d/e"), 0755) == 0 && mkdir(in_dir("d/e/f"), 0755) == 0, "nested mkdir");
	CHECK(stat(in_dir("d/e/../e/./f//"), &st) == 0 && stat(in_dir("d/e/f"), &st2) == 0 && st.st_ino == st2.st_ino, "dots and slashes");
	CHECK(rmdir(in_dir("d/e/f/")) == 0 && !exists(in_dir("d/e/f")), "rmdir, with a trailing slash");
	mode_t old = umask(077);
	CHECK(mkdir(in_dir("masked"), 0777) == 0 && stat(in_dir("masked"), &st) == 0 && (st.st_mode & 0777) == 0700, "umask holds for mkdir");
	int fd = open(in_dir("masked_file"), O_CREAT | O_WRONLY, 0666);
	CHECK(fd >= 0 && fstat(fd, &st) == 0 && (st.st_mode & 0777) == 0600, "and for open");
	umask(old);
	close(fd);
}

static void renaming(void)
{
	put_text(in_dir("a"), "A");
	put_text(in_dir("b"), "B");
	stat(in_dir("a"), &st);
	CHECK(rename(in_dir("a"), in_dir("a2")) == 0 && stat(in_dir("a2"), &st2) == 0 && st.st_ino == st2.st_ino && !exists(in_dir("a")), "rename keeps the inode");
	int fd = open(in_dir("b"), O_RDONLY);
	char c = 0;
	CHECK(rename(in_dir("a2"), in_dir("b")) == 0 && file_is(in_dir("b"), "A") && !exists(in_dir("a2")), "rename over an existing file");
	CHECK(fstat(fd, &st) == 0 && st.st_nlink == 0 && read(fd, &c, 1) == 1 && c == 'B', "who had it open still reads it");
	close(fd);
	CHECK(rename(in_dir("b"), in_dir("b")) == 0 && file_is(in_dir("b"), "A"), "rename to itself");
	MUST(link(in_dir("b"), in_dir("b_link")) == 0);
	CHECK(rename(in_dir("b"), in_dir("b_link")) == 0 && exists(in_dir("b")) && exists(in_dir("b_link")), "rename of one link over another: nothing");
	MUST(mkdir(in_dir("from"), 0755) == 0 && mkdir(in_dir("to"), 0755) == 0 && mkdir(in_dir("from/sub"), 0755) == 0);
	put_text(in_dir("from/sub/file"), "deep");
	CHECK(rename(in_dir("from"), in_dir("to")) == 0 && file_is(in_dir("to/sub/file"), "deep") && !exists(in_dir("from")), "rename of a directory over an empty one");
	CHECK(rename(in_dir("to/sub"), in_dir("sub")) == 0 && file_is(in_dir("sub/file"), "deep"), "a directory to another parent");
	CHECK(stat(in_dir("sub/.."), &st) == 0 && stat(check_dir, &st2) == 0 && st.st_ino == st2.st_ino, "its .. is the new parent");
	CHECK(rename(in_dir("sub/file"), in_dir("moved")) == 0 && file_is(in_dir("moved"), "deep"), "a file to another directory");
	/* A file being written keeps its bytes under its new name. */
	fd = open(in_dir("writing"), O_WRONLY | O_CREAT, 0600);
	MUST(write(fd, "1", 1) == 1);
	CHECK(rename(in_dir("writing"), in_dir("written")) == 0 && write(fd, "2", 1) == 1 && file_is(in_dir("written"), "12"), "rename while writing");
	close(fd);
	put_text(in_dir("x1"), "1");
	put_text(in_dir("x2"), "2");
	CHECK(renameat2(AT_FDCWD, in_dir("x1"), AT_FDCWD, in_dir("x2"), RENAME_EXCHANGE) == 0 ? file_is(in_dir("x1"), "2") && file_is(in_dir("x2"), "1")
		      : errno == EINVAL, "renameat2 RENAME_EXCHANGE exchanges or refuses");
	CHECK_FAILS(renameat2(AT_FDCWD, in_dir("x1"), AT_FDCWD, in_dir("x2"), RENAME_NOREPLACE), EEXIST, "renameat2 RENAME_NOREPLACE: EEXIST");
	CHECK(renameat2(AT_FDCWD, in_dir("x1"), AT_FDCWD, in_dir("x3"), RENAME_NOREPLACE) == 0 && !exists(in_dir("x1")), "and moves where nothing is");
}

static void links(void)
{
	char text[100];
	put_text(in_dir("file"), "shared");
	CHECK(link(in_dir("file"), in_dir("hard")) == 0 && stat(in_dir("hard"), &st) == 0 && st.st_nlink == 2, "link counts");
	stat(in_dir("file"), &st2);
	CHECK(st.st_ino == st2.st_ino && st.st_dev == st2.st_dev, "the same inode");
	int fd = open(in_dir("hard"), O_WRONLY);
	CHECK(write(fd, "SH", 2) == 2 && file_is(in_dir("file"), "SHared"), "a write by one name is seen by the other");
	close(fd);
	CHECK(unlink(in_dir("file")) == 0 && file_is(in_dir("hard"), "SHared") && stat(in_dir("hard"), &st) == 0 && st.st_nlink == 1, "unlink of one leaves the other");
	CHECK(symlink("hard", in_dir("soft")) == 0 && file_is(in_dir("soft"), "SHared"), "symlink, relative");
	CHECK(lstat(in_dir("soft"), &st) == 0 && S_ISLNK(st.st_mode) && st.st_size == 4, "lstat of it");
	memset(text, 0, sizeof text);
	CHECK(readlink(in_dir("soft"), text, sizeof text) == 4 && !strcmp(text, "hard"), "readlink");
	CHECK(readlink(in_dir("soft"), text, 2) == 2, "readlink cuts");
	CHECK(symlink(in_dir("hard"), in_dir("absolute")) == 0 && file_is(in_dir("absolute"), "SHared"), "symlink, absolute");
	MUST(mkdir(in_dir("real"), 0755) == 0 && symlink("real", in_dir("dirlink")) == 0);
	put_text(in_dir("dirlink/inside"), "in");
	CHECK(file_is(in_dir("real/inside"), "in") && file_is(in_dir("dirlink/../dirlink/inside"), "in"), "through a link to a directory");
	CHECK(lstat(in_dir("dirlink/"), &st) == 0 && S_ISDIR(st.st_mode), "a trailing slash follows");
	CHECK(symlink("nowhere", in_dir("dangling")) == 0 && lstat(in_dir("dangling"), &st) == 0, "a dangling link exists");
	fd = open(in_dir("dangling"), O_WRONLY | O_CREAT, 0600);
	CHECK(fd >= 0 && exists(in_dir("nowhere")), "open O_CREAT makes what it points to");
	close(fd);
	CHECK(unlink(in_dir("soft")) == 0 && exists(in_dir("hard")), "unlink removes the link only");
	CHECK(linkat(AT_FDCWD, in_dir("absolute"), AT_FDCWD, in_dir("to_link"), 0) == 0 && lstat(in_dir("to_link"), &st) == 0 && S_ISLNK(st.st_mode), "linkat does not follow");
	CHECK(linkat(AT_FDCWD, in_dir("absolute"), AT_FDCWD, in_dir("to_file"), AT_SYMLINK_FOLLOW) == 0 && lstat(in_dir("to_file"), &st) == 0 && S_ISREG(st.st_mode), "unless told to");
	/* From outside into the file system and the other way. */
	char outside[] = "/tmp/weir-check-XXXXXX", path[200];
	MUST(mkdtemp(outside));
	snprintf(path, sizeof path, "%s/in", outside);
	CHECK(symlink(in_dir("hard"), path) == 0, "a link outside that points in can be made");
	unlink(path);
	snprintf(path, sizeof path, "%s/out", outside);
	put_text(path, "outside");
	CHECK(symlink(path, in_dir("out")) == 0 && file_is(in_dir("out"), "outside"), "a link inside that points out is followed");
	unlink(path);
	rmdir(outside);
}

static void unlinking(void)
{
	char c[10];
	int fd = open(in_dir("gone"), O_RDWR | O_CREAT, 0600);
	MUST(fd >= 0 && write(fd, "before", 6) == 6);
	CHECK(unlink(in_dir("gone")) == 0 && !exists(in_dir("gone")), "unlink while open");
	CHECK(write(fd, "after", 5) == 5 && pread(fd, c, 5, 6) == 5 && !memcmp(c, "after", 5), "it goes on being written and read");
	CHECK(fstat(fd, &st) == 0 && st.st_nlink == 0 && st.st_size == 11, "fstat says no links");
	put_text(in_dir("gone"), "another");
	CHECK(pread(fd, c, 6, 0) == 6 && !memcmp(c, "before", 6) && file_is(in_dir("gone"), "another"), "a new file of that name is another");
	CHECK(close(fd) == 0, "close frees it");
	CHECK(unlinkat(AT_FDCWD, in_dir("gone"), 0) == 0 && mkdir(in_dir("gone"), 0700) == 0 && unlinkat(AT_FDCWD, in_dir("gone"), AT_REMOVEDIR) == 0, "unlinkat for files and directories");
	fd = open(check_dir, O_TMPFILE | O_RDWR, 0600);
	CHECK(fd >= 0 ? write(fd, "t", 1) == 1 : errno == EOPNOTSUPP || errno == EISDIR || errno == EINVAL, "O_TMPFILE works or refuses");
	if (fd >= 0)
		close(fd);
}

static void relative_to_descriptors(void)
{
	MUST(mkdir(in_dir("at"), 0755) == 0);
	int dir = open(in_dir("at"), O_RDONLY | O_DIRECTORY);
	MUST(dir >= 0);
	int fd = openat(dir, "file", O_RDWR | O_CREAT, 0600);
	CHECK(fd >= 0 && write(fd, "x", 1) == 1 && file_is(in_dir("at/file"), "x"), "openat");
	close(fd);
	CHECK(mkdirat(dir, "sub", 0700) == 0 && fstatat(dir, "sub", &st, 0) == 0 && S_ISDIR(st.st_mode), "mkdirat, fstatat");
	CHECK(renameat(dir, "file", dir, "sub/file") == 0 && faccessat(dir, "sub/file", R_OK | W_OK, 0) == 0, "renameat, faccessat");
	CHECK(symlinkat("sub/file", dir, "link") == 0 && fstatat(dir, "link", &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISLNK(st.st_mode), "symlinkat");
	char text[20] = "";
	CHECK(readlinkat(dir, "link", text, sizeof text) == 8 && !strcmp(text, "sub/file"), "readlinkat");
	CHECK(linkat(dir, "sub/file", dir, "hard", 0) == 0 && fstatat(dir, "hard", &st, 0) == 0 && st.st_nlink == 2, "linkat");
	CHECK(fchmodat(dir, "hard", 0400, 0) == 0 && fstatat(dir, "sub/file", &st, 0) == 0 && (st.st_mode & 0777) == 0400, "fchmodat");
	struct statx sx;
	CHECK(statx(dir, "hard", 0, STATX_BASIC_STATS, &sx) == 0 && sx.stx_size == 1 && sx.stx_ino == st.st_ino, "statx");
	CHECK(fstatat(dir, "", &st, AT_EMPTY_PATH) == 0 && S_ISDIR(st.st_mode), "fstatat with AT_EMPTY_PATH");
	CHECK(unlinkat(dir, "hard", 0) == 0 && unlinkat(dir, "link", 0) == 0, "unlinkat");
	MUST(rename(in_dir("at"), in_dir("at_moved")) == 0);
	fd = openat(dir, "after", O_WRONLY | O_CREAT, 0600);
	CHECK(fd >= 0 && exists(in_dir("at_moved/after")), "the descriptor follows its directory when it is renamed");
	close(fd);
	char cwd[4096], before[4096];
	MUST(getcwd(before, sizeof before));
	CHECK(fchdir(dir) == 0 && getcwd(cwd, sizeof cwd) && !strcmp(cwd, in_dir("at_moved")), "fchdir, getcwd");
	CHECK(stat("after", &st) == 0 && access("sub/file", F_OK) == 0 && stat("../at_moved", &st) == 0, "relative paths");
	put_text("relative", "r");
	CHECK(file_is(in_dir("at_moved/relative"), "r"), "a file made by a relative path");
	CHECK(chdir("sub") == 0 && file_is("../relative", "r") && getcwd(cwd, sizeof cwd) && !strcmp(cwd, in_dir("at_moved/sub")), "chdir, relative");
	CHECK(chdir("/") == 0 && getcwd(cwd, sizeof cwd) && !strcmp(cwd, "/"), "and out again");
	MUST(chdir(before) == 0);
	close(dir);
	/* As programs do that walk a path from the root, component by component. */
	dir = open("/", O_PATH | O_DIRECTORY);
	CHECK(dir >= 0 && fstatat(dir, in_dir("at_moved/relative") + 1, &st, 0) == 0, "relative to a descriptor of /");
	fd = openat(dir, in_dir("by_root") + 1, O_WRONLY | O_CREAT, 0600);
	CHECK(fd >= 0 && exists(in_dir("by_root")), "and made so");
	close(fd);
	close(dir);
	CHECK(chdir("/") == 0 && stat(in_dir("at_moved/relative") + 1, &st) == 0, "relative to the current directory /");
	CHECK(chdir("/tmp") == 0 && snprintf(cwd, sizeof cwd, "..%s", in_dir("at_moved/relative")) && stat(cwd, &st) == 0, "and by .. from another one");
	MUST(chdir(before) == 0);
	/* O_PATH descriptors name a place and nothing more. */
	dir = open(in_dir("at_moved"), O_PATH | O_DIRECTORY);
	CHECK(dir >= 0 && fstatat(dir, "relative", &st, 0) == 0 && openat(dir, "absent", O_RDONLY) == -1 && errno == ENOENT, "O_PATH directory");
	close(dir);
}

static void listing(void)
{
	char seen[50] = "";
	int count = 0, types = 0;
	long places[60];
	MUST(mkdir(in_dir("list"), 0755) == 0 && mkdir(in_dir("list/dir"), 0755) == 0 && symlink("x", in_dir("list/link")) == 0);
	for (int i = 0; i < 40; i++)
		put_text(in_dir("list/f%02d", i), "");
	DIR *dir = opendir(in_dir("list"));
	struct dirent *entry;
	MUST(dir);
	while (places[count] = telldir(dir), (entry = readdir(dir))) {
		int number;
		count++;
		if (sscanf(entry->d_name, "f%d", &number) == 1) {
			seen[number]++;
			types += entry->d_type == DT_REG || entry->d_type == DT_UNKNOWN;
			if (fstatat(dirfd(dir), entry->d_name, &st, 0) != 0 || st.st_ino != entry->d_ino)
				types -= 100;
		} else if (!strcmp(entry->d_name, "dir"))
			types += entry->d_type == DT_DIR;
		else if (!strcmp(entry->d_name, "link"))
			types += entry->d_type == DT_LNK;
		else
			types += !strcmp(entry->d_name, ".") || !strcmp(entry->d_name, "..");
	}
	CHECK(count == 44, "readdir gives 42 entries, . and .. (%d)", count);
	CHECK(all_bytes(seen, 40, 1), "each exactly once");
	CHECK(types == 44, "with its type and inode number");
	rewinddir(dir);
	for (int i = 0; i < 20; i++)
		entry = readdir(dir);
	char name[256];
	MUST(entry);
	strcpy(name, entry->d_name);
	seekdir(dir, places[19]);
	entry = readdir(dir);
	CHECK(entry && !strcmp(entry->d_name, name), "rewinddir, seekdir to where telldir was");
	CHECK(closedir(dir) == 0, "closedir");
	int fd = open(in_dir("list"), O_RDONLY);
	dir = fdopendir(fd);
	CHECK(dir && dirfd(dir) == fd && readdir(dir) != NULL && closedir(dir) == 0, "fdopendir");
	fd = open(in_dir("list"), O_RDONLY);
	char buf[1024];
	int total = 0;
	ssize_t n;
	while ((n = getdents64(fd, buf, sizeof buf)) > 0)
		for (ssize_t at = 0; at < n; at += ((struct dirent64 *)(buf + at))->d_reclen)
			total++;
	CHECK(n == 0 && total == 44, "getdents64 in small pieces");
	CHECK(lseek(fd, 0, SEEK_SET) == 0 && getdents64(fd, buf, sizeof buf) > 0, "lseek to the start of a directory");
	close(fd);
}

static void modes_and_times(void)
{
	put_text(in_dir("meta"), "m");
	CHECK(chmod(in_dir("meta"), 0751) == 0 && stat(in_dir("meta"), &st) == 0 && (st.st_mode & 07777) == 0751, "chmod");
	int fd = open(in_dir("meta"), O_RDWR);
	CHECK(fchmod(fd, 0604) == 0 && fstat(fd, &st) == 0 && (st.st_mode & 07777) == 0604, "fchmod");
	CHECK(chown(in_dir("meta"), getuid(), getgid()) == 0 && fchown(fd, (uid_t)-1, (gid_t)-1) == 0 && lchown(in_dir("meta"), getuid(), (gid_t)-1) == 0, "chown to oneself");
	struct timespec times[2] = {{1000000000, 123456789}, {1500000000, 987654321}};
	CHECK(utimensat(AT_FDCWD, in_dir("meta"), times, 0) == 0 && stat(in_dir("meta"), &st) == 0 && st.st_atim.tv_sec == 1000000000 &&
		      st.st_atim.tv_nsec == 123456789 && st.st_mtim.tv_sec == 1500000000 && st.st_mtim.tv_nsec == 987654321, "utimensat to the nanosecond");
	times[0].tv_nsec = UTIME_OMIT;
	times[1].tv_nsec = 1;
	CHECK(futimens(fd, times) == 0 && fstat(fd, &st) == 0 && st.st_atim.tv_nsec == 123456789 && st.st_mtim.tv_nsec == 1, "futimens, UTIME_OMIT");
	struct timespec now;
	clock_gettime(CLOCK_REALTIME_COARSE, &now);
	times[1].tv_nsec = UTIME_NOW;
	CHECK(futimens(fd, times) == 0 && fstat(fd, &st) == 0 && st.st_mtim.tv_sec >= now.tv_sec - 1, "UTIME_NOW");
	struct timeval coarse[2] = {{1, 2}, {3, 4}};
	CHECK(utimes(in_dir("meta"), coarse) == 0 && stat(in_dir("meta"), &st) == 0 && st.st_mtim.tv_sec == 3 && st.st_mtim.tv_nsec == 4000, "utimes");
	struct utimbuf old = {5, 6};
	CHECK(utime(in_dir("meta"), &old) == 0 && stat(in_dir("meta"), &st) == 0 && st.st_atime == 5 && st.st_mtime == 6, "utime");
	CHECK(futimes(fd, coarse) == 0 && symlink("meta", in_dir("meta_link")) == 0 && lutimes(in_dir("meta_link"), coarse) == 0, "futimes, lutimes");
	stat(in_dir("meta"), &st);
	CHECK(pwrite(fd, "z", 1, 0) == 1 && stat(in_dir("meta"), &st2) == 0 && st2.st_mtim.tv_sec >= now.tv_sec - 1, "a write moves mtime");
	MUST(utimes(in_dir("meta"), coarse) == 0);
	CHECK(ftruncate(fd, 0) == 0 && fstat(fd, &st) == 0 && st.st_mtim.tv_sec >= now.tv_sec - 1, "so does truncate");
	close(fd);
	MUST(mkdir(in_dir("timed"), 0755) == 0 && utimes(in_dir("timed"), coarse) == 0);
	put_text(in_dir("timed/new"), "");
	CHECK(stat(in_dir("timed"), &st) == 0 && st.st_mtim.tv_sec >= now.tv_sec - 1, "a new entry moves its directory's mtime");
	CHECK(access(in_dir("meta"), R_OK | W_OK) == 0 && access(in_dir("absent"), F_OK) == -1 && errno == ENOENT, "access");
	CHECK(euidaccess(in_dir("meta"), R_OK) == 0, "euidaccess");
	struct statfs fs;
	struct statvfs vfs;
	CHECK(statfs(check_dir, &fs) == 0 && fs.f_bsize > 0 && fs.f_blocks > 0 && fs.f_bavail > 0, "statfs");
	CHECK(statvfs(in_dir("meta"), &vfs) == 0 && vfs.f_frsize > 0 && vfs.f_namemax >= 255, "statvfs");
	CHECK(pathconf(check_dir, _PC_NAME_MAX) >= 255, "pathconf");
	char name[260];
	memset(name, 'n', 255);
	name[255] = 0;
	put_text(in_dir("%s", name), "long");
	CHECK(file_is(in_dir("%s", name), "long"), "a name of 255 bytes");
	put_text(in_dir("sp ace\n\xff\xfe*"), "odd");
	CHECK(file_is(in_dir("sp ace\n\xff\xfe*"), "odd") && unlink(in_dir("sp ace\n\xff\xfe*")) == 0, "a name of odd bytes");
	CHECK(mkfifo(in_dir("fifo"), 0600) == 0 || errno == EPERM || errno == EOPNOTSUPP, "mkfifo works or refuses");
}

/* When a file was made. */
static void birth(void)
{
	struct statx before, after, dir;
	struct timespec old[2] = { { 1000, 0 }, { 2000, 0 } };
	const char *name = in_dir("born"), *moved = in_dir("born elsewhere");
	MUST(mkdir(in_dir("birth"), 0755) == 0);
	int fd = open(name, O_RDWR | O_CREAT, 0644);
	MUST(fd >= 0 && statx(fd, "", AT_EMPTY_PATH, STATX_BTIME, &before) == 0);
	CHECK(before.stx_mask & STATX_BTIME && before.stx_btime.tv_sec == before.stx_mtime.tv_sec &&
		      before.stx_btime.tv_nsec == before.stx_mtime.tv_nsec,
	      "a file is born when it is first changed");
	MUST(write(fd, "text", 4) == 4 && fchmod(fd, 0600) == 0 && futimens(fd, old) == 0 && ftruncate(fd, 1) == 0);
	MUST(rename(name, moved) == 0 && close(fd) == 0);
	CHECK(statx(AT_FDCWD, moved, 0, STATX_ALL, &after) == 0 && after.stx_mask & STATX_BTIME &&
		      !memcmp(&before.stx_btime, &after.stx_btime, sizeof before.stx_btime) &&
		      (after.stx_ctime.tv_sec != before.stx_ctime.tv_sec ||
		       after.stx_ctime.tv_nsec != before.stx_ctime.tv_nsec),
	      "and no change moves that");
	CHECK(statx(AT_FDCWD, in_dir("birth"), 0, STATX_BTIME, &dir) == 0 && dir.stx_mask & STATX_BTIME &&
		      (dir.stx_btime.tv_sec < after.stx_btime.tv_sec ||
		       (dir.stx_btime.tv_sec == after.stx_btime.tv_sec &&
			dir.stx_btime.tv_nsec <= after.stx_btime.tv_nsec)),
	      "a directory, too");
}

/* Every way to ask where one is, also where the path is longer than PATH_MAX. */
static void where(void)
{
	static char path[16384];
	char part[201], before[4096];
	size_t length = strlen(check_dir);
	MUST(getcwd(before, sizeof before) && chdir(check_dir) == 0);
	CHECK(getcwd(path, length) == NULL && errno == ERANGE, "getcwd without room for the NUL");
	CHECK(getcwd(path, length + 1) == path && !strcmp(path, check_dir), "getcwd with room for it");
	CHECK(getcwd(path, 0) == NULL && errno == EINVAL, "getcwd with a buffer of nothing");
	CHECK(getcwd(NULL, 2) == NULL && errno == ERANGE, "getcwd that is to allocate too little");
	char *own = getcwd(NULL, 0), *big = getcwd(NULL, 10000);
	CHECK(own && big && !strcmp(own, check_dir) && !strcmp(big, check_dir), "getcwd that allocates");
	char *(*old)(char *) = (char *(*)(char *))dlsym(RTLD_DEFAULT, "getwd");
	CHECK(old(path) == path && !strcmp(path, check_dir), "getwd");
	MUST(symlink(check_dir, in_dir("here")) == 0);
	MUST(setenv("PWD", in_dir("here"), 1) == 0);
	CHECK(!strcmp(get_current_dir_name(), in_dir("here")), "get_current_dir_name believes PWD that is right");
	MUST(setenv("PWD", "/", 1) == 0);
	CHECK(!strcmp(get_current_dir_name(), check_dir), "and none that is not");

	memset(part, 'd', sizeof part - 1);
	part[sizeof part - 1] = 0;
	for (int i = 0; i < 25; i++)
		MUST(mkdir(part, 0755) == 0 && chdir(part) == 0);
	length += 25 * sizeof part;
	CHECK(getcwd(path, 4096) == NULL && errno == ERANGE, "getcwd of 5000 bytes does not fit into 4096");
	CHECK(getcwd(path, sizeof path) == path && strlen(path) == length, "getcwd of 5000 bytes");
	own = getcwd(NULL, 0);
	CHECK(own && strlen(own) == length, "and allocated");
	CHECK(old(path) == NULL, "getwd has no room for it");
	MUST(chdir(before) == 0);
}

int main(int argc, char **argv)
{
	check_begin(argc, argv);
	directories();
	renaming();
	links();
	unlinking();
	relative_to_descriptors();
	listing();
	modes_and_times();
	birth();
	where();
	return check_end();
}
