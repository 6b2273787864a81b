/* Extended attributes of the user namespace: set, get, list, remove; by path, by link, by descriptor; limits; what they
 * survive. Runs as well on tmpfs (Linux 6.6) and ext4, but for the limits, which differ: they are weir's, or ext4's. */
#include "check.h"
#include <pthread.h>
#include <sys/xattr.h>

static int lists(const char *path, const char *names, size_t length)
{
	char list[4096];
	ssize_t got = listxattr(path, list, sizeof list);
	char sorted[4096] = "";
	size_t used = 0;
	/* In the order of their names: file systems have orders of their own. */
	for (int i = 'a'; i <= 'z'; i++)
		for (ssize_t at = 0; at < got; at += (ssize_t)strlen(list + at) + 1)
			if (list[at + 5] == i && strncmp(list + at, "user.", 5) == 0) {
				strcpy(sorted + used, list + at);
				used += strlen(list + at) + 1;
			}
	return used == length && memcmp(sorted, names, length) == 0;
}

static int has(const char *path, const char *name, const char *value)
{
	char got[256];
	ssize_t n = getxattr(path, name, got, sizeof got);
	return n == (ssize_t)strlen(value) && memcmp(got, value, (size_t)n) == 0;
}

static const char *shared;

static void *sets_long_values(void *argument)
{
	static const int size = 30000;
	char *value = malloc((size_t)size);
	char *got = malloc((size_t)size);
	long wrong = 0;
	memset(value, (int)(long)argument, (size_t)size);
	for (int i = 0; i < 50; i++) {
		if (setxattr(shared, "user.long", value, (size_t)size, 0) != 0 ||
		    getxattr(shared, "user.long", got, (size_t)size) != size || !all_bytes(got, (size_t)size, got[0]))
			wrong++;
	}
	free(value);
	free(got);
	return (void *)wrong;
}

int main(int argc, char **argv)
{
	check_begin(argc, argv);
	const char *file = strdup(in_dir("file")), *dir = strdup(in_dir("dir")), *link = strdup(in_dir("link"));
	char value[70000], got[70000];
	char name[300];
	memset(value, 'v', sizeof value);
	put_text(file, "text");
	MUST(mkdir(dir, 0755) == 0);
	MUST(symlink("file", link) == 0);

	/* Set, get, list. */
	CHECK(setxattr(file, "user.a", "one", 3, 0) == 0, "set by path");
	CHECK(getxattr(file, "user.a", NULL, 0) == 3, "length by size 0");
	CHECK(has(file, "user.a", "one"), "get by path");
	CHECK_FAILS(getxattr(file, "user.a", got, 2), ERANGE, "get with too little room");
	CHECK(setxattr(file, "user.a", "another", 7, XATTR_REPLACE) == 0, "XATTR_REPLACE of what is there");
	CHECK(has(file, "user.a", "another"), "has the new value");
	CHECK_FAILS(setxattr(file, "user.a", "x", 1, XATTR_CREATE), EEXIST, "XATTR_CREATE of what is there");
	CHECK_FAILS(setxattr(file, "user.b", "x", 1, XATTR_REPLACE), ENODATA, "XATTR_REPLACE of what is not");
	CHECK(setxattr(file, "user.b", "", 0, XATTR_CREATE) == 0, "an empty value");
	CHECK(getxattr(file, "user.b", got, 10) == 0, "is there");
	CHECK_FAILS(setxattr(file, "user.c", "x", 1, 8), EINVAL, "unknown flags");
	CHECK(lists(file, "user.a\0user.b", 14), "list");
	CHECK(listxattr(file, NULL, 0) >= 14, "length of the list");
	CHECK_FAILS(listxattr(file, got, 3), ERANGE, "list with too little room");

	/* By descriptor and by link. */
	int fd = open(file, O_RDONLY);
	MUST(fd >= 0);
	CHECK(fsetxattr(fd, "user.c", "three", 5, XATTR_CREATE) == 0, "set by a descriptor open for reading");
	CHECK_FAILS(fsetxattr(fd, "user.c", "three", 5, XATTR_CREATE), EEXIST, "with flags");
	CHECK(fgetxattr(fd, "user.c", got, sizeof got) == 5 && memcmp(got, "three", 5) == 0, "get by descriptor");
	CHECK(flistxattr(fd, got, sizeof got) == listxattr(file, NULL, 0), "list by descriptor");
	CHECK(has(link, "user.c", "three"), "get through a link");
	CHECK(setxattr(link, "user.d", "4", 1, 0) == 0 && has(file, "user.d", "4"), "set through a link");
	CHECK_FAILS(lsetxattr(link, "user.d", "4", 1, 0), EPERM, "set of a link itself");
	CHECK_FAILS(lgetxattr(link, "user.d", got, 10), ENODATA, "get of a link itself");
	CHECK(llistxattr(link, got, 0) == 0, "list of a link itself");
	CHECK(lgetxattr(file, "user.d", got, 10) == 1, "lgetxattr of a file");
	CHECK(fremovexattr(fd, "user.c") == 0, "remove by descriptor");
	CHECK_FAILS(fgetxattr(fd, "user.c", got, 10), ENODATA, "get of what was removed");
	CHECK_FAILS(fremovexattr(fd, "user.c"), ENODATA, "remove of what was removed");
	CHECK(removexattr(link, "user.d") == 0, "remove through a link");
	CHECK_FAILS(lremovexattr(link, "user.d"), EPERM, "remove of a link itself");
	close(fd);
	int place = open(file, O_PATH);
	CHECK_FAILS(fgetxattr(place, "user.a", got, 10), EBADF, "by an O_PATH descriptor");
	close(place);

	/* Directories. */
	CHECK(setxattr(dir, "user.a", "of a directory", 14, 0) == 0 && has(dir, "user.a", "of a directory"), "directory");
	CHECK(rmdir(dir) == 0 && mkdir(dir, 0755) == 0, "it is made anew");
	CHECK_FAILS(getxattr(dir, "user.a", got, 10), ENODATA, "without attributes");

	/* What they survive. */
	struct stat before, after;
	const char *renamed = strdup(in_dir("renamed")), *linked = strdup(in_dir("linked"));
	MUST(stat(file, &before) == 0);
	usleep(20000);
	CHECK(setxattr(file, "user.a", "kept", 4, 0) == 0, "set again");
	MUST(stat(file, &after) == 0);
	CHECK(after.st_ctim.tv_sec * 1000000000L + after.st_ctim.tv_nsec >
		      before.st_ctim.tv_sec * 1000000000L + before.st_ctim.tv_nsec,
	      "ctime is later");
	CHECK(after.st_mtim.tv_sec == before.st_mtim.tv_sec && after.st_mtim.tv_nsec == before.st_mtim.tv_nsec,
	      "mtime is as it was");
	CHECK(rename(file, renamed) == 0 && has(renamed, "user.a", "kept"), "rename");
	CHECK_FAILS(getxattr(file, "user.a", got, 10), ENOENT, "not under the old name");
	CHECK(linkat(AT_FDCWD, renamed, AT_FDCWD, linked, 0) == 0 && has(linked, "user.a", "kept"), "link");
	CHECK(setxattr(linked, "user.a", "both", 4, 0) == 0 && has(renamed, "user.a", "both"), "one inode");
	CHECK(unlink(renamed) == 0 && has(linked, "user.a", "both"), "unlink of one name");
	CHECK(rename(linked, file) == 0, "rename back");
	put_text(renamed, "other");
	CHECK(setxattr(renamed, "user.a", "new", 3, 0) == 0 && rename(renamed, file) == 0 && has(file, "user.a", "new"),
	      "rename over another");

	/* An open file without a name keeps its own. */
	fd = open(file, O_RDWR);
	MUST(unlink(file) == 0);
	CHECK(fgetxattr(fd, "user.a", got, 10) == 3, "of a file without a name");
	CHECK(fsetxattr(fd, "user.z", "z", 1, 0) == 0 && fgetxattr(fd, "user.z", got, 10) == 1, "set of it");
	close(fd);
	put_text(file, "anew");
	CHECK(lists(file, "", 0), "a new file has none");

	/* Limits. */
	memset(name, 'n', sizeof name);
	memcpy(name, "user.", 5);
	name[256] = 0;
	CHECK_FAILS(setxattr(file, name, "x", 1, 0), ERANGE, "a name of 256 bytes");
	CHECK_FAILS(getxattr(file, name, got, 10), ERANGE, "get of one");
	name[255] = 0;
	CHECK(setxattr(file, name, "x", 1, 0) == 0 && has(file, name, "x"), "a name of 255 bytes");
	CHECK(removexattr(file, name) == 0, "is removed");
	CHECK_FAILS(setxattr(file, "", "x", 1, 0), ERANGE, "no name");
	CHECK_FAILS(setxattr(file, "user.", "x", 1, 0), EINVAL, "a namespace without a name");
	CHECK_FAILS(setxattr(file, "user.big", value, 65537, 0), E2BIG, "a value of 64 KiB and one byte");
	CHECK_FAILS(setxattr(file, "nothing.a", "x", 1, 0), EOPNOTSUPP, "no namespace of this name");
	if (getenv("WEIR_INSTANCE")) {
		CHECK_FAILS(setxattr(file, "user.big", value, 65536, 0), ENOSPC, "a value that does not fit the inode");
		CHECK_FAILS(getxattr(file, "user.big", got, 10), ENODATA, "is not there");
		CHECK_FAILS(setxattr(file, "trusted.a", "x", 1, 0), EOPNOTSUPP, "trusted.*");
		CHECK_FAILS(getxattr(file, "security.selinux", got, 10), EOPNOTSUPP, "security.*");
		CHECK_FAILS(getxattr(file, "system.posix_acl_access", got, 10), EOPNOTSUPP, "access control lists");
		for (int i = 0; i < 60000; i++)
			value[i] = (char)pattern_byte(1, (uint64_t)i);
		CHECK(setxattr(file, "user.big", value, 60000, 0) == 0, "a value of 60,000 bytes");
		CHECK(getxattr(file, "user.big", got, sizeof got) == 60000 && memcmp(value, got, 60000) == 0, "is whole");
		CHECK_FAILS(setxattr(file, "user.more", value, 2000, 0), ENOSPC, "more than the inode may have");
		CHECK(removexattr(file, "user.big") == 0 && setxattr(file, "user.more", value, 2000, 0) == 0, "room again");
		shared = file;
		pthread_t threads[4];
		void *wrong = NULL;
		long failed = 0;
		MUST(removexattr(file, "user.more") == 0);
		for (long i = 0; i < 4; i++)
			pthread_create(&threads[i], NULL, sets_long_values, (void *)('a' + i));
		for (int i = 0; i < 4; i++) {
			pthread_join(threads[i], &wrong);
			failed += (long)wrong;
		}
		CHECK(failed == 0, "long values of four threads do not mix");
		CHECK(has(file, "user.weir.laminated", "0") && !lists(file, "user.weir.laminated", 20), "weir's own: unlisted");
		CHECK_FAILS(setxattr(file, "user.weir.laminated", "0", 1, 8), EINVAL, "unknown flags of weir's own");
	}

	return check_end();
}
