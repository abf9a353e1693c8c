"""Tests of stagecraft export-model: what it writes, what it refuses, and what it says."""

import contextlib
import io
import json
import os
import re
import struct
import sys
import tempfile
import unittest
import zipfile
from unittest import mock

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path[:0] = [HERE, os.path.join(ROOT, "scripts")]
try:
    import torch
except ImportError:
    print("this Python has no torch")
    sys.exit(77)

import export_model
import hard_models
import make
import models
import table
from exporter import program, record, self_check
from exporter.inputs import draw_all, parse_input
from exporter.program import Request

HARD = os.path.join(HERE, "hard_models.py")
OWN = os.path.join(HERE, "models.py")
VECTOR = ["--input", "x=float32[8]"]


def run(*arguments):
    """(status, stdout, stderr) of the tool."""
    out, error = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(error):
        try:
            status = export_model.main([str(each) for each in arguments])
        except SystemExit as stop:
            status = stop.code
    return status, out.getvalue(), error.getvalue()


def read_record(path):
    """A safetensors file by its definition: (tensors, metadata)."""
    with open(path, "rb") as file:
        data = file.read()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    metadata = header.pop("__metadata__")
    types = {"F32": torch.float32, "I64": torch.int64, "BOOL": torch.bool}
    tensors, covered = {}, 0
    for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        begin, end = entry["data_offsets"]
        assert begin == covered, f"{name} begins at {begin}, wanted is {covered}"
        covered = end
        raw = bytearray(data[8 + length + begin : 8 + length + end])
        tensors[name] = torch.frombuffer(raw, dtype=types[entry["dtype"]]).reshape(entry["shape"])
    assert 8 + length + covered == len(data), "bytes are left over"
    return tensors, metadata


def json_of(archive):
    (name,) = [name for name in archive.namelist() if name.endswith("/models/model.json")]
    return json.loads(archive.read(name))


class InFolder(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.file = os.path.join(self.folder, "model.pt2")

    def refused(self, name, *more, inputs=VECTOR, loss="cross_entropy"):
        """The message with which a hard model is refused; nothing is written."""
        status, out, error = run(f"{HARD}:{name}", "-o", self.file, *inputs, "--loss", loss, *more)
        self.assertEqual(status, 1, out + error)
        self.assertEqual(os.listdir(self.folder), [])
        self.assertNotIn("Traceback", error)
        return error

    def exported(self, *arguments):
        status, out, error = run(*arguments, "-o", self.file)
        self.assertEqual(status, 0, error)
        with zipfile.ZipFile(self.file) as archive:
            return json.loads(archive.read("model/extra/stagecraft.json")), out + error


class EveryModel(InFolder):
    """Of each model in the table: the archive as torch reads it back, and the record."""

    def check(self, name):
        entry = table.MODELS[name]
        done, tensors = make.make(name, self.folder)
        path = os.path.join(self.folder, f"{name}.pt2")
        self.assertEqual(sorted(os.listdir(self.folder)), [f"{name}.pt2", f"{name}.safetensors"])
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
        for names in extra["tied"]:  # torch reads them as several
            for tied in names:
                loaded.state_dict[tied] = loaded.state_dict[names[0]]
        for samples in {extra["samples"]["least"], min(4, extra["samples"]["most"])}:
            self_check.check(done.eager, loaded, draw_all(done.inputs, samples, 99), samples, 5)
        for parameter, value in fresh.model.named_parameters(remove_duplicate=False):
            self.assertTrue(torch.equal(value, loaded.state_dict[parameter]), parameter)
        self.check_record(name, entry, done, tensors, fresh.model)

    def check_extra(self, entry, extra, written, loaded):
        self.assertEqual((extra["format"], extra["version"], extra["torch"]), ("stagecraft.pt2", 1, "2.11.0"))
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
        found, metadata = read_record(os.path.join(self.folder, f"{name}.safetensors"))
        self.assertEqual(metadata, {"format": "stagecraft.record", "version": "1", "steps": "3", "microbatches": str(entry.microbatches),
                                    "samples": str(entry.samples), "learning_rate": str(entry.learning_rate), "seed": str(make.SEED)})
        self.assertEqual(found.keys(), tensors.keys())
        self.assertEqual(found["loss"].shape, (3, entry.microbatches))
        self.assertTrue(torch.all(torch.isfinite(found["loss"])))
        for each in done.inputs:
            samples = 3 * entry.microbatches * entry.samples
            self.assertEqual(tuple(found[each.name].shape), each.full_shape(samples))
        state = fresh.state_dict()
        kept = {key.split("/", 1)[1] for key in found if key.startswith(("parameter/", "buffer/"))}
        self.assertEqual(kept, set(state))
        for key, parameter in fresh.named_parameters(remove_duplicate=False):
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


class Record(InFolder):
    def test_seeds_are_those_of_mix_seed_in_cpp(self):
        # Printed by a C++ program with the function of executor/layer_source.cpp.
        self.assertEqual(record.mix_seed(0, "a"), 2001490394518938616)
        self.assertEqual(record.mix_seed(7, "dropout_1", 2, 1), 15629992363539257783)
        self.assertEqual(record.mix_seed(2**64 - 1, "", 0, 5), 5341356830305024956)
        self.assertEqual(record.mix_seed(1, "caf\u00e9", 3, 0), 3140856620715955497)

    def test_torch_takes_seeds_of_64_bits_as_they_are(self):
        # The first float of std::mt19937-alike from seed 2^63, of which it takes the low 32 bits: that of seed 0.
        torch.manual_seed(2**63)
        first = torch.rand(3)
        self.assertEqual(torch.initial_seed(), 2**63)
        torch.manual_seed(0)
        self.assertTrue(torch.equal(first, torch.rand(3)))

    def test_random_nodes_draw_from_seeds_of_their_own(self):
        _, tensors = make.make("tied_dropout", self.folder, microbatches=2)
        torch.manual_seed(make.SEED)
        model = models.TiedDropout()
        real, names, place = torch.nn.functional.dropout, [], [0, 0]

        def seeded(x, p=0.5, training=True, inplace=False):
            names.append(f"dropout_{len(names)}" if names else "dropout")
            torch.manual_seed(record.mix_seed(make.SEED, names[-1], *place))
            return real(x, p, training, inplace)

        tokens, threads = tensors["tokens"], torch.get_num_threads()
        torch.set_num_threads(1)
        self.addCleanup(torch.set_num_threads, threads)
        with mock.patch("torch.nn.functional.dropout", seeded):
            for place[1] in (0, 1):
                names.clear()
                given = tokens[2 * place[1] : 2 * place[1] + 2]
                scores = model(given)
                loss = torch.nn.functional.cross_entropy(scores[:, :-1].flatten(0, 1), given[:, 1:].flatten())
                loss.backward()
                self.assertEqual(loss.item(), tensors["loss"][0, place[1]].item())
        self.assertEqual(names, ["dropout", "dropout_1", "dropout_2", "dropout_3"])
        self.assertTrue(torch.equal(model.output.weight.grad, tensors["gradient.0/embedding.weight"]))
        self.assertTrue(torch.equal(model.output.weight.grad, tensors["gradient.0/output.weight"]))

    def test_a_random_operator_in_a_nested_graph_is_seen(self):
        _, tensors = make.make("autocast_block", self.folder)
        with zipfile.ZipFile(os.path.join(self.folder, "autocast_block.pt2")) as archive:
            nodes = json_of(archive)["graph_module"]["graph"]["nodes"]
        (wrap,) = [node["name"] for node in nodes if "wrap_with_autocast" in node["target"]]
        torch.manual_seed(make.SEED)
        model = models.AutocastBlock()
        torch.manual_seed(record.mix_seed(make.SEED, wrap, 0, 0))
        scores = model(tensors["x"][:2])
        loss = torch.nn.functional.binary_cross_entropy_with_logits(scores, tensors["target"][:2])
        self.assertEqual(loss.item(), tensors["loss"][0, 0].item())

    def test_is_written_by_the_tool(self):
        file = os.path.join(self.folder, "record.safetensors")
        self.exported(f"{OWN}:Mlp", *VECTOR, "--loss", "mse", "--record", file, "--steps", 2, "--microbatches", 3, "--samples", 5,
                      "--learning-rate", 0.25, "--seed", 11)
        tensors, metadata = read_record(file)
        self.assertEqual(metadata["learning_rate"], "0.25")
        self.assertEqual(tensors["loss"].shape, (2, 3))
        self.assertEqual(tensors["x"].shape, (30, 8))
        torch.manual_seed(11)
        model = models.Mlp()
        loss = torch.nn.functional.mse_loss(model(tensors["x"][5:10]), tensors["target"][5:10])
        self.assertEqual(loss.item(), tensors["loss"][0, 1].item())

    def test_needs_a_loss_and_a_batch_that_fits(self):
        file = os.path.join(self.folder, "record.safetensors")
        status, _, error = run(f"{OWN}:Mlp", *VECTOR, "--loss", "none", "--record", file, "-o", self.file)
        self.assertEqual((status, error), (1, "export-model: --record: the program has no loss, --loss gives it one\n"))
        status, _, error = run(f"{OWN}:Mlp", *VECTOR, "--loss", "mse", "--static", 4, "--record", file, "-o", self.file)
        self.assertEqual((status, error), (1, "export-model: --samples 2: the program takes microbatches of 4\n"))
        self.assertEqual(os.listdir(self.folder), [])


class Refused(InFolder):
    def test_a_custom_backward(self):
        error = self.refused("OwnBackward")
        self.assertIn("self-check at 2 samples: parameter first.weight: the gradient differs by up to", error)
        self.assertIn("the model uses the autograd.Function StraightThrough, whose backward torch.export replaces", error)

    def test_reentrant_checkpointing(self):
        error = self.refused("ReentrantCheckpoint")
        self.assertIn("parameter first.weight: the gradient exists in the model only", error)
        self.assertIn("the model uses reentrant checkpointing, which torch.export loses; use_reentrant=False", error)

    def test_inference_mode(self):
        error = self.refused("InferenceMode")
        self.assertIn("parameter scale.weight: the gradient exists in the exported program only", error)
        self.assertIn("probably torch.inference_mode", error)

    def test_state_outside_the_buffers(self):
        self.assertIn("self-check at 2 samples: output 0 differs by up to", self.refused("CountsInPython"))

    def test_other_rounding_unless_it_is_allowed(self):
        error = self.refused("ComputesOtherwiseWhenTraced")
        self.assertRegex(error, "output [01] differs by up to")
        self.assertIn("this is rounding: the model, or its library, asks whether it is being traced", error)
        self.assertIn("--allow-rounding accepts that", error)
        extra, _ = self.exported(f"{HARD}:ComputesOtherwiseWhenTraced", *VECTOR, "--loss", "cross_entropy", "--allow-rounding")
        self.assertEqual(extra["samples"]["least"], 1)
        os.unlink(self.file)
        self.refused("OwnBackward", "--allow-rounding")

    def test_shapes_and_branches_that_depend_on_data(self):
        self.assertIn("depends on the data (nonzero, boolean indexing, .item())", self.refused("DataDependentShape"))
        self.assertIn("torch.export fails, a branch or a shape depends on the values of a tensor", self.refused("BranchOnValues"))

    def test_operators_that_are_not_in_cpp(self):
        self.assertIn("operator stagecraft_test::twice is not one of torch's own but of stagecraft_test, whose library needs "
                      "Python", self.refused("OwnOperator"))
        self.assertRegex(self.refused("Scan", inputs=["--input", "x=float32[8]"]),
                         "node scan.*: scan cannot run without Python, of its kind only wrap_with_set_grad_enabled, "
                         "wrap_with_autocast, cond can")

    def test_sparse_gradients(self):
        error = self.refused("SparseEmbedding", inputs=["--input", "x=int64[3]:range=0..10"])
        self.assertIn("node embedding in words: aten::embedding has sparse=True, sparse gradients are not trained", error)

    def test_parameters_that_are_not_float32(self):
        self.assertIn("parameter first.weight is float64, trainable parameters must be float32; call model.float()",
                      self.refused("double", inputs=["--input", "x=float64[8]"]))

    def test_hooks_that_the_loss_would_lose(self):
        self.assertIn("the model, Linear, has hooks on the outermost module", self.refused("hooked"))


class Options(InFolder):
    def test_static_is_chosen_with_the_reason_where_the_batch_cannot_be_open(self):
        extra, said = self.exported(f"{HARD}:FixedShape", *VECTOR, "--loss", "cross_entropy")
        self.assertIn("the number of samples cannot be left open: the model uses the number of samples as a plain number", said)
        self.assertEqual((extra["batch_symbol"], extra["samples"]), (None, {"least": 3, "most": 3}))
        self.assertEqual(extra["inputs"][0], {"name": "x", "batch_axis": 0, "range": None})
        self.assertEqual(extra["inputs"][1], {"name": "target", "batch_axis": 0, "range": [0, 4]})

    def test_static_is_taken_when_asked(self):
        extra, _ = self.exported(f"{OWN}:Mlp", *VECTOR, "--loss", "mse", "--static", 5)
        self.assertEqual(extra["samples"], {"least": 5, "most": 5})

    def test_no_loss(self):
        extra, _ = self.exported(f"{OWN}:Mlp", *VECTOR, "--loss", "none", "--max-samples", 64)
        self.assertIsNone(extra["loss_output"])
        self.assertEqual(extra["samples"], {"least": 1, "most": 64})
        loaded = torch.export.load(self.file).module()
        self.assertEqual([tuple(each.shape) for each in loaded(torch.zeros(6, 8))], [(6, 4)])

    def test_example_tensors_and_a_loss_of_ones_own(self):
        file = os.path.join(self.folder, "record.safetensors")
        extra, _ = self.exported(f"{OWN}:Mlp", "--inputs", f"{HARD}:examples", "--loss", f"{HARD}:halved", "--record", file)
        self.assertEqual(extra["inputs"][1], {"name": "target", "batch_axis": 0, "range": [0, 4]})
        tensors, _ = read_record(file)
        self.assertEqual(tensors["target"].tolist(), [0, 3, 1, 2, 2, 0, 3, 1, 2, 2, 0, 3])
        torch.manual_seed(0)
        model = models.Mlp()
        want = torch.nn.functional.cross_entropy(model(tensors["x"][:2]), tensors["target"][:2]) / 2
        self.assertEqual(tensors["loss"][0, 0].item(), want.item())

    def test_arguments_and_weights(self):
        torch.manual_seed(3)
        state = models.Mlp(width=5).state_dict()
        weights = os.path.join(self.folder, "state.pt")
        torch.save(state, weights)
        self.exported(f"{OWN}:Mlp", "--model-args", "width=5", *VECTOR, "--loss", "mse", "--weights", weights)
        loaded = torch.export.load(self.file).state_dict
        self.assertTrue(all(torch.equal(loaded[name], value) for name, value in state.items()))
        status, _, error = run(f"{OWN}:Mlp", *VECTOR, "--loss", "mse", "--weights", weights, "-o", self.file)
        self.assertEqual(status, 1)
        self.assertIn(f"--weights {weights}: size mismatch for layers.0.weight", error)

    def test_a_model_in_evaluation_mode_is_set_to_training(self):
        _, said = self.exported(f"{HARD}:evaluating", "--input", "x=float32[8]", "--loss", "mse")
        self.assertIn("the model was in evaluation mode as a whole, it is exported in training mode", said)

    @unittest.skipUnless(table.MODELS["resnet18"].is_installed(), "needs torchvision")
    def test_one_sample_is_left_out_where_the_model_does_not_train_on_it(self):
        done = program.export(make.request("resnet18"))  # at 32 pixels its last BatchNorm sees one value of a channel
        self.assertEqual((done.least, done.most), (2, 65536))

    def test_tied_parameters_are_told(self):
        extra, _ = self.exported(f"{OWN}:TiedDropout", "--input", "tokens=int64[6]:range=0..40", "--loss", "next_token")
        self.assertEqual(extra["tied"], [["embedding.weight", "output.weight"]])

    @unittest.skipUnless(table.MODELS["resnet18"].is_installed(), "needs torchvision")
    def test_torchvision_needs_nothing_but_the_name(self):
        extra, said = self.exported("torchvision:mobilenet_v3_small", "--model-args", "num_classes=3")
        self.assertEqual([each["name"] for each in extra["inputs"]], ["image", "target"])
        self.assertEqual(extra["inputs"][1]["range"], [0, 3])
        self.assertIn("1..65536 samples", said)

    @unittest.skipUnless(table.MODELS["gpt2"].is_installed(), "needs transformers")
    def test_transformers_needs_nothing_but_the_type_or_a_file(self):
        small = ["n_layer=2", "n_embd=16", "n_head=2", "vocab_size=30", "n_positions=20"]
        extra, _ = self.exported("transformers:gpt2", "--model-args", *small)
        self.assertEqual(extra["inputs"], [{"name": "input_ids", "batch_axis": 0, "range": [0, 30]}])
        file = os.path.join(self.folder, "config.json")
        with open(file, "w", encoding="utf-8") as config:
            json.dump({"model_type": "bert", "num_hidden_layers": 1, "hidden_size": 16, "num_attention_heads": 2,
                       "intermediate_size": 16, "vocab_size": 30}, config)
        extra, _ = self.exported(f"transformers:{file}")
        self.assertEqual([each["name"] for each in extra["inputs"]], ["input_ids", "target"])
        status, _, error = run("transformers:gpt2", "--model-args", "layers=2", "-o", self.file)
        self.assertEqual(status, 1)
        self.assertIn('transformers:gpt2: unknown field "layers", known are', error)


class Messages(InFolder):
    def says(self, status, text, *arguments):
        found, _, error = run(*arguments)
        self.assertEqual(found, status, error)
        self.assertIn(text, error)
        self.assertNotIn("Traceback", error)
        self.assertFalse(os.path.exists(self.file))

    def test_usage(self):
        self.says(2, "required: -o/--output", "resnet18")
        self.says(2, "--output is model.onnx, must end in .pt2", "resnet18", "-o", "model.onnx")
        self.says(2, "--static is 0, must be 1 or more", "resnet18", "-o", self.file, "--static", 0)
        self.says(2, "--input and --inputs exclude each other", "a:b", "-o", self.file, *VECTOR, "--inputs", "a:b")
        self.says(2, "unrecognized arguments: --inpt", "a:b", "-o", self.file, "--inpt", "x")

    def test_models(self):
        own = ["-o", self.file, *VECTOR, "--loss", "mse"]
        self.says(1, f'MODEL {HARD}: unknown callable "Nothing", known are', f"{HARD}:Nothing", *own)
        self.says(1, f'there is no file {self.folder}/none.py', f"{self.folder}/none.py:build", *own)
        self.says(1, "there is no module nowhere", "nowhere:build", *own)
        self.says(1, f"{HARD}:not_a_model: gives dict, must give a torch.nn.Module", f"{HARD}:not_a_model", *own)
        self.says(1, f"{OWN}:Mlp: building the model fails, TypeError:", f"{OWN}:Mlp", *own, "--model-args", "depth=2")
        self.says(1, '--model-args "depth": must be key=value', f"{OWN}:Mlp", *own, "--model-args", "depth")
        if table.MODELS["resnet18"].is_installed():
            self.says(1, 'unknown torchvision model "resnet19", known are', "resnet19", "-o", self.file)

    def test_inputs(self):
        def says(text, *inputs):
            self.says(1, text, f"{OWN}:Mlp", "-o", self.file, "--loss", "mse", *(part for each in inputs for part in ("--input", each)))

        says("the inputs are not known; give each as --input NAME=dtype[extent,...]")
        says('--input "x": must be NAME=dtype[extent,...]', "x")
        says('unknown type "float23", known are float32', "x=float23[8]")
        says('the shape "[8,]" must be whole numbers from 1 on', "x=float32[8,]")
        says("whole numbers need the values they may have, as in :range=0..50257", "x=int64[8]")
        says('range is "5..5", must be LOW..HIGH', "x=int64[8]:range=5..5")
        says('batch_axis is "2", must be none or in 0..1', "x=float32[8]:batch_axis=2")
        says('unknown option "axis", known are batch_axis, range', "x=float32[8]:axis=1")
        says("forward has no parameter y, it has x", "x=float32[8]", "y=float32[8]")
        says("x is there twice", "x=float32[8]", "x=float32[8]")
        says("running the model on x [3, 9] fails, RuntimeError: mat1 and mat2 shapes cannot be multiplied", "x=float32[9]")

    def test_losses(self):
        def says(text, loss, *more):
            self.says(1, text, f"{OWN}:Mlp", "-o", self.file, *VECTOR, "--loss", loss, *more)

        says('unknown loss "hinge", known are cross_entropy, mse, next_token, bce, in-model, none, module:callable', "hinge")
        says("--loss-output 2: the model gives 1 tensors", "mse", "--loss-output", "2")
        says("output 0 of the model has shape [3, 4], a loss is one number", "in-model")
        says("next_token: needs scores of three axes and one input of token numbers", "next_token")
        says('the loss wants an input "target", there are x', f"{HARD}:halved")
        says("the loss is [3, 4], must be one number", f"{HARD}:whole")
        says("target must have that shape without the axis of classes", "cross_entropy", "--input", "target=int64[3]:range=0..4")


class Writing(InFolder):
    def test_a_failure_leaves_the_old_file_and_nothing_else(self):
        with open(self.file, "w", encoding="utf-8") as file:
            file.write("old")
        with mock.patch("torch.export.save", side_effect=OSError(28, "no space left on device")):
            status, _, error = run(f"{OWN}:Mlp", *VECTOR, "--loss", "mse", "-o", self.file)
        self.assertEqual(status, 1)
        self.assertIn(f"{self.file}: cannot be written", error)
        self.assertEqual(os.listdir(self.folder), ["model.pt2"])
        with open(self.file, encoding="utf-8") as file:
            self.assertEqual(file.read(), "old")
        self.exported(f"{OWN}:Mlp", *VECTOR, "--loss", "mse")
        self.assertEqual(os.listdir(self.folder), ["model.pt2"])

    def test_a_folder_that_is_not_there_is_told(self):
        file = os.path.join(self.folder, "none", "model.pt2")
        status, _, error = run(f"{OWN}:Mlp", *VECTOR, "--loss", "mse", "-o", file)
        self.assertEqual((status, error), (1, f"export-model: {file}: cannot be written, No such file or directory\n"))

    def test_names_in_the_archive_are_those_that_seed(self):
        make.make("tied_dropout", self.folder, microbatches=2)
        done = program.export(make.request("tied_dropout"))
        with zipfile.ZipFile(os.path.join(self.folder, "tied_dropout.pt2")) as archive:
            written = [node["name"] for node in json_of(archive)["graph_module"]["graph"]["nodes"]]
        self.assertEqual(written, [node.name for node in done.exported.graph.nodes if node.op == "call_function"])

    def test_parse_input_gives_what_was_said(self):
        each = parse_input("words=int64[7,2]:batch_axis=1:range=-3..40")
        self.assertEqual((each.name, each.dtype, each.shape, each.batch_axis, each.range),
                         ("words", torch.int64, (7, 2), 1, (-3, 40)))
        self.assertEqual(each.full_shape(5), (7, 5, 2))


if __name__ == "__main__":
    unittest.main()
