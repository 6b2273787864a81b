#!/bin/bash
# What the hot path asks of the kernel: a loop ten times as long makes hardly any more system calls. A segment lasts for
# 1 to 64 MiB, so that some remain: those that ask for the next one.
. "$(dirname "$0")/check.sh"
program=$WEIR_TEST_BUILD/hotpath

# calls MODE BYTES COUNT: the system calls of one run.
calls() {
	strace -f -c -o "$outside/counts" "$program" "$dir" "$@" || return 1
	awk '$NF == "total" { print $(NF - 1) == "total" ? 0 : ($4 ~ /^[0-9]+$/ ? $4 : $3) }' "$outside/counts"
}

# few TEXT MODE BYTES COUNT MOST: the tenfold loop makes at most MOST calls more.
few() {
	local text=$1 mode=$2 bytes=$3 count=$4 most=$5 short long
	short=$(calls "$mode" "$bytes" "$count") && long=$(calls "$mode" "$bytes" $((count * 10)))
	check "$text: $short system calls, of ten times as many $long" test "$long" -gt 0 -a $((long - short)) -le "$most"
}

if [ -z "${WEIR_TEST_ON_WEIR:-}" ]; then
	# On a directory each operation is a system call: the counting itself works.
	short=$(calls write 64 1000) && long=$(calls write 64 10000)
	check "the kernel's files: $short and $long" test $((long - short)) -ge 9000
	check_end
fi
# Writes into memory that is not warm yet are system calls each: so first 64 MiB get warm, which all that follows uses again.
tries=0
until long=$(calls write 65536 1000) && [ "$long" -lt 400 ] || [ $((tries += 1)) -gt 200 ]; do :; done
check "write 64 KiB: $long system calls for 1000 writes into warm memory" test "$long" -lt 400
few "write 64 B" write 64 20000 60
few "write 1 KiB" write 1024 2000 60
few "pwrite 64 B" pwrite 64 20000 60
few "pwrite 4 KiB, strided" strided 4096 1000 60
few "pwrite over what was written" over 4096 20000 20
few "pread of what was written" read 4096 20000 20
few "fstat and lseek" fstat 64 20000 5
check_end
