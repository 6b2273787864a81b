#!/bin/bash
# weir stage from within a job, as a batch script uses it: what real programs made comes out the same, and goes in
# again. Only on weir.
. "$(dirname "$0")/check.sh"
[ -n "${WEIR_TEST_ON_WEIR:-}" ] || check_end
cd "$dir" || exit 1
weir=$WEIR_TEST_WEIR

git init -q repository
(
	cd repository || exit
	seq 100000 > numbers
	mkdir sub && cp "$(command -v ls)" sub/program
	git add -A && git -c user.name=a -c user.email=b commit -qm first
) > /dev/null
python3 -c '
import sqlite3
db = sqlite3.connect("repository/db")
db.execute("create table t(a)")
db.executemany("insert into t values(?)", [(i,) for i in range(1000)])
db.commit()'
python3 - <<'PROGRAM'
import os, signal
# Pieces of four writers in turn, one of which is killed when it has written.
for rank in range(4):
    if os.fork() == 0:
        file = os.open("strided", os.O_CREAT | os.O_WRONLY)
        for piece in range(rank, 400, 4):
            os.pwrite(file, bytes([piece % 251]) * 47008, piece * 47008)
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        os._exit(0)
for rank in range(4):
    os.wait()
PROGRAM
truncate -s 1G repository/hole && printf x | dd of=repository/hole bs=1 seek=700M conv=notrunc status=none
setfattr -n user.kind -v checkpoint strided
ln -s strided latest

check "stage out of a tree" "$weir" stage out "$dir/repository" "$outside/out"
check "its bytes" diff -r repository "$outside/out/repository"
check "git fsck of what came out" git -C "$outside/out/repository" fsck
same "git status of it" '?? db
?? hole' "$(git -C "$outside/out/repository" status --short)"
same "a database" 1000 "$(python3 -c '
import sqlite3, sys
print(sqlite3.connect(sys.argv[1]).execute("select count(*) from t").fetchone()[0])' "$outside/out/repository/db")"
check "a program" cmp "$outside/out/repository/sub/program" "$(command -v ls)"
check "a hole takes no room" test "$(du -k "$outside/out/repository/hole" | cut -f1)" -lt 1024

check "stage out with a pattern, read back" "$weir" stage out --verify "$dir/stri*" "$dir/latest" "$outside/out"
check "a file of several writers" cmp strided "$outside/out/strided"
same "a link" strided "$(readlink "$outside/out/latest")"
if setfattr -n user.x -v y "$outside" 2> /dev/null; then
	same "an extended attribute" checkpoint "$(getfattr --absolute-names --only-values -n user.kind "$outside/out/strided")"
fi

exec 3> open
echo first >&3
check "a file that is still open is said to be" bash -c '"$1" stage out --json "$2/open" "$3" | grep -q "\"open\":1,"' \
	sh "$weir" "$dir" "$outside/out"
exec 3>&-
check "the same again moves nothing" bash -c '"$1" stage out --json "$2/strided" "$3" | grep -q "\"files\":0,"' \
	sh "$weir" "$dir" "$outside/out"
echo more >> repository/numbers
check "a file that has grown" "$weir" stage out "$dir/repository" "$outside/out"
check "is there whole" diff -r repository "$outside/out/repository"

check "stage in" "$weir" stage in "$outside/out/" "$dir/back"
check "what went in" diff -r --no-dereference "$outside/out" back
check "git fsck in weir" git -C back/repository fsck

# A program goes on writing: no torn file may have the name.
echo begun > log && "$weir" stage out "$dir/log" "$outside/log" 2> /dev/null
python3 -c '
import os, sys
with open("log", "ab", buffering=0) as log:
    print("writing", flush=True)
    while os.getppid() != 1 and not os.path.exists("stop"):
        log.write(b"x" * 1000)
' > "$outside/said" &
writer=$!
until grep -q writing "$outside/said"; do sleep 0.01; done
"$weir" stage out "$dir/log" "$outside/log" 2> "$outside/why"
code=$?
touch stop && wait $writer
if [ $code = 0 ]; then
	check "a file between two writes" cmp -n "$(stat -c %s "$outside/log")" log "$outside/log"
else
	same "a file that is being written is named" 7 $code
	check "with the reason" grep -q "was written while it was copied" "$outside/why"
	same "and the old version stays" begun "$(cat "$outside/log")"
fi
same "no hidden file is left" '' "$(find "$outside" -name '*.weir-part')"
check_end
