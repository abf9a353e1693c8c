"""A record of training in Python, which a run without Python must reproduce."""

import copy
import ctypes
import dataclasses
import json
import os
import struct

import torch

from . import loss_checks, prepare
from .errors import ExportError, InputError, WriteError, progress
from .inputs import draw_all
from .self_check import module_of, one_thread, same

_MASK = (1 << 64) - 1
_TYPES = {torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64",
          torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
          torch.complex64: "C64"}


def _scramble(x):
    x = (x + 0x9E3779B97F4A7C15) & _MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)


def mix_seed(seed, word, a=0, b=0):
    """The same 64 bits as mix_seed of executor/model/model.h."""
    value = 0xCBF29CE484222325
    for byte in word.encode():
        value = ((value ^ byte) * 0x100000001B3) & _MASK
    for part in (seed, a, b):
        value = _scramble(value ^ _scramble(part & _MASK))
    return value


def is_random(node, owner):
    """Whether a node of the graph of module `owner` may draw from torch's generator."""
    target = node.target
    if node.op != "call_function":
        return False
    if isinstance(target, torch._ops.HigherOrderOperator):
        inner = [getattr(owner, each.target, None) for each in node.all_input_nodes if each.op == "get_attr"]
        return any(has_random(module) for module in inner if isinstance(module, torch.fx.GraphModule))
    return isinstance(target, torch._ops.OpOverload) and torch.Tag.nondeterministic_seeded in target.tags


def has_random(module):
    return any(is_random(node, module) for node in module.graph.nodes)


def is_block(node):
    """Whether a node runs its graph under torch.no_grad, torch.enable_grad or torch.autocast, node by node, as outside it."""
    return (isinstance(node.target, torch._ops.HigherOrderOperator)
            and node.target.name() in ("wrap_with_set_grad_enabled", "wrap_with_autocast"))


def _names(module, prefix=""):
    """Names of the operators of a graph and of its blocks: "relu", "linear_3.relu"."""
    out = []
    for node in module.graph.nodes:
        if node.op == "call_function":
            out.append(prefix + node.name)
            if is_block(node):
                for each in node.all_input_nodes:
                    inner = getattr(module, each.target, None) if each.op == "get_attr" else None
                    if isinstance(inner, torch.fx.GraphModule):
                        out += _names(inner, f"{prefix}{node.name}.")
    return out


class _Seeded(torch.fx.Interpreter):
    """Seeds torch's generator before each random node of the outermost graph and of its blocks, by the name in _names."""

    def __init__(self, module, seed, place=(0, 0), prefix=""):
        super().__init__(module)
        self.seed, self.place, self.prefix = seed, place, prefix

    def run_node(self, node):
        if is_block(node):
            arguments, _ = self.fetch_args_kwargs_from_env(node)
            return node.target(*(self._seeded(each, node) if isinstance(each, torch.fx.GraphModule) else each for each in arguments))
        if is_random(node, self.module):
            torch.manual_seed(mix_seed(self.seed, self.prefix + node.name, *self.place))
        return super().run_node(node)

    def _seeded(self, block, node):
        return _Seeded(block, self.seed, self.place, f"{self.prefix}{node.name}.").run


@dataclasses.dataclass
class Training:
    """How to train for a record: `samples` in each of `microbatches` per step."""

    steps: int = 3
    microbatches: int = 2
    samples: int = 2
    learning_rate: float = 0.1
    seed: int = 0


def check_training(program, training):
    """Throws ExportError if the program cannot be trained like this."""
    if not program.has_loss:
        raise InputError("--record: the program has no loss; add one with --loss")
    if program.loss_kind == "across" and training.microbatches > 1:
        raise InputError(f"--record: the loss of a batch does not follow from those of {training.microbatches} microbatches; use "
                         f"--microbatches 1, or accept their mean with --loss-of-microbatches")
    if not program.least <= training.samples <= program.most:
        wanted = f"{program.least}" if program.least == program.most else f"{program.least} to {program.most}"
        raise InputError(f"--samples {training.samples}: the program takes microbatches of {wanted}")


@prepare.uncompiled
def make_record(program, training):
    """The record's tensors by name. Throws ExportError if a model without random operators trains differently, unless
    it was exported with rounding differences allowed."""
    check_training(program, training)
    return one_thread(lambda: _make_record(program, training))


def _make_record(program, training):
    module = module_of(program.exported)
    if _names(module) != _names(program.exported.graph_module):
        raise ExportError("--record: torch renamed the nodes of the program, so its random numbers cannot be repeated")
    interpreter = _Seeded(module, training.seed)

    def run(step, microbatch, tensors):
        interpreter.place = step, microbatch
        return interpreter.run(*tensors)

    count = training.steps * training.microbatches
    drawn = draw_all(program.inputs, count * training.samples, mix_seed(training.seed, "record"))
    progress(f"training {training.steps} steps for the record")
    out = dict(zip((each.name for each in program.inputs), drawn))
    shares = _shares(program, drawn, training)
    out |= _train(module, run, program.inputs, drawn, training, shares)
    if not program.rounding and not has_random(module):
        eager = copy.deepcopy(program.eager)
        other = _train(eager, lambda step, microbatch, tensors: eager(*tensors), program.inputs, drawn, training,
                       shares)
        for name, tensor in other.items():
            if not same(tensor, out.get(name)):
                raise ExportError(f"--record: {name} differs between the model and the exported program")
    return out


def _shares(program, drawn, training):
    """By step and microbatch: what its loss counts in the mean over microbatches, as loss_shares of executor/run computes it."""
    count, weight = training.microbatches, program.loss_weight
    if weight is None:
        return [[float(count) if program.loss_kind == "sum" else 1.0] * count] * training.steps
    out = []
    for step in range(training.steps):
        counts = [loss_checks.counted(program.exported, weight, program.inputs,
                                      _microbatch(program.inputs, drawn, training, step, microbatch)) for microbatch in range(count)]
        divisor = weight.divisor(sum(counts))
        out.append([weight.divisor(each) * count / divisor if divisor else 0.0 for each in counts])
    return out


def _microbatch(inputs, drawn, training, step, microbatch):
    first = (step * training.microbatches + microbatch) * training.samples
    return [tensor.clone() if each.batch_axis is None else
            tensor.narrow(each.batch_axis, first, training.samples).clone(memory_format=torch.contiguous_format)
            for each, tensor in zip(inputs, drawn)]


def make_eager_record(model, inputs, training):
    """The record of a model as it is, which must give its loss and draw no random numbers."""
    count = training.steps * training.microbatches

    def run():
        drawn = draw_all(inputs, count * training.samples, mix_seed(training.seed, "record"))
        out = dict(zip((each.name for each in inputs), drawn))
        return out | _train(model, lambda step, microbatch, tensors: [model(*tensors)], inputs, drawn, training)

    return one_thread(run)


def _train(model, run, inputs, drawn, training, shares=None):
    parameters = dict(model.named_parameters(remove_duplicate=False))
    trainable = list({id(each): each for each in parameters.values() if each.requires_grad}.values())
    persistent, versions = set(model.state_dict()), {name: buffer._version for name, buffer in model.named_buffers()}
    out, losses = {}, torch.empty(training.steps, training.microbatches)
    optimizer = torch.optim.SGD(trainable, lr=training.learning_rate, foreach=False)
    for step in range(training.steps):
        for parameter in trainable:
            parameter.grad = None
        for microbatch in range(training.microbatches):
            loss = run(step, microbatch, _microbatch(inputs, drawn, training, step, microbatch))[0]
            share = shares[step][microbatch] if shares else 1.0
            losses[step, microbatch] = loss.detach() * share if share else 0
            if share:
                loss.backward(torch.full_like(loss, share))
        for name, parameter in parameters.items():
            if parameter.grad is not None:
                out[f"gradient.{step}/{name}"] = parameter.grad.clone()
        for parameter in trainable:
            if parameter.grad is not None:
                parameter.grad.div_(training.microbatches)
        optimizer.step()
    out["loss"] = losses
    for name, parameter in parameters.items():
        out[f"parameter/{name}"] = parameter.detach().clone()
    for name, buffer in model.named_buffers(remove_duplicate=False):
        if name in persistent or buffer._version != versions.get(name, buffer._version):
            out[f"buffer/{name}"] = buffer.detach().clone()
    return out


def cpu_kernels():
    """The settings that affect the last bits of the record, as in cpu_kernels of device/machine/processor.h."""
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        names = [line.partition(":")[2].strip() for line in file if line.startswith("model name")]
    limits = ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA", "MKL_ENABLE_INSTRUCTIONS", "MKL_CBWR")
    return {"processor": names[0] if names else "unknown processor",
            "cpu_capability": torch.backends.cpu.get_cpu_capability(),
            "torch": torch.__version__.split("+")[0],
            "kernel_settings": " ".join(f"{name}={os.environ[name]}" for name in limits if name in os.environ)}


def save_record(path, tensors, training):
    """Writes a safetensors file; `path` is either the old file or the complete new one."""
    metadata = {"format": "stagecraft.record", "version": "2", "threads": "1"} | {
        key: str(value) for key, value in dataclasses.asdict(training).items()} | cpu_kernels()
    header, place, blocks = {"__metadata__": metadata}, 0, []
    for name, tensor in sorted(tensors.items(), key=lambda item: (-item[1].element_size(), item[0])):
        if tensor.dtype not in _TYPES:
            raise ExportError(f"--record: {name} is {tensor.dtype}, which a safetensors file cannot store; known are "
                              f"{', '.join(map(str, _TYPES))}")
        blocks.append(_bytes(tensor))
        header[name] = {"dtype": _TYPES[tensor.dtype], "shape": list(tensor.shape),
                        "data_offsets": [place, place + len(blocks[-1])]}
        place += len(blocks[-1])
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    temporary = f"{path}.{os.getpid()}.partial"
    try:
        with open(temporary, "wb") as file:
            file.write(struct.pack("<Q", len(text)) + text)
            for block in blocks:
                file.write(block)
        os.replace(temporary, path)
    except OSError as error:
        raise WriteError(f"{path}: cannot be written, {error.strerror}") from error
    finally:
        if os.path.exists(temporary):
            os.unlink(temporary)


def _bytes(tensor):
    dense = tensor.detach().contiguous()
    return ctypes.string_at(dense.data_ptr(), dense.numel() * dense.element_size()) if dense.numel() else b""
