#!/usr/bin/env bash
# convert_packages.sh SOURCE BIN TESTS...: runs tests of convert_packages.py with the source's own Python.
set -euo pipefail
python=$1/.venv/bin/python
[ -x "$python" ] || { echo "skipped: there is no .venv/bin/python with PyTorch, scripts/setup makes it"; exit 77; }
exec "$python" -W ignore "$1/tests/scripts/convert_packages.py" "$2" "$1/tests/golden/pipedream" "${@:3}"
