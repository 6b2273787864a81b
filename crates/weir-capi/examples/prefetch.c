/*
 * Has weir take files of an elevated directory into the instance before the program reads them, so that it does not wait for the
 * parallel file system. Without room for them they are read where they are: so a failure is no reason to stop.
 *
 *     cc prefetch.c -lweir -o prefetch
 *     weir run --elevate /pfs/run42 -- sh -c './prefetch /pfs/run42/mesh.* && ./simulation'
 */
#include <stdio.h>
#include <stdlib.h>
#include <weir.h>

int main(int argc, char **argv)
{
	size_t count = (size_t)argc - 1;
	struct weir_transfer_result *results = calloc(count + 1, sizeof *results);
	uint64_t transfer;
	if (!results)
		return 2;
	if (weir_attach(NULL) < 0 || weir_prefetch((const char *const *)(argv + 1), count, &transfer) < 0) {
		fprintf(stderr, "%s\n", weir_message());
		return 1;
	}
	/* A program that has something else to do begins it now, and does not wait for all. */
	if (weir_transfer_wait(transfer, -1, results, count) < 0)
		fprintf(stderr, "%s\n", weir_message());
	for (size_t i = 0; i < count; i++)
		printf("%s: %s\n", argv[i + 1], results[i].state == WEIR_TRANSFER_DONE ? "in the instance" : weir_strerror(results[i].error));
	weir_detach();
	return 0;
}
