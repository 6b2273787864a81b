/*
 * Servers are killed and come back while ranks write and read in an order that pipes make. Calls may fail with EIO or
 * ESHUTDOWN; but no call that succeeds gives wrong bytes, and no write that had returned is lost.
 *
 *   killed DIR bystander|participant ROUNDS none|fsync
 *
 * bystander: the last server is killed, where no rank is (WEIR_TEST_RANKS=3). participant: servers of ranks are killed in turn. A rank
 * whose server was killed starts itself again, as its calls would fail for ever, and goes on with its next step: what
 * it must remember is in memory that all ranks share. WEIR_TEST_WEIR is the weir binary, which knows the servers' processes.
 *
 * With `fsync`, a writer whose fsync failed repeats it, at once or when it has been started again: until then what it wrote may be
 * published at any time, also over what others have published meanwhile.
 *
 * Of bytes that a failed write should have changed, the old ones, the new ones and any mix are right until the next write there.
 */
#include "ranks.h"
#include <signal.h>

enum { FILES = 4, SPACE = 256 << 10, LONGEST = 32 << 10, NOBODY = -1, EVERY = 60, PATIENCE_S = 30 };
/* Places in `shared->cells`: of each rank, its next step; of all, calls and failures. */
enum { NEXT = 0, CALLS = 64, FAILURES = 65, KILLS = 66 };

struct step {
	int rank, file, writes;
	uint64_t at, length;
};

static struct step *steps;
static size_t steps_made, steps_applied, next_step;
static unsigned char *bytes[FILES], *unsure[FILES];
static unsigned char buf[LONGEST];
static size_t failed_writes[FILES][4096], failed_count[FILES];
static int fds[FILES], last = NOBODY, round_now, syncs;
static uint64_t state;
static char **words;

static uint64_t below(uint64_t limit)
{
	return next_random(&state) % limit;
}

/* Changes the model as all steps before this one have done, now that it is known which failed. */
static void catch_up(size_t until)
{
	for (; steps_applied < until; steps_applied++) {
		const struct step *s = &steps[steps_applied];
		if (!s->writes)
			continue;
		if (shared->failed[steps_applied]) {
			memset(unsure[s->file] + s->at, 1, s->length);
			if (failed_count[s->file] < 4096)
				failed_writes[s->file][failed_count[s->file]++] = steps_applied;
		} else {
			memset(unsure[s->file] + s->at, 0, s->length);
			fill(bytes[s->file] + s->at, s->at, s->length, steps_applied);
		}
	}
}

static int may_be(int f, uint64_t at, unsigned char got)
{
	unsigned char one;
	if (got == bytes[f][at])
		return 1;
	for (size_t i = 0; unsure[f][at] && i < failed_count[f]; i++) {
		const struct step *s = &steps[failed_writes[f][i]];
		if (at < s->at || at >= s->at + s->length)
			continue;
		fill(&one, at, 1, failed_writes[f][i]);
		if (one == got)
			return 1;
	}
	return 0;
}

/* Says of what write the bytes at `at` are. */
static const char *origin(int f, uint64_t at, const unsigned char *got, uint64_t length, size_t before)
{
	static char text[160];
	unsigned char probe[8];
	for (size_t i = before; i-- > 0;) {
		const struct step *s = &steps[i];
		uint64_t n = at - s->at < s->length ? s->length - (at - s->at) : 0;
		if (!s->writes || s->file != f || at < s->at || n == 0)
			continue;
		n = n > length ? length : n;
		n = n > sizeof probe ? sizeof probe : n;
		fill(probe, at, n, i);
		if (memcmp(probe, got, n) == 0) {
			snprintf(text, sizeof text, "step %zu, a write of rank %d%s", i, s->rank, shared->failed[i] ? " that failed" : "");
			return text;
		}
	}
	return all_bytes(got, length > 8 ? 8 : length, 0) ? "zeros" : "no write";
}

/* Waits and starts this rank again, as a new client of its server. */
static void start_again(void)
{
	const char *again = getenv("WEIR_TEST_AGAIN");
	char text[32];
	long first = again ? atol(again) : (long)time(NULL);
	if (time(NULL) - first > PATIENCE_S) {
		wrong(round_now, "its server has not come back in %d s: %s", PATIENCE_S, strerror(errno));
		_exit(5);
	}
	usleep(20000);
	snprintf(text, sizeof text, "%ld", first);
	setenv("WEIR_TEST_AGAIN", text, 1);
	execv("/proc/self/exe", words);
	_exit(4);
}

/* A call of this rank's step failed. */
static void call_failed(size_t number, const char *call)
{
	int error = errno;
	struct stat st;
	shared->cells[FAILURES]++;
	shared->failed[number] = 1;
	if (error != EIO && error != ESHUTDOWN)
		wrong(round_now, "%s: %s", call, strerror(error));
	shared->cells[NEXT + rank] = number + 1;
	if (error == ESHUTDOWN || (fstat(fds[0], &st) != 0 && errno == ESHUTDOWN))
		start_again();
}

static void make_step(int who, int f, int writes, uint64_t at, uint64_t length)
{
	size_t number = steps_made++;
	MUST(number < ROUNDS_MOST);
	steps[number] = (struct step){who, f, writes, at, length};
	/* A rank that was started again has been here. */
	int again = number < next_step;
	if (who != last) {
		if (last == rank && !again)
			tell(who);
		if (who == rank && last != NOBODY && !again)
			hear(last);
		last = who;
	}
	if (who != rank || again)
		return;
	shared->cells[NEXT + rank] = number;
	catch_up(number);
	shared->cells[CALLS]++;
	if (writes) {
		fill(buf, at, length, number);
		ssize_t done = pwrite(fds[f], buf, length, (off_t)at);
		if (done != (ssize_t)length)
			call_failed(number, "pwrite");
		for (int tries = 0; syncs && fsync(fds[f]) != 0; tries++) {
			call_failed(number, "fsync");
			if (tries == 1000) {
				wrong(round_now, "fsync has failed %d times", tries);
				break;
			}
			usleep(10000);
		}
	} else {
		ssize_t done = pread(fds[f], buf, length, (off_t)at);
		if (done < 0)
			call_failed(number, "pread");
		else if (done != (ssize_t)length)
			wrong(round_now, "pread of %llu bytes at %llu gives %zd", (unsigned long long)length, (unsigned long long)at, done);
		for (ssize_t i = 0; i < done; i++)
			if (!may_be(f, at + (uint64_t)i, buf[i])) {
				uint64_t place = at + (uint64_t)i, left = length - (uint64_t)i;
				char wanted[160];
				snprintf(wanted, sizeof wanted, "%s", origin(f, place, bytes[f] + place, left, number));
				wrong(round_now, "step %zu, file %d, byte %llu of %llu at %llu: expected %s%s, got %s", number, f,
				      (unsigned long long)place, (unsigned long long)length, (unsigned long long)at, wanted,
				      unsure[f][place] ? " or what failed since" : "", origin(f, place, buf + i, left, number));
				break;
			}
	}
	shared->cells[NEXT + rank] = number + 1;
}

/* The process of a server, or 0. */
static int server_pid(int server)
{
	char command[8400], line[65536], mark[32];
	int pid = 0;
	snprintf(command, sizeof command, "env LD_PRELOAD= WEIR_INSTANCE='%s' '%s' status --json 2> /dev/null", getenv("WEIR_TEST_INSTANCE"),
		 getenv("WEIR_TEST_WEIR"));
	FILE *said = popen(command, "r");
	if (!said)
		return 0;
	size_t length = fread(line, 1, sizeof line - 1, said);
	line[length] = 0;
	pclose(said);
	snprintf(mark, sizeof mark, ",\"rank\":%d,", server);
	for (char *at = line; (at = strstr(at, "\"pid\":"));) {
		char *end;
		long number = strtol(at + 6, &end, 10);
		if (strncmp(end, mark, strlen(mark)) == 0)
			pid = (int)number;
		at = end;
	}
	return pid;
}

/* Kills a server a moment later, while the ranks go on. */
static void kill_soon(int server)
{
	uint64_t wait_us = below(4000);
	if (rank != last || !getenv("WEIR_TEST_INSTANCE") || !getenv("WEIR_TEST_WEIR") || steps_made < next_step)
		return;
	int pid = server_pid(server);
	if (pid <= 0)
		return; /* It is not back yet. */
	shared->cells[KILLS]++;
	if (fork() == 0) {
		usleep((useconds_t)wait_us);
		kill(pid, SIGKILL);
		_exit(0);
	}
}

static void one_round(void)
{
	int f = (int)below(FILES), writer = (int)below((uint64_t)ranks), other = (writer + 1 + (int)below((uint64_t)ranks - 1)) % ranks;
	uint64_t length = 1 + below(below(2) ? 200 : LONGEST - 1), at = below(SPACE - length), part = 1 + below(length);
	make_step(writer, f, 1, at, length);
	make_step(other, f, 0, at, length);
	make_step(other, f, 1, at + below(length - part + 1), part);
	for (int r = 0; r < ranks; r++)
		make_step(r, f, 0, at, length);
	if (round_now % EVERY == EVERY / 3)
		kill_soon(strcmp(pattern, "bystander") == 0 ? SERVERS - 1 : 1 + round_now / EVERY % (SERVERS - 1));
}

int main(int argc, char **argv)
{
	words = argv;
	ranks_begin(argc, argv);
	MUST(argc > 4);
	syncs = strcmp(argv[4], "fsync") == 0;
	signal(SIGCHLD, SIG_IGN);
	state = shared->seed;
	steps = calloc(ROUNDS_MOST, sizeof *steps);
	next_step = shared->cells[NEXT + rank];
	for (int f = 0; f < FILES; f++) {
		const char *path = in_dir("file%d", f);
		bytes[f] = calloc(1, SPACE);
		unsure[f] = calloc(1, SPACE);
		if (!getenv("WEIR_TEST_AGAIN") && f % ranks == rank) {
			int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0644);
			MUST(fd >= 0 && pwrite(fd, bytes[f], SPACE, 0) == SPACE && fsync(fd) == 0 && close(fd) == 0);
		}
	}
	if (!getenv("WEIR_TEST_AGAIN"))
		barrier();
	for (int f = 0; f < FILES; f++) {
		fds[f] = open(in_dir("file%d", f), O_RDWR);
		if (fds[f] < 0 || (syncs && fsync(fds[f]) != 0))
			start_again();
	}
	unsetenv("WEIR_TEST_AGAIN");
	for (round_now = 0; round_now < rounds; round_now++)
		one_round();
	round_now = rounds - 1;
	barrier();
	if (rank == 0) {
		printf("  %s: %llu servers were killed, %llu of %llu calls failed\n", pattern, (unsigned long long)shared->cells[KILLS],
		       (unsigned long long)shared->cells[FAILURES], (unsigned long long)shared->cells[CALLS]);
		if (2 * shared->cells[FAILURES] > shared->cells[CALLS])
			wrong(round_now, "most calls failed");
		if (getenv("WEIR_TEST_INSTANCE") && rounds > EVERY && shared->cells[KILLS] == 0)
			wrong(round_now, "no server was killed: WEIR_TEST_WEIR is the weir binary");
	}
	return ranks_end();
}
