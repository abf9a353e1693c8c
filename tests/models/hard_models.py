"""Models that cannot be trained from an archive as in Python, each for one reason."""

import random

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
    """Scales by the number of its calls, which is not in a buffer."""

    calls = 0

    def between(self, hidden):
        self.calls += 1
        return hidden * self.calls


class ComputesOtherwiseWhenTraced(_Layers):
    """Equal except for rounding."""

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


class Counts(nn.Module):
    """Computes with its integers, which index nothing."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 4)

    def forward(self, counts):
        return self.layer(counts.float()).mean()


class FixedShape(_Layers):
    """Works only for three samples, but does not check for that."""

    def between(self, hidden):
        return functional.relu(hidden.view(3, 8))


class LoopOnValues(_Layers):
    def between(self, hidden):
        for _ in range(int(hidden.detach().abs().max())):
            hidden = hidden * 0.5
        return hidden


class CheckOnValues(_Layers):
    def between(self, hidden):
        if torch.isnan(hidden).any():
            raise ValueError("not a number")
        return hidden


class ComputesInNumpy(_Layers):
    def between(self, hidden):
        return hidden + torch.from_numpy(hidden.detach().numpy() * 2)


class OwnGenerator(_Layers):
    def __init__(self):
        super().__init__()
        self.generator = torch.Generator().manual_seed(1)

    def between(self, hidden):
        return hidden * torch.rand(8, generator=self.generator)


class Validates(_Layers):
    """Explicitly enables the checks of a distribution's arguments."""

    def between(self, hidden):
        return torch.distributions.Normal(hidden, 1.0, validate_args=True).rsample()


class CausalByLooking(nn.Module):
    """Attention that must inspect its mask unless the arguments `called` say that it is causal."""

    def __init__(self, kind, **called):
        super().__init__()
        self.embedding = nn.Embedding(10, 8)
        self.called = called
        if kind == "encoder":
            self.body = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 1)
        elif kind == "decoder":
            self.body = nn.TransformerDecoder(nn.TransformerDecoderLayer(8, 2, 16, batch_first=True), 1)
        else:
            self.body = nn.Transformer(8, 2, 1, 1, 16, batch_first=True)
        self.kind = kind
        self.head = nn.Linear(8, 4)

    def forward(self, x):
        hidden = self.embedding(x)
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        if self.kind == "encoder":
            hidden = self.body(hidden, mask=mask, **self.called)
        elif self.kind == "decoder":
            hidden = self.body(hidden, hidden, tgt_mask=mask, **self.called)
        elif self.kind == "source":
            hidden = self.body(hidden, hidden, src_mask=mask, **self.called)
        else:
            hidden = self.body(hidden, hidden, tgt_mask=mask, **self.called)
        return self.head(hidden.mean(1))


class PythonsRandom(_Layers):
    def between(self, hidden):
        scale = self.weigh(1.0)
        return hidden * scale

    def weigh(self, most):
        return (most +
                random.random())


class NumpysRandom(_Layers):
    def between(self, hidden):
        import numpy

        return hidden * numpy.random.rand()


class GeneratorOfItsOwn(_Layers):
    def __init__(self):
        super().__init__()
        self.dice = random.Random(3)

    def between(self, hidden):
        return hidden * self.dice.choice([0.5, 2.0])


class LooksAsIfFused(ComputesOtherwiseWhenTraced):
    """Has the configuration field that selects the attention implementation in models of transformers."""

    class config:
        _attn_implementation = "sdpa"


class ComplexParameter(_Layers):
    def __init__(self):
        super().__init__()
        self.filter = nn.Parameter(torch.randn(8, dtype=torch.complex64))

    def between(self, hidden):
        return (torch.fft.fft(hidden) * self.filter).abs()


class ComplexOfReal(_Layers):
    def __init__(self):
        super().__init__()
        self.filter = nn.Parameter(torch.randn(8, 2))

    def between(self, hidden):
        return (torch.fft.fft(hidden) * torch.view_as_complex(self.filter)).abs()


class ComplexBuffer(_Layers):
    def __init__(self):
        super().__init__()
        self.register_buffer("turns", torch.polar(torch.ones(4), torch.arange(4.0)))

    def between(self, hidden):
        return torch.view_as_real(torch.view_as_complex(hidden.view(-1, 4, 2)) * self.turns).flatten(1)


class CompiledInside(_Layers):
    def __init__(self):
        super().__init__()
        self.first = torch.compile(self.first)
        self.head.compile()

    @torch.compile
    def between(self, hidden):
        return torch.tanh(hidden)


class NotCompiledInside(_Layers):
    def between(self, hidden):
        return torch.tanh(hidden)


def compiled():
    return torch.compile(CompiledInside())


class FixedAnyNumber(_Layers):
    """Runs for any number of samples, but only for one at a time when exported."""

    def between(self, hidden):
        return torch.stack([hidden[index] for index in range(hidden.shape[0])])


class NormedLstm(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.utils.weight_norm(nn.LSTM(8, 4, batch_first=True), "weight_hh_l0")

    def forward(self, x):
        return self.lstm(x)[0][:, -1]


class PackedSequences(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(10, 4)
        self.lstm = nn.LSTM(4, 4, batch_first=True)

    def forward(self, x, lengths):
        packed = nn.utils.rnn.pack_padded_sequence(self.words(x), lengths, batch_first=True, enforce_sorted=False)
        return self.lstm(packed)[1][0][-1]


class CumulativeNorm(_Layers):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(8, momentum=None)

    def between(self, hidden):
        return self.norm(hidden)


class ScriptedInside(_Layers):
    def __init__(self):
        super().__init__()
        self.middle = torch.jit.script(nn.Linear(8, 8))

    def between(self, hidden):
        return self.middle(hidden)


class CodeInside(_Layers):
    def __init__(self):
        super().__init__()
        self.code = nn.Linear(8, 8)

    def between(self, hidden):
        return self.code(hidden)


class TwoTowers(nn.Module):
    """Nothing requires both inputs to have the same number of samples."""

    def __init__(self):
        super().__init__()
        self.tower = nn.Linear(8, 4)

    def forward(self, left, right):
        return self.tower(left).square().mean() - self.tower(right).square().mean()


class Kinds(nn.Module):
    """Ten classes from tokens, and an integer that nothing bounds."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(30, 8)
        self.head = nn.Linear(8, 10)

    def forward(self, tokens, kind=None):
        hidden = self.words(tokens).mean(1)
        return self.head(hidden if kind is None else hidden * kind.unsqueeze(1))


def few_examples():
    """Labels up to 8 of ten classes, tokens up to 19 of thirty."""
    return {"tokens": torch.arange(20).reshape(5, 4), "label": torch.tensor([0, 8, 3, 2, 5])}


def ignored_examples():
    return few_examples() | {"label": torch.tensor([0, 8, -100, 2, 5])}


def kind_examples():
    return few_examples() | {"kind": torch.tensor([1, 8, 3, 2, 5])}


def class_loss(scores, label):
    return functional.cross_entropy(scores, label)


def checked_loss(scores, label):
    assert (label >= 0).all(), "labels begin at 0"
    return functional.cross_entropy(scores, label)


def random_loss(scores, label):
    return functional.cross_entropy(scores, label) * random.random()


def nested_examples():
    from models import Sample

    return {"batch": Sample(torch.ones(5, 8), (torch.ones(5, 8), torch.ones(5, 8)), {"hidden": torch.ones(8)}),
            "target": torch.tensor([0, 3, 1, 2, 2])}


def mean_of_first(outputs):
    return outputs[0].mean()


def without_head():
    import transformers

    return transformers.ViTModel(transformers.ViTConfig(
        num_hidden_layers=1, hidden_size=16, num_attention_heads=2, intermediate_size=16, image_size=32))


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


class WritesParameter(_Layers):
    def between(self, hidden):
        with torch.no_grad():
            self.first.bias.clamp_(-1, 1)
        return hidden


class LimitedRows(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(10, 8, max_norm=1.0)
        self.head = nn.Linear(8, 4)

    def forward(self, x):
        return self.head(self.words(x))


class UpdatesData(_Layers):
    def between(self, hidden):
        self.head.bias.data = self.head.bias.data * 0.9
        return hidden


class GradientOfInput(_Layers):
    def between(self, hidden):
        hidden = hidden.detach().requires_grad_()
        return torch.autograd.grad(self.head(hidden).sum(), hidden, create_graph=True)[0]


class GradientByFunc(_Layers):
    def between(self, hidden):
        return torch.func.grad(lambda x: self.head(x).sum())(hidden)


def lazy():
    return nn.Sequential(nn.LazyLinear(8), nn.Linear(8, 4))


def replicated():
    return nn.DataParallel(nn.Linear(8, 4))


class FailsElsewhere(_Layers):
    def between(self, hidden):
        return {}["missing"]


class TwoFrozen(_Layers):
    def __init__(self):
        super().__init__()
        self.norms = nn.ModuleList([nn.Dropout(), nn.Dropout()]).eval()

    def between(self, hidden):
        return self.norms[1](self.norms[0](hidden))


class ReturnsNumbers(nn.Module):
    """Returns several numbers; `keys` says which, in this order."""

    def __init__(self, keys="accuracy loss scores"):
        super().__init__()
        self.first, self.last, self.unread = nn.Linear(8, 8), nn.Linear(8, 4), nn.Linear(2, 2)
        self.keys = keys.split()

    def forward(self, x, y):
        scores = self.last(self.first(x).relu())
        loss = nn.functional.cross_entropy(scores, y)
        made = {"accuracy": (scores.argmax(1) == y).float().mean(), "loss": loss, "scores": scores, "kl": self.first(x).square().mean(),
                "ce": loss, "constant": loss.detach(), "count": (scores.argmax(1) == y).sum(), "logits": scores, "wide": 2 * scores,
                "hidden": self.first(x)}
        made["losses"] = {"ce": loss, "kl": made["kl"]}
        return {key: made[key] for key in self.keys} if self.keys[0] != "tuple" else tuple(made[key] for key in self.keys[1:])


class SharesMemory(nn.Module):
    """`words` and something over its memory, as `how` says."""

    def __init__(self, how):
        super().__init__()
        self.how = how
        self.words = nn.Embedding(20, 8)
        self.head = nn.Linear(8, 20, bias=False)
        self.register_buffer("seen", torch.zeros(8))
        weight = self.words.weight
        if how == "data":
            self.head.weight.data = weight.data
        elif how == "parameter":
            self.head.weight = nn.Parameter(weight)
        elif how == "part":
            self.head.weight = nn.Parameter(weight[:4])
        elif how == "transposed":
            self.head.weight = nn.Parameter(weight[:8].t())
        elif how == "frozen":
            self.head.weight = nn.Parameter(weight, requires_grad=False)
        elif how == "buffer":
            self.register_buffer("table", weight.detach())
        elif how == "attribute":
            self.table = weight.data
        elif how == "list":
            self.tables = [weight.data[3]]
        elif how == "written":
            self.register_buffer("mean", self.seen[2:])
        elif how == "halves":
            both = torch.randn(40, 8)
            self.words.weight = nn.Parameter(both[:20])
            self.head.weight = nn.Parameter(both[20:])

    def forward(self, tokens):
        x = self.words(tokens)
        if self.how == "written":
            self.seen.add_(x.detach().mean((0, 1)))
            x = x + self.mean.sum()
        return nn.functional.linear(x, self.head.weight if self.how != "transposed" else self.head.weight.t())
