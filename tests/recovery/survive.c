/*
 * Writes until its file system is lost, and says in a log elsewhere what has returned; later, checks that all of
 * that is there.
 *
 *   survive DIR LOG write SEED    writes files of several kinds until a call fails; exits with 3 then
 *   survive DIR LOG check         checks what the log says
 *
 * A line of the log is written after the call it speaks of:
 *   F name bytes seed    a file of so many bytes of that pattern, after its fsync, close or rename
 *   G name               a file that was removed
 *   S name pieces seed   the first pieces of a strided file, after an fsync
 */
#include "../real/c/check.h"
#include <stdarg.h>

enum { PIECE = 4096, STRIDE = 3 * PIECE };

static const char *log_path;
static unsigned char buf[1 << 17];

static void lost(const char *what)
{
	printf("%s: %s\n", what, strerror(errno));
	exit(3);
}

static void say(const char *format, ...)
{
	static int fd = -1;
	char line[512];
	va_list args;
	if (fd < 0)
		fd = open(log_path, O_WRONLY | O_CREAT | O_APPEND, 0600);
	va_start(args, format);
	int length = vsnprintf(line, sizeof line, format, args);
	va_end(args);
	if (fd < 0 || write(fd, line, (size_t)length) != length)
		abort();
}

static void put(int fd, size_t length, uint64_t seed, uint64_t at)
{
	pattern_fill(buf, length, seed, at);
	size_t done = 0;
	while (done < length) {
		ssize_t n = pwrite(fd, buf + done, length - done, (off_t)(at + done));
		if (n <= 0)
			lost("pwrite");
		done += (size_t)n;
	}
}

/* A file in pieces of many sizes, some behind the others, some in between. */
static void fill(int fd, size_t bytes, uint64_t seed)
{
	size_t half = bytes / 2, step = 1 + seed % 9000;
	for (size_t at = half; at < bytes; at += step)
		put(fd, at + step < bytes ? step : bytes - at, seed, at);
	for (size_t at = 0; at < half; at += step)
		put(fd, at + step < half ? step : half - at, seed, at);
}

static void write_files(unsigned long seed)
{
	char name[64], to[64], strided[64];
	snprintf(strided, sizeof strided, "strided-%lu", seed);
	int shared = open(in_dir("%s", strided), O_RDWR | O_CREAT, 0600);
	if (shared < 0)
		lost("open");
	for (unsigned long n = 0;; n++) {
		uint64_t pattern = seed * 1000003 + n;
		size_t bytes = (pattern * 2654435761u >> 5) % 60000;
		snprintf(name, sizeof name, "file-%lu-%lu", seed, n);
		snprintf(to, sizeof to, "moved-%lu-%lu", seed, n);
		int fd = open(in_dir("%s", name), O_RDWR | O_CREAT | O_EXCL, 0600);
		if (fd < 0)
			lost("open");
		fill(fd, bytes, pattern);
		if (n % 3 == 0) {
			if (fsync(fd))
				lost("fsync");
			say("F %s %zu %llu\n", name, bytes, (unsigned long long)pattern);
		}
		if (close(fd))
			lost("close");
		if (n % 3 == 1)
			say("F %s %zu %llu\n", name, bytes, (unsigned long long)pattern);
		if (n % 3 == 2) {
			char from[4096];
			snprintf(from, sizeof from, "%s", in_dir("%s", name));
			if (n % 2 ? rename(from, in_dir("%s", to)) : unlink(from))
				lost("rename or unlink");
			if (n % 2)
				say("F %s %zu %llu\n", to, bytes, (unsigned long long)pattern);
			else
				say("G %s\n", name);
		}
		put(shared, PIECE, seed, (uint64_t)n * STRIDE);
		if (n % 8 == 7) {
			if (fsync(shared))
				lost("fsync");
			say("S %s %lu %lu\n", strided, n + 1, seed);
		}
	}
}

static int reads_back(int fd, uint64_t at, size_t length, uint64_t seed)
{
	size_t done = 0;
	while (done < length) {
		ssize_t n = pread(fd, buf + done, length - done, (off_t)(at + done));
		if (n <= 0)
			return 0;
		done += (size_t)n;
	}
	return pattern_differs(buf, length, seed, at) == -1;
}

static void check_line(const char *line)
{
	char name[256];
	unsigned long long count, seed;
	struct stat st;
	int good = 0;
	if (sscanf(line, "G %255s", name) == 1) {
		good = stat(in_dir("%s", name), &st) && errno == ENOENT;
	} else if (sscanf(line, "F %255s %llu %llu", name, &count, &seed) == 3) {
		int fd = open(in_dir("%s", name), O_RDONLY);
		good = fd >= 0 && !fstat(fd, &st) && st.st_size == (off_t)count && reads_back(fd, 0, count, seed);
		if (fd >= 0)
			close(fd);
	} else if (sscanf(line, "S %255s %llu %llu", name, &count, &seed) == 3) {
		int fd = open(in_dir("%s", name), O_RDONLY);
		good = fd >= 0;
		for (unsigned long long n = 0; n < count && good; n++)
			good = reads_back(fd, n * STRIDE, PIECE, seed);
		if (fd >= 0)
			close(fd);
	}
	if (!good)
		printf("  %s", line);
	CHECK(good, "what had returned is there");
}

int main(int argc, char **argv)
{
	if (argc < 4)
		return 2;
	check_begin(argc, argv);
	log_path = argv[2];
	if (argc > 4 && !strcmp(argv[3], "write"))
		write_files(strtoul(argv[4], NULL, 10));
	FILE *log = fopen(log_path, "r");
	char line[512];
	while (log && fgets(line, sizeof line, log))
		check_line(line);
	return check_end();
}
