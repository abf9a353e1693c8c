#!/usr/bin/env python3
"""contributing_test.py SOURCE: files named in CONTRIBUTING.md exist, and what is "in" a file is there."""
import os, re, sys
from pages import FENCE

FILE = re.compile(r"`([\w./-]+\.(?:cpp|h|json|md|py|sh|txt|toml|xml)|[\w.-]+(?:/[\w.-]+)*/)`")
# `name` or `name()` in `file`, perhaps "in `file` and `file`"
PLACE = re.compile(r"`([A-Za-z_]\w*)(?:\(\))?` in `([\w./-]+/[\w.-]+\.(?:cpp|h))`")


def main(source):
    page = FENCE.sub(lambda fence: "\n" * fence.group(0).count("\n"), open(os.path.join(source, "CONTRIBUTING.md"), encoding="utf-8").read())
    names = set()
    for folder, folders, files in os.walk(source):
        folders[:] = [name for name in folders if not name.startswith(".") and name not in ("build", "dist")]
        names.update(files, (name + "/" for name in folders))
    wrong, seen = [], 0
    for number, line in enumerate(page.splitlines(), 1):
        for path in FILE.findall(line):
            seen += 1
            # A name without a folder is that of a file somewhere.
            there = os.path.exists(os.path.join(source, path)) if "/" in path.rstrip("/") else path in names
            if not there:
                wrong.append(f"CONTRIBUTING.md:{number}: {path} does not exist")
        for name, path in PLACE.findall(line):
            seen += 1
            full = os.path.join(source, path)
            if os.path.exists(full) and not re.search(rf"\b{name}\b", open(full, encoding="utf-8").read()):
                wrong.append(f"CONTRIBUTING.md:{number}: {path} has no {name}")
        # An example goes into a function of the suite that the same cell names.
        for path, name in re.findall(r"`([\w./-]+_test\.cpp)`, with an? [\w ]+ in `(\w+)\(\)`", line):
            seen += 1
            if not re.search(rf"\b{name}\(", open(os.path.join(source, path), encoding="utf-8").read()):
                wrong.append(f"CONTRIBUTING.md:{number}: {path} has no {name}()")
    print("\n".join(wrong) or f"{seen} files and names exist")
    return 1 if wrong or seen < 60 else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
