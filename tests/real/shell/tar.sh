#!/bin/bash
# tar: archives made in, of and unpacked into the directory, plain and compressed, with links, modes, times, sparse
# files; append, update, list, extract of one member, --delete, incremental.
. "$(dirname "$0")/../shell/check.sh"
cd "$dir" || exit 1
mkdir -p tree/a/b tree/empty
head -c 2500000 /dev/urandom > tree/a/random
for i in $(seq 1 400); do echo "file $i" > tree/a/b/f$i; done
ln -s a/random tree/link
ln tree/a/b/f1 tree/hard
truncate -s 3M tree/sparse && echo data >> tree/sparse
chmod 604 tree/a/random
touch -d '2003-04-05 06:07:08' tree/a/b/f2 tree/a
describe() { (cd "$1" && find . -printf '%P %y %m %T@ %l\n' | sed 's/\(\.[0-9]*\)0* /\1 /' | cut -d. -f1,2 | sort && find . -type f -exec md5sum {} + | sort); }
describe tree > "$outside/wanted"

check "tar -cf" tar --format=posix -cf tree.tar tree
check "tar -tf lists" bash -c 'test "$(tar -tf tree.tar | wc -l)" = "$(find tree | wc -l)"'
check "tar -df finds no difference" tar -df tree.tar
check "tar -xf into another place" bash -c 'mkdir x && tar -xpf tree.tar -C x'
describe x/tree > "$outside/got"
check "unpacked as packed" diff "$outside/wanted" "$outside/got"
same "hard links stayed" "$(stat -c %i x/tree/hard)" "$(stat -c %i x/tree/a/b/f1)"
check "tar -xf out of the directory" bash -c 'mkdir "$1/x" && tar -xpf tree.tar -C "$1/x"' - "$outside"
describe "$outside/x/tree" > "$outside/got"
check "unpacked as packed, outside" diff "$outside/wanted" "$outside/got"
check "tar made outside, unpacked in" bash -c 'tar --format=posix -cf "$1/o.tar" -C "$1/x" tree && mkdir y && tar -xpf "$1/o.tar" -C y' - "$outside"
describe y/tree > "$outside/got"
check "unpacked as packed, inside" diff "$outside/wanted" "$outside/got"
check "tar through a pipe" bash -c 'mkdir z && tar -cf - tree | tar -xpf - -C z && diff -r tree z/tree'
check "tar -czf, -xzf" bash -c 'tar -czf t.tgz tree && mkdir g && tar -xzf t.tgz -C g && diff -r tree g/tree'
check "tar -cJf, -xJf" bash -c 'command -v xz > /dev/null || exit 0; tar -cJf t.txz tree/a/b && mkdir j && tar -xJf t.txz -C j && diff -r tree/a/b j/tree/a/b'
check "tar -S keeps sparse files" bash -c 'tar -cSf s.tar tree/sparse && test "$(stat -c %s s.tar)" -lt 100000 && mkdir s && tar -xSf s.tar -C s && cmp tree/sparse s/tree/sparse'
check "tar -r appends" bash -c 'echo added > added && tar -rf tree.tar added && tar -xOf tree.tar added | cmp - added'
check "tar -u updates" bash -c 'echo newer > added && touch -d tomorrow added && tar -uf tree.tar added && test "$(tar -tf tree.tar | grep -c added)" = 2'
check "tar --delete" bash -c 'tar --delete -f tree.tar added && test "$(tar -tf tree.tar | grep -c added)" = 0 && mkdir d && tar -xf tree.tar -C d && diff -r tree d/tree'
check "one member" bash -c 'mkdir o && tar -xf tree.tar -C o tree/a/b/f7 && test "$(cat o/tree/a/b/f7)" = "file 7" && test "$(find o -type f | wc -l)" = 1'
check "over existing files, -k keeps" bash -c 'echo changed > x/tree/a/b/f9 && tar -xf tree.tar -C x && test "$(cat x/tree/a/b/f9)" = "file 9"; echo changed > x/tree/a/b/f9; tar -xkf tree.tar -C x 2> /dev/null; test "$(cat x/tree/a/b/f9)" = changed'
check "incremental" bash -c 'tar -cf i0.tar -g snap tree && echo inc > tree/inc && tar -cf i1.tar -g snap tree && tar -tf i1.tar | grep -q tree/inc && ! tar -tf i1.tar | grep -q tree/a/random'
check "--remove-files" bash -c 'cp -a tree gone && tar -cf r.tar --remove-files gone && test ! -e gone'
fails "a broken archive is refused" bash -c 'head -c 100000 /dev/urandom > bad.tar; tar -xf bad.tar'
check_end
