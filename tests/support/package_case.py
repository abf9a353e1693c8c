"""A test in a temporary folder, in which stagecraft's programs run and from which packages can be imported."""

import importlib
import pathlib
import subprocess
import sys
import tempfile
import unittest

import torch


class PackageCase(unittest.TestCase):
    BIN = pathlib.Path()  # the folder of the programs
    TIMEOUT_S = 300

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        sys.path.insert(0, folder.name)
        self.addCleanup(sys.path.remove, folder.name)
        # With several threads sums have no fixed order, and on a busy machine waiting threads take minutes.
        self.addCleanup(torch.set_num_threads, torch.get_num_threads())
        torch.set_num_threads(1)

    def tool(self, verb, *arguments, status=0):
        """Runs stagecraft-VERB in the folder; returns its standard error."""
        command = [str(self.BIN / f"stagecraft-{verb}"), *map(str, arguments)]
        done = subprocess.run(command, cwd=self.folder, capture_output=True, text=True, timeout=self.TIMEOUT_S)
        self.assertEqual(done.returncode, status, done.stderr)
        return done.stderr

    def package(self, name):
        """The current version of the package with this name in the folder."""
        importlib.invalidate_caches()
        for old in [old for old in sys.modules if old == name or old.startswith(name + ".")]:
            del sys.modules[old]
        return importlib.import_module(name)
