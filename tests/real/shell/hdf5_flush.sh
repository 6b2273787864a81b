#!/bin/bash
# What HDF5 has flushed is there on other nodes, also where a node's writes are not until they are synchronised; the drivers of HDF5
# for one process synchronise nothing by themselves.
. "$(dirname "$0")/check.sh"
base=${WEIR_INSTANCE:?only on weir}
export PYTHONPATH=$("$WEIR_TEST_CHECKS/../../tools/fetch-h5py" 3.14.0)

cat > "$outside/writer.py" <<'PROGRAM'
import sys, h5py
name, how = sys.argv[1:]
with h5py.File(name, "w", libver="latest") as f:
    x = f.create_dataset("x", (0,), maxshape=(None,), chunks=(100,), dtype="i8")
    f.flush()
    f.swmr_mode = True
    for step in range(1, 6):
        x.resize((step * 100,))
        x[-100:] = step
        x.flush() if how == "dataset" else f.flush()
        print(step, flush=True)
        sys.stdin.readline()
PROGRAM
cat > "$outside/reader.py" <<'PROGRAM'
import sys, h5py
with h5py.File(sys.argv[1], "r", libver="latest", swmr=True) as f:
    print(len(f["x"]), int(f["x"][...].sum()))
PROGRAM
for how in file dataset; do
	coproc writer { WEIR_INSTANCE=$base.1 /usr/bin/python3 "$outside/writer.py" "$dir/$how.h5" $how; }
	pid=$writer_PID
	for step in 1 2 3 4 5; do
		read -r -t 60 told <&"${writer[0]}"
		same "$how: written, flush $step" $step "$told"
		same "$how: read on another node" "$((step * 100)) $((50 * step * (step + 1)))" \
			"$(WEIR_INSTANCE=$base.2 /usr/bin/python3 "$outside/reader.py" "$dir/$how.h5" 2>&1 | tail -n 1)"
		echo >&"${writer[1]}"
	done
	wait "$pid"
	same "$how: the writer ends well" 0 $?
done
check_end
