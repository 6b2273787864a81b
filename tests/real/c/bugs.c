/*
 * Failed assertions of weir's own, planted by WEIR_TEST_BUG in builds that check themselves: the call fails with EIO
 * and is told of on standard error, its file gives EIO from then on, and all else goes on: what was written before,
 * other files, other threads, the program. The same for calls that call the program back, that start programs and
 * that install handlers.
 *
 * For weir alone: elsewhere nothing is planted.
 */
#include "check.h"

#include <aio.h>
#include <dirent.h>
#include <dlfcn.h>
#include <fts.h>
#include <ftw.h>
#include <glob.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>

#define MARK "WEIR-TEST-BUG"
/* In a path: the assertion fails where the path is resolved. */
#define PATH_MARK "WEIR-TEST-PATH-BUG"

extern char **environ;

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

/* `expr` must be null, with EIO. */
#define CHECK_NULL(expr, ...) \
	do { \
		errno = 0; \
		CHECK((expr) == NULL && errno == EIO, __VA_ARGS__); \
	} while (0)

static int visited;

static int visit(const char *path, const struct stat *st, int kind, struct FTW *at)
{
	(void)path, (void)st, (void)kind, (void)at;
	visited++;
	return 0;
}

static int visit_plain(const char *path, const struct stat *st, int kind)
{
	return visit(path, st, kind, NULL);
}

static int every(const struct dirent *entry)
{
	(void)entry;
	visited++;
	return 1;
}

static void by_path(void)
{
	char bad[4096], pattern[4200];
	char *args[] = {bad, NULL}, *roots[] = {bad, NULL};
	struct dirent **list;
	posix_spawn_file_actions_t actions;
	glob_t found;
	FTS *walk;
	FTSENT *entry;
	FILE *stream;
	pid_t pid;
	snprintf(bad, sizeof bad, "%s", in_dir(PATH_MARK));
	snprintf(pattern, sizeof pattern, "%s/*", bad);
	CHECK_NULL(fopen(bad, "w"), "fopen");
	stream = fopen("/dev/null", "r");
	MUST(stream != NULL);
	CHECK_NULL(freopen(bad, "r", stream), "freopen");
	fclose(stream);
	CHECK_NULL(opendir(bad), "opendir");
	CHECK_FAILS(scandir(bad, &list, every, alphasort), EIO, "scandir");
	CHECK_FAILS(nftw(bad, visit, 8, FTW_PHYS), EIO, "nftw");
	CHECK_FAILS(ftw(bad, visit_plain, 8), EIO, "ftw");
	CHECK(visited == 0, "nothing was visited: %d", visited);
	walk = fts_open(roots, FTS_PHYSICAL, NULL);
	entry = walk ? fts_read(walk) : NULL;
	CHECK(entry && entry->fts_info == FTS_NS && entry->fts_errno == EIO, "fts");
	CHECK(walk && fts_close(walk) == 0, "fts_close");
	CHECK(glob(pattern, GLOB_ERR, NULL, &found) == GLOB_ABORTED, "glob");
	CHECK_FAILS(execv(bad, args), EIO, "execv");
	CHECK(posix_spawn(&pid, bad, NULL, NULL, args, environ) == EIO, "posix_spawn");
	MUST(posix_spawn_file_actions_init(&actions) == 0);
	MUST(posix_spawn_file_actions_addopen(&actions, 9, bad, O_RDONLY, 0) == 0);
	args[0] = "/bin/true";
	CHECK(posix_spawn(&pid, args[0], &actions, NULL, args, environ) == EIO, "posix_spawn that opens it");
	posix_spawn_file_actions_destroy(&actions);
}

static void by_aio(void)
{
	struct aiocb block = {0};
	const struct aiocb *const blocks[] = {&block};
	int fd = open(in_dir("aio"), O_RDWR | O_CREAT, 0644);
	MUST(fd >= 0);
	block.aio_fildes = fd;
	block.aio_buf = (void *)MARK;
	block.aio_nbytes = strlen(MARK);
	block.aio_sigevent.sigev_notify = SIGEV_NONE;
	CHECK(aio_write(&block) == 0 && aio_suspend(blocks, 1, NULL) == 0, "aio_write");
	CHECK(aio_error(&block) == EIO && aio_return(&block) == -1, "its error");
	close(fd);
}

/* The program is run once more in a child, where the assertion fails in a step of a call. */
static int in_step(const char *step, char **argv, const char *dir)
{
	pid_t child = fork();
	if (child == 0) {
		setenv("WEIR_TEST_BUG", step, 1);
		execl("/proc/self/exe", argv[0], dir, step, (char *)NULL);
		_exit(1);
	}
	return child_ok(child);
}

static void ignore(int number)
{
	(void)number;
}

static int of_a_step(const char *step)
{
	char *args[] = {"/bin/true", NULL};
	pid_t pid;
	if (!strcmp(step, "before_fork")) {
		CHECK_FAILS(system("true"), EIO, "system");
		CHECK_NULL(popen("true", "r"), "popen");
		CHECK(posix_spawn(&pid, args[0], NULL, NULL, args, environ) == EIO, "posix_spawn");
	} else if (!strcmp(step, "before_exec")) {
		CHECK_FAILS(execv(args[0], args), EIO, "execv");
		CHECK_FAILS(execvp("true", args), EIO, "execvp");
		CHECK_FAILS(execl(args[0], args[0], (char *)NULL), EIO, "execl");
		CHECK_FAILS(fexecve(0, args, environ), EIO, "fexecve");
	} else {
		struct sigaction action = {.sa_handler = ignore};
		errno = 0;
		CHECK(signal(SIGUSR1, ignore) == SIG_ERR && errno == EIO, "signal");
		CHECK_FAILS(sigaction(SIGUSR1, &action, NULL), EIO, "sigaction");
	}
	sound = open(in_dir("after"), O_RDWR | O_CREAT | O_TRUNC, 0644);
	CHECK(sound >= 0 && write(sound, block, sizeof block) == sizeof block, "files are written");
	return check_end();
}

/* The functions of weir.h that the interposer has, for a program that loads libweir.so. */
static void of_the_api(void)
{
	static char room[4096];
	int (*stat_by_api)(const char *, void *) = (int (*)(const char *, void *))dlsym(RTLD_DEFAULT, "weir_stat");
	int (*attach)(const char *) = (int (*)(const char *))dlsym(RTLD_DEFAULT, "weir_attach");
	MUST(stat_by_api && attach);
	CHECK(attach(NULL) == 0, "weir_attach");
	CHECK(stat_by_api(in_dir("WEIR-TEST-PATH-BUG"), room) == -EIO, "weir_stat");
	CHECK(stat_by_api(in_dir("sound"), room) == 0, "and of another file");
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
	if (argc == 3) {
		check_begin(2, argv);
		return of_a_step(argv[2]);
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

	text = said(by_path);
	CHECK(strstr(text, "paths/mod.rs") != NULL, "it is told: %s", text);
	by_aio();
	of_others();
	CHECK(in_step("before_fork", argv, argv[1]), "calls that fork");
	CHECK(in_step("before_exec", argv, argv[1]), "calls that start another program");
	CHECK(in_step("sigaction", argv, argv[1]), "calls that install a handler");
	of_the_api();
	return check_end();
}
