/*
 * What is overwritten makes room: a file of half of what the directory can hold is overwritten at random, in pieces of all
 * lengths, with fsync now and then, until ten times the room was written. No call says ENOSPC, and every byte is that of the
 * write that came last. Then: what an idle process holds and does not use starves nobody, nor does a process that writes two
 * files by turns, of which it empties one.
 * Usage: overwrite DIR LIMIT_MIB, where the directory can hold about LIMIT_MIB.
 */
#include "check.h"

#include <signal.h>

enum { MIB = 1 << 20, SECTOR = 64 };

static unsigned char buf[4 * MIB];
static uint64_t state = 88172645463325252ULL;

static uint64_t next(void)
{
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return state;
}

/* Which write a sector has its bytes of. */
static uint32_t *last;

static void fill(size_t at, size_t length, uint32_t which)
{
	for (size_t i = 0; i < length / SECTOR; i++) {
		memset(buf + i * SECTOR, (int)(which + i), SECTOR);
		memcpy(buf + i * SECTOR, &which, sizeof which);
		last[at / SECTOR + i] = which;
	}
}

static int differs(int fd, size_t size)
{
	static unsigned char back[MIB];
	for (size_t at = 0; at < size; at += MIB) {
		if (pread(fd, back, MIB, (off_t)at) != MIB)
			return 1;
		for (size_t i = 0; i < MIB; i += SECTOR) {
			size_t sector = (at + i) / SECTOR;
			uint32_t which;
			memcpy(&which, back + i, sizeof which);
			if (which != last[sector]) {
				printf("  at %zu: %u, wanted %u\n", at + i, which, last[sector]);
				return 1;
			}
		}
	}
	return 0;
}

/* Overwrites at random until `total` bytes are written; lengths below `most`. The errno that a call gave. */
static int overwrite(int fd, size_t size, unsigned long long total, size_t most, unsigned sync_each, uint32_t *which)
{
	unsigned long long done = 0;
	for (unsigned i = 1; done < total; i++) {
		size_t length = SECTOR + next() % most / SECTOR * SECTOR;
		size_t at = next() % (size - length) / SECTOR * SECTOR;
		fill(at, length, ++*which);
		for (size_t part = 0; part < length;) {
			ssize_t n = pwrite(fd, buf + part, length - part, (off_t)(at + part));
			if (n < 0) {
				printf("  after %llu MiB, %zu bytes at %zu: %s\n", done / MIB, length, at, strerror(errno));
				return errno;
			}
			part += (size_t)n;
		}
		done += length;
		if (i % sync_each == 0 && fsync(fd) != 0)
			return errno;
	}
	return 0;
}

/* A process that has written a little and sleeps; its pid, when it does. */
static pid_t idler(const char *path)
{
	int ready[2];
	char byte;
	if (pipe(ready) != 0)
		return -1;
	pid_t pid = fork();
	if (pid == 0) {
		int fd = open(path, O_WRONLY | O_CREAT, 0600);
		if (fd >= 0 && write(fd, buf, MIB) == MIB)
			(void)!write(ready[1], "!", 1);
		pause();
		_exit(0);
	}
	(void)!read(ready[0], &byte, 1);
	close(ready[0]);
	close(ready[1]);
	return pid;
}

/* Writes a scratch file and the next part of a result by turns, and empties the scratch file: until both have almost `most`
 * bytes. The errno that a call gave. */
static int write_by_turns(int which, size_t most)
{
	enum { TURN = 3 * MIB };
	int scratch = open(in_dir("scratch%d", which), O_RDWR | O_CREAT | O_TRUNC, 0600);
	int result = open(in_dir("result%d", which), O_RDWR | O_CREAT | O_TRUNC, 0600);
	if (scratch < 0 || result < 0)
		return errno;
	for (size_t done = 0; done + 2 * TURN <= most; done += TURN) {
		for (size_t at = 0; at < TURN; at += MIB)
			if (pwrite(scratch, buf, MIB, (off_t)at) != MIB)
				return ENOSPC;
		for (size_t at = 0; at < TURN; at += MIB / 4)
			if (pwrite(result, buf, MIB / 4, (off_t)(done + at)) != MIB / 4)
				return ENOSPC;
		if (ftruncate(scratch, 0) != 0)
			return errno;
	}
	return 0;
}

int main(int argc, char **argv)
{
	check_begin(argc, argv);
	size_t limit = argc > 2 ? (size_t)atoi(argv[2]) : 0;
	size_t size = limit / 2 * MIB;
	MUST(limit > 0 && limit <= 4096);
	last = calloc(size / SECTOR, sizeof *last);
	int fd = open(in_dir("file"), O_RDWR | O_CREAT | O_TRUNC, 0600);
	uint32_t which = 0;
	CHECK(fd >= 0, "open");
	int bad = 0;
	for (size_t at = 0; at < size; at += MIB) {
		fill(at, MIB, ++which);
		bad |= pwrite(fd, buf, MIB, (off_t)at) != MIB;
	}
	CHECK(!bad && !differs(fd, size), "the file is written");
	unsigned long long total = 10ULL * limit * MIB;
	CHECK(overwrite(fd, size, total / 2, 2 * MIB, 16, &which) == 0, "long writes");
	CHECK(!differs(fd, size), "the last write of each byte stands");
	CHECK(overwrite(fd, size, total * 3 / 10, 64 << 10, 64, &which) == 0, "middling ones");
	CHECK(!differs(fd, size), "the last write of each byte stands");
	CHECK(overwrite(fd, size, total / 5, 4096, 1024, &which) == 0, "short ones");
	CHECK(!differs(fd, size), "the last write of each byte stands");
	CHECK(close(fd) == 0 && unlink(in_dir("file")) == 0, "gone");

	enum { IDLERS = 8 };
	pid_t idle[IDLERS];
	for (int i = 0; i < IDLERS; i++)
		idle[i] = idler(in_dir("idle%d", i));
	/* Each may keep what its one file has reserved: a few MiB. */
	size_t most = (limit - limit / 4) * (size_t)MIB;
	fd = open(in_dir("file"), O_RDWR | O_CREAT | O_TRUNC, 0600);
	size_t at = 0;
	memset(buf, 7, MIB);
	while (at < most && write(fd, buf, MIB) == MIB)
		at += MIB;
	CHECK(at >= most, "what idle processes hold is there for others: %zu of %zu MiB", at / MIB, most / MIB);
	for (int i = 0; i < IDLERS; i++) {
		kill(idle[i], SIGKILL);
		waitpid(idle[i], NULL, 0);
	}
	CHECK(close(fd) == 0 && unlink(in_dir("file")) == 0, "gone");
	for (int i = 0; i < IDLERS; i++)
		unlink(in_dir("idle%d", i));

	enum { WRITERS = 8 };
	pid_t writers[WRITERS];
	for (int i = 0; i < WRITERS; i++) {
		writers[i] = fork();
		if (writers[i] == 0)
			_exit(write_by_turns(i, limit * MIB / 8 * 7 / WRITERS));
	}
	for (int i = 0; i < WRITERS; i++) {
		int status = -1;
		waitpid(writers[i], &status, 0);
		CHECK(status == 0, "a writer of two files by turns: status %d", status);
	}
	return check_end();
}
