"""Models that cannot be trained from an archive as they train in Python, each for one reason."""

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint


class StraightThrough(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        return torch.sign(x) * 0.5

    @staticmethod
    def backward(context, gradient):
        return gradient


class _Layers(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.head = nn.Linear(8, 4)

    def forward(self, x):
        return self.head(self.between(self.first(x)))


class OwnBackward(_Layers):
    def between(self, hidden):
        return StraightThrough.apply(hidden)


class ReentrantCheckpoint(_Layers):
    def __init__(self):
        super().__init__()
        self.middle = nn.Linear(8, 8)

    def between(self, hidden):
        return checkpoint(self.middle, hidden, use_reentrant=True)


class InferenceMode(_Layers):
    def __init__(self):
        super().__init__()
        self.scale = nn.Linear(8, 8)

    def between(self, hidden):
        with torch.inference_mode():
            scale = self.scale(torch.ones(8))
        return hidden * scale.clone()


class DataDependentShape(_Layers):
    def between(self, hidden):
        return hidden + hidden[hidden > 0].sum() + torch.nonzero(hidden).shape[0]


class BranchOnValues(_Layers):
    def between(self, hidden):
        return -hidden if hidden.sum() > 0 else hidden


class CountsInPython(_Layers):
    """Scales by the number of its calls, which no buffer holds."""

    calls = 0

    def between(self, hidden):
        self.calls += 1
        return hidden * self.calls


class ComputesOtherwiseWhenTraced(_Layers):
    """The same but for rounding."""

    def between(self, hidden):
        return hidden * 3 if torch.compiler.is_exporting() else hidden * 0.3 * 10


class OwnOperator(_Layers):
    def between(self, hidden):
        return torch.ops.stagecraft_test.twice(hidden)


@torch.library.custom_op("stagecraft_test::twice", mutates_args=())
def _twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2


_twice.register_fake(lambda x: torch.empty_like(x))
_twice.register_autograd(lambda context, gradient: gradient * 2)


class Scan(_Layers):
    def between(self, hidden):
        from torch._higher_order_ops.scan import scan

        return scan(lambda carry, x: (carry + x, carry * x), torch.zeros(hidden.shape[1]), hidden)[1]


class SparseEmbedding(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(10, 4, sparse=True)

    def forward(self, x):
        return self.words(x).sum(1)


class FixedShape(_Layers):
    """Works for three samples only, and does not say so."""

    def between(self, hidden):
        return functional.relu(hidden.view(3, 8))


def double():
    return _Layers().double()


def hooked():
    model = nn.Linear(8, 4)
    model.register_forward_hook(lambda module, given, output: output * 2)
    return model


def evaluating():
    return nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 4)).eval()


def not_a_model():
    return {"weights": []}


def examples():
    return {"x": torch.arange(40.0).reshape(5, 8), "target": torch.tensor([0, 3, 1, 2, 2])}


def halved(outputs, target):
    return functional.cross_entropy(outputs, target) / 2


def whole(outputs):
    return outputs
