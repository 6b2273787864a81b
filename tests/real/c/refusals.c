/* Prints what calls say that are refused, or do something unusual: a line each, the same on every Linux file system. The
 * caller compares what it prints on weir with what it prints on tmpfs. */
#include "check.h"
#include <dirent.h>
#include <limits.h>
#include <linux/fs.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/sendfile.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/xattr.h>

static const char *name_of(int number)
{
	return number == 0 ? "0" : strerrorname_np(number);
}

/* What a call gave: a descriptor is one, whatever its number. */
#define SAYS(expr) \
	do { \
		errno = 0; \
		long long result_ = (long long)(expr); \
		int errno_ = errno; \
		if (result_ < 0) \
			printf("%-4d %s: %s\n", __LINE__, #expr, name_of(errno_)); \
		else \
			printf("%-4d %s: %lld\n", __LINE__, #expr, result_); \
	} while (0)
#define OPENS(...) \
	do { \
		errno = 0; \
		int fd_ = open(__VA_ARGS__); \
		int errno_ = errno; \
		printf("%-4d open(%s): %s\n", __LINE__, #__VA_ARGS__, fd_ < 0 ? name_of(errno_) : "opened"); \
		if (fd_ >= 0) \
			close(fd_); \
	} while (0)
#define MAPS(length, prot, flags, fd, at) \
	do { \
		errno = 0; \
		void *map_ = mmap(NULL, length, prot, flags, fd, at); \
		printf("%-4d mmap(%s, %s, %s, %s, %s): %s\n", __LINE__, #length, #prot, #flags, #fd, #at, \
		       map_ == MAP_FAILED ? name_of(errno) : "mapped"); \
		if (map_ != MAP_FAILED) \
			munmap(map_, length); \
	} while (0)

int main(int argc, char **argv)
{
	if (argc < 2 || chdir(argv[1]) != 0)
		return 2;
	setvbuf(stdout, NULL, _IOLBF, 0);
	umask(022);
	char bytes[8192], long_name[300], long_path[5000];
	memset(bytes, 'x', sizeof bytes);
	memset(long_name, 'n', 256);
	long_name[256] = 0;
	memset(long_path, 'a', sizeof long_path);
	for (int i = 100; i < 4999; i += 100)
		long_path[i] = '/';
	long_path[4999] = 0;
	MUST(mkdir("d", 0755) == 0 && mkdir("d/sub", 0755) == 0 && mkdir("empty", 0755) == 0);
	put_text("f", "0123456789");
	put_text("g", "other");
	put_text("d/inner", "x");
	MUST(symlink("f", "l") == 0 && symlink("none", "dangling") == 0 && symlink("loop2", "loop1") == 0 &&
	     symlink("loop1", "loop2") == 0 && symlink("d", "ld") == 0);
	int f = open("f", O_RDWR), r = open("f", O_RDONLY), w = open("f", O_WRONLY), a = open("f", O_RDWR | O_APPEND);
	int d = open("d", O_RDONLY | O_DIRECTORY), p = open("f", O_PATH), pd = open("d", O_PATH);
	int g = open("g", O_RDWR), pipes[2];
	MUST(f >= 0 && r >= 0 && w >= 0 && a >= 0 && d >= 0 && p >= 0 && pd >= 0 && g >= 0 && pipe(pipes) == 0);

	/* open */
	OPENS("none", O_RDONLY);
	OPENS("", O_RDONLY);
	OPENS("f/x", O_RDONLY);
	OPENS("f/", O_RDONLY);
	OPENS("l/", O_RDONLY);
	OPENS("d", O_WRONLY);
	OPENS("d", O_RDWR);
	OPENS("d", O_RDONLY | O_CREAT, 0644);
	OPENS("d", O_RDONLY | O_TRUNC);
	OPENS("d/", O_RDONLY | O_CREAT, 0644);
	OPENS("new/", O_RDWR | O_CREAT, 0644);
	OPENS("f", O_RDONLY | O_DIRECTORY);
	OPENS("f", O_RDWR | O_CREAT | O_EXCL, 0644);
	OPENS("l", O_RDWR | O_CREAT | O_EXCL, 0644);
	OPENS("dangling", O_RDWR | O_CREAT | O_EXCL, 0644);
	OPENS("dangling", O_RDONLY);
	OPENS("l", O_RDONLY | O_NOFOLLOW);
	OPENS("l", O_PATH | O_NOFOLLOW);
	OPENS("loop1", O_RDONLY);
	OPENS("loop1", O_RDONLY | O_CREAT, 0644);
	OPENS(long_name, O_RDONLY);
	OPENS(long_name, O_RDWR | O_CREAT, 0644);
	OPENS(long_path, O_RDONLY);
	OPENS("f", O_RDONLY | O_CREAT | O_DIRECTORY, 0644);
	OPENS("f", 3);
	OPENS("f", O_RDONLY | O_TRUNC | O_PATH);
	OPENS("f", O_RDWR | O_DIRECT);
	OPENS("f", O_RDWR | O_NOATIME);
	OPENS("f", O_RDWR | O_SYNC);
	OPENS("f", O_RDWR | O_DSYNC);
	OPENS("f", O_RDWR | O_NONBLOCK);
	OPENS("f", O_RDWR | O_ASYNC);
	OPENS("f", O_RDWR | O_NOCTTY);
	OPENS("d", O_TMPFILE | O_RDONLY, 0600);
	OPENS("f", O_TMPFILE | O_RDWR, 0600);
	SAYS(openat(f, "x", O_RDONLY));
	SAYS(openat(-1, "x", O_RDONLY));
	SAYS(openat(d, "x", O_RDONLY));
	SAYS(openat(p, "x", O_RDONLY));
	SAYS(fcntl(f, F_GETFL) & ~O_ACCMODE);
	SAYS(fcntl(a, F_GETFL));
	SAYS(fcntl(d, F_GETFL));
	SAYS(fcntl(p, F_GETFL));

	/* mkdir, mknod, rmdir, unlink */
	SAYS(mkdir("d", 0755));
	SAYS(mkdir("f", 0755));
	SAYS(mkdir("l", 0755));
	SAYS(mkdir("dangling", 0755));
	SAYS(mkdir("f/x", 0755));
	SAYS(mkdir("none/x", 0755));
	SAYS(mkdir("", 0755));
	SAYS(mkdir(".", 0755));
	SAYS(mkdir("..", 0755));
	SAYS(mkdir("d/.", 0755));
	SAYS(mkdir(long_name, 0755));
	SAYS(mkdirat(f, "x", 0755));
	SAYS(mkdirat(d, "sub", 0755));
	SAYS(mknod("f", S_IFREG | 0644, 0));
	SAYS(mknod("n", S_IFDIR | 0644, 0));
	SAYS(mknod("n", S_IFLNK | 0644, 0));
	SAYS(mknod("n", 0170000 | 0644, 0));
	SAYS(mknod("n/", S_IFREG | 0644, 0));
	SAYS(mknod("d/", S_IFREG | 0644, 0));
	SAYS(rmdir("none"));
	SAYS(rmdir("f"));
	SAYS(rmdir("l"));
	SAYS(rmdir("ld"));
	SAYS(rmdir("ld/"));
	SAYS(rmdir("d"));
	SAYS(rmdir("."));
	SAYS(rmdir(".."));
	SAYS(rmdir("d/."));
	SAYS(rmdir("d/sub/.."));
	SAYS(rmdir("f/x"));
	SAYS(rmdir(""));
	SAYS(unlink("none"));
	SAYS(unlink("d"));
	SAYS(unlink("f/x"));
	SAYS(unlink("f/"));
	SAYS(unlink("l/"));
	SAYS(unlink("dangling/"));
	SAYS(unlink("none/"));
	SAYS(unlink("."));
	SAYS(unlink(""));
	SAYS(unlinkat(AT_FDCWD, "f", 1));
	SAYS(unlinkat(AT_FDCWD, "f", AT_REMOVEDIR));
	SAYS(unlinkat(AT_FDCWD, "d", 0));
	SAYS(unlinkat(f, "x", 0));
	SAYS(unlinkat(-1, "x", 0));

	/* rename */
	SAYS(rename("none", "x"));
	SAYS(rename("f", "none/x"));
	SAYS(rename("f", "f/x"));
	SAYS(rename("f", "d"));
	SAYS(rename("d", "f"));
	SAYS(rename("d", "d/sub/x"));
	SAYS(rename("d", "d"));
	SAYS(rename("f", "f"));
	SAYS(rename("empty", "d"));
	SAYS(rename("d/sub", "d"));
	SAYS(rename("f", "x/"));
	SAYS(rename("f/", "x"));
	SAYS(rename(".", "x"));
	SAYS(rename("..", "x"));
	SAYS(rename("d/.", "x"));
	SAYS(rename("f", "."));
	SAYS(rename("f", ".."));
	SAYS(rename("empty", "d/."));
	SAYS(rename("", "x"));
	SAYS(rename("f", ""));
	SAYS(rename("f", long_name));
	SAYS(rename(long_name, "x"));
	SAYS(renameat2(AT_FDCWD, "f", AT_FDCWD, "g", RENAME_NOREPLACE));
	SAYS(renameat2(AT_FDCWD, "f", AT_FDCWD, "none", RENAME_EXCHANGE));
	SAYS(renameat2(AT_FDCWD, "f", AT_FDCWD, "g", RENAME_NOREPLACE | RENAME_EXCHANGE));
	SAYS(renameat2(AT_FDCWD, "f", AT_FDCWD, "x", 8));
	SAYS(renameat2(AT_FDCWD, "d", AT_FDCWD, "d/sub", RENAME_EXCHANGE));
	SAYS(renameat2(AT_FDCWD, "d/sub", AT_FDCWD, "d", RENAME_EXCHANGE));
	SAYS(renameat2(AT_FDCWD, "f", AT_FDCWD, "f", RENAME_NOREPLACE));
	SAYS(renameat2(AT_FDCWD, "f", AT_FDCWD, "x", RENAME_EXCHANGE | RENAME_WHITEOUT));
	SAYS(renameat(f, "x", AT_FDCWD, "y"));
	SAYS(rename("f", "/proc/x"));

	/* link, symlink, readlink */
	SAYS(link("none", "x"));
	SAYS(link("f", "g"));
	SAYS(link("d", "x"));
	SAYS(link("f", "none/x"));
	SAYS(link("f", "f/x"));
	SAYS(link("f", "x/"));
	SAYS(link("f/", "x"));
	SAYS(link("f", ""));
	SAYS(link("", "x"));
	SAYS(link("f", "dangling"));
	SAYS(link("f", long_name));
	SAYS(linkat(AT_FDCWD, "f", AT_FDCWD, "x", 1));
	SAYS(linkat(AT_FDCWD, "f", AT_FDCWD, "x", AT_SYMLINK_NOFOLLOW));
	SAYS(linkat(d, "", AT_FDCWD, "x", AT_EMPTY_PATH));
	SAYS(linkat(d, "", AT_FDCWD, "x", 0));
	SAYS(symlink("", "x"));
	SAYS(symlink("f", ""));
	SAYS(symlink("f", "f"));
	SAYS(symlink("f", "x/"));
	SAYS(symlink("f", "none/x"));
	SAYS(symlink("f", "f/x"));
	SAYS(symlink(long_path, "x"));
	SAYS(readlink("f", bytes, 10));
	SAYS(readlink("d", bytes, 10));
	SAYS(readlink("none", bytes, 10));
	SAYS(readlink("l", bytes, 0));
	SAYS(readlink("l/", bytes, 10));
	SAYS(readlink("", bytes, 10));
	SAYS(readlinkat(f, "", bytes, 10));
	SAYS(readlinkat(d, "", bytes, 10));

	/* reading and writing */
	SAYS(read(w, bytes, 1));
	SAYS(read(d, bytes, 1));
	SAYS(read(p, bytes, 1));
	SAYS(read(d, bytes, 0));
	SAYS(write(r, bytes, 1));
	SAYS(write(d, bytes, 1));
	SAYS(write(p, bytes, 1));
	SAYS(write(r, bytes, 0));
	SAYS(pread(d, bytes, 1, 0));
	SAYS(pread(f, bytes, 1, -1));
	SAYS(pread(w, bytes, 1, -1));
	SAYS(pread(p, bytes, 1, 0));
	SAYS(pread(f, bytes, 1, 1000));
	SAYS(pread(f, bytes, 1, INT64_MAX));
	SAYS(pwrite(f, bytes, 1, -1));
	SAYS(pwrite(r, bytes, 1, 0));
	SAYS(pwrite(f, bytes, 1, INT64_MAX));
	SAYS(pwrite(f, bytes, 0, INT64_MAX));
	SAYS(pwrite(d, bytes, 1, 0));
	struct iovec none = { bytes, 0 }, one = { bytes, 1 }, bad = { bytes, SIZE_MAX };
	SAYS(readv(f, &one, -1));
	SAYS(readv(f, &one, 0));
	SAYS(readv(f, &none, 1));
	SAYS(readv(f, &bad, 1));
	SAYS(readv(d, &one, 1));
	SAYS(readv(f, &one, 1025));
	SAYS(writev(f, &bad, 1));
	SAYS(writev(r, &one, 1));
	SAYS(preadv(f, &one, 1, -1));
	SAYS(pwritev(f, &one, 1, -5));
	SAYS(preadv2(f, &one, 1, 0, 0x4000));
	SAYS(preadv2(f, &one, 1, -2, 0));
	SAYS(pwritev2(r, &one, 1, 0, 0));
	SAYS(pwritev2(f, &one, 1, 0, 0x40000000));
	SAYS(preadv2(f, &one, 1, 0, RWF_NOWAIT));

	/* lseek */
	SAYS(lseek(f, -1, SEEK_SET));
	SAYS(lseek(f, -100, SEEK_CUR));
	SAYS(lseek(f, -100, SEEK_END));
	SAYS(lseek(f, 0, 99));
	SAYS(lseek(f, 0, -1));
	SAYS(lseek(f, INT64_MAX, SEEK_SET));
	SAYS(lseek(f, 1, SEEK_CUR));
	SAYS(lseek(f, INT64_MAX, SEEK_END));
	SAYS(lseek(f, 0, SEEK_SET));
	SAYS(lseek(f, 10, SEEK_DATA));
	SAYS(lseek(f, 100, SEEK_HOLE));
	SAYS(lseek(f, -1, SEEK_DATA));
	SAYS(lseek(f, -1, SEEK_HOLE));
	SAYS(lseek(f, 0, SEEK_HOLE));
	SAYS(lseek(f, 0, SEEK_SET));
	SAYS(lseek(p, 0, SEEK_SET));
	SAYS(lseek(d, -1, SEEK_SET));
	SAYS(lseek(d, 0, SEEK_SET));
	SAYS(lseek(-1, 0, SEEK_SET));

	/* sizes */
	SAYS(truncate("f", -1));
	SAYS(truncate("d", 0));
	SAYS(truncate("none", 0));
	SAYS(truncate("loop1", 0));
	SAYS(truncate("f/x", 0));
	SAYS(truncate("", 0));
	SAYS(ftruncate(r, 0));
	SAYS(ftruncate(d, 0));
	SAYS(ftruncate(p, 0));
	SAYS(ftruncate(f, -1));
	SAYS(ftruncate(-1, 0));
	SAYS(ftruncate(pipes[1], 0));
	SAYS(fallocate(f, 0, 0, 0));
	SAYS(fallocate(f, 0, -1, 1));
	SAYS(fallocate(f, 0, 0, -1));
	SAYS(fallocate(f, 0, INT64_MAX, 1));
	SAYS(fallocate(r, 0, 0, 1));
	SAYS(fallocate(d, 0, 0, 1));
	SAYS(fallocate(p, 0, 0, 1));
	SAYS(fallocate(f, FALLOC_FL_PUNCH_HOLE, 0, 1));
	SAYS(fallocate(f, FALLOC_FL_COLLAPSE_RANGE, 0, 4096));
	SAYS(fallocate(f, FALLOC_FL_INSERT_RANGE, 0, 4096));
	SAYS(fallocate(f, FALLOC_FL_UNSHARE_RANGE, 0, 4096));
	SAYS(fallocate(f, 0x4000, 0, 1));
	SAYS(fallocate(f, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_ZERO_RANGE | FALLOC_FL_KEEP_SIZE, 0, 1));
	SAYS(fallocate(pipes[1], 0, 0, 1));
	SAYS(posix_fallocate(f, 0, 0));
	SAYS(posix_fallocate(f, -1, 1));
	SAYS(posix_fallocate(r, 0, 1));
	SAYS(posix_fadvise(f, 0, 0, 99));
	SAYS(posix_fadvise(f, 0, -1, 0));
	SAYS(posix_fadvise(p, 0, 0, 0));
	SAYS(posix_fadvise(pipes[0], 0, 0, 0));
	SAYS(fsync(p));
	SAYS(fsync(d));
	SAYS(fdatasync(r));
	SAYS(fsync(-1));
	SAYS(syncfs(f));
	SAYS(syncfs(p));
	SAYS(sync_file_range(f, -1, 0, 0));
	SAYS(sync_file_range(f, 0, 0, 99));
	SAYS(sync_file_range(d, 0, 0, 0));
	SAYS(sync_file_range(p, 0, 0, 0));
	SAYS(readahead(f, 0, 100));
	SAYS(readahead(w, 0, 100));
	SAYS(readahead(d, 0, 100));

	/* attributes */
	struct timespec times[2] = { { 0, UTIME_OMIT }, { 0, 2000000000 } }, omit[2] = { { 0, UTIME_OMIT }, { 0, UTIME_OMIT } };
	SAYS(utimensat(AT_FDCWD, "f", times, 0));
	SAYS(utimensat(AT_FDCWD, "none", NULL, 0));
	SAYS(utimensat(AT_FDCWD, "none", omit, 0));
	SAYS(utimensat(AT_FDCWD, "f", omit, 0));
	SAYS(utimensat(AT_FDCWD, "f", NULL, 1));
	SAYS(utimensat(AT_FDCWD, "", NULL, 0));
	SAYS(utimensat(f, "", NULL, AT_EMPTY_PATH));
	SAYS(utimensat(AT_FDCWD, "dangling", NULL, AT_SYMLINK_NOFOLLOW));
	SAYS(futimens(p, NULL));
	SAYS(futimens(d, NULL));
	SAYS(futimens(r, NULL));
	SAYS(futimens(-1, NULL));
	SAYS(chmod("none", 0644));
	SAYS(chmod("loop1", 0644));
	SAYS(chmod("", 0644));
	SAYS(chmod("dangling", 0644));
	SAYS(fchmod(p, 0644));
	SAYS(fchmod(d, 0755));
	SAYS(fchmodat(AT_FDCWD, "l", 0644, AT_SYMLINK_NOFOLLOW));
	SAYS(fchmodat(AT_FDCWD, "f", 0644, AT_SYMLINK_NOFOLLOW));
	SAYS(fchmodat(AT_FDCWD, "f", 0644, 1));
	SAYS(fchmodat(f, "x", 0644, 0));
	SAYS(chown("none", 0, 0));
	SAYS(fchown(p, -1, -1));
	SAYS(fchownat(AT_FDCWD, "f", -1, -1, 1));
	SAYS(fchownat(f, "", -1, -1, AT_EMPTY_PATH));
	SAYS(fchownat(AT_FDCWD, "dangling", -1, -1, AT_SYMLINK_NOFOLLOW));
	SAYS(access("none", F_OK));
	SAYS(access("f", 8));
	SAYS(access("f", X_OK));
	SAYS(access("d", X_OK));
	SAYS(access("f/x", F_OK));
	SAYS(access("loop1", F_OK));
	SAYS(access("dangling", F_OK));
	SAYS(faccessat(AT_FDCWD, "dangling", F_OK, AT_SYMLINK_NOFOLLOW));
	SAYS(faccessat(AT_FDCWD, "f", F_OK, 1));
	struct stat st;
	struct statx sx;
	struct statfs sf;
	struct statvfs sv;
	SAYS(stat("none", &st));
	SAYS(stat("dangling", &st));
	SAYS(lstat("dangling", &st));
	SAYS(stat("loop1", &st));
	SAYS(stat("f/", &st));
	SAYS(stat("f/x", &st));
	SAYS(stat("", &st));
	SAYS(lstat("l/", &st));
	SAYS(stat(long_name, &st));
	SAYS(fstat(-1, &st));
	SAYS(fstat(p, &st));
	SAYS(fstatat(f, "", &st, AT_EMPTY_PATH));
	SAYS(fstatat(f, "", &st, 0));
	SAYS(fstatat(f, "x", &st, 0));
	SAYS(fstatat(AT_FDCWD, "f", &st, 1));
	SAYS(fstatat(AT_FDCWD, "f", &st, AT_NO_AUTOMOUNT));
	SAYS(statx(AT_FDCWD, "f", 1, STATX_BASIC_STATS, &sx));
	SAYS(statx(AT_FDCWD, "f", 0, 0x80000000u, &sx));
	SAYS(statx(AT_FDCWD, "f", AT_STATX_FORCE_SYNC | AT_STATX_DONT_SYNC, STATX_BASIC_STATS, &sx));
	SAYS(statx(AT_FDCWD, "none", 0, STATX_BASIC_STATS, &sx));
	SAYS(statx(AT_FDCWD, "f", 0, STATX_ALL, &sx));
	SAYS(sx.stx_mask & (STATX_BASIC_STATS | STATX_BTIME | 0x1000));
	SAYS(statx(AT_FDCWD, "f", 0, STATX_SIZE, &sx));
	SAYS(sx.stx_mask & STATX_SIZE);
	SAYS(sx.stx_mnt_id != 0);
	SAYS(sx.stx_attributes & (STATX_ATTR_APPEND | STATX_ATTR_IMMUTABLE | STATX_ATTR_MOUNT_ROOT | STATX_ATTR_VERITY));
	SAYS(statfs("none", &sf));
	SAYS(statfs("f/x", &sf));
	SAYS(statfs("f", &sf));
	SAYS(fstatfs(p, &sf));
	SAYS(fstatfs(-1, &sf));
	SAYS(sf.f_namelen);
	SAYS(statvfs("none", &sv));
	SAYS(fstatvfs(d, &sv));
	SAYS(pathconf("none", _PC_NAME_MAX));
	SAYS(pathconf("f", _PC_NAME_MAX));
	SAYS(pathconf("f", 9999));

	/* extended attributes */
	SAYS(getxattr("none", "user.a", bytes, 10));
	SAYS(getxattr("f", "user.a", bytes, 10));
	SAYS(setxattr("f", "user.a", "x", 1, 8));
	SAYS(setxattr("f", "user.a", "x", 1, XATTR_REPLACE));
	SAYS(setxattr("f", "user.a", "x", 1, XATTR_CREATE | XATTR_REPLACE));
	SAYS(setxattr("f", "user.a", "x", 65537, 0));
	SAYS(setxattr("f", "user.", "x", 1, 0));
	SAYS(setxattr("f", "user", "x", 1, 0));
	SAYS(setxattr("f", "", "x", 1, 0));
	SAYS(setxattr("f", "x", "x", 1, 0));
	SAYS(setxattr("f", long_name, "x", 1, 0));
	SAYS(removexattr("f", "user.none"));
	SAYS(removexattr("none", "user.none"));
	SAYS(lsetxattr("l", "user.a", "x", 1, 0));
	SAYS(lgetxattr("l", "user.a", bytes, 1));
	SAYS(fgetxattr(p, "user.a", bytes, 1));
	SAYS(flistxattr(p, bytes, 1));
	SAYS(fsetxattr(r, "user.b", "x", 1, 0));
	SAYS(fgetxattr(r, "user.b", bytes, 0));
	SAYS(fremovexattr(r, "user.b"));
	SAYS(listxattr("none", bytes, 10));
	SAYS(setxattr("d", "user.d", "x", 1, 0));
	SAYS(removexattr("d", "user.d"));

	/* fcntl, flock */
	SAYS(fcntl(f, 9999));
	SAYS(fcntl(-1, F_GETFD));
	SAYS(fcntl(f, F_DUPFD, -1));
	SAYS(fcntl(f, F_DUPFD, INT_MAX));
	SAYS(fcntl(p, F_SETFL, O_APPEND));
	SAYS(fcntl(p, F_GETFD));
	SAYS(fcntl(f, F_SETFL, O_NONBLOCK));
	SAYS(fcntl(f, F_GETFL) & O_NONBLOCK);
	SAYS(fcntl(f, F_SETFL, O_ASYNC));
	SAYS(fcntl(f, F_GETFL) & O_ASYNC);
	SAYS(fcntl(f, F_SETFL, 0));
	SAYS(fcntl(f, F_GETOWN));
	SAYS(fcntl(f, F_SETOWN, getpid()));
	SAYS(fcntl(f, F_GETOWN) == getpid());
	SAYS(fcntl(f, F_SETOWN, 99999999));
	struct f_owner_ex owner = { F_OWNER_PID, getpid() }, wrong = { 99, 0 };
	SAYS(fcntl(f, F_SETOWN_EX, &owner));
	SAYS(fcntl(f, F_GETOWN_EX, &owner));
	SAYS(owner.type == F_OWNER_PID && owner.pid == getpid());
	SAYS(fcntl(f, F_SETOWN_EX, &wrong));
	SAYS(fcntl(f, F_SETOWN, 0));
	SAYS(fcntl(f, F_GETOWN));
	SAYS(fcntl(f, F_SETSIG, SIGUSR1));
	SAYS(fcntl(f, F_GETSIG) == SIGUSR1);
	SAYS(fcntl(f, F_SETSIG, 9999));
	SAYS(fcntl(f, F_SETSIG, 0));
	SAYS(fcntl(p, F_SETOWN, getpid()));
	SAYS(fcntl(p, F_GETOWN));
	SAYS(fcntl(p, F_GETSIG));
	SAYS(fcntl(d, F_GETOWN));
	SAYS(fcntl(f, F_NOTIFY, DN_CREATE));
	SAYS(fcntl(f, F_GETLEASE));
	SAYS(fcntl(p, F_GETLEASE));
	SAYS(fcntl(f, F_SETLEASE, 99));
	SAYS(fcntl(d, F_SETLEASE, F_RDLCK));
	SAYS(fcntl(d, F_SETLEASE, F_UNLCK));
	SAYS(fcntl(f, F_SETLEASE, F_UNLCK));
	SAYS(fcntl(f, F_GETPIPE_SZ));
	SAYS(fcntl(f, F_SETPIPE_SZ, 4096));
	SAYS(fcntl(p, F_GETPIPE_SZ));
	SAYS(fcntl(d, F_GET_SEALS));
	uint64_t hint = 1;
	SAYS(fcntl(f, F_GET_RW_HINT, &hint));
	SAYS(hint);
	hint = 3;
	SAYS(fcntl(f, F_SET_RW_HINT, &hint));
	SAYS(fcntl(r, F_GET_RW_HINT, &hint));
	SAYS(hint);
	hint = 99;
	SAYS(fcntl(f, F_SET_RW_HINT, &hint));
	hint = 0;
	SAYS(fcntl(f, F_SET_RW_HINT, &hint));
	SAYS(fcntl(f, 1037 /* F_GET_FILE_RW_HINT, until Linux 5.17 */, &hint));
	struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_SET };
	SAYS(fcntl(r, F_SETLK, &lock));
	lock.l_type = F_RDLCK;
	SAYS(fcntl(w, F_SETLK, &lock));
	lock.l_type = 99;
	SAYS(fcntl(f, F_SETLK, &lock));
	SAYS(fcntl(f, F_GETLK, &lock));
	lock.l_type = F_RDLCK;
	lock.l_whence = 99;
	SAYS(fcntl(f, F_SETLK, &lock));
	lock.l_whence = SEEK_SET;
	lock.l_start = -1;
	SAYS(fcntl(f, F_SETLK, &lock));
	lock.l_start = 0;
	lock.l_len = -1;
	SAYS(fcntl(f, F_SETLK, &lock));
	lock.l_len = 0;
	SAYS(fcntl(p, F_SETLK, &lock));
	lock.l_pid = 1;
	SAYS(fcntl(f, F_OFD_SETLK, &lock));
	lock.l_pid = 0;
	SAYS(flock(f, 0));
	SAYS(flock(p, LOCK_EX));
	SAYS(flock(d, LOCK_EX | LOCK_NB));
	SAYS(flock(d, LOCK_UN));
	SAYS(flock(-1, LOCK_EX));
	SAYS(flock(f, LOCK_EX | LOCK_NB));
	SAYS(flock(r, LOCK_SH | LOCK_NB));
	SAYS(flock(f, LOCK_UN));

	/* mmap of what cannot be mapped */
	MAPS(0, PROT_READ, MAP_PRIVATE, f, 0);
	MAPS(4096, PROT_READ, MAP_PRIVATE, f, 100);
	MAPS(4096, PROT_READ, MAP_PRIVATE, d, 0);
	MAPS(4096, PROT_READ, MAP_PRIVATE, w, 0);
	MAPS(4096, PROT_READ, MAP_PRIVATE, p, 0);
	MAPS(4096, PROT_WRITE, MAP_SHARED, r, 0);
	MAPS(4096, PROT_READ | PROT_WRITE, MAP_PRIVATE, r, 0);
	MAPS(4096, PROT_READ, MAP_PRIVATE, f, 4096);

	/* copy_file_range, sendfile, splice */
	off_t from = 0, to = 0;
	SAYS(copy_file_range(f, NULL, g, NULL, 5, 1));
	SAYS(copy_file_range(d, NULL, g, NULL, 5, 0));
	SAYS(copy_file_range(f, NULL, d, NULL, 5, 0));
	SAYS(copy_file_range(w, NULL, g, NULL, 5, 0));
	SAYS(copy_file_range(f, NULL, r, NULL, 5, 0));
	SAYS(copy_file_range(p, NULL, g, NULL, 5, 0));
	SAYS(copy_file_range(f, NULL, p, NULL, 5, 0));
	SAYS(copy_file_range(g, NULL, a, NULL, 5, 0));
	SAYS(copy_file_range(pipes[0], NULL, g, NULL, 5, 0));
	SAYS(copy_file_range(f, NULL, pipes[1], NULL, 5, 0));
	SAYS(copy_file_range(-1, NULL, g, NULL, 5, 0));
	SAYS((from = 0, to = 2, copy_file_range(f, &from, f, &to, 5, 0)));
	SAYS((from = 0, to = 0, copy_file_range(f, &from, f, &to, 5, 0)));
	SAYS((from = 5, to = 0, copy_file_range(f, &from, r, &to, 6, 0)));
	SAYS((from = 0, to = 5, copy_file_range(r, &from, f, &to, 5, 0)));
	SAYS((from = 0, to = 4, copy_file_range(r, &from, f, &to, 0, 0)));
	SAYS((from = 100, to = 0, copy_file_range(f, &from, g, &to, 5, 0)));
	SAYS((from = -1, to = 0, copy_file_range(f, &from, g, &to, 5, 0)));
	SAYS((from = 0, to = -1, copy_file_range(f, &from, g, &to, 5, 0)));
	SAYS((from = INT64_MAX, to = 0, copy_file_range(f, &from, g, &to, 5, 0)));
	SAYS((from = 0, to = INT64_MAX - 2, copy_file_range(f, &from, g, &to, 5, 0)));
	SAYS((from = 7, to = 0, copy_file_range(f, &from, g, &to, 50, 0)));
	SAYS(from * 100 + to);
	SAYS((from = 0, to = 0, copy_file_range(f, &from, g, &to, 0, 0)));
	SAYS(lseek(f, 8, SEEK_SET));
	SAYS(lseek(g, 0, SEEK_SET));
	SAYS(copy_file_range(f, NULL, g, NULL, SIZE_MAX, 0));
	SAYS(lseek(f, 0, SEEK_CUR) * 100 + lseek(g, 0, SEEK_CUR));
	SAYS(sendfile(g, d, NULL, 5));
	SAYS(sendfile(d, f, NULL, 5));
	SAYS(sendfile(r, f, NULL, 5));
	SAYS(sendfile(g, w, NULL, 5));
	SAYS(sendfile(g, p, NULL, 5));
	SAYS(sendfile(p, g, NULL, 5));
	SAYS(sendfile(a, f, NULL, 5));
	SAYS((from = -1, sendfile(g, f, &from, 5)));
	SAYS((from = 100, sendfile(g, f, &from, 5)));
	SAYS((from = 0, sendfile(g, f, &from, 0)));
	SAYS(sendfile(-1, f, NULL, 5));

	/* directories */
	SAYS(syscall(SYS_getdents64, f, bytes, sizeof bytes));
	SAYS(syscall(SYS_getdents64, d, bytes, 1));
	SAYS(syscall(SYS_getdents64, p, bytes, sizeof bytes));
	SAYS(syscall(SYS_getdents64, pd, bytes, sizeof bytes));
	SAYS(syscall(SYS_getdents64, -1, bytes, sizeof bytes));
	SAYS(opendir("f") == NULL ? -1 : 0);
	SAYS(opendir("none") == NULL ? -1 : 0);
	SAYS(fdopendir(f) == NULL ? -1 : 0);
	SAYS(chdir("f"));
	SAYS(chdir("none"));
	SAYS(chdir("loop1"));
	SAYS(chdir(""));
	SAYS(fchdir(f));
	SAYS(fchdir(p));
	SAYS(chdir("d"));
	SAYS(chdir(".."));
	char cwd[10];
	SAYS(getcwd(cwd, 1) == NULL ? -1 : 0);
	SAYS(mkdir("gone", 0755) == 0 && chdir("gone") == 0 && rmdir("../gone") == 0);
	OPENS("x", O_RDWR | O_CREAT, 0644);
	SAYS(mkdir("x", 0755));
	SAYS(getcwd(bytes, sizeof bytes) == NULL ? -1 : 0);
	SAYS(symlink("x", "y"));
	return 0;
}
