"""every_model_test.py FOLDER: exports every test model to FOLDER, with all that other tests read of it, and tests for each
the archive as torch reads it and the record."""

import json
import os
import sys
import unittest
import zipfile

from export_test import ROOT, json_of, read_record  # first: it ends with 77 without torch
import torch

import make
import quick_export
import table
from exporter import prepare, self_check
from exporter.inputs import draw_all

FOLDER = ""


class EveryModel(unittest.TestCase):
    """For each model in the table: the archive as torch reads it, and the record."""

    def check(self, name):
        entry = table.MODELS[name]
        done, tensors = make.make_for_training(name, FOLDER)
        if entry.rounds:
            return
        path = os.path.join(FOLDER, f"{name}.pt2")
        with zipfile.ZipFile(path) as archive:
            extra = json.loads(archive.read(f"{name}/extra/stagecraft.json"))
            written = json_of(archive)
            for each in archive.namelist():
                if not each.endswith((".pt", ".so")) and "/data/weights/weight_" not in each:
                    text = archive.read(each).decode("utf-8", "replace")
                    for folder in (ROOT, sys.prefix, os.path.expanduser("~") + "/"):
                        self.assertNotIn(folder, text, f"{each} tells where it was made")
                    self.assertNotRegex(text, r'"(stack_trace|torch_fn)"', each)
        graph = written["graph_module"]["graph"]
        stacks = [node for node in graph["nodes"] if "nn_module_stack" in node["metadata"]]
        self.assertGreater(len(stacks), 0.5 * len(graph["nodes"]))
        loaded = torch.export.load(path)
        self.check_extra(entry, extra, written, loaded)
        fresh = make.request(name)
        for names in extra["tied"]:  # torch reads them as separate parameters
            for tied in names:
                loaded.state_dict[tied] = loaded.state_dict[names[0]]
        for samples in {extra["samples"]["least"], min(4, extra["samples"]["most"])}:
            self_check.check(done.eager, loaded, draw_all(done.inputs, samples, 99), samples, 5)
        fresh.model = prepare.prepared(fresh.model)
        for parameter, value in fresh.model.named_parameters(remove_duplicate=False):
            self.assertTrue(torch.equal(value, loaded.state_dict[parameter]), parameter)
        self.check_record(name, entry, done, tensors, fresh.model)

    def check_extra(self, entry, extra, written, loaded):
        version = 3 if {"loss_kind", "loss_weight", "evaluates"} & set(extra) else 1
        self.assertEqual((extra["format"], extra["version"], extra["torch"]), ("stagecraft.pt2", version, "2.11.0"))
        users = [spec["user_input"]["arg"]["as_tensor"]["name"] for spec in written["graph_module"]["signature"]["input_specs"]
                 if "user_input" in spec]
        self.assertEqual([each["name"] for each in extra["inputs"]], users)
        self.assertEqual(extra["loss_output"], 0)
        values = written["graph_module"]["graph"]["tensor_values"]
        for each in extra["inputs"]:
            if each["batch_axis"] is None:
                continue
            extent = values[each["name"]]["sizes"][each["batch_axis"]]
            if extra["batch_symbol"] is None:
                self.assertEqual(extent, {"as_int": extra["samples"]["least"]})
            else:
                self.assertIn(extra["batch_symbol"], extent["as_expr"]["expr_str"])
        if extra["batch_symbol"] is None:
            self.assertEqual(written["range_constraints"], {})
        else:
            bounds = written["range_constraints"][extra["batch_symbol"]]
            self.assertEqual((bounds["min_val"], bounds["max_val"]), (extra["samples"]["least"], extra["samples"]["most"]))

    def check_record(self, name, entry, done, tensors, fresh):
        found, metadata = read_record(os.path.join(FOLDER, f"{name}.safetensors"))
        kernels = {key: metadata.pop(key) for key in ("processor", "cpu_capability", "torch", "kernel_settings", "threads")}
        self.assertEqual(kernels["threads"], "1")
        self.assertEqual(kernels["torch"], torch.__version__.split("+")[0])
        self.assertEqual(kernels["cpu_capability"], torch.backends.cpu.get_cpu_capability())
        self.assertEqual(metadata, {"format": "stagecraft.record", "version": "2", "steps": "3", "microbatches": str(entry.microbatches),
                                    "samples": str(entry.samples), "learning_rate": str(entry.learning_rate), "seed": str(make.SEED)})
        self.assertEqual(found.keys(), tensors.keys())
        self.assertEqual(found["loss"].shape, (3, entry.microbatches))
        self.assertTrue(torch.all(torch.isfinite(found["loss"])))
        for each in done.inputs:
            samples = 3 * entry.microbatches * entry.samples
            self.assertEqual(tuple(found[each.name].shape), each.full_shape(samples))
        state = fresh.state_dict()
        kept = {key.split("/", 1)[1] for key in found if key.startswith(("parameter/", "buffer/"))}
        self.assertLessEqual(set(state), kept)
        # Beyond a state dict, buffers with persistent=False that forward writes.
        self.assertLessEqual(kept, set(state) | set(dict(fresh.named_buffers())))
        for key, parameter in fresh.named_parameters(remove_duplicate=False):
            if name == "ema_teacher" and key.startswith("teacher."):
                continue  # forward moves it
            want = parameter.detach().clone()
            moved = [f"gradient.{step}/{key}" for step in range(3) if f"gradient.{step}/{key}" in found]
            for gradient in moved:  # p -= lr * (sum / M)
                want.add_(found[gradient].div(entry.microbatches), alpha=-entry.learning_rate)
            self.assertTrue(torch.equal(found[f"parameter/{key}"], want), key)
            if not parameter.requires_grad:
                self.assertEqual(moved, [], key)


def _every_model():
    for name, entry in table.MODELS.items():
        test = lambda self, name=name: self.check(name)
        if not entry.is_installed():
            test = unittest.skip(f"needs {entry.needs}")(test)
        setattr(EveryModel, f"test_{name}", test)


_every_model()


if __name__ == "__main__":
    FOLDER = sys.argv.pop()
    os.makedirs(FOLDER, exist_ok=True)
    quick_export.prepare()
    unittest.main()
