/*
 * Copies files of an instance to the parallel file system, as a checkpoint library does: the copy goes on while the program
 * computes, and it is told of each file what became of it.
 *
 *     cc transfer.c -lweir -o transfer
 *     weir run -- sh -c './simulation && ./transfer /pfs/ckpt.7 /weir/ckpt.7/*'
 *
 * The other way, from the parallel file system into the instance, is the same: only the paths differ.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <weir.h>

static struct weir_transfer *list_of_files(const char *directory, char **sources, size_t count)
{
	struct weir_transfer *list = calloc(count, sizeof *list);
	for (size_t i = 0; list && i < count; i++) {
		const char *slash = strrchr(sources[i], '/');
		const char *name = slash ? slash + 1 : sources[i];
		size_t length = strlen(directory) + strlen(name) + 2;
		char *destination = malloc(length);
		if (!destination)
			return NULL;
		snprintf(destination, length, "%s/%s", directory, name);
		list[i].source = sources[i];
		list[i].destination = destination;
		list[i].mode = WEIR_TRANSFER_COPY;
	}
	return list;
}

int main(int argc, char **argv)
{
	if (argc < 3) {
		fprintf(stderr, "usage: transfer DIRECTORY FILE...\n");
		return 2;
	}
	size_t count = (size_t)argc - 2;
	struct weir_transfer *list = list_of_files(argv[1], argv + 2, count);
	struct weir_transfer_result *results = calloc(count, sizeof *results);
	uint64_t transfer;
	if (!list || !results)
		return 2;
	if (weir_attach(NULL) < 0 || weir_transfer_start(list, count, &transfer) < 0) {
		fprintf(stderr, "%s\n", weir_message());
		return 1;
	}
	/* The program computes here, and looks now and then. */
	int state;
	while ((state = weir_transfer_wait(transfer, 100, results, count)) == 1) {
		uint64_t bytes = 0;
		for (size_t i = 0; i < count; i++)
			bytes += results[i].bytes;
		fprintf(stderr, "%llu bytes so far\n", (unsigned long long)bytes);
	}
	if (state < 0)
		fprintf(stderr, "%s\n", weir_message());
	for (size_t i = 0; i < count; i++)
		printf("%s: %s, %llu bytes\n", list[i].destination,
		       results[i].state == WEIR_TRANSFER_DONE ? "done" : weir_strerror(results[i].error),
		       (unsigned long long)results[i].bytes);
	weir_detach();
	return state < 0;
}
