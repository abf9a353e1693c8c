"""Small models in the style of real ones, each with a feature that is hard to export or to split."""

import dataclasses
import math

import torch
from torch import nn
from torch.nn import functional


class Mlp(nn.Module):
    def __init__(self, width=16, classes=4):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, classes))

    def forward(self, x):
        return self.layers(x)


class LstmLanguageModel(nn.Module):
    def __init__(self, vocabulary=50, width=16, layers=2, dropout=0.0):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.lstm = nn.LSTM(width, width, layers, batch_first=True, dropout=dropout)
        self.output = nn.Linear(width, vocabulary)

    def forward(self, tokens):
        hidden, _ = self.lstm(self.embedding(tokens))
        return self.output(hidden)


class TiedDropout(nn.Module):
    """The output layer shares the embedding's weight; dropout before and between the blocks."""

    def __init__(self, vocabulary=40, width=16):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.drop = nn.Dropout(0.1)
        self.blocks = nn.ModuleList([nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Dropout(0.2)) for _ in range(3)])
        self.output = nn.Linear(width, vocabulary, bias=False)
        self.output.weight = self.embedding.weight

    def forward(self, tokens):
        hidden = self.drop(self.embedding(tokens))
        for block in self.blocks:
            hidden = hidden + block(hidden)
        return self.output(hidden)


class DecoderTransformer(nn.Module):
    """Embedding, decoder layers whose cross attention reads the same input as their self attention, final norm, output
    layer. The defaults are those of the pipelining example of torch.distributed."""

    def __init__(self, vocabulary=10000, width=512, layers=8, heads=8, feed_forward=2048, dropout=0.1):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(
            [nn.TransformerDecoderLayer(width, heads, feed_forward, dropout, batch_first=True) for _ in range(layers)])
        self.norm = nn.LayerNorm(width)
        self.output = nn.Linear(width, vocabulary)

    def forward(self, tokens):
        hidden = self.embedding(tokens)
        for layer in self.layers:
            hidden = layer(hidden, hidden)
        return self.output(self.norm(hidden))


class EncoderDecoder(nn.Module):
    """nn.Transformer in its default layout: axis 1 is the batch."""

    def __init__(self, vocabulary=40, width=16, layers=2):
        super().__init__()
        self.source = nn.Embedding(vocabulary, width)
        self.target = nn.Embedding(vocabulary, width)
        self.transformer = nn.Transformer(width, 2, layers, layers, 32, dropout=0.1)
        self.output = nn.Linear(width, vocabulary)

    def forward(self, words, translation):
        mask = nn.Transformer.generate_square_subsequent_mask(translation.shape[0])
        hidden = self.transformer(self.source(words), self.target(translation), tgt_mask=mask,
                                  tgt_is_causal=True)
        return self.output(hidden)


class LongResidual(nn.Module):
    """The stem's output is added again three blocks later."""

    def __init__(self, width=12):
        super().__init__()
        self.stem = nn.Linear(8, width)
        self.blocks = nn.ModuleList([nn.Sequential(nn.Linear(width, width), nn.Tanh()) for _ in range(3)])
        self.head = nn.Linear(width, 4)

    def forward(self, x):
        first = hidden = self.stem(x)
        for block in self.blocks:
            hidden = block(hidden)
        return self.head(hidden + first)


class TwoHeads(nn.Module):
    """Returns several tensors, one of which the loss does not read."""

    def __init__(self, width=12):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, width), nn.ReLU())
        self.kind = nn.Linear(width, 4)
        self.place = nn.Linear(width, 2)

    def forward(self, x):
        hidden = self.body(x)
        return {"kind": self.kind(hidden), "place": self.place(hidden), "hidden": hidden}


def two_losses(outputs, kind, place):
    return functional.cross_entropy(outputs["kind"], kind) + 0.5 * functional.mse_loss(outputs["place"], place)


class SharedBatchNorm(nn.Module):
    """One BatchNorm after two convolutions: its statistics are updated twice per forward."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 6, 3, padding=1)
        self.second = nn.Conv2d(6, 6, 3, padding=1)
        self.norm = nn.BatchNorm2d(6)
        self.head = nn.Linear(6, 4)

    def forward(self, image):
        hidden = functional.relu(self.norm(self.first(image)))
        hidden = functional.relu(self.norm(self.second(hidden)))
        return self.head(hidden.mean((2, 3)))


class SeveralNames(nn.Module):
    """A module under two names, and a parameter of one module that another holds too; each is used once."""

    def __init__(self):
        super().__init__()
        self.first = nn.Sequential(nn.Linear(8, 6), nn.BatchNorm1d(6))
        self.head = nn.Linear(6, 4)
        self.again = self.first
        self.other = nn.Linear(6, 4)
        self.other.weight = self.head.weight

    def forward(self, x):
        return self.head(functional.relu(self.first(x)))


class CalledTwice(nn.Module):
    """A block with parameters is called twice, with another block between the calls."""

    def __init__(self, width=8):
        super().__init__()
        self.shared = nn.Sequential(nn.Linear(width, width), nn.Tanh())
        self.between = nn.Linear(width, width)
        self.head = nn.Linear(width, 4)

    def forward(self, x):
        return self.head(self.shared(self.between(self.shared(x))))


class Scale(nn.Module):
    """Writes into its input."""

    def __init__(self, width):
        super().__init__()
        self.bias = nn.Parameter(torch.linspace(-1, 1, width))

    def forward(self, x):
        x.add_(self.bias)
        return x * 0.5


class ViewsAcrossBlocks(nn.Module):
    """The next block overwrites a view of one block's result, which is read after that."""

    def __init__(self, width=8):
        super().__init__()
        self.first = nn.Linear(8, width)
        self.scale = Scale(width // 2)
        self.second = nn.Linear(width, width)
        self.head = nn.Linear(width, 4)

    def forward(self, x):
        hidden = self.first(x)
        left = hidden.view(-1, 2, hidden.shape[-1] // 2)[:, 0]
        scaled = self.scale(left)
        hidden = self.second(hidden)
        hidden[:, : scaled.shape[-1]] += scaled
        return self.head(functional.relu(hidden))


class NoGradBlock(nn.Module):
    """A normalisation whose statistics have no gradient, and a target network in no_grad."""

    def __init__(self, width=8):
        super().__init__()
        self.first = nn.Linear(8, width)
        self.teacher = nn.Linear(width, width)
        self.second = nn.Linear(width, width)
        self.head = nn.Linear(width, 4)

    def forward(self, x):
        hidden = self.first(x)
        with torch.no_grad():
            scale = hidden.abs().mean(1, keepdim=True) + 1
            wanted = torch.tanh(self.teacher(hidden))
        return self.head(self.second(hidden / scale) - wanted)


class MasksFromInputs(nn.Module):
    """Attention with a padding mask, a causal mask and positions, all computed from the inputs."""

    def __init__(self, vocabulary=40, width=16, layers=2, length=32):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(length, width)
        self.blocks = nn.ModuleList([MaskedBlock(width) for _ in range(layers)])
        self.output = nn.Linear(width, vocabulary)

    def forward(self, tokens, keep):
        places = torch.arange(tokens.shape[1], device=tokens.device)
        order = places[None, :] <= places[:, None]
        mask = order[None] & (keep[:, None, :] | torch.eye(tokens.shape[1], dtype=torch.bool, device=tokens.device)[None])
        hidden = self.embedding(tokens) + self.positions(places)
        for block in self.blocks:
            hidden = block(hidden, mask)
        return self.output(hidden)


class MaskedBlock(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.mix = nn.Linear(width, 3 * width)
        self.drop = nn.Dropout(0.1)
        self.out = nn.Linear(width, width)

    def forward(self, hidden, mask):
        query, key, value = self.mix(self.norm(hidden)).chunk(3, dim=-1)
        scores = query @ key.transpose(1, 2) / math.sqrt(query.shape[-1])
        weights = scores.masked_fill(~mask, float("-inf")).softmax(-1)
        return hidden + self.out(self.drop(weights) @ value)


class ParentOperators(nn.Module):
    """The parent calls functional operators between its children, in three places."""

    def __init__(self, width=8):
        super().__init__()
        self.blocks = nn.ModuleList([nn.Linear(width, width) for _ in range(3)])
        self.head = nn.Linear(2 * width, 4)

    def forward(self, x):
        hidden = functional.layer_norm(x, x.shape[1:])
        for index, block in enumerate(self.blocks):
            hidden = functional.gelu(block(hidden)) * (index + 1.5)
            hidden = functional.dropout(hidden, 0.1, self.training)
        hidden = torch.cat([hidden, x.flip(1)], 1)
        return self.head(hidden)


class MixedInputs(nn.Module):
    """Integer, bool and float inputs, and a table without a batch axis."""

    def __init__(self, kinds=7, width=8):
        super().__init__()
        self.embedding = nn.EmbeddingBag(kinds, width, mode="mean")
        self.measure = nn.Linear(5, width)
        self.head = nn.Linear(width, 4)

    def forward(self, words, valid, measured, offset):
        first = self.embedding(words)
        second = torch.where(valid[:, None], self.measure(measured), torch.zeros_like(first))
        return self.head(first + second + offset)


class RunningMean(nn.Module):
    """Buffers written by copy_ and add_ in forward, one of them not in the state dict."""

    def __init__(self, width=8):
        super().__init__()
        self.first = nn.Linear(8, width)
        self.head = nn.Linear(width, 4)
        self.register_buffer("mean", torch.zeros(width))
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.register_buffer("largest", torch.zeros(width), persistent=False)

    def forward(self, x):
        hidden = self.first(x)
        with torch.no_grad():
            self.mean.copy_(0.9 * self.mean + 0.1 * hidden.mean(0))
            self.largest.copy_(torch.maximum(self.largest, hidden.amax(0)))
            self.calls.add_(1)
        return self.head(torch.tanh(hidden - self.mean) / (self.largest + 1))


class PartlyFrozen(nn.Module):
    """The first block is frozen, with its BatchNorm in evaluation mode; one parameter is unused."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU())
        self.body = nn.Sequential(nn.Conv2d(6, 8, 3), nn.BatchNorm2d(8), nn.ReLU())
        self.head = nn.Linear(8, 4)
        self.unused = nn.Parameter(torch.ones(3))
        self.stem.requires_grad_(False)
        self.stem.eval()

    def forward(self, image):
        return self.head(self.body(self.stem(image)).mean((2, 3)))


class InPlaceActivations(nn.Module):
    """Hardswish, ReLU6 and a residual, all in place, as in MobileNet."""

    def __init__(self, width=8):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, width, 3, 2, 1), nn.BatchNorm2d(width), nn.Hardswish(inplace=True))
        self.blocks = nn.ModuleList([nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1, groups=width), nn.BatchNorm2d(width), nn.ReLU6(inplace=True),
            nn.Conv2d(width, width, 1), nn.BatchNorm2d(width)) for _ in range(2)])
        self.head = nn.Linear(width, 4)

    def forward(self, image):
        hidden = self.stem(image)
        for block in self.blocks:
            out = block(hidden)
            out += hidden
            hidden = functional.hardswish(out, inplace=True)
        return self.head(hidden.mean((2, 3)))


class FixedBatch(nn.Module):
    """The number of samples is fixed in the code: exports only for that number."""

    def __init__(self, samples=2, width=8):
        super().__init__()
        self.samples = samples
        self.first = nn.Linear(8, width)
        self.head = nn.Linear(width, 4)

    def forward(self, x):
        hidden = self.first(x).view(self.samples, 2, -1)
        return self.head(torch.relu(hidden).reshape(self.samples, -1))


class TransposedNorm(nn.Module):
    """Each block normalises over the last axis of activations that are transposed in memory."""

    def __init__(self, width=8, layers=3):
        super().__init__()
        self.blocks = nn.ModuleList([TransposedBlock(width, 6) for _ in range(layers)])
        self.head = nn.Linear(width, 4)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean(1))


class TransposedBlock(nn.Module):
    def __init__(self, width, length):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.mix = nn.Conv1d(width, width, 3, padding=1)
        self.token = nn.Linear(length, length)

    def forward(self, x):
        hidden = self.mix(self.norm(x).transpose(1, 2))
        return torch.relu(self.token(hidden)).transpose(1, 2)


class AutocastBlock(nn.Module):
    """Autocast around a block with dropout, as in mixed-precision training."""

    def __init__(self, width=8):
        super().__init__()
        self.first = nn.Linear(8, width)
        self.second = nn.Linear(width, width)
        self.head = nn.Linear(width, 4)

    def forward(self, x):
        hidden = self.first(x)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            hidden = functional.dropout(torch.relu(self.second(hidden)), 0.2)
        return self.head(hidden.float())


class NumbersOfTheBatch(nn.Module):
    """Computes with the number of samples, and returns its own loss after its scores."""

    def __init__(self, width=8):
        super().__init__()
        self.first = nn.Linear(8, width)
        self.head = nn.Linear(width, 4)

    def forward(self, x, target):
        samples = x.shape[0]
        hidden = self.first(x).reshape(samples * 2, -1)
        hidden = hidden + torch.arange(samples * 2).unsqueeze(1) / (2 * samples)
        scores = self.head(torch.relu(hidden).view(samples, -1))
        return scores, functional.cross_entropy(scores, target, reduction="sum") / samples


class LstmStates(nn.Module):
    """The last states of both directions initialise another LSTM, whose last state is classified."""

    def __init__(self, vocabulary=40, width=8):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.encoder = nn.LSTM(width, width, 2, batch_first=True, bidirectional=True)
        self.decoder = nn.LSTM(width, 2 * width, batch_first=True)
        self.head = nn.Linear(2 * width, 4)

    def forward(self, tokens):
        hidden = self.embedding(tokens)
        _, states = self.encoder(hidden)
        states = tuple(torch.cat([each[-2], each[-1]], 1).unsqueeze(0) for each in states)
        _, (last, _) = self.decoder(hidden.flip(1), states)
        return self.head(last[-1])


class OldNorms(nn.Module):
    """weight_norm and spectral_norm from before parametrizations: hooks that set the weight before each forward."""

    def __init__(self, width=8):
        super().__init__()
        self.first = nn.utils.weight_norm(nn.Linear(8, width))
        self.second = nn.utils.spectral_norm(nn.Linear(width, width))
        self.third = nn.utils.weight_norm(nn.Conv1d(1, 2, 3, padding=1), dim=None)
        self.head = nn.Linear(2 * width, 4)

    def forward(self, x):
        hidden = torch.tanh(self.second(torch.tanh(self.first(x))))
        return self.head(self.third(hidden.unsqueeze(1)).flatten(1))


@dataclasses.dataclass
class Sample:
    image: torch.Tensor
    pair: tuple
    weights: dict[str, torch.Tensor]


@dataclasses.dataclass
class Prediction:
    scores: torch.Tensor
    parts: list


class NestedBatch(nn.Module):
    """Takes a dataclass that contains a tuple and a dict, and returns another."""

    def __init__(self, width=8):
        super().__init__()
        self.first = nn.Linear(8, width)
        self.second = nn.Linear(8, width)
        self.head = nn.Linear(width, 4)

    def forward(self, batch: Sample):
        left, right = batch.pair
        hidden = torch.tanh(self.first(batch.image + left)) * batch.weights["hidden"]
        other = torch.tanh(self.second(right))
        return Prediction(self.head(hidden + other), [{"hidden": hidden}, (other, None)])


def nested_loss(prediction, batch, target):
    return functional.cross_entropy(prediction.scores, target) + (prediction.parts[1][0] - batch.image).square().mean()


class WholeAutocast(nn.Module):
    """Autocast around the whole body; only the scale of the scores is outside."""

    def __init__(self, width=8):
        super().__init__()
        self.blocks = nn.ModuleList([nn.Linear(8 if index == 0 else width, width) for index in range(3)])
        self.head = nn.Linear(width, 4)
        self.scale = nn.Parameter(torch.ones(4))

    def forward(self, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            for block in self.blocks:
                x = functional.dropout(torch.relu(block(x)), 0.1)
            x = self.head(x)
        return x.float() * self.scale


class WholeNoGrad(nn.Module):
    """A frozen body in no_grad, and a trainable head."""

    def __init__(self, width=8):
        super().__init__()
        self.blocks = nn.ModuleList([nn.Linear(8 if index == 0 else width, width) for index in range(3)])
        self.head = nn.Linear(width, 4)

    def forward(self, x):
        with torch.no_grad():
            for block in self.blocks:
                x = torch.tanh(block(x))
        return self.head(x)


class SampledLatent(nn.Module):
    """A variational autoencoder: uses torch.distributions, which check the values of their arguments."""

    def __init__(self, width=4):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(8, 16), nn.ReLU())
        self.mean = nn.Linear(16, width)
        self.scale = nn.Linear(16, width)
        self.decoder = nn.Sequential(nn.Linear(width, 16), nn.ReLU(), nn.Linear(16, 8))

    def forward(self, x):
        hidden = self.encoder(x)
        latent = torch.distributions.Normal(self.mean(hidden), functional.softplus(self.scale(hidden)))
        prior = torch.distributions.Normal(torch.zeros_like(latent.loc), torch.ones_like(latent.scale))
        value = self.decoder(latent.rsample())
        return functional.mse_loss(value, x) + 0.1 * torch.distributions.kl_divergence(latent, prior).mean()


class CausalEncoder(nn.Module):
    """nn.TransformerEncoder with a mask and is_causal=True."""

    def __init__(self, vocabulary=40, width=16):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(width, 2, 32, batch_first=True), 2)
        self.output = nn.Linear(width, vocabulary)

    def forward(self, tokens):
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
        return self.output(self.encoder(self.embedding(tokens), mask=mask, is_causal=True))


class WeightedLabels(nn.Module):
    """Returns a cross entropy that ignores some labels and weights the classes of the others, or the sum of squares."""

    def __init__(self, summed=False, width=8):
        super().__init__()
        self.blocks = nn.ModuleList([nn.Linear(8 if index == 0 else width, width) for index in range(3)])
        self.head = nn.Linear(width, 4)
        self.register_buffer("weight", torch.tensor([1.0, 2.0, 0.5, 0.1]))
        self.summed = summed

    def forward(self, x, labels):
        for block in self.blocks:
            x = torch.tanh(block(x))
        scores = self.head(x)
        if self.summed:
            return (scores.mean(-1) - labels).square().sum() / 100000
        return functional.cross_entropy(scores.flatten(0, 1), labels.flatten(), self.weight)


class ShiftedLabels(nn.Module):
    """Predicts each label from the preceding one, shifted as in encoder-decoders; `readers` blocks read the shifted
    labels."""

    def __init__(self, vocabulary=30, width=8, readers=1):
        super().__init__()
        self.embeddings = nn.ModuleList([nn.Embedding(vocabulary, width) for _ in range(readers)])
        self.mixes = nn.ModuleList([nn.Linear(width, width) for _ in range(readers)])
        self.output = nn.Linear(width, vocabulary)

    def forward(self, labels):
        before = labels.new_zeros(labels.shape)
        before[:, 1:] = labels[:, :-1].clone()
        before[before == 3] = 1
        hidden = 0
        for embedding, mix in zip(self.embeddings, self.mixes):
            hidden = torch.tanh(mix(hidden + embedding(before)))
        return functional.cross_entropy(self.output(hidden).flatten(0, 1), labels.flatten())


class ChangingMask(nn.Module):
    """One block reads a mask, which is then changed for the blocks after it."""

    def __init__(self, width=8):
        super().__init__()
        self.blocks = nn.ModuleList([nn.Linear(8 if index == 0 else width, width) for index in range(4)])
        self.head = nn.Linear(width, 4)

    def forward(self, x):
        mask = torch.ones(x.shape[-1])
        x = torch.tanh(self.blocks[0](x) + mask)
        x = self.blocks[1](x)
        mask[0] = 0  # a sum's gradient does not need it
        x = torch.tanh(self.blocks[2](x + mask))
        return self.head(self.blocks[3](x + mask))


class CachedAutocast(nn.Module):
    """Autocast with cached casts around the whole body, in which a layer is called twice: its weight is cast once, and
    the gradients of both calls are added in bfloat16."""

    def __init__(self, width=8):
        super().__init__()
        self.blocks = nn.ModuleList([nn.Linear(8 if index == 0 else width, width) for index in range(4)])
        self.shared = nn.Linear(width, width)
        self.head = nn.Linear(width, 4)

    def forward(self, x):
        with torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=True):
            x = torch.relu(self.blocks[0](x))
            x = functional.dropout(self.shared(x), 0.1)
            x = torch.relu(self.blocks[1](x))
            x = self.shared(x) + x * x.shape[0]
            x = torch.relu(self.blocks[2](x))
            x = self.head(self.blocks[3](x))
        return x.float()


class NestedModes(nn.Module):
    """Autocast inside no_grad, and autocast by itself, each around blocks; one block updates a buffer. (For no_grad
    inside autocast, torch.export loses that no gradient is needed.)"""

    def __init__(self, width=8):
        super().__init__()
        self.blocks = nn.ModuleList([nn.Linear(8 if index == 0 else width, width) for index in range(6)])
        self.head = nn.Linear(width, 4)
        self.register_buffer("mean", torch.zeros(width))

    def forward(self, x):
        with torch.no_grad():
            x = torch.tanh(self.blocks[0](x)).view(x.shape[0], -1)
            with torch.autocast("cpu", dtype=torch.bfloat16):
                x = functional.dropout(self.blocks[1](x), 0.2)
            x = self.blocks[2](x.float())
            self.mean.mul_(0.9).add_(x.mean(0), alpha=0.1)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            x = torch.relu(self.blocks[3](x / x.shape[0]))
            x = functional.dropout(self.blocks[4](x), 0.2)
            x = self.blocks[5](x)
        return self.head(x.float() - self.mean)


class UnreadDropout(nn.Module):
    """Draws random numbers that are not used, before others that are."""

    def __init__(self, width=8):
        super().__init__()
        self.blocks = nn.ModuleList([nn.Linear(8 if index == 0 else width, width) for index in range(3)])
        self.drop = nn.Dropout(0.3)
        self.head = nn.Linear(width, 4)

    def forward(self, x):
        x = torch.tanh(self.blocks[0](x))
        self.drop(x)
        with torch.no_grad():
            scale = x.abs().mean() + 1
            functional.dropout(x, 0.4)
        x = self.drop(torch.tanh(self.blocks[1](x))) / scale
        torch.rand(x.shape[0])
        return self.head(self.drop(torch.tanh(self.blocks[2](x))))


class ChecksValues(nn.Module):
    """Checks of its input's values, in the ways of torch, which change nothing."""

    def __init__(self, kind="all"):
        super().__init__()
        self.kind = kind
        self.stack = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4))

    def forward(self, x):
        if self.kind == "number":
            largest = x.abs().max().long().item()
            torch._check(largest < 100)
            return self.stack(x)
        mask = x > 1e6
        if self.kind == "all":
            torch._check_tensor_all(~mask)
        elif self.kind == "item":
            torch._check((~mask).all().item())
        elif self.kind == "selected":
            torch._check(x[mask].numel() == 0)
        elif self.kind == "assert":
            torch._assert((~mask).all(), "too large")
        else:
            torch._assert_async((~mask).all(), "too large")
        return self.stack(x)


class EmaTeacher(nn.Module):
    """Frozen parameters, which forward moves towards those of the student."""

    def __init__(self):
        super().__init__()
        self.student = nn.Linear(8, 8)
        self.teacher = nn.Linear(8, 8).requires_grad_(False)
        self.head = nn.Sequential(nn.ReLU(), nn.Linear(8, 4))

    def forward(self, x):
        with torch.no_grad():
            for slow, fast in zip(self.teacher.parameters(), self.student.parameters()):
                slow.mul_(0.9).add_(fast, alpha=0.1)
        return self.head(self.student(x) + self.teacher(x))


class Vmapped(nn.Module):
    """Computes sample by sample with torch.vmap."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.second = nn.Linear(8, 4)

    def forward(self, x):
        return self.second(torch.vmap(lambda sample: torch.tanh(self.first(sample)))(x))


class GradientInside(nn.Module):
    """Uses a derivative of its own layer."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.second = nn.Linear(8, 4)

    def forward(self, x):
        hidden = self.first(x)
        (slope,) = torch.autograd.grad(hidden.pow(2).sum(), hidden, create_graph=True)
        return self.second(hidden + slope)


class RootOperators(nn.Module):
    """Computes in its own forward, without modules."""

    def __init__(self):
        super().__init__()
        self.first = nn.Parameter(torch.randn(8, 16) / 3)
        self.second = nn.Parameter(torch.randn(16, 16) / 4)
        self.third = nn.Parameter(torch.randn(16, 4) / 4)

    def forward(self, x):
        return torch.tanh(torch.tanh(x @ self.first) @ self.second) @ self.third
