/*
 * Descriptors that a program inherits are files whoever began it, and how: also by a system call that no function
 * of libc makes, from a program that inherited none itself.
 *
 * Started as `heritage --begin DIR`, by the program itself, so that it is one that inherits nothing; as
 * `heritage --read FD` it reads what it inherited.
 */
#include "check.h"
#include <spawn.h>

extern char **environ;
static char self[4096];

static int reads(int fd)
{
	char got[16] = "";
	struct stat st;
	return fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && lseek(fd, 0, SEEK_SET) == 0 && read(fd, got, 9) == 9 &&
	       !strcmp(got, "inherited");
}

/* execve(2), as the program's own code makes it. */
static void exec_raw(char *path, char **words, char **given)
{
#if defined(__x86_64__)
	long result;
	__asm__ volatile("syscall" : "=a"(result) : "0"(59L), "D"(path), "S"(words), "d"(given) : "rcx", "r11", "memory");
#elif defined(__aarch64__)
	register long number __asm__("x8") = 221, first __asm__("x0") = (long)path;
	register long second __asm__("x1") = (long)words, third __asm__("x2") = (long)given;
	__asm__ volatile("svc 0" : "+r"(first) : "r"(number), "r"(second), "r"(third) : "memory");
#endif
}

static int begins(const char *how, int fd)
{
	char number[16];
	snprintf(number, sizeof number, "%d", fd);
	char *words[] = {self, "--read", number, NULL};
	pid_t pid;
	if (!strcmp(how, "posix_spawn"))
		return posix_spawn(&pid, self, NULL, NULL, words, environ) == 0 && child_ok(pid);
	pid = fork();
	if (pid == 0) {
		if (!strcmp(how, "execve"))
			execve(self, words, environ);
		else
			exec_raw(self, words, environ);
		_exit(98);
	}
	return pid > 0 && child_ok(pid);
}

int main(int argc, char **argv)
{
	MUST(readlink("/proc/self/exe", self, sizeof self - 1) > 0);
	if (argc == 3 && !strcmp(argv[1], "--read"))
		return !reads(atoi(argv[2]));
	if (argc == 2) {
		char *words[] = {self, "--begin", argv[1], NULL};
		execv(self, words);
		_exit(98);
	}
	check_begin(2, argv + 1);
	int fd = open(in_dir("file"), O_RDWR | O_CREAT, 0600);
	MUST(fd >= 0 && write(fd, "inherited", 9) == 9);
	CHECK(begins("execve", fd), "by execve");
	CHECK(begins("posix_spawn", fd), "by posix_spawn");
	CHECK(begins("the system call", fd), "by the system call itself");
	int other = fcntl(fd, F_DUPFD_CLOEXEC, 0);
	close(fd);
	MUST(dup2(other, 200) == 200 && other != 200);
	CHECK(begins("execve", 200), "what is not closed on exec, of a file that was");
	close(200);
	CHECK(!begins("execve", other), "what is closed on exec is not there");
	for (char **variable = environ; *variable != NULL; variable++)
		CHECK(strncmp(*variable, "WEIR_NOTHING", 12) != 0, "%.40s", *variable);
	return check_end();
}
