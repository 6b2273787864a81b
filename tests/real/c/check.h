/*
 * The frame of every check program written in C or C++.
 *
 * A program is started as `program DIR`, makes DIR/<its name> and works only there. It prints one line per check
 * and at the end `N passed, N failed`; its exit code is 0 only if nothing failed. The checks are written
 * against POSIX and pass on tmpfs and on an ordinary disk, so that a failure under weir is a failure of weir.
 *
 * Left out: clean-up. The directory belongs to the caller, who removes it.
 */
#ifndef WEIR_CHECK_H
#define WEIR_CHECK_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

static int check_passed;
static int check_failed;
static char check_dir[2048];

/* One check; the text says what must hold. Evaluates to the condition. */
#define CHECK(cond, ...) check_report(!!(cond), __FILE__, __LINE__, #cond, __VA_ARGS__)

/* `expr` must fail (return -1) with this errno. */
#define CHECK_FAILS(expr, wanted, ...) \
	do { \
		errno = 0; \
		long check_result_ = (long)(expr); \
		int check_errno_ = errno; \
		if (check_result_ != -1 || check_errno_ != (wanted)) \
			printf("  got %ld (%s), wanted -1 (%s)\n", check_result_, strerror(check_errno_), \
			       strerror(wanted)); \
		CHECK(check_result_ == -1 && check_errno_ == (wanted), __VA_ARGS__); \
	} while (0)

/* Something the checks themselves need did not work: no point in going on. */
#define MUST(cond) \
	do { \
		if (!(cond)) { \
			printf("FAIL %s:%d: needed: %s: %s\n", __FILE__, __LINE__, #cond, strerror(errno)); \
			printf("%d passed, %d failed\n", check_passed, check_failed + 1); \
			fflush(NULL); \
			_exit(1); \
		} \
	} while (0)

__attribute__((format(printf, 5, 6))) static inline int check_report(int ok, const char *file, int line,
								      const char *cond, const char *format, ...)
{
	int saved = errno;
	va_list args;
	va_start(args, format);
	printf("%s ", ok ? "ok  " : "FAIL");
	vprintf(format, args);
	if (!ok)
		printf("   [%s:%d: %s; errno %d %s]", file, line, cond, saved, strerror(saved));
	printf("\n");
	fflush(stdout);
	va_end(args);
	if (ok)
		check_passed++;
	else
		check_failed++;
	errno = saved;
	return ok;
}

/* Makes DIR/<name of the program> and goes on there with absolute paths made by `in_dir`. */
static inline void check_begin(int argc, char **argv)
{
	const char *name = strrchr(argv[0], '/');
	if (argc < 2) {
		fprintf(stderr, "usage: %s DIR\n", argv[0]);
		exit(2);
	}
	name = name ? name + 1 : argv[0];
	snprintf(check_dir, sizeof check_dir, "%s/%s", argv[1], name);
	if (mkdir(check_dir, 0755) != 0 && errno != EEXIST)
		MUST(!"mkdir of the working directory");
}

static inline int check_end(void)
{
	printf("%d passed, %d failed\n", check_passed, check_failed);
	fflush(stdout);
	return check_failed != 0;
}

/* Absolute path of a name in the working directory; one of eight static buffers. */
__attribute__((format(printf, 1, 2))) static inline const char *in_dir(const char *format, ...)
{
	static char buffers[8][4096];
	static int next;
	char *buffer = buffers[next++ % 8];
	va_list args;
	int used = snprintf(buffer, sizeof buffers[0], "%s/", check_dir);
	va_start(args, format);
	vsnprintf(buffer + used, sizeof buffers[0] - (size_t)used, format, args);
	va_end(args);
	return buffer;
}

/* A byte that depends on its place and a seed, so that misplaced data shows. */
static inline unsigned char pattern_byte(uint64_t seed, uint64_t at)
{
	uint64_t x = (at + 1) * 0x9e3779b97f4a7c15ULL ^ seed * 0xd1b54a32d192ed03ULL;
	x ^= x >> 29;
	x *= 0xbf58476d1ce4e5b9ULL;
	return (unsigned char)(x >> 56);
}

static inline void pattern_fill(void *buffer, size_t length, uint64_t seed, uint64_t at)
{
	unsigned char *bytes = (unsigned char *)buffer;
	for (size_t i = 0; i < length; i++)
		bytes[i] = pattern_byte(seed, at + i);
}

/* Index of the first byte that differs from the pattern, or -1. */
static inline long pattern_differs(const void *buffer, size_t length, uint64_t seed, uint64_t at)
{
	const unsigned char *bytes = (const unsigned char *)buffer;
	for (size_t i = 0; i < length; i++)
		if (bytes[i] != pattern_byte(seed, at + i))
			return (long)i;
	return -1;
}

static inline int all_bytes(const void *buffer, size_t length, int value)
{
	const unsigned char *bytes = (const unsigned char *)buffer;
	for (size_t i = 0; i < length; i++)
		if (bytes[i] != (unsigned char)value)
			return 0;
	return 1;
}

/* Whole-file helpers on plain descriptors. */
static inline void put_file(const char *path, const void *data, size_t length)
{
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0644);
	MUST(fd >= 0);
	MUST(write(fd, data, length) == (ssize_t)length);
	MUST(close(fd) == 0);
}

static inline void put_text(const char *path, const char *text)
{
	put_file(path, text, strlen(text));
}

/* The file's content, zero-terminated; its length in *length if not NULL; NULL when it cannot be opened. */
static inline char *get_file(const char *path, size_t *length)
{
	int fd = open(path, O_RDONLY);
	struct stat st;
	size_t have = 0;
	char *data;
	ssize_t got;
	if (fd < 0)
		return NULL;
	MUST(fstat(fd, &st) == 0);
	data = (char *)malloc((size_t)st.st_size + 1);
	MUST(data != NULL);
	while (have < (size_t)st.st_size && (got = read(fd, data + have, (size_t)st.st_size - have)) > 0)
		have += (size_t)got;
	data[have] = 0;
	close(fd);
	if (length)
		*length = have;
	return data;
}

static inline int file_is(const char *path, const char *text)
{
	size_t length = 0;
	char *data = get_file(path, &length);
	int same = data && length == strlen(text) && memcmp(data, text, length) == 0;
	if (!same)
		printf("  %s holds %zu bytes: \"%.200s\"\n", path, length, data ? data : "(cannot open)");
	free(data);
	return same;
}

/* Waits for a child; 1 if it exited with 0. */
static inline int child_ok(pid_t pid)
{
	int status = 0;
	if (waitpid(pid, &status, 0) != pid)
		return 0;
	return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

/* A small random generator whose seed is printed, so that a failing run can be repeated (WEIR_TEST_SEED). */
static inline uint64_t seed_from_environment(void)
{
	const char *text = getenv("WEIR_TEST_SEED");
	uint64_t seed = text ? strtoull(text, NULL, 0) : (uint64_t)getpid() * 2654435761u;
	printf("seed %llu (WEIR_TEST_SEED repeats it)\n", (unsigned long long)seed);
	fflush(stdout);
	return seed;
}

static inline uint64_t next_random(uint64_t *state)
{
	uint64_t z = (*state += 0x9e3779b97f4a7c15ULL);
	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
	return z ^ (z >> 31);
}

#endif
