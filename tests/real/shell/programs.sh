#!/bin/bash
# Programs that nobody adapted, each once outside and once here: what they say, and what they leave, must be the same.
. "$(dirname "$0")/check.sh"
cd "$dir" || exit 1
mkdir "$outside/there"
export CCACHE_DISABLE=1 HOME=$outside GIT_CONFIG_NOSYSTEM=1 SOURCE_DATE_EPOCH=1000000000
export GIT_AUTHOR_DATE='2001-01-01T00:00:00Z' GIT_COMMITTER_DATE='2001-01-01T00:00:00Z'
git config --global user.email a@example.org
git config --global user.name N
git config --global init.defaultBranch main

# alike TEXT FUNCTION: runs it in a new directory here and outside. The paths of both are the same word.
alike() {
	local text=$1 function=$2 wanted got
	mkdir "$outside/there/$function" "$dir/$function"
	wanted=$(cd "$outside/there/$function" && "$function" 2>&1 | sed "s|$outside/there|HERE|g")
	got=$(cd "$dir/$function" && "$function" 2>&1 | sed "s|$dir|HERE|g")
	[ "${#wanted}" -gt 10 ] || wanted="more than it said: $wanted"
	same "$text" "$wanted" "$got"
}

cmake_and_ctest() {
	cat > CMakeLists.txt <<'C'
cmake_minimum_required(VERSION 3.10)
project(p C)
add_library(l SHARED l.c)
add_executable(m m.c)
target_link_libraries(m l)
enable_testing()
add_test(NAME t COMMAND m)
install(TARGETS m l)
C
	echo 'int f(void) { return 7; }' > l.c
	echo 'int printf(const char *, ...); int f(void); int main(void) { printf("%d\n", f()); return f() != 7; }' > m.c
	cmake -S . -B b -DCMAKE_INSTALL_PREFIX="$PWD/inst" > cmake.log 2>&1 && cmake --build b -j2 > make.log 2>&1
	echo "built $?"
	(cd b && ctest 2>&1 | grep -c Passed)
	./b/m && cmake --install b > /dev/null && LD_LIBRARY_PATH=inst/lib inst/bin/m
	find inst | sort
	cmake --build b | tail -n 1
}
configure_make_and_lto() {
	cat > configure.ac <<'C'
AC_INIT([x],[1])
AC_CONFIG_SRCDIR([x.c])
AC_PROG_CC
AC_CHECK_FUNCS([glob fts_open])
AC_CONFIG_HEADERS([config.h])
AC_CONFIG_FILES([Makefile])
AC_OUTPUT
C
	# shellcheck disable=SC2016 # words of make
	printf 'x: x.o y.o\n\t$(CC) -flto=2 -o $@ x.o y.o\n%%.o: %%.c config.h\n\t$(CC) -flto -O2 -c $<\n' > Makefile.in
	printf '#include "config.h"\nint g(void);\nint main(void) { return g(); }\n' > x.c
	echo 'int g(void) { return HAVE_GLOB - 1; }' | cat <(echo '#include "config.h"') - > y.c
	autoheader > log 2>&1 && autoconf >> log 2>&1 && ./configure >> log 2>&1 && make -j2 2>&1 && ./x
	echo "ran $?"
	make
	rm x.o && make -s && ar rcs liba.a y.o && ar t liba.a && strip x && ./x
	gcc -save-temps -include config.h -c y.c && find . -name '*.[ios]' | sort
}
git_in_full() {
	git init -q a && cd a || return
	mkdir d && echo one > d/f && ln -s d/f l && echo two > g && git add . && git commit -qm first
	git checkout -qb other && echo more >> g && git commit -qam second && git checkout -q main && git mv d/f d/h
	git commit -qm third && git merge -q -m merged other && git log --format='%h %s' --graph
	git gc -q && git fsck --strict && git clone -q . ../b && git -C ../b status -sb && ls ../b
	git worktree add -q ../c HEAD~1 && ls ../c && git archive HEAD | tar t
	echo x > new && git stash -qu && git stash pop -q && git status --short
}
archives() {
	mkdir -p t/e && for i in {1..50}; do echo "$i" > t/f$i; done && ln -s f1 t/l && chmod 600 t/f2 && touch -d 2001-01-01 t/f3
	zip -qry a.zip t && unzip -qt a.zip && unzip -qq a.zip -d u && diff -r t u/t && stat -c '%a %s %Y' u/t/f2 u/t/f3 | tail -n 1
	tar czf a.tgz t && tar xzf a.tgz -C u && diff -r t u/t && find t | sort | busybox cpio -o -H newc 2> /dev/null > a.cpio
	mkdir c && (cd c && busybox cpio -id < ../a.cpio 2>&1 && diff -r ../t t && busybox find . -type f | wc -l)
	busybox tar cf b.tar t && busybox tar tf b.tar | wc -l && busybox sed -i s/1/one/ t/f1 && busybox cp -a t t2 && cat t2/f1 && busybox rm -r t2
}
database() {
	sqlite3 t.db 'create table t(a); insert into t values(1),(2); begin; insert into t values(3); rollback; select count(*) from t;'
	sqlite3 t.db 'pragma journal_mode=truncate; insert into t values(9); vacuum; pragma integrity_check; select sum(a) from t;'
	sqlite3 t.db 'pragma journal_mode=persist; with recursive n(i) as (select 1 union select i + 1 from n limit 20000) insert into t select i from n; select count(*) from t;'
	for i in 1 2 3 4; do sqlite3 -cmd '.timeout 20000' t.db "pragma journal_mode=delete; insert into t values($i);" > /dev/null & done
	wait
	sqlite3 t.db 'select count(*) from t; pragma integrity_check;'
	sqlite3 t.db .dump | wc -l
}
scripts() {
	cat > s.js <<'J'
#!/usr/bin/env node
const fs = require('fs'), { execSync, spawnSync } = require('child_process');
(async () => {
  fs.mkdirSync('x/y', { recursive: true }); fs.writeFileSync('x/y/f', '1'); fs.symlinkSync('y/f', 'x/l');
  fs.cpSync('x/y', 'cp', { recursive: true }); console.log(fs.readFileSync('cp/f', 'utf8'), fs.realpathSync.native('x/l'));
  const h = await fs.promises.open('b', 'w+'); await h.write('text'); await h.sync(); console.log((await h.stat()).size); await h.close();
  await require('stream/promises').pipeline(fs.createReadStream('b'), fs.createWriteStream('c'));
  const fd = fs.openSync('out', 'w'); console.log(spawnSync('sh', ['-c', 'cat ../c; pwd'], { stdio: ['ignore', fd, 'pipe'], cwd: 'x' }).status);
  console.log(fs.readFileSync('out', 'utf8'), execSync('pwd').toString(), __filename, fs.readdirSync('.').sort().join());
  await fs.promises.rm('x', { recursive: true }); console.log(fs.existsSync('x'));
})();
J
	cat > s.pl <<'P'
#!/usr/bin/perl
use File::Find; use File::Copy; use File::Path qw(make_path remove_tree); use Cwd qw(getcwd abs_path); use FindBin;
make_path('p/q'); open(my $f, '>', 'p/q/z'); print $f "one\ntwo\n"; close $f; symlink 'q', 'p/s';
my @n; find(sub { push @n, $File::Find::name }, 'p'); print join(' ', sort(@n), sort(glob('p/*')), sort(<p/q/*>), getcwd(), abs_path('p/s/z'), $FindBin::Bin), "\n";
copy('p/q/z', 'c') or die; { local ($^I, @ARGV) = ('.bak', 'c'); while (<>) { s/one/ONE/; print } } print `cat c c.bak; pwd`;
open(my $save, '>&', \*STDOUT); open(STDOUT, '>', 'r'); system('echo child'); open(STDOUT, '>&', $save); print -s 'r', "\n"; remove_tree('p'); print -e 'p' ? 'there' : 'gone', "\n";
P
	chmod +x s.js s.pl && ./s.js && ./s.pl
	python3 -m venv --without-pip ve && printf '#!%s/ve/bin/python\nimport sys; print(sys.prefix, sys.argv)\n' "$PWD" > ve/bin/tool && chmod +x ve/bin/tool
	ve/bin/tool && PATH=$PWD/ve/bin:$PATH tool a
	cat > p.py <<'P'
import multiprocessing as mp, glob
def w(i):
    open(f"mp{i}", "w").write(str(i))
    return i
if __name__ == "__main__":
    for how in ("spawn", "fork", "forkserver"):
        with mp.get_context(how).Pool(2) as pool:
            print(how, sum(pool.map(w, range(8))), len(glob.glob("mp?")))
P
	python3 p.py
	seq 100 | xargs -P8 -I{} sh -c 'echo {} > par.{}'
	find . -name 'par.*' -print0 | sort -z | xargs -0 -n1 -P4 cat | sort -n | sha256sum
	vi -es -u NONE -N -c 'edit new.txt' -c 'call setline(1, ["a", "b"])' -c 'write' -c '%s/a/z/' -c 'wq' && cat new.txt && find . -name '.*sw?'
}

alike "cmake, ctest, an installed program and its library" cmake_and_ctest
alike "autoconf, configure, make -j, lto, ar" configure_make_and_lto
alike "git" git_in_full
alike "zip, tar, cpio, busybox" archives
alike "sqlite with each journal that needs no shared memory" database
alike "node, perl, venv, multiprocessing, xargs -P, vim" scripts
check_end
