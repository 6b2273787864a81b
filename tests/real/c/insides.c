/*
 * Functions of libc that look at the file system from inside libc, each in three positions: by an absolute path,
 * relative to a current directory of the file system, relative to a descriptor of it. And paths of /proc that lead
 * to what a process has open.
 */
#include "check.h"
#include <dirent.h>
#include <dlfcn.h>
#include <sys/file.h>
#include <sys/inotify.h>
#include <sys/ipc.h>
#include <sys/mount.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <sys/sysmacros.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <utime.h>

static void paths(void)
{
	char buffer[PATH_MAX], deep[6000] = "", *text;
	CHECK((text = realpath("sub/../sub/link", NULL)) && !strcmp(text, in_dir("file")), "realpath(NULL)");
	free(text);
	CHECK(realpath(in_dir("sub/link"), buffer) == buffer && !strcmp(buffer, in_dir("file")), "realpath into a buffer");
	CHECK((text = canonicalize_file_name("./sub/.")) && !strcmp(text, in_dir("sub")), "canonicalize_file_name");
	free(text);
	CHECK(!realpath("none/x", NULL) && errno == ENOENT, "realpath of nothing");
	CHECK(!realpath("file/x", NULL) && errno == ENOTDIR, "through a file");
	CHECK(!realpath("", NULL) && errno == ENOENT, "of an empty path");
	CHECK((text = realpath("/proc/self/cwd", NULL)) && !strcmp(text, check_dir), "of /proc/self/cwd");
	free(text);
	CHECK((text = realpath("/proc/self/cwd/sub/link", NULL)) && !strcmp(text, in_dir("file")), "of a path through it");
	free(text);
	struct stat status;
	MUST(stat("file", &status) == 0);
	key_t key = ftok("file", 'x');
	CHECK(key != -1 && key == (key_t)((status.st_ino & 0xffff) | ((status.st_dev & 0xff) << 16) | ('x' << 24)), "ftok, relative");
	CHECK(ftok(in_dir("sub/link"), 'x') == key, "ftok, absolute, through a link");
	CHECK(ftok("none", 'x') == -1 && errno == ENOENT, "ftok of nothing");
	/* A current directory of which the path is long. */
	MUST(mkdir("deep", 0755) == 0 && chdir("deep") == 0);
	strcpy(deep, in_dir("deep"));
	for (int i = 0; i < 25; i++) {
		char name[101];
		memset(name, 'a' + i, 100);
		name[100] = 0;
		MUST(mkdir(name, 0755) == 0 && chdir(name) == 0);
		strcat(strcat(deep, "/"), name);
	}
	CHECK((text = getcwd(NULL, 0)) && !strcmp(text, deep), "getcwd of 2.5 KiB");
	free(text);
	CHECK(!getcwd(buffer, 100) && errno == ERANGE, "ERANGE");
	CHECK((text = getcwd(NULL, 4000)) && !strcmp(text, deep), "getcwd, malloc'ed of a size");
	free(text);
	setenv("PWD", deep, 1);
	CHECK((text = get_current_dir_name()) && !strcmp(text, deep), "get_current_dir_name");
	free(text);
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
	CHECK(getwd(buffer) && !strcmp(buffer, deep), "getwd");
#pragma GCC diagnostic pop
	for (int i = 0; i < 20; i++) {
		MUST(mkdir("0123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789", 0755) == 0);
		MUST(chdir("0123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789") == 0);
	}
	CHECK((text = getcwd(NULL, 0)) && strlen(text) > 4096 && !strncmp(text, deep, strlen(deep)), "getcwd of more than PATH_MAX");
	free(text);
	put_text("at the end", "deep");
	CHECK(file_is("./at the end", "deep"), "a file there");
	MUST(chdir(check_dir) == 0);
}

static void temporary(void)
{
	char template[PATH_MAX], *name;
	int fd;
	setenv("TMPDIR", in_dir("tmp"), 1);
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
	name = tempnam(NULL, "abc");
	CHECK(name && !strncmp(name, in_dir("tmp/abc"), strlen(in_dir("tmp/abc"))) && access(name, F_OK) != 0, "tempnam in TMPDIR (%s)", name ? name : "none");
	free(name);
	unsetenv("TMPDIR");
	CHECK((name = tempnam(in_dir("tmp"), "abcdefgh")) && !strncmp(name, in_dir("tmp/abcde"), strlen(in_dir("tmp/abcde"))), "tempnam in a directory");
	free(name);
	CHECK((name = tempnam("tmp", NULL)) && !strncmp(name, "tmp/file", 8), "tempnam, relative");
	free(name);
	CHECK((name = tempnam(in_dir("none"), NULL)) && !strncmp(name, "/tmp/", 5), "a directory that is not there: /tmp");
	free(name);
#pragma GCC diagnostic pop
	strcpy(template, "tmp/aXXXXXX");
	CHECK((fd = mkstemp(template)) >= 0 && access(template, F_OK) == 0 && close(fd) == 0, "mkstemp, relative");
	strcpy(template, in_dir("tmp/aXXXXXX.c"));
	CHECK((fd = mkstemps(template, 2)) >= 0 && access(template, F_OK) == 0 && !strcmp(template + strlen(template) - 2, ".c"), "mkstemps");
	struct stat status;
	CHECK(fstat(fd, &status) == 0 && (status.st_mode & 07777) == 0600, "of mode 0600");
	close(fd);
	strcpy(template, "tmp/aXXXXXX");
	CHECK((fd = mkostemp(template, O_APPEND | O_CLOEXEC)) >= 0 && (fcntl(fd, F_GETFL) & O_APPEND) && (fcntl(fd, F_GETFD) & FD_CLOEXEC), "mkostemp");
	close(fd);
	strcpy(template, in_dir("tmp/aXXXXXXb"));
	CHECK((fd = mkostemps(template, 1, 0)) >= 0, "mkostemps");
	close(fd);
	strcpy(template, "tmp/dXXXXXX");
	CHECK(mkdtemp(template) && stat(template, &status) == 0 && S_ISDIR(status.st_mode) && (status.st_mode & 07777) == 0700, "mkdtemp");
	strcpy(template, "none/XXXXXX");
	CHECK_FAILS(mkstemp(template), ENOENT, "mkstemp where there is no directory");
	strcpy(template, "tmp/XXXXX");
	CHECK_FAILS(mkstemp(template), EINVAL, "mkstemp with too few X");
	FILE *file = tmpfile();
	CHECK(file && fputs("x", file) >= 0 && fclose(file) == 0, "tmpfile");
}

static void streams(void)
{
	char text[20] = "";
	FILE *file = fopen("stream", "w");
	MUST(file && fputs("one\ntwo\n", file) >= 0);
	CHECK((file = freopen(NULL, "r", file)) != NULL && fgets(text, sizeof text, file) && !strcmp(text, "one\n"), "freopen(NULL) to read what was written");
	CHECK(file && (file = freopen(NULL, "a", file)) != NULL && fputs("three\n", file) >= 0 && fflush(file) == 0, "freopen(NULL) to append");
	CHECK(file_is("stream", "one\ntwo\nthree\n"), "is at the end");
	CHECK(file && (file = freopen(in_dir("other"), "w+", file)) != NULL && fputs("other", file) >= 0, "freopen of another file");
	if (file)
		fclose(file);
	CHECK(file_is("other", "other"), "has it");
	CHECK((file = fopen("stream", "r")) && fclose(file) == 0 && !fopen("none/x", "w") && errno == ENOENT, "fopen");
}

static void attributes(void)
{
	struct statvfs vfs, same;
	struct statfs fs;
	int fd = open("file", O_RDWR), sub = open("sub", O_RDONLY | O_DIRECTORY);
	struct stat status;
	MUST(fd >= 0 && sub >= 0);
	CHECK(statvfs("file", &vfs) == 0 && fstatvfs(fd, &same) == 0 && vfs.f_bsize == same.f_bsize && vfs.f_namemax == 255, "statvfs, fstatvfs");
	CHECK(statfs(in_dir("sub"), &fs) == 0 && fs.f_namelen == 255 && fs.f_blocks > 0, "statfs");
	CHECK(pathconf("file", _PC_NAME_MAX) == 255 && fpathconf(fd, _PC_NAME_MAX) == 255 && pathconf(in_dir("sub"), _PC_PATH_MAX) == 4096, "pathconf, fpathconf");
	CHECK_FAILS(pathconf("none", _PC_NAME_MAX), ENOENT, "pathconf of nothing");
	struct utimbuf buffer = {1000, 2000};
	CHECK(utime("file", &buffer) == 0 && stat("file", &status) == 0 && status.st_atime == 1000 && status.st_mtime == 2000, "utime");
	struct timeval micro[2] = {{3000, 1}, {4000, 2}};
	CHECK(utimes(in_dir("file"), micro) == 0 && stat("file", &status) == 0 && status.st_mtime == 4000 && status.st_mtim.tv_nsec == 2000, "utimes");
	micro[1].tv_sec = 5000;
	CHECK(lutimes("sub/link", micro) == 0 && lstat("sub/link", &status) == 0 && status.st_mtime == 5000 && stat("file", &status) == 0 && status.st_mtime == 4000, "lutimes of a link");
	micro[1].tv_sec = 6000;
	CHECK(futimes(fd, micro) == 0 && fstat(fd, &status) == 0 && status.st_mtime == 6000, "futimes");
	micro[1].tv_sec = 7000;
	CHECK(futimesat(sub, "../file", micro) == 0 && fstat(fd, &status) == 0 && status.st_mtime == 7000, "futimesat");
	struct timespec nano[2] = {{8000, 1}, {8000, 2}};
	CHECK(utimensat(sub, "../file", nano, 0) == 0 && futimens(fd, nano) == 0 && fstat(fd, &status) == 0 && status.st_mtim.tv_nsec == 2, "utimensat, futimens");
	CHECK(lchmod("file", 0640) == 0 && fstat(fd, &status) == 0 && (status.st_mode & 0777) == 0640, "lchmod of a file");
	CHECK_FAILS(lchmod("sub/link", 0600), EOPNOTSUPP, "lchmod of a link");
	CHECK(fchmodat(sub, "../file", 0644, 0) == 0 && fstat(fd, &status) == 0 && (status.st_mode & 0777) == 0644, "fchmodat");
	CHECK(euidaccess("file", R_OK | W_OK) == 0 && eaccess(in_dir("file"), R_OK) == 0, "euidaccess, eaccess");
	CHECK_FAILS(eaccess("none", R_OK), ENOENT, "eaccess of nothing");
	CHECK(readahead(fd, 0, 100) == 0 && posix_fallocate64(fd, 0, 100) == 0 && fstat(fd, &status) == 0 && status.st_size == 100, "readahead, posix_fallocate64");
	CHECK(ftruncate(fd, 4) == 0 && posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED) == 0, "posix_fadvise");
	sync();
	CHECK(syncfs(fd) == 0 && syncfs(sub) == 0, "sync, syncfs");
	put_text("gone", "");
	MUST(mkdir("gone-too", 0755) == 0);
	CHECK(remove("gone") == 0 && remove(in_dir("gone-too")) == 0 && access("gone", F_OK) != 0, "remove");
	CHECK_FAILS(remove("gone"), ENOENT, "remove of nothing");
	CHECK_FAILS(remove("sub"), ENOTEMPTY, "remove of a full directory");
	put_text("from", "moved");
	put_text("to", "");
	CHECK(syscall(SYS_renameat2, AT_FDCWD, "from", sub, "../to", 1) == -1 && errno == EEXIST, "renameat2 by number, RENAME_NOREPLACE");
	CHECK(syscall(SYS_renameat2, AT_FDCWD, "from", sub, "../to", 0) == 0 && file_is("to", "moved"), "renameat2 by number");
	mode_t before = umask(077);
	put_text("masked", "");
	CHECK(stat("masked", &status) == 0 && (status.st_mode & 0777) == 0600 && umask(before) == 077, "umask");
	struct statx more;
	CHECK(statx(fd, "", AT_EMPTY_PATH, STATX_BASIC_STATS, &more) == 0 && S_ISREG(more.stx_mode) && more.stx_size == 4, "statx, AT_EMPTY_PATH");
	CHECK(fstatat(fd, "", &status, AT_EMPTY_PATH) == 0 && S_ISREG(status.st_mode) && status.st_size == 4, "fstatat, AT_EMPTY_PATH");
	CHECK(fstatat(AT_FDCWD, "", &status, AT_EMPTY_PATH) == 0 && S_ISDIR(status.st_mode), "of the current directory");
	struct stat there;
	CHECK(stat(".", &there) == 0 && there.st_ino == status.st_ino && there.st_dev == status.st_dev, "which is .");
	close(fd);
	close(sub);
}

/* Each way to say which process: itself. */
static void magic(void)
{
	char base[4][64], path[400], text[PATH_MAX];
	struct stat status, wanted;
	struct statx more;
	snprintf(base[0], 64, "/proc/self");
	snprintf(base[1], 64, "/proc/%d", (int)getpid());
	snprintf(base[2], 64, "/proc/thread-self");
	snprintf(base[3], 64, "/proc/self/task/%d", (int)gettid());
	int file = open("file", O_RDWR), sub = open("sub", O_RDONLY | O_DIRECTORY);
	MUST(file >= 0 && sub >= 0 && stat("file", &wanted) == 0);
	for (int i = 0; i < 4; i++) {
		snprintf(path, sizeof path, "%s/cwd/sub/link", base[i]);
		CHECK(stat(path, &status) == 0 && status.st_ino == wanted.st_ino, "stat of %s", path);
		snprintf(path, sizeof path, "%s/cwd/made%d", base[i], i);
		int fd = open(path, O_WRONLY | O_CREAT | O_EXCL, 0600);
		CHECK(fd >= 0 && write(fd, "made", 4) == 4 && file_is(in_dir("made%d", i), "made"), "a file made as %s", path);
		close(fd);
		snprintf(path, sizeof path, "%s/cwd/sub/link", base[i]);
		CHECK(lstat(path, &status) == 0 && S_ISLNK(status.st_mode) && readlink(path, text, sizeof text) == 7 && !memcmp(text, "../file", 7), "lstat, readlink of %s", path);
		snprintf(path, sizeof path, "%s/cwd/made%d", base[i], i);
		CHECK(access(path, F_OK) == 0 && unlink(path) == 0 && access(in_dir("made%d", i), F_OK) != 0, "unlink of %s", path);
		snprintf(path, sizeof path, "%s/fd/%d", base[i], file);
		CHECK(stat(path, &status) == 0 && S_ISREG(status.st_mode) && status.st_ino == wanted.st_ino && status.st_size == wanted.st_size, "stat of %s", path);
		CHECK(statx(AT_FDCWD, path, 0, STATX_ALL, &more) == 0 && S_ISREG(more.stx_mode) && more.stx_ino == wanted.st_ino, "statx");
		CHECK(lstat(path, &status) == 0 && S_ISLNK(status.st_mode), "lstat: a link");
		CHECK((fd = open(path, O_RDONLY)) >= 0 && fd != file && read(fd, text, 4) == 4 && lseek(file, 0, SEEK_CUR) == 0, "open: with an offset of its own");
		close(fd);
		ssize_t n = readlink(path, text, sizeof text - 1);
		text[n > 0 ? n : 0] = 0;
		CHECK(n > 0 && !strcmp(text, in_dir("file")), "readlink (%s)", text);
		snprintf(path, sizeof path, "%s/fd/%d/made", base[i], sub);
		fd = open(path, O_WRONLY | O_CREAT | O_EXCL, 0600);
		CHECK(fd >= 0 && access(in_dir("sub/made"), F_OK) == 0 && unlink(path) == 0, "a file made as %s", path);
		close(fd);
		snprintf(path, sizeof path, "%s/fd/%d", base[i], sub);
		n = readlink(path, text, sizeof text - 1);
		text[n > 0 ? n : 0] = 0;
		CHECK(n > 0 && !strcmp(text, in_dir("sub")), "readlink of a directory (%s)", text);
		DIR *dir = opendir(path);
		CHECK(dir && closedir(dir) == 0, "opendir of %s", path);
		snprintf(path, sizeof path, "%s/cwd", base[i]);
		n = readlink(path, text, sizeof text - 1);
		text[n > 0 ? n : 0] = 0;
		CHECK(n > 0 && !strcmp(text, check_dir), "readlink of %s (%s)", path, text);
		CHECK(lstat(path, &status) == 0 && S_ISLNK(status.st_mode) && stat(path, &status) == 0 && S_ISDIR(status.st_mode), "lstat, stat of it");
		dir = opendir(path);
		int entries = 0;
		while (dir && readdir(dir))
			entries++;
		CHECK(entries > 5 && closedir(dir) == 0, "opendir of it");
		snprintf(path, sizeof path, "%s/cwd/sub", base[i]);
		CHECK(chdir(path) == 0 && getcwd(text, sizeof text) && !strcmp(text, in_dir("sub")) && chdir(check_dir) == 0, "chdir to %s", path);
		snprintf(path, sizeof path, "%s/fd/%d", base[i], sub);
		CHECK(chdir(path) == 0 && getcwd(text, sizeof text) && !strcmp(text, in_dir("sub")) && chdir("..") == 0, "chdir to %s", path);
		snprintf(path, sizeof path, "%s/cwd/from%d", base[i], i);
		put_text(path, "x");
		snprintf(text, sizeof text, "%s/fd/%d/to%d", base[i], sub, i);
		CHECK(rename(path, text) == 0 && access(in_dir("sub/to%d", i), F_OK) == 0, "rename between such paths");
		CHECK(link(text, path) == 0 && access(in_dir("from%d", i), F_OK) == 0 && unlink(path) == 0 && unlink(text) == 0, "link, unlink");
		snprintf(text, sizeof text, "%s/cwd/d%d", base[i], i);
		CHECK(mkdir(text, 0755) == 0 && symlink("x", strcat(text, "/l")) == 0 && access(in_dir("d%d", i), F_OK) == 0 && unlink(text) == 0, "mkdir, symlink");
		text[strlen(text) - 2] = 0;
		CHECK(rmdir(text) == 0, "rmdir");
	}
	snprintf(path, sizeof path, "/dev/fd/%d", file);
	int fd = open(path, O_RDONLY);
	CHECK(fd >= 0 && stat(path, &status) == 0 && status.st_ino == wanted.st_ino, "/dev/fd");
	close(fd);
	int standard = dup(0);
	dup2(file, 0);
	fd = open("/dev/stdin", O_RDONLY);
	CHECK(fd >= 0 && fstat(fd, &status) == 0 && status.st_ino == wanted.st_ino && stat("/dev/stdin", &status) == 0 && status.st_ino == wanted.st_ino, "/dev/stdin");
	close(fd);
	CHECK((fd = openat(sub, "/proc/self/fd/0", O_RDONLY)) >= 0 && fstat(fd, &status) == 0 && status.st_ino == wanted.st_ino, "by an absolute path, whatever the descriptor");
	close(fd);
	dup2(standard, 0);
	close(standard);
	int proc = open("/proc/self", O_RDONLY | O_DIRECTORY), fds = open("/proc/self/fd", O_RDONLY | O_DIRECTORY);
	MUST(proc >= 0 && fds >= 0);
	CHECK(fstatat(proc, "cwd/sub/link", &status, 0) == 0 && status.st_ino == wanted.st_ino, "cwd relative to a descriptor of /proc/self");
	fd = openat(proc, "cwd/sub/made", O_WRONLY | O_CREAT, 0600);
	CHECK(fd >= 0 && access(in_dir("sub/made"), F_OK) == 0 && unlinkat(proc, "cwd/sub/made", 0) == 0, "a file made so");
	close(fd);
	snprintf(path, sizeof path, "%d", file);
	CHECK(fstatat(fds, path, &status, 0) == 0 && S_ISREG(status.st_mode) && status.st_ino == wanted.st_ino, "a number relative to /proc/self/fd");
	ssize_t n = readlinkat(fds, path, text, sizeof text - 1);
	text[n > 0 ? n : 0] = 0;
	CHECK(n > 0 && !strcmp(text, in_dir("file")), "readlinkat of it (%s)", text);
	CHECK((fd = openat(fds, path, O_RDONLY)) >= 0 && fd != file && read(fd, text, 4) == 4, "openat of it");
	close(fd);
	CHECK(chdir("/proc/self/fd") == 0 && stat(path, &status) == 0 && S_ISREG(status.st_mode) && status.st_ino == wanted.st_ino, "a number relative to a current directory /proc/self/fd");
	CHECK((fd = open(path, O_RDONLY)) >= 0 && read(fd, text, 4) == 4, "open of it");
	close(fd);
	MUST(chdir("/") == 0);
	snprintf(path, sizeof path, "proc/self/fd/%d", file);
	CHECK(stat(path, &status) == 0 && status.st_ino == wanted.st_ino, "proc/self/fd relative to /");
	snprintf(path, sizeof path, "/proc/self/../self/fd/./%d", file);
	CHECK(stat(path, &status) == 0 && status.st_ino == wanted.st_ino, "by way of . and ..");
	MUST(chdir(check_dir) == 0);
	MUST(symlink("/proc/self/cwd/file", "way") == 0);
	CHECK(stat("way", &status) == 0 && status.st_ino == wanted.st_ino, "a link that leads to /proc/self/cwd");
	snprintf(path, sizeof path, "/proc/self/fd/%d", file);
	MUST(symlink(path, "way2") == 0);
	CHECK(stat("way2", &status) == 0 && status.st_ino == wanted.st_ino, "a link that leads to /proc/self/fd");
	CHECK((fd = open("way2", O_RDWR)) >= 0 && read(fd, text, 4) == 4 && truncate("way2", 4) == 0, "opened");
	close(fd);
	/* A file without a name gets one by its descriptor. */
	int nameless = open("nameless", O_RDWR | O_CREAT, 0600);
	MUST(nameless >= 0 && link("nameless", "kept") == 0);
	snprintf(path, sizeof path, "/proc/self/fd/%d", nameless);
	CHECK(linkat(AT_FDCWD, path, AT_FDCWD, "linked", AT_SYMLINK_FOLLOW) == 0 && access("linked", F_OK) == 0, "linkat of /proc/self/fd, AT_SYMLINK_FOLLOW");
	CHECK(linkat(nameless, "", AT_FDCWD, "linked-too", AT_EMPTY_PATH) == 0 || errno == ENOENT, "linkat, AT_EMPTY_PATH (needs a capability)");
	MUST(unlink("nameless") == 0);
	CHECK(chmod(path, 0640) == 0 && fstat(nameless, &status) == 0 && (status.st_mode & 0777) == 0640 && truncate(path, 7) == 0 && fstat(nameless, &status) == 0 && status.st_size == 7, "chmod and truncate of /proc/self/fd");
	close(nameless);
	close(proc);
	close(fds);
	/* What another process has open: the same file, or an error. */
	int shared = open("file", O_RDONLY);
	snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)getpid(), shared);
	snprintf(text, sizeof text, "/proc/%d/cwd/file", (int)getpid());
	MUST(shared >= 0);
	pid_t child = fork();
	if (child == 0) {
		char got[8] = "";
		close(shared);
		if (stat(path, &status) == 0 ? status.st_ino != wanted.st_ino : errno != EIO)
			_exit(1);
		int there = open(path, O_RDONLY);
		if (there >= 0 ? read(there, got, 4) != 4 || memcmp(got, "text", 4) : errno != EIO)
			_exit(2);
		_exit(stat(text, &status) == 0 ? (status.st_ino == wanted.st_ino ? 0 : 3) : errno == EIO || errno == ENOENT ? 0 : 4);
	}
	int code = -1;
	waitpid(child, &code, 0);
	CHECK(code == 0, "what another process has open is the file, or an error (%d)", code >> 8);
	close(shared);
	close(file);
	close(sub);
}

/* What the file system does not have is refused, here and there; it never seems to have been done. */
static void refused(void)
{
	int fd = inotify_init(), code = inotify_add_watch(fd, in_dir("sub"), IN_CREATE);
	CHECK(code >= 0 || errno == EOPNOTSUPP, "inotify_add_watch works or is refused");
	code = inotify_add_watch(fd, "sub", IN_CREATE);
	CHECK(code >= 0 || errno == EOPNOTSUPP, "relative too");
	close(fd);
	fd = (int)syscall(SYS_fanotify_init, 0, O_RDONLY);
	if (fd >= 0) {
		code = (int)syscall(SYS_fanotify_mark, fd, 1, 0x20L, AT_FDCWD, in_dir("sub"));
		CHECK(code == 0 || errno == EOPNOTSUPP, "fanotify_mark works or is refused (%d)", errno);
		code = (int)syscall(SYS_fanotify_mark, fd, 1, 0x20L, AT_FDCWD, "sub");
		CHECK(code == 0 || errno == EOPNOTSUPP, "relative too (%d)", errno);
		close(fd);
	}
	code = umount2(in_dir("sub"), 0);
	CHECK(code == -1 && (errno == EINVAL || errno == EPERM), "umount2 of what is not mounted");
	CHECK(mount("none", in_dir("none"), "no-such-type", 0, NULL) == -1, "mount fails");
	code = umount("sub");
	CHECK(code == -1 && (errno == EINVAL || errno == EPERM), "umount, relative");
}

int main(int argc, char **argv)
{
	check_begin(argc, argv);
	MUST(chdir(check_dir) == 0);
	put_text("file", "text");
	MUST(mkdir("sub", 0755) == 0 && mkdir("tmp", 0755) == 0 && symlink("../file", "sub/link") == 0);
	paths();
	temporary();
	streams();
	attributes();
	magic();
	refused();
	return check_end();
}
