/*
 * No wrapper may ask the program's allocator for memory: that may be what calls it, with its locks held. This
 * program is its own allocator and counts who asks, in a process for each wrapper: within its first call, which
 * comes before any constructor has run, and within later ones.
 *
 *     allocator DIR                     all of them, on files of DIR
 *     allocator DIR ONE                 the one of this number
 *     allocator names                   which there are
 */
#include "check.h"
#include <dirent.h>
#include <dlfcn.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>

/*
 * The arguments of each group of functions: p a file, q and z names of none (z one that mkstemp fills in), D a
 * directory, d and e descriptors of files, c one of a directory, R a stream of it, b a buffer, i vectors, m a
 * message, A strings, u an attribute's name, h a handler, f a file's mode, @ AT_FDCWD, digits themselves, n 100,
 * N the length of b.
 */
static const struct {
	const char *arguments, *names;
} groups[] = {
	{"p0", "open open64 __open __open64 __open_2 __open64_2 access eaccess euidaccess"},
	{"@p0", "openat openat64 __openat __openat64 __openat_2 __openat64_2"},
	{"@p00", "faccessat"},
	{"qf", "creat creat64 mkdir mkfifo"},
	{"pf", "chmod lchmod"},
	{"df", "fchmod"},
	{"@pf0", "fchmodat"},
	{"p11", "chown lchown"},
	{"d11", "fchown"},
	{"@p110", "fchownat"},
	{"@qf", "mkdirat mkfifoat"},
	{"qf0", "mknod"},
	{"@qf0", "mknodat"},
	{"q", "rmdir"},
	{"p", "unlink remove"},
	{"@p0", "unlinkat"},
	{"pq", "link symlink rename"},
	{"p@q", "symlinkat"},
	{"@p@q", "renameat"},
	{"@p@q0", "linkat renameat2"},
	{"D", "chdir"},
	{"p", "chroot"},
	{"c", "fchdir"},
	{"pbn", "readlink"},
	{"@pbn", "readlinkat"},
	{"pbnN", "__readlink_chk"},
	{"@pbnN", "__readlinkat_chk"},
	{"pb", "stat stat64 lstat lstat64 statfs statfs64 statvfs statvfs64 realpath"},
	{"pbN", "__realpath_chk"},
	{"db", "fstat fstat64 fstatfs fstatfs64 fstatvfs fstatvfs64"},
	{"@pb0", "fstatat fstatat64"},
	{"1pb", "__xstat __xstat64 __lxstat __lxstat64"},
	{"1db", "__fxstat __fxstat64"},
	{"1@pb0", "__fxstatat __fxstatat64"},
	{"@p00b", "statx"},
	{"p1", "pathconf ftok umount2"},
	{"p", "umount"},
	{"ppq00", "mount"},
	{"d10@p", "fanotify_mark"},
	{"d1", "fpathconf"},
	{"dbn", "read write __read __write"},
	{"dbnN", "__read_chk"},
	{"dbn0", "pread pread64 pwrite pwrite64 __pread64 __pwrite64"},
	{"dbn0N", "__pread_chk __pread64_chk"},
	{"di1", "readv writev"},
	{"di10", "preadv preadv64 pwritev pwritev64"},
	{"di100", "preadv2 preadv64v2 pwritev2 pwritev64v2"},
	{"d00", "lseek lseek64 __lseek"},
	{"d", "dup fsync fdatasync syncfs isatty"},
	{"e", "close __close"},
	{"de", "dup2 __dup2"},
	{"de0", "dup3"},
	{"d1", "fcntl fcntl64 __fcntl"},
	{"d9b", "ioctl"},
	{"d8", "flock"},
	{"d3n", "lockf lockf64"},
	{"dn", "ftruncate ftruncate64"},
	{"pn", "truncate truncate64"},
	{"d0nn", "fallocate fallocate64"},
	{"d0n", "posix_fallocate posix_fallocate64 readahead"},
	{"d0n0", "posix_fadvise posix_fadvise64 sync_file_range"},
	{"d0e0n0", "copy_file_range splice"},
	{"de0n", "sendfile sendfile64"},
	{"den0", "tee"},
	{"p0", "utime utimes lutimes"},
	{"d0", "futimes futimens"},
	{"@p0", "futimesat"},
	{"@p00", "utimensat"},
	{"0n12d0", "mmap mmap64"},
	{"dm0", "recvmsg sendmsg"},
	{"dm10", "sendmmsg recvmmsg"},
	{"nn0", "close_range"},
	{"n", "closefrom umask"},
	{"bN", "getcwd __getwd_chk"},
	{"bNN", "__getcwd_chk"},
	{"b", "getwd"},
	{"cbN", "getdents64"},
	{"R", "readdir readdir64 rewinddir telldir dirfd"},
	{"Rbb", "readdir_r readdir64_r"},
	{"R0", "seekdir"},
	{"pubn", "getxattr lgetxattr"},
	{"dubn", "fgetxattr"},
	{"puu10", "setxattr lsetxattr"},
	{"duu10", "fsetxattr"},
	{"pbn", "listxattr llistxattr"},
	{"dbn", "flistxattr"},
	{"pu", "removexattr lremovexattr"},
	{"du", "fremovexattr"},
	{"npn", "inotify_add_watch"},
	{"@pbb0", "name_to_handle_at"},
	{"z", "mkdtemp mkstemp mkstemp64"},
	{"z0", "mkostemp mkostemp64 mkstemps mkstemps64"},
	{"z00", "mkostemps mkostemps64"},
	{"7h", "signal bsd_signal ssignal sysv_signal __sysv_signal sigset"},
	{"70b", "sigaction __sigaction"},
	{"qp0", "execl execlp"},
	{"qp0A", "execle"},
	{"qA", "execv execvp"},
	{"qAA", "execve execvpe"},
	{"@qAA0", "execveat"},
	{"dAA", "fexecve"},
	{"110", "socket __socket"},
	{"d00", "accept"},
	{"d000", "accept4"},
	{"110b", "socketpair"},
	{"b", "pipe"},
	{"b0", "pipe2"},
	{"", "inotify_init"},
	{"1", "epoll_create"},
	{"0", "epoll_create1 inotify_init1"},
	{"2", "posix_openpt"},
	{"00", "eventfd timerfd_create fanotify_init pidfd_open"},
	{"000", "pidfd_getfd"},
	{"db0", "signalfd open_by_handle_at"},
	{"u0", "memfd_create"},
	{"u00", "shm_open"},
	{"u000", "mq_open"},
	{"bb000", "openpty"},
	{"3e", "syscall"},
	{"db0", "bind connect __connect"},
	{"dbn0b0", "sendto"},
	{"dbb", "getsockname getpeername"},
	{"0", "setuid seteuid setgid setegid"},
	{"00", "setreuid setregid"},
	{"000", "setresuid setresgid"},
	{"0b", "setgroups"},
	{"4b", "setrlimit setrlimit64"},
	{"04bb", "prlimit prlimit64"},
};

/*
 * libc's own allocate, end the process, or are told by their arguments to do either. Of those that libc implements
 * by others of itself the wrappers do nothing else.
 */
static const char others[] =
	"initgroups _exit _Exit vfork daemon login_tty forkpty tmpfile tmpfile64 popen system posix_spawn posix_spawnp dlopen dlmopen "
	"posix_spawn_file_actions_init posix_spawn_file_actions_destroy posix_spawn_file_actions_addopen posix_spawn_file_actions_addclose "
	"posix_spawn_file_actions_adddup2 posix_spawn_file_actions_addchdir_np posix_spawn_file_actions_addfchdir_np "
	"posix_spawn_file_actions_addclosefrom_np posix_spawn_file_actions_addtcsetpgrp_np "
	"opendir fdopendir closedir scandir scandir64 scandirat scandirat64 "
	"io_uring_setup io_uring_queue_init io_uring_queue_init_params io_uring_queue_init_mem "
	"glob glob64 wordexp ftw ftw64 nftw nftw64 tempnam fts_open fts_read fts_children fts_set fts_close "
	"fts64_open fts64_read fts64_children fts64_set fts64_close "
	"fopen fopen64 fdopen freopen freopen64 canonicalize_file_name get_current_dir_name "
	"aio_read aio_read64 aio_write aio_write64 aio_fsync aio_fsync64 aio_cancel aio_cancel64 lio_listio lio_listio64";

static char room[64 << 20] __attribute__((aligned(16)));
static size_t used;
static volatile int watched, count;

static void *take(size_t size)
{
	size_t *block = (size_t *)(room + used);
	used += (size + 31) & ~(size_t)15;
	if (used > sizeof room)
		abort();
	count += watched;
	*block = size;
	return block + 2;
}

void *malloc(size_t size) { return take(size); }
void free(void *block) { count += watched && block != NULL; }
void *calloc(size_t many, size_t size) { return take(many * size); }

void *realloc(void *block, size_t size)
{
	void *other = take(size);
	if (block != NULL) {
		size_t had = ((size_t *)block)[-2];
		memcpy(other, block, had < size ? had : size);
	}
	return other;
}

static char file[4096], none[4096], filled[4096];
static char buffer[65536];
static int descriptors[3];
static DIR *stream;
static const char *directory;
static struct iovec vectors[] = {{buffer, 100}};
static struct msghdr message = {.msg_iov = vectors, .msg_iovlen = 1};
static char *strings[] = {"nobody", NULL};
static int first_count;

typedef long function(long, long, long, long, long, long);

static void handler(int number)
{
	(void)number;
}

/* The function of a number and its arguments, of all groups; null: there are fewer. */
static const char *named(int number, const char **arguments)
{
	static char name[64];
	for (size_t group = 0; group < sizeof groups / sizeof *groups; group++) {
		const char *at = groups[group].names;
		*arguments = groups[group].arguments;
		while (*at != 0) {
			size_t length = strcspn(at, " ");
			if (number-- == 0) {
				memcpy(name, at, length);
				name[length] = 0;
				return name;
			}
			at += length + (at[length] == ' ');
		}
	}
	return NULL;
}

static long argument(char letter)
{
	switch (letter) {
	case 'p': return (long)file;
	case 'q': return (long)none;
	case 'z': snprintf(filled, sizeof filled, "%s/aXXXXXX", directory); return (long)filled;
	case 'D': return (long)directory;
	case 'd': return descriptors[0];
	case 'e': return descriptors[1];
	case 'c': return descriptors[2];
	case 'R': return (long)stream;
	case 'b': return (long)buffer;
	case 'i': return (long)vectors;
	case 'm': return (long)&message;
	case 'A': return (long)strings;
	case 'u': return (long)"user.weir";
	case 'h': return (long)handler;
	case 'f': return 0600;
	case '@': return AT_FDCWD;
	case 'n': return 100;
	case 'N': return sizeof buffer;
	case '7': return SIGUSR1;
	default: return letter - '0';
	}
}

static int call(int number)
{
	const char *arguments;
	const char *name = named(number, &arguments);
	long with[6] = {0};
	function *called = (function *)dlsym(RTLD_DEFAULT, name);
	if (called == NULL)
		return 0;
	/* What needs a descriptor is not the first call that weir sees. */
	if (strpbrk(arguments, "decR") != NULL) {
		descriptors[0] = open(file, O_RDWR);
		descriptors[1] = open(file, O_RDWR);
		descriptors[2] = open(directory, O_RDONLY | O_DIRECTORY);
		stream = strchr(arguments, 'R') != NULL ? opendir(directory) : NULL;
	}
	for (int i = 0; arguments[i] != 0; i++)
		with[i] = argument(arguments[i]);
	count = 0;
	watched = 1;
	called(with[0], with[1], with[2], with[3], with[4], with[5]);
	watched = 0;
	return count;
}

static void first(int argc, char **argv)
{
	if (argc != 3)
		return;
	directory = argv[1];
	snprintf(file, sizeof file, "%s/file", directory);
	snprintf(none, sizeof none, "%s/none", directory);
	first_count = call(atoi(argv[2]));
}

/* Before the constructors of all libraries. */
static __attribute__((section(".preinit_array"), used)) void (*preinit)(int, char **) = first;

static void list(void)
{
	const char *arguments, *name;
	for (int i = 0; (name = named(i, &arguments)) != NULL; i++)
		puts(name);
	for (const char *at = others; *at != 0;) {
		size_t length = strcspn(at, " ");
		printf("%.*s\n", (int)length, at);
		at += length + (at[length] == ' ');
	}
}

int main(int argc, char **argv)
{
	const char *arguments, *name;
	if (argc == 3) {
		int number = atoi(argv[2]), later = call(number);
		name = named(number, &arguments);
		if (first_count + later == 0)
			_exit(0);
		dprintf(2, "%s asked for memory: %d times at first, then %d times\n", name, first_count, later);
		_exit(1);
	}
	if (argc == 2 && strcmp(argv[1], "names") == 0) {
		list();
		return 0;
	}
	check_begin(argc, argv);
	for (int i = 0; (name = named(i, &arguments)) != NULL; i++) {
		char number[16];
		int status;
		remove(in_dir("none"));
		put_text(in_dir("file"), "some bytes");
		snprintf(number, sizeof number, "%d", i);
		pid_t pid = fork();
		if (pid == 0) {
			alarm(20);
			execl("/proc/self/exe", argv[0], check_dir, number, NULL);
			_exit(127);
		}
		CHECK(waitpid(pid, &status, 0) == pid && status == 0, "%s", name);
	}
	return check_end();
}
