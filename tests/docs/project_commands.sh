#!/usr/bin/env bash
# project_commands.sh SOURCE BIN: runs the commands of docs/project.md that need no LibTorch, in a temporary folder;
# tests/docs/commands_test.py runs all of them. graph.txt is one of PipeDream's profiles.
set -euo pipefail
source=$1
heading="A cluster that you do not have"
export STAGECRAFT_BIN=$2
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cp "$source/tests/golden/pipedream/alexnet.txt" "$folder/graph.txt"
ln -s "$source/scripts" "$folder/scripts"
cd "$folder"
count=0
while IFS= read -r command; do
  echo "== $command"
  bash -c "$command" </dev/null
  count=$((count + 1))
done < <(sed -n "/^## $heading\$/,/^## /p" "$source/docs/project.md" | grep '^scripts/stagecraft ')
[ "$count" -ge 3 ] || { echo "ran $count commands under \"$heading\", at least 3 are wanted"; exit 1; }
[ -s alexnet-out/report.html ] || { echo "there is no report"; exit 1; }
