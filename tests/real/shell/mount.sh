#!/bin/bash
# The kernel mount: what a program does that the interposer is not in is what the others see, and the other way about.
. "$(dirname "$0")/check.sh"
mount=$(readlink "${WEIR_INSTANCE:?only on weir}/mounted-at")
check "the kernel has mounted the instance" grep -q " $mount " /proc/self/mountinfo
cat > "$outside/p.c" <<'EOF'
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
int main(int argc, char **argv)
{
	char bytes[4096];
	const char *what = argc > 1 ? argv[1] : "";
	if (!strcmp(what, "say"))
		return puts(argv[2]) < 0;
	if (!strcmp(what, "pwd"))
		return !getcwd(bytes, sizeof bytes) || puts(bytes) < 0;
	if (!strcmp(what, "cat")) {
		ssize_t n;
		while ((n = read(0, bytes, 16)) > 0)
			if (write(1, bytes, (size_t)n) != n)
				return 1;
		return n != 0;
	}
	if (!strcmp(what, "four"))
		return read(0, bytes, 4) != 4 || write(1, bytes, 4) != 4;
	int fd = open(argv[2], O_RDWR | O_CREAT, 0644);
	if (fd < 0)
		return 1;
	if (!strcmp(what, "make"))
		return write(fd, argv[3], strlen(argv[3])) != (ssize_t)strlen(argv[3]);
	if (!strcmp(what, "map")) {
		char *at = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
		if (at == MAP_FAILED || at[0] != argv[3][0])
			return 1;
		at[1] = argv[4][0];
		return 0;
	}
	if (!strcmp(what, "flock"))
		return flock(fd, LOCK_EX | LOCK_NB) != 0;
	if (!strcmp(what, "lock")) {
		struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 10, .l_len = 5};
		return fcntl(fd, F_SETLK, &lock) != 0;
	}
	if (!strcmp(what, "kept")) {
		char got[8] = "";
		return unlink(argv[2]) || write(fd, "kept", 4) != 4 || pread(fd, got, 4, 0) != 4 || strcmp(got, "kept");
	}
	return 2;
}
EOF
static=$outside/static
check "a static program is built" cc -O1 -static -o "$static" "$outside/p.c"
cd "$dir" || exit 1
there=$mount/${dir#/weir/}

# Files by relative paths and by the mount's own.
check "makes a file" "$static" make made one
same "which is there" one "$(cat made)"
check "makes one by the mount's path" "$static" make "$there/second" two
same "which is there too" two "$(cat "$dir/second")"
same "in one tree for those with the interposer" "made second" "$(cd "$there" && echo *)"
echo longer > made
same "what the others write" longer "$(LD_PRELOAD='' cat made)"
mkdir e && mv made e/moved
same "renamed by the others" longer "$(LD_PRELOAD='' cat e/moved)"
LD_PRELOAD='' mv e/moved e/back
same "renamed by it" "back" "$(ls e)"
same "the current directory" "$there" "$("$static" pwd)"
ln -s e/back link
same "a link" longer "$(LD_PRELOAD='' cat link)"
check "a file without a name" "$static" kept nameless
fails "which has none" test -e nameless
same "env -i" longer "$(env -i LD_PRELOAD='' /bin/cat e/back)"
LD_PRELOAD='' touch -d '2001-02-03 04:05:06.123456789 UTC' e/back
same "times" 981173106.123456789 "$(stat -c %.9Y e/back)"
LD_PRELOAD='' chmod 640 e/back
same "modes" 640 "$(stat -c %a e/back)"
setfattr -n user.k -v v e/back
same "extended attributes" v "$(LD_PRELOAD='' getfattr --only-values -n user.k e/back)"
LD_PRELOAD='' truncate -s 100000 e/back
same "sizes" 100000 "$(stat -c %s e/back)"
long=$(printf 'n%.0s' {1..255})
check "a name of 255 bytes" "$static" make "$long" x
fails "no longer one" "$static" make "${long}n" x
mkdir many && (cd many && for i in {1..1500}; do : > f$i; done)
same "a large directory" 1500 "$(LD_PRELOAD='' ls many | wc -l)"
LD_PRELOAD='' rm -r many
fails "removed" test -e many

# Descriptors that it inherits, in turn with the others.
{ echo a; "$static" say b; echo c; "$static" say d; } > out
same "output in turns" "a b c d" "$(echo $(< out))"
{ "$static" say e; echo f; } >> out
same "appended output" "a b c d e f" "$(echo $(< out))"
printf 'abcdefgh' > in
same "input in turns" "abcd-efgh" "$({ "$static" four; printf -; cat; } < in)"
same "all of it" abcdefgh "$("$static" cat < in)"
same "from Python" "static python" "$(python3 -c '
import os, subprocess, sys
with open("sub", "w") as out:
    subprocess.run([sys.argv[1], "say", "static"], stdout=out)
    out.write("python\n")
print(*open("sub").read().split())' "$static")"
cp "$static" here
same "run from weir" yes "$(./here say yes)"
printf '#!%s say\n' "$dir/here" > script && chmod +x script
same "a script of it" ./script "$(./script)"

# Locks and mappings.
exec 5> locked
flock -x 5
fails "flock held by the others" "$static" flock locked
flock -u 5
check "and given back" "$static" flock locked
check "a record lock" python3 -c '
import fcntl, subprocess, sys
with open("locked", "r+") as file:
    fcntl.lockf(file, fcntl.LOCK_EX, 5, 10)
    held = subprocess.run([sys.argv[1], "lock", "locked"]).returncode
    fcntl.lockf(file, fcntl.LOCK_UN, 5, 10)
    free = subprocess.run([sys.argv[1], "lock", "locked"]).returncode
    sys.exit((held, free) != (1, 0))' "$static"
head -c 8192 /dev/zero | tr '\0' m > mapped
check "a static program maps a file" "$static" map mapped m N
same "and stores" mN "$(head -c 2 mapped)"
check "while another has it mapped" python3 -c '
import mmap, os, subprocess, sys
fd = os.open("mapped", os.O_RDWR)
with mmap.mmap(fd, 8192) as own:
    own[0:1] = b"q"
    done = subprocess.run([sys.argv[1], "map", "mapped", "q", "Z"]).returncode
    sys.exit(done or own[1:2] != b"Z" or os.pread(fd, 2, 0) != b"qZ")' "$static"
check_end
