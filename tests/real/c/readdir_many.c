/*
 * A directory of 100,000 entries is listed while two processes create and remove others in it. POSIX lets an
 * entry made or removed during the listing show or not; every entry that stays must show, and exactly once.
 * Then a directory grows by an entry for each one that is read: such a listing ends.
 * Usage: readdir_many DIR [COUNT]
 */
#include "check.h"
#include <dirent.h>
#include <signal.h>
#include <sys/mman.h>

enum { CHURN = 500 };

static void create_and_remove(int who, volatile int *stop, volatile int *turns)
{
	for (int turn = 0; !*stop; turn = (turn + 1) % CHURN) {
		const char *path = in_dir("many/churn-%d-%d", who, turn);
		int fd = open(path, O_WRONLY | O_CREAT | O_EXCL, 0600);
		if (fd < 0 || close(fd) != 0)
			_exit(1);
		if (turn % 2 ? unlink(path) != 0 : rename(path, in_dir("many/moved-%d-%d", who, turn)) != 0)
			_exit(2);
		if (turn % 2 == 0 && unlink(in_dir("many/moved-%d-%d", who, turn)) != 0)
			_exit(3);
		turns[who]++;
	}
	_exit(0);
}

static void list_while_it_grows(void)
{
	enum { FIRST = 1000, MOST = 20000 };
	int read = 0, made = 0;
	MUST(mkdir(in_dir("grows"), 0755) == 0);
	for (; made < FIRST; made++)
		MUST(close(creat(in_dir("grows/%d", made), 0600)) == 0);
	DIR *dir = opendir(in_dir("grows"));
	MUST(dir);
	for (; made < MOST && (errno = 0, readdir(dir)); read++, made++)
		MUST(close(creat(in_dir("grows/%d", made), 0600)) == 0);
	CHECK(errno == 0 && read >= FIRST + 2 && made < MOST, "a listing ends though the directory grows (%d of %d read)", read, made);
	rewinddir(dir);
	for (read = 0; readdir(dir);)
		read++;
	CHECK(read == made + 2, "and shows all from the beginning (%d of %d)", read, made);
	CHECK(closedir(dir) == 0, "closed");
	while (made > 0)
		MUST(unlink(in_dir("grows/%d", --made)) == 0);
	CHECK(rmdir(in_dir("grows")) == 0, "removed");
}

int main(int argc, char **argv)
{
	int count = argc > 2 ? atoi(argv[2]) : 100000;
	check_begin(argc, argv);
	volatile int *shared = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	MUST(shared != MAP_FAILED && mkdir(in_dir("many"), 0755) == 0);
	unsigned char *seen = calloc((size_t)count, 1);
	MUST(seen);
	pid_t children[2];
	for (int i = 0; i < count; i++) {
		int fd = open(in_dir("many/entry-%06d", i), O_WRONLY | O_CREAT | O_EXCL, 0600);
		MUST(fd >= 0 && close(fd) == 0);
	}
	CHECK(1, "%d files made", count);
	for (int who = 0; who < 2; who++) {
		children[who] = fork();
		if (children[who] == 0)
			create_and_remove(who, shared, shared + 1);
	}
	for (int round = 0; round < 3; round++) {
		/* Not before both have turned at least once in this round: the listing runs beside them. */
		int before[2] = {shared[1], shared[2]};
		while ((shared[1] == before[0] || shared[2] == before[1]) && waitpid(-1, NULL, WNOHANG) == 0) {
		}
		DIR *dir = opendir(in_dir("many"));
		struct dirent *entry;
		int stable = 0, foreign = 0, twice = 0, number;
		MUST(dir);
		memset(seen, 0, (size_t)count);
		while ((errno = 0, entry = readdir(dir))) {
			if (sscanf(entry->d_name, "entry-%d", &number) == 1 && number >= 0 && number < count) {
				twice += seen[number];
				stable += !seen[number];
				seen[number] = 1;
			} else if (strncmp(entry->d_name, "churn-", 6) && strncmp(entry->d_name, "moved-", 6) && entry->d_name[0] != '.')
				foreign++;
		}
		CHECK(errno == 0 && closedir(dir) == 0, "round %d: listed to the end", round);
		CHECK(stable == count, "every entry that stays shows (%d of %d)", stable, count);
		CHECK(twice == 0, "none twice (%d)", twice);
		CHECK(foreign == 0, "no name that never was (%d)", foreign);
	}
	*shared = 1;
	CHECK(child_ok(children[0]) && child_ok(children[1]), "the others created, renamed and removed without an error");
	int removed = 0;
	for (int i = 0; i < count; i++)
		removed += unlink(in_dir("many/entry-%06d", i)) == 0;
	CHECK(removed == count && rmdir(in_dir("many")) == 0, "all removed, the directory too");
	list_while_it_grows();
	return check_end();
}
