#!/bin/bash
# Shared libraries that lie in the file system: opened by dlopen by path and by name, needed by others of the same
# directory, loaded twice, replaced, and opened by a program that finds them by its own RUNPATH.
. "$(dirname "$0")/check.sh"
cd "$dir" || exit 1
mkdir lib deps

cat > "$outside/plugin.c" <<'C'
int NAME(void);
int base(void);
static int calls;
int NAME(void) { return base() + ++calls + VALUE; }
C
echo 'int base(void) { return 100; }' > "$outside/base.c"
cat > "$outside/main.c" <<'C'
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
/* main FUNCTION LIBRARY...: opens each, calls the function, says what it returns. c closes all that is open. */
int main(int argc, char **argv)
{
	for (int i = 2; i < argc; i++) {
		if (!strcmp(argv[i], "c")) {
			for (int fd = 3; fd < 1024; fd++)
				close(fd);
			continue;
		}
		char *colon = strchr(argv[i], ':');
		if (colon)
			*colon = 0;
		void *library = strncmp(argv[i], "new=", 4) ? dlopen(argv[i], RTLD_NOW) : dlmopen(LM_ID_NEWLM, argv[i] + 4, RTLD_NOW);
		if (!library) {
			fprintf(stderr, "%s\n", dlerror());
			return 1;
		}
		int (*function)(void) = (int (*)(void))dlsym(library, colon ? colon + 1 : argv[1]);
		if (!function) {
			fprintf(stderr, "%s\n", dlerror());
			return 2;
		}
		printf("%d ", function());
	}
	printf("\n");
	return 0;
}
C
cc -shared -fPIC -o deps/libbase.so -Wl,-soname,libbase.so "$outside/base.c"
for n in 1 2 3; do
	# shellcheck disable=SC2016 # the loader's word
	cc -shared -fPIC -DNAME=plugin$n -DVALUE=$((n * 1000)) -o lib/libplugin$n.so -Wl,-soname,libplugin$n.so "$outside/plugin.c" -Ldeps -lbase -Wl,-rpath,'$ORIGIN/../deps'
done
mkdir "$outside/lib" && cp lib/*.so "$outside/lib" && mkdir "$outside/deps" && cp deps/*.so "$outside/deps"
# shellcheck disable=SC2016
cc -o "$outside/main" "$outside/main.c" -ldl -Wl,-rpath,'$ORIGIN/lib' -Wl,--enable-new-dtags

same "by its path, with a library that it needs by its RUNPATH" "1101 " "$("$outside/main" plugin1 "$dir/lib/libplugin1.so")"
same "by a relative path" "1101 " "$(cd lib && "$outside/main" plugin1 ./libplugin1.so)"
same "several are several" "1101 2101 3101 " "$("$outside/main" plugin1 "$dir/lib/libplugin1.so" "$dir/lib/libplugin2.so:plugin2" lib/libplugin3.so:plugin3)"
same "the same is the same" "1101 1102 1103 " "$("$outside/main" plugin1 "$dir/lib/libplugin1.so" lib/libplugin1.so "$dir/lib/../lib/libplugin1.so")"
same "also where all descriptors were closed" "1101 2101 1102 3101 2102 " "$("$outside/main" plugin1 lib/libplugin1.so c lib/libplugin2.so:plugin2 lib/libplugin1.so c lib/libplugin3.so:plugin3 lib/libplugin2.so:plugin2)"
ln -s libplugin2.so lib/link.so
same "by a link" "2101 2102 " "$("$outside/main" plugin2 lib/link.so lib/libplugin2.so)"
same "by name, in a directory of LD_LIBRARY_PATH" "1101 " "$(LD_LIBRARY_PATH=/no/such:$dir/lib "$outside/main" plugin1 libplugin1.so)"
mv "$outside/lib/libplugin2.so" "$outside/lib/found.so"
same "by name, by the RUNPATH of a program of the system" "2101 " "$("$outside/main" plugin2 found.so)"
same "in a namespace of its own" "3101 " "$("$outside/main" plugin3 "new=$outside/lib/libplugin3.so")"
# What a program needs as it begins.
echo 'int printf(const char *, ...); int plugin1(void); int plugin2(void); int main(void) { return printf("%d %d\n", plugin1(), plugin2()) < 0; }' > "$outside/needs.c"
mkdir bin
# shellcheck disable=SC2016
cc -o bin/needs "$outside/needs.c" -Llib -lplugin1 -lplugin2 -Wl,-rpath-link,deps -Wl,-rpath,'$ORIGIN/../lib'
# shellcheck disable=SC2016
cc -o bin/old "$outside/needs.c" -Llib -lplugin1 -lplugin2 -Wl,-rpath-link,deps -Wl,-rpath,'${ORIGIN}/../lib' -Wl,--disable-new-dtags
cc -o "$outside/needs" "$outside/needs.c" -Llib -lplugin1 -lplugin2 -Wl,-rpath-link,deps
same "a program and its libraries, by RUNPATH" "1101 2101" "$(bin/needs)"
same "by RPATH" "1101 2101" "$("$dir/bin/old")"
same "a program of the system, by LD_LIBRARY_PATH" "1101 2101" "$(LD_LIBRARY_PATH=$dir/lib:$dir/deps "$outside/needs")"
same "relative" "1101 2101" "$(cd lib && LD_LIBRARY_PATH=.:../deps "$outside/needs")"
same "by posix_spawn" "1101 2101" "$(python3 -c 'import os, sys
os.waitpid(os.posix_spawn(sys.argv[1], ["needs"], dict(os.environ, LD_LIBRARY_PATH=sys.argv[2])), 0)' "$outside/needs" "$dir/lib:$dir/deps")"
check "one that is not there" sh -c "! '$outside/needs'"
mv lib/libplugin2.so lib/gone
check "one that was there" sh -c "! bin/needs"
mv lib/gone lib/libplugin2.so
check "what it starts is told nothing of them" sh -c 'cd lib && test -z "$(LD_LIBRARY_PATH=.:../deps sh -c "exec bash -c true" 2>&1)"'
# shellcheck disable=SC2016
cc -o bin/both "$outside/main.c" -ldl -Llib -Wl,--no-as-needed -lplugin1 -Wl,-rpath-link,deps -Wl,-rpath,'$ORIGIN/../lib'
same "opened again, it is the same" "1101 1102 " "$(bin/both plugin1 lib/libplugin1.so libplugin1.so)"
fails "what is not there" "$outside/main" plugin1 lib/none.so
echo text > lib/text.so
fails "what is no library" "$outside/main" plugin1 lib/text.so
check_end
