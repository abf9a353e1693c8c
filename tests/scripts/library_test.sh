#!/usr/bin/env bash
# library_test.sh CMAKE BUILD SOURCE CXX: installs a build into a temporary folder, builds examples/library against it, and
# compares its answer with that of stagecraft-plan.
set -euo pipefail
cmake=$1 build=$2 source=$3 compiler=$4
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
quietly() { "$@" >"$folder/log" 2>&1 || { cat "$folder/log"; exit 1; }; }
quietly "$cmake" --install "$build" --prefix "$folder/installed"
quietly "$cmake" -G Ninja -S "$source/examples/library" -B "$folder/build" -DCMAKE_PREFIX_PATH="$folder/installed" \
  -DCMAKE_CXX_COMPILER="$compiler" -DCMAKE_BUILD_TYPE=Debug
quietly "$cmake" --build "$folder/build"

"$folder/installed/bin/stagecraft-import" pipedream "$source/tests/golden/pipedream/alexnet.txt" -o "$folder/graph.json"
topology=$source/examples/topology-2-cpus.json
"$folder/build/plan_and_predict" "$folder/graph.json" "$topology" 8 | tee "$folder/said"
quietly "$folder/installed/bin/stagecraft-plan" "$folder/graph.json" "$topology" --microbatches 8 -o "$folder/plan.json"
# "iteration_s": 0.12345... of the plan file, to the six digits that the program prints.
wanted=$(sed -n 's/^ *"iteration_s": \([0-9.e+-]*\),*$/\1/p' "$folder/plan.json")
[ -n "$wanted" ] && grep -qx "predicted step: $(printf '%.6g' "$wanted") s" "$folder/said" ||
  { echo "stagecraft-plan predicts $wanted"; exit 1; }
status=0
"$folder/build/plan_and_predict" "$folder/none.json" "$topology" 8 2>"$folder/error" || status=$?
[ "$status" = 1 ] && grep -q "plan_and_predict: $folder/none.json: " "$folder/error" || { cat "$folder/error"; exit 1; }
