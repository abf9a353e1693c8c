"""Modules trained in stages, and by PyTorch's own loop on the same microbatches. Usage: exactness_test.py BIN."""

import copy
import os
import sys
import tempfile
import unittest

try:
    import torch
except ImportError:
    print("torch is not installed")
    sys.exit(77)

import stagecraft

from torch import nn
from torch.nn import functional
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

MICROBATCHES, RATE = 4, 0.1


class Stack(nn.Module):
    """Three blocks of a kind between two linear layers."""

    def __init__(self, kind):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.blocks, self.head = nn.Linear(6, 8), nn.ModuleList(kind(8) for _ in range(3)), nn.Linear(8, 3)

    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Normalised(nn.Module):
    """By a mean that each forward moves before it reads it."""

    persistent = True

    def __init__(self, width):
        super().__init__()
        self.register_buffer("mean", torch.zeros(width), persistent=self.persistent)
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, x):
        with torch.no_grad():
            self.mean.mul_(0.5).add_(x.detach().mean(0), alpha=0.5)
        return (x - self.mean).tanh() * self.scale


class HiddenMean(Normalised):
    persistent = False


class Spectral(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.line = nn.utils.parametrizations.spectral_norm(nn.Linear(width, width))

    def forward(self, x):
        return x + self.line(x).tanh()


class Turned(nn.Module):
    """Multiplies by a complex buffer, and passes complex numbers on."""

    def __init__(self, width):
        super().__init__()
        self.line = nn.Linear(width, width)
        self.register_buffer("turns", torch.polar(torch.ones(width // 2), torch.arange(width // 2) * 0.3), persistent=False)

    def forward(self, x):
        x = x if x.is_complex() else torch.view_as_complex(x.unflatten(-1, (-1, 2)))
        return torch.view_as_complex(self.line(torch.view_as_real(x * self.turns).flatten(-2)).unflatten(-1, (-1, 2))).conj()


class Complex(Stack):
    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return self.head(torch.view_as_real(x.resolve_conj()).flatten(-2))


class Partly(nn.Module):
    """Parameters that the loss does not reach: not read, read for another output, read only through detach() in a later block."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.head = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 3)
        self.never, self.pooler, self.aside = nn.Parameter(torch.ones(4)), nn.Linear(8, 8), nn.Linear(6, 8)

    def forward(self, x):
        aside = self.aside(x)
        hidden = self.second(self.first(x).relu()).relu()
        return self.head(hidden + aside.detach().relu()), self.pooler(hidden)


class Versioned(nn.Linear):
    def get_extra_state(self):
        return {"version": 3}

    def set_extra_state(self, state):
        self.version = state["version"]


def batches(count=4):
    generator = torch.Generator().manual_seed(1)
    return [(torch.randn(16, 6, generator=generator), torch.randint(0, 3, (16,), generator=generator)) for _ in range(count)]


def first_of(output):
    return output[0] if isinstance(output, tuple) else output


def plain(module, given, make=lambda model: torch.optim.SGD(model.parameters(), lr=RATE)):
    """What PyTorch makes of a copy: the mean gradient of equal microbatches."""
    model = copy.deepcopy(module).train()
    optimizer = make(model)
    for x, y in given:
        optimizer.zero_grad()
        for part, target in zip(x.chunk(MICROBATCHES), y.chunk(MICROBATCHES)):
            (functional.cross_entropy(first_of(model(part)), target) / MICROBATCHES).backward()
        optimizer.step()
    return model.state_dict()


class Exactness(unittest.TestCase):
    def planned(self, module, schedule="1f1b", stages=2, **plan):
        graph = stagecraft.profile(module, batches()[0], loss="cross_entropy", microbatch=16 // MICROBATCHES, max_seconds=0.05, warmup=0,
                                   concurrent=1, threads=1, accept_untrusted=True)
        ranks = sum(plan.get("replicas", [1] * stages))
        return stagecraft.plan(graph, stagecraft.Topology.of([ranks], [1e9]), strategy="uniform", stages=stages, schedule=schedule,
                               microbatches=MICROBATCHES, accept_untrusted=True, **plan)

    def trained(self, module, plan, **options):
        options = dict(learning_rate=RATE, channel="local", threads=1) | options
        return stagecraft.run(plan, module, options.pop("data", batches()), loss="cross_entropy", **options)

    def same(self, found, wanted, exactly=True):
        self.assertEqual(set(found), set(wanted))
        for name, tensor in wanted.items():
            torch.testing.assert_close(found[name], tensor, **(dict(rtol=0, atol=0) if exactly else {}), msg=name)

    def test_recomputation_reads_the_buffers_of_its_forward(self):
        for kind in (Normalised, Spectral):
            module = Stack(kind)
            for schedule, plan in (("1f1b", {"recompute": True}), ("gpipe", {"recompute": True, "recompute_every": 1}),
                                   ("zb-h1", {"recompute": True})):
                with self.subTest(kind=kind.__name__, schedule=schedule):
                    self.same(self.trained(module, self.planned(module, schedule, **plan), check=True).state_dict,
                              plain(module, batches()))

    def test_parameters_without_a_gradient_do_not_decay(self):
        module = Partly()
        wanted = plain(module, batches(), lambda model: torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.5))
        for name in ("never", "pooler.weight", "aside.bias"):
            self.assertTrue(torch.equal(wanted[name], module.state_dict()[name]))
        for plan in ({}, {"replicas": [2, 2]}, {"replicas": [1, 2], "gradient_bucket_bytes": 64}):
            with self.subTest(plan=plan):
                run = self.trained(module, self.planned(module, **plan), optimizer="adamw", learning_rate=0.01, weight_decay=0.5,
                                   check=True)
                self.assertNotIn("WRONG", run.log)
                self.same(run.state_dict, wanted, exactly=False)
                for name in ("never", "pooler.weight", "aside.bias"):
                    self.assertTrue(torch.equal(run.state_dict[name], wanted[name]), name)

    def test_groups_of_parameters_and_moving_averages(self):
        module, decay = Stack(lambda width: nn.Sequential(nn.Linear(width, width), nn.Tanh())), 0.75
        averages = []

        def make(model, kind, **options):
            """A group for biases, one for the first layer with another rate, and the rest."""
            groups = ([], [], [])
            for name, parameter in model.named_parameters():
                groups[0 if "bias" in name else 1 if name.startswith("first") else 2].append(parameter)
            settings = ({"weight_decay": 0.0}, {"lr": 0.003}, {})
            optimizer = kind([{"params": each, **setting} for each, setting in zip(groups, settings)], **options)
            average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(decay))
            optimizer.register_step_post_hook(lambda *_: average.update_parameters(model))
            averages.append(average.module)
            return optimizer

        for name, kind, options in (("sgd", torch.optim.SGD, {"weight_decay": 0.5, "momentum": 0.9}),
                                    ("adamw", torch.optim.AdamW, {"weight_decay": 0.5})):
            wanted = plain(module, batches(), lambda model: make(model, kind, lr=0.01, fused=True, **options))
            options |= {"optimizer": name, "learning_rate": 0.01, "ema_decay": decay, "check": True,
                        "group": ["bias:weight-decay=0", "^first:learning-rate=0.003"]}
            for plan in ({}, {"replicas": [2, 1]}):
                with self.subTest(optimizer=name, plan=plan):
                    planned = self.planned(module, **plan)
                    run = self.trained(module, planned, **options)
                    self.assertNotIn("WRONG", run.log)
                    self.same(run.state_dict, wanted, exactly=not plan)
                    self.same(run.ema_state_dict, averages[-1].state_dict(), exactly=not plan)
                    self.assertFalse(torch.equal(run.state_dict["head.weight"], run.ema_state_dict["head.weight"]))
            with tempfile.TemporaryDirectory() as folder:
                saved = os.path.join(folder, "saved")
                self.trained(module, self.planned(module), checkpoint=saved, steps=2, **options)
                resumed = self.trained(module, self.planned(module, stages=3), checkpoint=saved, resume=True, steps=4, **options)
                self.same(resumed.ema_state_dict, averages[-1].state_dict())

    def test_a_group_without_parameters_is_an_error(self):
        with self.assertRaisesRegex(stagecraft.ProgramError, r'group "norm" matches no parameter; the model has blocks\.0\.scale, blocks'):
            self.trained(Stack(Normalised), self.planned(Stack(Normalised)), group="norm:weight-decay=0")

    def test_a_resumed_run_continues_with_buffers_that_the_state_dict_leaves_out(self):
        module, plan = Stack(HiddenMean), None
        plan = self.planned(module)
        whole = self.trained(module, plan).state_dict
        self.same(whole, plain(module, batches()))
        self.assertNotIn("blocks.0.mean", whole)
        with tempfile.TemporaryDirectory() as folder:
            saved = os.path.join(folder, "saved")
            self.trained(module, plan, checkpoint=saved, steps=2)
            self.same(self.trained(module, self.planned(module, stages=3), checkpoint=saved, resume=True, steps=4).state_dict, whole)

    def test_complex_buffers_and_values_between_stages(self):
        module = Complex(Turned)
        for plan in (self.planned(module), self.planned(module, stages=3), self.planned(module, stages=1)):
            with self.subTest(stages=len(plan.stages)):
                self.same(self.trained(module, plan, check=True).state_dict, plain(module, batches()), exactly=False)

    def test_extra_states_stay_as_they_are(self):
        torch.manual_seed(0)
        module = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), Versioned(8, 8), nn.ReLU(), nn.Linear(8, 3))
        state = self.trained(module, self.planned(module)).state_dict
        copied = copy.deepcopy(module)
        copied.load_state_dict(state, strict=True)
        self.assertEqual(copied[2].version, 3)
        found = stagecraft.evaluate(copied, batches(), loss="cross_entropy")
        wanted = sum(functional.cross_entropy(copied(x), y).item() for x, y in batches()) / 4
        self.assertAlmostEqual(found.loss, wanted, places=6)


class Words(nn.Module):
    """A language model that returns a loss of a kind."""

    def __init__(self, loss):
        super().__init__()
        torch.manual_seed(0)
        self.loss, self.words, self.middle, self.head = loss, nn.Embedding(20, 8), nn.Linear(8, 8), nn.Linear(8, 20)
        self.register_buffer("weight", torch.rand(20) + 0.1)

    def forward(self, tokens, labels, mask):
        scores = self.head(self.middle(self.words(tokens)).relu())
        return LOSSES[self.loss](scores, labels, mask, self)


def entropy(scores, labels, **how):
    return functional.cross_entropy(scores.flatten(0, 1), labels.flatten(), **how)


def contrastive(scores, labels, mask, model):
    return functional.cross_entropy(scores.mean(1) @ scores[:, 0].T, torch.arange(len(scores)))


LOSSES = {
    "labels": lambda scores, labels, mask, model: entropy(scores, labels),
    "smoothing": lambda scores, labels, mask, model: functional.cross_entropy(scores.transpose(1, 2), labels, label_smoothing=0.1),
    "classes": lambda scores, labels, mask, model: entropy(scores, labels, weight=model.weight, label_smoothing=0.1),
    "padding": lambda scores, labels, mask, model: entropy(scores, labels.clamp(min=0), ignore_index=0),
    "likelihood": lambda scores, labels, mask, model: functional.nll_loss(scores.log_softmax(-1).flatten(0, 1), labels.flatten()),
    "mask": lambda scores, labels, mask, model: (entropy(scores, labels.clamp(min=0), reduction="none") * mask.flatten()).sum() /
                                                mask.sum().clamp(min=1),
    "squares": lambda scores, labels, mask, model: functional.mse_loss(scores.mean(-1), labels / 100, weight=mask),
    "penalty": lambda scores, labels, mask, model: 2 * entropy(scores, labels) + 0.1 * model.head.weight.square().sum(),
    "sum": lambda scores, labels, mask, model: entropy(scores, labels, reduction="sum") / 50,
    "divergence": lambda scores, labels, mask, model: functional.kl_div(
        scores.log_softmax(-1), functional.one_hot(labels.clamp(min=0), 20) * 0.8 + 0.01, reduction="batchmean"),
    "contrastive": contrastive,
    "labels and activations": lambda scores, labels, mask, model: entropy(scores, labels) + scores.square().mean(),
}


def sentences(lengths):
    """Labels and mask end where a sentence does."""
    tokens = torch.randint(1, 20, (len(lengths), 6))
    labels, mask = tokens.roll(-1, 1), torch.rand(len(lengths), 6)
    for row, length in enumerate(lengths):
        labels[row, length:], mask[row, length:] = -100, 0
    return {"tokens": tokens, "labels": labels, "mask": mask}


class Losses(unittest.TestCase):
    """Steps of any number of microbatches against PyTorch's of the whole batch."""

    given = {"ranges": {"labels": (-100, 20)}}
    quickly = dict(max_seconds=0.05, warmup=0, concurrent=1, threads=1, accept_untrusted=True)

    def setUp(self):
        torch.manual_seed(1)
        self.batches = [sentences(lengths) for lengths in ([6, 5, 1, 1, 2, 6, 0, 0], [0, 0, 0, 0, 3, 1, 6, 6], [6] * 8)]

    def planned(self, module, microbatches, schedule="1f1b", **plan):
        graph = stagecraft.profile(module, self.batches[0], microbatch=8 // microbatches, **self.quickly, **self.given)
        ranks = sum(plan.get("replicas", [1, 1]))
        return stagecraft.plan(graph, stagecraft.Topology.of([ranks], [1e9]), strategy="uniform", stages=2, schedule=schedule,
                               microbatches=microbatches, accept_untrusted=True, **plan)

    def trained(self, module, *shape, **plan):
        return stagecraft.run(self.planned(module, *shape, **plan), module, self.batches, learning_rate=RATE, channel="local", threads=1,
                              check=True, **self.given)

    def whole(self, module):
        model, losses = copy.deepcopy(module), []
        optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
        for batch in self.batches:
            optimizer.zero_grad()
            loss = model(**batch)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return model.state_dict(), losses

    def compare(self, run, wanted):
        state, losses = wanted
        for name, tensor in state.items():
            torch.testing.assert_close(run.state_dict[name], tensor, msg=name)
        torch.testing.assert_close(torch.tensor(run.measurement.losses), torch.tensor(losses))

    def test_means_and_sums_are_those_of_the_whole_batch(self):
        for loss in [each for each in LOSSES if each not in ("contrastive", "labels and activations")]:
            module = Words(loss)
            with self.subTest(loss=loss):
                self.compare(self.trained(module, 8), self.whole(module))

    def test_so_they_are_under_every_kind_of_plan(self):
        module = Words("labels")
        wanted = self.whole(module)
        for shape, plan in (((1,), {}), ((2,), {}), ((4, "gpipe"), {"recompute": True}), ((4, "zb-h1"), {}), ((4,), {"replicas": [2, 2]}),
                            ((8,), {"replicas": [1, 2]})):
            with self.subTest(shape=shape, plan=plan):
                self.compare(self.trained(module, *shape, **plan), wanted)

    def test_others_need_one_microbatch_or_consent(self):
        for loss in ("contrastive", "labels and activations"):
            module = Words(loss)
            self.compare(self.trained(module, 1), self.whole(module))
            with self.subTest(loss=loss), self.assertRaisesRegex(stagecraft.Error, "does not follow from those of its microbatches"):
                self.trained(module, 2)
        module, options = Words("contrastive"), {"loss_of_microbatches": True} | self.given
        graph = stagecraft.profile(module, self.batches[0], microbatch=4, **self.quickly, **options)
        plan = stagecraft.plan(graph, stagecraft.Topology.of([2], [1e9]), strategy="uniform", stages=2, microbatches=2,
                               accept_untrusted=True)
        run = stagecraft.run(plan, module, self.batches[:1], learning_rate=RATE, channel="local", threads=1, **options)
        halves = [module(**{name: tensor[first : first + 4] for name, tensor in self.batches[0].items()}).item() for first in (0, 4)]
        self.assertAlmostEqual(run.measurement.losses[0], sum(halves) / 2, places=5)

    def test_an_asynchronous_update_of_several_microbatches_takes_means_only(self):
        with self.assertRaisesRegex(stagecraft.Error, "the loss is a sum or a weighted mean, and the schedule is asynchronous"):
            module = Words("labels")
            stagecraft.run(self.planned(module, 4, "pipedream-2bw"), module, self.batches, channel="local", threads=1, **self.given)

    def test_a_step_without_labels_has_no_loss(self):
        self.batches[1] = sentences([0] * 8)
        with self.assertRaisesRegex(stagecraft.Error, "step 2.*the loss of microbatch 0"):
            self.trained(Words("labels"), 4)

    def test_evaluation_does_not_depend_on_the_microbatch(self):
        for loss in ("labels", "classes", "mask", "sum"):
            module = Words(loss)
            for microbatch in (8, 4, 1):
                with self.subTest(loss=loss, microbatch=microbatch):
                    found = stagecraft.evaluate(module, self.batches[:1], microbatch=microbatch, **self.given)
                    self.assertAlmostEqual(found.loss, module(**self.batches[0]).item(), places=5)
                    if loss == "labels":
                        self.assertAlmostEqual(found.perplexity, torch.tensor(found.loss).exp().item(), places=4)


if __name__ == "__main__":
    os.environ["STAGECRAFT_BIN"] = sys.argv.pop(1)
    unittest.main()
