#!/usr/bin/env python3
"""complex_record_test.py BIN: run --expect compares both parts of a complex buffer with a record."""

import contextlib
import io
import os
import struct
import subprocess
import sys
import tempfile
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "..", "..", "scripts")]
try:
    import torch
except ImportError:
    print("this Python has no torch")
    sys.exit(77)

import export_model
import make

BINARIES = None


class ComplexRecord(unittest.TestCase):
    def test_both_parts_count(self):
        with tempfile.TemporaryDirectory() as folder:
            model, graph, plan, record = (os.path.join(folder, name) for name in ("m.pt2", "g.json", "p.json", "r.safetensors"))

            def tool(name, *arguments):
                done = subprocess.run([f"{BINARIES}/stagecraft-{name}", *arguments], capture_output=True, text=True)
                return done.returncode, done.stdout + done.stderr

            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                status = export_model.main([f"{HERE}/hard_models.py:ComplexBuffer", "--input", "x=float32[8]", "--loss", "cross_entropy",
                                            "-o", model, "--record", record, "--steps", "1"])
            self.assertEqual(status, 0)
            self.assertEqual(tool("profile", model, "--microbatch", "2", *make.QUICKLY, "-o", graph)[0], 0)
            status, said = tool("plan", graph, "--accept-untrusted", "-n", "2", "--strategy", "uniform", "--stages", "2", "--microbatches", "2", "-o", plan)
            self.assertEqual(status, 0, said)
            run = ("run", plan, "--data", f"tensors-in-order:{record}", "--expect", record, "--steps", "1", "--learning-rate", "0.1", "--seed", "0")
            status, said = tool(*run)
            self.assertEqual(status, 0, said)
            self.assertIn("all bit-equal", said)
            # turns is polar(1, 0..3): in the record the imaginary part of its last number, sin 3, becomes 1.
            with open(record, "rb") as file:
                data = file.read()
            last = struct.pack("<f", torch.polar(torch.tensor(1.0), torch.tensor(3.0)).imag.item())
            self.assertEqual(data.count(last), 1)
            with open(record, "wb") as file:
                file.write(data.replace(last, struct.pack("<f", 1.0)))
            status, said = tool(*run)
            self.assertIn("1 values and 0 losses differ", said)
            self.assertIn('"turns" at the end', said)


if __name__ == "__main__":
    BINARIES = sys.argv.pop(1)
    unittest.main()
