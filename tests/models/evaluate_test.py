#!/usr/bin/env python3
"""evaluate_test.py BIN [TEST...]: evaluates archives of torch.export and of TorchScript, in one stage and in several,
and compares the loss with Python's after model.eval(). Models whose file does not determine how they evaluate are
refused, with a remedy. The models are trained in Python first, so that their running statistics differ from the
initial ones."""

import contextlib
import copy
import io
import json
import os
import re
import subprocess
import sys
import tempfile
import unittest
import warnings

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "..", "..", "scripts")]
try:
    import torch
except ImportError:
    print("this Python has no torch")
    sys.exit(77)

import make
import make_script
import mode_models
import models
from exporter import record
from exporter.inputs import draw_all, parse_input
from exporter.program import Request, export, save
from exporter.record import save_record
from script_models import ControlFlow, SmallCnn, WithLoss, WithNextTokenLoss
from train_test import described

SAMPLES, COUNT = 2, 7  # samples per microbatch, microbatches in the data
VECTOR = ("x=float32[8]", "target=int64[]:range=0..4")
IMAGE = ("image=float32[3,8,8]", "target=int64[]:range=0..4")
X_IMAGE = ("x=float32[3,8,8]", "target=int64[]:range=0..4")
TOKENS = ("tokens=int64[12]:range=0..50", "target=int64[12]:range=0..50")
X_TOKENS = ("x=int64[12]:range=0..50", "target=int64[12]:range=0..50")

BINARIES = None


def call(*command):
    done = subprocess.run(command, capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


class NextToken(torch.nn.Module):
    """A language model with the classes of its scores on axis 1."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, tokens):
        return self.model(tokens).transpose(1, 2)


class InFolder(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        torch.manual_seed(3)
        torch.set_num_threads(1)
        # Attention has a fast path only in evaluation, and it rounds differently; archives do not contain it.
        fast = torch.backends.mha.get_fastpath_enabled()
        torch.backends.mha.set_fastpath_enabled(False)
        self.addCleanup(torch.backends.mha.set_fastpath_enabled, fast)

    def path(self, name):
        return os.path.join(self.folder, name)

    def trained(self, build, texts):
        """A model that returns its loss, after some forwards in training mode; its inputs, and data for them."""
        torch.manual_seed(3)
        model = build().train()
        inputs = tuple(map(parse_input, texts))
        for turn in range(5):
            with torch.no_grad():
                model(*draw_all(inputs, 4, 20 + turn))
        return model, inputs, draw_all(inputs, SAMPLES * COUNT, 5)

    def losses(self, model, inputs, data):
        out = []
        for first in range(0, SAMPLES * COUNT, SAMPLES):
            out.append(model(*(tensor.narrow(each.batch_axis, first, SAMPLES) for each, tensor in zip(inputs, data))).item())
        return out

    def expected(self, model, inputs, data):
        """The loss in Python after eval(), which differs from that in training mode."""
        loss = sum(self.losses(copy.deepcopy(model).eval(), inputs, data)) / COUNT
        training = sum(self.losses(copy.deepcopy(model).train(), inputs, data)) / COUNT
        self.assertGreater(abs(loss - training), 1e-4 * loss)
        return loss

    def write_data(self, inputs, data):
        save_record(self.path("data.safetensors"), dict(zip((each.name for each in inputs), data)),
                    record.Training(1, COUNT, SAMPLES, 0.1, 0))

    def export(self, model, inputs, evaluation):
        eager = copy.deepcopy(model)
        request = Request(eager.model, "model", inputs, "cross_entropy", evaluation=evaluation)
        with contextlib.redirect_stderr(io.StringIO()):
            save(export(request), self.path("model.pt2"))
        return self.path("model.pt2"), ()

    def script(self, model, inputs, texts, traced):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = copy.deepcopy(model)
            # Tracing runs the model and updates its running statistics.
            state = copy.deepcopy(model.state_dict())
            module = torch.jit.trace(model, tuple(draw_all(inputs, 3, 1)), check_trace=False) if traced else torch.jit.script(model)
            module.load_state_dict(state)
            make_script.save_without_places(module, self.path("model.pt"))
        return self.path("model.pt"), tuple(described(texts))

    def profiled(self, file, options):
        status, said = call(f"{BINARIES}/stagecraft-profile", file, *options, "--microbatch", str(SAMPLES), *make.QUICKLY,
                            "-o", self.path("graph.json"))
        self.assertEqual(status, 0, said)
        with open(self.path("graph.json"), encoding="utf-8") as graph:
            return sum(layer["kind"] != "Input" for layer in json.load(graph)["layers"])

    def evaluated(self, stages, channel=("local",)):
        """(status, output) of an evaluation in that many stages."""
        plan = self.path("plan.json")
        status, said = call(f"{BINARIES}/stagecraft-plan", self.path("graph.json"), "--accept-untrusted", "-n", str(stages), "--strategy", "uniform", "--stages",
                            str(stages), "--microbatches", "3", "--schedule", "forward", "-o", plan)
        self.assertEqual(status, 0, said)
        return call(f"{BINARIES}/stagecraft-run", plan, "--data", f"tensors-in-order:{self.path('data.safetensors')}", "--channel", *channel,
                    "-o", self.path("measured.json"))

    def check(self, file, options, expected):
        layers = self.profiled(file, options)
        for stages in sorted({min(count, layers) for count in (1, 2, 3)}):
            for channel in (("local",), ("gloo", "--spawn")) if stages == 2 else (("local",),):
                status, said = self.evaluated(stages, channel)
                self.assertEqual(status, 0, said)
                found = re.search(r"loss ([0-9.e+-]+) over ([0-9]+) of 14 samples", said)
                self.assertIsNotNone(found, said)
                self.assertEqual(int(found[2]), SAMPLES * COUNT)
                # The output has six digits.
                self.assertAlmostEqual(float(found[1]) / expected, 1, delta=6e-6, msg=f"{stages} stages")

    def exported_as_python(self, build, texts, evaluation=False):
        model, inputs, data = self.trained(lambda: WithLoss(build()), texts)
        expected = self.expected(model, inputs, data)
        self.write_data(inputs, data)
        self.check(*self.export(model, inputs, evaluation), expected)

    def scripted_as_python(self, build, texts, traced):
        model, inputs, data = self.trained(build, texts)
        expected = self.expected(model, inputs, data)
        self.write_data(inputs, data)
        file = self.script(model, inputs, texts, traced)
        if not traced:
            # Evaluating the file in Python gives the same loss.
            self.assertAlmostEqual(sum(self.losses(torch.jit.load(file[0]).eval(), inputs, data)) / COUNT, expected, delta=1e-6)
        self.check(*file, expected)


class Exported(InFolder):
    def test_every_module_with_a_mode(self):
        self.exported_as_python(mode_models.Modes, VECTOR)

    def test_batch_norm_and_dropout(self):
        self.exported_as_python(mode_models.NormAndDropout, VECTOR)

    def test_residual_blocks(self):
        self.exported_as_python(SmallCnn, X_IMAGE)

    def test_a_batch_norm_called_twice(self):
        self.exported_as_python(models.SharedBatchNorm, IMAGE)

    def test_activations_in_place(self):
        self.exported_as_python(models.InPlaceActivations, IMAGE)

    def test_a_transformer(self):
        self.exported_as_python(lambda: NextToken(models.DecoderTransformer(50, 16, 3, 4, 32, 0.3)), TOKENS)

    def test_an_lstm_with_dropout(self):
        self.exported_as_python(lambda: NextToken(models.LstmLanguageModel(dropout=0.5)), TOKENS)

    def test_an_archive_in_evaluation_mode(self):
        for build in (mode_models.BranchesOnMode, mode_models.NoiseInTraining, mode_models.StatisticsInTraining):
            self.exported_as_python(build, VECTOR, evaluation=True)

    def test_dropout_that_evaluation_does_not_switch_off(self):
        model, inputs, data = self.trained(lambda: WithLoss(mode_models.AlwaysDrops()), VECTOR)
        self.write_data(inputs, data)
        self.profiled(*self.export(model, inputs, True))
        status, said = self.evaluated(1)
        self.assertEqual(status, 0, said)
        model.eval()
        drawn = [sum(self.losses(model, inputs, data)) / COUNT for _ in range(50)]
        hidden = model.model.body(data[0])
        without = torch.nn.functional.cross_entropy(model.model.head(hidden), data[1]).item()
        found = float(re.search(r"loss ([0-9.e+-]+) over", said)[1])
        spread = max(drawn) - min(drawn)
        self.assertTrue(min(drawn) - spread <= found <= max(drawn) + spread, (found, min(drawn), max(drawn)))
        self.assertNotAlmostEqual(found, without, places=4)


class Scripts(InFolder):
    def test_traced(self):
        self.scripted_as_python(lambda: WithLoss(mode_models.NormAndDropout()), VECTOR, True)
        self.scripted_as_python(lambda: WithLoss(SmallCnn()), X_IMAGE, True)

    def test_scripted(self):
        self.scripted_as_python(lambda: WithLoss(mode_models.NormAndDropout()), VECTOR, False)
        self.scripted_as_python(lambda: WithLoss(mode_models.BranchesOnMode()), VECTOR, False)

    def test_scripted_with_control_flow(self):
        self.scripted_as_python(lambda: WithLoss(ControlFlow()), VECTOR, False)

    def test_a_batch_norm_called_twice(self):
        for traced in (True, False):
            self.scripted_as_python(lambda: WithLoss(models.SharedBatchNorm()), X_IMAGE, traced)

    def test_a_transformer(self):
        for traced in (True, False):
            self.scripted_as_python(lambda: WithNextTokenLoss(models.DecoderTransformer(50, 16, 2, 4, 32, 0.3)), X_TOKENS, traced)


class Refused(InFolder):
    def refused(self, file, options, *texts):
        self.profiled(file, options)
        status, said = self.evaluated(2)
        self.assertEqual(status, 1, said)
        for text in texts:
            self.assertIn(text, said)

    def exported(self, build, evaluation=False):
        model, inputs, data = self.trained(lambda: WithLoss(build()), VECTOR)
        self.write_data(inputs, data)
        return self.export(model, inputs, evaluation)

    def test_what_evaluation_does_not_switch_off_or_does_besides(self):
        for build in (mode_models.AlwaysDrops, mode_models.Doubles):
            self.refused(*self.exported(build), "in evaluation mode the model computes something else than with dropout off and running "
                         "statistics; export it in evaluation mode: stagecraft export-model --evaluation")

    def test_noise_of_training(self):
        self.refused(*self.exported(mode_models.NoiseInTraining), 'node "randn_like" (torch.ops.aten.randn_like.default)',
                     "draws random numbers, and the file does not say whether it does so in evaluation; export it in evaluation "
                     "mode: stagecraft export-model --evaluation")

    def test_statistics_of_training(self):
        self.refused(*self.exported(mode_models.StatisticsInTraining), 'node "mul_" (torch.ops.aten.mul_.Tensor)',
                     'changes buffer "mean", on which the loss depends, and the file does not say',
                     "stagecraft export-model --evaluation")

    def test_statistics_that_evaluation_changes(self):
        self.refused(*self.exported(models.RunningMean, evaluation=True), 'changes buffer "mean", on which the loss depends, also in '
                     "evaluation; change it only in training")

    def test_noise_in_a_trace(self):
        model, inputs, data = self.trained(lambda: WithLoss(mode_models.NoiseInTraining()), VECTOR)
        self.write_data(inputs, data)
        self.refused(*self.script(model, inputs, VECTOR, True), "(torch.ops.aten.randn_like.default)", "draws random numbers",
                     "trace or script it after model.eval()")


if __name__ == "__main__":
    BINARIES = sys.argv.pop(1)
    unittest.main()
