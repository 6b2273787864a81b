/*
 * Signal handlers that use files of weir's, interrupting calls that do: a timer strikes thousands of times, a millisecond apart, while the
 * program creates, writes, reads, renames and removes. POSIX lets a handler call open, write, read, close, fsync, lseek,
 * stat, link, unlink, rename and their like.
 */
#include "check.h"
#include <signal.h>
#include <sys/time.h>

#define WANTED 2000

static volatile sig_atomic_t struck;
static volatile sig_atomic_t wrong;
static char log_path[4096], main_path[4096], other_path[4096];

static void strike(int number)
{
	int saved = errno;
	(void)number;
	int fd = open(log_path, O_WRONLY | O_CREAT | O_APPEND, 0644);
	struct stat st;
	if (fd < 0 || write(fd, "strike\n", 7) != 7 || fstat(fd, &st) != 0 || close(fd) != 0)
		wrong++;
	if (stat(log_path, &st) != 0 || st.st_size < 7)
		wrong++;
	struck++;
	errno = saved;
}

int main(int argc, char **argv)
{
	check_begin(argc, argv);
	snprintf(log_path, sizeof log_path, "%s/log", check_dir);
	snprintf(main_path, sizeof main_path, "%s/main", check_dir);
	snprintf(other_path, sizeof other_path, "%s/other", check_dir);

	struct sigaction action = {.sa_handler = strike, .sa_flags = SA_RESTART};
	MUST(sigaction(SIGALRM, &action, NULL) == 0);
	struct itimerval timer = {{0, 1000}, {0, 1000}};
	MUST(setitimer(ITIMER_REAL, &timer, NULL) == 0);

	long rounds = 0, failed = 0;
	char out[4096], in[4096];
	while (struck < WANTED && failed == 0) {
		memset(out, 'a' + rounds % 26, sizeof out);
		int fd = open(main_path, O_RDWR | O_CREAT | O_TRUNC, 0644);
		failed += fd < 0;
		for (int i = 0; i < 20; i++)
			failed += write(fd, out, sizeof out) != sizeof out;
		for (int i = 0; i < 20; i++) {
			failed += pread(fd, in, sizeof in, i * (off_t)sizeof in) != sizeof in;
			failed += memcmp(in, out, sizeof in) != 0;
		}
		failed += close(fd) != 0;
		failed += rename(main_path, other_path) != 0;
		failed += unlink(other_path) != 0;
		rounds++;
	}
	timer.it_value.tv_usec = timer.it_interval.tv_usec = 0;
	MUST(setitimer(ITIMER_REAL, &timer, NULL) == 0);
	struct stat st;
	CHECK(failed == 0, "%ld rounds under fire", rounds);
	CHECK(wrong == 0, "every handler could use its file");
	CHECK(stat(log_path, &st) == 0 && st.st_size == 7L * struck, "%d strikes, each in the log once", (int)struck);
	return check_end();
}
