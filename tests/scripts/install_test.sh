#!/usr/bin/env bash
# install_test.sh CMAKE BUILD: installs a build into a temporary folder and runs every program from there.
set -euo pipefail
unset STAGECRAFT_BIN LD_LIBRARY_PATH
prefix=$(mktemp -d)
trap 'rm -rf "$prefix"' EXIT
"$1" --install "$2" --prefix "$prefix" >"$prefix/log" 2>&1 || { cat "$prefix/log"; exit 1; }
listed=$("$prefix/bin/stagecraft" --help)
echo "$listed"
count=0
for program in "$prefix"/bin/stagecraft-*; do
  verb=${program##*/stagecraft-}
  [[ " ${listed##*commands: } " == *" $verb "* ]] || { echo "command $verb is not listed"; exit 1; }
  "$prefix/bin/stagecraft" "$verb" --version
  "$prefix/bin/stagecraft" "$verb" --help | grep -A1 '^Example:' | grep -q "stagecraft $verb " || { echo "$verb --help shows no example"; exit 1; }
  count=$((count + 1))
done
[ "$count" -ge 5 ] || { echo "only $count programs were installed"; exit 1; }

(cd "$prefix" && bin/stagecraft init --from gpt --topology example:dgx-h100 2>/dev/null &&
  bin/stagecraft auto --dry-run) | grep -q "^bin/stagecraft plan stagecraft-out/graph.json $prefix/share/stagecraft/examples/dgx-h100.json " ||
  { echo "the installed example topology is not found"; exit 1; }
grep -q '"urn:stagecraft:project"' "$prefix/share/stagecraft/project.schema.json" ||
  { echo "the schema of project files is not installed"; exit 1; }
# Each verb has a manual page with its options, which man finds beside the programs and reads without a warning.
for verb in ${listed##*commands: }; do
  page=$prefix/share/man/man1/stagecraft-$verb.1
  if [ "$verb" = export-model ] && ! "$prefix/bin/stagecraft" export-model --help >/dev/null 2>&1; then continue; fi   # no Python
  [ -s "$page" ] || { echo "$page is missing"; exit 1; }
  grep -q '^\.SH EXAMPLES' "$page" || { echo "$page has no examples"; exit 1; }
  for option in $("$prefix/bin/stagecraft" "$verb" --help | grep -oE '^  --[a-z-]+' | tr -d ' '); do
    grep -qe "^\.B .*${option//-/\\\\-}" "$page" || { echo "$page does not describe $option"; exit 1; }
  done
done
grep -q 'stagecraft\\-plan (1)' "$prefix/share/man/man1/stagecraft.1"
if command -v man >/dev/null; then
  found=$(PATH=$prefix/bin:$PATH MANPATH='' man -w stagecraft-plan)
  [ "$found" = "$prefix/share/man/man1/stagecraft-plan.1" ] || { echo "man finds $found"; exit 1; }
  for page in "$prefix"/share/man/man1/*; do
    warned=$(LC_ALL=C.UTF-8 man --warnings -l "$page" 2>&1 >/dev/null)
    [ -z "$warned" ] || { echo "$page: $warned"; exit 1; }
  done
fi

refused=$(STAGECRAFT_PYTHON=no-such-python "$prefix/bin/stagecraft" export-model --help 2>&1) &&
  { echo "export-model runs without Python"; exit 1; }
[[ "$refused" == *"export-model needs Python, but there is no no-such-python"* ]] || { echo "$refused"; exit 1; }
command -v python3 >/dev/null || exit 0   # a build without LibTorch does not install it
"$prefix/bin/stagecraft" export-model --help | grep -A1 '^Example:' | grep -q "stagecraft export-model " ||
  { echo "export-model --help shows no example"; exit 1; }
