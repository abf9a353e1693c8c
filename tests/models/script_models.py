"""Models for torch.jit: each returns its own loss, because TorchScript has no other place for it."""

import dataclasses
from typing import Callable, Optional

import models
import torch
from torch import nn
from torch.nn import functional


class WithLoss(nn.Module):
    """A classifier and its loss."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x, target):
        return functional.cross_entropy(self.model(x), target)


class WithNextTokenLoss(nn.Module):
    """A language model and its loss; the tokens to predict are a separate input."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x, target):
        return functional.cross_entropy(self.model(x).flatten(0, 1), target.flatten())


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.conv = nn.Conv2d(width, width, 3, padding=1)
        self.norm = nn.BatchNorm2d(width)

    def forward(self, x):
        return functional.relu(self.norm(self.conv(x))) + x


class SmallCnn(nn.Module):
    """Convolutions with batch norm, two residual blocks."""

    def __init__(self, width=6):
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.blocks = nn.ModuleList([Residual(width) for _ in range(2)])
        self.head = nn.Linear(width * 16, 4)

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.head(torch.flatten(functional.max_pool2d(x, 2), 1))


class Gated(nn.Module):
    """Branches on the values of its input."""

    def __init__(self, width):
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.other = nn.Linear(width, width)

    def forward(self, x):
        if bool(x.sum() > 0):
            x = torch.tanh(self.linear(x))
        else:
            x = self.other(x) * 0.5
        return x


class ControlFlow(nn.Module):
    """Branches on data, on the training flag and on None; a counted loop, a loop on data, a list that grows."""

    def __init__(self, width=8):
        super().__init__()
        self.first = nn.Linear(8, width)
        self.gates = nn.ModuleList([Gated(width) for _ in range(3)])
        self.norm = nn.BatchNorm1d(width)
        self.drop = nn.Dropout(0.0)
        self.head = nn.Linear(width, 4)

    def forward(self, x: torch.Tensor, scale: Optional[torch.Tensor] = None):
        x = self.first(x)
        parts = [x]
        for gate in self.gates:
            parts.append(gate(parts[-1]))
        x = torch.stack(parts).sum(0)
        for turn in range(2):
            x = x + 0.1 * float(turn + 1)
        while bool(x.abs().max() > 1):
            x = x * 0.5
        if scale is not None:
            x = x * scale
        if self.training:
            x = x * 1.0
        else:
            x = x * 2.0
        assert x.size(0) > 0
        return self.head(self.drop(self.norm(x)))


def small_transformer():
    return models.DecoderTransformer(50, 16, 3, 4, 32, dropout=0.0)


@dataclasses.dataclass(frozen=True)
class ScriptEntry:
    """`inputs` are texts in the format of export_model's --input."""

    build: Callable
    inputs: tuple
    traced: bool
    learning_rate: float = 0.1


VECTOR = ("x=float32[8]", "target=int64[]:range=0..4")
IMAGE = ("x=float32[3,8,8]", "target=int64[]:range=0..4")
TOKENS = ("x=int64[12]:range=0..50", "target=int64[12]:range=0..50")

_BUILDERS = {
    "mlp": (lambda: WithLoss(models.Mlp()), VECTOR),
    "cnn": (lambda: WithLoss(SmallCnn()), IMAGE),
    "lstm_lm": (lambda: WithNextTokenLoss(models.LstmLanguageModel()), TOKENS),
    "transformer": (lambda: WithNextTokenLoss(small_transformer()), TOKENS),
    "called_twice": (lambda: WithLoss(models.CalledTwice()), VECTOR),
    "long_residual": (lambda: WithLoss(models.LongResidual()), VECTOR),
    "in_place_activations": (lambda: WithLoss(models.InPlaceActivations()), IMAGE),
    "shared_batch_norm": (lambda: WithLoss(models.SharedBatchNorm()), IMAGE),
}

SCRIPT_MODELS = {f"{name}_{how}": ScriptEntry(build, inputs, how == "traced")
                 for name, (build, inputs) in _BUILDERS.items() for how in ("traced", "scripted")}
SCRIPT_MODELS["several_names_scripted"] = ScriptEntry(lambda: WithLoss(models.SeveralNames()), VECTOR, False)
SCRIPT_MODELS["control_flow_scripted"] = ScriptEntry(lambda: WithLoss(ControlFlow()), VECTOR, False)
