"""Fixes to a model, and to torch, before torch.export."""

import contextlib
import copy
import dataclasses
import functools
import inspect
import itertools
import sys
from unittest import mock

import torch
from torch.nn import functional
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm
from torch.overrides import TorchFunctionMode

from .errors import ExportError, notice


def uncompiled(function):
    """Runs `function` with every torch.compile switched off: compiled code rounds differently and cannot be exported."""

    @functools.wraps(function)
    def run(*given, **named):
        with torch.compiler.set_stance("force_eager"):
            return function(*given, **named)

    return run


def copied(model):
    """A copy of the user's model in which parameters that share their memory are one. Throws ExportError."""
    groups = _one_memory(model)
    model = copy.deepcopy(model)
    _tie(model, groups)
    return model


def prepared(model):
    """The model without wrappers of torch.compile, and in a form that can be copied: parameters that share their memory are one.
    Throws ExportError."""
    model = without_compile(model)
    _tie(model, _one_memory(model))
    for path, module in model.named_modules():
        _keep_recomputed(module, path or type(module).__name__)
    return model


def without_compile(model):
    """The model as it was before torch.compile(model) or model.compile(), its modules likewise."""
    from torch._dynamo import OptimizedModule

    while isinstance(model, OptimizedModule):
        model = model._orig_mod
    for module in model.modules():
        module._compiled_call_impl = None
        for name, child in module._modules.items():
            while isinstance(child, OptimizedModule):
                child = module._modules[name] = child._orig_mod
    return model


@dataclasses.dataclass(frozen=True)
class _Memory:
    """The bytes [begin, end) that the tensor `name` has of a storage; `trains`: they change in training."""

    name: str
    tensor: torch.Tensor
    begin: int
    end: int
    trains: bool


def check_written(model, written):
    """Throws ExportError if one of the buffers `written` by forward shares memory with another tensor, which would not change."""
    for a, b in _overlaps(_memories(model)):
        if a.name in written or b.name in written:
            changed, other = (a, b) if a.name in written else (b, a)
            raise ExportError(f"{other.name} has memory of buffer {changed.name}, which forward writes; an exported program cannot "
                              f"keep that: {other.name} would stay as it is; read {changed.name} in forward instead")


def _one_memory(model):
    """Groups of names of trainable parameters that are separate objects over the same memory: copies would separate them. Throws
    ExportError for other tensors that share memory with a trainable parameter."""
    storages = _memories(model)
    for a, b in _overlaps(storages):
        if (a.trains or b.trains) and not (a.trains and b.trains and _form(a.tensor) == _form(b.tensor)):
            trained, other = (a, b) if a.trains else (b, a)
            raise ExportError(f"{other.name} has memory of parameter {trained.name}, which an exported program cannot keep: training "
                              f"would leave {other.name} behind; compute it from {trained.name} in forward, or clone() it if it "
                              f"should not change")
    groups = []
    for memories in storages:
        trained = [each for each in memories if each.trains]
        for form in {_form(each.tensor) for each in trained}:
            same = [each for each in trained if _form(each.tensor) == form]
            if len({id(each.tensor) for each in same}) > 1:
                groups.append([each.name for each in same])
    return groups


def _overlaps(storages):
    """Pairs of different tensors with memory in common."""
    for memories in storages:
        for a, b in itertools.combinations(memories, 2):
            if a.tensor is not b.tensor and a.begin < b.end and b.begin < a.end:
                yield a, b


def _memories(model):
    """A list of _Memory for each storage of `model`."""
    storages = {}
    for name, tensor, is_parameter in _tensors(model):
        if type(tensor) not in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer) or tensor.layout != torch.strided or not tensor.numel():
            continue
        storage, begin, each = tensor.untyped_storage(), tensor.storage_offset(), tensor.element_size()
        end = begin + sum((extent - 1) * stride for extent, stride in zip(tensor.shape, tensor.stride())) + 1
        storages.setdefault(storage.data_ptr() or storage._cdata, []).append(
            _Memory(name, tensor, begin * each, end * each, is_parameter and tensor.requires_grad))
    return list(storages.values())


def _form(tensor):
    return tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype


def _tensors(model):
    """(name, tensor, whether it is a registered parameter) of the tensors of all modules: parameters, buffers and attributes, also
    in a list, tuple or dict. Without what torch.nn.utils.spectral_norm and the like compute before each forward."""
    for path, module in model.named_modules():
        prefix = f"{path}." if path else ""
        for name, tensor in module._parameters.items():
            if tensor is not None:
                yield prefix + name, tensor, True
        for name, tensor in module._buffers.items():
            if tensor is not None:
                yield prefix + name, tensor, False
        for name, value in vars(module).items():
            if name in ("_parameters", "_buffers", "_modules") or (module._forward_pre_hooks and f"{name}_orig" in module._parameters):
                continue
            several = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else [value]
            for tensor in several:
                if isinstance(tensor, torch.Tensor):
                    yield prefix + name, tensor, False


def _tie(model, groups):
    for first, *others in groups:
        parameter = model.get_parameter(first)
        for name in others:
            path, _, leaf = name.rpartition(".")
            model.get_submodule(path)._parameters[leaf] = parameter
        notice(f"{', '.join([first, *others])} share their memory and are exported as one parameter with the sum of their gradients "
               f"(an optimizer in Python, which holds them as {1 + len(others)}, updates that memory {1 + len(others)} times a step)")


class _Kept:
    """A tensor that torch.export does not see, because it is not an attribute of a module."""

    value = None

    def __deepcopy__(self, memo):
        out = _Kept()
        out.value = None if self.value is None else self.value.detach().clone()
        return out


def _keep_recomputed(module, path):
    """Old weight_norm and spectral_norm set a tensor before each forward, which can neither be copied nor exported as
    an attribute. This makes the attribute a property of the module's class."""
    names = [hook.name for hook in module._forward_pre_hooks.values() if isinstance(hook, (WeightNorm, SpectralNorm))]
    names = [name for name in names if name in vars(module)]
    if not names:
        return
    if isinstance(module, torch.nn.RNNBase):
        raise ExportError(f"{path}: torch.nn.utils.weight_norm of an {type(module).__name__} cannot be exported; use "
                          f"torch.nn.utils.parametrizations.weight_norm")
    fields = {}
    for name in names:
        kept = f"_kept_{name}"
        vars(module)[kept] = _Kept()
        vars(module)[kept].value = vars(module).pop(name)
        fields[name] = property(lambda self, kept=kept: vars(self)[kept].value,
                                lambda self, value, kept=kept: setattr(vars(self)[kept], "value", value))
    base = type(module)
    module.__class__ = type(base.__name__, (base,), fields | {"__module__": base.__module__, "__qualname__": base.__qualname__})


@contextlib.contextmanager
def right_states():
    """Context in which torch gives the last states of an LSTM the right shape: 2.11 adds an axis of 1 to those of each
    layer (pytorch/pytorch#151200)."""
    from torch._decomp import decompositions

    one_layer = decompositions.one_layer_lstm

    def run(input, states, *given, **named):
        output, last = one_layer(input, states, *given, **named)
        return output, tuple(each.reshape(state.shape) for each, state in zip(last, states))

    with mock.patch.object(decompositions, "one_layer_lstm", run):
        yield


@contextlib.contextmanager
def untraced():
    """Context in which models of transformers compute as in a normal run. While torch.export traces, some compute the same
    in another way, which rounds differently (qwen3_next), and they write out causal masks, which a run leaves to the attention kernel: a program for any number of tokens could not
    choose, and values, such as positions that start anew where sequences are packed into one, are not known. Here the
    number of tokens is fixed, and positions that all samples share, or that have no values, are of one sequence."""
    masks = sys.modules.get("transformers.masking_utils")
    packed_of = getattr(masks, "find_packed_sequence_indices", None)

    def run(position_ids):
        return None if position_ids.stride(0) == 0 or position_ids.is_meta else packed_of(position_ids)

    # Modules that also ask is_torchdynamo_compiling choose by both answers, and an export is a compilation.
    asking = [module for name, module in list(sys.modules.items())
              if module is masks or name.startswith("transformers.models.") and not hasattr(module, "is_torchdynamo_compiling")]
    asking = [module for module in asking if hasattr(module, "is_torchdynamo_exporting")]
    with contextlib.ExitStack() as stack:
        for module in asking:
            stack.enter_context(mock.patch.object(module, "is_torchdynamo_exporting", lambda: False))
        if packed_of is not None:
            stack.enter_context(mock.patch.object(masks, "find_packed_sequence_indices", run))
        yield


@contextlib.contextmanager
def unasserted():
    """Context in which torch._assert ignores conditions that are tensors, whose values torch.export does not have."""
    before = torch._assert

    def run(condition, message):
        if not isinstance(condition, torch.Tensor):
            before(condition, message)

    with mock.patch.object(torch, "_assert", run):
        yield


@contextlib.contextmanager
def unvalidated():
    """Context in which torch.distributions checks arguments only if validate_args=True asks for it."""
    base = torch.distributions.Distribution
    before = base._validate_args
    base.set_default_validate_args(False)
    try:
        yield
    finally:
        base.set_default_validate_args(before)


def _rows(arguments):
    return arguments["input"], arguments["weight"].shape[0]


def _classes(arguments):
    scores = arguments["input"]
    return arguments["target"], scores.shape[1 if scores.dim() > 1 else 0]


def _same_memory(tensor, view):
    if tensor.is_meta:  # all of those begin at address 0
        return view is tensor or view._base is tensor
    return tensor.data_ptr() == view.data_ptr()


class IndexRanges(TorchFunctionMode):
    """Learns the range of integer inputs from a run: of those of `tensors` (by name) that, as a whole, index rows of
    an embedding or classes of a loss."""

    _OF = {functional.embedding: _rows, functional.embedding_bag: _rows, functional.cross_entropy: _classes,
           functional.nll_loss: _classes}

    def __init__(self, tensors):
        super().__init__()
        self._tensors, self._ends = tensors, {}

    def __torch_function__(self, function, types, given=(), named=None):
        if function in self._OF:
            index, end = self._OF[function](inspect.signature(function).bind(*given, **(named or {})).arguments)
            for name, tensor in self._tensors.items():
                if _same_memory(tensor, index) and tensor.numel() == index.numel() and not index.is_floating_point():
                    self._ends[name] = min(end, self._ends.get(name, end))
        return function(*given, **(named or {}))

    def ranges(self):
        """(low, high) by name, high excluded."""
        return {name: (0, end) for name, end in self._ends.items()}
