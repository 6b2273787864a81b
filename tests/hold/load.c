/*
 * MPI ranks that write and read like IOR (file per process, and each its segment of a shared file, in transfers of
 * 64 KiB; every other round reads what the next rank wrote) for so many seconds, and count what fails: an
 * error of the file system ends none of them.
 *
 *   load DIR SECONDS
 *   rank R on HOST: rounds N errors N wrong N slowest_ms N      one line a rank
 */
#include <errno.h>
#include <fcntl.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { TRANSFER = 64 << 10, TRANSFERS = 8, SEGMENT = TRANSFER * TRANSFERS };

static long errors, wrong, slowest;
static unsigned char buf[TRANSFER];

static double seconds(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static int timed(double begin, int good)
{
	long ms = (long)((seconds() - begin) * 1000);
	if (ms > slowest)
		slowest = ms;
	if (!good)
		errors++;
	return good;
}

/* The bytes of a rank's round: a reader may meet this round's or an older one's, never another rank's. */
static void write_segment(const char *path, long at, int rank, int round)
{
	double begin = seconds();
	int fd = open(path, O_WRONLY | O_CREAT, 0600);
	if (!timed(begin, fd >= 0))
		return;
	memset(buf, 1 + (rank * 16 + round % 16) % 255, sizeof buf);
	for (long i = 0; i < TRANSFERS; i++) {
		begin = seconds();
		if (!timed(begin, pwrite(fd, buf, sizeof buf, at + i * TRANSFER) == (ssize_t)sizeof buf))
			break;
	}
	begin = seconds();
	timed(begin, !close(fd));
}

static void read_segment(const char *path, long at, int rank)
{
	double begin = seconds();
	int fd = open(path, O_RDONLY);
	/* Its writer may not have come to make it, or may be gone. */
	if (fd < 0 && errno == ENOENT)
		return;
	if (!timed(begin, fd >= 0))
		return;
	for (long i = 0; i < TRANSFERS; i++) {
		begin = seconds();
		ssize_t got = pread(fd, buf, sizeof buf, at + i * TRANSFER);
		if (!timed(begin, got >= 0))
			break;
		for (ssize_t n = 0; n < got; n++)
			if (buf[n] && (buf[n] - 1) / 16 != rank)
				wrong++;
	}
	close(fd);
}

int main(int argc, char **argv)
{
	int rank, ranks, length, round = 0;
	char own[4096], next[4096], shared[4096], host[MPI_MAX_PROCESSOR_NAME];
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	MPI_Get_processor_name(host, &length);
	if (argc < 3 || ranks > 15)
		MPI_Abort(MPI_COMM_WORLD, 2);
	int other = (rank + 1) % ranks;
	snprintf(own, sizeof own, "%s/load-%d", argv[1], rank);
	snprintf(next, sizeof next, "%s/load-%d", argv[1], other);
	snprintf(shared, sizeof shared, "%s/load-shared", argv[1]);
	if (rank == 0) {
		printf("loaded\n");
		fflush(stdout);
	}
	double end = seconds() + atof(argv[2]);
	for (; seconds() < end; round++) {
		write_segment(own, 0, rank, round);
		write_segment(shared, (long)rank * SEGMENT, rank, round);
		read_segment(next, 0, other);
		read_segment(shared, (long)other * SEGMENT, other);
		usleep(2000);
	}
	/* No barrier: MPICH 4.0 with UCX may wait for ever in MPI_Finalize right after one, without weir too. */
	printf("rank %d on %s: rounds %d errors %ld wrong %ld slowest_ms %ld\n", rank, host, round, errors, wrong,
	       slowest);
	MPI_Finalize();
	return 0;
}
