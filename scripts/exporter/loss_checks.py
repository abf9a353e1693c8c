"""What the loss trains, and how that of a batch follows from those of its microbatches."""

import copy
import dataclasses
import math
import warnings

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from .errors import InputError, notice

MOST_DOUBLES = 10_000_000  # parameters of a model that is copied in double precision
SAMPLES = 6  # compared with two halves; not 4: an untrained contrastive loss is log(samples), and log 4 = 2 log 2
aten = torch.ops.aten
ENTROPIES = (aten.cross_entropy_loss.default, aten.nll_loss_nd.default)
# Of these, a loss is a multiple of the first argument, or a sum of its elements.
LINEAR = (aten.mul.Tensor, aten.mul.Scalar, aten.div.Tensor, aten.div.Scalar, aten.neg.default, aten.sum.default, aten.mean.default)
SHAPES = (aten.view.default, aten.reshape.default, aten.flatten.using_ints, aten.slice.Tensor, aten.select.int, aten.squeeze.default,
          aten.squeeze.dim, aten.unsqueeze.default, aten.transpose.int, aten.permute.default, aten.contiguous.default,
          aten.clone.default, aten.alias.default, aten.narrow.default, aten.to.dtype, aten._to_copy.default, aten.detach.default)


def check_gradients(model, tensors, seed, name):
    """Throws InputError if the loss of `model`, a copy that this may run, has no gradient although a parameter is trainable. Names
    trainable parameters that get none."""
    trainable = {key: each for key, each in model.named_parameters() if each.requires_grad}
    if not trainable:
        return
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(seed)
        try:
            loss = model(*tensors)[0]
            if loss.requires_grad and not loss.is_meta:
                loss.backward()
        except Exception:
            return  # comparing the program with the model runs it again, and says where it fails
    if not loss.requires_grad:
        raise InputError(f"--loss: the loss of {name} has no gradient, so that no parameter would be trained; it must follow from "
                         f"the parameters by differentiable operators, without detach, torch.no_grad or argmax")
    missing = [] if loss.is_meta else [key for key, each in trainable.items() if each.grad is None]
    if missing:
        listed = ", ".join(missing[:5]) + (f" and {len(missing) - 5} more" if len(missing) > 5 else "")
        one = len(missing) == 1
        notice(f"{listed} {'gets' if one else 'get'} no gradient from the loss, so training leaves {'it' if one else 'them'} unchanged")


@dataclasses.dataclass(frozen=True)
class Weight:
    """What the loss of a program is divided by: max(count, least) + added. `count` is a node of its graph; with `ignored`, of labels:
    then those count that are not ignored, by the weights of their classes if there are any. `labels`: the input of which `count` is a
    view, without weights; then it is the same for all microbatches unless that input has labels to ignore."""

    count: torch.fx.Node
    ignored: int | None = None
    class_weights: torch.fx.Node | None = None
    least: float = 0
    added: float = 0
    labels: str | None = None

    def divisor(self, counted):
        return max(counted, self.least) + self.added

    def description(self):
        """As in extra/stagecraft.json."""
        return {"count": self.count.name, **({} if self.ignored is None else {"ignored": self.ignored}),
                **({} if self.class_weights is None else {"class_weights": self.class_weights.name}),
                "least": self.least, "added": self.added, **({} if self.labels is None else {"labels": self.labels})}

    def varies(self, inputs):
        """Whether it may differ between microbatches."""
        bounds = next((each.range for each in inputs if each.name == self.labels), None)
        return bounds is None or bounds[0] <= self.ignored < bounds[1]


def weight_of(exported, inputs):
    """The Weight of a program's loss, its first output; None if it is divided by nothing that follows from the inputs."""
    nodes = {node.name: node for node in exported.graph.nodes}
    root = nodes.get(exported.graph_signature.user_outputs[0])
    found = next((each for each in _weights(root) if _follows_from_data(exported, each)), None) if root is not None else None
    return None if found is None else dataclasses.replace(found, labels=_labels(found, inputs))


def _weights(node):
    """The Weights that divide terms of a loss, outermost first."""
    if not isinstance(node, torch.fx.Node) or node.op != "call_function":
        return
    target, given = node.target, node.args
    if target in ENTROPIES:
        call = dict(zip((each.name for each in target._schema.arguments), given)) | node.kwargs
        if call.get("reduction", 1) == 1 and not call["target"].meta["val"].is_floating_point():
            yield Weight(call["target"], call.get("ignore_index", -100), call.get("weight"))
    elif target is aten.div.Tensor and _is_number(given[1]):
        yield _unguarded(given[1])
    if target in (aten.add.Tensor, aten.sub.Tensor):
        for part in given[:2]:
            yield from _weights(part)
    elif target in LINEAR + SHAPES:
        for part in given[:2] if target is aten.mul.Tensor else given[:1]:
            yield from _weights(part)


def _is_number(node):
    value = node.meta.get("val") if isinstance(node, torch.fx.Node) else None
    return isinstance(value, torch.Tensor) and value.dim() == 0


def _unguarded(node):
    """The Weight of a divisor, of which clamp(min=least) and + added keep it from 0."""
    least = added = 0
    if node.target is aten.add.Tensor and isinstance(node.args[1], (int, float)) and not node.kwargs:
        node, added = node.args
    if node.target in (aten.clamp.default, aten.clamp_min.default) and len(node.args) == 2 and not node.kwargs:
        node, least = node.args
    return Weight(node, least=least, added=added)


def _ancestors(*roots):
    open_nodes, seen = [node for node in roots if node is not None], {}
    while open_nodes:
        node = open_nodes.pop()
        if node not in seen:
            seen[node] = None
            open_nodes += node.all_input_nodes
    return list(seen)


def _follows_from_data(exported, weight):
    """Whether it depends on no parameter, no buffer that forward writes and no random number: then it is known before the forward."""
    signature = exported.graph_signature
    trained = {name for name, parameter in exported.named_parameters() if parameter.requires_grad}
    varying = {place for place, name in signature.inputs_to_parameters.items() if name in trained}
    for node in exported.graph.nodes:
        schema = getattr(node.target, "_schema", None)
        if schema is not None and schema.is_mutable:
            varying |= {each.name for each in node.all_input_nodes[:1]}
    ancestors = _ancestors(weight.count, weight.class_weights)
    return not any(node.name in varying or torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()) or
                   node.op == "get_attr" for node in ancestors)


def _labels(weight, inputs):
    """The input of which the labels of a Weight are a view."""
    node = weight.count
    while node.op == "call_function" and node.target in SHAPES:
        node = node.args[0]
    viewed = weight.ignored is not None and weight.class_weights is None and any(each.name == node.name for each in inputs)
    return node.name if viewed else None


def counted(exported, weight, inputs, tensors):
    """What `tensors` of `inputs` count in the weight of a program's loss."""
    signature, values = exported.graph_signature, dict(zip((each.name for each in inputs), tensors))
    stored = {**exported.constants, **exported.state_dict}
    names = {**signature.inputs_to_parameters, **signature.inputs_to_buffers, **signature.inputs_to_lifted_tensor_constants}
    wanted, done = set(_ancestors(weight.count, weight.class_weights)), {}
    for node in exported.graph.nodes:
        if node not in wanted:
            continue
        if node.op == "placeholder":
            done[node] = values[node.name] if node.name in values else stored[names[node.name]]
        else:
            given, named = torch.fx.map_arg((node.args, node.kwargs), done.__getitem__)
            done[node] = node.target(*given, **named)
    found = done[weight.count]
    if weight.ignored is not None:
        kept = found != weight.ignored
        found = kept if weight.class_weights is None else done[weight.class_weights][found[kept]]
    return found.double().sum().item()


class _Still(TorchDispatchMode):
    """Random numbers are the same for every sample, nothing is normalised over a batch, `kept` tensors are not written, and
    casts to less precision change nothing."""

    def __init__(self, kept):
        super().__init__()
        self._kept = {tensor.untyped_storage().data_ptr() for tensor in kept}

    def __torch_dispatch__(self, function, types, given=(), named=None):
        name = function.overloadpacket.__name__
        if function._schema.is_mutable and isinstance(given[0], torch.Tensor) and self._keeps(given[0]):
            return given[0]
        if name == "_to_copy" and given[0].is_floating_point() and (named or {}).get("dtype") in (torch.bfloat16, torch.float16):
            named = named | {"dtype": given[0].dtype}
        if name in ("native_batch_norm", "_native_batch_norm_legit", "_native_batch_norm_legit_functional"):
            training = given[5] if function._overloadname == "default" else given[3]
            if training:
                shape = [1, -1] + [1] * (given[0].dim() - 2)
                out = given[0] if given[1] is None else given[0] * given[1].view(shape)
                out = out if given[2] is None else out + given[2].view(shape)
                return (out, *(given[0].new_zeros(given[0].shape[1]) for _ in range(2)))
        out = function(*given, **(named or {}))
        if torch.Tag.nondeterministic_seeded not in function.tags or not isinstance(out, torch.Tensor):
            return out
        if name == "bernoulli":
            return given[0].clone()
        if name == "bernoulli_":
            return out.fill_(given[1]) if len(given) > 1 and isinstance(given[1], float) else out.fill_(0.5)
        if name.startswith("randint"):
            return out.fill_(given[-3] if len(given) > 2 and isinstance(given[-3], int) else 0)
        if name in ("rand", "rand_like", "randn", "randn_like", "normal", "normal_"):
            return out.fill_(0.5)
        if name == "uniform_":
            return out.fill_(sum(given[1:3]) / 2 if len(given) > 2 else 0.5)
        return out

    def _keeps(self, tensor):
        return tensor.numel() > 0 and tensor.untyped_storage().data_ptr() in self._kept


def kind_of(eager, inputs, exported, weight, seed):
    """How the loss of a batch follows from those of its halves: "mean"; "weighted" by `weight`; "sum"; "across", not at all. Throws what
    the model throws if they cannot be computed; None if none is a number. `eager` returns its loss first, and stays as it is."""
    error = None
    # Doubles show small differences; a model whose types are fixed, or that has no loss in evaluation mode, runs as it is.
    small = sum(parameter.numel() for parameter in eager.parameters()) <= MOST_DOUBLES
    for evaluation, double in [(True, True)] * small + [(True, False), (False, False)]:
        trial = copy.deepcopy(eager).train(not evaluation and eager.training)
        try:
            return _kind_of(trial.double() if double else trial, inputs, exported, weight, seed, double)
        except Exception as found:
            error = error or found
    raise error


def _kind_of(model, inputs, exported, weight, seed, double):
    kinds = None

    def value(tensors):
        torch.manual_seed(seed)
        with _Still([*model.parameters(), *model.buffers()]):
            found = model(*(tensor.clone() for tensor in tensors))[0].detach()
        return found.double().item(), {torch.float64: 1e-9, torch.float32: 1e-5}.get(found.dtype, 4 * torch.finfo(found.dtype).eps)

    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for whole in _batches(inputs, seed):
            whole = [tensor.double() if double and tensor.is_floating_point() else tensor for tensor in whole]
            halves = [[tensor if each.batch_axis is None else tensor.narrow(each.batch_axis, first, SAMPLES // 2).contiguous()
                       for each, tensor in zip(inputs, whole)] for first in (0, SAMPLES // 2)]
            full, tolerance = value(whole)
            parts = [value(half)[0] for half in halves]
            fitting = _fitting(full, parts, weight and [counted(exported, weight, inputs, each) for each in (whole, *halves)],
                               weight, tolerance)
            if fitting is not None:
                kinds = fitting if kinds is None else kinds & fitting
    return kinds if kinds is None else next((kind for kind in ("weighted", "mean", "sum") if kind in kinds), "across")


def _fitting(full, parts, counts, weight, tolerance):
    """The kinds that explain a loss by its parts; None if one is not a number."""
    def close(value, tolerance=tolerance):
        return math.isclose(full, value, rel_tol=tolerance, abs_tol=tolerance * 1e-3)

    out = set()
    if weight is not None:
        divisors = [weight.divisor(each) for each in counts[1:]]
        together = weight.divisor(sum(counts[1:]))
        parts = [part if divisor else 0 for part, divisor in zip(parts, divisors)]
        # Sums of a mask are rounded as the program's types are.
        if together and close(sum(part * divisor for part, divisor in zip(parts, divisors)) / together,
                              tolerance if weight.ignored is not None else max(tolerance, 1e-6)):
            out.add("weighted")
        if 0 in divisors:
            return out if all(map(math.isfinite, (full, *parts))) else None
    if not all(map(math.isfinite, (full, *parts))):
        return None
    return out | ({"mean"} if close(sum(parts) / 2) else set()) | ({"sum"} if close(sum(parts)) else set())


def _batches(inputs, seed):
    """Batches of SAMPLES samples: as drawn; with other labels and masks; and with none of them in the first half."""
    generator = torch.Generator().manual_seed(seed)
    drawn = [each.draw(SAMPLES, generator) for each in inputs]
    yield drawn
    empty, varied = [_masked(each, tensor, generator) for each, tensor in zip(inputs, drawn)], []
    for each, tensor, masked in zip(inputs, drawn, empty):
        if each.batch_axis is None:
            varied.append(tensor)
        elif masked is not None:
            varied.append(masked)
        else:
            varied.append(tensor.index_select(each.batch_axis, torch.randperm(SAMPLES, generator=generator)))
    yield varied
    if any(masked is not None for masked in empty):
        yield [tensor if masked is None else _first_half_empty(each, masked)
               for each, tensor, masked in zip(inputs, varied, empty)]


def _masked(each, tensor, generator):
    """Other labels, of which three in ten are ignored, or another mask; None for other inputs."""
    if each.batch_axis is None:
        return None
    low, high = each.range or (0, 0)
    dropped = torch.rand(tensor.shape, generator=generator) < 0.3
    if each.is_whole() and low < 0 < high:
        return torch.randint(0, high, tensor.shape, generator=generator).to(tensor.dtype).masked_fill(dropped, low)
    if bool(((tensor == 0) | (tensor == 1)).all()) and not (each.is_whole() and high > 2):
        return dropped.logical_not().to(tensor.dtype)
    return None


def _first_half_empty(each, masked):
    out = masked.clone()
    out.narrow(each.batch_axis, 0, SAMPLES // 2).fill_(each.range[0] if each.range and each.range[0] < 0 else 0)
    return out
