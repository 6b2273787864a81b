/*
 * Keeps files open and shows what they begin with.
 *
 *   watch FILE...    opens the files; for each line of standard input the first byte of each, read
 *                    anew, as one line
 */
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

enum { MOST = 64 };

int main(int argc, char **argv)
{
	int fd[MOST], files = argc - 1;
	if (files < 1 || files > MOST)
		return 2;
	for (int i = 0; i < files; i++) {
		fd[i] = open(argv[i + 1], O_RDONLY);
		if (fd[i] < 0) {
			perror(argv[i + 1]);
			return 1;
		}
	}
	char line[16];
	while (fgets(line, sizeof line, stdin)) {
		for (int i = 0; i < files; i++) {
			char byte = '?';
			if (pread(fd[i], &byte, 1, 0) < 0)
				perror(argv[i + 1]);
			putchar(byte);
		}
		putchar('\n');
		fflush(stdout);
	}
	return 0;
}
