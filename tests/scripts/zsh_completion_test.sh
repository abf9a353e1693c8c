#!/usr/bin/env bash
# zsh_completion_test.sh SOURCE BIN: completes words as zsh would; 77 without zsh.
set -euo pipefail
command -v zsh >/dev/null || exit 77
export STAGECRAFT_BIN=$2
# check WANTED WORD...: what completing the last word offers has a line WANTED.
check() {
  local wanted=$1 found
  shift
  # shellcheck disable=SC2016  # zsh expands it
  found=$(zsh -f -c '
    compadd() { print -rl -- ${(P)2} }
    _describe() { print -rl -- ${(P)3} }
    _files() { print files }
    words=("$@") CURRENT=$#
    eval "complete_it() { $(<$COMPLETION)
}"
    complete_it' zsh "$STAGECRAFT" "${@:2}")
  grep -qxF -e "$wanted" <<<"$found" || { printf '%s: found\n%s\nexpected the line\n%s\n' "${*:2}" "$found" "$wanted"; exit 1; }
}
export COMPLETION=$1/scripts/completion/_stagecraft STAGECRAFT=$1/scripts/stagecraft
check predict x ''
check help x ''
check explain x help ''
check '--microbatches:microbatches per step' x plan graph.json --micro
check '--force:overwrite input files and files of another kind' x predict -
check files x plan graph
check '--measured:measured topology; its links replace those of levels with the same name' x import --
