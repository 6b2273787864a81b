/*
 * Keeps two checkpoints on the parallel file system, as a checkpoint library does: the old one is removed once the new one is
 * safe there, and not before, so that a job that is killed at any moment leaves a whole one.
 *
 *     cc drain.c -lweir -o drain
 *     weir run --elevate /pfs/run42 -- sh -c './simulation && ./drain /pfs/run42/ckpt.8 /pfs/run42/ckpt.7'
 *
 * weir keeps that order by itself, too, if the old one is simply removed; a program that asks knows when it is done.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <weir.h>

static const char *step_name(int step)
{
	static const char *const names[] = {"not moved", "being written", "written", "being analysed", "safe", "failed"};
	return step >= 0 && step < (int)(sizeof names / sizeof *names) ? names[step] : "unknown";
}

int main(int argc, char **argv)
{
	struct weir_drain_state state;
	int code;
	if (argc != 3) {
		fprintf(stderr, "usage: drain NEW OLD\n");
		return 2;
	}
	if (weir_attach(NULL) < 0 || weir_drain_state(argv[1], &state) < 0) {
		fprintf(stderr, "%s\n", weir_message());
		return 1;
	}
	fprintf(stderr, "%s: %s, %llu bytes\n", argv[1], step_name(state.step), (unsigned long long)state.size);
	/* It is moved before others. The program could compute meanwhile, and ask now and then with a timeout of 0. */
	while ((code = weir_drain(argv[1], 1000)) == 1)
		fprintf(stderr, "%s: not yet\n", argv[1]);
	if (code < 0) {
		fprintf(stderr, "%s\n", weir_message());
		if (weir_drain_state(argv[1], &state) == 0 && state.step == WEIR_DRAIN_FAILED)
			fprintf(stderr, "%s\n", state.reason);
		return 1;
	}
	if (weir_drain_state(argv[1], &state) == 0)
		printf("%s: %s\n", argv[1], step_name(state.step));
	if (unlink(argv[2]) < 0 && errno != ENOENT)
		perror(argv[2]);
	weir_detach();
	return 0;
}
