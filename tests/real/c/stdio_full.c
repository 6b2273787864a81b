/*
 * C stdio on files: every call that reads, writes, places or reshapes a byte stream.
 * Wide streams are in stdio_wide.c. The calls are made as a program makes them, through the macros and fortified
 * aliases that the compiler chooses (built with -O2 -D_FORTIFY_SOURCE=2).
 */
#include "check.h"
#include <stdio_ext.h>

static void modes(void)
{
	char buf[64];
	FILE *f = fopen(in_dir("absent"), "r");
	CHECK(f == NULL && errno == ENOENT, "fopen r of an absent file: ENOENT");
	f = fopen(in_dir("absent"), "r+");
	CHECK(f == NULL && errno == ENOENT, "fopen r+ of an absent file: ENOENT");
	f = fopen(in_dir("modes"), "w");
	CHECK(f != NULL, "fopen w creates");
	MUST(f);
	CHECK(fputs("first\n", f) >= 0 && fclose(f) == 0, "fputs, fclose");
	CHECK(file_is(in_dir("modes"), "first\n"), "content after w");
	f = fopen(in_dir("modes"), "a");
	MUST(f);
	CHECK(fprintf(f, "%s\n", "second") == 7 && fclose(f) == 0, "fopen a, fprintf");
	CHECK(file_is(in_dir("modes"), "first\nsecond\n"), "content after a");
	f = fopen(in_dir("modes"), "r+");
	MUST(f);
	CHECK(fwrite("FIRST", 1, 5, f) == 5, "r+ overwrites in place");
	CHECK(fseek(f, 0, SEEK_CUR) == 0 && fgets(buf, sizeof buf, f) && strcmp(buf, "\n") == 0, "write then read");
	CHECK(fgets(buf, sizeof buf, f) && strcmp(buf, "second\n") == 0, "fgets next line");
	fclose(f);
	f = fopen(in_dir("modes"), "a+");
	MUST(f);
	rewind(f);
	CHECK(fgets(buf, sizeof buf, f) && strcmp(buf, "FIRST\n") == 0, "a+ reads from the start");
	CHECK(fputs("third\n", f) >= 0 && fclose(f) == 0, "a+ writes");
	CHECK(file_is(in_dir("modes"), "FIRST\nsecond\nthird\n"), "a+ wrote at the end");
	f = fopen(in_dir("modes"), "w+");
	MUST(f);
	CHECK(fputs("x1", f) >= 0 && fseek(f, 0, SEEK_SET) == 0 && fgetc(f) == 'x' && fgetc(f) == '1', "w+ reads back");
	CHECK(fgetc(f) == EOF && feof(f) && !ferror(f), "end of file flag");
	clearerr(f);
	CHECK(!feof(f), "clearerr");
	fclose(f);
	f = fopen(in_dir("modes"), "wx");
	CHECK(f == NULL && errno == EEXIST, "wx of an existing file: EEXIST");
	f = fopen(in_dir("modes_x"), "wxe");
	CHECK(f != NULL && (fcntl(fileno(f), F_GETFD) & FD_CLOEXEC), "wxe creates, close-on-exec");
	if (f)
		fclose(f);
	f = fopen(check_dir, "w");
	CHECK(f == NULL && errno == EISDIR, "fopen w of a directory: EISDIR");
	f = fopen(in_dir("modes"), "r");
	MUST(f);
	CHECK(fputc('x', f) == EOF && ferror(f), "writing an r stream fails");
	fclose(f);
}

static void placing(void)
{
	FILE *f = fopen64(in_dir("place"), "w+");
	fpos_t pos;
	MUST(f);
	for (int i = 0; i < 10000; i++)
		fprintf(f, "%07d\n", i);
	CHECK(ftell(f) == 80000, "ftell counts what is buffered");
	CHECK(fseek(f, 8 * 1234, SEEK_SET) == 0, "fseek SEEK_SET");
	int value = -1;
	CHECK(fscanf(f, "%d", &value) == 1 && value == 1234, "fscanf at the place");
	CHECK(fgetpos(f, &pos) == 0, "fgetpos");
	CHECK(fseeko(f, -8, SEEK_END) == 0 && fscanf(f, "%d", &value) == 1 && value == 9999, "fseeko SEEK_END");
	CHECK(fsetpos(f, &pos) == 0 && fgetc(f) == '\n' && ftello(f) == 8 * 1235, "fsetpos returns there");
	CHECK(fseek(f, 8, SEEK_CUR) == 0 && ftell(f) == 8 * 1236, "fseek SEEK_CUR");
	CHECK(fseek(f, -1, SEEK_SET) == -1 && errno == EINVAL, "fseek before the start: EINVAL");
	CHECK(fseek(f, 100000, SEEK_SET) == 0 && fputc('z', f) == 'z' && fflush(f) == 0, "write past the end");
	struct stat st;
	CHECK(fstat(fileno(f), &st) == 0 && st.st_size == 100001, "size counts the hole");
	CHECK(fseek(f, 90000, SEEK_SET) == 0 && fgetc(f) == 0, "the hole reads as zero");
	fclose(f);
	CHECK(truncate(in_dir("place"), 80000) == 0, "truncate closes the test");
}

static void pushing_back(void)
{
	FILE *f;
	put_text(in_dir("unget"), "abcdef");
	f = fopen(in_dir("unget"), "r");
	MUST(f);
	CHECK(getc(f) == 'a' && ungetc('Z', f) == 'Z' && ftell(f) == 0 && getc(f) == 'Z', "ungetc another byte");
	CHECK(getc(f) == 'b' && ungetc('b', f) == 'b' && fgetc(f) == 'b' && fgetc(f) == 'c', "ungetc the same byte");
	while (fgetc(f) != EOF) {
	}
	CHECK(feof(f) && ungetc('q', f) == 'q' && !feof(f) && fgetc(f) == 'q', "ungetc at the end clears eof");
	fclose(f);
}

static void buffering(void)
{
	static char own[4096];
	FILE *f = fopen(in_dir("unbuffered"), "w");
	MUST(f);
	CHECK(setvbuf(f, NULL, _IONBF, 0) == 0, "setvbuf none");
	fprintf(f, "a%db", 5);
	CHECK(file_is(in_dir("unbuffered"), "a5b"), "unbuffered bytes are seen at once");
	fclose(f);
	f = fopen(in_dir("line"), "w");
	MUST(f);
	CHECK(setvbuf(f, own, _IOLBF, sizeof own) == 0, "setvbuf line");
	fputs("one\ntwo", f);
	CHECK(file_is(in_dir("line"), "one\n"), "line-buffered: the line is seen, the rest not");
	fflush(f);
	CHECK(file_is(in_dir("line"), "one\ntwo"), "fflush");
	fclose(f);
	f = fopen(in_dir("full"), "w");
	MUST(f);
	CHECK(setvbuf(f, own, _IOFBF, sizeof own) == 0, "setvbuf full, own buffer");
	for (int i = 0; i < 4095; i++)
		fputc('x', f);
	CHECK(file_is(in_dir("full"), ""), "nothing is written before the buffer is full");
	CHECK(__fpending(f) == 4095, "__fpending");
	fclose(f);
	struct stat st;
	CHECK(stat(in_dir("full"), &st) == 0 && st.st_size == 4095, "fclose writes the rest");
	f = fopen(in_dir("full"), "w");
	MUST(f);
	setlinebuf(f);
	setbuffer(f, own, 100);
	setbuf(f, NULL);
	CHECK(fputs("k", f) >= 0 && file_is(in_dir("full"), "k"), "setbuf NULL, setlinebuf, setbuffer");
	fclose(f);
}

static void big_blocks(void)
{
	size_t size = 5 << 20;
	unsigned char *data = malloc(size), *back = malloc(size);
	MUST(data && back);
	pattern_fill(data, size, 1, 0);
	FILE *f = fopen(in_dir("big"), "w+");
	MUST(f);
	CHECK(fwrite(data, 1, 100, f) == 100 && fwrite(data + 100, 1, size - 100, f) == size - 100, "fwrite of 5 MiB");
	rewind(f);
	CHECK(fread(back, 1, 3, f) == 3 && fread(back + 3, 1, size - 3, f) == size - 3, "fread of 5 MiB");
	CHECK(memcmp(data, back, size) == 0, "the same bytes");
	CHECK(fread(back, 1, 1, f) == 0 && feof(f), "then the end");
	CHECK(fseek(f, 1000000, SEEK_SET) == 0 && fread(back, 1000, 7, f) == 7 &&
		      pattern_differs(back, 7000, 1, 1000000) == -1, "fread of seven records");
	CHECK(fseek(f, -500, SEEK_END) == 0 && fread(back, 200, 5, f) == 2, "a short last record is not counted");
	CHECK(fwrite_unlocked("zz", 1, 2, f) == 2 && putc_unlocked('y', f) == 'y' && fflush_unlocked(f) == 0, "unlocked writes");
	rewind(f);
	CHECK(getc_unlocked(f) == data[0] && fread_unlocked(back, 1, 10, f) == 10, "unlocked reads");
	fclose(f);
	struct stat st;
	CHECK(stat(in_dir("big"), &st) == 0 && st.st_size == (off_t)size + 3, "size");
	free(data);
	free(back);
}

static int through_va_list(FILE *f, const char *format, ...)
{
	va_list args;
	va_start(args, format);
	int n = vfprintf(f, format, args);
	va_end(args);
	return n;
}

static int to_fd(int fd, const char *format, ...)
{
	va_list args;
	va_start(args, format);
	int n = vdprintf(fd, format, args);
	va_end(args);
	return n;
}

static void formatted(void)
{
	FILE *f = fopen(in_dir("format"), "w+");
	char word[32];
	double number;
	unsigned hex;
	MUST(f);
	CHECK(through_va_list(f, "%s %.3f %x\n", "word", 2.5, 0xbeefu) == 16, "vfprintf");
	fflush(f);
	CHECK(dprintf(fileno(f), "%d,%d\n", 7, 8) == 4, "dprintf");
	CHECK(to_fd(fileno(f), "<%5s>\n", "v") == 8, "vdprintf");
	rewind(f);
	CHECK(fscanf(f, "%31s %lf %x", word, &number, &hex) == 3 && !strcmp(word, "word") && number == 2.5 && hex == 0xbeef,
	      "fscanf reads it back");
	fclose(f);
	CHECK(file_is(in_dir("format"), "word 2.500 beef\n7,8\n<    v>\n"), "all of it in the file, in order");
}

static void lines(void)
{
	char *line = NULL;
	size_t room = 0;
	FILE *f = fopen(in_dir("lines"), "w");
	MUST(f);
	for (int i = 0; i < 70000; i++)
		fputc('a' + i % 26, f);
	fputs("\nshort\nx;y;z", f);
	fclose(f);
	f = fopen(in_dir("lines"), "r");
	MUST(f);
	CHECK(getline(&line, &room, f) == 70001 && line[69999] == 'a' + 69999 % 26, "getline of 70,001 bytes");
	CHECK(getline(&line, &room, f) == 6 && !strcmp(line, "short\n"), "getline, short");
	CHECK(getdelim(&line, &room, ';', f) == 2 && !strcmp(line, "x;"), "getdelim");
	CHECK(getdelim(&line, &room, ';', f) == 2 && getdelim(&line, &room, ';', f) == 1, "getdelim up to the end");
	CHECK(getline(&line, &room, f) == -1 && feof(f), "getline at the end");
	free(line);
	fclose(f);
}

static void descriptors(void)
{
	int fd = open(in_dir("fdopen"), O_RDWR | O_CREAT, 0600);
	MUST(fd >= 0);
	FILE *f = fdopen(fd, "r+");
	CHECK(f != NULL && fileno(f) == fd, "fdopen");
	MUST(f);
	CHECK(fputs("through the stream", f) >= 0 && fflush(f) == 0, "write through it");
	char buf[32] = "";
	CHECK(pread(fd, buf, sizeof buf, 0) == 18 && !strcmp(buf, "through the stream"), "the descriptor sees it");
	CHECK(lseek(fd, 0, SEEK_CUR) == 18, "the descriptor's offset moved");
	fclose(f);
	CHECK_FAILS(fcntl(fd, F_GETFD), EBADF, "fclose closed the descriptor");
	fd = open(in_dir("fdopen"), O_RDONLY);
	MUST(fd >= 0);
	f = fdopen(fd, "w");
	CHECK(f == NULL && errno == EINVAL, "fdopen w of a read-only descriptor: EINVAL");
	if (f)
		fclose(f);
	else
		close(fd);
	fd = open(in_dir("fdopen"), O_WRONLY);
	f = fdopen(fd, "a");
	CHECK(f && fputs("+tail", f) >= 0 && fclose(f) == 0, "fdopen a appends");
	CHECK(file_is(in_dir("fdopen"), "through the stream+tail"), "content");
}

static void reopening(void)
{
	FILE *f = fopen(in_dir("re1"), "w");
	MUST(f);
	fputs("one", f);
	f = freopen(in_dir("re2"), "w", f);
	CHECK(f != NULL && fputs("two", f) >= 0 && fclose(f) == 0, "freopen of a stream");
	CHECK(file_is(in_dir("re1"), "one") && file_is(in_dir("re2"), "two"), "both files hold their part");
	pid_t pid = fork();
	if (pid == 0) {
		/* What a program does that logs to a file: its stdout, and that of what it starts, goes there. */
		if (!freopen(in_dir("re3"), "w", stdout))
			_exit(1);
		printf("printf\n");
		puts("puts");
		putchar('c');
		fflush(stdout);
		if (system("echo from the shell") != 0)
			_exit(2);
		_exit(fclose(stdout) == 0 ? 0 : 3);
	}
	CHECK(child_ok(pid), "freopen of stdout, printf, system");
	CHECK(file_is(in_dir("re3"), "printf\nputs\ncfrom the shell\n"), "stdout went to the file, also the shell's");
	pid = fork();
	if (pid == 0) {
		int a = 0, b = 0;
		put_text(in_dir("re4"), "12 34");
		if (!freopen(in_dir("re4"), "r", stdin))
			_exit(1);
		_exit(scanf("%d %d", &a, &b) == 2 && a == 12 && b == 34 ? 0 : 2);
	}
	CHECK(child_ok(pid), "freopen of stdin, scanf");
	f = fopen(in_dir("re2"), "r");
	MUST(f);
	f = freopen(in_dir("absent"), "r", f);
	CHECK(f == NULL && errno == ENOENT, "freopen of an absent file: ENOENT");
}

static void other_processes(void)
{
	char command[4200], buf[64] = "";
	put_text(in_dir("popen"), "b\na\nc\n");
	snprintf(command, sizeof command, "sort '%s'", in_dir("popen"));
	FILE *f = popen(command, "r");
	MUST(f);
	size_t got = fread(buf, 1, sizeof buf - 1, f);
	CHECK(got == 6 && !strcmp(buf, "a\nb\nc\n"), "popen r: sort of a file");
	CHECK(pclose(f) == 0, "pclose");
	snprintf(command, sizeof command, "cat > '%s'", in_dir("popen_w"));
	f = popen(command, "w");
	MUST(f);
	fputs("into the pipe", f);
	CHECK(pclose(f) == 0 && file_is(in_dir("popen_w"), "into the pipe"), "popen w: cat into a file");
	snprintf(command, sizeof command, "test -f '%s' && echo yes >> '%s'", in_dir("popen"), in_dir("popen_w"));
	CHECK(system(command) == 0 && file_is(in_dir("popen_w"), "into the pipeyes\n"), "system with a redirection");
	/* A stream open before fork: the child's flush and the parent's go on from the shared offset. */
	f = fopen(in_dir("forked"), "w");
	MUST(f);
	fputs("parent ", f);
	fflush(f);
	pid_t pid = fork();
	if (pid == 0) {
		fputs("child ", f);
		_exit(fclose(f) == 0 ? 0 : 1);
	}
	CHECK(child_ok(pid), "child writes the inherited stream");
	fputs("parent", f);
	fclose(f);
	CHECK(file_is(in_dir("forked"), "parent child parent"), "parent and child share the offset");
}

static void temporary_and_names(void)
{
	/* tmpfile() in the directory, as programs do it: made, unlinked while open, used. */
	FILE *f = fopen(in_dir("temporary"), "w+x");
	char buf[16] = "";
	MUST(f);
	CHECK(unlink(in_dir("temporary")) == 0, "unlink of an open stream's file");
	fputs("still here", f);
	rewind(f);
	CHECK(fgets(buf, sizeof buf, f) && !strcmp(buf, "still here"), "it goes on being readable");
	CHECK(fclose(f) == 0 && access(in_dir("temporary"), F_OK) == -1, "and is gone");
	put_text(in_dir("name1"), "n");
	CHECK(rename(in_dir("name1"), in_dir("name2")) == 0 && file_is(in_dir("name2"), "n"), "rename of stdio.h");
	CHECK(remove(in_dir("name2")) == 0, "remove of a file");
	CHECK(mkdir(in_dir("removed"), 0700) == 0 && remove(in_dir("removed")) == 0, "remove of a directory");
}

int main(int argc, char **argv)
{
	check_begin(argc, argv);
	modes();
	placing();
	pushing_back();
	buffering();
	big_blocks();
	formatted();
	lines();
	descriptors();
	reopening();
	other_processes();
	temporary_and_names();
	return check_end();
}
