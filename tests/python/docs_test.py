"""Runs the Python code of docs/python.md, block after block, and examples/python. Usage: docs_test.py BIN SOURCE."""

import os
import re
import subprocess
import sys
import tempfile

try:
    import torch  # noqa: F401
except ImportError:
    print("torch is not installed")
    sys.exit(77)

os.environ["STAGECRAFT_BIN"], source = sys.argv[1:]
os.environ["OMP_NUM_THREADS"] = "1"
with open(os.path.join(source, "docs", "python.md")) as file:
    blocks = re.findall(r"^```python\n(.*?)^```$", file.read(), re.MULTILINE | re.DOTALL)
if len(blocks) < 5:
    sys.exit(f"docs/python.md has {len(blocks)} blocks of Python, wanted 5 or more")
with tempfile.TemporaryDirectory() as folder:
    os.chdir(folder)
    names = {}
    for block in blocks:
        print(f">>> {block}", flush=True)
        exec(compile(block, "docs/python.md", "exec"), names)
    done = subprocess.run([sys.executable, os.path.join(source, "examples", "python", "train.py")], text=True,
                          stdout=subprocess.PIPE)
    print(done.stdout)
    if done.returncode or not re.search(r"^loss \S+ to \S+ in 96 steps$", done.stdout, re.MULTILINE):
        sys.exit("examples/python/train.py failed")
    os.chdir(source)
