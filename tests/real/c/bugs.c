/*
 * Failed assertions of weir's own, planted by WEIR_TEST_BUG in builds that check themselves: the call fails with EIO
 * and is told of on standard error, its file gives EIO from then on, and all else goes on: what was written before,
 * other files, other threads, the program.
 *
 * For weir alone: elsewhere nothing is planted.
 */
#include "check.h"

#include <pthread.h>

#define MARK "WEIR-TEST-BUG"

static char block[4096];

/* What a call says on standard error. */
static char *said(void (*call)(void))
{
	static char text[4096];
	int ends[2], saved = dup(2);
	ssize_t got;
	MUST(pipe(ends) == 0 && saved >= 0);
	MUST(dup2(ends[1], 2) == 2);
	close(ends[1]);
	call();
	MUST(dup2(saved, 2) == 2);
	close(saved);
	got = read(ends[0], text, sizeof text - 1);
	text[got > 0 ? got : 0] = 0;
	close(ends[0]);
	return text;
}

static int broken, again, sound;

static void set_off(void)
{
	CHECK_FAILS(pwrite(broken, MARK, strlen(MARK), 1 << 20), EIO, "the call in which it fails");
}

static void set_off_by_name(void)
{
	CHECK_FAILS(mkdir(in_dir(MARK), 0755), EIO, "mkdir in which it fails");
}

static void *in_thread(void *none)
{
	for (int i = 0; i < 100; i++)
		MUST(pwrite(sound, block, sizeof block, (off_t)(i % 8) * 8192) == sizeof block);
	return none;
}

static void of_the_file(void)
{
	struct stat st;
	char one;
	CHECK_FAILS(write(broken, "x", 1), EIO, "write");
	CHECK_FAILS(pwrite(broken, "x", 1, 5), EIO, "pwrite over what is there");
	CHECK_FAILS(pread(broken, &one, 1, 0), EIO, "pread");
	CHECK_FAILS(fsync(broken), EIO, "fsync");
	CHECK_FAILS(ftruncate(broken, 0), EIO, "ftruncate");
	CHECK_FAILS(pread(again, &one, 1, 0), EIO, "another descriptor of it");
	CHECK(fstat(broken, &st) == 0 && st.st_size == 2 * sizeof block, "its size is what was written");
	CHECK(lseek(broken, 0, SEEK_SET) == 0, "lseek");
}

static void of_others(void)
{
	pthread_t thread;
	char back[sizeof block];
	FILE *stream;
	pid_t child;
	MUST(pthread_create(&thread, NULL, in_thread, NULL) == 0);
	CHECK(write(sound, block, sizeof block) == sizeof block, "another file is written");
	CHECK(pread(sound, back, sizeof back, 0) == sizeof back && !memcmp(back, block, sizeof back), "and read");
	MUST(pthread_join(thread, NULL) == 0);
	CHECK(mkdir(in_dir("directory"), 0755) == 0 && rmdir(in_dir("directory")) == 0, "a directory is made");
	stream = fopen(in_dir("stream"), "w");
	CHECK(stream && fputs("text", stream) >= 0 && fclose(stream) == 0, "a stream is written");
	CHECK(file_is(in_dir("stream"), "text"), "and read");
	child = fork();
	if (child == 0)
		_exit(pread(sound, back, sizeof back, 0) != sizeof back);
	CHECK(child_ok(child), "a child goes on");
}

int main(int argc, char **argv)
{
	const char *text;
	char *back;
	size_t length;
	if (!getenv("WEIR_TEST_BUG")) {
		setenv("WEIR_TEST_BUG", "1", 1);
		execv("/proc/self/exe", argv);
		MUST(!"execv");
	}
	check_begin(argc, argv);
	pattern_fill(block, sizeof block, 1, 0);
	broken = open(in_dir("broken"), O_RDWR | O_CREAT | O_TRUNC, 0644);
	again = open(in_dir("broken"), O_RDONLY);
	sound = open(in_dir("sound"), O_RDWR | O_CREAT | O_TRUNC, 0644);
	MUST(broken >= 0 && again >= 0 && sound >= 0);
	MUST(write(broken, block, sizeof block) == sizeof block);
	MUST(write(broken, block, sizeof block) == sizeof block);
	MUST(write(sound, block, sizeof block) == sizeof block);

	text = said(set_off);
	CHECK(strstr(text, "weir: bug: ") && strstr(text, "stream.rs") && strstr(text, "planted for a test"),
	      "it is told: %s", text);
	of_the_file();
	of_others();
	CHECK_FAILS(close(again) + close(broken), EIO, "the last close says so");
	back = get_file(in_dir("broken"), &length);
	CHECK(back && length == 2 * sizeof block && !memcmp(back, block, sizeof block)
		      && !memcmp(back + sizeof block, block, sizeof block),
	      "what was written before is there");
	free(back);
	broken = open(in_dir("broken"), O_RDWR);
	CHECK(broken >= 0 && pwrite(broken, "new", 3, 0) == 3 && close(broken) == 0, "opened again, it is as others");

	text = said(set_off_by_name);
	CHECK(strstr(text, "names.rs") != NULL, "it is told: %s", text);
	of_others();
	return check_end();
}
