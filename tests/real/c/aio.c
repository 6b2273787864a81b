/*
 * The kernel's asynchronous I/O, as libaio asks for it; POSIX asynchronous I/O and lists of it. glibc runs the latter
 * in threads of its own that call its internal pread and pwrite, past the exported symbols: an interposer must take
 * the aio calls themselves.
 */
#include "check.h"
#include <aio.h>
#include <linux/aio_abi.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <pthread.h>
#include <signal.h>
#include <time.h>

enum { BLOCK = 100000, BLOCKS = 8 };
static unsigned char data[BLOCKS][BLOCK], back[BLOCKS][BLOCK];
static volatile sig_atomic_t signalled;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t wake = PTHREAD_COND_INITIALIZER;
static int notified;

static void on_signal(int number, siginfo_t *info, void *context)
{
	(void)number;
	(void)context;
	signalled = info->si_value.sival_int;
}

static void on_thread(union sigval value)
{
	pthread_mutex_lock(&lock);
	notified = value.sival_int;
	pthread_cond_signal(&wake);
	pthread_mutex_unlock(&lock);
}

static struct aiocb request(int fd, void *bytes, size_t length, off_t at)
{
	struct aiocb cb;
	memset(&cb, 0, sizeof cb);
	cb.aio_fildes = fd;
	cb.aio_buf = bytes;
	cb.aio_nbytes = length;
	cb.aio_offset = at;
	cb.aio_sigevent.sigev_notify = SIGEV_NONE;
	return cb;
}

/* Waits for one request and returns what aio_return says. */
static ssize_t finish(struct aiocb *cb)
{
	const struct aiocb *list[] = {cb};
	while (aio_error(cb) == EINPROGRESS)
		aio_suspend(list, 1, NULL);
	return aio_error(cb) == 0 ? aio_return(cb) : -1;
}

static void singles(int fd)
{
	struct aiocb cb[BLOCKS];
	int good = 0;
	for (int i = 0; i < BLOCKS; i++) {
		pattern_fill(data[i], BLOCK, 1, (uint64_t)i * BLOCK);
		cb[i] = request(fd, data[i], BLOCK, (off_t)i * BLOCK);
		MUST(aio_write(&cb[i]) == 0);
	}
	for (int i = 0; i < BLOCKS; i++)
		good += finish(&cb[i]) == BLOCK;
	CHECK(good == BLOCKS, "eight aio_writes at once");
	good = 0;
	for (int i = 0; i < BLOCKS; i++) {
		cb[i] = request(fd, back[i], BLOCK, (off_t)i * BLOCK);
		MUST(aio_read(&cb[i]) == 0);
	}
	for (int i = 0; i < BLOCKS; i++)
		good += finish(&cb[i]) == BLOCK && !memcmp(data[i], back[i], BLOCK);
	CHECK(good == BLOCKS, "eight aio_reads see them");
	cb[0] = request(fd, back[0], BLOCK, (off_t)BLOCK * BLOCKS - 10);
	CHECK(aio_read(&cb[0]) == 0 && finish(&cb[0]) == 10, "aio_read at the end is short");
	cb[0] = request(fd, NULL, 0, 0);
	CHECK(aio_fsync(O_SYNC, &cb[0]) == 0 && finish(&cb[0]) == 0, "aio_fsync");
	CHECK(lseek(fd, 0, SEEK_CUR) == 0, "the offset did not move");
	cb[0] = request(fd, data[0], 10, 0);
	MUST(aio_write(&cb[0]) == 0);
	int cancelled = aio_cancel(fd, &cb[0]);
	CHECK(cancelled == AIO_ALLDONE || cancelled == AIO_CANCELED || cancelled == AIO_NOTCANCELED, "aio_cancel answers");
	finish(&cb[0]);
	struct timespec none = {0, 0};
	const struct aiocb *list[] = {NULL, &cb[0]};
	CHECK(aio_suspend(list, 2, &none) == 0, "aio_suspend on a finished one returns at once");
	cb[0] = request(-1, data[0], 10, 0);
	int started = aio_write(&cb[0]);
	CHECK((started == -1 && errno == EBADF) || (finish(&cb[0]) == -1 && aio_error(&cb[0]) == EBADF), "a bad descriptor: EBADF");
	cb[0] = request(fd, data[0], 10, -5);
	started = aio_write(&cb[0]);
	CHECK((started == -1 && errno == EINVAL) || (finish(&cb[0]) == -1 && aio_error(&cb[0]) == EINVAL), "a bad offset: EINVAL");
}

static void notices(int fd)
{
	struct sigaction action;
	struct aiocb cb = request(fd, data[1], BLOCK, 0);
	sigset_t block, old;
	memset(&action, 0, sizeof action);
	action.sa_sigaction = on_signal;
	action.sa_flags = SA_SIGINFO;
	MUST(sigaction(SIGUSR1, &action, NULL) == 0);
	sigemptyset(&block);
	sigaddset(&block, SIGUSR1);
	sigprocmask(SIG_BLOCK, &block, &old);
	cb.aio_sigevent.sigev_notify = SIGEV_SIGNAL;
	cb.aio_sigevent.sigev_signo = SIGUSR1;
	cb.aio_sigevent.sigev_value.sival_int = 77;
	MUST(aio_write(&cb) == 0);
	while (!signalled)
		sigsuspend(&old);
	sigprocmask(SIG_SETMASK, &old, NULL);
	CHECK(signalled == 77 && finish(&cb) == BLOCK, "SIGEV_SIGNAL brings its value");
	cb = request(fd, back[1], BLOCK, 0);
	cb.aio_sigevent.sigev_notify = SIGEV_THREAD;
	cb.aio_sigevent.sigev_notify_function = on_thread;
	cb.aio_sigevent.sigev_value.sival_int = 88;
	MUST(aio_read(&cb) == 0);
	pthread_mutex_lock(&lock);
	while (!notified)
		pthread_cond_wait(&wake, &lock);
	pthread_mutex_unlock(&lock);
	CHECK(notified == 88 && finish(&cb) == BLOCK && !memcmp(back[1], data[1], BLOCK), "SIGEV_THREAD");
}

static void lists(int fd)
{
	struct aiocb cb[BLOCKS * 2], *list[BLOCKS * 2 + 1];
	int good = 0;
	for (int i = 0; i < BLOCKS; i++) {
		pattern_fill(data[i], BLOCK, 2, (uint64_t)i * BLOCK);
		cb[i] = request(fd, data[i], BLOCK, (off_t)i * BLOCK);
		cb[i].aio_lio_opcode = LIO_WRITE;
		list[i] = &cb[i];
	}
	list[BLOCKS] = NULL;
	CHECK(lio_listio(LIO_WAIT, list, BLOCKS + 1, NULL) == 0, "lio_listio LIO_WAIT of eight writes and a NULL");
	for (int i = 0; i < BLOCKS; i++)
		good += aio_error(&cb[i]) == 0 && aio_return(&cb[i]) == BLOCK;
	CHECK(good == BLOCKS, "each says what it wrote");
	for (int i = 0; i < BLOCKS; i++) {
		cb[i] = request(fd, back[i], BLOCK, (off_t)i * BLOCK);
		cb[i].aio_lio_opcode = LIO_READ;
		cb[BLOCKS + i] = request(fd, data[i], BLOCK, (off_t)(BLOCKS + i) * BLOCK);
		cb[BLOCKS + i].aio_lio_opcode = i == 3 ? LIO_NOP : LIO_WRITE;
		list[i * 2] = &cb[i];
		list[i * 2 + 1] = &cb[BLOCKS + i];
	}
	struct sigevent event;
	memset(&event, 0, sizeof event);
	event.sigev_notify = SIGEV_THREAD;
	event.sigev_notify_function = on_thread;
	event.sigev_value.sival_int = 99;
	CHECK(lio_listio(LIO_NOWAIT, list, BLOCKS * 2, &event) == 0, "lio_listio LIO_NOWAIT of reads and writes");
	pthread_mutex_lock(&lock);
	while (notified != 99)
		pthread_cond_wait(&wake, &lock);
	pthread_mutex_unlock(&lock);
	good = 0;
	for (int i = 0; i < BLOCKS; i++)
		good += finish(&cb[i]) == BLOCK && !memcmp(data[i], back[i], BLOCK);
	CHECK(good == BLOCKS, "the reads saw the first list's writes");
	static unsigned char all[BLOCK];
	int wrong = 0;
	for (int i = 0; i < BLOCKS; i++)
		wrong += i != 3 && (pread(fd, all, BLOCK, (off_t)(BLOCKS + i) * BLOCK) != BLOCK || memcmp(all, data[i], BLOCK));
	CHECK(wrong == 0, "and its own writes are there");
	CHECK(pread(fd, all, BLOCK, (off_t)(BLOCKS + 3) * BLOCK) == BLOCK && all_bytes(all, BLOCK, 0), "LIO_NOP wrote nothing");
	cb[0] = request(fd, data[0], 10, 0);
	cb[0].aio_lio_opcode = LIO_WRITE;
	cb[1] = request(-1, data[0], 10, 0);
	cb[1].aio_lio_opcode = LIO_WRITE;
	list[0] = &cb[0];
	list[1] = &cb[1];
	CHECK(lio_listio(LIO_WAIT, list, 2, NULL) == -1 && errno == EIO, "one of two fails: EIO");
	CHECK(aio_error(&cb[0]) == 0 && aio_return(&cb[0]) == 10 && aio_error(&cb[1]) == EBADF, "and each says how it went");
	CHECK_FAILS(lio_listio(7, list, 1, NULL), EINVAL, "a bad mode: EINVAL");
	struct aiocb **volatile none = NULL;
	CHECK(lio_listio(LIO_WAIT, none, 0, NULL) == 0, "a list of nothing, at no address");
	for (int i = 0; i < 2; i++) {
		cb[i] = request(fd, NULL, 10, 0);
		cb[i].aio_lio_opcode = LIO_READ;
		list[i] = &cb[i];
	}
	CHECK(lio_listio(LIO_WAIT, list, 2, NULL) == -1 && errno == EIO, "reads to no address fail");
	CHECK(aio_error(&cb[0]) == EFAULT && aio_error(&cb[1]) == EFAULT, "each with EFAULT");
}

static void mixed(void)
{
	/* A list may name files anywhere: one of ours and one that is not. */
	FILE *outside = tmpfile();
	int ours = open(in_dir("mixed"), O_RDWR | O_CREAT, 0600);
	MUST(outside && ours >= 0);
	struct aiocb one = request(ours, data[0], 1000, 0), two = request(fileno(outside), data[1], 1000, 0);
	struct aiocb *list[] = {&one, &two};
	one.aio_lio_opcode = two.aio_lio_opcode = LIO_WRITE;
	CHECK(lio_listio(LIO_WAIT, list, 2, NULL) == 0, "a list over two file systems");
	CHECK(pread(ours, back[0], 1000, 0) == 1000 && !memcmp(back[0], data[0], 1000), "the first has its bytes");
	CHECK(pread(fileno(outside), back[0], 1000, 0) == 1000 && !memcmp(back[0], data[1], 1000), "and the second");
	fclose(outside);
	close(ours);
	int fd = open(in_dir("append"), O_WRONLY | O_CREAT | O_APPEND, 0600);
	MUST(fd >= 0 && write(fd, "start ", 6) == 6);
	struct aiocb cb = request(fd, (void *)"tail", 4, 0);
	CHECK(aio_write(&cb) == 0 && finish(&cb) == 4 && close(fd) == 0 && file_is(in_dir("append"), "start tail"), "aio_write with O_APPEND appends");
}

static struct iocb kernels(int operation, int fd, const void *buffer, size_t bytes, off_t at)
{
	struct iocb request;
	memset(&request, 0, sizeof request);
	request.aio_lio_opcode = operation;
	request.aio_fildes = fd;
	request.aio_buf = (uintptr_t)buffer;
	request.aio_nbytes = bytes;
	request.aio_offset = at;
	request.aio_data = 1000 + operation;
	return request;
}

/* The kernel's own. What is asked of a file elsewhere is between what is asked of one here. */
static void the_kernels(int fd)
{
	aio_context_t context = 0;
	MUST(syscall(SYS_io_setup, 64, &context) == 0);
	int elsewhere = memfd_create("elsewhere", 0), bell = eventfd(0, 0);
	struct iovec parts[2] = { { data[1], 5000 }, { data[2], 7000 } }, into[2] = { { back[1], 5000 }, { back[2], 7000 } };
	memset(back, 0, sizeof back);
	MUST(ftruncate(fd, 0) == 0);
	struct iocb requests[] = {
		kernels(IOCB_CMD_PWRITE, fd, data[0], BLOCK, 0),
		kernels(IOCB_CMD_PWRITE, elsewhere, data[0], 100, 0),
		kernels(IOCB_CMD_PWRITEV, fd, parts, 2, BLOCK),
		kernels(IOCB_CMD_FDSYNC, fd, NULL, 0, 0),
		kernels(IOCB_CMD_PREAD, fd, back[0], BLOCK, 0),
		kernels(IOCB_CMD_PREADV, fd, into, 2, BLOCK),
		kernels(IOCB_CMD_PREAD, fd, back[3], BLOCK, BLOCK + 11000),
		kernels(IOCB_CMD_PREAD, fd, back[4], 10, 1 << 30),
	};
	long long wanted[] = { BLOCK, 100, 12000, 0, BLOCK, 12000, 1000, 0 };
	enum { COUNT = sizeof requests / sizeof *requests };
	struct iocb *list[COUNT], before[COUNT];
	struct io_event events[COUNT];
	for (int i = 0; i < COUNT; i++)
		list[i] = &requests[i];
	requests[0].aio_flags = IOCB_FLAG_RESFD;
	requests[0].aio_resfd = bell;
	memcpy(before, requests, sizeof before);
	long handed_in = syscall(SYS_io_submit, context, (long)COUNT, list);
	CHECK(handed_in == COUNT, "io_submit of %d requests (%ld)", COUNT, handed_in);
	CHECK(!memcmp(before, requests, sizeof before), "the requests are the program's own again");
	struct timespec limit = { 20, 0 };
	long told = syscall(SYS_io_getevents, context, (long)COUNT, (long)COUNT, events, &limit);
	int right = 0;
	for (long e = 0; e < told; e++)
		for (int i = 0; i < COUNT; i++)
			right += events[e].obj == (uintptr_t)list[i] && events[e].data == requests[i].aio_data &&
				 events[e].res == wanted[i];
	CHECK(told == COUNT && right == COUNT, "io_getevents: each with its result (%d of %ld)", right, told);
	CHECK(!memcmp(back[0], data[0], BLOCK) && !memcmp(back[1], data[1], 5000) && !memcmp(back[2], data[2], 7000) &&
		      !memcmp(back[3], data[2] + 6000, 1000),
	      "with its bytes");
	uint64_t rings = 0;
	CHECK(read(bell, &rings, 8) == 8 && rings == 1, "an eventfd is told");

	int reader = open(in_dir("file"), O_RDONLY), full = 0;
	struct iocb bad[] = { kernels(IOCB_CMD_PWRITE, reader, data[0], 10, 0), kernels(IOCB_CMD_PREAD, fd, back[0], 10, -1) };
	int errors[] = { EBADF, EINVAL };
	for (int i = 0; i < 2; i++) {
		struct iocb *one = &bad[i];
		CHECK_FAILS(syscall(SYS_io_submit, context, 1L, &one), errors[i], "a bad request, %d", i);
	}
	list[1] = &bad[0];
	CHECK(syscall(SYS_io_submit, context, 2L, list) == 1, "those before a bad one are handed in");
	MUST(syscall(SYS_io_getevents, context, 1L, 64L, events, &limit) == 1);
	list[1] = list[0];
	for (int i = 0; i < 100000 && !full; i++)
		full = syscall(SYS_io_submit, context, 1L, list) == -1 && errno == EAGAIN;
	CHECK(full, "EAGAIN once there is no room for events");
	MUST(syscall(SYS_io_destroy, context) == 0);
	close(reader), close(elsewhere), close(bell);
}

int main(int argc, char **argv)
{
	check_begin(argc, argv);
	int fd = open(in_dir("file"), O_RDWR | O_CREAT, 0600);
	MUST(fd >= 0);
	singles(fd);
	notices(fd);
	lists(fd);
	mixed();
	the_kernels(fd);
	close(fd);
	return check_end();
}
