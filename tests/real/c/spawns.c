/*
 * How programs are started by libc from inside itself: posix_spawn with each of its file actions and attributes, exec
 * of programs and scripts that lie in the file system, system and popen in a directory of it.
 *
 * Started as `spawns --report` it is the program that is started: it says what it was given.
 */
#include "check.h"
#include <signal.h>
#include <spawn.h>
#include <sched.h>

extern char **environ;
static char self[4096];

/* Standard input, an inherited descriptor 9, the current directory, signals. */
static int report(int argc, char **argv)
{
	char text[100] = "", nine[100] = "", where[4096] = "?";
	sigset_t mask;
	struct sigaction usual;
	if (read(0, text, sizeof text - 1) < 0)
		strcpy(text, "closed");
	if (read(9, nine, sizeof nine - 1) < 0)
		strcpy(nine, "closed");
	MUST(getcwd(where, sizeof where));
	sigprocmask(SIG_SETMASK, NULL, &mask);
	sigaction(SIGUSR1, NULL, &usual);
	printf("%s;%s;%s;%s%s%s%s;%s", text, nine, where, sigismember(&mask, SIGUSR2) ? "m" : "", usual.sa_handler == SIG_DFL ? "d" : "i",
	       getpgrp() == getpid() ? "g" : "", getsid(0) == getpid() ? "s" : "", argc > 2 ? argv[2] : "");
	fflush(stdout);
	struct stat out, err;
	if (fstat(1, &out) == 0 && fstat(2, &err) == 0 && out.st_ino == err.st_ino)
		fprintf(stderr, "told");
	if (argc > 2 && !strcmp(argv[2], "copy")) {
		/* A program that looks for itself. */
		char exe[4096] = "", comm[100] = "";
		ssize_t n = readlink("/proc/self/exe", exe, sizeof exe - 1);
		int fd = open("/proc/self/comm", O_RDONLY), again = open("/proc/self/exe", O_RDONLY);
		MUST(n > 0 && fd >= 0 && read(fd, comm, sizeof comm - 1) > 0);
		char *real = realpath("/proc/self/exe", NULL);
		printf(";%s;%s;%s", exe + (strrchr(exe, '/') - exe) - 3, comm, real && !strcmp(real, exe) && again >= 0 ? "same" : "other");
	}
	return access("here", F_OK) == 0 ? 3 : 4;
}

static int exit_code(pid_t pid)
{
	int status = 0;
	return waitpid(pid, &status, 0) == pid && WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static char *const ARGUMENTS[] = {"spawns", "--report", "word", NULL};

static void actions(int by_search)
{
	posix_spawn_file_actions_t actions;
	char wanted[5000];
	pid_t pid = -1;
	const char *how = by_search ? "posix_spawnp" : "posix_spawn";
	int (*spawn)(pid_t *, const char *, const posix_spawn_file_actions_t *, const posix_spawnattr_t *, char *const *, char *const *) =
		by_search ? posix_spawnp : posix_spawn;

	put_text(in_dir("in"), "input");
	int nine = open(in_dir("in"), O_RDONLY | O_CLOEXEC);
	MUST(nine >= 0 && lseek(nine, 3, SEEK_SET) == 3);
	MUST(posix_spawn_file_actions_init(&actions) == 0);
	CHECK(posix_spawn_file_actions_addopen(&actions, 0, in_dir("in"), O_RDONLY, 0) == 0, "%s: addopen to read", how);
	CHECK(posix_spawn_file_actions_addopen(&actions, 1, in_dir("out"), O_WRONLY | O_CREAT | O_TRUNC, 0640) == 0, "addopen to make");
	CHECK(posix_spawn_file_actions_adddup2(&actions, 1, 2) == 0, "adddup2");
	CHECK(posix_spawn_file_actions_adddup2(&actions, nine, 9) == 0, "adddup2 of an open descriptor");
	CHECK(spawn(&pid, self, &actions, NULL, ARGUMENTS, environ) == 0 && exit_code(pid) == 4, "it runs");
	char here[4096];
	MUST(getcwd(here, sizeof here));
	snprintf(wanted, sizeof wanted, "input;ut;%s;d;wordtold", here);
	CHECK(file_is(in_dir("out"), wanted), "with the files and the offset");
	struct stat status;
	CHECK(stat(in_dir("out"), &status) == 0 && (status.st_mode & 0777) == 0640, "of that mode");
	posix_spawn_file_actions_destroy(&actions);

	/* Into a directory by path; what follows is relative to it. */
	MUST(posix_spawn_file_actions_init(&actions) == 0);
	MUST(posix_spawn_file_actions_addchdir_np(&actions, in_dir("sub")) == 0);
	CHECK(posix_spawn_file_actions_addopen(&actions, 1, "made", O_WRONLY | O_CREAT | O_EXCL, 0600) == 0, "addopen relative to addchdir_np");
	MUST(posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0) == 0);
	MUST(posix_spawn_file_actions_addclose(&actions, nine) == 0);
	CHECK(spawn(&pid, self, &actions, NULL, ARGUMENTS, environ) == 0 && exit_code(pid) == 3, "it runs there");
	snprintf(wanted, sizeof wanted, ";closed;%s/sub;d;word", check_dir);
	CHECK(file_is(in_dir("sub/made"), wanted), "and its file is there");
	unlink(in_dir("sub/made"));
	CHECK(access("made", F_OK) != 0, "and nowhere else");
	char now[4096];
	CHECK(getcwd(now, sizeof now) && !strcmp(now, here), "the parent's directory is what it was");
	posix_spawn_file_actions_destroy(&actions);

	/* The same by descriptor. */
	int sub = open(in_dir("sub"), O_RDONLY | O_DIRECTORY);
	MUST(posix_spawn_file_actions_init(&actions) == 0);
	MUST(posix_spawn_file_actions_addfchdir_np(&actions, sub) == 0);
	MUST(posix_spawn_file_actions_addopen(&actions, 1, "../out", O_WRONLY | O_TRUNC, 0) == 0);
	MUST(posix_spawn_file_actions_addclose(&actions, 0) == 0);
	CHECK(spawn(&pid, self, &actions, NULL, ARGUMENTS, environ) == 0 && exit_code(pid) == 3, "addfchdir_np");
	snprintf(wanted, sizeof wanted, "closed;closed;%s/sub;d;word", check_dir);
	CHECK(file_is(in_dir("out"), wanted), "a path relative to that");
	posix_spawn_file_actions_destroy(&actions);
	close(sub);

	/* What fails in the child is the caller's error. */
	MUST(posix_spawn_file_actions_init(&actions) == 0);
	MUST(posix_spawn_file_actions_addopen(&actions, 1, in_dir("none/out"), O_WRONLY | O_CREAT, 0600) == 0);
	CHECK(spawn(&pid, self, &actions, NULL, ARGUMENTS, environ) == ENOENT, "a file that cannot be made");
	posix_spawn_file_actions_destroy(&actions);
	MUST(posix_spawn_file_actions_init(&actions) == 0);
	MUST(posix_spawn_file_actions_addchdir_np(&actions, in_dir("in")) == 0);
	CHECK(spawn(&pid, self, &actions, NULL, ARGUMENTS, environ) == ENOTDIR, "a directory that is none");
	posix_spawn_file_actions_destroy(&actions);
	MUST(posix_spawn_file_actions_init(&actions) == 0);
	MUST(posix_spawn_file_actions_adddup2(&actions, 234, 5) == 0);
	CHECK(spawn(&pid, self, &actions, NULL, ARGUMENTS, environ) == EBADF, "a descriptor that is not open");
	posix_spawn_file_actions_destroy(&actions);
	CHECK(waitpid(-1, NULL, WNOHANG) == -1 && errno == ECHILD, "no child is left");

	/* Attributes, together with a file. */
	posix_spawnattr_t attributes;
	sigset_t mask, defaults;
	sigemptyset(&mask);
	sigaddset(&mask, SIGUSR2);
	sigemptyset(&defaults);
	sigaddset(&defaults, SIGUSR1);
	MUST(posix_spawnattr_init(&attributes) == 0);
	MUST(posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF) == 0);
	posix_spawnattr_setsigmask(&attributes, &mask);
	posix_spawnattr_setsigdefault(&attributes, &defaults);
	MUST(posix_spawn_file_actions_init(&actions) == 0);
	MUST(posix_spawn_file_actions_addopen(&actions, 1, in_dir("out"), O_WRONLY | O_TRUNC, 0) == 0);
	MUST(posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0) == 0);
	signal(SIGUSR1, SIG_IGN);
	CHECK(spawn(&pid, self, &actions, &attributes, ARGUMENTS, environ) == 0 && exit_code(pid) == 4, "attributes");
	signal(SIGUSR1, SIG_DFL);
	snprintf(wanted, sizeof wanted, ";closed;%s;mdg;word", here);
	CHECK(file_is(in_dir("out"), wanted), "a group, a mask, a signal's default");
	MUST(posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSID) == 0);
	CHECK(spawn(&pid, self, &actions, &attributes, ARGUMENTS, environ) == 0 && exit_code(pid) == 4, "POSIX_SPAWN_SETSID");
	snprintf(wanted, sizeof wanted, ";closed;%s;dgs;word", here);
	CHECK(file_is(in_dir("out"), wanted), "a session");
	posix_spawn_file_actions_destroy(&actions);
	posix_spawnattr_destroy(&attributes);
	close(nine);
}

static void copy_program(const char *to)
{
	char command[9000];
	snprintf(command, sizeof command, "cp '%s' '%s' && chmod 755 '%s'", self, to, to);
	MUST(system(command) == 0);
}

/* Runs what `start` does in a child, with its output in DIR/out. */
static int started(void (*start)(const char *), const char *path)
{
	pid_t pid = fork();
	if (pid == 0) {
		int out = open(in_dir("out"), O_WRONLY | O_CREAT | O_TRUNC, 0644);
		dup2(out, 1);
		close(out);
		close(9);
		start(path);
		_exit(errno == EACCES ? 126 : errno == ENOEXEC ? 125 : errno == ENOENT ? 127 : 124);
	}
	return exit_code(pid);
}

static char *const SCRIPT_ARGUMENTS[] = {"name", "one", "two words", NULL};
static void by_execve(const char *path) { execve(path, SCRIPT_ARGUMENTS, environ); }
static void by_execv(const char *path) { execv(path, SCRIPT_ARGUMENTS); }
static void by_execl(const char *path) { execl(path, "name", "one", "two words", NULL); }
static void by_execlp(const char *path) { execlp(path, "name", "one", "two words", NULL); }
static void by_execle(const char *path) { execle(path, "name", "one", "two words", NULL, environ); }
static void by_execvp(const char *path) { execvp(path, SCRIPT_ARGUMENTS); }
static void by_execvpe(const char *path) { execvpe(path, SCRIPT_ARGUMENTS, environ); }
static void by_execveat(const char *path) { execveat(AT_FDCWD, path, SCRIPT_ARGUMENTS, environ, 0); }
static void by_fexecve(const char *path) { fexecve(open(path, O_RDONLY), SCRIPT_ARGUMENTS, environ); }
static void by_spawn(const char *path)
{
	pid_t pid;
	int error = posix_spawn(&pid, path, NULL, NULL, SCRIPT_ARGUMENTS, environ);
	if (error == 0)
		_exit(exit_code(pid));
	errno = error;
}
static void by_spawnp(const char *path)
{
	pid_t pid;
	int error = posix_spawnp(&pid, path, NULL, NULL, SCRIPT_ARGUMENTS, environ);
	if (error == 0)
		_exit(exit_code(pid));
	errno = error;
}
static void by_vfork(const char *path)
{
	pid_t pid = vfork();
	if (pid == 0) {
		execve(path, SCRIPT_ARGUMENTS, environ);
		_exit(127);
	}
	_exit(exit_code(pid));
}

static const struct {
	const char *name;
	void (*start)(const char *);
	int searches, no_search;
} WAYS[] = {
	{"execve", by_execve, 0, 0}, {"execv", by_execv, 0, 0}, {"execl", by_execl, 0, 0}, {"execlp", by_execlp, 1, 0},
	{"execle", by_execle, 0, 0}, {"execvp", by_execvp, 1, 0}, {"execvpe", by_execvpe, 1, 0}, {"execveat", by_execveat, 0, 0},
	{"fexecve", by_fexecve, 0, 1}, {"posix_spawn", by_spawn, 0, 0}, {"posix_spawnp", by_spawnp, 1, 0}, {"vfork and execve", by_vfork, 0, 0},
};
#define N_WAYS (sizeof WAYS / sizeof *WAYS)

static void programs(void)
{
	char wanted[10000], path[4096], old_path[8192];
	copy_program(in_dir("bin/reporter"));
	put_text(in_dir("bin/script"), "#!/bin/sh -u\nprintf '%s,' \"$0\" \"$@\"; pwd -P\n");
	put_text(in_dir("bin/plain"), "printf '%s,' \"$0\" \"$@\"\n");
	put_text(in_dir("bin/nested"), "");
	snprintf(wanted, sizeof wanted, "#!%s/bin/interpreter -x\nrest\n", check_dir);
	put_text(in_dir("bin/nested"), wanted);
	put_text(in_dir("bin/interpreter"), "#!/bin/sh\nprintf '%s,' \"$@\"; tail -n 1 \"$2\"\n");
	put_text(in_dir("bin/not"), "#!/bin/sh\n");
	put_text(in_dir("bin/lost"), "#!/no/such/interpreter\n");
	MUST(chmod(in_dir("bin/script"), 0755) == 0 && chmod(in_dir("bin/plain"), 0755) == 0 && chmod(in_dir("bin/nested"), 0755) == 0 &&
	     chmod(in_dir("bin/interpreter"), 0755) == 0 && chmod(in_dir("bin/not"), 0644) == 0 && chmod(in_dir("bin/lost"), 0755) == 0);
	for (size_t i = 0; i < N_WAYS; i++) {
		const char *name = WAYS[i].name;
		if (!WAYS[i].no_search) {
			CHECK(started(WAYS[i].start, in_dir("bin/script")) == 0, "%s: a script", name);
			snprintf(wanted, sizeof wanted, "%s/bin/script,one,two words,%s\n", check_dir, check_dir);
			CHECK(file_is(in_dir("out"), wanted), "is told its path and arguments");
			CHECK(started(WAYS[i].start, "bin/script") == 0, "%s: a script, relative", name);
			snprintf(wanted, sizeof wanted, "bin/script,one,two words,%s\n", check_dir);
			CHECK(file_is(in_dir("out"), wanted), "is told its path as it was given");
			CHECK(started(WAYS[i].start, in_dir("bin/nested")) == 0, "%s: a script of a script", name);
			snprintf(wanted, sizeof wanted, "-x,%s/bin/nested,one,two words,rest\n", check_dir);
			CHECK(file_is(in_dir("out"), wanted), "with the argument of its first line");
			CHECK(started(WAYS[i].start, in_dir("bin/not")) == (i == N_WAYS - 1 ? 127 : 126), "%s: what may not be run", name);
			CHECK(started(WAYS[i].start, in_dir("bin/lost")) == 127, "%s: an interpreter that is not there", name);
			CHECK(started(WAYS[i].start, in_dir("bin/none")) == 127, "%s: nothing", name);
		} else {
			CHECK(started(WAYS[i].start, in_dir("bin/script")) == 0, "%s: a script", name);
			char *text = get_file(in_dir("out"), NULL);
			CHECK(text && strstr(text, ",one,two words,"), "is told its arguments");
			free(text);
		}
		if (!WAYS[i].no_search && i != N_WAYS - 1) {
			/* Without a first line: a script for those that search, an error for the others. */
			int code = started(WAYS[i].start, in_dir("bin/plain"));
			if (WAYS[i].searches && WAYS[i].start != by_spawnp) {
				snprintf(wanted, sizeof wanted, "%s/bin/plain,one,two words,", check_dir);
				CHECK(code == 0 && file_is(in_dir("out"), wanted), "%s: a script without a first line", name);
			} else {
				CHECK(code == 125, "%s: ENOEXEC (%d)", name, code);
			}
		}
	}
	/* A directory of PATH. */
	snprintf(old_path, sizeof old_path, "%s", getenv("PATH"));
	snprintf(path, sizeof path, "/no/such:%s/bin:/bin:/usr/bin", check_dir);
	setenv("PATH", path, 1);
	for (size_t i = 0; i < N_WAYS; i++)
		if (WAYS[i].searches) {
			CHECK(started(WAYS[i].start, "script") == 0, "%s: found by PATH", WAYS[i].name);
			snprintf(wanted, sizeof wanted, "%s/bin/script,one,two words,%s\n", check_dir, check_dir);
			CHECK(file_is(in_dir("out"), wanted), "is told where it was found");
			CHECK(started(WAYS[i].start, "not") == 126, "%s: found, and may not be run", WAYS[i].name);
			CHECK(started(WAYS[i].start, "no-such-program") == 127, "%s: not found", WAYS[i].name);
			CHECK(started(WAYS[i].start, "true") == 0, "%s: one of the system's", WAYS[i].name);
		}
	setenv("PATH", ":/bin:/usr/bin", 1);
	MUST(chdir(in_dir("bin")) == 0);
	for (size_t i = 0; i < N_WAYS; i++)
		if (WAYS[i].searches)
			CHECK(started(WAYS[i].start, "script") == 0, "%s: an empty entry of PATH is the current directory", WAYS[i].name);
	MUST(chdir(check_dir) == 0);
	setenv("PATH", old_path, 1);
	/* A compiled program, from there. */
	pid_t pid = fork();
	if (pid == 0) {
		int out = open(in_dir("out"), O_WRONLY | O_CREAT | O_TRUNC, 0644);
		dup2(out, 1);
		close(0);
		execl(in_dir("bin/reporter"), "spawns", "--report", "copy", NULL);
		_exit(9);
	}
	CHECK(exit_code(pid) == 4, "a compiled program");
	snprintf(wanted, sizeof wanted, "closed;closed;%s;d;copy;bin/reporter;reporter\n;same", check_dir);
	CHECK(file_is(in_dir("out"), wanted), "says what it was given");
}

static int in_clone(void *unused)
{
	(void)unused;
	int out = open(in_dir("out"), O_WRONLY | O_CREAT | O_TRUNC, 0644);
	dup2(out, 1);
	close(out);
	execl("/bin/sh", "sh", "-c", "echo cloned; echo too > cloned-file", NULL);
	return 1;
}

static void shells(void)
{
	char line[100] = "", wanted[5000];
	MUST(chdir(in_dir("sub")) == 0);
	CHECK(system("echo text > by-system && test -f here") == 0 && file_is(in_dir("sub/by-system"), "text\n"), "system in a directory");
	FILE *pipe = popen("cat here; pwd -P", "r");
	CHECK(pipe && fgets(line, sizeof line, pipe) && pclose(pipe) == 0, "popen in a directory");
	snprintf(wanted, sizeof wanted, "%s/sub\n", check_dir);
	CHECK(!strcmp(line, wanted), "says where it is");
	pipe = popen("cat > by-popen", "w");
	CHECK(pipe && fputs("piped", pipe) >= 0 && pclose(pipe) == 0 && file_is(in_dir("sub/by-popen"), "piped"), "popen to write");
	pipe = popen("cat > by-popen", "we");
	CHECK(pipe && fputs("closed", pipe) >= 0 && pclose(pipe) == 0 && file_is(in_dir("sub/by-popen"), "closed"), "popen, e");
	static char stack[1 << 18] __attribute__((aligned(16)));
	CHECK(exit_code(clone(in_clone, stack + sizeof stack, SIGCHLD, NULL)) == 0 && file_is(in_dir("out"), "cloned\n") && file_is("cloned-file", "too\n"), "clone of a process, and exec");
	MUST(chdir(check_dir) == 0);
}

int main(int argc, char **argv)
{
	if (argc > 1 && !strcmp(argv[1], "--report"))
		return report(argc, argv);
	MUST(readlink("/proc/self/exe", self, sizeof self - 1) > 0);
	check_begin(argc, argv);
	for (int fd = 3; fd < 40; fd++)
		close(fd);
	umask(022);
	MUST(mkdir(in_dir("sub"), 0755) == 0 && mkdir(in_dir("bin"), 0755) == 0);
	put_text(in_dir("sub/here"), "");
	actions(0);
	actions(1);
	MUST(chdir(check_dir) == 0);
	actions(0);
	programs();
	shells();
	return check_end();
}
