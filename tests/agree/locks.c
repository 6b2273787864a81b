/*
 * Counters and records that processes of several nodes change under locks: who has the lock sees what all holders before
 * it wrote, and nobody else has it.
 *
 *   locks DIR PATTERN ROUNDS KIND
 *
 * KIND is fcntl (record locks), ofd (record locks of open file descriptions), flock or lockf. Some patterns are about some of
 * these only: close_other about fcntl and lockf, fork about ofd and flock, ranges and part about all but flock.
 *
 * In each round each rank takes the lock once. By default all want it at the same time; with WEIR_TEST_TURNS=1 they take it one
 * after the other, ordered by pipes, so that it goes from node to node each time and nobody waits for it. What is true is kept in memory that all ranks share and that only the holder changes;
 * so a value that was read too early, a size, and a second holder are each found in the round that they come up in.
 * A wrong value does not spoil the rounds after it: what is written is made from the true one.
 *
 * POSIX promises this on one system. Read after sync promises it between nodes for what the lock covers, as NFS does.
 */
#include "ranks.h"
#include <signal.h>
#include <sys/file.h>

enum { LONGEST = 16384, RANGES = 8 };
/* Places in `shared->cells`. */
enum { TRUTH = 0, HOLDERS = 64, SIZE = 128, LAST_AT = 129 };

static int fd, second_fd, lock_fd, round_now;
static unsigned char buf[LONGEST];
static uint64_t state; /* Each rank's own. */

enum kind { FCNTL, OFD, FLOCK, LOCKF };
/* Of all ranks: flock's locks and the others do not see each other. */
static enum kind kind;

/* One call that takes or gives back a lock; a signal does not end it. */
static int lock_call(int on, short type, off_t start, off_t length, int waits)
{
	struct flock lock = {.l_type = type, .l_whence = SEEK_SET, .l_start = start, .l_len = length};
	int done;
	do {
		switch (kind) {
		case FCNTL:
			done = fcntl(on, waits ? F_SETLKW : F_SETLK, &lock);
			break;
		case OFD:
			done = fcntl(on, waits ? F_OFD_SETLKW : F_OFD_SETLK, &lock);
			break;
		case FLOCK:
			done = flock(on, (type == F_UNLCK ? LOCK_UN : type == F_RDLCK ? LOCK_SH : LOCK_EX) | (waits ? 0 : LOCK_NB));
			break;
		default:
			lseek(on, start, SEEK_SET);
			done = lockf(on, type == F_UNLCK ? F_ULOCK : waits ? F_LOCK : F_TLOCK, length);
		}
	} while (done < 0 && (errno == EINTR || (!waits && (errno == EAGAIN || errno == EACCES || errno == EWOULDBLOCK))));
	return done;
}

static void take(int on, short type, off_t start, off_t length)
{
	delay();
	DO(round_now, lock_call(on, type, start, length, 1));
	delay();
}

static void give(int on, off_t start, off_t length)
{
	delay();
	DO(round_now, lock_call(on, F_UNLCK, start, length, 1));
}

/* Says that this rank holds exclusive lock number `which` alone. */
static void enter(int which)
{
	uint64_t others = shared->cells[HOLDERS + which]++;
	if (others != 0)
		wrong(round_now, "lock %d: %llu others have it", which, (unsigned long long)others);
}

static void leave(int which)
{
	shared->cells[HOLDERS + which]--;
}

/* Counter number `which`, of eight bytes at `at`: it must be the true one; it is one more afterwards. */
static void count_up(int on, int which, off_t at)
{
	uint64_t truth = shared->cells[TRUTH + which], value = 0, next = truth + 1;
	enter(which);
	ssize_t done = pread(on, &value, sizeof value, at);
	if (done != (ssize_t)sizeof value && !(done == 0 && truth == 0))
		wrong(round_now, "pread of counter %d gives %zd: %s", which, done, done < 0 ? strerror(errno) : "end of file");
	else if (value != truth)
		wrong(round_now, "counter %d at byte %lld: expected %llu, got %llu", which, (long long)at, (unsigned long long)truth,
		      (unsigned long long)value);
	delay();
	if (pwrite(on, &next, sizeof next, at) != (ssize_t)sizeof next)
		wrong(round_now, "pwrite of counter %d: %s", which, strerror(errno));
	shared->cells[TRUTH + which] = next;
	leave(which);
}

/* The counter under an exclusive lock. */
static void by_lock(void)
{
	take(fd, F_WRLCK, 0, 8);
	count_up(fd, 0, 0);
	give(fd, 0, 8);
}

/* Tried until it is had, without waiting. */
static void by_trying(void)
{
	DO(round_now, lock_call(fd, F_WRLCK, 0, 8, 0));
	count_up(fd, 0, 0);
	give(fd, 0, 8);
}

static int open_again(void)
{
	int own = open(in_dir("file"), O_RDWR);
	if (own < 0)
		wrong(round_now, "open: %s", strerror(errno));
	return own;
}

/* The lock goes with close(): of any descriptor (fcntl), of the last one of the description (the others). */
static void by_close(void)
{
	int own = open_again(), copy = dup(own);
	if (kind == FCNTL)
		DO(round_now, close(copy));
	take(own, F_WRLCK, 0, 8);
	count_up(own, 0, 0);
	DO(round_now, close(own));
	if (kind != FCNTL)
		DO(round_now, close(copy));
}

/* fcntl's lock of `fd` goes when another descriptor of the file is closed. */
static void by_close_of_another(void)
{
	int other = open_again();
	take(fd, F_WRLCK, 0, 8);
	count_up(fd, 0, 0);
	DO(round_now, close(other));
}

static void child_ends(pid_t pid, int by_signal)
{
	int status = 0;
	while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
		;
	if (by_signal ? !WIFSIGNALED(status) : !WIFEXITED(status) || WEXITSTATUS(status) != 0)
		wrong(round_now, "a child ended with status 0x%x", status);
}

/* A child takes the lock, counts and exits with it. */
static void by_exit(void)
{
	pid_t pid = fork();
	if (pid == 0) {
		int own = open_again();
		take(own, F_WRLCK, 0, 8);
		count_up(own, 0, 0);
		if (round_now % 2)
			exit(0);
		_exit(0);
	}
	child_ends(pid, 0);
}

/* A child takes the lock, counts, and is killed with it. */
static void by_kill(void)
{
	int pipe_of[2];
	char token;
	DO(round_now, pipe(pipe_of));
	pid_t pid = fork();
	if (pid == 0) {
		int own = open_again();
		take(own, F_WRLCK, 0, 8);
		count_up(own, 0, 0);
		if (write(pipe_of[1], "!", 1) != 1)
			_exit(1);
		for (;;)
			pause();
	}
	close(pipe_of[1]);
	if (read(pipe_of[0], &token, 1) != 1)
		wrong(round_now, "a child has not got the lock");
	close(pipe_of[0]);
	kill(pid, SIGKILL);
	child_ends(pid, 1);
}

/* The lock of a description is the child's too: both count, and it goes with the last of them. */
static void by_fork(void)
{
	int own = open_again();
	take(own, F_WRLCK, 0, 8);
	count_up(own, 0, 0);
	pid_t pid = fork();
	if (pid == 0) {
		count_up(own, 0, 0);
		_exit(0);
	}
	if (round_now % 4 < 2) {
		DO(round_now, close(own));
		child_ends(pid, 0);
	} else {
		child_ends(pid, 0);
		count_up(own, 0, 0);
		DO(round_now, close(own));
	}
}

/* Counters of eight bytes beside each other, each under a lock of its own bytes. */
static void by_range(void)
{
	int which = (int)(next_random(&state) % RANGES);
	take(fd, F_WRLCK, which * 8, 8);
	count_up(fd, which, which * 8);
	give(fd, which * 8, 8);
}

/* A lock of all counters, given back one by one. */
static void by_part(void)
{
	take(fd, F_WRLCK, 0, 0);
	for (int which = 0; which < RANGES; which++)
		count_up(fd, which, which * 8);
	for (int which = 0; which < RANGES; which++)
		give(fd, which * 8, 8);
	give(fd, 0, 0);
	int which = (int)(next_random(&state) % RANGES);
	take(fd, F_WRLCK, which * 8, 8);
	count_up(fd, which, which * 8);
	give(fd, which * 8, 8);
}

/* The counter through another descriptor than the lock. */
static void by_another_descriptor(void)
{
	take(fd, F_WRLCK, 0, 8);
	count_up(second_fd, 0, 0);
	give(fd, 0, 8);
}

/* The lock is of bytes of the same file that nobody writes, as of SQLite. */
static void by_bytes_elsewhere(void)
{
	take(fd, F_WRLCK, (off_t)1 << 30, 1);
	count_up(fd, 0, 0);
	give(fd, (off_t)1 << 30, 1);
}

/* The lock is of another file than the counter: not a promise of read after sync. */
static void by_lock_file(void)
{
	take(lock_fd, F_WRLCK, 0, 0);
	count_up(fd, 0, 0);
	give(lock_fd, 0, 0);
}

/* The same, with fsync before the lock is given back. */
static void by_lock_file_and_fsync(void)
{
	take(lock_fd, F_WRLCK, 0, 0);
	count_up(fd, 0, 0);
	DO(round_now, fsync(fd));
	give(lock_fd, 0, 0);
}

/* The counter through stdio without a buffer. */
static void by_stdio(void)
{
	static FILE *file;
	uint64_t truth, value = 0;
	if (!file) {
		file = fopen(in_dir("file"), "r+");
		MUST(file && setvbuf(file, NULL, _IONBF, 0) == 0);
	}
	take(fileno(file), F_WRLCK, 0, 8);
	enter(0);
	truth = shared->cells[TRUTH];
	rewind(file);
	if (fread(&value, sizeof value, 1, file) != 1 && truth != 0)
		wrong(round_now, "fread: end of file");
	else if (value != truth)
		wrong(round_now, "counter: expected %llu, got %llu", (unsigned long long)truth, (unsigned long long)value);
	rewind(file);
	value = truth + 1;
	if (fwrite(&value, sizeof value, 1, file) != 1 || fflush(file) != 0)
		wrong(round_now, "fwrite: %s", strerror(errno));
	shared->cells[TRUTH] = value;
	leave(0);
	give(fileno(file), 0, 8);
}

/* A block that is all of one value, which must be the true one. */
static void check_block(void)
{
	uint64_t value, truth = shared->cells[TRUTH];
	ssize_t done = pread(fd, buf, LONGEST, 0);
	if (truth == 0)
		return;
	if (done != LONGEST) {
		wrong(round_now, "pread of the block gives %zd", done);
		return;
	}
	for (size_t i = 0; i < LONGEST; i += sizeof value) {
		memcpy(&value, buf + i, sizeof value);
		if (value != truth) {
			wrong(round_now, "byte %zu of the block: expected %llu, got %llu", i, (unsigned long long)truth,
			      (unsigned long long)value);
			return;
		}
	}
}

static void change_block(void)
{
	uint64_t next = shared->cells[TRUTH] + 1;
	enter(0);
	for (size_t i = 0; i < LONGEST; i += sizeof next)
		memcpy(buf + i, &next, sizeof next);
	if (pwrite(fd, buf, LONGEST, 0) != LONGEST)
		wrong(round_now, "pwrite of the block: %s", strerror(errno));
	shared->cells[TRUTH] = next;
	leave(0);
}

/* Three of four times a shared lock to read a block, else an exclusive one to change it. */
static void by_readers_and_writers(void)
{
	if (next_random(&state) % 4) {
		take(fd, F_RDLCK, 0, LONGEST);
		if (shared->cells[HOLDERS] != 0)
			wrong(round_now, "a shared lock while another rank has it exclusively");
		check_block();
	} else {
		take(fd, F_WRLCK, 0, LONGEST);
		check_block();
		change_block();
	}
	give(fd, 0, LONGEST);
}

/* An exclusive lock becomes a shared one: readers that get in see what its holder wrote. */
static void by_downgrade(void)
{
	if (next_random(&state) % 2) {
		take(fd, F_WRLCK, 0, LONGEST);
		change_block();
		take(fd, F_RDLCK, 0, LONGEST);
		check_block();
	} else {
		take(fd, F_RDLCK, 0, LONGEST);
		check_block();
	}
	give(fd, 0, LONGEST);
}

/* The file grows by a record under the lock: its size and the record before it are those of the last holder. */
static void by_growing(void)
{
	struct stat st;
	take(fd, F_WRLCK, 0, 0);
	enter(0);
	uint64_t size = shared->cells[SIZE], before = shared->cells[LAST_AT], number = shared->cells[TRUTH];
	size_t length = 1 + next_random(&state) % 3000;
	DO(round_now, fstat(fd, &st));
	off_t end = lseek(fd, 0, SEEK_END);
	if ((uint64_t)st.st_size != size || (uint64_t)end != size)
		wrong(round_now, "expected size %llu, got %lld from fstat, %lld from lseek", (unsigned long long)size, (long long)st.st_size,
		      (long long)end);
	ssize_t done = pread(fd, buf, size - before + 1, (off_t)before);
	if (done != (ssize_t)(size - before))
		wrong(round_now, "pread of the last record gives %zd, not %llu", done, (unsigned long long)(size - before));
	else if (pattern_differs(buf, (size_t)done, number, before) != -1)
		wrong(round_now, "record %llu at byte %llu: expected the last holder's, differs at %ld", (unsigned long long)number,
		      (unsigned long long)before, pattern_differs(buf, (size_t)done, number, before));
	if (size > 4 << 20) {
		DO(round_now, ftruncate(fd, 0));
		size = 0;
	}
	pattern_fill(buf, length, number + 1, size);
	if (next_random(&state) % 2)
		done = pwrite(fd, buf, length, (off_t)size);
	else
		done = write(second_fd, buf, length); /* O_APPEND */
	if (done != (ssize_t)length)
		wrong(round_now, "write: %s", strerror(errno));
	shared->cells[TRUTH] = number + 1;
	shared->cells[LAST_AT] = size;
	shared->cells[SIZE] = size + length;
	leave(0);
	give(fd, 0, 0);
}

/* The file is emptied and written anew under the lock, shorter or longer. */
static void by_rewriting(void)
{
	take(fd, F_WRLCK, 0, 0);
	enter(0);
	uint64_t size = shared->cells[SIZE], number = shared->cells[TRUTH];
	size_t length = 1 + next_random(&state) % (LONGEST - 1);
	ssize_t done = pread(fd, buf, LONGEST, 0);
	if (done != (ssize_t)size)
		wrong(round_now, "the file has %zd bytes, expected %llu", done, (unsigned long long)size);
	else if (pattern_differs(buf, (size_t)done, number, 0) != -1)
		wrong(round_now, "the file is not what the last holder wrote, from byte %ld on", pattern_differs(buf, (size_t)done, number, 0));
	DO(round_now, ftruncate(fd, 0));
	pattern_fill(buf, length, number + 1, 0);
	if (pwrite(fd, buf, length, 0) != (ssize_t)length)
		wrong(round_now, "pwrite: %s", strerror(errno));
	shared->cells[TRUTH] = number + 1;
	shared->cells[SIZE] = length;
	leave(0);
	give(fd, 0, 0);
}

static const struct {
	const char *name;
	void (*round)(void);
} patterns[] = {
	{"counter", by_lock}, {"try", by_trying}, {"close", by_close}, {"close_other", by_close_of_another}, {"exit", by_exit},
	{"kill", by_kill}, {"fork", by_fork}, {"ranges", by_range}, {"part", by_part}, {"other_fd", by_another_descriptor},
	{"elsewhere", by_bytes_elsewhere}, {"lock_file", by_lock_file}, {"lock_file_fsync", by_lock_file_and_fsync},
	{"stdio", by_stdio}, {"shared", by_readers_and_writers}, {"downgrade", by_downgrade}, {"grow", by_growing},
	{"rewrite", by_rewriting},
};

int main(int argc, char **argv)
{
	static const char *const kinds[] = {"fcntl", "ofd", "flock", "lockf"};
	const char *turns = getenv("WEIR_TEST_TURNS");
	int in_turn = turns && *turns == '1';
	ranks_begin(argc, argv);
	MUST(argc > 4);
	while (kind <= LOCKF && strcmp(argv[4], kinds[kind]) != 0)
		kind++;
	MUST(kind <= LOCKF);
	state = shared->seed + (uint64_t)rank;
	int flags = strcmp(pattern, "grow") == 0 ? O_APPEND : 0;
	if (rank == 0) {
		close(open(in_dir("file"), O_RDWR | O_CREAT | O_TRUNC, 0644));
		close(open(in_dir("lock"), O_RDWR | O_CREAT | O_TRUNC, 0644));
		/* Counters that are there for all. */
		int own = open_again();
		MUST(pwrite(own, buf, flags || strcmp(pattern, "rewrite") == 0 ? 0 : 8 * RANGES, 0) >= 0 && fsync(own) == 0 && close(own) == 0);
	}
	barrier();
	fd = open_again();
	second_fd = open(in_dir("file"), O_RDWR | flags);
	lock_fd = open(in_dir("lock"), O_RDWR);
	MUST(second_fd >= 0 && lock_fd >= 0);
	barrier();
	for (size_t p = 0; p < sizeof patterns / sizeof *patterns; p++) {
		if (strcmp(patterns[p].name, pattern) != 0)
			continue;
		for (round_now = 0; round_now < rounds; round_now++) {
			if (in_turn && (rank != 0 || round_now != 0))
				hear((rank + ranks - 1) % ranks);
			patterns[p].round();
			if (in_turn)
				tell((rank + 1) % ranks);
		}
		if (in_turn && rank == 0)
			hear(ranks - 1);
		barrier();
		/* What all ranks read at the end, without a lock, and after fsync of all. */
		fsync(fd);
		barrier();
		round_now = rounds - 1;
		uint64_t value = 0;
		if (strncmp(pattern, "grow", 4) != 0 && strcmp(pattern, "rewrite") != 0 && pread(fd, &value, 8, 0) == 8 &&
		    value != shared->cells[TRUTH])
			wrong(round_now, "at the end: expected %llu, got %llu", (unsigned long long)shared->cells[TRUTH], (unsigned long long)value);
		return ranks_end();
	}
	MUST(!"a pattern of that name");
}
