#!/usr/bin/env bash
# gpu_check_pack_test.sh SOURCE BIN PYTHON: packs the check, carries the folder elsewhere, and runs it there as on another
# machine: without the variables of this build, and with the libraries of the torch of PYTHON, which imports it.
set -euo pipefail
source=$1 bin=$2 python=$3
"$python" -c 'import torch' 2>/dev/null || { echo "skipped: $python has no torch"; exit 77; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
output=
fail() { echo "FAILED: $1"; echo "$output"; exit 1; }

# expect STATUS COMMAND...: its output, if it ends with that status. CUDA_VISIBLE_DEVICES hides the GPUs of this machine.
expect() {
  local wanted=$1 status=0
  shift
  output=$(env -i HOME="$folder" PATH="$(dirname "$python"):/usr/bin:/bin" CUDA_VISIBLE_DEVICES= "$@" 2>&1) || status=$?
  [ "$status" = "$wanted" ] || fail "$* ended with $status, wanted $wanted"
}

mkdir "$folder/other"
touch "$folder/other/file"
expect 1 STAGECRAFT_BIN="$bin" "$source/scripts/gpu_check" --pack "$folder/other"
case "$output" in "gpu_check: $folder/other contains something else"*) ;; *) fail "the wrong folder is not told" ;; esac
expect 1 STAGECRAFT_BIN="$folder/other" "$source/scripts/gpu_check" --pack "$folder/packed"
case "$output" in "gpu_check: STAGECRAFT_BIN=$folder/other has no stagecraft-run, "*) ;; *) fail "missing programs are not told" ;; esac
expect 0 STAGECRAFT_BIN="$bin" "$source/scripts/gpu_check" --pack "$folder/packed"
echo "$output"
cp -R "$folder/packed" "$folder/carried"
rm -r "$folder/packed"

bytes=$(du -sb "$folder/carried" | cut -f 1)
[ "$bytes" -lt $((64 << 20)) ] || fail "it has $bytes bytes"
output=$(find "$folder/carried" -type l)
[ -z "$output" ] || fail "a link may not be carried"
for file in "$folder"/carried/bin/* "$folder"/carried/lib/*.so* "$folder"/carried/lib/newer/*; do
  output=$(readelf -d "$file" | grep -E '\((RUNPATH|RPATH)\)' | grep -v '\[\$ORIGIN/\.\./lib:*\]') && fail "$file has another path inside"
done
output=$(grep -lF -e "$bin" -r "$folder/carried" || true)
[ -z "$output" ] || fail "a file names the folder of the build"

check=$folder/carried/scripts/gpu_check
expect 0 "$check" --list
case "$output" in "part 1/"*", at most "*"gpu_test "*"training mlp "*) ;; *) fail "the steps are not listed" ;; esac
parts=$(printf '%s\n' "$output" | grep -c '^part ')

# Without a GPU, from the tree and from the folder, in one line.
for place in "$source" "$folder/carried"; do
  expect 1 "$place/scripts/gpu_check" --part "1/$parts"
  case "$output" in *$'\n'*) fail "more than one line" ;; "gpu_check: no usable GPU: "*"; nothing was checked") ;; *) fail "the GPU is not missed" ;; esac
done

expect 2 "$check" no_test
case "$output" in *'unknown step "no_test", known are gpu_test, '*) ;; *) fail "the unknown step is not told" ;; esac
expect 2 "$check" --part 1/2
case "$output" in *"steps need at least $parts parts"*) ;; *) fail "too few parts are taken" ;; esac
expect 2 "$check" --part 6/5
case "$output" in *'"6/5" is not N/M with N from 1 to M'*) ;; *) fail "the wrong part is not told" ;; esac

# A Python without torch, and one with another.
mkdir "$folder/pythons"
printf '#!/bin/sh\necho "ModuleNotFoundError: No module named torch" >&2; exit 1\n' >"$folder/pythons/without"
printf '#!/bin/sh\necho '\''{"version": "2.9.1", "folder": "/nowhere/torch", "cuda": "12.8", "libraries": []}'\''\n' >"$folder/pythons/python3"
chmod +x "$folder"/pythons/*
expect 1 PATH="$folder/pythons:/usr/bin:/bin" STAGECRAFT_PYTHON="$folder/pythons/without" /usr/bin/python3 "$check" --run true
case "$output" in *"no Python here has torch 2.11 ($folder/pythons/without: ModuleNotFoundError"*"$folder/pythons/python3: has torch 2.9.1); set STAGECRAFT_PYTHON to one that does") ;;
  *) fail "the Pythons that were tried are not told" ;; esac

# Programs run, and take every library from torch, from the folder or from the system.
cat >"$folder/small.sh" <<'END'
set -eux
export STAGECRAFT_ACCEPT_UNTRUSTED=1   # other tests run beside this one
stagecraft profile mlp --set width=32 --set inputs=16 --microbatch 4 --max-seconds 1 --concurrent 1 -o graph.json
stagecraft plan graph.json -n 2 --microbatches 4 --strategy uniform -o plan.json
stagecraft run plan.json --steps 3 --spawn --check -o measured.json
stagecraft profile "$STAGECRAFT_BIN/../tests/golden/pt2/net.pt2" --structure -o net.json
env -u STAGECRAFT_BIN nccl_gpu_test
echo "LD_LIBRARY_PATH is $LD_LIBRARY_PATH."
LD_DEBUG=libs stagecraft-run --version 2>libraries.txt
END
cd "$folder"
expect 0 "$check" --run sh "$folder/small.sh"
case "$output" in *"step 3/3 loss "*) ;; *) fail "the run does not report its steps" ;; esac
case "$output" in *"[  SKIPPED ] "*) ;; *) fail "the packed tests do not start" ;; esac
case "$output" in *"LD_LIBRARY_PATH is "*"$folder"*) fail "other programs load packed libraries, too" ;; esac
output=$(grep -F "$source/build" libraries.txt || true)
[ -z "$output" ] || fail "a library is looked for in the build"
grep -qF "$folder/carried/bin/../lib/libfmt" libraries.txt || fail "libraries are not looked for in the folder"

# That test looks next to itself, not in the folder of the build.
expect 1 "$check" --run sh -c 'rm "$STAGECRAFT_BIN/nccl_rank_program" && unset STAGECRAFT_BIN && exec nccl_gpu_test'
case "$output" in *"$folder/carried/bin/nccl_rank_program"*) ;; *) fail "the test does not look next to itself" ;; esac
echo passed
