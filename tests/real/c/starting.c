/*
 * Every function of libc that starts a program, from a child that has opened its standard output since fork, and with
 * environments that the program has cut down: what is started finds the file, and finds others by their paths.
 *
 * Started as `starting --say PATH WORD...` it is that program.
 */
#include "check.h"
#include <spawn.h>

extern char **environ;
static char self[4096], path[4096], command[8192];

#define WORDS "a", "b", "c", "d", "e", "f", "g", "h", "i", "j"
#define SAID "a b c d e f g h i j \n"

static int say(int argc, char **argv)
{
	int fd = open(argv[2], O_WRONLY | O_CREAT, 0644);
	for (int i = 3; i < argc; i++)
		printf("%s ", argv[i]);
	printf("\n");
	return fd >= 0 && write(fd, "by path", 7) == 7 ? 0 : 1;
}

/* What starts with the environment that it is given is given `given`. */
static void start(const char *how, char **given)
{
	char *words[] = {self, "--say", path, WORDS, NULL};
	pid_t pid = -1;
	if (!strcmp(how, "execl"))
		execl(self, self, "--say", path, WORDS, NULL);
	else if (!strcmp(how, "execlp"))
		execlp(self, self, "--say", path, WORDS, NULL);
	else if (!strcmp(how, "execle"))
		execle(self, self, "--say", path, WORDS, NULL, given);
	else if (!strcmp(how, "execv"))
		execv(self, words);
	else if (!strcmp(how, "execvp"))
		execvp(self, words);
	else if (!strcmp(how, "execve"))
		execve(self, words, given);
	else if (!strcmp(how, "execvpe"))
		execvpe(self, words, given);
	else if (!strcmp(how, "fexecve"))
		fexecve(open(self, O_RDONLY), words, given);
	else if (!strcmp(how, "execveat"))
		execveat(AT_FDCWD, self, words, given, 0);
	else if (!strcmp(how, "posix_spawn"))
		_exit(posix_spawn(&pid, self, NULL, NULL, words, given) != 0 || !child_ok(pid));
	else if (!strcmp(how, "posix_spawnp"))
		_exit(posix_spawnp(&pid, self, NULL, NULL, words, given) != 0 || !child_ok(pid));
	else if (!strcmp(how, "system"))
		_exit(system(command) != 0);
	else if (!strcmp(how, "popen")) {
		char line[200] = "";
		FILE *pipe = popen(command, "r");
		int got = pipe != NULL && fgets(line, sizeof line, pipe) != NULL;
		int ended = pipe == NULL ? -1 : pclose(pipe);
		_exit(!got || ended != 0 || write(1, line, strlen(line)) < 0);
	}
	_exit(98);
}

/* What a program does to its environment. */
static void change(const char *what)
{
	if (!strcmp(what, "unset")) {
		unsetenv("LD_PRELOAD");
		unsetenv("WEIR_INSTANCE");
	} else if (!strcmp(what, "cleared"))
		clearenv();
	else if (!strcmp(what, "with another library"))
		setenv("LD_PRELOAD", "libm.so.6", 1);
}

int main(int argc, char **argv)
{
	static const char *const hows[] = {"execl", "execlp", "execle", "execv", "execvp", "execve", "execvpe",
		"fexecve", "execveat", "posix_spawn", "posix_spawnp", "system", "popen"};
	static const char *const changes[] = {"as it is", "unset", "cleared", "with another library"};
	if (argc > 3 && !strcmp(argv[1], "--say"))
		return say(argc, argv);
	MUST(readlink("/proc/self/exe", self, sizeof self - 1) > 0);
	check_begin(argc, argv);
	for (size_t i = 0; i < sizeof hows / sizeof *hows; i++)
		for (size_t k = 0; k < sizeof changes / sizeof *changes; k++) {
			const char *out = in_dir("%s.%zu.out", hows[i], k);
			snprintf(path, sizeof path, "%s", in_dir("%s.%zu.path", hows[i], k));
			snprintf(command, sizeof command, "%s --say %s a b c d e f g h i j", self, path);
			fflush(NULL);
			pid_t pid = fork();
			if (pid == 0) {
				char *few[] = {"PATH=/bin", NULL};
				MUST(dup2(open(out, O_WRONLY | O_CREAT, 0644), 1) == 1);
				change(changes[k]);
				start(hows[i], k == 0 ? environ : few);
			}
			int ended = child_ok(pid), said = file_is(out, SAID), found = file_is(path, "by path");
			CHECK(ended && said && found, "%s, the environment %s", hows[i], changes[k]);
		}
	/* A script that does not say whose it is is the shell's, for those that search. */
	put_text(in_dir("script"), "echo $0 $1 > $2\n");
	MUST(chmod(in_dir("script"), 0755) == 0);
	pid_t pid = fork();
	if (pid == 0) {
		execlp(in_dir("script"), "name", "first", in_dir("said"), NULL);
		_exit(98);
	}
	char expected[4096];
	snprintf(expected, sizeof expected, "%s first\n", in_dir("script"));
	CHECK(child_ok(pid) && file_is(in_dir("said"), expected), "execlp of a script without a first line");
	/* One that cannot be started says so, and the caller goes on as it was. */
	char *words[] = {"nothing", NULL};
	CHECK_FAILS(execl(in_dir("none"), "none", WORDS, NULL), ENOENT, "execl of nothing");
	CHECK_FAILS(execlp("weir-no-such-program", "none", WORDS, NULL), ENOENT, "execlp of nothing");
	CHECK_FAILS(execle(in_dir("none"), "none", WORDS, NULL, words), ENOENT, "execle of nothing");
	if (getenv("WEIR_TEST_ON_WEIR") != NULL) {
		put_text(in_dir("there"), "");
		snprintf(command, sizeof command, "WEIR_INSTANCE= /bin/ls %s 2> /dev/null", in_dir("there"));
		CHECK(system(command) != 0, "a program outside of the instance");
	}
	change("unset");
	CHECK(system("true") == 0 && getenv("LD_PRELOAD") == NULL, "system leaves the environment as it was");
	return check_end();
}
