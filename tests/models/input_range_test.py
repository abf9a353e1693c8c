#!/usr/bin/env python3
"""input_range_test.py BIN: --input-range of profile and run can widen the range of an input if only the data checks
use it, but not if an embedding or a loss bounds it."""

import contextlib
import io
import os
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
from exporter.record import Training, save_record

BINARIES = None


class InputRange(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            status = export_model.main([f"{HERE}/hard_models.py:Kinds", "--inputs", f"{HERE}/hard_models.py:kind_examples", "--range",
                                        "kind=0..12", "--loss", f"{HERE}/hard_models.py:class_loss", "-o", self.path("model.pt2")])
        self.assertEqual(status, 0)

    def path(self, name):
        return os.path.join(self.folder, name)

    def tool(self, name, *arguments):
        done = subprocess.run([f"{BINARIES}/stagecraft-{name}", *arguments], capture_output=True, text=True)
        return done.returncode, done.stdout + done.stderr

    def plan(self):
        status, said = self.tool("profile", self.path("model.pt2"), "--microbatch", "2", *make.QUICKLY, "-o", self.path("g.json"))
        self.assertEqual(status, 0, said)
        status, said = self.tool("plan", self.path("g.json"), "--accept-untrusted", "-n", "2", "--strategy", "uniform", "--stages", "2", "--microbatches", "2",
                                 "-o", self.path("p.json"))
        self.assertEqual(status, 0, said)

    def run_on(self, kinds, *arguments):
        # The exporter's range was 0..12.
        data = {"tokens": torch.arange(16).reshape(4, 4), "label": torch.tensor([0, 9, 3, 2]), "kind": torch.tensor(kinds)}
        save_record(self.path("data.safetensors"), data, Training())
        return self.tool("run", self.path("p.json"), "--data", f"tensors-in-order:{self.path('data.safetensors')}", "--steps", "1",
                         *arguments)

    def test_run_takes_a_wider_range(self):
        self.plan()
        status, said = self.run_on([1, 11, 40, 2])
        self.assertEqual(status, 1)
        self.assertIn('input "kind": found 40 at [2], expected 0..12 (upper end excluded), or another range with '
                      "--input-range kind=LOW..HIGH", said)
        status, said = self.run_on([1, 11, 40, 2], "--input-range", "kind=0..40")
        self.assertEqual(status, 1)
        self.assertIn("found 40 at [2], expected 0..40 (upper end excluded)", said)
        status, said = self.run_on([1, 11, 40, 2], "--input-range", "kind=0..41")
        self.assertEqual(status, 0, said)

    def test_rows_and_classes_are_bounds(self):
        self.plan()
        status, said = self.run_on([1, 2, 3, 4], "--input-range", "tokens=0..31")
        self.assertEqual(status, 1)
        self.assertIn('in module "words": has 30 rows; found range 0..31 of input "tokens", expected one within 0..30', said)
        status, said = self.run_on([1, 2, 3, 4], "--input-range", "label=0..11")
        self.assertEqual(status, 1)
        self.assertIn('has 10 classes; found range 0..11 of input "label"', said)


if __name__ == "__main__":
    BINARIES = sys.argv.pop(1)
    unittest.main()
