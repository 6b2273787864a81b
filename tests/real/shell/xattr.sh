#!/bin/bash
# Programs that carry extended attributes: setfattr, getfattr, cp, mv, rsync, tar. And a server that is killed and comes
# back with them.
. "$(dirname "$0")/check.sh"
cd "$dir" || exit 1

echo text > file
mkdir d
setfattr -n user.mime_type -v text/plain file
setfattr -n user.sum -v 0x00ff10 file
setfattr -n user.owner -v me d
wanted='user.mime_type="text/plain"
user.sum=0sAP8Q'
dump() { getfattr --absolute-names -d "$1" | grep -v '^#' | sed '/^$/d' | sort; }
same "getfattr -d shows what setfattr set" "$wanted" "$(dump file)"
fails "setfattr -h of a link" bash -c 'ln -s file l; setfattr -h -n user.x -v y l'

cp -a file copy && cp -a d e
same "cp -a of a file" "$wanted" "$(dump copy)"
same "cp -a of a directory" 'user.owner="me"' "$(dump e)"
cp file plain
same "cp without -a leaves them" "" "$(dump plain)"
mv copy moved
same "mv" "$wanted" "$(dump moved)"
mkdir tree && cp -a file d tree && rsync -aX tree/ other/
same "rsync -X of a file" "$wanted" "$(dump other/file)"
same "rsync -X of a directory" 'user.owner="me"' "$(dump other/d)"
setfattr -x user.sum tree/file && rsync -aX tree/ other/
same "rsync -X takes away what is gone" 'user.mime_type="text/plain"' "$(dump other/file)"
tar --xattrs -cf t.tar file d && mkdir from && tar --xattrs --xattrs-include='user.*' -C from -xf t.tar
same "tar --xattrs" "$wanted" "$(dump from/file)"
same "tar --xattrs of a directory" 'user.owner="me"' "$(dump from/d)"
getfattr --absolute-names -d file > saved && setfattr -x user.sum file && setfattr --restore=saved
same "setfattr --restore" "$wanted" "$(dump file)"
python3 -c '
import os, shutil
os.setxattr("file", "user.py", b"x", os.XATTR_CREATE)
shutil.copy2("file", "copied")
assert os.getxattr("copied", "user.py") == b"x"
assert sorted(os.listxattr("copied")) == ["user.mime_type", "user.py", "user.sum"]
os.removexattr("file", "user.py")
try:
    os.getxattr("file", "user.py")
except OSError as error:
    assert error.errno == 61
else:
    raise SystemExit("is still there")' || failed=$((failed + 1))
if [ -n "${WEIR_INSTANCE:-}" ]; then
	setfattr -n user.weir.visibility -v ras file
	cp -a file own
	same "weir's own are not carried along" raw "$(getfattr --only-values -n user.weir.visibility own)"
fi
check_end
