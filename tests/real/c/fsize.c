/* The limit of a file's size (RLIMIT_FSIZE): writes are cut at it, beyond it they fail with EFBIG and SIGXFSZ. Runs as well
 * on tmpfs. */
#include "check.h"
#include <aio.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/sendfile.h>
#include <sys/syscall.h>
#include <sys/uio.h>

static volatile sig_atomic_t signals;

static void count(int number)
{
	(void)number;
	signals++;
}

static void limit(rlim_t bytes)
{
	struct rlimit r = { bytes, RLIM_INFINITY };
	MUST(setrlimit(RLIMIT_FSIZE, &r) == 0);
}

static off_t size_of(const char *path)
{
	struct stat st;
	return stat(path, &st) == 0 ? st.st_size : -1;
}

/* `expr` fails with EFBIG and one signal. */
#define EXCEEDS(expr, what) \
	do { \
		int before_ = signals; \
		CHECK_FAILS(expr, EFBIG, what); \
		CHECK(signals == before_ + 1, what ": one signal"); \
	} while (0)
/* `expr` gives this, and no signal. */
#define GIVES(expr, wanted, what) \
	do { \
		int before_ = signals; \
		long got_ = (long)(expr); \
		if (got_ != (wanted)) \
			printf("  got %ld\n", got_); \
		CHECK(got_ == (wanted) && signals == before_, what); \
	} while (0)

int main(int argc, char **argv)
{
	check_begin(argc, argv);
	static char bytes[8192];
	memset(bytes, 'x', sizeof bytes);
	struct sigaction action = { .sa_handler = count };
	MUST(sigaction(SIGXFSZ, &action, NULL) == 0);
	const char *file = strdup(in_dir("file")), *other = strdup(in_dir("other")), *old = strdup(in_dir("old"));
	put_file(old, bytes, 5000);
	put_file(other, bytes, sizeof bytes);
	limit(1000);

	int fd = open(file, O_RDWR | O_CREAT, 0644);
	GIVES(write(fd, bytes, 600), 600, "a write within the limit");
	GIVES(write(fd, bytes, 600), 400, "is cut at the limit");
	EXCEEDS(write(fd, bytes, 600), "at the limit");
	EXCEEDS(write(fd, bytes, 1), "one byte at the limit");
	GIVES(write(fd, bytes, 0), 0, "no byte at the limit");
	GIVES(lseek(fd, 0, SEEK_CUR), 1000, "the offset is at the limit");
	GIVES(pwrite(fd, bytes, 100, 990), 10, "pwrite is cut");
	EXCEEDS(pwrite(fd, bytes, 100, 1000), "pwrite at the limit");
	EXCEEDS(pwrite(fd, bytes, 100, 5000), "pwrite beyond");
	GIVES(pwrite(fd, bytes, 100, 0), 100, "pwrite at the beginning");
	CHECK(size_of(file) == 1000, "the size");
	struct iovec two[2] = { { bytes, 300 }, { bytes, 300 } };
	MUST(ftruncate(fd, 0) == 0 && lseek(fd, 500, SEEK_SET) == 500);
	GIVES(writev(fd, two, 2), 500, "writev is cut in its second piece");
	EXCEEDS(writev(fd, two, 2), "writev at the limit");
	GIVES(pwritev(fd, two, 2, 700), 300, "pwritev is cut at the end of its first piece");
	EXCEEDS(pwritev(fd, two, 2, 1000), "pwritev at the limit");
	close(fd);

	/* Over what this process has just written, and pieces at equal distances, when the limit comes afterwards. */
	unlink(file);
	limit(RLIM_INFINITY);
	fd = open(file, O_RDWR | O_CREAT, 0644);
	GIVES(pwrite(fd, bytes, 2000, 0), 2000, "without a limit");
	GIVES(pwrite(fd, bytes, 64, 1500), 64, "over its own bytes");
	limit(1000);
	GIVES(pwrite(fd, bytes, 64, 900), 64, "over its own bytes, within the limit");
	GIVES(pwrite(fd, bytes, 64, 968), 32, "across the limit");
	EXCEEDS(pwrite(fd, bytes, 64, 1500), "beyond the limit");
	limit(RLIM_INFINITY);
	for (int i = 0; i < 8; i++)
		GIVES(pwrite(fd, bytes, 10, 5000 + 100 * i), 10, "a piece of a progression");
	limit(5805);
	GIVES(pwrite(fd, bytes, 10, 5800), 5, "the piece across the limit is cut");
	EXCEEDS(pwrite(fd, bytes, 10, 5900), "the piece beyond it");
	CHECK(size_of(file) == 5805, "the size");
	limit(1000);
	close(fd);

	/* Small pieces one behind the other. */
	unlink(file);
	fd = open(file, O_WRONLY | O_CREAT, 0644);
	long all = 0, got;
	while ((got = write(fd, bytes, 7)) > 0)
		all += got;
	CHECK(all == 1000 && errno == EFBIG, "small writes get as far as the limit");
	close(fd);

	/* Appending. */
	unlink(file);
	fd = open(file, O_WRONLY | O_CREAT | O_APPEND, 0644);
	GIVES(write(fd, bytes, 900), 900, "append");
	GIVES(write(fd, bytes, 900), 100, "append is cut");
	EXCEEDS(write(fd, bytes, 900), "append at the limit");
	EXCEEDS(writev(fd, two, 2), "writev that appends");
	CHECK(size_of(file) == 1000, "nothing was appended beyond");
	close(fd);

	/* A file that is larger already. */
	fd = open(old, O_RDWR);
	EXCEEDS(pwrite(fd, bytes, 10, 2000), "writing over what is beyond the limit");
	GIVES(pwrite(fd, bytes, 10, 10), 10, "writing over what is within");
	GIVES(ftruncate(fd, 4000), 0, "cutting it");
	EXCEEDS(ftruncate(fd, 4001), "ftruncate to more");
	EXCEEDS(truncate(old, 4001), "truncate to more");
	EXCEEDS(fallocate(fd, 0, 3999, 2), "fallocate to more");
	GIVES(fallocate(fd, 0, 3000, 1000), 0, "fallocate of what is there");
	EXCEEDS(fallocate(fd, FALLOC_FL_KEEP_SIZE, 0, 9000), "fallocate of what would be behind its end");
	GIVES(fallocate(fd, FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE, 0, 9000), 0, "punching a hole beyond");
	GIVES(ftruncate(fd, 1000), 0, "ftruncate to the limit");
	EXCEEDS(ftruncate(fd, 1001), "one byte more");
	CHECK(size_of(old) == 1000, "its size");
	close(fd);

	/* Copies. */
	unlink(file);
	int from = open(other, O_RDONLY);
	fd = open(file, O_RDWR | O_CREAT, 0644);
	GIVES(copy_file_range(from, NULL, fd, NULL, 3000, 0), 1000, "copy_file_range is cut");
	EXCEEDS(copy_file_range(from, NULL, fd, NULL, 3000, 0), "copy_file_range at the limit");
	MUST(ftruncate(fd, 0) == 0 && lseek(fd, 0, SEEK_SET) == 0 && lseek(from, 0, SEEK_SET) == 0);
	/* Linux writes as far as it may, and then says that it may not. */
	got = sendfile(fd, from, NULL, 3000);
	CHECK((got == 1000 || (got == -1 && errno == EFBIG)) && size_of(file) == 1000, "sendfile is cut");
	CHECK(lseek(from, 0, SEEK_CUR) == 1000, "and has taken no more than it gave");
	EXCEEDS(sendfile(fd, from, NULL, 3000), "sendfile at the limit");
	close(from);

	/* aio. */
	struct aiocb cb = { .aio_fildes = fd, .aio_buf = bytes, .aio_nbytes = 100, .aio_offset = 950 };
	const struct aiocb *const list[1] = { &cb };
	MUST(aio_write(&cb) == 0);
	while (aio_error(&cb) == EINPROGRESS)
		aio_suspend(list, 1, NULL);
	CHECK(aio_return(&cb) == 50, "aio_write is cut");
	close(fd);

	/* stdio. */
	unlink(file);
	FILE *stream = fopen(file, "w");
	MUST(stream != NULL);
	CHECK(fwrite(bytes, 1, 5000, stream) < 5000 || fflush(stream) != 0, "a stream fails");
	CHECK(errno == EFBIG, "with EFBIG");
	fclose(stream);
	CHECK(size_of(file) == 1000, "at the limit");

	/* The limit changes under an open file. */
	unlink(file);
	limit(100000);
	fd = open(file, O_WRONLY | O_CREAT, 0644);
	GIVES(write(fd, bytes, 500), 500, "a higher limit");
	GIVES(write(fd, bytes, 500), 500, "and on");
	limit(1200);
	GIVES(write(fd, bytes, 500), 200, "a lower one holds for the next write");
	EXCEEDS(write(fd, bytes, 500), "and is the end");
	struct rlimit r = { 2000, RLIM_INFINITY };
	MUST(prlimit(0, RLIMIT_FSIZE, &r, NULL) == 0);
	GIVES(write(fd, bytes, 5000), 800, "prlimit");
	r.rlim_cur = 2500;
	MUST(syscall(SYS_prlimit64, 0, RLIMIT_FSIZE, &r, NULL) == 0);
	GIVES(write(fd, bytes, 5000), 500, "prlimit64 by number");
	limit(RLIM_INFINITY);
	GIVES(write(fd, bytes, 5000), 5000, "no limit");
	close(fd);

	/* Programs that are started have it; the signal kills. */
	limit(1000);
	fflush(stdout);
	pid_t pid = fork();
	int status = 0;
	if (pid == 0) {
		execlp("bash", "bash", "-c", "for i in {1..1000}; do echo $i; done > \"$0\"", file, (char *)NULL);
		_exit(127);
	}
	MUST(waitpid(pid, &status, 0) == pid);
	CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGXFSZ, "a program that is started dies of the signal");
	CHECK(size_of(file) == 1000, "when its file is as large as it may be");
	signal(SIGXFSZ, SIG_IGN);
	fd = open(file, O_WRONLY);
	CHECK_FAILS(pwrite(fd, bytes, 1, 1000), EFBIG, "where the signal is ignored there is EFBIG");
	CHECK_FAILS(pwrite(fd, bytes, 1, INT64_MAX - 1), EFBIG, "also far out");
	close(fd);
	return check_end();
}
