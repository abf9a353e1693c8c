#!/bin/bash
# torchrun.sh NODES RANKS_PER_NODE HEAD[:PORT] PLAN [options of stagecraft run]: call it on every node, with the same
# arguments. HEAD is the node that the others reach; the working folder is shared.
#
# torchrun restarts all ranks up to three times when one fails; they continue from the newest checkpoint.
set -euo pipefail
[ $# -ge 4 ] || { echo "usage: torchrun.sh NODES RANKS_PER_NODE HEAD[:PORT] PLAN [options of stagecraft run]" >&2; exit 2; }
nodes=$1 ranks=$2 head=$3 plan=$4
shift 4

# The same on all nodes: keeps others out of the run.
: "${STAGECRAFT_SECRET:?is not set; set it to the same random words on every node}"
export STAGECRAFT_SECRET

exec torchrun --nnodes "$nodes" --nproc-per-node "$ranks" --rdzv-backend c10d --rdzv-endpoint "$head" \
  --rdzv-id stagecraft --max-restarts 3 --no-python -- \
  stagecraft run "$plan" --checkpoint checkpoints --resume "$@"
