#!/bin/bash
# mpirun.sh HOSTFILE PLAN [options of stagecraft run]: one rank per slot of Open MPI's host file (one "red slots=2" per line); there
# must be as many slots as the plan has ranks. The working folder is shared.
set -euo pipefail
[ $# -ge 2 ] || { echo "usage: mpirun.sh HOSTFILE PLAN [options of stagecraft run]" >&2; exit 2; }
hosts=$1 plan=$2
shift 2

# Ranks need it to join; mpirun passes it to all of them.
STAGECRAFT_SECRET=${STAGECRAFT_SECRET:-$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')}
export STAGECRAFT_SECRET

# Open MPI does not say where rank 0 runs: on the first host.
first=$(sed 's/#.*//' "$hosts" | awk 'NF { print $1; exit }')

exec mpirun --hostfile "$hosts" -x MASTER_ADDR="$first" -x STAGECRAFT_SECRET -x PATH \
  stagecraft run "$plan" --checkpoint checkpoints --resume "$@"
