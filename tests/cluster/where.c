/* Each rank writes a file into the directory given, reads it back, and says where it ran and with
 * which instance: `rank R of N on HOST uses INSTANCE`. Fails if a call does. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	int rank, ranks, length;
	char path[4096], back[64] = "", text[64], host[MPI_MAX_PROCESSOR_NAME];
	const char *instance = getenv("WEIR_INSTANCE");
	FILE *file;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	MPI_Get_processor_name(host, &length);
	snprintf(path, sizeof path, "%s/rank-%d", argc > 1 ? argv[1] : ".", rank);
	snprintf(text, sizeof text, "written by rank %d", rank);
	file = fopen(path, "w+");
	if (!file || fputs(text, file) < 0 || fseek(file, 0, SEEK_SET) || !fgets(back, sizeof back, file) ||
	    strcmp(text, back)) {
		perror(path);
		MPI_Abort(MPI_COMM_WORLD, 1);
	}
	fclose(file);
	printf("rank %d of %d on %s uses %s\n", rank, ranks, host, instance ? instance : "none");
	MPI_Finalize();
	return 0;
}
