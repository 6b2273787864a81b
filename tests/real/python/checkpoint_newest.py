"""checkpoint_newest.py TOP [recovered]: prints the number of the checkpoint that `latest` leads to, if it is whole, and
complains of any file that is not. `none`: there is no `latest`. `recovered`: of a file that the loop was writing when
it was killed there may be the beginning."""
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
if not os.path.lexists(latest):
    print("none" if ok else "")
elif os.path.isdir(latest) and sorted(os.listdir(latest)) == [f"rank.{rank}" for rank in range(4)] and ok:
    print(os.readlink(latest).split(".")[1])
else:
    print("latest is not whole:", os.readlink(latest), os.path.isdir(latest) and os.listdir(latest))
