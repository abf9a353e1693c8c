"""Proves that the exported program trains like the model, bit for bit."""

import copy
import warnings

import torch

from . import places
from .errors import ExportError, first_line


def one_thread(function):
    """Runs `function` on one thread: with several, sums have no fixed order."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return function()
    finally:
        torch.set_num_threads(threads)


def module_of(exported):
    """The program as a module with separate tensors."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return copy.deepcopy(exported).module()


ROUNDING = 1e-5  # relative to a tensor's largest value: a few accumulated float32 roundings


def check(eager, exported, tensors, samples, seed, passes=1, rounding=False):
    """Compares outputs, gradients and buffers of copies of both after some passes, bit for bit or, with `rounding`, to
    within ROUNDING. Throws ExportError."""
    one_thread(lambda: _check(eager, exported, tensors, samples, seed, passes, same_but_rounding if rounding else same))


def _check(eager, exported, tensors, samples, seed, passes, same):
    eager, program = copy.deepcopy(eager), module_of(exported)
    where = f"self-check at {samples} samples"
    wanted, notes = _run(eager, tensors, seed, passes, f"{where}: the model")
    found, _ = _run(program, tensors, seed, passes, f"{where}: the exported program")
    if len(wanted.outputs) != len(found.outputs):
        raise ExportError(f"{where}: the model returns {len(wanted.outputs)} tensors, the exported program {len(found.outputs)}")
    for index, (a, b) in enumerate(zip(wanted.outputs, found.outputs)):
        if not same(a, b):
            raise ExportError(f"{where}: output {index} differs{_by(a, b)}; {_cause('output', a, b, notes, eager)}")
    for kind, ours, theirs in (("parameter", wanted.gradients, found.gradients), ("buffer", wanted.buffers, found.buffers)):
        for name, a in ours.items():
            b = theirs.get(name)
            if not same(a, b):
                raise ExportError(f"{where}: {kind} {name}: {_difference(kind, a, b)}; {_cause(kind, a, b, notes, eager)}")


def evaluates_alike(eager, exported, tensors, seed):
    """Whether the program with dropout off and running statistics, as stagecraft evaluates it, has the outputs of the model after
    eval(), up to rounding; of a model with a loss, the same loss. Not if the model does not run after eval()."""
    eager, program = copy.deepcopy(eager).eval(), module_of(exported)
    for module in program.modules():
        if isinstance(module, torch.fx.GraphModule):
            for node in module.graph.nodes:
                _set_for_evaluation(node)
            module.recompile()

    def outputs(model):
        torch.manual_seed(seed)
        found = model(*(tensor.clone() for tensor in tensors))
        return [each.detach() for each in (found if isinstance(found, (tuple, list)) else (found,))]

    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            ours, theirs = outputs(eager), outputs(program)
        except Exception:
            return False
    if theirs and theirs[0].dim() == 0:
        ours, theirs = ours[:1], theirs[:1]
    return len(ours) == len(theirs) and all(map(same_but_rounding, ours, theirs))


def _set_for_evaluation(node):
    """As evaluation_value of executor/intake does."""
    schema = getattr(node.target, "_schema", None)
    if node.op != "call_function" or schema is None:
        return
    names = [argument.name for argument in schema.arguments]
    given = dict(zip(names, node.args)) | dict(node.kwargs)
    for place, name in enumerate(names):
        if name == "dropout_p":
            value = 0.0
        elif name in ("train", "training", "use_input_stats") and not ("running_mean" in names and given["running_mean"] is None):
            value = False
        else:
            continue
        if place < len(node.args):
            node.update_arg(place, value)
        elif name in node.kwargs:
            node.update_kwarg(name, value)


class _Pass:
    def __init__(self, outputs, gradients, buffers):
        self.outputs, self.gradients, self.buffers = outputs, gradients, buffers


def _run(model, tensors, seed, passes, where):
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(seed)
        try:
            for _ in range(passes):
                outputs, notes = _pass(model, tensors)
        except Exception as error:
            raise ExportError(f"{where}: {first_line(error)}") from error
    gradients = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if parameter.grad is not None and parameter.grad.is_sparse:
            raise ExportError(f"parameter {name} has a sparse gradient, which is not supported; set sparse=False")
        gradients[name] = parameter.grad
    buffers = dict(model.named_buffers(remove_duplicate=False))
    return _Pass([each.detach() for each in outputs], gradients, buffers), notes


def _pass(model, tensors):
    outputs = model(*(tensor.clone() for tensor in tensors))
    outputs = outputs if isinstance(outputs, (tuple, list)) else (outputs,)
    differentiable = [each for each in outputs if each.requires_grad]
    if not differentiable:
        return outputs, {}
    total = outputs[0] if outputs[0] is differentiable[0] and outputs[0].dim() == 0 else sum(
        each.sum() for each in differentiable)
    notes = _notes(total)
    total.backward()
    return outputs, notes


def _notes(total):
    """The model's own autograd functions in the graph of the loss: names, and where each is defined."""
    found, seen, todo = {}, set(), [total.grad_fn]
    while todo:
        node = todo.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if isinstance(node, torch.autograd.function.BackwardCFunction):
            found[type(node).__name__.removesuffix("Backward")] = places.of_class(getattr(type(node), "_forward_cls", None))
        todo.extend(next for next, _ in node.next_functions)
    return found


def same(a, b):
    """Whether two tensors are equal bit for bit, or both are absent; NaN equals itself."""
    if a is None or b is None:
        return a is b
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    return bool(torch.all((a == b) | ((a != a) & (b != b))))


def same_but_rounding(a, b):
    if same(a, b):
        return True
    if a is None or b is None or a.dtype != b.dtype or a.shape != b.shape or not a.dtype.is_floating_point:
        return False
    return bool((a - b).abs().max() <= ROUNDING * a.abs().max())


def _by(a, b):
    if a.dtype != b.dtype or a.shape != b.shape:
        return f", {a.dtype} {list(a.shape)} against {b.dtype} {list(b.shape)}"
    return f" by up to {(a.double() - b.double()).abs().max().item():.3g}"


def _difference(kind, a, b):
    what = "the gradient" if kind == "parameter" else "its value after a pass"
    if a is None:
        return f"{what} exists only in the exported program"
    if b is None:
        return f"{what} exists only in the model"
    return f"{what} differs{_by(a, b)}"


def _cause(kind, a, b, notes, model):
    if "CheckpointFunction" in notes:
        return "the model uses reentrant checkpointing, which torch.export loses; set use_reentrant=False, or disable it during the export"
    if notes:
        (name, place), *_ = notes.items()
        return (f"the model uses the autograd.Function {name}, whose backward torch.export replaces with that of its forward"
                f"{f' (defined at {place})' if place else ''}; write it with torch's operators: x + (y - x).detach() has the value of y and the gradient of x" +
                ("; the difference is rounding; accept it with --allow-rounding" if same_but_rounding(a, b) else ""))
    if kind == "parameter" and a is None:
        return "probably torch.inference_mode or a tensor detached by hand, which torch.export loses; use torch.no_grad"
    if kind == "parameter" and b is None:
        return ("probably a custom autograd.Function or reentrant checkpointing, which torch.export loses; write it with torch's "
                "operators, or use_reentrant=False")
    if same_but_rounding(a, b):
        avoided = (', and attn_implementation="eager" in the model\'s configuration (--model-args attn_implementation=eager) '
                   "avoids it" if _has_fused_attention(model) else "")
        return (f"this is rounding: the model, or its library, checks whether it is being traced and then computes the same "
                f"in another way; accept that with --allow-rounding{avoided}")
    if kind == "output":
        return "the model may keep state outside its buffers, or check whether it is being traced"
    return ("probably a custom autograd.Function, a hook on a tensor, or state outside the buffers, which torch.export loses"
            if kind == "parameter" else "probably a buffer that is replaced in forward; write into it with copy_")


def _has_fused_attention(model):
    """Whether it contains a model of transformers that computes attention differently when traced."""
    return any(getattr(getattr(module, "config", None), "_attn_implementation", None) == "sdpa" for module in model.modules())
