/*
 * A program for uninjected.sh, linked statically: makes files, directories and a socket by relative paths, each in
 * a way of its own. Prints of each that was made its name, so that the script can look for it. It has a descriptor
 * of a directory as number 5; what it does to that one and to its current directory must concern nobody else.
 */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

static void made(int result, const char *name)
{
	if (result >= 0)
		puts(name);
}

int main(void)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX, .sun_path = "socket"};
	made(open("../outside", O_CREAT | O_WRONLY, 0644), "../outside");
	made(open("relative", O_CREAT | O_WRONLY, 0644), "relative");
	made(open("/proc/self/cwd/by-proc", O_CREAT | O_WRONLY, 0644), "by-proc");
	made(openat(5, "by-descriptor", O_CREAT | O_WRONLY, 0644), "by-descriptor");
	made(open("/proc/self/fd/5/by-magic", O_CREAT | O_WRONLY, 0644), "by-magic");
	made(mkdir("directory", 0755), "directory");
	made(mkfifo("pipe", 0644), "pipe");
	made(symlink("nowhere", "symlink"), "symlink");
	made(bind(socket(AF_UNIX, SOCK_STREAM, 0), (struct sockaddr *)&address, sizeof address), "socket");
	made(rename("/dev/null", "renamed"), "renamed");
	fflush(stdout);
	/* Neither is anybody else's. */
	fchmod(5, 0);
	chmod(".", 0);
	return 0;
}
