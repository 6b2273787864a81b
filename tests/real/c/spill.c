/*
 * More data than the memory tier holds: four processes write MIB MiB in all, in their own and in one shared file, and other
 * processes verify every byte. Under weir the driver sets a small memory budget, so that most of it lies in the file
 * tier; the program must not notice. Usage: spill DIR MIB.
 */
#include "check.h"

enum { PROCESSES = 4, PIECE = 1000000 };

static unsigned char buf[PIECE];

static void write_part(int who, long pieces, int shared)
{
	int fd = open(shared ? in_dir("shared") : in_dir("own-%d", who), O_WRONLY | O_CREAT, 0600);
	for (long i = 0; i < pieces; i++) {
		uint64_t at = (uint64_t)(shared ? i * PROCESSES + who : i) * PIECE;
		pattern_fill(buf, PIECE, shared ? 100 : (uint64_t)who, at);
		if (pwrite(fd, buf, PIECE, (off_t)at) != PIECE)
			_exit(1);
	}
	_exit(fsync(fd) == 0 && close(fd) == 0 ? 0 : 2);
}

static void read_part(int who, long pieces, int shared)
{
	int from = (who + 1) % PROCESSES; /* what another one wrote */
	int fd = open(shared ? in_dir("shared") : in_dir("own-%d", from), O_RDONLY);
	for (long i = pieces - 1; i >= 0; i--) {
		uint64_t at = (uint64_t)(shared ? i * PROCESSES + from : i) * PIECE;
		if (pread(fd, buf, PIECE, (off_t)at) != PIECE || pattern_differs(buf, PIECE, shared ? 100 : (uint64_t)from, at) != -1) {
			printf("  process %d: piece %ld of %d is wrong\n", who, i, from);
			fflush(stdout);
			_exit(1);
		}
	}
	_exit(0);
}

static int all(void (*work)(int, long, int), long pieces, int shared)
{
	pid_t children[PROCESSES];
	int good = 0;
	fflush(stdout);
	for (int who = 0; who < PROCESSES; who++)
		if ((children[who] = fork()) == 0)
			work(who, pieces, shared);
	for (int who = 0; who < PROCESSES; who++)
		good += child_ok(children[who]);
	return good == PROCESSES;
}

int main(int argc, char **argv)
{
	check_begin(argc, argv);
	long pieces = (argc > 2 ? atol(argv[2]) : 64) * 1048576L / (2L * PROCESSES * PIECE);
	MUST(pieces > 0);
	CHECK(all(write_part, pieces, 0), "four processes write %ld pieces of 1 MB each into their own files", pieces);
	CHECK(all(write_part, pieces, 1), "and into one shared file, strided");
	CHECK(all(read_part, pieces, 0), "others read the own files");
	CHECK(all(read_part, pieces, 1), "and the shared one");
	for (int who = 0; who < PROCESSES; who++)
		MUST(unlink(in_dir("own-%d", who)) == 0);
	CHECK(all(write_part, pieces, 0) && all(read_part, pieces, 0), "deleted and written again");
	CHECK(all(write_part, pieces, 1) && all(read_part, pieces, 1), "the shared one overwritten");
	return check_end();
}
