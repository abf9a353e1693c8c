#!/usr/bin/env bash
# report_browser_test.sh SOURCE BIN [SCREENSHOTS]: opens two reports in headless Chromium in both themes. They must draw
# without a message on the console, the script must have added its buttons, no labels of a picture may overlap, and all
# text must be readable on what is behind it (report_checks.js). With a folder for SCREENSHOTS, leaves the pages there as
# pictures. Skipped without Chromium.
set -euo pipefail
source=$1
bin=$2
screenshots=${3:-}
browser=$(command -v chromium || command -v chromium-browser || command -v google-chrome || true)
if [ -z "$browser" ]; then
  echo "skipped: there is no chromium; install the package chromium"
  exit 77
fi
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

# A small pipeline with all that is predicted of it, and one of 48 layers on 8 devices with a list of plans.
case=$source/tests/golden/cases/1f1b
"$bin/stagecraft-report" "$case"/{graph,topology,plan}.json -o "$folder/small.html"
"$bin/stagecraft-import" pipedream "$source/tests/golden/pipedream/gnmt.txt" -o "$folder/graph.json" 2> /dev/null
"$bin/stagecraft-plan" "$folder/graph.json" "$source/examples/dgx-a100.json" --microbatches 8 --front --time-limit 5 \
  --json -o "$folder/plan.json" > "$folder/plans.json" 2> /dev/null
"$bin/stagecraft-predict" "$folder/graph.json" "$source/examples/dgx-a100.json" "$folder/plan.json" --scale 1,2,4 \
  -o "$folder/prediction.json" > /dev/null 2>&1
"$bin/stagecraft-report" "$folder"/{graph,plan,plans,prediction}.json "$source/examples/dgx-a100.json" \
  -o "$folder/large.html"

open_page() {
  timeout -k 5 120 "$browser" --headless --no-sandbox --disable-gpu --user-data-dir="$folder/profile" \
    --enable-logging=stderr --blink-settings=preferredColorScheme="$theme" --window-size=1400,12000 \
    --virtual-time-budget=5000 "$@" 2> "$folder/log.txt"
}
failed=0
for report in small large; do
  { sed 's#</body>.*##; s#</html>.*##' "$folder/$report.html"
    echo "<script>"; cat "$source/tests/scripts/report_checks.js"; echo "</script></body></html>"; } > "$folder/checked.html"
  for theme in 0 1; do
    open_page --dump-dom "file://$folder/checked.html" > "$folder/dom.html"
    if grep -E 'CONSOLE' "$folder/log.txt"; then
      echo "$report: the page wrote to the console"
      failed=1
    fi
    grep -q '<button type="button">zoom in</button>' "$folder/dom.html" || { echo "$report: no zoom buttons"; failed=1; }
    sed -n '/<pre id="checks">/,/<\/pre>/p' "$folder/dom.html" | sed 's/<[^>]*>//g' > "$folder/checks.txt"
    grep -q '^checked [1-9][0-9]* texts' "$folder/checks.txt" || { echo "$report: nothing was checked"; failed=1; }
    if tail -n +2 "$folder/checks.txt" | grep -q .; then
      echo "$report, theme $theme:"
      cat "$folder/checks.txt"
      failed=1
    fi
    [ -z "$screenshots" ] || open_page --screenshot="$screenshots/$report-$theme.png" "file://$folder/$report.html"
  done
done
exit $failed
