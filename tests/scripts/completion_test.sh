#!/usr/bin/env bash
# completion_test.sh SOURCE BIN: completes words as bash would.
set -euo pipefail
export STAGECRAFT_BIN=$2
source "$1/scripts/completion/stagecraft"
# check WANTED WORD...: completing the last word gives the lines WANTED.
check() {
  local wanted=$1 found
  shift
  COMP_WORDS=("$1/scripts/stagecraft" "${@:2}")
  COMP_CWORD=$(($# - 1))
  _stagecraft || true   # the status of compgen without matches, which bash ignores
  found=$(printf '%s\n' "${COMPREPLY[@]:-}")
  [ "$found" = "$wanted" ] || { printf '%s: found\n%s\nexpected\n%s\n' "${*:2}" "$found" "$wanted"; exit 1; }
}
check predict "$1" pred
check explain "$1" help expl
check $'--microbatches' "$1" plan graph.json --microb
check $'--accept-other-device\n--accept-untrusted' "$1" predict --accept
check '' "$1" plan graph.js   # files, by bash itself
check '' "$1" no-such-verb --a
