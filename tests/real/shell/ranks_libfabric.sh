#!/bin/bash
# What ranks.sh checks, when servers talk over libfabric: each server says so.
base=${WEIR_INSTANCE:?only on weir}
for server in "$base" "$base".{1,2,3}; do
	grep -q "servers talk over libfabric" "$server/server.log" || {
		echo "FAIL: $server does not talk over libfabric" >&2
		exit 1
	}
done
exec "$(dirname "$0")/ranks.sh" "$@"
