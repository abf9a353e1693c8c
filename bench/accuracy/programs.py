"""The programs that the scripts of this folder run."""

import os
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))


def find(verb):
    """stagecraft-VERB in $STAGECRAFT_BIN, or the newest one that was built here; ends the script if there is none."""
    builds = os.path.join(ROOT, "build")
    folders = [os.path.join(builds, b, "bin") for b in os.listdir(builds)] if os.path.isdir(builds) else []
    if os.environ.get("STAGECRAFT_BIN"):
        folders = [os.environ["STAGECRAFT_BIN"]]
    found = [p for p in (os.path.join(f, f"stagecraft-{verb}") for f in folders) if os.path.exists(p)]
    if not found:
        sys.exit(f"{os.path.basename(sys.argv[0])}: stagecraft-{verb} is not built; run scripts/setup")
    return max(found, key=os.path.getmtime)
