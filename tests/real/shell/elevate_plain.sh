#!/bin/bash
# An elevated directory is as a plain one to programs that look closely: errnos of empty paths, permissions of the parallel
# file system (PFS), what a truncation keeps, modes, groups and times. Each program runs in a plain directory and in an
# elevated one; it must say the same there, and leave the same. Only on weir. As root also what another user finds.
# Argument: mirror, for programs without the client, which find the directory by the kernel.
. "$(dirname "$0")/check.sh"
begin_drains
mirrored=()
[ "${2:-}" = mirror ] && mirrored=(--set run.mirror=always -- env LD_PRELOAD= WEIR_INSTANCE=)
umask 022
chmod 755 "$outside"

# left DIRECTORY: what is in it, and the directory itself; of names that begin with `timed` also the time.
left() {
	(cd "$1" && find . -printf '%p %y %m %U:%G' \( -type d -o -printf ' %n %s' \) \( ! -name 'timed*' -o -printf ' %Ts' \) -printf '\n' | sort)
	(cd "$1" && find . | sort | xargs -d '\n' getfattr -h -d 2> /dev/null)
	(cd "$1" && find . -type f | sort | xargs -d '\n' md5sum)
}

# agree TEXT: runs program.sh in a directory that make.sh has filled, plain and elevated. as: the command by which another
# user runs it, who owns the directory.
agree() {
	local way
	for way in plain pfs; do
		rm -rf $way $way.said
		mkdir $way $way.said
		[ -z "${as:-}" ] || chown 65534:65534 $way $way.said
		(cd $way && . ../make.sh)
	done
	(cd plain && ${as:-} bash ../program.sh > ../plain.said/log 2>&1)
	${as:-} "$weir" run --set run.report=none --set memory.warm=0 --memory 64M --elevate "$outside/pfs" "${mirrored[@]:---}" \
		bash -c 'cd "$1" && bash ../program.sh > ../pfs.said/log 2>&1; true' - "$outside/pfs" 2> pfs.said/run
	same "$1: everything is moved" 0 $?
	same "$1: what the program says" "$(cat plain.said/log)" "$(cat pfs.said/log)"
	same "$1: what it leaves" "$(left plain)" "$(left pfs)"
	grep -v ' moved' pfs.said/run
}

echo 'mkdir d' > make.sh
cat > program.sh <<'PROGRAM'
cat > ../empty.py <<'END'
import ctypes, errno, os
libc = ctypes.CDLL(None, use_errno=True)
calls = dict(
    stat=os.stat, lstat=os.lstat, open=lambda p: os.open(p, 0), creat=lambda p: os.open(p, os.O_CREAT | os.O_WRONLY),
    tmpfile=lambda p: os.open(p, os.O_TMPFILE | os.O_RDWR), mkdir=os.mkdir, rmdir=os.rmdir, unlink=os.unlink,
    chdir=os.chdir, listdir=os.listdir, chmod=lambda p: os.chmod(p, 0o755), readlink=os.readlink, utime=os.utime,
    statvfs=os.statvfs, listxattr=os.listxattr, getxattr=lambda p: os.getxattr(p, "user.x"),
    setxattr=lambda p: os.setxattr(p, "user.x", b"1"), truncate=lambda p: os.truncate(p, 0),
    symlink=lambda p: os.symlink("x", p), mkfifo=os.mkfifo, chown=lambda p: os.chown(p, 0, 0),
    rename_from=lambda p: os.rename(p, "x"), rename_to=lambda p: os.rename("f", p), link=lambda p: os.link(p, "x"),
    link_to=lambda p: os.link("f", p), execv=lambda p: os.execv(p, ["x"]),
)
def said(call, *arguments):
    try:
        return call(*arguments)
    except OSError as error:
        return errno.errorcode[error.errno]
open("f", "w").close()
for name, call in calls.items():
    print(name, said(call, ""))
for name in "access", "euidaccess", "eaccess":
    print(name, getattr(libc, name)(b"", 0), errno.errorcode[ctypes.get_errno()])
for flags in 0, 0x1000:                  # AT_EMPTY_PATH: the current directory
    buffer = (ctypes.c_uint64 * 64)()
    done = libc.fstatat(-100, b"", buffer, flags)
    print("fstatat", flags, done, done == 0 and buffer[1] == os.stat(".").st_ino)
    print("fchmodat", flags, libc.fchownat(-100, b"", -1, -1, flags), libc.faccessat(-100, b"", 0, flags))
END
python3 ../empty.py
cd d && python3 ../../empty.py
bash -c 'cd ..; python3 ../empty.py; test -e "" && echo there'
PROGRAM
agree "empty paths"

cat > make.sh <<'PROGRAM'
mkdir -p mode/inner timed.dir plain/inner
touch -d 2002-02-02 timed.dir plain/inner
setfattr -n user.before -v x plain
PROGRAM
cat > program.sh <<'PROGRAM'
chmod 700 .
setfattr -n user.k -v v .
touch -d 2001-01-01 .
chmod 711 mode/inner
echo x > mode/f
chmod 2750 mode
setfattr -n user.k -v v plain/inner
setfattr -x user.before plain
touch -d 2001-01-01 plain timed.dir
mkdir plain/inner/new
stat -c '%n %a %X %Y' . plain timed.dir
stat -c '%n %a' mode mode/inner
getfattr -d . plain plain/inner
PROGRAM
agree "attributes of directories of the PFS"

cat > make.sh <<'PROGRAM'
for name in xattr linked removed; do
	echo old > $name
	setfattr -n user.k -v v $name
done
ln linked other
ln removed gone
chmod 4755 xattr
echo old > acl
setfacl -m u:65534:rw acl 2> /dev/null
[ "$(id -u)" != 0 ] || chgrp 100 xattr
PROGRAM
cat > program.sh <<'PROGRAM'
rm gone
stat -c '%n %h' removed
for name in xattr linked removed acl; do echo new > $name; done
cat other
getfattr -d xattr linked
getfacl -c acl 2> /dev/null
python3 -c 'open("xattr", "w").write("newer")'
stat -c '%n %a %g %h' xattr linked removed acl
PROGRAM
agree "files that are truncated"
same "an access control list" "$(getfacl -c plain/acl 2> /dev/null)" "$(getfacl -c pfs/acl 2> /dev/null)"

echo 'mkdir -p d/e; echo x > d/e/f; echo x > g' > make.sh
cat > program.sh <<'PROGRAM'
python3 - <<'END'
import errno, os
def rename(one, other):
    try:
        os.rename(one, other)
        print(one, other)
    except OSError as error:
        print(one, other, errno.errorcode[error.errno])
os.makedirs("new/sub")
rename("d", "d/e/f")
rename("d", "d/e/none")
rename("d", "d/none")
rename("d", "g")
rename("new", "new/sub/none")
rename("new", "g")
END
PROGRAM
agree "a directory to a name below itself"

echo 'echo old > timed.old; mkdir timed.dir' > make.sh
cat > program.sh <<'PROGRAM'
echo x > timed.a
touch -d 1960-01-01 timed.a
touch -d '1969-12-31 23:59:59.5' timed.b
mkdir timed.new
python3 -c '
import os
fd = os.open("timed.c", os.O_CREAT | os.O_RDWR)
os.write(fd, b"x" * 10000)
os.utime(fd, (-5, -5))
print(os.fstat(fd))
os.close(fd)
print(os.stat("timed.c").st_mtime)' | sed 's/.*st_atime/st_atime/; s/, st_ctime.*//'
touch -d 1950-05-05 timed.old timed.dir timed.new .
stat -c '%n %Y %y' timed.* .
PROGRAM
agree "times before 1970"

# Another user of a mirror needs /dev/fuse: the tests of the command have that.
if [ "$(id -u)" = 0 ] && [ -z "${mirrored[*]}" ]; then
	mkdir read-only
	mount="mount --bind read-only read-only && mount -o remount,bind,ro read-only"
	if unshare -m bash -c "$mount" 2> /dev/null; then
		cat > read-only.sh <<-PROGRAM
			$mount
			"$weir" run --set run.report=none --elevate "$outside" -- bash -c 'cd read-only; python3 -c "
			import errno, os
			for make in lambda p: open(p, \"w\"), os.mkdir, lambda p: os.symlink(\"x\", p), lambda p: os.rename(\"../plain\", p):
			    try:
			        make(\"new\")
			    except OSError as error:
			        print(errno.errorcode[error.errno], end=\" \")"'
		PROGRAM
		same "names in a read-only file system" "EROFS EROFS EROFS EROFS " "$(unshare -m bash read-only.sh 2> said)"
		same "its run" '' "$(grep -v ' moved\|cleared what' said)"
	fi

	# Another user.
	as="setpriv --reuid 65534 --regid 65534 --groups 100"
	rm -rf "$memory" "$runs"
	own_instances
	chown 65534:65534 "$memory" "$runs"
	export TMPDIR=$runs
	cat > make.sh <<-'PROGRAM'
		mkdir roots sticky closed setgid
		chmod 1777 sticky
		for name in roots/f sticky/f sticky/g closed/f; do echo old > $name; chmod 666 $name; done
		chown -R 65534 closed
		chmod 555 closed
		echo mine > mine
		echo own > own
		chown 65534:65534 mine own
		chgrp 100 own setgid
		chmod 2777 setgid
	PROGRAM
	cat > program.sh <<-'PROGRAM'
		mv -f mine sticky/f
		ln -f mine sticky/f
		rm -f sticky/g
		echo a > sticky/new
		mv -f sticky/new sticky/f
		mv sticky/f .
		mv -f mine roots/f
		mv -f mine closed/f
		for name in roots/f sticky/f closed/f own; do echo new > $name; done
		cat */f
		truncate -s 1 roots/f
		python3 -c 'open("sticky/g", "w").write("py")'
		stat -c '%n %A %h %u:%g' */* *
	PROGRAM
	agree "another user's files, and directories of others"

	echo 'mkdir setgid; chgrp 100 setgid; chmod 2777 setgid' > make.sh
	cat > program.sh <<-'PROGRAM'
		echo a > zero
		chmod 000 zero
		(umask 0777; echo b > masked; mkdir masked.d)
		echo c > log
		chmod 200 log
		mkdir -p drop/in
		echo d > drop/in/f
		chmod 333 drop/in drop
		echo e > setgid/f
		echo f > group
		chgrp 100 group
		mkdir -p g/h
		chgrp 100 g
		chmod g+s g
		echo g > g/f
		mv group g/
		stat -c '%n %A %h %u:%g' */* *
	PROGRAM
	agree "modes that bar their owner, and groups"
fi
check_end
