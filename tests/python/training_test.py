"""A torch.nn.Module and a DataLoader through profile, plan, run and evaluate. Usage: training_test.py BIN."""

import dataclasses
import json
import math
import os
import sys
import tempfile
import unittest
import unittest.mock

try:
    import torch
except ImportError:
    print("torch is not installed")
    sys.exit(77)

import stagecraft

from torch import nn
from torch.utils.data import DataLoader, TensorDataset

SAMPLES, BATCH, MICROBATCHES = 40, 8, 2
RATE = 0.1


def module():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(12, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 3))


def loader(batch=BATCH):
    generator = torch.Generator().manual_seed(1)
    features = torch.randn(SAMPLES + 3, 12, generator=generator)  # the last batch is not full
    return DataLoader(TensorDataset(features, features[:, :3].argmax(1)), batch_size=batch)


def trained(model, batches, epochs):
    """What PyTorch's own loop makes of the model, and its losses."""
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=RATE), []
    for _ in range(epochs):
        for features, target in batches:
            if len(target) < BATCH:
                continue
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(features), target)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return model.state_dict(), losses


class Training(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.graph = stagecraft.profile(module(), loader(), loss=nn.CrossEntropyLoss(), microbatch=BATCH // MICROBATCHES,
                                       max_seconds=2, concurrent=1, accept_untrusted=True)
        cls.topology = stagecraft.Topology.of([2], [1e9])
        cls.plan = stagecraft.plan(cls.graph, cls.topology, strategy="profile", stages=2, microbatches=MICROBATCHES,
                                   accept_untrusted=True)

    def test_profile(self):
        self.assertEqual(self.graph.microbatch_samples, BATCH // MICROBATCHES)
        # 12 * 16 + 16, 16 * 16 + 16 and 16 * 3 + 3 floats.
        self.assertEqual(self.graph.parameter_bytes, 4 * (208 + 272 + 51))
        self.assertTrue(all(layer.forward.median_s > 0 for layer in self.graph.layers if layer.kind == "Linear"))
        self.assertEqual(self.plan.step_samples, BATCH)
        self.assertEqual(self.plan.ranks, 2)

    def test_run_trains_as_python_does(self):
        model, seen = module(), []
        prediction = stagecraft.predict(self.graph, self.topology, self.plan, accept_untrusted=True)
        run = stagecraft.run(self.plan, model, loader(), epochs=2, loss=nn.CrossEntropyLoss(), learning_rate=RATE,
                             prediction=prediction, on_metrics=seen.append)
        for name, tensor in module().state_dict().items():
            self.assertTrue(torch.equal(model.state_dict()[name], tensor), "the module given has changed")
        wanted, losses = trained(module(), loader(), 2)
        model.load_state_dict(run.state_dict, strict=True)
        for name, tensor in wanted.items():
            torch.testing.assert_close(model.state_dict()[name], tensor)
        self.assertEqual([line["step"] for line in run.metrics], list(range(1, 2 * SAMPLES // BATCH + 1)))
        self.assertEqual(seen, run.metrics)
        torch.testing.assert_close(torch.tensor(run.measurement.losses), torch.tensor(losses))
        self.assertEqual(run.comparison.step_s.predicted, prediction.iteration_s)
        self.assertIn("predicted", run._repr_html_())

    def test_resumed_run_trains_as_an_uninterrupted_one(self):
        options = {"loss": "cross_entropy", "learning_rate": RATE, "momentum": 0.9}
        whole = stagecraft.run(self.plan, module(), loader(), steps=7, **options)
        with tempfile.TemporaryDirectory() as folder:
            saved = os.path.join(folder, "saved")
            first = stagecraft.run(self.plan, module(), loader(), steps=3, checkpoint=saved, resume=True, **options)
            self.assertEqual(sorted(os.listdir(saved)), ["module", "step-3"])
            with self.assertRaises(stagecraft.InputError) as caught:
                stagecraft.run(self.plan, module(), loader(), steps=7, checkpoint=saved, **options)
            self.assertIn(f"{saved}/step-3 already exists; continue from it with resume=True", str(caught.exception))

            other = module()  # whose weights do not matter any more
            with torch.no_grad():
                for parameter in other.parameters():
                    parameter.fill_(0.5)
            rest = stagecraft.run(self.plan, other, loader(), steps=7, checkpoint=saved, resume=True, **options)
            self.assertIn(f"resuming from {saved}/step-3", rest.log)
            self.assertEqual([line["step"] for line in rest.metrics], [4, 5, 6, 7])
            self.assertEqual(first.measurement.losses + rest.measurement.losses, whole.measurement.losses)
            self.assertEqual(list(rest.state_dict), list(whole.state_dict))
            for name, tensor in whole.state_dict.items():
                self.assertTrue(torch.equal(rest.state_dict[name], tensor), name)
                self.assertFalse(torch.equal(first.state_dict[name], tensor), name)

            # Nothing is left of the data, and the archive is the one that the checkpoints name.
            self.assertEqual(os.listdir(os.path.join(saved, "module")), ["Sequential.pt2"])
            again = stagecraft.run(self.plan, module(), loader(), steps=7, checkpoint=saved, resume=True,
                                   prediction=stagecraft.predict(self.graph, self.topology, self.plan, accept_untrusted=True),
                                   **options)
            self.assertEqual((again.measurement, again.comparison, again.metrics), (None, None, []))
            self.assertIn("nothing to do", again.log)
            self.assertIn("Run(", again._repr_html_())
            for name, tensor in whole.state_dict.items():
                self.assertTrue(torch.equal(again.state_dict[name], tensor), name)
            with self.assertRaises(stagecraft.ProgramError) as caught:
                stagecraft.run(self.plan, module(), loader(), steps=9, checkpoint=saved, resume=True, seed=5, **options)
            self.assertIn("/seed: found 1, this run has 5", str(caught.exception))

    def test_run_that_an_exception_ended_resumes(self):
        class Stop(Exception):
            pass

        def stop(line):
            raise Stop

        options = {"loss": "cross_entropy", "learning_rate": 0.01, "momentum": 0.5}
        many = 10_000  # more than a busy machine trains before the signal arrives
        with tempfile.TemporaryDirectory() as folder:
            with self.assertRaises(Stop):
                stagecraft.run(self.plan, module(), loader(), steps=many, checkpoint=folder, on_metrics=stop, **options)
            done = max(int(name.removeprefix("step-")) for name in os.listdir(folder) if name.startswith("step-"))
            self.assertTrue(0 < done < many, done)  # nobody knows where the signal found it
            steps = done + 20
            rest = stagecraft.run(self.plan, module(), loader(), steps=steps, checkpoint=folder, resume=True, **options)
        whole = stagecraft.run(self.plan, module(), loader(), steps=steps, **options)
        self.assertEqual([line["step"] for line in rest.metrics], list(range(done + 1, steps + 1)))
        self.assertEqual(rest.measurement.losses, whole.measurement.losses[done:])
        for name, tensor in whole.state_dict.items():
            self.assertTrue(torch.equal(rest.state_dict[name], tensor), name)

    def test_resume_needs_a_folder(self):
        with self.assertRaises(stagecraft.InputError) as caught:
            stagecraft.run(self.plan, module(), loader(), loss="cross_entropy", resume=True)
        self.assertIn("resume: needs checkpoint", str(caught.exception))

    def test_evaluate(self):
        model = module()
        found = stagecraft.evaluate(model, loader(), loss="cross_entropy", microbatch=1)
        self.assertTrue(model.training)
        features, target = loader().dataset.tensors
        with torch.no_grad():
            scores = model(features)
        self.assertEqual(found.samples, SAMPLES + 3)
        self.assertAlmostEqual(found.loss, nn.functional.cross_entropy(scores, target).item(), places=5)
        self.assertAlmostEqual(found.accuracy, (scores.argmax(1) == target).double().mean().item())

    def test_wrong_batches(self):
        for batch in (5, SAMPLES):
            with self.assertRaises(stagecraft.InputError) as caught:
                stagecraft.run(self.plan, module(), loader(batch), loss="cross_entropy")
            self.assertIn(f"a step of the plan has {BATCH}; give the DataLoader batch_size={BATCH}", str(caught.exception))
        with self.assertRaises(stagecraft.InputError) as caught:
            stagecraft.profile(module(), loader())
        self.assertIn("loss: give cross_entropy", str(caught.exception))

    def test_structure_without_weights(self):
        def structure(model):
            graph = stagecraft.profile(model, loader(), loss="cross_entropy", structure=True)
            return {key: value for key, value in json.loads(graph.to_json()).items() if key != "provenance"}

        with torch.device("meta"):
            model = module()
        self.assertEqual(structure(model), structure(module()))
        counted = stagecraft.profile(model, loader(), loss="cross_entropy", structure=True)
        estimated = stagecraft.estimate(counted, "H100-SXM", math="tf32")
        plan = stagecraft.plan(estimated, stagecraft.Topology.of([4], [1e11]), microbatches=4, accept_other_device=True)
        self.assertGreater(plan.iteration_s, 0)
        with self.assertRaises(stagecraft.ProgramError) as caught:
            stagecraft.estimate(counted, "H100-SMX")
        self.assertIn("H100-SXM", str(caught.exception))
        with self.assertRaises(stagecraft.ProgramError) as caught:
            stagecraft.profile(model, loader(), loss="cross_entropy")
        self.assertIn("has shapes but no weights", str(caught.exception))

    def test_modules_that_cannot_be_exported(self):
        class Branches(nn.Linear):
            def forward(self, features):
                out = super().forward(features)
                return out if out.sum() > 0 else -out

        with self.assertRaises(stagecraft.InputError) as caught:
            stagecraft.profile(Branches(12, 3), loader(), loss="cross_entropy")
        self.assertEqual(caught.exception.code, "SC3002")
        self.assertIn("this branch depends on the values of a tensor", str(caught.exception))
        self.assertNotIn("SC3002", str(caught.exception))

    def test_a_wrong_run_is_told_by_its_verdict(self):
        # What run writes with --check: a note may follow, and the starting process says which rank ended.
        verdict = "compared with a single process: 9 gradient values and 2 losses, 9 values and 2 losses differ (WRONG)"
        for after in ("", "note: the comparison made the steps longer\n", "stagecraft: rank 0 ended with status 1\n"):
            message = stagecraft._programs._message("stagecraft-run", 1, f"step 1/1 loss 1.0\n{verdict}\n{after}")
            self.assertEqual(message, verdict)

    def test_programs_that_fail_or_are_missing(self):
        with self.assertRaises(stagecraft.ProgramError) as caught:
            stagecraft.profile("no_such.pt2")
        self.assertEqual(caught.exception.program, "stagecraft-profile")
        self.assertNotEqual(caught.exception.status, 0)
        self.assertIn("no_such.pt2", str(caught.exception))
        self.assertIn(str(caught.exception), caught.exception.log)
        with self.assertRaises(stagecraft.ProgramError) as caught:
            stagecraft.profile("mlp", magic=1)
        self.assertEqual(caught.exception.status, 2)
        path = os.environ["PATH"]
        try:
            with tempfile.TemporaryDirectory() as folder:
                os.environ["PATH"] = folder
                with unittest.mock.patch("stagecraft._programs._places", lambda: [folder]), \
                        self.assertRaises(stagecraft.MissingProgramError) as caught:
                    stagecraft.profile("mlp")
                self.assertIn("run scripts/setup", str(caught.exception))
        finally:
            os.environ["PATH"] = path


class Root(nn.Linear):
    """Uses the number of samples as a plain number, so that torch.export fixes it."""

    def forward(self, features):
        return super().forward(features) / math.sqrt(features.shape[0])


class TimeMajor(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.layer, self.head = nn.Embedding(11, 8), nn.GRU(8, 8), nn.Linear(8, 3)

    def forward(self, tokens):
        return self.head(self.layer(self.embedding(tokens))[0][-1])


@dataclasses.dataclass
class Batch:
    features: torch.Tensor
    mask: torch.Tensor


class Batches(unittest.TestCase):
    def test_a_fixed_number_of_samples_is_that_of_a_microbatch(self):
        for microbatch, samples in ((4, 4), (None, BATCH)):
            graph = stagecraft.profile(Root(12, 3), loader(), loss="cross_entropy", microbatch=microbatch, structure=True)
            self.assertEqual(graph.microbatch_samples, samples)

    def test_samples_may_be_on_another_axis(self):
        tokens = torch.arange(7 * BATCH).reshape(7, BATCH) % 11
        batch, axes = (tokens, tokens[0] % 3), {"tokens": 1}
        torch.manual_seed(0)
        model = TimeMajor()
        graph = stagecraft.profile(model, batch, loss="cross_entropy", batch_axes=axes, microbatch=BATCH, structure=True)
        self.assertEqual(graph.microbatch_samples, BATCH)
        found = stagecraft.evaluate(model, [batch, batch], loss="cross_entropy", batch_axes=axes)
        self.assertEqual(found.samples, 2 * BATCH)
        wanted = nn.functional.cross_entropy(model(tokens), batch[1]).item()
        self.assertAlmostEqual(found.loss, wanted, places=5)
        with self.assertRaises(stagecraft.InputError) as caught:
            stagecraft.profile(model, batch, loss="cross_entropy", batch_axes={"token": 1})
        self.assertIn('batch_axes "token=1": must be NAME=N', str(caught.exception))

    def test_labels_to_be_ignored_need_a_range(self):
        features, target = next(iter(loader()))
        later = target.clone()
        later[0] = -100
        with self.assertRaises(stagecraft.InputError) as caught:
            stagecraft.evaluate(module(), [(features, target), (features, later)], loss="cross_entropy")
        self.assertEqual(str(caught.exception), "data: target has -100, the first batch and the model allow 0 to 2; if the loss ignores "
                                                "such labels, or the model takes them, give ranges={'target': (-100, 3)}")

    def test_dataclasses_have_the_arguments_as_fields(self):
        class Model(nn.Linear):
            def forward(self, features, mask):
                return (super().forward(features) * mask).pow(2).mean()

        with tempfile.TemporaryDirectory() as folder:
            stagecraft.export(Model(12, 3), Batch(torch.randn(4, 12), torch.ones(4, 3)), os.path.join(folder, "model.pt2"))

        class Whole(nn.Linear):
            def forward(self, batch):
                return (super().forward(batch.features) * batch.mask).pow(2).mean()

        with tempfile.TemporaryDirectory() as folder:
            stagecraft.export(Whole(12, 3), Batch(torch.randn(4, 12), torch.ones(4, 3)), os.path.join(folder, "model.pt2"))

    def test_dict_of_arguments_with_the_loss_in_the_model(self):
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.embedding, self.head = nn.Embedding(11, 8), nn.Linear(8, 11)

            def forward(self, tokens, labels):
                scores = self.head(self.embedding(tokens))
                return {"loss": nn.functional.cross_entropy(scores.flatten(0, 1), labels.flatten()), "scores": scores}

        tokens = torch.arange(24).reshape(4, 6) % 11
        with tempfile.TemporaryDirectory() as folder:
            stagecraft.export(Model(), {"tokens": tokens, "labels": tokens}, os.path.join(folder, "model.pt2"))
            self.assertGreater(os.path.getsize(os.path.join(folder, "model.pt2")), 1000)


if __name__ == "__main__":
    os.environ["STAGECRAFT_BIN"] = sys.argv.pop(1)
    unittest.main()
