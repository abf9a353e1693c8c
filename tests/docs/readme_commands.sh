#!/usr/bin/env bash
# readme_commands.sh SOURCE BIN: runs every command in the table of docs/commands.md, in order, in a temporary folder.
# `model.py` is a model of two layers; `graph.txt`, read by the import, is one of PipeDream's profiles; the other
# imports read tests/golden/nccl. Models and links are measured briefly.
set -euo pipefail
source=$1
export STAGECRAFT_BIN=$2
export STAGECRAFT_ACCEPT_UNTRUSTED=1   # the machine is busy with other tests
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cp "$source/tests/golden/pipedream/alexnet.txt" "$folder/graph.txt"
cp "$source"/tests/golden/nccl/* "$folder"
cp "$source/tests/models/readme_model.py" "$folder/model.py"
ln -s "$source/scripts" "$folder/scripts"
cd "$folder"
count=0
while IFS= read -r command; do
  case "$command" in
    *"stagecraft profile "*) command+=" --max-seconds 3" ;;
    *"stagecraft links "*) command+=" --seconds 3" ;;
  esac
  echo "== $command"
  bash -c "$command"
  count=$((count + 1))
done < <(grep -oE '^\| [a-z-]+ \| `scripts/stagecraft [^`]+`' "$source/docs/commands.md" | sed -E 's/.*`([^`]+)`.*/\1/')
rows=$(grep -cE '^\| [a-z-]+ \| `scripts/stagecraft' "$source/docs/commands.md")
[ "$count" = "$rows" ] && [ "$count" -ge 8 ] || { echo "ran $count commands, the table has $rows and at least 8 are wanted"; exit 1; }
cmp graph.txt "$source/tests/golden/pipedream/alexnet.txt"
