#!/bin/bash
# Programs with an allocator of their own: linked, preloaded, and those of the sanitizers. An allocator opens files while
# it holds its locks, so that a wrapper that asks it for memory waits for itself (tests/real/c/allocator.c counts).
. "$(dirname "$0")/check.sh"
cd "$dir" || exit 1

# built NAME SOURCE FLAGS...: a check program, linked in another way.
built() {
	local built=$outside/$1 source=$here/../c/$2
	shift 2
	cc -w -O1 -o "$built" "$source" -Wl,--no-as-needed "$@" -lm -pthread
}

threads='
import os, threading
def work(i):
    for k in range(100):
        name = f"threads.{i}.{k}"
        with open(name, "w") as file:
            file.write("x" * 10000)
        assert os.stat(name).st_size == 10000
        os.rename(name, name + ".new")
all = [threading.Thread(target=work, args=(i,)) for i in range(8)]
[thread.start() for thread in all]
[thread.join() for thread in all]
assert len([name for name in os.listdir(".") if name.endswith(".new")]) == 800
[os.remove(name) for name in os.listdir(".") if name.endswith(".new")]
'
for library in libjemalloc.so.2 libmimalloc.so.2.0 libtcmalloc_minimal.so.4; do
	check "python, $library preloaded" env LD_PRELOAD="${LD_PRELOAD:-}:$library" \
		timeout -k 5 100 /usr/bin/python3 -c "$threads"
	check "a program linked with $library" built "$library" stdio_full.c -l:$library
	check "and run" timeout -k 5 100 "$outside/$library" .
done
check "a program with ThreadSanitizer" built tsan stdio_full.c -fsanitize=thread -static-libtsan
check "and run" timeout -k 5 100 "$outside/tsan" .
check "a program with AddressSanitizer" built asan posix_io.c -fsanitize=address -static-libasan
check "and run" env ASAN_OPTIONS=detect_leaks=0 timeout -k 5 100 "$outside/asan" .
check "the same, its runtime a library" built asan-library posix_io.c -fsanitize=address
check "and run" env ASAN_OPTIONS=detect_leaks=0 timeout -k 5 100 "$outside/asan-library" .
mkdir alone
check "and run, without an environment" \
	timeout -k 5 100 env -i ASAN_OPTIONS=detect_leaks=0 "$outside/asan-library" alone
if rustc --version --verbose > /dev/null; then
	check "rustc, which has jemalloc" timeout -k 5 100 rustc --print cfg
fi

# What the count of allocations leaves out it names. Functions of MPI-IO and PnetCDF are in first_call.sh.
if [ -n "${WEIR_TEST_ON_WEIR:-}" ]; then
	wrappers=$(nm -D --defined-only "${LD_PRELOAD%%:*}" | awk '$2 == "T" && $3 !~ /^(weir|MPI_|mpi_|ompi_|ncmpi_)/ { print $3 }' | sort)
	check "there are wrappers" test "$(wc -l <<< "$wrappers")" -gt 200
	same "all of them are called or named by allocator.c" "$wrappers" "$("$WEIR_TEST_BUILD/allocator" names | sort)"
fi
check_end
