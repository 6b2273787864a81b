/*
 * The C API of libweir: `api DIR` checks it in one process, with the interposer or without (LD_PRELOAD tells);
 * `api DIR VERB PATH` does one thing, for shell/api.sh, and says what came of it.
 */
#include "check.h"
#include <pthread.h>
#include <weir.h>

static int interposed;

static const char *meaning(int code)
{
	return code < 0 ? weir_strerror(code) : "done";
}

/* Makes a file by the API alone. */
static void put(const char *path, const char *text)
{
	int fd = weir_open(path, O_WRONLY | O_CREAT | O_TRUNC, 0644);
	struct weir_io io = {NULL, fd, 0, 0, (void *)(uintptr_t)text, strlen(text), 0};
	CHECK(fd >= 0, "open %s: %s", path, meaning(fd));
	CHECK(weir_writev(&io, 1) == 0 && io.result == (ssize_t)strlen(text), "write %s", path);
	CHECK(weir_close(fd) == 0, "close %s", path);
}

static int holds(const char *path, const char *text)
{
	char room[256] = "";
	struct weir_io io = {path, -1, 0, 0, room, sizeof room - 1, 0};
	int code = weir_readv(&io, 1);
	return code == 0 && io.result == (ssize_t)strlen(text) && strcmp(room, text) == 0;
}

static void attaching(void)
{
	struct weir_stat st;
	CHECK(weir_abi() == WEIR_ABI && strlen(weir_version()) > 0, "version %s", weir_version());
	CHECK(weir_laminate(in_dir("f")) == -ENOTCONN, "not attached: %s", weir_message());
	CHECK(weir_detach() == -ENOTCONN, "nothing to detach from");
	CHECK(weir_attach("/nowhere") < 0, "no instance: %s", weir_message());
	CHECK(weir_attach(NULL) == 0, "attached by the environment");
	CHECK(weir_attach(getenv("WEIR_INSTANCE")) == 0, "and by another part of the program");
	CHECK(weir_attach("/tmp") == -EBUSY, "one instance at a time: %s", weir_message());
	CHECK(weir_detach() == 0 && weir_stat(check_dir, &st) == 0, "the other is attached still");
	CHECK(st.mode / 010000 == 4, "a directory");
}

static void lamination(void)
{
	const char *path = in_dir("laminated");
	struct weir_stat st;
	int fd;
	put(path, "text");
	CHECK(weir_is_laminated(path) == 0, "not yet");
	fd = weir_open(path, O_RDWR, 0);
	CHECK(weir_laminate(path) == -EBUSY, "open for writing: %s", weir_message());
	CHECK(weir_stat(path, &st) == 0 && st.lamination == WEIR_LAMINATION_DUE, "it is due");
	CHECK(weir_close(fd) == 0, "the writer closes it");
	CHECK(weir_laminate(path) == 0 && weir_is_laminated(path) == 1, "laminated");
	CHECK(weir_laminate(path) == 0, "and again");
	CHECK(weir_open(path, O_WRONLY, 0) == -EROFS, "read-only: %s", weir_message());
	CHECK(weir_set_visibility(path, WEIR_READ_AFTER_SYNC) == -EROFS, "for good");
	CHECK(weir_stat(path, &st) == 0 && st.size == 4 && st.lamination == WEIR_LAMINATED, "stat");
	CHECK(holds(path, "text"), "it is read");
	if (interposed) {
		CHECK_FAILS(open(path, O_WRONLY), EROFS, "open(2) for writing");
		CHECK_FAILS(truncate(path, 0), EROFS, "truncate(2)");
		CHECK(file_is(path, "text"), "read(2)");
	}
}

static void asking(void)
{
	const char *path = in_dir("asked");
	struct weir_location where[4];
	struct weir_stat st;
	put(path, "0123456789");
	CHECK(weir_sync(path) == 0, "sync");
	CHECK(weir_get_visibility(path) == WEIR_READ_AFTER_WRITE, "the default");
	CHECK(weir_set_visibility(path, WEIR_READ_AFTER_LAMINATE) == 0, "set");
	CHECK(weir_get_visibility(path) == WEIR_READ_AFTER_LAMINATE, "it is");
	CHECK(weir_set_visibility(path, 3) == -EINVAL, "no such visibility");
	CHECK(weir_stat(path, &st) == 0 && st.size == 10 && st.stored_bytes == 512, "sizes");
	CHECK(st.servers >= 1 && st.here < st.servers && st.home < st.servers, "%u servers", st.servers);
	CHECK(weir_locate(path, where, 4) == 1 && where[0].memory_bytes == 10, "bytes are on one server");
	CHECK(where[0].rank == st.here, "this one");
	CHECK(weir_locate(path, NULL, 0) == 1, "or only how many");
}

static void lists(void)
{
	char a[8] = "", b[8] = "", c[8] = "";
	const char *one = in_dir("one"), *two = in_dir("two");
	put(one, "abcdefgh");
	put(two, "ABCDEFGH");
	int fd = interposed ? open(one, O_RDWR) : weir_open(one, O_RDWR, 0);
	struct weir_io list[] = {
		{two, -1, 0, 6, a, 7, 0},
		{NULL, fd, 0, 3, b, 2, 0},
		{two, -1, 0, 0, c, 3, 0},
	};
	CHECK(weir_readv(list, 3) == 0, "a list of two files: %s", weir_message());
	CHECK(list[0].result == 2 && !strcmp(a, "GH"), "cut at the end of the file");
	CHECK(list[1].result == 2 && !strcmp(b, "de") && !strcmp(c, "ABC"), "each its own");
	list[1].fd = 1;
	CHECK(weir_readv(list, 3) == -EBADF && list[1].result == -EBADF, "%s", weir_message());
	CHECK(list[0].result == 2 && list[2].result == 3, "the others are read all the same");
	list[1].fd = fd;
	list[1].buffer = c + 1;
	CHECK(weir_readv(list, 3) == -EINVAL, "buffers that overlap");
	CHECK(weir_writev(list, 3) == 0, "may be written from: %s", weir_message());
	CHECK(holds(one, "abcBCfgh"), "and are");
	list[1].buffer = NULL;
	CHECK(weir_readv(list, 3) == -EFAULT && weir_readv(NULL, 1) == -EFAULT, "no buffer, no list");
	CHECK(weir_readv(list, SIZE_MAX) == -EINVAL, "too many");
	list[1].buffer = b;
	list[1].length = SIZE_MAX;
	CHECK(weir_readv(list, 3) == -EINVAL, "too long");
	list[1].length = 1;
	list[1].offset = UINT64_MAX;
	CHECK(weir_readv(list, 3) == -EINVAL, "too far");
	CHECK(weir_readv(NULL, 0) == 0, "an empty list");
	CHECK(weir_close(fd) == 0 && weir_close(fd) == -EBADF, "closed once");
}

static void hostile(void)
{
	static char endless[1 << 20];
	struct weir_stat st;
	memset(endless, 'x', sizeof endless - 1);
	endless[0] = '/';
	CHECK(weir_laminate(NULL) == -EFAULT && weir_stat(NULL, NULL) == -EFAULT, "%s", weir_message());
	CHECK(weir_stat(check_dir, NULL) == -EFAULT, "nowhere to put it");
	CHECK(weir_locate(in_dir("one"), NULL, 3) == -EFAULT, "nor this");
	CHECK(weir_laminate(endless) == -ENAMETOOLONG, "a long path");
	CHECK(strlen(weir_message()) < 500, "a message of reasonable length");
	CHECK(weir_laminate("") < 0 && weir_laminate(check_dir) == -EISDIR, "nothing, a directory");
	CHECK(weir_laminate(in_dir("none")) == -ENOENT, "no file");
	CHECK(weir_laminate("/etc/passwd") == -EXDEV, "not in weir: %s", weir_message());
	CHECK(weir_sync(in_dir("../../../../../../etc/passwd")) == -EXDEV, "leads out");
	CHECK(weir_stat("/proc/self/fd/0", &st) == -EXDEV, "nor this");
	CHECK(weir_open("/tmp/weir-api-made", O_CREAT | O_RDWR, 0600) == -EXDEV, "nothing is made outside");
	CHECK(access("/tmp/weir-api-made", F_OK) != 0, "really");
	CHECK(weir_open(in_dir("d"), O_PATH, 0) == -EINVAL, "a flag that means nothing here");
	CHECK(weir_close(-1) == -EBADF && weir_close(0) == -EBADF, "what is not weir's");
	CHECK(weir_strerror(-EXDEV) == weir_strerror(EXDEV) && weir_strerror(INT32_MIN), "of either sign");
}

static void *laminator(void *number)
{
	const char *kinds[] = {"/nowhere", "/etc"};
	char path[4200];
	struct weir_stat st;
	long bad = 0;
	for (int i = 0; i < 50; i++) {
		snprintf(path, sizeof path, "%s/t%d.%d", check_dir, (int)(intptr_t)number, i);
		bad += weir_attach(NULL) != 0;
		int fd = weir_open(path, O_WRONLY | O_CREAT, 0644);
		struct weir_io io = {NULL, fd, 0, 0, path, 100, 0};
		bad += weir_writev(&io, 1) != 0 || weir_close(fd) != 0;
		bad += weir_laminate(path) != 0 || weir_is_laminated(path) != 1;
		bad += weir_stat(path, &st) != 0 || st.size != 100;
		/* Messages are each thread's own. */
		const char *kind = kinds[(intptr_t)number % 2];
		bad += weir_laminate(kind) != -EXDEV || !strstr(weir_message(), kind);
		bad += weir_detach() != 0;
	}
	return (void *)(intptr_t)bad;
}

static void threads_and_children(void)
{
	pthread_t threads[4];
	intptr_t bad = 0;
	for (intptr_t i = 0; i < 4; i++)
		MUST(pthread_create(&threads[i], NULL, laminator, (void *)i) == 0);
	for (int i = 0; i < 4; i++) {
		void *one;
		pthread_join(threads[i], &one);
		bad += (intptr_t)one;
	}
	CHECK(bad == 0, "4 threads make, laminate and ask");
	const char *path = in_dir("child");
	pid_t pid = fork();
	if (pid == 0) {
		struct weir_stat st;
		int code = weir_stat(path, &st) == -ENOTCONN ? 0 : 1;
		code += weir_attach(NULL) == 0 ? 0 : 2;
		int fd = weir_open(path, O_WRONLY | O_CREAT, 0644);
		struct weir_io io = {NULL, fd, 0, 0, (void *)"child", 5, 0};
		code += weir_writev(&io, 1) == 0 && weir_close(fd) == 0 ? 0 : 4;
		code += weir_laminate(path) == 0 && weir_detach() == 0 ? 0 : 8;
		_exit(code);
	}
	CHECK(child_ok(pid), "a child attaches anew, writes, laminates");
	CHECK(weir_is_laminated(path) == 1 && holds(path, "child"), "its parent sees it");
}

static int verb(const char *verb, const char *path)
{
	struct weir_stat st;
	struct weir_location where[16];
	int code = weir_attach(NULL);
	if (code == 0 && !strcmp(verb, "laminate"))
		code = weir_laminate(path);
	else if (code == 0 && !strcmp(verb, "laminated"))
		code = weir_is_laminated(path);
	else if (code == 0 && !strcmp(verb, "sync"))
		code = weir_sync(path);
	else if (code == 0 && !strcmp(verb, "ral"))
		code = weir_set_visibility(path, WEIR_READ_AFTER_LAMINATE);
	else if (code == 0 && !strcmp(verb, "size"))
		code = weir_stat(path, &st) < 0 ? -1 : (int)st.size;
	else if (code == 0 && !strcmp(verb, "open"))
		code = weir_open(path, O_WRONLY, 0) < 0 ? -EROFS : 0;
	else if (code == 0 && !strcmp(verb, "where")) {
		int servers = weir_locate(path, where, 16);
		for (int i = 0; i < servers && i < 16; i++)
			printf("%u:%llu ", where[i].rank, (unsigned long long)where[i].memory_bytes);
		code = servers;
	} else if (code == 0)
		code = -ENOSYS;
	if (code < 0)
		printf("%s\n", weir_message());
	else
		printf("%d\n", code);
	return code < 0;
}

int main(int argc, char **argv)
{
	interposed = getenv("LD_PRELOAD") != NULL && *getenv("LD_PRELOAD") != 0;
	if (argc == 4)
		return verb(argv[2], argv[3]);
	if (interposed)
		check_begin(argc, argv);
	else
		/* The script made it. */
		snprintf(check_dir, sizeof check_dir, "%s/plain", argv[1]);
	attaching();
	lamination();
	asking();
	lists();
	hostile();
	threads_and_children();
	CHECK(weir_detach() == 0 && weir_sync(check_dir) == -ENOTCONN, "detached");
	return check_end();
}
