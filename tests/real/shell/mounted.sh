#!/bin/bash
# Programs that the interposer is not in, by way of the kernel mount, against injected ones: static programs with a
# current directory of the file system, and programs that were started without the interposer. In an elevated directory, by
# the mirror that lies over it.
. "$(dirname "$0")/check.sh"
mirror=
case $dir in
/weir/*)
	mount=$(readlink "${WEIR_INSTANCE:?only on weir}/mounted-at")
	there=$mount/${dir#/weir/}
	;;
*)
	mirror=${dir%/*/*}
	mount=$mirror
	there=$dir
	;;
esac
cd "$dir" || exit 1

check "the kernel has mounted the instance" grep -q " $mount " /proc/self/mountinfo

check "a static program" cc -static -O1 -o "$outside/static" "$here/../c/mounted.c"
chmod 755 "$outside"
s=$outside/static
bare() { LD_PRELOAD='' "$@"; }
is() { # is TEXT COMMAND...
	local wanted=$1 got
	shift
	got=$("$@" 2>&1)
	[ "$got" = "$wanted" ] || { echo "  says: $got, and not: $wanted"; return 1; }
}
fails_as() { # fails_as TEXT COMMAND...
	local wanted=$1
	shift
	! is "" "$@" > /dev/null && "$@" 2>&1 | grep -q "$wanted"
}

# Names and sizes
echo one > file
check "what is created exclusively is there" sh -c "'$s' exclusive new && [ -f new ] && [ \$(stat -c %a new) = 600 ]"
check "what an injected program made is there already" is "open: File exists" "$s" exclusive file
check "and the other way" sh -c "! (set -C; : > new) 2> /dev/null"
check "appends" sh -c "'$s' append file 2 && [ \$(wc -l < file) = 3 ] && [ \$(stat -c %s file) = 34 ]"
many() {
	local i
	for i in 1 2 3; do
		"$s" append many 200 &
		bash -c 'for i in {1..200}; do echo injected, aline; done >> many' &
	done
	wait
	[ "$(wc -l < many)" = 1200 ] && [ "$(sort many | uniq -c | tr -s ' ' | tr '\n' ';')" = " 600 injected, aline; 600 static, a line;" ]
}
check "appends of both kinds at once lose nothing" many
mapped() {
	head -c 4095 /dev/zero | tr '\0' s > many && echo >> many
	python3 -c '
import mmap, os, time
m = mmap.mmap(os.open("many", os.O_RDWR), 4096)
print(flush=True)
end = time.monotonic() + 60
while not os.path.exists("enough") and time.monotonic() < end:
    m[0:1] = b"s"' > ready &
	until [ -s ready ]; do sleep 0.01; done
	for i in 1 2 3; do
		bare bash -c 'for i in {1..200}; do echo bare, a line; done >> "$1"' bash "$there/many" &
		bash -c 'for i in {1..200}; do echo injected, a line; done >> many' &
	done
	sleep 1
	: > enough
	wait
	[ "$(tail -n +2 many | sort | uniq -c | tr -s ' ' | tr '\n' ';')" = " 600 bare, a line; 600 injected, a line;" ]
}
check "appends to a file that is mapped" mapped
check "unlinked while open" sh -c "echo abc > gone; [ \"\$('$s' unlinked gone)\" = 'u 0' ] && [ ! -e gone ]"
long=$(printf 'n%.0s' {1..255})
check "a name of 255 bytes" sh -c "'$s' exclusive $long && [ -f $long ] && rm $long"
check "one of 256 bytes is too long" fails_as "too long" "$s" exclusive "n$long"
deep=$(printf 'd/%.0s' {1..100})
check "a deep path" sh -c "mkdir -p $deep && '$s' exclusive ${deep}f && [ -f ${deep}f ]"
check "a link is followed" sh -c "ln -s file link; ln file hard; [ \"\$('$s' load link)\" = \"\$(head -c 5 file)\" ]; '$s' append hard 1; [ \$(wc -l < file) = 4 ]"
check "links of the mount" is one bare head -n 1 link
check "the mount's own path, by a static program" sh -c "'$s' exclusive $there/by-mount && [ -f by-mount ]"
check "and by an injected one" is "$(echo *)" sh -c "cd $there && echo *"
check "the current directory" is "$there" "$s" pwd
renamed() {
	mkdir e && mv file e/moved && [ "$(bare head -n 1 e/moved)" = one ] && bare mv e/moved e/back && [ "$(ls e)" = back ] && mv e/back file
}
check "renames are seen both ways" renamed
check "a renamed file" sh -c "mv file moved && '$s' append moved 1 && mv moved file && [ \$(wc -l < file) = 5 ]"

# Attributes
check "attributes both ways" sh -c "python3 -c 'import os; os.setxattr(\"file\", \"user.a\", b\"injected\")'; [ \$('$s' xattr file) = injected ] && [ \"\$(python3 -c 'import os; print(os.getxattr(\"file\", \"user.b\"))')\" = \"b'static'\" ]"
check "times" sh -c "'$s' times file && [ \"\$(TZ=UTC stat -c %y file)\" = '2001-09-09 01:46:40.123456789 +0000' ]"
injected() {
	touch -d '2001-02-03 04:05:06.123456789 UTC' file && chmod 640 file && truncate -s 100000 sized &&
		is "981173106.123456789 640" bare stat -c '%.9Y %a' file && is 100000 bare stat -c %s sized &&
		bare chmod 600 file && bare truncate -s 50 sized && is "600 50" echo $(stat -c %a file) $(stat -c %s sized)
}
check "times, modes and sizes, both ways" injected
check "statfs" is "1 255" "$s" statfs .
check "fallocate, holes" is "1048576 1048576 0" sh -c "'$s' allocate sparse | sed 's/ -1 / 1048576 /'"
check "copy_file_range" sh -c "'$s' copy many copied && cmp many copied"

# Locks
check "flock excludes" is "taken: Resource temporarily unavailable" flock file "$s" flock file
check "and is free afterwards" is free "$s" flock file
locks='import fcntl, subprocess, sys
f = open("file", "r+")
fcntl.lockf(f, fcntl.LOCK_EX, 5, int(sys.argv[1]))
print(subprocess.run([sys.argv[2], "record", "file"], capture_output=True, text=True).stdout, end="")'
check "record locks exclude" is "taken: Resource temporarily unavailable" python3 -c "$locks" 12 "$s"
check "but not those of other bytes" is free python3 -c "$locks" 30 "$s"

# Mappings
dd if=/dev/zero of=mapped bs=4096 count=4 status=none
check "a store of a static program is seen" sh -c "'$s' store mapped hello && [ \$(head -c 5 mapped) = hello ]"
check "an injected write is seen by its mappings" sh -c "printf HELLO | dd of=mapped conv=notrunc status=none; [ \$('$s' load mapped) = HELLO ] && [ \$('$s' load mapped private) = HELLO ]"
both='import mmap, subprocess, sys
f = open("mapped", "r+b"); m = mmap.mmap(f.fileno(), 4096); m[0:5] = b"first"
say = lambda *w: subprocess.run([sys.argv[1], *w], capture_output=True, text=True).stdout.strip()
print(say("load", "mapped"), end=" "); say("store", "mapped", "other"); print(m[0:5].decode(), f.read(5).decode())'
check "mappings of both kinds are one" is "first other other" python3 -c "$both" "$s"

# Users and modes
if [ "$(id -u)" = 0 ]; then
	echo secret > private && chmod 600 private
	other() { setpriv --reuid 12345 --regid 12345 --clear-groups "$@"; }
	check "another user may not open what is private" fails_as "denied" other "$s" append private 1
	mkdir open && chmod 1777 open
	# Only its own user may enter a mirror.
	[ -n "$mirror" ] || check "but may make a file where all may, and owns it" sh -c "setpriv --reuid 12345 --regid 12345 --clear-groups '$s' exclusive open/f && [ \$(stat -c %u:%g open/f) = 12345:12345 ]"
	echo x > open/root && chmod 666 open/root
	[ -n "$mirror" ] || check "and may not remove another's where it is sticky" fails_as "not permitted" other env LD_PRELOAD= "$s" unlinked open/root
fi

# Inherited descriptors, in turn with injected programs
turns() {
	{ echo one; echo 2 | env LD_PRELOAD= cat; echo three; env LD_PRELOAD= sh -c 'echo 4; exec /bin/echo 5'; echo six; } > turns
	is "one 2 three 4 5 six" sh -c 'echo $(cat turns)'
}
check "a redirected group, in turn" turns
appended() {
	echo 0 > turns
	{ echo one; env LD_PRELOAD= sh -c 'echo two'; echo three; } >> turns
	is "0 one two three" sh -c 'echo $(cat turns)'
}
check "the same by >>" appended
readers() { { read -r first; env LD_PRELOAD= head -c 4 > /dev/null; read -r rest; } < turns; [ "$first/$rest" = "0/two" ]; }
check "standard input is read on" readers
printf abcdefgh > input
check "by a static program" is abcd-efgh sh -c "{ '$s' first; printf -; cat; } < input"
check "in turn with static programs" is "a b c d" sh -c "{ echo a; '$s' say b; echo c; '$s' say d; } > turns; echo \$(cat turns)"
python='import os, subprocess
f = open("spawned", "wb", 0)
f.write(b"a")
subprocess.run(["env", "LD_PRELOAD=", "printf", "b"], stdout=f); f.write(b"c")
pid = os.posix_spawn("/usr/bin/env", ["env", "LD_PRELOAD=", "printf", "d"], os.environ, file_actions=[(os.POSIX_SPAWN_DUP2, f.fileno(), 1)])
os.waitpid(pid, 0); f.write(b"e"); print(open("spawned").read())'
check "of subprocess and posix_spawn" is abcde python3 -c "$python"
printf '#!%s append\n' "$s" > script && chmod +x script
cp "$s" here
check "a program of the file system" is yes ./here say yes
# In an elevated directory it is a copy in memory.
[ -n "$mirror" ] || check "which says where it is" is "$there/here" ./here exe
check "and an injected one its path in weir" sh -c "cp /usr/bin/readlink there && [ \$(./there /proc/self/exe) = $dir/there ]"
check "env -i" is one env -i /usr/bin/head -n 1 file
check "a script whose interpreter is static" sh -c "./script && [ \$(head -c 2 script) = '#!' ]"

# Tools of containers: what they find out is for the kernel
check "realpath of the mount's path is in the mount" is "$there/file" realpath "$there/./file"
check "and of weir's path in weir" is "$dir/file" realpath "$dir/./file"
mkdir "$outside/bound"
check "a bind mount of the mount's directory" is one unshare -m sh -c "mount --bind '$there' '$outside/bound' && LD_PRELOAD= head -n 1 '$outside/bound/file'"
check "and of weir's" is one unshare -m python3 -c "
import ctypes, subprocess, sys
libc = ctypes.CDLL(None, use_errno=True)
at, to = sys.argv[1].encode(), sys.argv[2].encode()
assert libc.mount(b'none', b'/', None, 0x44000, None) == 0
assert libc.mount(at, to, None, 0x1000, None) == 0, ctypes.get_errno()
print(subprocess.run(['head', '-n', '1', to + b'/file'], env={}, capture_output=True, text=True).stdout, end='')
" "$dir" "$outside/bound"

# Listings
listed() {
	mkdir big && (cd big && python3 -c 'for i in range(10000): open("k%d" % i, "w").close()')
	python3 -c 'for i in range(3000): open("big/n%d" % i, "w").close()' &
	local got
	got=$(bare ls -U big | grep -c ^k) && [ "$got" = 10000 ] || { echo "  lists $got"; wait; return 1; }
	[ "$(bare ls -U big | sort | uniq -d | wc -l)" = 0 ]
	local unique=$?
	wait
	[ "$unique" = 0 ] && [ "$(bare ls big | wc -l)" = 13000 ]
}
check "10,000 names, listed while others create" listed
check "removed by the mount" sh -c "LD_PRELOAD= rm -r big && [ ! -e big ]"
check_end
