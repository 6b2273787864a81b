"""The frame of every Python check program: one line per check, then `N passed, N failed`.

A program calls `begin()`, which makes DIR/<its name> and returns it as a Path, then `check(...)`, then `end()`.
"""

import os
import sys
import traceback
from pathlib import Path

passed = 0
failed = 0


def begin() -> Path:
    """The program's own directory; DIR is the first argument."""
    if len(sys.argv) < 2:
        sys.exit(f"usage: {sys.argv[0]} DIR")
    where = Path(sys.argv[1]) / Path(sys.argv[0]).stem
    where.mkdir(parents=True, exist_ok=True)
    return where


def check(ok, text: str) -> None:
    """One check; `ok` is what must hold."""
    global passed, failed
    if ok:
        passed += 1
        print("ok  ", text)
    else:
        failed += 1
        line = traceback.extract_stack()[-2]
        print("FAIL", text, f"  [{os.path.basename(line.filename)}:{line.lineno}]")
    sys.stdout.flush()


def fails(error, text: str, call, *args, **kwargs) -> None:
    """The call must raise this error."""
    try:
        call(*args, **kwargs)
    except error:
        check(True, text)
    except Exception as other:  # noqa: BLE001 - any other error is what the check reports
        check(False, f"{text}: raised {other!r}")
    else:
        check(False, f"{text}: nothing raised")


def section(function, *args) -> None:
    """Runs a group of checks; an exception counts as one failure and the next group goes on."""
    global failed
    try:
        function(*args)
    except Exception:  # noqa: BLE001 - reported, counted
        failed += 1
        print("FAIL", function.__name__, "stopped by")
        traceback.print_exc(file=sys.stdout)


def end() -> None:
    """Prints the sum and exits."""
    print(f"{passed} passed, {failed} failed")
    sys.exit(1 if failed else 0)
