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


if __name__ == "__main__":
    os.environ["STAGECRAFT_BIN"] = sys.argv.pop(1)
    unittest.main()
