#!/bin/bash
# ADIOS2: its data sets are directories of several files, which are appended to and rewritten at their heads. Below the mount, in an
# elevated directory, and there again by a second run. Only on weir.
. "$(dirname "$0")/check.sh"
program=$here/../python/adios2_io.py
io() { /usr/bin/python3 "$program" "$@" 2>&1; }
right="BP4
BP5"

io write "$dir"
same "below the mount" "$right" "$(io read "$dir")"
cp -r "$dir" "$outside/copied"
same "the copy of it elsewhere" "$right" "$(LD_PRELOAD= io read "$outside/copied")"
begin_drains

mkdir pfs target
run() { "$weir" run --set run.report=none --memory 512M --set memory.warm=64M "$@"; }
export -f io
export program
run --elevate "$outside/pfs" -- bash -c 'io write "$1"; io read "$1"' - "$outside/pfs" > said 2> errors
same "the run" 0 $?
same "in an elevated directory" "$right" "$(cat said)"
same "whole on the parallel file system" "$right" "$(io read pfs)"
same "no part is left" "" "$(find pfs -name '.*.weir-part')"
same "the same files" "$(cd copied && find . -type f | sort)" "$(cd pfs && find . -type f | sort)"
run --elevate "$outside/pfs" -- bash -c 'io read "$1"; rm -r "$1"/*; io write "$1"' - "$outside/pfs" > said 2> errors
same "another run" 0 $?
same "reads what is there" "$right" "$(cat said)"
same "and writes it anew" "$right" "$(io read pfs)"
run --drain-to "$outside/target" -- bash -c 'io write /weir' > said 2> errors
same "drained" 0 $?
same "to another directory" "$right" "$(io read target)"
check_end
