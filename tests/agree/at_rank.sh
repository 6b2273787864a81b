#!/bin/bash
# Runs a command at the server of its MPI rank: mpiexec -n 4 at_rank.sh COMMAND. Rank 0 is at the server where mpiexec runs.
server=$((${PMI_RANK:-${OMPI_COMM_WORLD_RANK:?under mpiexec only}} % 4))
if [ -n "${WEIR_INSTANCE:-}" ] && [ $server != 0 ]; then export WEIR_INSTANCE=$WEIR_INSTANCE.$server; fi
exec "$@"
