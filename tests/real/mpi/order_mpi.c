/*
 * Overlapping writes of several processes, ordered by an MPI barrier or by a message and nothing else: no sync, no close.
 * The last writer's bytes stay, also where the first one goes on behind them (and would coalesce).
 */
#include "mpi_check.h"

enum { ROUNDS = 400, ROOM = 1 << 18 };

static unsigned char model[ROOM], buf[ROOM];

static void barriers(int fd)
{
	int wrong = 0;
	for (int round = 0; round < 50; round++) {
		off_t base = round * 1024;
		/* All write the same 256 bytes, by rank, each after the one before; process 0 then goes on behind. */
		for (int turn = 0; turn < size; turn++) {
			if (turn == rank) {
				memset(buf, turn + 1, 256);
				wrong += pwrite(fd, buf, 256, base) != 256;
			}
			MPI_Barrier(MPI_COMM_WORLD);
		}
		if (rank == 0) {
			memset(buf, 100, 256);
			wrong += pwrite(fd, buf, 256, base + 256) != 256;
		}
		MPI_Barrier(MPI_COMM_WORLD);
		wrong += pread(fd, buf, 512, base) != 512 || !all_bytes(buf, 256, size) || !all_bytes(buf + 256, 256, 100);
	}
	ALL(wrong == 0, "writes of all processes over the same bytes, a barrier between them");
}

static void messages(int fd, uint64_t seed)
{
	/* The token is a message with the model's changes so far: each process replays them all. */
	struct change {
		long at, length;
		uint64_t seed;
	} change = {0, 0, 0};
	uint64_t random = seed;
	int wrong = 0, owner = 0;
	long end = 0, last = 0;
	memset(model, 0, sizeof model);
	for (int round = 0; round < ROUNDS; round++) {
		if (rank == owner) {
			change.length = 1 + (long)(next_random(&random) % 3000);
			change.at = next_random(&random) % 2 ? last : (long)(next_random(&random) % (ROOM - 3000));
			if (change.at + change.length > ROOM)
				change.at = 0;
			change.seed = next_random(&random);
			pattern_fill(buf, (size_t)change.length, change.seed, 0);
			wrong += pwrite(fd, buf, (size_t)change.length, change.at) != change.length;
			last = change.at + change.length;
		}
		MPI_Bcast(&change, sizeof change, MPI_BYTE, owner, MPI_COMM_WORLD);
		pattern_fill(model + change.at, (size_t)change.length, change.seed, 0);
		if (change.at + change.length > end)
			end = change.at + change.length;
		long from = change.at > 100 ? change.at - 100 : 0, length = end - from < 5000 ? end - from : 5000;
		if (round % 3 == 0)
			wrong += pread(fd, buf, (size_t)length, from) != length || memcmp(buf, model + from, (size_t)length) != 0;
		/* Readers are done before the next write. */
		MPI_Barrier(MPI_COMM_WORLD);
		owner = (int)(change.seed % (uint64_t)size);
	}
	ALL(wrong == 0, "%d random writes, the token by message: every read saw the latest", ROUNDS);
	ALL(pread(fd, buf, ROOM, 0) == end && memcmp(buf, model, (size_t)end) == 0, "the end equals the replay");
}

static void strided_then_shifted(int fd)
{
	/* A strided checkpoint, then a second one shifted by half a block over it: the second stays everywhere. */
	enum { BLOCK = 700, BLOCKS = 80 };
	int wrong = 0;
	for (int pass = 0; pass < 2; pass++) {
		for (int i = 0; i < BLOCKS; i++) {
			off_t at = (off_t)(i * size + rank) * BLOCK + pass * BLOCK / 2;
			pattern_fill(buf, BLOCK, (uint64_t)pass, (uint64_t)at);
			wrong += pwrite(fd, buf, BLOCK, at) != BLOCK;
		}
		MPI_Barrier(MPI_COMM_WORLD);
	}
	size_t total = (size_t)BLOCK * BLOCKS * (size_t)size;
	unsigned char *all = malloc(total + BLOCK);
	MUST(all);
	wrong += pread(fd, all, total + BLOCK, 0) != (ssize_t)(total + BLOCK / 2);
	ALL(wrong == 0 && pattern_differs(all, BLOCK / 2, 0, 0) == -1 && pattern_differs(all + BLOCK / 2, total, 1, BLOCK / 2) == -1,
	    "a strided checkpoint over another one");
	free(all);
}

int main(int argc, char **argv)
{
	mpi_check_begin(argc, argv);
	uint64_t seed = rank == 0 ? seed_from_environment() : 0;
	MPI_Bcast(&seed, sizeof seed, MPI_BYTE, 0, MPI_COMM_WORLD);
	seed += (uint64_t)rank; /* each owner's own choices; the changes themselves travel */
	static void (*const parts[])(int) = {barriers, strided_then_shifted};
	for (int part = 0; part < 3; part++) {
		int fd = -1;
		if (rank == 0)
			put_text(in_dir("part-%d", part), "");
		MPI_Barrier(MPI_COMM_WORLD);
		fd = open(in_dir("part-%d", part), O_RDWR);
		ALL(fd >= 0, "part %d: opened", part);
		if (part < 2)
			parts[part](fd);
		else
			messages(fd, seed);
		close(fd);
		MPI_Barrier(MPI_COMM_WORLD);
	}
	return mpi_check_end();
}
