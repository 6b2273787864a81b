/* Each rank writes a file into the directory given, closes it, and after a barrier reads that of the
 * next rank, which may be on another node. Says where it ran and with which instance: `rank R of N
 * on HOST uses INSTANCE`. Fails if a call does, or if other bytes come back. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void fail(const char *path)
{
	perror(path);
	MPI_Abort(MPI_COMM_WORLD, 1);
}

int main(int argc, char **argv)
{
	int rank, ranks, length;
	char path[4096], back[64] = "", text[64], host[MPI_MAX_PROCESSOR_NAME];
	const char *dir = argc > 1 ? argv[1] : ".", *instance = getenv("WEIR_INSTANCE");
	FILE *file;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	MPI_Get_processor_name(host, &length);
	snprintf(path, sizeof path, "%s/rank-%d", dir, rank);
	file = fopen(path, "w");
	if (!file || fprintf(file, "written by rank %d", rank) < 0 || fclose(file))
		fail(path);
	MPI_Barrier(MPI_COMM_WORLD);
	snprintf(path, sizeof path, "%s/rank-%d", dir, (rank + 1) % ranks);
	snprintf(text, sizeof text, "written by rank %d", (rank + 1) % ranks);
	file = fopen(path, "r");
	if (!file || !fgets(back, sizeof back, file) || strcmp(text, back))
		fail(path);
	fclose(file);
	printf("rank %d of %d on %s uses %s\n", rank, ranks, host, instance ? instance : "none");
	/*
	 * MPICH 4.0 over UCX's TCP waits for ever in MPI_Finalize, without weir too, if a rank gets there
	 * before UCX's own thread is done with new connections: 24 of 28 runs of a barrier or of messages
	 * alone over three nodes; none of 8 with a pause in which nobody polls.
	 */
	usleep(500000);
	MPI_Finalize();
	return 0;
}
