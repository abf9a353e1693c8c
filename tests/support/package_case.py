"""A test in a folder of its own, in which stagecraft's programs run and whose packages can be imported."""

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
        # Sums of several threads have no fixed order, and threads that wait for each other take minutes on a busy machine.
        self.addCleanup(torch.set_num_threads, torch.get_num_threads())
        torch.set_num_threads(1)

    def tool(self, verb, *arguments, status=0):
        """Runs stagecraft-VERB in the folder; gives what it said on standard error."""
        command = [str(self.BIN / f"stagecraft-{verb}"), *map(str, arguments)]
        done = subprocess.run(command, cwd=self.folder, capture_output=True, text=True, timeout=self.TIMEOUT_S)
        self.assertEqual(done.returncode, status, done.stderr)
        return done.stderr

    def package(self, name):
        """The package of this name as it is in the folder now."""
        importlib.invalidate_caches()
        for old in [old for old in sys.modules if old == name or old.startswith(name + ".")]:
            del sys.modules[old]
        return importlib.import_module(name)
