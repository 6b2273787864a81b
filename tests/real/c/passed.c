/*
 * What reaches a file past read and write: descriptors that are sent by sendmmsg and received by recvmmsg, the
 * kernel's aio, rings of io_uring. A ring works, or there is none; what is asked of one that a program makes without libc is done or fails.
 */
#include "check.h"
#include <linux/aio_abi.h>
#include <linux/io_uring.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>

enum { MESSAGES = 3 };

struct parcel {
	char byte;
	struct iovec vector;
	_Alignas(struct cmsghdr) char control[CMSG_SPACE(2 * sizeof(int))];
};

static void prepare(struct mmsghdr *message, struct parcel *parcel)
{
	parcel->byte = 'x';
	parcel->vector = (struct iovec){&parcel->byte, 1};
	memset(parcel->control, 0, sizeof parcel->control);
	message->msg_hdr = (struct msghdr){.msg_iov = &parcel->vector, .msg_iovlen = 1, .msg_control = parcel->control, .msg_controllen = sizeof parcel->control};
}

/* The program that receives: 0, if all is as it was sent. */
static int receive(int socket)
{
	struct mmsghdr messages[MESSAGES];
	struct parcel parcels[MESSAGES];
	int got[MESSAGES][2];
	char text[8] = "";
	struct stat status;
	for (int i = 0; i < MESSAGES; i++)
		prepare(&messages[i], &parcels[i]);
	if (recvmmsg(socket, messages, MESSAGES, MSG_WAITFORONE, NULL) != MESSAGES)
		return 1;
	for (int i = 0; i < MESSAGES; i++) {
		struct cmsghdr *header = CMSG_FIRSTHDR(&messages[i].msg_hdr);
		if (!header || header->cmsg_len != CMSG_LEN(sizeof got[i]))
			return 2;
		memcpy(got[i], CMSG_DATA(header), sizeof got[i]);
	}
	for (int i = 0; i < MESSAGES; i++) {
		if (read(got[i][0], text, 2) != 2 || text[0] != '2' + 2 * i || text[1] != '3' + 2 * i)
			return 3;
		if (fstat(got[i][0], &status) != 0 || !S_ISREG(status.st_mode) || status.st_size != 10)
			return 4;
		int fd = openat(got[i][1], "made", O_WRONLY | O_CREAT | O_APPEND, 0600);
		if (fd < 0 || write(fd, "m", 1) != 1 || close(fd) != 0)
			return 5;
	}
	return 0;
}

static void by_sockets(void)
{
	int pair[2], fd = open(in_dir("digits"), O_RDONLY), dir = open(in_dir("sub"), O_RDONLY | O_DIRECTORY);
	MUST(fd >= 0 && dir >= 0 && socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair) == 0 && lseek(fd, 2, SEEK_SET) == 2);
	/* Started before, so that it has nothing but what it is sent. */
	char number[20];
	snprintf(number, sizeof number, "%d", pair[1]);
	pid_t pid = fork();
	if (pid == 0) {
		close(fd);
		close(dir);
		execl("/proc/self/exe", "passed", "--receive", number, NULL);
		_exit(9);
	}
	struct mmsghdr messages[MESSAGES];
	struct parcel parcels[MESSAGES];
	int sent[2] = {fd, dir};
	for (int i = 0; i < MESSAGES; i++) {
		prepare(&messages[i], &parcels[i]);
		struct cmsghdr *header = CMSG_FIRSTHDR(&messages[i].msg_hdr);
		header->cmsg_level = SOL_SOCKET;
		header->cmsg_type = SCM_RIGHTS;
		header->cmsg_len = CMSG_LEN(sizeof sent);
		memcpy(CMSG_DATA(header), sent, sizeof sent);
	}
	CHECK(sendmmsg(pair[0], messages, MESSAGES, 0) == MESSAGES, "sendmmsg with descriptors");
	int status = -1;
	waitpid(pid, &status, 0);
	CHECK(status == 0, "recvmmsg: files, one offset, directories (%d)", status >> 8);
	CHECK(lseek(fd, 0, SEEK_CUR) == 8 && file_is(in_dir("sub/made"), "mmm"), "which are the sender's");
	close(pair[0]);
	close(pair[1]);
	close(fd);
	close(dir);
}

/* Lengths that control data does not have: nothing past its end is taken for a descriptor. */
static void bad_lengths(void)
{
	int pair[2];
	union {
		struct cmsghdr header;
		char room[CMSG_SPACE(sizeof(int))];
	} control = {.header = {.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS}};
	struct iovec vector = {"x", 1};
	struct msghdr message = {.msg_iov = &vector, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
	MUST(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair) == 0);
	control.header.cmsg_len = 1;
	CHECK_FAILS(sendmsg(pair[0], &message, 0), EINVAL, "a header of one byte: EINVAL");
	control.header.cmsg_len = (size_t)1 << 40;
	CHECK_FAILS(sendmsg(pair[0], &message, 0), EINVAL, "descriptors past the end of the control data: EINVAL");
	message.msg_control = (void *)8;
	CHECK_FAILS(sendmsg(pair[0], &message, 0), EFAULT, "control data at no address: EFAULT");
	close(pair[0]);
	close(pair[1]);
}

/* The kernel's aio: each request is done or refused. */
static void by_aio(void)
{
	aio_context_t context = 0;
	struct io_event event;
	char text[11] = "";
	int fd = open(in_dir("digits"), O_RDWR), other = (int)syscall(SYS_memfd_create, "other", 0);
	MUST(fd >= 0 && other >= 0 && write(other, "memory", 6) == 6);
	if (syscall(SYS_io_setup, 8, &context) != 0)
		return;
	struct iocb read_it = {.aio_lio_opcode = IOCB_CMD_PREAD, .aio_fildes = (unsigned)fd, .aio_buf = (uintptr_t)text, .aio_nbytes = 10};
	struct iocb read_other = {.aio_lio_opcode = IOCB_CMD_PREAD, .aio_fildes = (unsigned)other, .aio_buf = (uintptr_t)text, .aio_nbytes = 6};
	struct iocb sync_it = {.aio_lio_opcode = IOCB_CMD_FSYNC, .aio_fildes = (unsigned)fd};
	struct iocb *first[] = {&read_it}, *both[] = {&read_other, &read_it}, *third[] = {&sync_it};
	long n = syscall(SYS_io_submit, context, 1, first);
	CHECK(n == 1 ? syscall(SYS_io_getevents, context, 1, 1, &event, NULL) == 1 && event.res == 10 && !strcmp(text, "0123456789") : errno == EINVAL, "io_submit reads, or is refused (%ld)", n);
	memset(text, 0, sizeof text);
	n = syscall(SYS_io_submit, context, 2, both);
	CHECK(n >= 1 && syscall(SYS_io_getevents, context, n, n, (struct io_event[2]){{0}}, NULL) == n && (n == 2 || !strcmp(text, "memory")), "those before one that is refused are done (%ld)", n);
	n = syscall(SYS_io_submit, context, 1, third);
	CHECK(n == 1 || errno == EINVAL, "fsync, or none (%ld)", n);
	syscall(SYS_io_destroy, context);
	close(fd);
	close(other);
}

static long raw(long number, long a, long b, long c, long d, long e, long f)
{
#if defined __x86_64__
	long result;
	register long r10 __asm__("r10") = d, r8 __asm__("r8") = e, r9 __asm__("r9") = f;
	__asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9) : "rcx", "r11", "memory");
	return result;
#elif defined __aarch64__
	register long x8 __asm__("x8") = number, x0 __asm__("x0") = a, x1 __asm__("x1") = b, x2 __asm__("x2") = c;
	register long x3 __asm__("x3") = d, x4 __asm__("x4") = e, x5 __asm__("x5") = f;
	__asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5) : "memory");
	return x0;
#endif
}

struct ring {
	int fd;
	struct io_uring_params parameters;
	char *queues;
	struct io_uring_sqe *entries;
};

static int map_ring(struct ring *ring)
{
	struct io_uring_params *p = &ring->parameters;
	size_t size = p->sq_off.array + p->sq_entries * sizeof(unsigned), other = p->cq_off.cqes + p->cq_entries * sizeof(struct io_uring_cqe);
	ring->queues = mmap(NULL, size > other ? size : other, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, ring->fd, IORING_OFF_SQ_RING);
	ring->entries = mmap(NULL, p->sq_entries * sizeof(struct io_uring_sqe), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, ring->fd, IORING_OFF_SQES);
	return ring->queues != MAP_FAILED && ring->entries != MAP_FAILED;
}

/* Does one request; its result. */
static int ask(struct ring *ring, struct io_uring_sqe request)
{
	struct io_uring_params *p = &ring->parameters;
	unsigned *tail = (unsigned *)(ring->queues + p->sq_off.tail), mask = *(unsigned *)(ring->queues + p->sq_off.ring_mask);
	unsigned *array = (unsigned *)(ring->queues + p->sq_off.array), *head = (unsigned *)(ring->queues + p->cq_off.head);
	unsigned at = *tail & mask;
	ring->entries[at] = request;
	array[at] = at;
	__atomic_store_n(tail, *tail + 1, __ATOMIC_RELEASE);
	if (raw(SYS_io_uring_enter, ring->fd, 1, 1, IORING_ENTER_GETEVENTS, 0, 0) != 1)
		return -EIO;
	struct io_uring_cqe *done = (struct io_uring_cqe *)(ring->queues + p->cq_off.cqes);
	int result = done[*head & *(unsigned *)(ring->queues + p->cq_off.ring_mask)].res;
	__atomic_store_n(head, *head + 1, __ATOMIC_RELEASE);
	return result;
}

static void requests(struct ring *ring, const char *how)
{
	char text[11] = "", path[] = "by-ring";
	int fd = open(in_dir("digits"), O_RDWR), sub = open(in_dir("sub"), O_RDONLY | O_DIRECTORY);
	struct stat status;
	MUST(fd >= 0 && sub >= 0 && ftruncate(fd, 10) == 0);
	int n = ask(ring, (struct io_uring_sqe){.opcode = IORING_OP_READ, .fd = fd, .addr = (uintptr_t)text, .len = 10});
	CHECK(n < 0 || (n == 10 && !strcmp(text, "0123456789")), "%s: a read is right or fails (%d)", how, n);
	n = ask(ring, (struct io_uring_sqe){.opcode = IORING_OP_WRITE, .fd = fd, .addr = (uintptr_t)"abc", .len = 3, .off = 10});
	CHECK(n < 0 || file_is(in_dir("digits"), "0123456789abc"), "%s: a write is done or fails (%d)", how, n);
	MUST(truncate(in_dir("digits"), 10) == 0);
	n = ask(ring, (struct io_uring_sqe){.opcode = IORING_OP_OPENAT, .fd = sub, .addr = (uintptr_t)path, .len = 0600, .open_flags = O_CREAT | O_RDWR});
	CHECK(n < 0 || access(in_dir("sub/by-ring"), F_OK) == 0, "%s: a file made in a directory is there, or it fails (%d)", how, n);
	MUST(chdir(in_dir("sub")) == 0);
	n = ask(ring, (struct io_uring_sqe){.opcode = IORING_OP_OPENAT, .fd = AT_FDCWD, .addr = (uintptr_t) "by-ring-2", .len = 0600, .open_flags = O_CREAT | O_RDWR});
	CHECK(n < 0 || access("by-ring-2", F_OK) == 0, "%s: also in the current directory (%d)", how, n);
	n = ask(ring, (struct io_uring_sqe){.opcode = IORING_OP_OPENAT, .fd = AT_FDCWD, .addr = (uintptr_t)in_dir("sub/by-ring-3"), .len = 0600, .open_flags = O_CREAT | O_RDWR});
	CHECK(n < 0 || access("by-ring-3", F_OK) == 0, "%s: and by an absolute path (%d)", how, n);
	n = ask(ring, (struct io_uring_sqe){.opcode = IORING_OP_FALLOCATE, .fd = fd, .off = 0, .addr = 100});
	CHECK(n < 0 || (fstat(fd, &status) == 0 && status.st_size == 100), "%s: fallocate (%d)", how, n);
	MUST(chdir("/") == 0);
}

static void rings(void)
{
	struct ring ring;
	memset(&ring, 0, sizeof ring);
	ring.fd = (int)syscall(SYS_io_uring_setup, 8, &ring.parameters);
	CHECK(ring.fd >= 0 || errno == ENOSYS || errno == EPERM, "a ring, or none");
	if (ring.fd >= 0 && map_ring(&ring))
		requests(&ring, "by syscall");
	if (ring.fd >= 0)
		close(ring.fd);
	memset(&ring, 0, sizeof ring);
	ring.fd = (int)raw(SYS_io_uring_setup, 8, (long)&ring.parameters, 0, 0, 0, 0);
	if (ring.fd >= 0 && map_ring(&ring))
		requests(&ring, "without libc");
}

int main(int argc, char **argv)
{
	if (argc == 3 && !strcmp(argv[1], "--receive"))
		return receive(atoi(argv[2]));
	check_begin(argc, argv);
	put_text(in_dir("digits"), "0123456789");
	MUST(mkdir(in_dir("sub"), 0755) == 0);
	by_sockets();
	bad_lengths();
	by_aio();
	rings();
	return check_end();
}
