"""checkpoint_newest.py TOP [recovered]: prints the number of the checkpoint that `latest` leads to, if it is whole, and
complains of any file that is not. `none`: there is no `latest`. `recovered`: of a file that the loop was writing when
it was killed there may be the beginning. WHOLE_FROM: the number from which on each directory that has the name of a
checkpoint must be whole, except those that the loop may have begun to remove. What `progress` says must be there, whole."""
import os
import re
import sys

top, ok = sys.argv[1], True
for dir, _, names in os.walk(top):
    for name in names:
        path = os.path.join(dir, name)
        number = re.search(r"ckpt\.(\d+)(\.tmp)?/rank", path)
        if number and not name.endswith(".weir-part"):
            found, whole = open(path, "rb").read(), int(number[1]).to_bytes(8, "little") * (8 * 16384)
            was_written = number[2] and "recovered" in sys.argv[2:]
            if found != whole and not (was_written and whole.startswith(found)):
                print("torn", path, len(found))
                ok = False
latest = os.path.join(top, "latest")
ranks = [f"rank.{rank}" for rank in range(4)]
first = int(os.environ.get("WHOLE_FROM", 1 << 60))
removed = int(os.readlink(latest).split(".")[1]) - 2 if os.path.islink(latest) else -1
for name in os.listdir(top):
    number = re.fullmatch(r"ckpt\.(\d+)", name)
    if number and int(number[1]) >= first and int(number[1]) > removed:
        found = sorted(one for one in os.listdir(os.path.join(top, name)) if not one.endswith(".weir-part"))
        if found != ranks:
            print("not whole:", name, found)
            ok = False
progress = os.path.join(top, "progress")
if os.path.exists(progress):
    number = int(open(progress).read())
    data = os.path.join(top, f"data.{number}")
    if not os.path.exists(data) or open(data, "rb").read() != number.to_bytes(8, "little") * 65536:
        print("progress says", number, "of", sorted(name for name in os.listdir(top) if name.startswith("data")))
        ok = False
if not os.path.lexists(latest):
    print("none" if ok else "")
elif os.path.isdir(latest) and sorted(os.listdir(latest)) == ranks and ok:
    print(os.readlink(latest).split(".")[1])
else:
    print("latest is not whole:", os.readlink(latest), os.path.isdir(latest) and os.listdir(latest))
