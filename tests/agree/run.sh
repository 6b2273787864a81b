#!/bin/bash
# Runs the checks by hand: run.sh [NAME...], each check whose name has one of the words in it (`ras::locks`, `mpich`), or all.
#
#   WEIR=PATH        the weir binary, with its library beside it; each check has four servers of its own
#   ON=DIR           a directory of any file system instead
#   JOBS=2           so many checks at a time
#   LIMIT_S=120      the most that one may take
#   WEIR_TEST_ROUNDS=10    ten times the rounds; WEIR_TEST_SEED, see ranks.h
#
# A line for each check: its name, how many rounds were wrong, seconds. The exit code says whether all were right.
set -u
here=$(cd "$(dirname "$0")" && pwd)
build=${BUILD:-${TMPDIR:-/tmp}/weir-agree-$(id -u)}

compile() { # PROGRAM LAUNCHER
	local source=$here/$1.c output command
	case $1:$2 in
	*:fork) output=$1 command="gcc -O2 -D_FORTIFY_SOURCE=2 -pthread" ;;
	phdf5:mpich) output=$1.mpich command="h5pcc.mpich -O2" ;;
	phdf5:*) output=$1.openmpi command="h5pcc.openmpi -O2" ;;
	*:mpich) output=$1.mpich command="mpicc.mpich -O2 -Wno-stringop-overflow" ;;
	*) output=$1.openmpi command="mpicc.openmpi -O2" ;;
	esac
	program=$build/$output
	[ -n "$(find "$here"/*.[ch] -newer "$program" 2>&1)" ] || return 0
	(cd "$build" && $command -Wall -Wextra -o "$program.new" "$source" $([ "$1" = pnetcdf ] && echo -lpnetcdf)) && mv "$program.new" "$program"
}

# One check; all that it needs is in its arguments.
one() { # NAME MODE WITH PROGRAM ARGUMENT LAUNCHER ROUNDS PATTERN
	local name=$1 mode=$2 with=$3 argument=$5 launcher=$6 rounds=$7 pattern=$8 words=() begin out code said
	compile "$4" "$launcher" || exit 2
	case ,$with, in *,delay,*) export WEIR_TEST_DELAY_US=${WEIR_TEST_DELAY_US:-2000} ;; esac
	case ,$with, in *,eight,*) export WEIR_TEST_RANKS=8 ;; esac
	case ,$with, in *,three,*) export WEIR_TEST_RANKS=3 ;; esac
	case ,$with, in *,turns,*) export WEIR_TEST_TURNS=1 ;; esac
	if [ -n "${ON:-}" ]; then
		on=$(mktemp -d "$ON/agree.XXXXXX")
	else
		words=("$WEIR" run --servers 4 --memory 1G --report none --set "visibility.default=$mode" --set memory.warm=64M)
		case ,$with, in *,libfabric,*) words+=(--set fabric.transport=libfabric --set "fabric.provider=tcp;ofi_rxm") ;; esac
		words+=(--)
		on=/weir
	fi
	rounds=$(awk -v n="$rounds" -v by="${WEIR_TEST_ROUNDS:-1}" 'BEGIN { n *= by; print n < 1 ? 1 : int(n) }')
	[ "$argument" = - ] && argument=
	out=$(mktemp "$build/out.XXXXXX")
	begin=$(date +%s%N)
	timeout -k 5 "${LIMIT_S:-120}" "${words[@]}" "$here/launch.sh" "$launcher" "$program" "$on" "$pattern" "$rounds" $argument > "$out" 2>&1
	code=$?
	said=$(grep -o '[0-9]* of [0-9]* rounds wrong' "$out" | tail -n 1)
	[ $code = 0 ] && grep -q '^[1-9][0-9]* passed, 0 failed$' "$out" && verdict=ok || verdict=FAIL
	[ $code = 124 ] && said="ended after ${LIMIT_S:-120} s"
	printf '%-4s %-60s %-26s %6.1f s\n' $verdict "$name" "${said:-exit code $code}" "$(echo "($(date +%s%N) - $begin) / 1000000000" | bc -l)"
	[ $verdict = ok ] || grep -v ' passed, \|rounds wrong' "$out" | head -n "${LINES_SHOWN:-3}" | cut -c -300
	rm -f "$out"
	[ -n "${ON:-}" ] && rm -rf "$on"
	[ $verdict = ok ]
}

if [ "${1:-}" = --one ]; then
	shift
	one "$@"
	exit
fi
mkdir -p "$build"
export WEIR_TEST_WEIR=${WEIR:-}
[ -n "${ON:-}" ] || : "${WEIR:?the weir binary, or ON=DIR}"
while read -r modes with program argument launchers rounds patterns; do
	case $modes in '' | '#'*) continue ;; esac
	for mode in ${modes//,/ }; do
		for launcher in ${launchers//,/ }; do
			for pattern in $patterns; do
				name=$mode::$program::$pattern
				[ "$argument" = - ] || name+=::$argument
				[ "$launcher" = fork ] || name+=::$launcher
				[ "$with" = - ] || name+=::${with//,/::}
				for word in "${@:-::}"; do
					case $name in *"$word"*) echo "$name $mode $with $program $argument $launcher $rounds $pattern" && break ;; esac
				done
			done
		done
	done
done < "$here/checks" > "$build/list.$$"
# Each program once, before the checks run side by side.
while read -r _ _ _ program _ launcher _; do compile "$program" "$launcher" || exit 2; done < <(sort -u -k 4,4 -k 6,6 "$build/list.$$")
xargs -a "$build/list.$$" -P "${JOBS:-2}" -L 1 "$0" --one
code=$?
echo "$(wc -l < "$build/list.$$") checks, $([ $code = 0 ] && echo all right || echo some wrong)"
rm -f "$build/list.$$"
exit $code
