/*
 * Threads that are cancelled unwind the stack through the interposer, which must not stop them.
 */
#include "check.h"

#include <pthread.h>
#include <sys/socket.h>

static int ends[2], pair[2];
static volatile int cleaned;

static void clean(void *none)
{
	(void)none;
	cleaned++;
}

static void *waits_in_read(void *none)
{
	char byte;
	pthread_cleanup_push(clean, NULL);
	(void)!read(ends[0], &byte, 1);
	pthread_cleanup_pop(0);
	return none;
}

static void *waits_in_recvmsg(void *none)
{
	char byte;
	struct iovec vector = {&byte, 1};
	struct msghdr message = {.msg_iov = &vector, .msg_iovlen = 1};
	pthread_cleanup_push(clean, NULL);
	(void)!recvmsg(pair[0], &message, 0);
	pthread_cleanup_pop(0);
	return none;
}

static void *waits_in_stdio(void *none)
{
	FILE *stream = fdopen(dup(ends[0]), "r");
	pthread_cleanup_push(clean, NULL);
	(void)!fgetc(stream);
	pthread_cleanup_pop(0);
	return none;
}

static void cancel(void *(*work)(void *), const char *what)
{
	pthread_t thread;
	void *result;
	cleaned = 0;
	MUST(pthread_create(&thread, NULL, work, NULL) == 0);
	usleep(100000);
	MUST(pthread_cancel(thread) == 0);
	MUST(pthread_join(thread, &result) == 0);
	CHECK(result == PTHREAD_CANCELED && cleaned == 1, "a thread is cancelled in %s", what);
}

int main(int argc, char **argv)
{
	check_begin(argc, argv);
	MUST(pipe(ends) == 0 && socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
	cancel(waits_in_read, "read");
	cancel(waits_in_recvmsg, "recvmsg");
	cancel(waits_in_stdio, "fgetc");
	put_text(in_dir("file"), "text");
	CHECK(file_is(in_dir("file"), "text"), "the program goes on");
	return check_end();
}
