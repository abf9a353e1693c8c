"""Tests of stagecraft export-model: the files it writes, the models it refuses, and its messages. every_model_test.py has
those of all models."""

import contextlib
import importlib.util
import io
import itertools
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
import quick_export

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
from exporter import errors, prepare, program, record
from exporter.errors import ExportError
from exporter.inputs import parse_input
from exporter.program import Request

HAS_NUMPY = importlib.util.find_spec("numpy") is not None  # torch works without it
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
    """Reads a safetensors file by its definition: (tensors, metadata)."""
    with open(path, "rb") as file:
        data = file.read()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    metadata = header.pop("__metadata__")
    types = {"F32": torch.float32, "I64": torch.int64, "BOOL": torch.bool, "C64": torch.complex64}
    tensors, covered = {}, 0
    for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        begin, end = entry["data_offsets"]
        assert begin == covered, f"{name} begins at {begin}, wanted is {covered}"
        covered = end
        raw = bytearray(data[8 + length + begin : 8 + length + end])
        tensors[name] = torch.frombuffer(raw, dtype=types[entry["dtype"]]).reshape(entry["shape"])
    assert 8 + length + covered == len(data), "bytes are left over"
    return tensors, metadata


def line_of(file, text):
    """`FILE:NUMBER "TEXT"` of the only line that is `text` in a file of tests/models."""
    with open(os.path.join(HERE, file), encoding="utf-8") as source:
        (number,) = [number for number, line in enumerate(source, 1) if line.strip() == text]
    return f'{file}:{number} "{text}"'


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
        """The message that refuses a hard model; nothing is written."""
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


class LossOfTheModel(InFolder):
    """Which of the numbers that a model returns is its loss."""

    INPUTS = ["--input", "x=float32[8]", "--input", "y=int64[]:range=0..4"]

    def loss_of(self, keys, *more, loss="in-model"):
        """The exported program's first output divided by the model's cross entropy and by its kl, for one batch."""
        _, said = self.exported(f"{HARD}:ReturnsNumbers", "--model-args", f"keys={keys}", *self.INPUTS, "--loss", loss, *more)
        torch.manual_seed(0)
        x, y = torch.randn(5, 8), torch.arange(5) % 4
        program = torch.export.load(self.file).module()
        first, last = program.get_submodule("first"), program.get_submodule("last")
        hidden = torch.nn.functional.linear(x, first.weight, first.bias)
        wanted = {"ce": torch.nn.functional.cross_entropy(torch.nn.functional.linear(hidden.relu(), last.weight, last.bias), y),
                  "kl": hidden.square().mean()}
        found = program(x, y)[0]
        return [name for name, value in wanted.items() if torch.allclose(found, value)], said

    def refuses(self, keys, *more, loss="in-model", code="SC2001"):
        status, out, error = run(f"{HARD}:ReturnsNumbers", "-o", self.file, "--model-args", f"keys={keys}", *self.INPUTS, "--loss",
                                 loss, *more)
        self.assertNotEqual(status, 0, out)
        self.assertIn(f"[{code}]", error)
        return error

    def test_is_the_one_called_loss_wherever_it_is(self):
        for keys in ("accuracy loss scores", "loss kl", "kl accuracy loss", "scores loss"):
            self.assertEqual(self.loss_of(keys)[0], ["ce"], keys)

    def test_is_the_one_that_the_option_names(self):
        self.assertEqual(self.loss_of("kl loss", loss="kl")[0], ["kl"])
        self.assertEqual(self.loss_of("accuracy losses", loss="losses.kl")[0], ["kl"])
        self.assertEqual(self.loss_of("accuracy kl loss", "--loss-output", "1")[0], ["kl"])
        self.assertEqual(self.loss_of("tuple accuracy ce", "--loss-output", "1")[0], ["ce"])

    def test_is_the_only_number(self):
        for keys in ("kl scores", "scores kl", "count kl", "tuple scores kl"):
            self.assertEqual(self.loss_of(keys)[0], ["kl"], keys)

    def test_is_not_guessed_among_several(self):
        self.assertIn("the model returns several numbers, accuracy, ce, none of them called loss; name the one to train with --loss "
                      "KEY, as in --loss accuracy", self.refuses("accuracy ce"))
        self.assertIn("losses.ce, losses.kl", self.refuses("losses"))
        self.assertIn("0, 1, none of them called loss; name the one to train with --loss-output", self.refuses("tuple ce accuracy"))
        self.assertIn('unknown loss "KL", known are cross_entropy, mse, next_token, bce, in-model, none, module:callable, kl, loss',
                      self.refuses("kl loss", loss="KL", code="SC1005"))
        self.assertIn('output of this name is float32 [3, 4], but a loss is one', self.refuses("scores loss", loss="scores"))
        self.assertIn("output of this name is int64 [], but a loss is one floating-point", self.refuses("count loss", loss="count"))

    def test_is_computed_from_the_scores_of_a_dictionary(self):
        torch.manual_seed(0)
        x, y = torch.randn(5, 8), torch.arange(5) % 4
        for keys, more, key in (("hidden logits", [], "logits"), ("hidden scores count", [], "scores"), ("accuracy wide count", [], "wide"),
                                ("hidden wide", ["--loss-output", "1"], "wide"), ("tuple logits hidden", [], "logits")):
            self.exported(f"{HARD}:ReturnsNumbers", "--model-args", f"keys={keys}", *self.INPUTS, "--input", "target=int64[]:range=0..4",
                          "--loss", "cross_entropy", *more)
            program = torch.export.load(self.file).module()
            loss, *outputs = program(x, y, y)
            place = keys.removeprefix("tuple ").split().index(key)
            self.assertEqual(loss, torch.nn.functional.cross_entropy(outputs[place], y), keys)
        self.assertIn("the model returns several tensors, 0 hidden, 1 wide; say which one the loss reads with --loss-output",
                      self.refuses("hidden wide", "--input", "target=int64[]:range=0..4", loss="cross_entropy"))

    def test_scores_of_a_dictionary_are_named_for_losses_that_follow(self):
        for keys, wanted in (("hidden logits", 1), ("hidden wide", None)):
            notes, _ = self.exported(f"{HARD}:ReturnsNumbers", "--model-args", f"keys={keys}", *self.INPUTS, "--loss", "none")
            self.assertEqual((notes["output_keys"], notes["scores_output"]), (keys.split(), wanted))

    def test_has_a_gradient(self):
        for keys, loss in (("accuracy scores", "in-model"), ("accuracy loss", "accuracy"), ("constant scores", "in-model")):
            self.assertIn("has no gradient, so that no parameter would be trained", self.refuses(keys, loss=loss))
        with self.subTest("which an evaluation does not need"):
            self.exported(f"{HARD}:ReturnsNumbers", "--model-args", "keys=accuracy scores", *self.INPUTS, "--loss", "in-model",
                          "--evaluation")

    def test_parameters_that_it_does_not_train_are_named(self):
        self.assertIn("note: unread.weight, unread.bias get no gradient from the loss, so training leaves them unchanged",
                      self.loss_of("loss")[1])
        self.assertIn("note: last.weight, last.bias, unread.weight, unread.bias get no gradient", self.loss_of("kl")[1])


class SharedMemory(InFolder):
    """Tensors over the same memory, which a copy of the model separates."""

    def test_parameters_are_one_with_the_sum_of_their_gradients(self):
        for how in ("data", "parameter"):
            extra, said = self.exported(f"{HARD}:SharesMemory", "--model-args", f"how={how}", "--input", "tokens=int64[5]", "--loss",
                                        "next_token", "--record", os.path.join(self.folder, "record.safetensors"), "--microbatches", "1")
            self.assertEqual(extra["tied"], [["words.weight", "head.weight"]])
            self.assertIn("note: words.weight, head.weight share their memory and are exported as one parameter", said)
            # In Python, plain SGD updates the memory once for each of the two: by the sum.
            torch.manual_seed(0)
            model = hard_models.SharesMemory(how)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            found, _ = read_record(os.path.join(self.folder, "record.safetensors"))
            for tokens in found["tokens"].split(2):
                optimizer.zero_grad()
                scores = model(tokens)[:, :-1]
                torch.nn.functional.cross_entropy(scores.flatten(0, 1), tokens[:, 1:].flatten()).backward()
                optimizer.step()
            torch.testing.assert_close(found["parameter/head.weight"], model.head.weight.detach(), rtol=1e-6, atol=1e-6)
            self.assertTrue(torch.equal(found["parameter/head.weight"], found["parameter/words.weight"]))

    def test_others_are_refused(self):
        for how, text in (("part", "head.weight has memory of parameter words.weight"),
                          ("transposed", "head.weight has memory of parameter words.weight"),
                          ("frozen", "head.weight has memory of parameter words.weight"),
                          ("buffer", "table has memory of parameter words.weight, which an exported program cannot keep: training would "
                                     "leave table behind; compute it from words.weight in forward"),
                          ("attribute", "table has memory of parameter words.weight"),
                          ("list", "tables has memory of parameter words.weight"),
                          ("written", "mean has memory of buffer seen, which forward writes")):
            self.assertIn(text, self.refused("SharesMemory", "--model-args", f"how={how}", inputs=["--input", "tokens=int64[5]"],
                                             loss="next_token"))

    def test_separate_parts_of_one_memory_stay_separate(self):
        extra, said = self.exported(f"{HARD}:SharesMemory", "--model-args", "how=halves", "--input", "tokens=int64[5]", "--loss",
                                    "next_token")
        self.assertEqual(extra["tied"], [])
        self.assertNotIn("share", said)


class Record(InFolder):
    def test_seeds_are_those_of_mix_seed_in_cpp(self):
        # Computed in C++ with mix_seed of executor/model/model.cpp.
        self.assertEqual(record.mix_seed(0, "a"), 2001490394518938616)
        self.assertEqual(record.mix_seed(7, "dropout_1", 2, 1), 15629992363539257783)
        self.assertEqual(record.mix_seed(2**64 - 1, "", 0, 5), 5341356830305024956)
        self.assertEqual(record.mix_seed(1, "caf\u00e9", 3, 0), 3140856620715955497)

    def test_torch_takes_seeds_of_64_bits_as_they_are(self):
        # torch's generator takes only the low 32 bits, so seed 2^63 gives the same floats as seed 0.
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
        torch.manual_seed(record.mix_seed(make.SEED, f"{wrap}.dropout", 0, 0))
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
        self.assertEqual((status, error), (1, "stagecraft-export-model: --record: the program has no loss; add one with --loss [SC2001]\n"))
        status, _, error = run(f"{OWN}:Mlp", *VECTOR, "--loss", "mse", "--max-samples", 4, "--samples", 5, "--record", file, "-o",
                               self.file)
        self.assertEqual((status, error), (1, "stagecraft-export-model: --samples 5: the program takes microbatches of 1 to 4 [SC2001]\n"))
        self.assertEqual(os.listdir(self.folder), [])

    def test_holds_complex_buffers(self):
        file = os.path.join(self.folder, "record.safetensors")
        self.exported(f"{HARD}:ComplexBuffer", *VECTOR, "--loss", "cross_entropy", "--record", file, "--steps", 1)
        self.assertTrue(torch.equal(read_record(file)[0]["buffer/turns"], hard_models.ComplexBuffer().turns))

    def test_of_a_fixed_number_has_microbatches_of_it(self):
        file = os.path.join(self.folder, "record.safetensors")
        fixed = [f"{HARD}:FixedAnyNumber", *VECTOR, "--loss", "cross_entropy", "--record", file, "--steps", 1, "-o", self.file]
        status, _, error = run(*fixed, "--static", 4, "--samples", 2)
        self.assertEqual(status, 2)
        self.assertIn("--samples 2 and --static 4: they must be equal", error)
        for options, samples in ((["--static", 4], 4), ([], 2), (["--samples", 5], 5)):
            with self.subTest(options=options):
                status, _, error = run(*fixed, *options)
                self.assertEqual(status, 0, error)
                self.assertEqual(read_record(file)[0]["x"].shape, (2 * samples, 8))
        status, _, error = run(f"{HARD}:FixedShape", *fixed[1:])
        self.assertEqual(status, 1)
        self.assertIn("--record has 2 samples per microbatch, but the model runs with 3: use --samples 3", error)


class Refused(InFolder):
    def test_a_custom_backward(self):
        error = self.refused("OwnBackward")
        self.assertIn("self-check at 2 samples: parameter first.weight: the gradient differs by up to", error)
        self.assertIn("the model uses the autograd.Function StraightThrough, whose backward torch.export replaces", error)
        self.assertIn("x + (y - x).detach() has the value of y and the gradient of x", error)
        self.assertRegex(error, r'of its forward \(defined at \S*hard_models.py:\d+ "class StraightThrough')

    def test_reentrant_checkpointing(self):
        error = self.refused("ReentrantCheckpoint")
        self.assertIn("parameter first.weight: the gradient exists only in the model", error)
        self.assertIn("the model uses reentrant checkpointing, which torch.export loses; set use_reentrant=False", error)

    def test_inference_mode(self):
        error = self.refused("InferenceMode")
        self.assertIn("parameter scale.weight: the gradient exists only in the exported program", error)
        self.assertIn("probably torch.inference_mode", error)

    def test_state_outside_the_buffers(self):
        self.assertIn("self-check at 2 samples: output 0 differs by up to", self.refused("CountsInPython"))

    def test_other_rounding_unless_it_is_allowed(self):
        error = self.refused("ComputesOtherwiseWhenTraced")
        self.assertRegex(error, "output [01] differs by up to")
        self.assertIn("this is rounding: the model, or its library, checks whether it is being traced", error)
        self.assertIn("accept that with --allow-rounding", error)
        self.assertNotIn("attn_implementation", error)
        self.assertIn('attn_implementation="eager" in the model\'s configuration', self.refused("LooksAsIfFused"))
        extra, _ = self.exported(f"{HARD}:ComputesOtherwiseWhenTraced", *VECTOR, "--loss", "cross_entropy", "--allow-rounding")
        self.assertEqual(extra["samples"]["least"], 1)
        os.unlink(self.file)
        self.refused("OwnBackward", "--allow-rounding")

    def test_shapes_and_branches_that_depend_on_data(self):
        def says(name, line, text, **more):
            error = self.refused(name, **more)
            self.assertIn(line_of("hard_models.py", line), error)
            self.assertIn(text, error)

        says("DataDependentShape", "return hidden + hidden[hidden > 0].sum() + torch.nonzero(hidden).shape[0]",
             "depends on the data (nonzero, boolean indexing, .item())")
        says("BranchOnValues", "return -hidden if hidden.sum() > 0 else hidden",
             "this branch depends on the values of a tensor; compute both sides and select with torch.where")
        says("LoopOnValues", "for _ in range(int(hidden.detach().abs().max())):", "the number of iterations of this loop depends on the values")
        says("CheckOnValues", "if torch.isnan(hidden).any():",
             'skip it during an export, with "if not torch.compiler.is_exporting():"')
        if HAS_NUMPY:
            says("ComputesInNumpy", "return hidden + torch.from_numpy(hidden.detach().numpy() * 2)",
                 "NumPy cannot be exported; use torch operators")
        says("Validates", "return torch.distributions.Normal(hidden, 1.0, validate_args=True).rsample()",
             "create the distribution with validate_args=False")
        says("Kinds", 'assert (label >= 0).all(), "labels begin at 0"', "this check reads the values of a tensor",
             inputs=["--inputs", f"{HARD}:few_examples"], loss=f"{HARD}:checked_loss")

    def test_checks_of_distributions_are_left_out_with_a_notice(self):
        base = torch.distributions.Distribution
        self.addCleanup(base.set_default_validate_args, base._validate_args)
        base.set_default_validate_args(True)  # torch.compile switches it off
        extra, said = self.exported(f"{OWN}:SampledLatent", *VECTOR, "--loss", "in-model")
        self.assertIn("torch.distributions validates its arguments, which torch.export does not allow; validation is off during the export", said)
        self.assertEqual(extra["samples"]["least"], 1)
        with self.assertRaisesRegex(ValueError, "Expected parameter scale"):  # and are on again
            torch.distributions.Normal(0.0, -1.0)

    def test_transformer_layers_that_look_into_their_mask(self):
        tokens = [parse_input("x=int64[3]:range=0..10")]
        for kind, argument in (("encoder", "is_causal"), ("decoder", "tgt_is_causal"), ("source", "src_is_causal"),
                               ("target", "tgt_is_causal")):
            with self.subTest(kind=kind):
                with self.assertRaises(ExportError) as raised:
                    program.export(Request(hard_models.CausalByLooking(kind), kind, tuple(tokens), "cross_entropy"))
                self.assertIn("nn.Transformer reads the values of its mask to see whether it is causal; state it in the call, "
                              f"with {argument}=True or False", str(raised.exception))
                self.assertIn("hard_models.py:", str(raised.exception))
                with self.subTest("the advice exports"):
                    program.export(Request(hard_models.CausalByLooking(kind, **{argument: True}), kind, tuple(tokens), "cross_entropy"))

    def test_random_numbers_of_python_and_numpy(self):
        def says(source, line, *where, **more):
            error = self.refused(*where, **more)
            self.assertIn(f"draws random numbers from {source} at ", error)
            self.assertIn(line_of("hard_models.py", line), error)
            self.assertIn("use torch.rand, torch.randint or torch.randperm", error)

        says("Python's random", "random.random())", "PythonsRandom")
        if HAS_NUMPY:
            says("NumPy's generator (numpy.random)", "return hidden * numpy.random.rand()", "NumpysRandom")
        says("dice, a separate generator (random.Random)", "return hidden * self.dice.choice([0.5, 2.0])", "GeneratorOfItsOwn")
        says("Python's random", "return functional.cross_entropy(scores, label) * random.random()", "Kinds",
             inputs=["--inputs", f"{HARD}:few_examples"], loss=f"{HARD}:random_loss")
        self.assertIn("generator is a torch.Generator, from which an exported program cannot draw", self.refused("OwnGenerator"))

    def test_complex_parameters_with_the_way_to_have_them(self):
        self.assertIn("parameter filter is complex64, trainable parameters must be float32; store "
                      "torch.view_as_real(filter) and call torch.view_as_complex in forward", self.refused("ComplexParameter"))
        self.exported(f"{HARD}:ComplexOfReal", *VECTOR, "--loss", "cross_entropy")

    def test_what_torch_export_does_not_take_with_a_way_out(self):
        self.assertIn("the shape of a packed sequence depends on the lengths in it; run the layer on the padded sequence",
                      self.refused("PackedSequences", inputs=["--input", "x=int64[5]:range=0..10", "--input", "lengths=int64[]:range=1..6"]))
        self.assertIn("batch norm with momentum=None divides by a count that changes during training; give it a momentum",
                      self.refused("CumulativeNorm"))
        self.assertIn("middle is a TorchScript module, which torch.export does not take; give the nn.Module it came from",
                      self.refused("ScriptedInside"))
        self.assertIn('a parameter, buffer or module named "code", which torch.export reserves; rename it', self.refused("CodeInside"))

    def test_old_weight_norm_of_a_recurrent_layer(self):
        self.assertIn("lstm: torch.nn.utils.weight_norm of an LSTM cannot be exported; use torch.nn.utils.parametrizations.weight_norm",
                      self.refused("NormedLstm", inputs=["--input", "x=float32[3,8]"]))

    def test_writes_of_trained_parameters(self):
        error = self.refused("WritesParameter")
        self.assertIn(line_of("hard_models.py", "self.first.bias.clamp_(-1, 1)"), error)
        self.assertIn("forward changes the trained parameter first.bias in place (aten::clamp_); only the optimizer changes those", error)
        error = self.refused("LimitedRows", inputs=["--input", "x=int64[]:range=0..10"])
        self.assertIn("forward changes the trained parameter words.weight in place (aten::embedding_renorm_) in words; leave out max_norm",
                      error)

    def test_tensors_that_torch_export_does_not_follow(self):
        for name, line, remedy in (
                ("UpdatesData", "self.head.bias.data = self.head.bias.data * 0.9", "torch.export does not follow .data; write in place "
                 "under torch.no_grad()"),
                ("GradientOfInput", "return torch.autograd.grad(self.head(hidden).sum(), hidden, create_graph=True)[0]",
                 "a gradient that forward computes cannot be exported; write the derivative"),
                ("GradientByFunc", "return torch.func.grad(lambda x: self.head(x).sum())(hidden)",
                 "a gradient that forward computes cannot be exported; write the derivative")):
            with self.subTest(name=name):
                error = self.refused(name)
                self.assertIn(line_of("hard_models.py", line), error)
                self.assertIn(remedy, error)
                self.assertNotIn("file an issue", error)

    def test_what_is_not_yet_a_model_or_wraps_one(self):
        self.assertIn("0.weight has no shape yet (LazyLinear); call the model once on a batch before the export", self.refused("lazy"))
        self.assertIn("the model is wrapped in DataParallel; give the one inside, model.module", self.refused("replicated"))

    def test_a_failure_of_the_model_is_not_blamed_on_shapes(self):
        error = self.refused("FailsElsewhere")
        self.assertIn('KeyError: \'missing\'', error)
        self.assertNotIn("--input gives the shape", error)

    def test_operators_that_are_not_in_cpp(self):
        self.assertIn("operator stagecraft_test::twice is not torch's but belongs to stagecraft_test, whose library needs "
                      "Python", self.refused("OwnOperator"))
        self.assertRegex(self.refused("Scan", inputs=["--input", "x=float32[8]"]),
                         "node scan.*: scan cannot run without Python; of the higher-order operators, only "
                         "wrap_with_set_grad_enabled, wrap_with_autocast, cond can")

    def test_sparse_gradients(self):
        error = self.refused("SparseEmbedding", inputs=["--input", "x=int64[3]:range=0..10"])
        self.assertIn("node embedding in words: aten::embedding has sparse=True, sparse gradients are not supported", error)

    def test_parameters_that_are_not_float32(self):
        self.assertIn("parameter first.weight is float64, trainable parameters must be float32; call model.float()",
                      self.refused("double", inputs=["--input", "x=float64[8]"]))

    def test_hooks_that_the_loss_would_lose(self):
        self.assertIn("the model, Linear, has hooks on the outermost module", self.refused("hooked"))


class Options(InFolder):
    def test_static_is_chosen_with_the_reason_where_the_batch_cannot_be_open(self):
        extra, said = self.exported(f"{HARD}:FixedShape", *VECTOR, "--loss", "cross_entropy")
        self.assertIn("the number of samples cannot be dynamic: the model uses the number of samples as a plain number", said)
        self.assertEqual((extra["batch_symbol"], extra["samples"]), (None, {"least": 3, "most": 3}))
        self.assertEqual(extra["inputs"][0], {"name": "x", "batch_axis": 0, "range": None})
        self.assertEqual(extra["inputs"][1], {"name": "target", "batch_axis": 0, "range": [0, 4]})

    def test_static_is_taken_when_asked(self):
        extra, _ = self.exported(f"{OWN}:Mlp", *VECTOR, "--loss", "mse", "--static", 5)
        self.assertEqual(extra["samples"], {"least": 5, "most": 5})

    def test_checks_of_values_are_left_out_with_what_only_they_compute(self):
        def nodes(kind):
            _, said = self.exported(f"{OWN}:ChecksValues", "--model-args", f"kind={kind}", *VECTOR, "--loss", "cross_entropy")
            loaded = torch.export.load(self.file)
            self.assertEqual(len(loaded.range_constraints), 1)  # the number of samples
            return [str(node.target) for node in loaded.graph.nodes if node.op == "call_function"], said

        layers = [f"aten.{name}.default" for name in ("linear", "relu", "linear", "cross_entropy_loss")]
        for kind, line in (("all", "torch._check_tensor_all(~mask)"), ("item", "torch._check((~mask).all().item())"),
                           ("number", "largest = x.abs().max().long().item()"), ("selected", "torch._check(x[mask].numel() == 0)")):
            with self.subTest(kind=kind):
                found, said = nodes(kind)
                self.assertEqual(found, layers)
                self.assertIn("checks of tensors' values are left out: ", said)
                self.assertIn(line_of("models.py", line), said)
        for kind in ("assert", "async"):
            with self.subTest(kind=kind):
                found, said = nodes(kind)
                self.assertEqual(found[-4:], layers)
                self.assertNotIn("left out", said)

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

    def test_an_example_does_not_decide_which_whole_numbers_may_come(self):
        def ranges(examples, *more):
            extra, _ = self.exported(f"{HARD}:Kinds", "--inputs", f"{HARD}:{examples}", "--loss", f"{HARD}:class_loss", *more)
            return {each["name"]: each["range"] for each in extra["inputs"]}

        # The embedding has thirty rows, the loss ten classes.
        self.assertEqual(ranges("few_examples"), {"tokens": [0, 30], "label": [0, 10]})
        self.assertEqual(ranges("few_examples", "--range", "label=-1..9"), {"tokens": [0, 30], "label": [-1, 9]})
        self.assertEqual(ranges("ignored_examples"), {"tokens": [0, 30], "label": [-100, 10]})
        self.assertEqual(ranges("kind_examples", "--range", "kind=0..12"), {"tokens": [0, 30], "label": [0, 10], "kind": [0, 12]})
        os.unlink(self.file)
        given = {"inputs": ["--inputs", f"{HARD}:kind_examples"], "loss": f"{HARD}:class_loss"}
        self.assertIn("--inputs: kind contains integers, 1 to 8 in the example, and its range is unknown; give "
                      "--range kind=LOW..HIGH (HIGH excluded), as in --range kind=1..9", self.refused("Kinds", **given))
        self.assertIn("--range kind=0..8: the example has 1 to 8, and HIGH is excluded",
                      self.refused("Kinds", "--range", "kind=0..8", **given))

    def test_nested_inputs_by_name_and_by_example(self):
        inputs = table.MODELS["nested_batch"].inputs
        names = ["batch_image", "batch_pair_0", "batch_pair_1", "batch_weights_hidden", "target"]
        for given in ([part for each in inputs for part in ("--input", each)],
                      ["--inputs", f"{HARD}:nested_examples", "--batch-axis", "batch.weights.hidden=none"]):
            extra, said = self.exported(f"{OWN}:NestedBatch", *given, "--loss", f"{OWN}:nested_loss")
            self.assertEqual([each["name"] for each in extra["inputs"]], names)
            self.assertEqual([each["batch_axis"] for each in extra["inputs"]], [0, 0, 0, None, 0])
            self.assertIn(f"inputs {', '.join(names)}", said)

    def test_inputs_that_never_meet_have_one_number_of_samples(self):
        extra, said = self.exported(f"{HARD}:TwoTowers", "--input", "left=float32[8]", "--input", "right=float32[8]", "--loss",
                                    "in-model")
        self.assertIn("1 to 65536 samples", said)
        self.assertIsNotNone(extra["batch_symbol"])

    def test_a_compiled_model_gives_the_archive_of_the_one_inside(self):
        def written(name):
            self.exported(f"{HARD}:{name}", *VECTOR, "--loss", "mse")
            loaded = torch.export.load(self.file)
            return [(node.name, str(node.target)) for node in loaded.graph.nodes], loaded.state_dict

        nodes, state = written("compiled")
        plain_nodes, plain_state = written("NotCompiledInside")
        self.assertEqual(nodes, plain_nodes)
        self.assertEqual(state.keys(), plain_state.keys())
        self.assertTrue(all(torch.equal(value, plain_state[name]) for name, value in state.items()))
        weights = os.path.join(self.folder, "state.pt")
        torch.save({key.replace("first.", "first._orig_mod."): value for key, value in plain_state.items()}, weights)
        self.exported(f"{HARD}:compiled", *VECTOR, "--loss", "mse", "--weights", weights)

    def test_arguments_and_weights(self):
        torch.manual_seed(3)
        state = models.Mlp(width=5).state_dict()
        weights = os.path.join(self.folder, "state.pt")
        torch.save(state, weights)
        self.exported(f"{OWN}:Mlp", "--model-args", "width=5", *VECTOR, "--loss", "mse", "--weights", weights)
        loaded = torch.export.load(self.file).state_dict
        self.assertTrue(all(torch.equal(loaded[name], value) for name, value in state.items()))
        folder = os.path.join(self.folder, "saved")
        os.mkdir(folder)
        shards = {f"module.{name}": f"{name[7]}.pt" for name in state}  # layers.0.weight is in 0.pt
        for shard in set(shards.values()):
            torch.save({f"module.{name}": value for name, value in state.items() if shards[f"module.{name}"] == shard},
                       os.path.join(folder, shard))
        with open(os.path.join(folder, "pytorch_model.bin.index.json"), "w", encoding="utf-8") as index:
            json.dump({"metadata": {}, "weight_map": shards}, index)
        self.exported(f"{OWN}:Mlp", "--model-args", "width=5", *VECTOR, "--loss", "mse", "--weights", folder)
        loaded = torch.export.load(self.file).state_dict
        self.assertTrue(all(torch.equal(loaded[name], value) for name, value in state.items()))
        status, _, error = run(f"{OWN}:Mlp", *VECTOR, "--loss", "mse", "--weights", weights, "-o", self.file)
        self.assertEqual(status, 1)
        self.assertIn(f"--weights {weights}: size mismatch for layers.0.weight", error)

    def test_a_model_in_evaluation_mode_is_set_to_training(self):
        _, said = self.exported(f"{HARD}:evaluating", "--input", "x=float32[8]", "--loss", "mse")
        self.assertIn("the whole model was in evaluation mode and is exported in training mode", said)

    def test_frozen_modules_are_counted(self):
        _, said = self.exported(f"{HARD}:TwoFrozen", *VECTOR, "--loss", "cross_entropy")
        self.assertIn("norms and 2 more modules stay in evaluation mode", said)

    def test_evaluation_mode_is_exported_where_it_is_asked_for(self):
        def trains():
            with zipfile.ZipFile(self.file) as archive:
                nodes = json_of(archive)["graph_module"]["graph"]["nodes"]
            return [each["arg"]["as_bool"] for node in nodes if "dropout" in node["target"] for each in node["inputs"] if each["name"] == "train"]

        model = [f"{OWN}:TiedDropout", "--input", "tokens=int64[6]:range=0..40", "--loss", "next_token"]
        extra, _ = self.exported(*model)
        self.assertEqual((extra["version"], extra.get("training"), trains()), (3, None, [True] * 4))
        os.unlink(self.file)
        extra, said = self.exported(*model, "--evaluation")
        self.assertEqual((extra["version"], extra["training"], trains()), (3, False, [False] * 4))
        self.assertNotIn("is exported in training mode", said)

    @unittest.skipUnless(table.MODELS["resnet18"].is_installed(), "needs torchvision")
    def test_one_sample_is_left_out_where_the_model_does_not_train_on_it(self):
        done = program.export(make.request("resnet18"))  # at 32 pixels its last BatchNorm sees one value per channel
        self.assertEqual((done.least, done.most), (2, 65536))

    def test_tied_parameters_are_told(self):
        extra, _ = self.exported(f"{OWN}:TiedDropout", "--input", "tokens=int64[6]:range=0..40", "--loss", "next_token")
        self.assertEqual(extra["tied"], [["embedding.weight", "output.weight"]])

    @unittest.skipUnless(table.MODELS["resnet18"].is_installed(), "needs torchvision")
    def test_torchvision_needs_nothing_but_the_name(self):
        extra, said = self.exported("torchvision:mobilenet_v3_small", "--model-args", "num_classes=3")
        self.assertEqual([each["name"] for each in extra["inputs"]], ["image", "target"])
        self.assertEqual(extra["inputs"][1]["range"], [0, 3])
        self.assertIn("1 to 65536 samples", said)

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
        self.assertIn('transformers:gpt2: unknown field "layers", did you mean n_layer? known are', error)


class Imports(InFolder):
    """Model files that import other files."""

    def setUp(self):
        super().setUp()
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.sources = folder.name
        known, path = set(sys.modules), list(sys.path)
        self.addCleanup(lambda: [sys.modules.pop(name) for name in set(sys.modules) - known if name.startswith("stagecraft_test_")])
        self.addCleanup(lambda: sys.path.__setitem__(slice(None), path))

    def write(self, name, text):
        file = os.path.join(self.sources, name)
        os.makedirs(os.path.dirname(file), exist_ok=True)
        with open(file, "w", encoding="utf-8") as out:
            out.write(text)
        return file

    NET = "import torch\nclass Net(torch.nn.Linear):\n    def __init__(self):\n        super().__init__(8, 4)\n"

    def test_a_file_finds_its_siblings(self):
        self.write("stagecraft_test_net.py", self.NET)
        file = self.write("stagecraft_test_model.py", "from stagecraft_test_net import Net\n"
                          "class Scores(dict): pass\n"
                          "class Build(Net):\n    def forward(self, x):\n        return Scores(scores=super().forward(x))\n"
                          "def loss(out):\n    assert isinstance(out, Scores)\n    return out['scores'].mean()\n")
        # MODEL and --loss name the same file: one module, and so one class Scores.
        self.exported(f"{file}:Build", *VECTOR, "--loss", f"{file}:loss")

    def test_a_file_with_relative_imports_belongs_to_its_package(self):
        self.write("stagecraft_test_pkg/__init__.py", "SIZE = 8\n")
        self.write("stagecraft_test_pkg/base.py", self.NET)
        self.write("stagecraft_test_pkg/inner/__init__.py", "")
        file = self.write("stagecraft_test_pkg/inner/model.py", "from .. import SIZE\nfrom ..base import Net\nassert SIZE == 8\n")
        self.exported(f"{file}:Net", *VECTOR, "--loss", "mse")
        self.write("stagecraft_test_loose/net.py", self.NET)  # without __init__.py
        file = self.write("stagecraft_test_loose/model.py", "from .net import Net\n")
        self.exported(f"{file}:Net", *VECTOR, "--loss", "mse")

    def test_what_a_file_lacks_is_told_with_its_line(self):
        file = self.write("stagecraft_test_broken.py", "import torch\nimport stagecraft_test_nowhere\n")
        status, _, error = run(f"{file}:Net", *VECTOR, "--loss", "mse", "-o", self.file)
        self.assertEqual((status, error), (1, f'stagecraft-export-model: MODEL "{file}:Net": cannot find module '
                                              f'stagecraft_test_nowhere at {file}:2 "import stagecraft_test_nowhere" [SC1101]\n'))


class RecurrentStates(unittest.TestCase):
    """In a program, the last states of recurrent layers have the same shapes as at run time."""

    class Net(torch.nn.Module):
        def __init__(self, kind, **options):
            super().__init__()
            self.words = torch.nn.Embedding(10, 6)
            self.layer = getattr(torch.nn, kind)(6, 5, **options)

        def forward(self, tokens):
            output, states = self.layer(self.words(tokens))
            return output, *(states if isinstance(states, tuple) else (states,))

    def test_shapes_and_strides(self):
        for kind, layers, bidirectional, first, projected in itertools.product(
                ("LSTM", "GRU", "RNN"), (1, 2), (False, True), (False, True), (0, 3)):
            if projected and kind != "LSTM":
                continue
            options = {"num_layers": layers, "bidirectional": bidirectional, "batch_first": first} | (
                {"proj_size": projected} if projected else {})
            with self.subTest(kind=kind, **options):
                model, tokens = self.Net(kind, **options), torch.zeros(3, 4, dtype=torch.int64)
                with prepare.right_states():
                    batch = torch.export.Dim("batch", min=1, max=64)
                    exported = torch.export.export(model, (tokens,), dynamic_shapes=({0 if first else 1: batch},))
                for node, value in zip(exported.graph.output_node().args[0], model(tokens)):
                    hint = lambda sizes: [size if isinstance(size, int) else size.node.hint for size in sizes]
                    self.assertEqual(hint(node.meta["val"].shape), list(value.shape))
                    self.assertEqual(hint(node.meta["val"].stride()), list(value.stride()))
                self.assertEqual(exported.module()(tokens[:1] if first else tokens[:, :1])[1].shape[1], 1)


@unittest.skipUnless(table.MODELS["gpt2"].is_installed(), "needs transformers")
class Heads(InFolder):
    BERT = ["num_hidden_layers=1", "hidden_size=16", "num_attention_heads=2", "intermediate_size=16", "vocab_size=30",
            "max_position_embeddings=12"]
    VIT = ["num_hidden_layers=1", "hidden_size=16", "num_attention_heads=2", "intermediate_size=16", "image_size=32"]

    def inputs_of(self, *arguments):
        extra, said = self.exported(*arguments)
        return {each["name"]: each["range"] for each in extra["inputs"]}, said

    def says(self, text, *arguments, status=1):
        found, _, error = run(*arguments, "-o", self.file)
        self.assertEqual(found, status, error)
        self.assertIn(text, error)
        self.assertFalse(os.path.exists(self.file))

    def test_names_are_those_of_the_classes(self):
        from exporter.transformers_models import head_name

        for auto, head in (("SequenceClassification", "sequence-classification"), ("CausalLM", "causal-lm"), ("CTC", "ctc"),
                           ("Seq2SeqLM", "seq2seq-lm"), ("SpeechSeq2Seq", "speech-seq2seq"), ("PreTraining", "pre-training")):
            self.assertEqual(head_name(f"AutoModelFor{auto}"), head)

    def test_labels_give_a_classifier(self):
        inputs, said = self.inputs_of("transformers:bert", "--model-args", *self.BERT, "num_labels=3")
        self.assertEqual(inputs, {"input_ids": [0, 30], "target": [0, 3]})
        self.assertIn("transformers:bert: building BertForSequenceClassification; --head selects another of causal-lm, masked-lm", said)
        self.assertIn("classifier.weight", torch.export.load(self.file).state_dict)

    def test_a_head_brings_its_inputs_and_loss(self):
        for head, wanted in (("token-classification", {"input_ids": [0, 30], "target": [0, 2]}),
                             ("AutoModelForMaskedLM", {"input_ids": [0, 30], "target": [0, 30]}),
                             ("BertForMultipleChoice", {"input_ids": [0, 30], "target": [0, 4]}),
                             ("question-answering", {"input_ids": [0, 30], "start_positions": [0, 12], "end_positions": [0, 12]})):
            with self.subTest(head=head):
                self.assertEqual(self.inputs_of("transformers:bert", "--model-args", *self.BERT, "--head", head)[0], wanted)

    def test_a_loss_over_classes_chooses_the_only_head(self):
        inputs, said = self.inputs_of("transformers:vit", "--model-args", *self.VIT, "--loss", "cross_entropy")
        self.assertEqual(inputs, {"pixel_values": None, "target": [0, 2]})
        self.assertIn("transformers:vit: building ViTForImageClassification", said)

    def test_an_encoder_and_decoder_learns_from_its_labels(self):
        inputs, said = self.inputs_of("transformers:t5", "--model-args", "num_layers=1", "d_model=16", "d_ff=16", "d_kv=8", "num_heads=2",
                                      "vocab_size=30")
        self.assertEqual(inputs, {"input_ids": [0, 30], "labels": [0, 30]})
        self.assertIn("transformers:t5: decoder_start_token_id is not set, using 0; --model-args decoder_start_token_id=N sets it", said)

    def test_a_configuration_file_names_its_class(self):
        file = os.path.join(self.folder, "config.json")
        with open(file, "w", encoding="utf-8") as config:
            json.dump({"model_type": "bert", "architectures": ["BertForTokenClassification"]}, config)
        self.assertEqual(self.inputs_of(f"transformers:{file}", "--model-args", *self.BERT)[0], {"input_ids": [0, 30], "target": [0, 2]})

    def test_hidden_states_are_not_taken_for_scores(self):
        self.says("--loss cross_entropy: BertModel has no head, its outputs are hidden states, not scores; --head selects one of "
                  "causal-lm, masked-lm,", "transformers:bert", "--model-args", *self.BERT, "--head", "none", "--loss", "cross_entropy")
        self.says("--loss cross_entropy: ViTModel has no head", f"{HARD}:without_head", "--input", "pixel_values=float32[3,32,32]",
                  "--loss", "cross_entropy")
        self.inputs_of("transformers:vit", "--model-args", *self.VIT, "--head", "none", "--loss", f"{HARD}:mean_of_first")

    def test_unknown_heads_and_fields_are_told(self):
        self.says("--head: transformers:vit has no head causal-lm, known are image-classification, masked-image-modeling, none",
                  "transformers:vit", "--model-args", *self.VIT, "--head", "causal-lm")
        self.says("--head causal-lm: only models of transformers, such as transformers:bert, have heads", "resnet18", "--head",
                  "causal-lm", status=2)
        self.says("transformers:segformer: has no default head; --head selects one of image-classification, "
                  "semantic-segmentation, none", "transformers:segformer", status=2)
        self.says('transformers:qwen3_moe: unknown field "haed_dim", known are', "transformers:qwen3_moe", "--model-args", "haed_dim=8")
        self.says('transformers:bert: unknown field "to_dict", known are', "transformers:bert", "--model-args", "to_dict=8")

    def test_mixtures_of_experts_need_operators_of_torch(self):
        small = [*self.BERT, "num_key_value_heads=2", "num_experts=4", "moe_intermediate_size=8", "num_experts_per_tok=2", "head_dim=8"]
        hint = ('set experts_implementation="batched_mm" in the model\'s configuration (--model-args '
                "experts_implementation=batched_mm), which uses only torch operators")
        self.says(hint, "transformers:qwen3_moe", "--model-args", *small, "experts_implementation=eager")
        _, said = self.inputs_of("transformers:qwen3_moe", "--model-args", *small)
        self.assertIn('qwen3_moe: experts_implementation is "batched_mm", because "grouped_mm" cannot be exported', said)

    def test_attention_is_as_in_a_normal_run(self):
        """With grouped keys, attention by a mask rounds differently, so the self-check would fail."""
        def attention(*more):
            self.inputs_of("transformers:llama", "--model-args", *self.BERT, "num_key_value_heads=1", *more)
            nodes = [node for node in torch.export.load(self.file).graph.nodes
                     if node.target is torch.ops.aten.scaled_dot_product_attention.default]
            self.assertEqual(len(nodes), 1)
            mask, _, is_causal = (*nodes[0].args[3:], None, None, None)[:3]
            return mask, is_causal, nodes[0].kwargs.get("enable_gqa", False)

        self.assertEqual(attention(), (None, True, True))
        # Positions that start anew say where a packed sequence begins, so they need a mask, in a normal run too.
        mask, is_causal, grouped = attention("--input", "input_ids=int64[12]:range=0..30", "--input",
                                            "position_ids=int64[12]:range=0..12")
        self.assertIsNotNone(mask)
        self.assertFalse(is_causal or grouped)

    def test_a_model_that_asks_whether_it_is_exported_computes_as_in_a_normal_run(self):
        small = [each for each in self.BERT if not each.startswith("max_")]
        self.inputs_of("transformers:qwen3_next", "--model-args", *small, "num_key_value_heads=2", "head_dim=8", "linear_num_value_heads=2",
                       "linear_num_key_heads=2", "linear_key_head_dim=8", "linear_value_head_dim=8", "num_experts=2",
                       "num_experts_per_tok=1", "moe_intermediate_size=8", "shared_expert_intermediate_size=8", "--input",
                       "input_ids=int64[16]")

    def test_fields_that_stand_in_the_way_are_named(self):
        self.says("set layerdrop to 0 in the model's configuration (--model-args layerdrop=0)", "transformers:opt", "--model-args",
                  "num_hidden_layers=1", "hidden_size=16", "ffn_dim=16", "num_attention_heads=2", "vocab_size=30",
                  "max_position_embeddings=12", "word_embed_proj_dim=16", "layerdrop=0.1")


class Messages(InFolder):
    def says(self, code, text, *arguments):
        """The message and its code, from which the exit status follows."""
        status, _, error = run(*arguments)
        self.assertEqual(status, 2 if code.startswith("SC10") else 1, error)
        self.assertIn(text, error)
        self.assertIn(f"[{code}]\n", error)
        self.assertNotIn("Traceback", error)
        self.assertFalse(os.path.exists(self.file))

    def test_codes_are_those_of_the_catalogue(self):
        with open(os.path.join(ROOT, "docs", "errors.md"), encoding="utf-8") as file:
            known = set(re.findall(r"^\| (SC\d{4}) \|", file.read(), re.MULTILINE))
        own = {each.code for each in [ExportError, *ExportError.__subclasses__()]} | {errors.UNEXPECTED}
        self.assertLessEqual(own | {code for _, code in export_model.Parser.CODES}, known)

    def test_usage(self):
        self.says("SC1003", "required: -o/--output", "resnet18")
        self.says("SC1005", "--output is model.onnx, must end in .pt2", "resnet18", "-o", "model.onnx")
        self.says("SC1005", "--static is 0, must be 1 or more", "resnet18", "-o", self.file, "--static", 0)
        for rate in ("nan", "inf", "-1"):
            self.says("SC1005", f"--learning-rate is {float(rate)}, must be a number of 0 or more", "resnet18", "-o", self.file,
                      "--learning-rate", rate)
        self.says("SC1004", "--input and --inputs are mutually exclusive", "a:b", "-o", self.file, *VECTOR, "--inputs", "a:b")
        self.says("SC1002", "unrecognized arguments: --inpt", "a:b", "-o", self.file, "--inpt", "x")
        self.says("SC1004", "--range goes with --inputs; --input has :range=LOW..HIGH", "a:b", "-o", self.file, *VECTOR, "--range", "x=0..4")

    def test_models(self):
        own = ["-o", self.file, *VECTOR, "--loss", "mse"]
        self.says("SC2002", f'MODEL {HARD}: unknown callable "Nothing", known are', f"{HARD}:Nothing", *own)
        self.says("SC1101", f'file {self.folder}/none.py does not exist', f"{self.folder}/none.py:build", *own)
        self.says("SC1101", "cannot find module nowhere", "nowhere:build", *own)
        self.says("SC1005", f"MODEL {HARD}: which model? Write {HARD}:NAME", HARD, *own)
        self.says("SC3001", f"{HARD}:not_a_model: returns dict, must return a torch.nn.Module", f"{HARD}:not_a_model", *own)
        self.says("SC2001", f"{OWN}:Mlp: building the model fails, TypeError:", f"{OWN}:Mlp", *own, "--model-args", "depth=2")
        self.says("SC1005", '--model-args "depth": must be key=value', f"{OWN}:Mlp", *own, "--model-args", "depth")
        large = ["torch.nn:Linear", "-o", self.file, "--input", "x=float32[2097152]", "--loss", "none", "--model-args",
                 "in_features=2097152", "out_features=2097152"]  # 16 TiB
        self.says("SC2001", "allocate memory: you tried to allocate 17592186044416 bytes", *large)
        self.says("SC2001", "; --structure exports shapes alone, which take no memory", *large)
        if table.MODELS["resnet18"].is_installed():
            self.says("SC2002", 'unknown torchvision model "resnet19", did you mean resnet18? known are', "resnet19", "-o", self.file)

    def test_inputs(self):
        def says(text, *inputs, code="SC1005"):
            self.says(code, text, f"{OWN}:Mlp", "-o", self.file, "--loss", "mse", *(part for each in inputs for part in ("--input", each)))

        says("the inputs are not known; give each as --input NAME=dtype[extent,...]", code="SC1003")
        with mock.patch("exporter.models.find_model", side_effect=AssertionError("the model is built first")):
            says("the inputs are not known", code="SC1003")
        says('--input "x": must be NAME=dtype[extent,...]', "x")
        says('unknown type "float23", did you mean float32? known are float32', "x=float23[8]")
        says('the shape "[8,]" must be positive integers', "x=float32[8,]")
        self.says("SC1005", "--input counts: the range of these integers is unknown, because they index neither an embedding nor "
                  "the classes of a loss; add it, as in :range=0..50257", f"{HARD}:Counts", "-o", self.file, "--loss", "none",
                  "--input", "counts=int64[8]")
        says('range is "5..5", must be LOW..HIGH', "x=int64[8]:range=5..5")
        says('batch_axis is "2", must be none or a number from 0 to 1', "x=float32[8]:batch_axis=2")
        says('"x-y" cannot be the name of an input, it must be a Python name', "x-y=float32[8]")
        says('"" in "x..y" must be a dict key, a field, or a list index', "x..y=float32[8]")
        says("--input: x.1 is missing, the keys of a list count from 0 without a gap", "x.0=float32[8]", "x.2=float32[8]")
        says("--input: x appears twice", "x.0=float32[8]", "x=float32[8]")
        says('unknown option "axis", known are batch_axis, range', "x=float32[8]:axis=1")
        says("forward has no parameter y, it has x", "x=float32[8]", "y=float32[8]", code="SC2001")
        says("x appears twice", "x=float32[8]", "x=float32[8]")
        says(os.path.join("tests", "models", line_of("models.py", "return self.layers(x)")) +
             ": RuntimeError: mat1 and mat2 shapes cannot be multiplied", "x=float32[9]", code="SC2001")
        says("running the model on x [3, 9] fails at ", "x=float32[9]", code="SC2001")
        says("; --input gives the shape of one sample, without the batch", "x=float32[3,8,9]", code="SC2001")

    def test_integers_take_the_range_of_what_they_index(self):
        extra, _ = self.exported(f"{OWN}:LstmLanguageModel", "--input", "tokens=int64[12]", "--loss", "next_token")
        self.assertEqual([each["range"] for each in extra["inputs"]], [[0, 50]])
        extra, _ = self.exported(f"{OWN}:TwoHeads", *VECTOR, "--input", "kind=int64[]", "--input", "place=float32[2]", "--loss",
                                 f"{OWN}:two_losses")
        self.assertEqual({each["name"]: each["range"] for each in extra["inputs"]}, {"x": None, "kind": [0, 4], "place": None})

    def test_examples(self):
        def says(text, *more):
            self.says("SC1005", text, f"{OWN}:NestedBatch", "-o", self.file, "--loss", "cross_entropy", "--inputs", f"{HARD}:nested_examples", *more)

        known = "batch.image, batch.pair.0, batch.pair.1, batch.weights.hidden, target"
        says(f'--range "kind=0..4": must be NAME=LOW..HIGH, NAME one of {known}', "--range", "kind=0..4")
        says(f'--batch-axis "batch=1": must be NAME=N or NAME=none, NAME one of {known}', "--batch-axis", "batch=1")
        says('--range "target=4": range is "4", must be LOW..HIGH', "--range", "target=4")
        self.says("SC2001", "--inputs: returns list, must return a dict", f"{OWN}:Mlp", "-o", self.file, "--loss", "mse", "--inputs", "builtins:list")

    def test_losses(self):
        def says(text, loss, *more, code="SC2001"):
            self.says(code, text, f"{OWN}:Mlp", "-o", self.file, *VECTOR, "--loss", loss, *more)

        says('unknown loss "hinge", known are cross_entropy, mse, next_token, bce, in-model, none, module:callable', "hinge", code="SC1005")
        says("--loss-output 2: the model returns 1 tensors", "mse", "--loss-output", "2")
        says("output 0 of the model is float32 [3, 4], but a loss is one floating-point number", "in-model")
        says("next_token: needs scores of three axes and one input of token numbers", "next_token")
        says('the loss needs an input "target", there are x', f"{HARD}:halved")
        says("the loss is [3, 4], must be one number", f"{HARD}:whole")
        says("target must have that shape without the axis of classes", "cross_entropy", "--input", "target=int64[3]:range=0..4")


class Writing(InFolder):
    def test_a_failure_leaves_the_old_file_and_nothing_else(self):
        with open(self.file, "w", encoding="utf-8") as file:
            file.write("old")
        with mock.patch("torch.export.save", side_effect=OSError(28, "no space left on device")):
            status, _, error = run(f"{OWN}:Mlp", *VECTOR, "--loss", "mse", "-o", self.file, "--force")
        self.assertEqual(status, 1)
        self.assertIn(f"{self.file}: cannot be written", error)
        self.assertEqual(os.listdir(self.folder), ["model.pt2"])
        with open(self.file, encoding="utf-8") as file:
            self.assertEqual(file.read(), "old")
        self.exported(f"{OWN}:Mlp", *VECTOR, "--loss", "mse", "--force")
        self.assertEqual(os.listdir(self.folder), ["model.pt2"])

    def test_it_replaces_no_file_that_it_did_not_write_or_reads(self):
        arguments = [f"{OWN}:Mlp", *VECTOR, "--loss", "mse", "-o", self.file]
        with open(self.file, "w", encoding="utf-8") as file:
            file.write("notes")
        # A state dict from torch.save is a ZIP archive too.
        weights, linked = os.path.join(self.folder, "w.pt2"), os.path.join(self.folder, "linked.pt2")
        torch.save({}, weights)
        os.link(weights, linked)
        with mock.patch.object(export_model, "request_of", side_effect=AssertionError("the work began")):
            for output, more, message in (
                    (self.file, [], f"{self.file}: is not an archive of export-model, so it is not replaced"),
                    (weights, [], f"{weights}: is not an archive of export-model"),
                    (linked, ["--weights", weights], f"{linked}: is also an input, as {weights}, so it is not replaced"),
                    (self.folder + "/new.pt2", ["--record", self.folder + "/none/r.safetensors"],
                     f"{self.folder}/none/r.safetensors: cannot be written, No such file or directory")):
                status, _, error = run(*arguments[:-1], output, *more)
                self.assertEqual((status, message in error), (1, True), error)
        self.assertEqual(sorted(os.listdir(self.folder)), ["linked.pt2", "model.pt2", "w.pt2"])
        self.exported(*arguments[:-2], "--force")
        self.exported(*arguments[:-2])  # replaces an older archive of the tool

    def test_a_folder_that_is_not_there_is_told(self):
        file = os.path.join(self.folder, "none", "model.pt2")
        status, _, error = run(f"{OWN}:Mlp", *VECTOR, "--loss", "mse", "-o", file)
        self.assertEqual((status, error), (1, f"stagecraft-export-model: {file}: cannot be written, No such file or directory [SC1102]\n"))

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
        self.assertEqual(parse_input("x=float[3]").dtype, torch.float32)
        self.assertEqual(parse_input("x=long[3]").dtype, torch.int64)


if __name__ == "__main__":
    quick_export.prepare()
    unittest.main()
