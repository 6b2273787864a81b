/*
 * Times the start and end of a program that does nothing and uses no MPI: start PROGRAM. Prints the shortest of 1,000 times, s.
 */
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>

enum { REPEATS = 1000 };

extern char **environ;

static double now(void)
{
	struct timespec time;
	clock_gettime(CLOCK_MONOTONIC, &time);
	return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

int main(int argc, char **argv)
{
	double least = 1e9;
	if (argc != 2)
		return 2;
	for (int repeat = 0; repeat < REPEATS; repeat++) {
		pid_t child;
		int status;
		char *words[] = { argv[1], NULL };
		double begin = now();
		if (posix_spawn(&child, argv[1], NULL, NULL, words, environ) != 0 || waitpid(child, &status, 0) != child || status != 0) {
			fprintf(stderr, "start: %s\n", argv[1]);
			return 1;
		}
		double time = now() - begin;
		if (time < least)
			least = time;
	}
	printf("start_s %.9f\n", least);
	return 0;
}
