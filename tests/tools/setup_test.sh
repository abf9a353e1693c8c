#!/usr/bin/env bash
# setup_test.sh SOURCE: scripts/setup where packages are missing and the user may not install them, and on wrong input.
# Stand-ins for dpkg-query, id and sudo make this machine look so.
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

stand_in dpkg-query 'echo "install ok installed"'
status=0
output=$(PATH=$folder:$PATH STAGECRAFT_TORCH=/nowhere bash "$source/scripts/setup" 2>&1) || status=$?
[ "$status" = 1 ] || fail "status $status, wanted 1"
case "$output" in *"STAGECRAFT_TORCH=/nowhere has no include/ATen/ATen.h"*) ;; *) fail "the wrong folder is not told" ;; esac

status=0
output=$(bash "$source/scripts/setup" --plannner 2>&1) || status=$?
[ "$status" = 2 ] || fail "status $status, wanted 2"
case "$output" in *"unknown option --plannner, known are --planner and --with-models"*) ;; *) fail "the unknown option is not told" ;; esac

for arguments in "--planner --with-models" "--with-models asan"; do
  status=0
  # shellcheck disable=SC2086
  output=$(bash "$source/scripts/setup" $arguments 2>&1) || status=$?
  [ "$status" = 2 ] || fail "status $status, wanted 2"
  case "$output" in *"--with-models needs torch, which preset ${arguments##* }"* | *"which preset planner goes without"*) ;;
    *) fail "that models need torch is not told" ;; esac
done
output=$(bash "$source/scripts/setup" --help)
case "$output" in *"--with-models  torchvision"*"A second run takes seconds"*"STAGECRAFT_JOBS=N"*) ;; *) fail "the help is cut" ;; esac
echo passed
