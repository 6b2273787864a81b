/*
 * What descriptors mean across dup, fork and exec: shared offsets and flags, close-on-exec, inheritance by programs
 * that know a number only, closing in one process while another goes on; and appends of several processes.
 *
 * Started as `processes --child WORK FD` it is the program that inherits a descriptor.
 */
#include "check.h"
#include <spawn.h>
#include <sys/mman.h>
#include <sys/socket.h>

extern char **environ;
static char self[4096];

/* Runs this program as the child of the given kind of start. */
static int child_main(const char *work, int fd)
{
	char buf[100] = "";
	if (!strcmp(work, "write"))
		return write(fd, "child;", 6) == 6 ? 0 : 1;
	if (!strcmp(work, "read"))
		return read(fd, buf, 5) == 5 && !memcmp(buf, "56789", 5) ? 0 : 1;
	if (!strcmp(work, "closed"))
		return fcntl(fd, F_GETFD) == -1 && errno == EBADF ? 0 : 1;
	if (!strcmp(work, "list"))
		return faccessat(fd, "inside", F_OK, 0) == 0 ? 0 : 1;
	return 99;
}

static int run_child(const char *work, int fd, int how)
{
	char number[20];
	snprintf(number, sizeof number, "%d", fd);
	char *args[] = {self, "--child", (char *)work, number, NULL};
	pid_t pid;
	if (how == 0) {
		if ((pid = fork()) == 0) {
			execv(self, args);
			_exit(98);
		}
	} else if (how == 1) {
		if (posix_spawn(&pid, self, NULL, NULL, args, environ) != 0)
			return 0;
	} else {
		/* As Python's subprocess and dash do it. */
		if ((pid = vfork()) == 0) {
			execve(self, args, environ);
			_exit(98);
		}
	}
	return child_ok(pid);
}

static void duplicates(void)
{
	char buf[20] = "";
	int fd = open(in_dir("dup"), O_RDWR | O_CREAT, 0600);
	int twin = dup(fd);
	MUST(fd >= 0 && twin >= 0);
	CHECK(write(fd, "0123456789", 10) == 10 && lseek(twin, 0, SEEK_CUR) == 10, "dup shares the offset");
	CHECK(lseek(twin, 2, SEEK_SET) == 2 && read(fd, buf, 2) == 2 && !memcmp(buf, "23", 2), "in both directions");
	int high = fcntl(fd, F_DUPFD_CLOEXEC, 100);
	CHECK(high >= 100 && (fcntl(high, F_GETFD) & FD_CLOEXEC) && !(fcntl(fd, F_GETFD) & FD_CLOEXEC), "F_DUPFD_CLOEXEC");
	CHECK(fcntl(fd, F_SETFL, O_APPEND) == 0 && (fcntl(high, F_GETFL) & O_APPEND), "status flags are shared");
	CHECK(close(fd) == 0 && read(twin, buf, 2) == 2 && !memcmp(buf, "45", 2), "the twin outlives it");
	int other = open(in_dir("dup2"), O_RDWR | O_CREAT, 0600);
	CHECK(dup2(twin, other) == other && read(other, buf, 2) == 2 && !memcmp(buf, "67", 2), "dup2 over an open descriptor");
	CHECK(dup2(other, other) == other && dup3(twin, other, O_CLOEXEC) == other && (fcntl(other, F_GETFD) & FD_CLOEXEC), "dup2 to itself, dup3");
	int separate = open(in_dir("dup"), O_RDONLY);
	CHECK(lseek(separate, 0, SEEK_CUR) == 0, "another open has its own offset");
	int standard = dup(1);
	fflush(stdout);
	MUST(dup2(separate, 1) == 1);
	int ok = read(1, buf, 1) == 1 && buf[0] == '0';
	MUST(dup2(standard, 1) == 1);
	CHECK(ok, "dup2 onto descriptor 1, and back");
	close(standard);
	close(separate);
	close(other);
	close(twin);
	close(high);
	for (int i = 3; i < 200; i++)
		close(i);
	fd = open(in_dir("dup"), O_RDONLY);
	CHECK(fd == 3 && read(fd, buf, 3) == 3 && !memcmp(buf, "012", 3), "after closing everything, open gives 3");
	close_range(3, 100, 0);
	CHECK_FAILS(read(fd, buf, 1), EBADF, "close_range closes");
	fd = open(in_dir("dup"), O_RDONLY);
	closefrom(3);
	CHECK_FAILS(read(fd, buf, 1), EBADF, "closefrom closes");
}

static void forks(void)
{
	char buf[20] = "";
	int fd = open(in_dir("fork"), O_RDWR | O_CREAT, 0600), pipes[2];
	MUST(fd >= 0 && pipe(pipes) == 0);
	MUST(write(fd, "0123456789", 10) == 10 && lseek(fd, 0, SEEK_SET) == 0);
	pid_t pid = fork();
	if (pid == 0)
		_exit(read(fd, buf, 3) == 3 && close(fd) == 0 ? 0 : 1);
	CHECK(child_ok(pid) && lseek(fd, 0, SEEK_CUR) == 3, "parent and child share the offset");
	CHECK(read(fd, buf, 2) == 2 && !memcmp(buf, "34", 2), "the child's close leaves the parent's open");
	pid = fork();
	if (pid == 0) {
		int made = open(in_dir("fork_made"), O_WRONLY | O_CREAT, 0600);
		_exit(made >= 0 && write(made, "by the child", 12) == 12 ? 0 : 1);
	}
	CHECK(child_ok(pid) && file_is(in_dir("fork_made"), "by the child"), "a file that the child made and never closed");
	/* The parent closes and unlinks while the child still writes and reads. */
	pid = fork();
	if (pid == 0) {
		char go;
		_exit(read(pipes[0], &go, 1) == 1 && pwrite(fd, "later", 5, 0) == 5 && pread(fd, buf, 10, 0) == 10 && !memcmp(buf, "later56789", 10) ? 0 : 1);
	}
	close(fd);
	MUST(unlink(in_dir("fork")) == 0 && write(pipes[1], "g", 1) == 1);
	CHECK(child_ok(pid), "the child goes on when the parent closed and unlinked");
	fd = open(in_dir("interleaved"), O_RDWR | O_CREAT, 0600);
	MUST(fd >= 0);
	pid_t children[4];
	for (int i = 0; i < 4; i++)
		if ((children[i] = fork()) == 0) {
			char record[16];
			for (int n = 0; n < 1000; n++) {
				snprintf(record, sizeof record, "%d:%05d;......\n", i, n);
				if (write(fd, record, 15) != 15)
					_exit(1);
			}
			_exit(0);
		}
	int good = 0;
	for (int i = 0; i < 4; i++)
		good += child_ok(children[i]);
	struct stat st;
	CHECK(good == 4 && fstat(fd, &st) == 0 && st.st_size == 4 * 1000 * 15, "four processes write by one shared offset: nothing lost");
	int seen[4] = {0}, wrong = 0, who, number;
	char *data = get_file(in_dir("interleaved"), NULL);
	for (int i = 0; i < 4000; i++)
		if (sscanf(data + i * 15, "%d:%d;", &who, &number) != 2 || who < 0 || who > 3 || number != seen[who]++)
			wrong++;
	CHECK(wrong == 0, "each record whole, each process's in order (%d wrong)", wrong);
	free(data);
	close(fd);
	close(pipes[0]);
	close(pipes[1]);
}

static void execs(void)
{
	static const char *const HOW[] = {"fork+exec", "posix_spawn", "vfork+exec"};
	put_text(in_dir("digits"), "0123456789");
	MUST(mkdir(in_dir("dir"), 0755) == 0);
	put_text(in_dir("dir/inside"), "");
	for (int how = 0; how < 3; how++) {
		int fd = open(in_dir("out%d", how), O_WRONLY | O_CREAT, 0600);
		MUST(fd >= 0 && write(fd, "before;", 7) == 7);
		CHECK(run_child("write", fd, how), "%s: the program writes the inherited descriptor", HOW[how]);
		CHECK(write(fd, "after;", 6) == 6 && file_is(in_dir("out%d", how), "before;child;after;"), "%s: at the shared offset", HOW[how]);
		close(fd);
		fd = open(in_dir("digits"), O_RDONLY);
		MUST(lseek(fd, 5, SEEK_SET) == 5);
		CHECK(run_child("read", fd, how) && lseek(fd, 0, SEEK_CUR) == 10, "%s: the program reads it", HOW[how]);
		close(fd);
		fd = open(in_dir("digits"), O_RDONLY | O_CLOEXEC);
		CHECK(run_child("closed", fd, how), "%s: O_CLOEXEC is closed there", HOW[how]);
		CHECK(fcntl(fd, F_SETFD, 0) == 0 && lseek(fd, 5, SEEK_SET) == 5 && run_child("read", fd, how), "%s: F_SETFD lets it through", HOW[how]);
		close(fd);
		fd = open(in_dir("dir"), O_RDONLY | O_DIRECTORY);
		CHECK(run_child("list", fd, how), "%s: an inherited directory", HOW[how]);
		close(fd);
	}
	/* The same with redirection by posix_spawn's own actions, which run inside libc. */
	posix_spawn_file_actions_t actions;
	char *args[] = {"/bin/echo", "spawned", NULL};
	pid_t pid = 0;
	posix_spawn_file_actions_init(&actions);
	int fd = open(in_dir("spawned"), O_WRONLY | O_CREAT, 0600);
	posix_spawn_file_actions_adddup2(&actions, fd, 1);
	CHECK(posix_spawn(&pid, args[0], &actions, NULL, args, environ) == 0 && child_ok(pid) && file_is(in_dir("spawned"), "spawned\n"), "posix_spawn with dup2");
	posix_spawn_file_actions_destroy(&actions);
	close(fd);
	/* A program started in a directory of ours. */
	char before[4096];
	MUST(getcwd(before, sizeof before) && chdir(in_dir("dir")) == 0);
	CHECK(system("test -f inside && echo here > made && test \"$(/bin/pwd -P)\" = \"$PWD\"") == 0, "a shell started in the directory");
	MUST(chdir(before) == 0);
	CHECK(file_is(in_dir("dir/made"), "here\n"), "made its file there");
	put_text(in_dir("script"), "#!/bin/sh\necho ran \"$1\"\n");
	MUST(chmod(in_dir("script"), 0755) == 0);
	int code = system(in_dir("script"));
	CHECK(code == 0 || WEXITSTATUS(code) == 126 || WEXITSTATUS(code) == 127, "a script in the directory runs, or the shell says it cannot (%d)", code);
}

static void passing(void)
{
	/* A descriptor sent over a socket (SCM_RIGHTS) goes on, is refused, or fails at its first use; it never reads something else. */
	int pair[2];
	char byte = 'x', room[CMSG_SPACE(sizeof(int))];
	memset(room, 0, sizeof room);
	struct iovec vector = {&byte, 1};
	struct msghdr message = {.msg_iov = &vector, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
	struct cmsghdr *header = CMSG_FIRSTHDR(&message);
	MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
	pid_t pid = fork();
	if (pid == 0) {
		int got;
		char text[6] = "";
		if (recvmsg(pair[1], &message, 0) != 1 || !CMSG_FIRSTHDR(&message))
			_exit(1);
		memcpy(&got, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof got);
		ssize_t n = read(got, text, 5);
		_exit((n == 5 && !memcmp(text, "56789", 5)) || (n == -1 && errno == EBADF) ? 0 : 2);
	}
	int fd = open(in_dir("digits"), O_RDONLY);
	MUST(fd >= 0 && lseek(fd, 5, SEEK_SET) == 5);
	header->cmsg_level = SOL_SOCKET;
	header->cmsg_type = SCM_RIGHTS;
	header->cmsg_len = CMSG_LEN(sizeof fd);
	memcpy(CMSG_DATA(header), &fd, sizeof fd);
	ssize_t sent = sendmsg(pair[0], &message, 0);
	int refused = errno;
	close(pair[0]);
	int ok = child_ok(pid);
	CHECK(sent == 1 ? ok : refused == EOPNOTSUPP || refused == EINVAL || refused == EPERM, "a descriptor sent over a socket works or fails loudly");
	close(pair[1]);
	close(fd);
}

static void appends(void)
{
	/* Eight processes append records of different lengths: none may overlap, tear or vanish. */
	enum { WRITERS = 8, RECORDS = 500 };
	pid_t children[WRITERS];
	for (int who = 0; who < WRITERS; who++)
		if ((children[who] = fork()) == 0) {
			int fd = open(in_dir("appends"), O_WRONLY | O_CREAT | O_APPEND, 0600);
			static char record[3000];
			for (int n = 0; n < RECORDS; n++) {
				int length = 20 + (n * 37 + who * 101) % 2900;
				int used = sprintf(record, "%d %d %d ", who, n, length);
				memset(record + used, 'a' + who, (size_t)(length - used - 1));
				record[length - 1] = '\n';
				if (write(fd, record, (size_t)length) != length)
					_exit(1);
			}
			_exit(close(fd) == 0 ? 0 : 1);
		}
	int good = 0, wrong = 0, records = 0, seen[WRITERS] = {0};
	for (int who = 0; who < WRITERS; who++)
		good += child_ok(children[who]);
	CHECK(good == WRITERS, "eight processes append 500 records each");
	size_t size = 0;
	char *data = get_file(in_dir("appends"), &size);
	MUST(data);
	for (size_t at = 0; at < size; records++) {
		int who, n, length, used;
		if (sscanf(data + at, "%d %d %d %n", &who, &n, &length, &used) != 3 || who < 0 || who >= WRITERS || n != seen[who]++ ||
		    at + (size_t)length > size || data[at + (size_t)length - 1] != '\n' ||
		    !all_bytes(data + at + used, (size_t)(length - used - 1), 'a' + who)) {
			wrong++;
			break;
		}
		at += (size_t)length;
	}
	CHECK(wrong == 0 && records == WRITERS * RECORDS, "all records whole and in each writer's order (%d)", records);
	free(data);
}

int main(int argc, char **argv)
{
	if (argc == 4 && !strcmp(argv[1], "--child"))
		return child_main(argv[2], atoi(argv[3]));
	MUST(readlink("/proc/self/exe", self, sizeof self - 1) > 0);
	check_begin(argc, argv);
	duplicates();
	forks();
	execs();
	passing();
	appends();
	return check_end();
}
