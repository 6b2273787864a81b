/*
 * Writes and reads of several nodes whose order comes from pipes: each read must give exactly the bytes and each size the
 * length that this order makes.
 *
 *   order DIR PATTERN ROUNDS PUBLISH
 *
 * PUBLISH is what a writer does before it lets others go on: none (raw), fsync, close (the file is open for one call
 * only) or osync (the descriptor has O_SYNC). With the last three, read after sync (ras) promises the same bytes.
 *
 * All ranks draw the same steps from one seed and keep a model of each file in memory. Of a step, the rank that it belongs to makes
 * the call and compares; the others only change their model. A token passes from the rank of one step to that of the next.
 * Between `together` and `in_turn` the steps of all ranks run at the same time and must not share bytes.
 */
#include "ranks.h"

enum { FILES = 4, SPACE = 4 << 20, LONGEST = 1 << 20, NOBODY = -1 };
enum publish { NONE, FSYNC, CLOSE, OSYNC };

struct file {
	char path[4096];
	int fd, append_fd;
	uint64_t size;
	unsigned char *bytes;
};

/* A write that was made: what wrong bytes are looked for in. */
struct write {
	int file, rank, round;
	uint64_t at, length;
};

static struct file files[FILES];
static struct write *writes;
static size_t writes_made, writes_room;
static enum publish publish;
static uint64_t state;
static int round_now, last = NOBODY, parallel;
static unsigned char buf[4 * LONGEST], wanted[4 * LONGEST];

/* Random choices: all ranks make the same. */
static uint64_t below(uint64_t limit)
{
	return next_random(&state) % limit;
}

/* 1 to `most`, short ones as likely as long ones. */
static size_t some_length(size_t most)
{
	int bits = 1;
	while ((1UL << bits) <= most)
		bits++;
	size_t length = 1 + below(1UL << below((uint64_t)bits));
	return length > most ? most : length;
}

/* `count` different ranks. */
static void some_ranks(int *who, int count)
{
	int all[RANKS_MOST];
	for (int r = 0; r < ranks; r++)
		all[r] = r;
	for (int i = 0; i < count; i++) {
		int j = i + (int)below((uint64_t)(ranks - i)), one = all[j];
		all[j] = all[i];
		who[i] = all[i] = one;
	}
}

static uint64_t note_write(int who, int f, uint64_t at, uint64_t length)
{
	if (writes_made == writes_room) {
		writes_room = 2 * writes_room + 1024;
		writes = realloc(writes, writes_room * sizeof *writes);
		MUST(writes);
	}
	writes[writes_made] = (struct write){f, who, round_now, at, length};
	return writes_made++;
}

/* Says what the bytes at `at` are: the latest write that they may be of. */
static const char *origin(int f, uint64_t at, const unsigned char *bytes, uint64_t length)
{
	static char text[2][160];
	static int next;
	char *to = text[next++ % 2];
	unsigned char probe[16];
	if (length > sizeof probe)
		length = sizeof probe;
	if (all_bytes(bytes, length, 0))
		return "zeros";
	for (size_t i = writes_made; i-- > 0;) {
		const struct write *w = &writes[i];
		uint64_t n = at - w->at < w->length ? w->length - (at - w->at) : 0;
		if (w->file != f || at < w->at || n == 0)
			continue;
		if (n > length)
			n = length;
		fill(probe, at, n, i);
		if (memcmp(probe, bytes, n) == 0) {
			snprintf(to, 160, "write %zu of rank %d in round %d (%llu bytes at %llu)", i, w->rank, w->round,
				 (unsigned long long)w->length, (unsigned long long)w->at);
			return to;
		}
	}
	snprintf(to, 160, "bytes of no write (0x%02x)", bytes[0]);
	return to;
}

static void compare(int f, uint64_t at, const unsigned char *got, const unsigned char *want, uint64_t length)
{
	uint64_t i = 0, end;
	if (memcmp(got, want, length) == 0)
		return;
	while (got[i] == want[i])
		i++;
	for (end = i + 1; end < length && got[end] != want[end]; end++)
		;
	wrong(round_now, "file %d, byte %llu (and %llu more of %llu): expected %s, got %s", f, (unsigned long long)(at + i),
	      (unsigned long long)(end - i - 1), (unsigned long long)length, origin(f, at + i, want + i, length - i),
	      origin(f, at + i, got + i, length - i));
}

/* Whether the next step is this rank's; waits for the step before it. */
static int mine(int who)
{
	if (!parallel && who != last) {
		if (last == rank)
			tell(who);
		if (who == rank && last != NOBODY)
			hear(last);
		last = who;
	}
	return who == rank;
}

/* From here to `in_turn`, steps of all ranks run at the same time. */
static void together(void)
{
	barrier();
	parallel = 1;
}

static void in_turn(void)
{
	barrier();
	parallel = 0;
	last = NOBODY;
}

static int open_file(int f, int flags)
{
	int fd = open(files[f].path, flags | (publish == OSYNC ? O_SYNC : 0), 0644);
	if (fd < 0)
		wrong(round_now, "open: %s", strerror(errno));
	return fd;
}

static int begin_call(int f, int appends)
{
	if (publish == CLOSE)
		return open_file(f, O_RDWR | (appends ? O_APPEND : 0));
	return appends ? files[f].append_fd : files[f].fd;
}

static void end_call(int fd, int wrote)
{
	if (publish == CLOSE)
		DO(round_now, close(fd));
	else if (publish == FSYNC && wrote)
		DO(round_now, fsync(fd));
}

static void model_resize(int f, uint64_t size)
{
	if (size < files[f].size)
		memset(files[f].bytes + size, 0, files[f].size - size);
	files[f].size = size;
}

static void model_write(int f, uint64_t at, uint64_t length, uint64_t number)
{
	MUST(at + length <= SPACE);
	fill(files[f].bytes + at, at, length, number);
	if (files[f].size < at + length)
		files[f].size = at + length;
}

/* The steps. */

static void put(int who, int f, uint64_t at, uint64_t length)
{
	int turn = mine(who);
	uint64_t number = note_write(who, f, at, length);
	model_write(f, at, length, number);
	if (!turn)
		return;
	int fd = begin_call(f, 0);
	ssize_t done = pwrite(fd, files[f].bytes + at, length, (off_t)at);
	if (done != (ssize_t)length)
		wrong(round_now, "pwrite of %llu bytes gives %zd: %s", (unsigned long long)length, done, strerror(errno));
	end_call(fd, 1);
}

static void append(int who, int f, uint64_t length)
{
	int turn = mine(who);
	uint64_t at = files[f].size, number = note_write(who, f, at, length);
	model_write(f, at, length, number);
	if (!turn)
		return;
	int fd = begin_call(f, 1);
	ssize_t done = write(fd, files[f].bytes + at, length);
	if (done != (ssize_t)length)
		wrong(round_now, "write of %llu bytes gives %zd: %s", (unsigned long long)length, done, strerror(errno));
	end_call(fd, 1);
}

static void truncate_to(int who, int f, uint64_t size)
{
	int turn = mine(who);
	model_resize(f, size);
	if (!turn)
		return;
	int fd = begin_call(f, 0);
	DO(round_now, ftruncate(fd, (off_t)size));
	end_call(fd, 1);
}

static void punch(int who, int f, uint64_t at, uint64_t length)
{
	int turn = mine(who);
	memset(files[f].bytes + at, 0, length);
	if (!turn)
		return;
	int fd = begin_call(f, 0);
	DO(round_now, fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)at, (off_t)length));
	end_call(fd, 1);
}

static void get(int who, int f, uint64_t at, uint64_t length)
{
	uint64_t size = files[f].size, have = at < size ? size - at : 0;
	if (!mine(who))
		return;
	if (have > length)
		have = length;
	int fd = begin_call(f, 0);
	ssize_t done = pread(fd, buf, length, (off_t)at);
	if (done != (ssize_t)have) {
		struct stat st = {0};
		fstat(fd, &st);
		wrong(round_now, "file %d: pread of %llu bytes at %llu gives %zd (%s), not %llu; fstat says %lld bytes, the order of writes %llu",
		      f, (unsigned long long)length, (unsigned long long)at, done, done < 0 ? strerror(errno) : "no error",
		      (unsigned long long)have, (long long)st.st_size, (unsigned long long)size);
	}
	if (done > 0)
		compare(f, at, buf, files[f].bytes + at, (uint64_t)done < have ? (uint64_t)done : have);
	end_call(fd, 0);
}

/* The size by fstat, stat and lseek, and a read across the end. */
static void measure(int who, int f)
{
	uint64_t size = files[f].size, from = size < 100 ? 0 : size - 100;
	struct stat by_fd = {0}, by_name = {0};
	if (mine(who)) {
		int fd = begin_call(f, 0);
		DO(round_now, fstat(fd, &by_fd));
		DO(round_now, stat(files[f].path, &by_name));
		off_t end = lseek(fd, 0, SEEK_END);
		if ((uint64_t)by_fd.st_size != size || (uint64_t)by_name.st_size != size || (uint64_t)end != size)
			wrong(round_now, "file %d: expected size %llu, got %lld from fstat, %lld from stat, %lld from lseek", f,
			      (unsigned long long)size, (long long)by_fd.st_size, (long long)by_name.st_size, (long long)end);
		end_call(fd, 0);
	}
	get(who, f, from, 200);
}

static void all_get(int f, uint64_t at, uint64_t length)
{
	for (int r = 0; r < ranks; r++)
		get(r, f, at, length);
}

/* The patterns: one round of each. */

static void overwrite(void)
{
	int who[3], f = (int)below(FILES);
	size_t length = some_length(LONGEST);
	uint64_t at = below(SPACE - length + 1);
	some_ranks(who, 3);
	put(who[0], f, at, length);
	put(who[1], f, at, length);
	get(who[2], f, at, length);
}

/* The reader, and at times the second writer, have read the first write's bytes before they are overwritten. */
static void reread(void)
{
	int who[3], f = (int)below(FILES);
	size_t length = some_length(64 << 10);
	uint64_t at = below(SPACE - length + 1);
	some_ranks(who, 3);
	put(who[0], f, at, length);
	get(who[2], f, at, length);
	if (below(2))
		get(who[1], f, at, length);
	put(who[1], f, at, length);
	get(who[2], f, at, length);
	get(who[0], f, at, length);
}

static void partial(void)
{
	int who[4], f = (int)below(FILES);
	size_t a = some_length(LONGEST / 4), b = some_length(LONGEST / 4), c = some_length(LONGEST / 4);
	uint64_t at = LONGEST / 2 + below(SPACE - 2 * LONGEST);
	some_ranks(who, 4);
	put(who[0], f, at, a);
	put(who[1], f, at + below(a), b);
	put(who[2], f, at - below(c), c);
	get(who[3], f, at - c - below(100), a + b + 2 * c + 200);
	get(who[0], f, at, a);
}

static void strided(void)
{
	int who[3], f = (int)below(FILES), pieces = 2 + (int)below(40);
	size_t length = 1 + below(5000), step = length + below(8000);
	uint64_t at = below(SPACE - 41 * 13000), shift = below(step);
	some_ranks(who, 3);
	for (int i = 0; i < pieces; i++)
		put(who[0], f, at + (uint64_t)i * step, length);
	for (int i = 0; i < pieces; i += 2)
		put(who[1], f, at + shift + (uint64_t)i * step, length / 2 + 1);
	get(who[2], f, at, (uint64_t)pieces * step + length);
}

/* A table of records, each overwritten in place by whatever rank. */
static void records(void)
{
	static const size_t lengths[FILES] = {8, 100, 4096, 47008};
	int who[3], f = (int)below(FILES);
	size_t length = lengths[f];
	uint64_t places = 64, mark = below(places);
	some_ranks(who, 3);
	put(who[0], f, mark * length, length);
	put(who[0], f, below(places) * length, length);
	put(who[1], f, mark * length, length);
	get(who[2], f, below(places) * length, length);
	get(who[2], f, mark * length, length);
}

/* Each rank overwrites the one before it, all or a part; at the end all read. */
static void chain(void)
{
	int who[RANKS_MOST], f = (int)below(FILES);
	size_t length = some_length(128 << 10);
	uint64_t at = below(SPACE - length + 1);
	some_ranks(who, ranks);
	for (int i = 0; i < ranks; i++) {
		size_t part = below(3) ? length : 1 + below(length);
		put(who[i], f, at + (length - part ? below(length - part) : 0), part);
	}
	all_get(f, at, length);
}

static void make_room(int who, int f, uint64_t length)
{
	if (files[f].size + length > SPACE)
		truncate_to(who, f, 0);
}

static void appends_in_turn(void)
{
	int who[4], f = (int)below(FILES);
	size_t a = some_length(64 << 10), b = some_length(64 << 10);
	some_ranks(who, 4);
	make_room(who[0], f, a + b);
	uint64_t from = files[f].size;
	append(who[0], f, a);
	get(who[2], f, from, a + 1);
	append(who[1], f, b);
	get(who[3], f, from, a + b + 1);
	measure(who[2], f);
}

static void truncates(void)
{
	int who[4], f = (int)below(FILES);
	size_t a = some_length(256 << 10), b = some_length(64 << 10);
	uint64_t at = below(LONGEST), cut = at + below(a), beyond = cut + below(200000);
	some_ranks(who, 4);
	put(who[0], f, at, a);
	if (below(2))
		get(who[3], f, at, a);
	truncate_to(who[1], f, cut);
	measure(who[3], f);
	put(who[2], f, beyond, b);
	get(who[3], f, at, a + 300000);
	measure(who[0], f);
}

static void punches(void)
{
	int who[4], f = (int)below(FILES);
	size_t a = some_length(256 << 10), hole = 1 + below(a), b = some_length(hole);
	uint64_t at = below(LONGEST), from = at + below(a - hole + 1);
	some_ranks(who, 4);
	put(who[0], f, at, a);
	if (below(2))
		get(who[3], f, at, a);
	punch(who[1], f, from, hole);
	if (below(2))
		get(who[3], f, at, a);
	put(who[2], f, from + below(hole - b + 1), b);
	get(who[3], f, at, a);
	get(who[1], f, at, a);
}

/* Files that grow, also by holes and by ftruncate, and shrink: each rank sees the size at once. */
static void sizes(void)
{
	int who[4], f = (int)below(FILES);
	size_t length = some_length(100 << 10);
	some_ranks(who, 4);
	make_room(who[3], f, 2 * length + 5000);
	if (below(3) == 0)
		truncate_to(who[0], f, files[f].size + length);
	else
		put(who[0], f, files[f].size + (below(2) ? below(5000) : 0), length);
	measure(who[1], f);
	put(who[1], f, files[f].size, 1 + below(length));
	for (int r = 0; r < ranks; r++)
		measure(r, f);
	if (below(4) == 0)
		truncate_to(who[2], f, below(files[f].size));
	measure(who[3], f);
}

static void mixed(void)
{
	int f = (int)below(FILES);
	for (int i = 0; i < 8; i++) {
		int who = (int)below((uint64_t)ranks);
		size_t length = some_length(64 << 10);
		uint64_t at = below(3) ? below(300000) : below(SPACE - length);
		switch (below(12)) {
		case 0:
			truncate_to(who, f, below(2) ? at : files[f].size / 2);
			break;
		case 1:
			punch(who, f, at, length);
			break;
		case 2:
			make_room(who, f, length);
			append(who, f, length);
			break;
		case 3:
			measure(who, f);
			break;
		case 4:
		case 5:
		case 6:
			get(who, f, at, length);
			break;
		default:
			put(who, f, at, length);
		}
	}
	get((int)below((uint64_t)ranks), f, 0, 400000);
}

/* A file is written anew under another name and renamed over the old one. */
static void replace(void)
{
	int who[2];
	size_t length = some_length(64 << 10);
	uint64_t number;
	char name[4200];
	some_ranks(who, 2);
	const char *path = in_dir("target%d", round_now % 3);
	number = note_write(who[0], 0, 0, length);
	fill(wanted, 0, length, number);
	if (mine(who[0])) {
		snprintf(name, sizeof name, "%s.new", path);
		int fd = open(name, O_WRONLY | O_CREAT | O_TRUNC, 0644);
		if (write(fd, wanted, length) != (ssize_t)length)
			wrong(round_now, "write of a new file: %s", strerror(errno));
		DO(round_now, close(fd));
		DO(round_now, rename(name, path));
	}
	if (mine(who[1])) {
		int fd = open(path, O_RDONLY);
		ssize_t done = read(fd, buf, LONGEST);
		if (done != (ssize_t)length)
			wrong(round_now, "read of a file that another rank renamed gives %zd, not %zu", done, length);
		else
			compare(0, 0, buf, wanted, length);
		close(fd);
	}
}

/* Each rank writes a block at the end, at the same time; then each reads its neighbour's. */
static void blocks(void)
{
	enum { BLOCK = 64 << 10 };
	int f = round_now % FILES;
	make_room(0, f, (uint64_t)ranks * BLOCK);
	uint64_t from = files[f].size;
	together();
	for (int r = 0; r < ranks; r++)
		put(r, f, from + (uint64_t)r * BLOCK, BLOCK);
	barrier();
	for (int r = 0; r < ranks; r++)
		get(r, f, from + (uint64_t)((r + 1) % ranks) * BLOCK, BLOCK);
	for (int r = 0; r < ranks; r++)
		measure(r, f);
	in_turn();
}

/* Records of odd lengths beside each other, of all ranks in turn; then all read all. */
static void beside(void)
{
	int f = (int)below(FILES), count = 2 + (int)below(8);
	size_t length = 1 + below(below(2) ? 20 : 3000);
	uint64_t at = below(LONGEST);
	together();
	for (int i = 0; i < count; i++)
		for (int r = 0; r < ranks; r++)
			put(r, f, at + (uint64_t)(i * ranks + r) * length, length);
	barrier();
	all_get(f, at - below(at + 1) % 100, (uint64_t)(count * ranks) * length + 200);
	in_turn();
}

/* A file that all ranks open with O_CREAT, write and read, and one removes. */
static void fresh(void)
{
	size_t length = some_length(64 << 10);
	uint64_t number[RANKS_MOST];
	int other = (rank + 1) % ranks;
	const char *path = in_dir("fresh%d", round_now);
	for (int r = 0; r < ranks; r++)
		number[r] = note_write(r, 0, (uint64_t)r * length, length);
	int fd = open(path, O_RDWR | O_CREAT | (publish == OSYNC ? O_SYNC : 0), 0644);
	if (fd < 0)
		wrong(round_now, "open: %s", strerror(errno));
	fill(buf, (uint64_t)rank * length, length, number[rank]);
	if (pwrite(fd, buf, length, (off_t)((uint64_t)rank * length)) != (ssize_t)length)
		wrong(round_now, "pwrite: %s", strerror(errno));
	if (publish == FSYNC)
		DO(round_now, fsync(fd));
	if (publish == CLOSE)
		DO(round_now, close(fd));
	barrier();
	if (publish == CLOSE)
		fd = open(path, O_RDONLY);
	fill(wanted, (uint64_t)other * length, length, number[other]);
	ssize_t done = pread(fd, buf, length, (off_t)((uint64_t)other * length));
	off_t end = lseek(fd, 0, SEEK_END);
	if (done != (ssize_t)length || end != (off_t)((uint64_t)ranks * length))
		wrong(round_now, "pread of rank %d's %zu bytes gives %zd, the size is %lld, not %zu", other, length, done, (long long)end,
		      (size_t)ranks * length);
	else
		compare(0, (uint64_t)other * length, buf, wanted, length);
	DO(round_now, close(fd));
	barrier();
	if (rank == round_now % ranks)
		DO(round_now, unlink(path));
}

/* One rank writes a header or makes the file longer; then all read it and its size. */
static void header(void)
{
	int f = (int)below(FILES), who = (int)below((uint64_t)ranks);
	size_t length = 1 + below(4096);
	make_room(who, f, length + 100000);
	put(who, f, 0, length);
	if (below(2))
		truncate_to(who, f, files[f].size + below(100000));
	else
		put(who, f, files[f].size + below(1000), 1 + below(10000));
	in_turn();
	together();
	all_get(f, 0, length + 50);
	for (int r = 0; r < ranks; r++)
		measure(r, f);
	in_turn();
}

static uint64_t hash(const unsigned char *bytes, size_t length)
{
	uint64_t x = 14695981039346656037ULL ^ length;
	for (size_t i = 0; i < length; i++)
		x = (x ^ bytes[i]) * 1099511628211ULL;
	return x;
}

/* Says what it read to the others: all must have read the same. */
static void agree(const unsigned char *bytes, size_t length)
{
	shared->cells[rank] = hash(bytes, length);
	barrier();
	for (int r = 0; r < ranks; r++)
		if (shared->cells[r] != shared->cells[rank] && r < rank)
			wrong(round_now, "does not read the same bytes as rank %d", r);
	barrier();
}

/* All write the same bytes at the same time: which of them wins is open, but it is the same for all, now and later. */
static void race(void)
{
	enum { MOST = 16 << 10 };
	static unsigned char candidates[RANKS_MOST][MOST];
	int f = (int)below(FILES);
	size_t length = some_length(MOST);
	uint64_t at = below(LONGEST);
	put(0, f, at, length);
	in_turn();
	int fd = begin_call(f, 0);
	for (int r = 0; r < ranks; r++)
		fill(candidates[r], at, length, note_write(r, f, at, length));
	barrier();
	if (pwrite(fd, candidates[rank], length, (off_t)at) != (ssize_t)length)
		wrong(round_now, "pwrite: %s", strerror(errno));
	end_call(fd, 1);
	barrier();
	fd = begin_call(f, 0);
	for (int again = 0; again < 2; again++) {
		memset(buf, 0, length);
		if (pread(fd, buf, length, (off_t)at) != (ssize_t)length)
			wrong(round_now, "pread: %s", strerror(errno));
		agree(buf, length);
	}
	end_call(fd, 0);
	for (size_t i = 0; i < length; i++) {
		int of = 0;
		while (of < ranks && candidates[of][i] != buf[i])
			of++;
		if (of == ranks) {
			wrong(round_now, "file %d, byte %llu: expected a byte of one of the writers, got %s", f, (unsigned long long)(at + i),
			      origin(f, at + i, buf + i, length - i));
			break;
		}
	}
	/* What comes next has one model again. */
	put(0, f, at, length);
	in_turn();
}

/* All append at the same time: each record is there once, whole, and those of a rank in their order. */
static void appends(void)
{
	enum { EACH = 8 };
	struct head {
		uint32_t round, rank, number, length;
	} head;
	int f = round_now % FILES;
	unsigned long seen[RANKS_MOST] = {0};
	uint64_t total = 0;
	truncate_to(round_now % ranks, f, 0);
	in_turn();
	int fd = begin_call(f, 1);
	for (int r = 0; r < ranks; r++)
		for (int i = 0; i < EACH; i++) {
			size_t length = sizeof head + some_length(3000);
			total += length;
			if (r != rank)
				continue;
			head = (struct head){(uint32_t)round_now, (uint32_t)r, (uint32_t)i, (uint32_t)length};
			pattern_fill(buf, length, (uint64_t)(round_now * 1000 + r * 100 + i), 0);
			memcpy(buf, &head, sizeof head);
			if (write(fd, buf, length) != (ssize_t)length)
				wrong(round_now, "write: %s", strerror(errno));
		}
	end_call(fd, 1);
	barrier();
	fd = begin_call(f, 0);
	off_t end = lseek(fd, 0, SEEK_END);
	ssize_t done = pread(fd, buf, sizeof buf, 0);
	if (done != (ssize_t)total || end != (off_t)total)
		wrong(round_now, "%zd bytes are read, the size is %lld: expected %llu", done, (long long)end, (unsigned long long)total);
	for (ssize_t at = 0; at < done; at += head.length) {
		memcpy(&head, buf + at, sizeof head);
		if (done - at < (ssize_t)sizeof head || head.round != (uint32_t)round_now || head.rank >= (uint32_t)ranks ||
		    head.number != seen[head.rank] || head.length > done - at || head.length < sizeof head ||
		    pattern_differs(buf + at + sizeof head, head.length - sizeof head,
				    (uint64_t)(round_now * 1000) + head.rank * 100 + head.number, sizeof head) != -1) {
			wrong(round_now, "byte %zd: no whole record in order begins here (says round %u, rank %u, number %u, %u bytes)", at,
			      head.round, head.rank, head.number, head.length);
			break;
		}
		seen[head.rank]++;
	}
	agree(buf, done > 0 ? (size_t)done : 0);
	end_call(fd, 0);
	truncate_to(0, f, 0);
	in_turn();
}

/*
 * One rank counts up in a byte; the others read it all the time. No read that began after a write had returned, or after
 * another read had ended, gives less than that one.
 */
static void monotone(void)
{
	enum { LAST = 100, WRITTEN = 8, SEEN = 9 };
	int f = (int)below(FILES), who = (int)below((uint64_t)ranks);
	uint64_t at = below(SPACE);
	unsigned char value = 0;
	shared->cells[WRITTEN] = shared->cells[SEEN] = 0;
	if (who == rank)
		DO(round_now, pwrite(files[f].fd, &value, 1, (off_t)at));
	barrier();
	for (int i = 1; who == rank && i <= LAST; i++) {
		value = (unsigned char)i;
		DO(round_now, pwrite(files[f].fd, &value, 1, (off_t)at));
		shared->cells[WRITTEN] = (uint64_t)i;
		if (i % 8 == 0)
			usleep(50);
	}
	for (int ends = 0; who != rank && !ends;) {
		uint64_t written = shared->cells[WRITTEN], seen = shared->cells[SEEN], least = written > seen ? written : seen;
		ends = written == LAST;
		if (pread(files[f].fd, &value, 1, (off_t)at) != 1)
			wrong(round_now, "pread: %s", strerror(errno));
		else if (value < least)
			wrong(round_now, "byte %llu: expected at least %llu (%s), got %d", (unsigned long long)at, (unsigned long long)least,
			      written > seen ? "its write had returned" : "another rank had read it", value);
		while (seen < value && !atomic_compare_exchange_weak(&shared->cells[SEEN], &seen, value))
			;
		if (!ends && delay_us == 0)
			usleep(20);
		delay();
	}
	barrier();
	files[f].bytes[at] = LAST;
	if (files[f].size <= at)
		files[f].size = at + 1;
}

static const struct {
	const char *name;
	void (*round)(void);
} patterns[] = {
	{"overwrite", overwrite}, {"reread", reread}, {"partial", partial}, {"strided", strided}, {"records", records},
	{"chain", chain}, {"append", appends_in_turn}, {"truncate", truncates}, {"punch", punches}, {"sizes", sizes},
	{"mixed", mixed}, {"replace", replace}, {"blocks", blocks}, {"beside", beside}, {"fresh", fresh}, {"header", header},
	{"race", race}, {"appends", appends}, {"monotone", monotone},
};

/* After what is published late has been published: all ranks read all again. */
static void read_all_again(void)
{
	in_turn();
	usleep(getenv("WEIR_TEST_SETTLE_MS") ? (useconds_t)atoi(getenv("WEIR_TEST_SETTLE_MS")) * 1000 : 0);
	together();
	for (int f = 0; f < FILES; f++)
		for (uint64_t at = 0; at < SPACE; at += LONGEST)
			all_get(f, at, LONGEST);
	in_turn();
}

static void open_files(void)
{
	for (int f = 0; f < FILES; f++) {
		snprintf(files[f].path, sizeof files[f].path, "%s", in_dir("file%d", f));
		files[f].bytes = calloc(1, SPACE);
		MUST(files[f].bytes);
		if (f % ranks == rank)
			close(open_file(f, O_RDWR | O_CREAT | O_TRUNC));
	}
	barrier();
	for (int f = 0; f < FILES && publish != CLOSE; f++) {
		files[f].fd = open_file(f, O_RDWR);
		files[f].append_fd = open_file(f, O_WRONLY | O_APPEND);
	}
}

int main(int argc, char **argv)
{
	static const char *const names[] = {"none", "fsync", "close", "osync"};
	ranks_begin(argc, argv);
	MUST(argc > 4);
	while (publish <= OSYNC && strcmp(argv[4], names[publish]) != 0)
		publish++;
	MUST(publish <= OSYNC);
	state = shared->seed;
	open_files();
	for (size_t p = 0; p < sizeof patterns / sizeof *patterns; p++) {
		if (strcmp(patterns[p].name, pattern) != 0)
			continue;
		for (round_now = 0; round_now < rounds; round_now++)
			patterns[p].round();
		round_now = rounds - 1;
		read_all_again();
		return ranks_end();
	}
	MUST(!"a pattern of that name");
}
