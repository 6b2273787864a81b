/*
 * Transfers of libweir, with the interposer or without (LD_PRELOAD tells): `transfers DIR OUTSIDE`. DIR is in weir, OUTSIDE a
 * directory of another file system, which is empty.
 */
#include "check.h"
#include <dirent.h>
#include <pthread.h>
#include <sys/mman.h>
#include <weir.h>

#define MIB (1 << 20)

static const char *outside;

/* A path in OUTSIDE; four at a time. */
static const char *out(const char *name)
{
	static char paths[4][2200];
	static int next;
	char *path = paths[next++ % 4];
	snprintf(path, sizeof paths[0], "%s/%s", outside, name);
	return path;
}

/* A file of weir, by the API alone: `length` bytes that depend on the offset, behind a hole. */
static void put(const char *path, uint64_t hole, size_t length)
{
	unsigned char *bytes = malloc(length + 1);
	for (size_t i = 0; i < length; i++)
		bytes[i] = (unsigned char)(i * 7 + i / 251);
	int fd = weir_open(path, O_WRONLY | O_CREAT | O_TRUNC, 0640);
	struct weir_io io = {NULL, fd, 0, hole, bytes, length, 0};
	MUST(fd >= 0 && weir_writev(&io, 1) == 0 && io.result == (ssize_t)length);
	MUST(weir_close(fd) == 0);
	free(bytes);
}

static int is_put(const unsigned char *bytes, size_t length)
{
	for (size_t i = 0; i < length; i++)
		if (bytes[i] != (unsigned char)(i * 7 + i / 251))
			return 0;
	return 1;
}

static int holds_outside(const char *path, uint64_t hole, size_t length)
{
	unsigned char *bytes = malloc(length + 1);
	int fd = open(path, O_RDONLY);
	ssize_t got = pread(fd, bytes, length + 1, (off_t)hole);
	int good = got == (ssize_t)length && is_put(bytes, length);
	close(fd);
	free(bytes);
	return good;
}

static int holds_inside(const char *path, size_t length)
{
	unsigned char *bytes = malloc(length + 1);
	struct weir_io io = {path, -1, 0, 0, bytes, length + 1, 0};
	int good = weir_readv(&io, 1) == 0 && io.result == (ssize_t)length && is_put(bytes, length);
	free(bytes);
	return good;
}

/* The entries of OUTSIDE, hidden ones too. */
static int entries(void)
{
	DIR *dir = opendir(outside);
	int count = -2;
	while (readdir(dir))
		count++;
	closedir(dir);
	return count;
}

static int one(const char *source, const char *destination, int mode)
{
	struct weir_transfer file = {source, destination, mode, 0};
	uint64_t transfer;
	int code = weir_transfer_start(&file, 1, &transfer);
	return code < 0 ? code : weir_transfer_wait(transfer, -1, NULL, 0);
}

static void out_and_in(void)
{
	const char *names[] = {"small", "empty", "large", "sparse"};
	size_t lengths[] = {1000, 0, 5 * MIB, 4096}, holes[] = {0, 0, 0, 64 * MIB};
	char sources[4][2200], destinations[4][2200];
	struct weir_transfer list[4];
	struct weir_transfer_result results[4];
	uint64_t transfer = 0;
	struct weir_stat in;
	struct stat st;
	for (int i = 0; i < 4; i++) {
		snprintf(sources[i], sizeof sources[i], "%s", in_dir(names[i]));
		snprintf(destinations[i], sizeof destinations[i], "%s", out(names[i]));
		put(sources[i], holes[i], lengths[i]);
		list[i] = (struct weir_transfer){sources[i], destinations[i], WEIR_TRANSFER_COPY, 0};
	}
	CHECK(weir_transfer_start(list, 4, &transfer) == 0 && transfer > 0, "started: %s", weir_message());
	CHECK(weir_transfer_wait(transfer, -1, results, 4) == 0, "all done: %s", weir_message());
	for (int i = 0; i < 4; i++) {
		uint64_t size = holes[i] + lengths[i];
		CHECK(results[i].state == WEIR_TRANSFER_DONE && results[i].error == 0, "%s is done", names[i]);
		CHECK(results[i].bytes == size && results[i].size == size, "%s: its size", names[i]);
		CHECK(holds_outside(destinations[i], holes[i], lengths[i]), "%s: its bytes", names[i]);
		CHECK(weir_stat(sources[i], &in) == 0 && stat(destinations[i], &st) == 0, "both are there");
		CHECK((st.st_mode & 07777) == 0640 && st.st_mtim.tv_sec == in.mtime_s, "mode and time");
	}
	CHECK(st.st_blocks * 512 < 32 * MIB, "holes stay holes: %lld blocks", (long long)st.st_blocks);
	CHECK(entries() == 4, "and nothing else is there");
	CHECK(weir_transfer_test(transfer, NULL, 0) == 0, "asked again");
	memset(results, 0, sizeof results);
	CHECK(weir_transfer_test(transfer, results, 1) == 0, "with room for one");
	CHECK(results[0].size == 1000 && results[1].size == 0, "the first alone");

	CHECK(one(out("large"), in_dir("back"), WEIR_TRANSFER_COPY) == 0, "into weir: %s", weir_message());
	CHECK(holds_inside(in_dir("back"), 5 * MIB), "its bytes");
	CHECK(one(in_dir("back"), in_dir("again"), WEIR_TRANSFER_COPY) == 0, "within weir: %s", weir_message());
	CHECK(holds_inside(in_dir("again"), 5 * MIB), "its bytes");
	CHECK(one(in_dir("small"), out("large"), WEIR_TRANSFER_COPY) == 0, "over another file");
	CHECK(holds_outside(out("large"), 0, 1000), "which is replaced as a whole");
	CHECK(one(in_dir("again"), out("moved"), WEIR_TRANSFER_MOVE) == 0, "moved: %s", weir_message());
	CHECK(holds_outside(out("moved"), 0, 5 * MIB), "its bytes");
	CHECK(weir_stat(in_dir("again"), &in) == -ENOENT, "its source is gone");
	CHECK(one(out("moved"), in_dir("again"), WEIR_TRANSFER_MOVE) == 0, "and moved back");
	CHECK(access(out("moved"), F_OK) != 0 && holds_inside(in_dir("again"), 5 * MIB), "as a whole");
}

static void refused(void)
{
	struct weir_transfer file = {in_dir("small"), out("x"), WEIR_TRANSFER_COPY, 0};
	struct weir_transfer_result result;
	uint64_t transfer = 77;
	int before = entries();
	CHECK(one(in_dir("none"), out("x"), 0) == -ENOENT, "no source: %s", weir_message());
	CHECK(strstr(weir_message(), "file 0") != NULL, "it is said which");
	CHECK(one(in_dir("small"), out("none/x"), 0) == -ENOENT, "no directory");
	CHECK(one(check_dir, out("x"), 0) == -EISDIR, "a directory");
	CHECK(one(in_dir("small"), outside, 0) == -EISDIR, "over a directory: %s", weir_message());
	CHECK(one(out("small"), out("x"), 0) == -EXDEV, "neither is in weir");
	CHECK(one(in_dir("../x"), out("x"), 0) == -EINVAL, "..: %s", weir_message());
	CHECK(one("", out("x"), 0) == -ENOENT, "no path");
	CHECK(one(NULL, out("x"), 0) == -EFAULT, "no address: %s", weir_message());
	CHECK(one(in_dir("small"), out("x"), 2) == -EINVAL, "no such mode");
	file.reserved = 1;
	CHECK(weir_transfer_start(&file, 1, &transfer) == -EINVAL, "what has no meaning yet");
	file.reserved = 0;
	CHECK(weir_transfer_start(NULL, 1, &transfer) == -EFAULT, "no list");
	CHECK(weir_transfer_start(&file, 0, &transfer) == -EINVAL, "an empty one");
	CHECK(weir_transfer_start(&file, SIZE_MAX, &transfer) == -EINVAL, "an endless one");
	CHECK(weir_transfer_start(&file, 1, NULL) == -EFAULT, "no room for the number");
	CHECK(weir_prefetch(NULL, 1, &transfer) == -EFAULT, "no paths");
	CHECK(weir_prefetch(&file.source, 1, &transfer) == -EXDEV, "not elevated: %s", weir_message());
	CHECK(transfer == 77, "no number is given then");
	CHECK(weir_transfer_test(77, NULL, 0) == -ESRCH, "no such transfer: %s", weir_message());
	CHECK(weir_transfer_wait(0, 0, NULL, 0) == -ESRCH && weir_transfer_cancel(~0ULL) == -ESRCH, "nor these");
	CHECK(weir_transfer_wait(0, -2, NULL, 0) == -EINVAL, "no such time");
	MUST(weir_transfer_start(&file, 1, &transfer) == 0);
	CHECK(weir_transfer_test(transfer, (void *)8, 1) == -EFAULT, "no room for results");
	CHECK(weir_transfer_wait(transfer, -1, &result, SIZE_MAX) == 0, "more room than files");
	MUST(unlink(out("x")) == 0);
	int fd = weir_open(in_dir("small"), O_WRONLY, 0);
	CHECK(one(in_dir("small"), out("x"), 0) == -EBUSY, "open for writing: %s", weir_message());
	CHECK(weir_close(fd) == 0 && one(in_dir("small"), out("small"), 0) == 0, "closed");
	CHECK(entries() == before, "nothing is left of what failed");
}

static void cancelled(void)
{
	struct weir_transfer list[8];
	struct weir_transfer_result results[8];
	char destinations[8][2200], name[32];
	uint64_t transfer;
	int before = entries(), done = 0, given_up = 0;
	put(in_dir("heavy"), 0, 48 * MIB);
	for (int i = 0; i < 8; i++) {
		snprintf(name, sizeof name, "heavy%d", i);
		snprintf(destinations[i], sizeof destinations[i], "%s", out(name));
		list[i] = (struct weir_transfer){in_dir("heavy"), destinations[i], WEIR_TRANSFER_COPY, 0};
	}
	MUST(weir_transfer_start(list, 8, &transfer) == 0);
	CHECK(weir_transfer_cancel(transfer) == 0, "cancelled: %s", weir_message());
	CHECK(weir_transfer_wait(transfer, -1, results, 8) == -ECANCELED, "its end: %s", weir_message());
	for (int i = 0; i < 8; i++) {
		int is_there = access(destinations[i], F_OK) == 0;
		done += results[i].state == WEIR_TRANSFER_DONE && is_there;
		given_up += results[i].state == WEIR_TRANSFER_CANCELLED && results[i].error == -ECANCELED && !is_there;
		unlink(destinations[i]);
	}
	CHECK(done + given_up == 8 && given_up > 0, "%d were done, %d given up", done, given_up);
	CHECK(entries() == before, "nothing is left");
	CHECK(weir_transfer_cancel(transfer) == 0, "cancelled again");
}

/* A program that ends at once. Its transfer goes on. */
static void outlived(void)
{
	uint64_t *transfer = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	pid_t pid = fork();
	if (pid == 0) {
		struct weir_transfer file = {in_dir("heavy"), out("heavy"), WEIR_TRANSFER_COPY, 0};
		int code = weir_transfer_start(&file, 1, transfer) == -ENOTCONN ? 0 : 1;
		code += weir_attach(NULL) == 0 && weir_transfer_start(&file, 1, transfer) == 0 ? 0 : 2;
		_exit(code);
	}
	CHECK(child_ok(pid), "a child attaches, starts a transfer, and ends");
	CHECK(weir_transfer_wait(*transfer, -1, NULL, 0) == 0, "its parent waits for it: %s", weir_message());
	CHECK(holds_outside(out("heavy"), 0, 48 * MIB), "its bytes");
}

static void *mover(void *number)
{
	char name[32], source[2200], destination[2200];
	intptr_t bad = 0;
	snprintf(name, sizeof name, "thread%d", (int)(intptr_t)number);
	snprintf(source, sizeof source, "%s/%s", check_dir, name);
	snprintf(destination, sizeof destination, "%s/%s", outside, name);
	for (int i = 0; i < 20; i++) {
		put(source, 0, 2000 + (size_t)i);
		bad += one(source, destination, WEIR_TRANSFER_MOVE) != 0;
		bad += !holds_outside(destination, 0, 2000 + (size_t)i);
	}
	return (void *)bad;
}

static void threads(void)
{
	pthread_t threads[4];
	intptr_t bad = 0;
	for (intptr_t i = 0; i < 4; i++)
		MUST(pthread_create(&threads[i], NULL, mover, (void *)i) == 0);
	for (int i = 0; i < 4; i++) {
		void *result;
		pthread_join(threads[i], &result);
		bad += (intptr_t)result;
	}
	CHECK(bad == 0, "4 threads move files");
}

static void relative(void)
{
	MUST(chdir(outside) == 0);
	CHECK(one(in_dir("small"), "relative", 0) == 0 && holds_outside(out("relative"), 0, 1000), "a relative path");
	CHECK(one("./relative", in_dir("from"), 0) == 0 && holds_inside(in_dir("from"), 1000), "another one");
	if (getenv("LD_PRELOAD") && *getenv("LD_PRELOAD")) {
		MUST(chdir(check_dir) == 0);
		CHECK(one("from", out("third"), 0) == 0 && holds_outside(out("third"), 0, 1000), "in weir");
	}
}

int main(int argc, char **argv)
{
	MUST(argc == 3);
	outside = argv[2];
	snprintf(check_dir, sizeof check_dir, "%s", argv[1]);
	CHECK(weir_transfer_test(1, NULL, 0) == -ENOTCONN, "not attached: %s", weir_message());
	MUST(weir_attach(NULL) == 0);
	out_and_in();
	refused();
	cancelled();
	outlived();
	threads();
	relative();
	CHECK(weir_detach() == 0, "detached");
	return check_end();
}
