/*
 * Overlapping writes of several processes land in the order that anything outside the file system gives them: here a pipe
 * or a word of shared memory. No sync call is made anywhere.
 *
 * `scenes` are the small cases where a writer's neighbouring writes coalesce around another's. `random_turns` passes
 * a token among processes; its holder writes, appends, truncates or reads at random, keeps a model of the file in shared
 * memory up to date, and hands the token on. Every read must equal the model, and so must the file at the end.
 *
 * Usage: order DIR [TURNS]. WEIR_TEST_SEED repeats a run.
 */
#include "check.h"
#include <sched.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/uio.h>

enum { PROCESSES = 5, ROOM = 1 << 20 };

struct shared {
	_Atomic int turn;       /* who holds the token; PROCESSES: nobody, the end */
	_Atomic int failures;
	uint64_t random;
	long turns_left;
	long size;              /* of the file, by the model */
	unsigned char model[ROOM];
};

static struct shared *shared;
static int pipes[PROCESSES][2];
static int by_pipe;

/* ---- scenes: two processes, A (the parent) and B (a child that does single steps on command) ---- */

struct step {
	char what; /* 'w' write, 't' truncate, 'a' append, 'q' quit */
	char fill;
	long at, length;
};

static int to_b[2], from_b[2];

static void do_step(int fd, const struct step *step)
{
	static char buf[1 << 17];
	memset(buf, step->fill, (size_t)step->length);
	if (step->what == 'w')
		MUST(pwrite(fd, buf, (size_t)step->length, step->at) == step->length);
	else if (step->what == 't')
		MUST(ftruncate(fd, step->at) == 0);
	else if (step->what == 'a') {
		MUST(fcntl(fd, F_SETFL, O_APPEND) == 0);
		MUST(write(fd, buf, (size_t)step->length) == step->length);
		MUST(fcntl(fd, F_SETFL, 0) == 0);
	}
}

static void process_b(const char *path)
{
	int fd = open(path, O_RDWR);
	struct step step;
	if (fd < 0)
		_exit(1);
	while (read(to_b[0], &step, sizeof step) == sizeof step && step.what != 'q') {
		do_step(fd, &step);
		if (write(from_b[1], "", 1) != 1)
			_exit(2);
	}
	_exit(0);
}

/* Plays steps such as "A w x 0 64": process, what, fill, offset, length; then compares with the model. */
static void scene(const char *title, const char *script)
{
	static int number;
	static unsigned char model[1 << 18];
	const char *path = in_dir("scene-%d", number++);
	int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600), used;
	long size = 0;
	char who, done;
	struct step step;
	MUST(fd >= 0 && pipe(to_b) == 0 && pipe(from_b) == 0);
	pid_t b = fork();
	if (b == 0)
		process_b(path);
	memset(model, 0, sizeof model);
	for (; sscanf(script, " %c %c %c %ld %ld%n", &who, &step.what, &step.fill, &step.at, &step.length, &used) == 5; script += used) {
		if (who == 'A')
			do_step(fd, &step);
		else {
			MUST(write(to_b[1], &step, sizeof step) == sizeof step);
			MUST(read(from_b[0], &done, 1) == 1);
		}
		if (step.what == 't') {
			if (step.at < size)
				memset(model + step.at, 0, (size_t)(size - step.at));
			size = step.at;
		} else {
			long at = step.what == 'a' ? size : step.at;
			memset(model + at, step.fill, (size_t)step.length);
			if (at + step.length > size)
				size = at + step.length;
		}
	}
	step.what = 'q';
	MUST(write(to_b[1], &step, sizeof step) == sizeof step);
	size_t length = 0;
	char *data = get_file(path, &length);
	long differs = -1;
	for (long i = 0; data && i < size && differs < 0 && i < (long)length; i++)
		if ((unsigned char)data[i] != model[i])
			differs = i;
	CHECK(data && (long)length == size && differs == -1, "%s (size %zu of %ld, first difference at %ld)", title, length, size, differs);
	MUST(child_ok(b));
	free(data);
	close(fd);
	for (int i = 0; i < 2; i++) {
		close(to_b[i]);
		close(from_b[i]);
	}
}

static void scenes(void)
{
	scene("A, B over it, A goes on behind: B's bytes stay", "A w a 0 64 B w b 0 64 A w a 64 64");
	scene("B over the middle of it", "A w a 0 64 B w b 16 8 A w a 64 64 A w a 128 64");
	scene("B over its end and beyond, A goes on over B's", "A w a 0 64 B w b 32 64 A w a 64 64");
	scene("B ahead of A, A comes up to it", "A w a 0 64 B w b 128 64 A w a 64 64 A w a 128 64");
	scene("B ahead of A, A stops before it", "A w a 0 64 B w b 128 64 A w a 64 64");
	scene("in turns over the same bytes", "A w a 0 64 B w b 0 64 A w c 0 64 B w d 0 64 A w e 0 64 A w e 64 64");
	scene("A rewrites its own, B in between", "A w a 0 4096 B w b 0 4096 A w c 0 100 A w c 100 100 B w d 50 100 A w c 200 100");
	scene("two coalescing writers that meet", "A w a 0 64 B w b 256 64 A w a 64 64 B w b 320 64 A w a 128 200 B w b 384 64 A w a 328 64");
	scene("backwards", "A w a 192 64 B w b 192 64 A w a 128 64 B w b 130 70 A w a 64 64 A w a 0 64");
	scene("strided A, B over a piece, A goes on",
	      "A w a 0 64 A w a 256 64 A w a 512 64 B w b 256 64 A w a 768 64 A w a 1024 64 B w c 768 10 A w a 1280 64");
	scene("strided A, B where A will come", "A w a 0 64 A w a 256 64 A w a 512 64 B w b 760 80 A w a 768 64 A w a 1024 64");
	scene("two strided writers interleave, then cross",
	      "A w a 0 64 B w b 64 64 A w a 128 64 B w b 192 64 A w a 256 64 B w b 320 64 B w c 256 64 A w d 320 64 A w a 384 64 B w b 448 64");
	scene("large pieces", "A w a 0 65536 B w b 30000 65536 A w a 65536 65536 B w b 131072 65536");
	scene("B truncates to nothing, A goes on: zeros before", "A w a 0 64 B t - 0 0 A w a 64 64");
	scene("B truncates the middle, A goes on", "A w a 0 64 A w a 64 64 B t - 32 0 A w a 128 64");
	scene("B truncates and lengthens again", "A w a 0 4096 B t - 100 0 B t - 4096 0 A w a 4096 64");
	scene("A truncates what B writes", "A w a 0 64 B w b 64 64 A t - 70 0 B w b 128 64 A w a 192 64");
	scene("appends in turns", "A a a 0 64 B a b 0 64 A a a 0 64 B a b 0 10 B a b 0 10 A a a 0 64");
	scene("append after another's truncate", "A a a 0 100 B t - 10 0 A a a 0 20 B a b 0 20");
	scene("append behind a write far out", "A a a 0 10 B w b 5000 10 A a a 0 10 A w c 4990 20");
}

/* ---- random turns ---- */

static void pass_token(int to)
{
	if (by_pipe) {
		if (write(pipes[to][1], "", 1) != 1)
			_exit(3);
	} else
		atomic_store_explicit(&shared->turn, to, memory_order_release);
}

/* 0 at the end. */
static int wait_token(int who)
{
	char byte;
	if (by_pipe)
		return read(pipes[who][0], &byte, 1) == 1 && shared->turns_left > 0;
	for (;;) {
		int turn = atomic_load_explicit(&shared->turn, memory_order_acquire);
		if (turn == who)
			return shared->turns_left > 0;
		sched_yield();
	}
}

static void check_range(int fd, long at, long length, int who)
{
	static unsigned char buf[ROOM];
	long expect = at >= shared->size ? 0 : (at + length > shared->size ? shared->size - at : length);
	ssize_t got = pread(fd, buf, (size_t)length, at);
	if (got != expect || memcmp(buf, shared->model + at, (size_t)expect)) {
		long i = 0;
		while (i < got && i < expect && buf[i] == shared->model[at + i])
			i++;
		if (atomic_fetch_add(&shared->failures, 1) < 10)
			printf("  process %d, %ld turns left: read [%ld,+%ld) gave %zd of %ld; at %ld: %d, wanted %d\n", who,
			       shared->turns_left, at, length, got, expect, at + i, i < got ? buf[i] : -1,
			       i < expect ? shared->model[at + i] : -1);
	}
}

static void put(int fd, long at, long length, uint64_t *random, int append)
{
	unsigned char *bytes = shared->model + at;
	pattern_fill(bytes, (size_t)length, next_random(random), (uint64_t)at);
	struct iovec two[2] = {{bytes, (size_t)length / 3}, {bytes + length / 3, (size_t)(length - length / 3)}};
	ssize_t done;
	if (append) {
		fcntl(fd, F_SETFL, O_APPEND);
		done = write(fd, bytes, (size_t)length);
		fcntl(fd, F_SETFL, 0);
	} else
		switch (next_random(random) % 3) {
		case 0:
			done = pwritev(fd, two, 2, at);
			break;
		case 1:
			lseek(fd, at, SEEK_SET);
			done = write(fd, bytes, (size_t)length);
			break;
		default:
			done = pwrite(fd, bytes, (size_t)length, at);
		}
	if (done != length)
		_exit(4);
	if (at + length > shared->size)
		shared->size = at + length;
}

/* One turn of the holder. `last` and `step` let it go on where it stopped, so that its writes coalesce. */
static void one_turn(int fd, int who, long last[2])
{
	uint64_t *random = &shared->random;
	for (int n = 1 + (int)(next_random(random) % 4); n > 0; n--) {
		static const long LONGEST[] = {8, 64, 512, 4096, 70000};
		long length = 1 + (long)(next_random(random) % (uint64_t)LONGEST[next_random(random) % 5]);
		unsigned what = (unsigned)(next_random(random) % 100);
		long at = (long)(next_random(random) % (ROOM - 70000));
		if (what < 35) {
			at = last[0]; /* contiguous with the last one */
			if (at + length > ROOM)
				at = 0;
		} else if (what < 50) {
			at = last[0] - last[1] + 256; /* the same length, one stride on */
			length = last[1] > 0 && last[1] < 256 ? last[1] : 64;
			if (at < 0 || at + length > ROOM)
				at = 0;
		} else if (what < 80) {
			if (at > shared->size && what < 75)
				at = shared->size / 2;
		} else if (what < 84) {
			if (shared->size + length > ROOM)
				continue;
			last[0] = shared->size + length;
			last[1] = length;
			put(fd, shared->size, length, random, 1);
			continue;
		} else if (what < 86) {
			if (ftruncate(fd, at) != 0)
				_exit(5);
			if (at < shared->size)
				memset(shared->model + at, 0, (size_t)(shared->size - at));
			shared->size = at;
			continue;
		} else {
			check_range(fd, at, length * 4 < ROOM - at ? length * 4 : length, who);
			struct stat st;
			if (fstat(fd, &st) != 0 || st.st_size != shared->size) {
				if (atomic_fetch_add(&shared->failures, 1) < 10)
					printf("  process %d: size %ld, wanted %ld\n", who, (long)st.st_size, shared->size);
			}
			continue;
		}
		put(fd, at, length, random, 0);
		last[0] = at + length;
		last[1] = length;
	}
}

static void player(int who, const char *path)
{
	int fd = open(path, O_RDWR);
	long last[2] = {0, 0};
	if (fd < 0)
		_exit(1);
	while (wait_token(who)) {
		shared->turns_left--;
		if (next_random(&shared->random) % 200 == 0) {
			/* Now and then the file is closed and opened again. */
			close(fd);
			if ((fd = open(path, O_RDWR)) < 0)
				_exit(2);
		}
		one_turn(fd, who, last);
		int next = (int)(next_random(&shared->random) % PROCESSES);
		fflush(stdout);
		pass_token(next);
	}
	check_range(fd, 0, ROOM, who);
	fflush(stdout);
	if (who + 1 < PROCESSES)
		pass_token(who + 1);
	_exit(0);
}

static void random_turns(const char *name, int pipe_mode, uint64_t seed, long turns)
{
	const char *path = in_dir("%s", name);
	pid_t children[PROCESSES];
	by_pipe = pipe_mode;
	memset(shared, 0, sizeof *shared);
	shared->random = seed;
	shared->turns_left = turns;
	shared->turn = -1;
	int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
	MUST(fd >= 0);
	fflush(stdout);
	for (int i = 0; i < PROCESSES; i++)
		MUST(pipe(pipes[i]) == 0);
	for (int i = 0; i < PROCESSES; i++)
		if ((children[i] = fork()) == 0)
			player(i, path);
	pass_token(0);
	/* Whoever gets the token after the last turn checks the whole file and hands on to the next above;
	 * those below it wait for a token that the parent gives once that one has ended. */
	int good = 0, ended[PROCESSES] = {0};
	for (int n = 0; n < PROCESSES; n++) {
		int status;
		pid_t pid = wait(&status);
		for (int i = 0; i < PROCESSES; i++)
			if (children[i] == pid)
				ended[i] = 1;
		good += WIFEXITED(status) && WEXITSTATUS(status) == 0;
		if (shared->turns_left > 0)
			continue;
		int top = ended[PROCESSES - 1];
		for (int i = 0; top && i < PROCESSES; i++)
			if (!ended[i]) {
				pass_token(i);
				break;
			}
	}
	CHECK(good == PROCESSES, "%s: %d processes took %ld turns", name, PROCESSES, turns);
	check_range(fd, 0, ROOM, -1);
	CHECK(shared->failures == 0, "%s: every read saw the latest, the end equals the replay (%d wrong)", name, shared->failures);
	for (int i = 0; i < PROCESSES; i++) {
		close(pipes[i][0]);
		close(pipes[i][1]);
	}
	close(fd);
}

int main(int argc, char **argv)
{
	long turns = argc > 2 ? atol(argv[2]) : 4000;
	check_begin(argc, argv);
	shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	MUST(shared != MAP_FAILED);
	uint64_t seed = seed_from_environment();
	scenes();
	random_turns("by-pipe", 1, seed, turns);
	random_turns("by-shared-memory", 0, seed + 1, turns);
	return check_end();
}
