#!/usr/bin/env python3
"""structure_test.py BIN FOLDER NAME...: exports test models as export-model --structure does, without values, and compares what
profile --structure finds in each with what it finds in the archive with values that make.py wrote to FOLDER. 77: no torch, or
none of the models' packages."""

import json
import os
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "..", "..", "scripts")]
try:
    import torch  # noqa: F401
except ImportError:
    print("this Python has no torch")
    sys.exit(77)

from exporter import program
from make import request
from table import MODELS
from train_test import call


def structure_of(binaries, archive, work):
    """The graph of an archive without where it comes from."""
    path = os.path.join(work, "graph.json")
    call(f"{binaries}/stagecraft-profile", archive, "--structure", "--microbatch", "2", "-o", path, "--force")
    with open(path, encoding="utf-8") as file:
        graph = json.load(file)
    del graph["name"], graph["provenance"]
    return graph


def main(binaries, folder, *names):
    installed = [name for name in names if MODELS[name].is_installed()]
    for name in installed:
        with tempfile.TemporaryDirectory() as work:
            archive = os.path.join(work, f"{name}.pt2")
            program.save(program.export(request(name, structure=True)), archive)
            found = structure_of(binaries, archive, work)
            wanted = structure_of(binaries, os.path.join(folder, f"{name}.pt2"), work)
            assert found == wanted, f"{name}: {json.dumps(found)}\nwanted {json.dumps(wanted)}"
            assert os.path.getsize(archive) < 2 << 20, f"{name}: {os.path.getsize(archive)} bytes"
            refused = subprocess.run([f"{binaries}/stagecraft-profile", archive, "--microbatch", "2", "-o", os.path.join(work, "no.json")],
                                     capture_output=True, text=True)
            assert refused.returncode == 1 and "has shapes but no weights" in refused.stderr, refused.stderr
            print(f"{name}: {len(found['layers'])} layers")
    return 0 if installed else 77


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
