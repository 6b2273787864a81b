#!/bin/bash
# h5py with the HDF5s that its wheels bring, through the HDF5 connector: the checks of python/hdf5.py, an HDF5 beside another one,
# the errors and output of a program as without the connector.
. "$(dirname "$0")/check.sh"
tools=$WEIR_TEST_CHECKS/../../tools

# The output must not depend on the connector; that it is there is told at the end.
cat > "$outside/errors.py" <<'PROGRAM'
import sys, h5py
d = sys.argv[1]
for name, mode in (("none.h5", "r"), ("none.h5", "r+"), ("none/none.h5", "w"), ("text", "r"), ("file.h5", "w-")):
    open(d + "/text", "w").write("no HDF5")
    h5py.File(d + "/file.h5", "a").close()
    try:
        h5py.File(d + "/" + name, mode)
    except Exception as error:
        print(type(error).__name__, str(error).replace(d, "DIR"))
print([h5py.is_hdf5(d + "/" + name) for name in ("file.h5", "text", "none.h5")])
with h5py.File(d + "/file.h5", "w") as f:
    f["x"] = list(range(10))
    try:
        f.create_dataset("y", (10,), chunks=(10,), compression=32015)
    except Exception as error:
        print(type(error).__name__, error)
with open(sys.argv[2], "w") as loaded:
    print("libweir_hdf5" in open("/proc/self/maps").read(), file=loaded)
PROGRAM

# wheel VERSION LOADED
wheel() {
	local version=$1
	h5py=$("$tools/fetch-h5py" "$version")
	mkdir "$dir/$version" "$outside/$version"
	check "h5py $version: objects, drivers, a single writer and its readers, tools" \
		env PYTHONPATH="$h5py" /usr/bin/python3 "$WEIR_TEST_CHECKS/python/hdf5.py" "$dir/$version"
	PYTHONPATH=$h5py /usr/bin/python3 "$outside/errors.py" "$dir/$version" "$outside/loaded" > "$outside/ours"
	same "h5py $version: the connector is loaded" "$2" "$(cat "$outside/loaded")"
	# Where HDF5 has the plug-in and no word of it, it looks at it after an open that failed.
	env -u HDF5_VOL_CONNECTOR PYTHONPATH="$h5py" /usr/bin/python3 "$outside/errors.py" "$outside/$version" "$outside/loaded" > "$outside/theirs"
	same "h5py $version: errors as without it" "$(cat "$outside/theirs")" "$(cat "$outside/ours")"
	[ -z "${HDF5_VOL_CONNECTOR-}" ] || check "h5py $version: the connector's name alone" \
		env HDF5_VOL_CONNECTOR=weir PYTHONPATH="$h5py" /usr/bin/python3 "$outside/errors.py" "$dir/$version" "$outside/loaded"
}
loaded=False
[ -z "${HDF5_VOL_CONNECTOR-}" ] || loaded=True
wheel 3.8.0 $loaded
wheel 3.16.0 $loaded
wheel 3.14.0 $loaded

# Two HDF5s in one process, as of wheels of two packages.
cat > "$outside/two.py" <<'PROGRAM'
import ctypes, glob, sys
paths = [glob.glob(wheel + "/h5py.libs/libhdf5-*")[0] for wheel in sys.argv[2:]]
for path in paths:
    # Those that it needs, which it finds beside itself only when a module of h5py is loaded.
    for other in glob.glob(path.rsplit("/", 1)[0] + "/lib[!h]*"):
        ctypes.CDLL(other)
libraries = [ctypes.CDLL(path) for path in paths]
files = []
for at, hdf5 in enumerate(libraries):
    for name in ("H5Fcreate", "H5Gcreate2"):
        getattr(hdf5, name).restype = ctypes.c_int64
    files.append(hdf5.H5Fcreate(f"{sys.argv[1]}/two{at}.h5".encode(), 2, ctypes.c_int64(0), ctypes.c_int64(0)))
for hdf5, file in zip(libraries, files):
    zero = ctypes.c_int64(0)
    group = hdf5.H5Gcreate2(ctypes.c_int64(file), b"group", zero, zero, zero)
    assert file > 0 and group > 0
    assert hdf5.H5Fflush(ctypes.c_int64(group), 1) >= 0 and hdf5.H5Gclose(ctypes.c_int64(group)) >= 0
for hdf5, file in zip(libraries, files):
    assert hdf5.H5Fclose(ctypes.c_int64(file)) >= 0
PROGRAM
check "two HDF5s in one process" /usr/bin/python3 "$outside/two.py" "$dir" "$h5py" "$("$tools/fetch-h5py" 3.16.0)"
check "what they wrote" h5diff "$dir/two0.h5" "$dir/two1.h5"
# Failed assertions of the connector, planted in builds that check themselves: the calls fail, and the program goes on.
cat > "$outside/bugs.py" <<'PROGRAM'
import os, sys, h5py
d, planted = sys.argv[1], os.environ["WEIR_TEST_BUG"]
failed = []
def attempt(name, act):
    try:
        return act()
    except Exception as error:
        failed.append(name)
f = attempt("create_file", lambda: h5py.File(d + "/bugs.h5", "w"))
if f:
    attempt("write_datasets", lambda: f.create_dataset("x", data=[1, 2, 3]))
    attempt("read_datasets", lambda: f["x"][...])
    attempt("change_file", lambda: f.flush())
print(failed == [planted], failed)
sys.stdout.flush()
os._exit(0 if failed == [planted] else 1)
PROGRAM
if [ -n "${WEIR_TEST_ON_WEIR:-}" ]; then
	for call in create_file write_datasets read_datasets change_file; do
		told=$(WEIR_TEST_BUG=$call PYTHONPATH=$h5py /usr/bin/python3 "$outside/bugs.py" "$dir" 2>&1)
		same "a bug in $call: the call fails alone" 0 $?
		same "a bug in $call: it is told" 1 "$(grep -c 'weir: bug: .*planted for a test; the program goes on' <<<"$told")"
	done
fi
# Debian's, without connectors.
check "HDF5 1.10" /usr/bin/python3 "$outside/errors.py" "$dir" "$outside/loaded"
check_end
