#!/usr/bin/env bash
# report_browser_test.sh SOURCE BIN: opens a report in headless Chromium in both themes; it must draw without a message on
# the console, and the script must have added its buttons. Skipped without Chromium.
set -euo pipefail
source=$1
bin=$2
browser=$(command -v chromium || command -v chromium-browser || command -v google-chrome || true)
if [ -z "$browser" ]; then
  echo "skipped: there is no chromium; install the package chromium"
  exit 77
fi
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
case=$source/tests/golden/cases/1f1b
"$bin/stagecraft-report" "$case"/{graph,topology,plan}.json -o "$folder/report.html"
for theme in 0 1; do
  timeout -k 5 120 "$browser" --headless --no-sandbox --disable-gpu --user-data-dir="$folder/profile" --enable-logging=stderr \
    --blink-settings=preferredColorScheme=$theme --virtual-time-budget=2000 --dump-dom "file://$folder/report.html" \
    > "$folder/dom.html" 2> "$folder/log.txt"
  if grep -E 'CONSOLE' "$folder/log.txt"; then
    echo "the page wrote to the console"
    exit 1
  fi
  grep -q '<button type="button">zoom in</button>' "$folder/dom.html" || { echo "the zoom buttons are missing"; exit 1; }
done
