#!/usr/bin/env bash
# setup_test.sh SOURCE: tests scripts/setup without packages and without the right to install them, on wrong input, and
# what it builds; also scripts/build_progress and scripts/lint. Stand-ins for dpkg-query, id, sudo, cmake, ninja and
# others simulate such machines.
set -euo pipefail
source=$1
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
fail() { echo "FAILED: $1"; echo "$output"; exit 1; }
stand_in() { printf '#!/bin/sh\n%s\n' "$2" > "$folder/$1"; chmod +x "$folder/$1"; }
stand_in dpkg-query 'exit 1'
stand_in id 'echo 1000'
stand_in sudo 'exit 1'

status=0
output=$(PATH=$folder:$PATH bash "$source/scripts/setup" --planner 2>&1) || status=$?
[ "$status" = 1 ] || fail "status $status, wanted 1"
case "$output" in *"As root, run:"*"apt-get update && apt-get install"*"g++ cmake ninja-build"*) ;; *) fail "the line to run is not told" ;; esac

# A wheel is built from the packages of --planner; the documentation lists them, too.
status=0
output=$(PATH=$folder:$PATH bash "$source/scripts/wheel" 2>&1) || status=$?
[ "$status" = 1 ] || fail "status $status, wanted 1"
source "$source/scripts/library_packages"
for package in "${library_packages[@]}"; do
  case "$output" in *"apt-get install"*" $package "*) ;; *) fail "scripts/wheel does not install $package" ;; esac
  grep -q "\b$package\b" "$source/docs/python.md" || fail "docs/python.md does not name $package"
done

stand_in dpkg-query 'echo "install ok installed"'
status=0
output=$(PATH=$folder:$PATH STAGECRAFT_TORCH=/nowhere bash "$source/scripts/setup" 2>&1) || status=$?
[ "$status" = 1 ] || fail "status $status, wanted 1"
case "$output" in *"STAGECRAFT_TORCH=/nowhere has no include/ATen/ATen.h"*) ;; *) fail "the wrong folder is not told" ;; esac

status=0
output=$(bash "$source/scripts/setup" --plannner 2>&1) || status=$?
[ "$status" = 2 ] || fail "status $status, wanted 2"
case "$output" in *"unknown option --plannner, known are --planner, --with-models and --for"*) ;; *) fail "the unknown option is not told" ;; esac

for arguments in "--planner --with-models" "--with-models asan-planner"; do
  status=0
  # shellcheck disable=SC2086
  output=$(bash "$source/scripts/setup" $arguments 2>&1) || status=$?
  [ "$status" = 2 ] || fail "status $status, wanted 2"
  case "$output" in *"--with-models needs torch, which preset ${arguments##* }"* | *"which preset planner does not use"*) ;;
    *) fail "that models need torch is not told" ;; esac
done
output=$(bash "$source/scripts/setup" --help)
case "$output" in *"--with-models  also torchvision"*"--for WHAT"*"configure  nothing"*"A later run"*"STAGECRAFT_JOBS=N"*"the processors).") ;; *) fail "the help is cut" ;; esac

# run STATUS COMMAND...: sets `output`; fails if the exit status differs.
run() {
  local wanted=$1 status=0
  shift
  output=$(PATH=$folder:$PATH "$@" 2>&1) || status=$?
  [ "$status" = "$wanted" ] || fail "$* ended with $status, wanted $wanted"
}

run 2 bash "$source/scripts/setup" --for magic
case "$output" in *'--for takes demo, tools, tests, all or configure, not "magic"'*) ;; *) fail "the wrong --for is not told" ;; esac
run 2 bash "$source/scripts/setup" --for
case "$output" in *'--for takes demo, tools, tests, all or configure, not ""'*) ;; *) fail "the missing value is not told" ;; esac

# A tree with only the scripts. Its cmake and ninja simulate three steps, the second with a warning.
tree=$folder/tree
mkdir -p "$tree"
cp -R "$source/scripts" "$tree"
stand_in nproc 'echo 2'
# free FOLDER_MB TEMPORARY_MB [TEMPORARY_DISK]: what `df` says of the tree's disk and of the one of temporary files.
free() {
  stand_in df 'case "$*" in *'"$folder/temporary"') echo; echo "disk 9 9 '"$2"' 9% '"${3:-/}"'" ;;
    *) echo; echo "disk 9 9 '"$1"' 9% /" ;; esac'
}
free 100000 100000
stand_in ninja 'for i in 1 2 3; do echo "${NINJA_STATUS}Building CXX object costmodel/$i.cpp.o"; done; echo "ninja: no work to do."'
stand_in cmake 'echo "$*" >>"'"$folder"'/calls"
case "$1" in
  --preset) mkdir -p "build/$2"; touch "build/$2/build.ninja" ;;
  --build)
    touch "$2/.ninja_log"
    echo "${NINJA_STATUS}Building CXX object costmodel/1.cpp.o"
    echo "${NINJA_STATUS}Building CXX object costmodel/2.cpp.o"
    echo "2.cpp: warning: @unused"
    printf "%s\n" "  indented, with a \\backslash"
    if [ -e "'"$folder"'/breaks" ]; then echo "FAILED: 3.cpp.o"; exit 1; fi
    echo "${NINJA_STATUS}Linking CXX executable bin/three" ;;
esac'

# Too little space, before anything is installed. The demo downloads 0.7 GB into $TMPDIR and then needs 2.8 GB.
free 12 100000
run 1 bash "$tree/scripts/setup" --planner
case "$output" in *"setup: this needs 1.0 GB of disk, but $tree has only 0.0 GB free"*) ;; *) fail "the full disk is not told" ;; esac
free 3000 3000
run 1 env TMPDIR="$folder/temporary" bash "$tree/scripts/setup" --for demo
case "$output" in *"with the downloads in $folder/temporary"*"needs 3.5 GB of disk, but $tree has only 3.0 GB free"*) ;;
  *) fail "the space for downloads is not told" ;; esac
free 3000 500 /other
run 1 env TMPDIR="$folder/temporary" bash "$tree/scripts/setup" --for demo
case "$output" in *"the download needs 0.7 GB of disk, but $folder/temporary has only 0.5 GB free; TMPDIR=FOLDER puts it elsewhere"*) ;;
  *) fail "the full disk of temporary files is not told" ;; esac
[ ! -e "$folder/calls" ] || fail "it builds without the space: $(cat "$folder/calls")"

free 100000 100000
run 0 bash "$tree/scripts/setup" --planner
case "$output" in *"setup: this takes about 4 min on 2 processors, and 1.0 GB of disk"*) ;;
  *) fail "what is ahead is not told" ;; esac
case "$output" in *"build: 3 steps, about 2 s on 2 processors"*"2.cpp: warning: @unused"*'  indented, with a \backslash'*"build: 3 steps in "*) ;;
  *) fail "the build is not told" ;; esac
case "$output" in *"object costmodel"* | *"no work to do"*) fail "steps are listed" ;; esac
grep -qx -- "--build build/planner -j 2 --target stagecraft_tools" "$folder/calls" || fail "the tools are not built: $(cat "$folder/calls")"

: >"$folder/calls"
run 0 env STAGECRAFT_JOBS=1 bash "$tree/scripts/setup" --planner --for tests
case "$output" in *"this takes"*) fail "a second run is taken for a first" ;; esac
grep -qx -- "--build build/planner -j 1 --target stagecraft_tools tests/all all_verify_interface_header_sets verify_header_groups" "$folder/calls" ||
  fail "the tests are not built: $(cat "$folder/calls")"
: >"$folder/calls"
run 0 bash "$tree/scripts/setup" --for=configure --planner
[ "$(cat "$folder/calls")" = "--preset planner -DSTAGECRAFT_UNITY=ON" ] || fail "--for configure does more: $(cat "$folder/calls")"
: >"$folder/calls"
touch "$tree/build/planner/CMakeCache.txt"
run 0 bash "$tree/scripts/setup" --for=configure --planner
[ "$(cat "$folder/calls")" = "--preset planner" ] || fail "a configured folder does not stay as it is: $(cat "$folder/calls")"

: >"$folder/calls"
run 0 bash "$tree/scripts/setup" --planner --for demo
grep -qx -- "--build build/planner -j 2 --target stagecraft_demo_tools" "$folder/calls" || fail "the demo is not built: $(cat "$folder/calls")"

# A batch of sources is expected to take as long as they do: twelve sources of 1.2 s on two processors.
batched=$tree/build/batched
mkdir -p "$batched/costmodel/batches"
touch "$batched/build.ninja"
for i in 1 2; do printf '#include "%s.cpp"\n' a b c d e f >"$batched/costmodel/batches/core_$i.cpp"; done
stand_in ninja 'for i in 1 2; do echo "${NINJA_STATUS}Building CXX object costmodel/CMakeFiles/core.dir/batches/core_$i.cpp.o"; done'
run 0 bash "$tree/scripts/build_progress" "$batched"
case "$output" in *"build: 2 steps, about 7 s on 2 processors"*) ;; *) fail "a batch is taken for one source" ;; esac
stand_in ninja 'for i in 1 2 3; do echo "${NINJA_STATUS}Building CXX object costmodel/$i.cpp.o"; done'

touch "$folder/breaks"
run 1 bash "$tree/scripts/build_progress" "$tree/build/planner"
case "$output" in *"FAILED: 3.cpp.o"*"build: stopped after 2 of 3 steps"*) ;; *) fail "the failure is not told" ;; esac
rm "$folder/breaks"
run 1 bash "$tree/scripts/build_progress" "$tree/build/nowhere"
case "$output" in *"build/nowhere has no build.ninja; configure it first"*) ;; *) fail "the wrong folder is not told" ;; esac

# On a terminal, one line is rewritten within the terminal's width. Containers may have no pseudo-terminals.
if script -qec true /dev/null >/dev/null 2>&1; then
  run 0 script -qec "stty columns 50; bash '$tree/scripts/build_progress' '$tree/build/planner'" /dev/null
  rewritten=$(printf '%s' "$output" | tr '\r' '\n' | grep -c '^build: [0-9]* % ([123] of 3 steps), about .* left') || true
  [ "$rewritten" = 3 ] || fail "$rewritten rewritten lines, expected 3"
fi

run 2 bash "$source/scripts/lint" --formatt
case "$output" in *"unknown option --formatt, known are --format, --fix and --tidy"*) ;; *) fail "lint does not tell the unknown option" ;; esac
mkdir "$folder/few"
for program in bash dirname; do ln -s "$(command -v $program)" "$folder/few/$program"; done
status=0
output=$(PATH=$folder/few bash "$source/scripts/lint" --tidy 2>&1) || status=$?
[ "$status" = 1 ] || fail "status $status, wanted 1"
case "$output" in *"clang-tidy-19 is missing"*"apt-get install -y --no-install-recommends clang-tidy-19"*) ;; *) fail "what lint needs is not told" ;; esac
# A build with commands for two of three files; clang-tidy finds something in one and crashes on the other.
stand_in clang-tidy-19 'echo "12 warnings generated." >&2
case "$4" in
  *found.cpp) echo "found.cpp:1:1: error: a finding"; exit 1 ;;
  *) echo "Stack dump: of the crash" >&2; kill -SEGV $$ ;;
esac'
stand_in git 'printf "costmodel/%s.cpp\n" crashes found unknown'
stand_in cmake 'mkdir -p "build/$2"; for name in crashes found; do
  echo "  \"file\": \"'"$tree"'/costmodel/$name.cpp\"" >>"build/$2/compile_commands.json"
done'
run 1 env STAGECRAFT_JOBS=1 bash "$tree/scripts/lint" --tidy
case "$output" in *"not checked, because preset lint-planner does not build them:"*"  costmodel/unknown.cpp"*"files for clang-tidy: 2"*) ;;
  *) fail "what lint does not check is not told" ;; esac
for said in "Stack dump: of the crash" "found.cpp:1:1: error: a finding" "clang-tidy found problems or failed"; do
  case "$output" in *"$said"*) ;; *) fail "lint does not tell: $said" ;; esac
done
case "$output" in *"warnings generated"*) fail "lint counts what others' headers have" ;; esac

run 2 bash "$source/scripts/sanitize" msan
case "$output" in *'give a preset: asan-planner, asan or tsan, not "msan"'*) ;; *) fail "the wrong sanitizer is not told" ;; esac
echo passed
