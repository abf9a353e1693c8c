"""Losses by name, and the model that returns its loss before its outputs."""

import dataclasses
import inspect
from typing import Callable

import torch
from torch.nn import functional

from .errors import ExportError, InputError, OptionError, unknown_name
from .inputs import Input
from .structure import named_tensors, tensors_of

LOSSES = ("cross_entropy", "mse", "next_token", "bce", "in-model", "none")
OF_CLASSES = ("cross_entropy", "next_token", "bce")  # these read the model's output as scores


@dataclasses.dataclass(frozen=True)
class Loss:
    """`function` computes the loss from the model's result and a dict, by name, of all inputs and of the forward
    arguments built from them; None if the model has no loss."""

    function: Callable | None
    inputs: tuple = ()  # inputs of the loss besides the model's


def choose_loss(name, result, inputs, arguments, batch, loss_output):
    """The loss called `name` for a model that returns `result` for `batch` samples of `inputs` (by name), which make
    up `arguments` (names). A custom loss is a callable given in place of a name. Throws ExportError."""
    if callable(name):
        return _custom(name, dict.fromkeys(arguments) | inputs)
    if name == "none":
        return Loss(None)
    outputs = named_tensors(result)
    if name == "in-model" or name not in LOSSES:
        index = _place_of_loss(name, outputs, loss_output)
        return Loss(lambda result, inputs: tensors_of(result)[index])
    index = _place_of_scores(name, outputs, inputs, batch, loss_output)
    axis = _batch_axis(_output(outputs, index), inputs, batch)
    return {"cross_entropy": _cross_entropy, "next_token": _next_token, "mse": _mse, "bce": _bce}[name](
        outputs[index][1], inputs, axis, index)


def _output(outputs, index):
    if index >= len(outputs):
        raise InputError(f"--loss-output {index}: the model returns {len(outputs)} tensors, the first is 0")
    return outputs[index][1]


SCORES = ("logits", "out", "output", "scores", "prediction", "predictions")  # keys of what a named loss reads


def _place_of_scores(name, outputs, inputs, batch, loss_output):
    """Which of the model's tensors a named loss reads: number `loss_output`, or else the first of a list, or that of a dictionary."""
    if loss_output is not None:
        return loss_output
    place, fitting = _scores(outputs, inputs, batch)
    if place is None:
        listed = ", ".join(f"{place} {key}" for place, (key, _) in enumerate(outputs))
        raise InputError(f"--loss {name}: the model returns several tensors, {listed}; say which one the loss reads with --loss-output, "
                         f"as in --loss-output {fitting[-1] if fitting else 0}")
    return place


def _scores(outputs, inputs, batch):
    """(place, candidates): the first of a list; of a dictionary the only one with a key of SCORES, or else the only one with
    floating-point values for each sample, or None."""
    if not _keys([key for key, _ in outputs]):
        return 0, [0]
    axes = {each.batch_axis for each in inputs.values() if each.batch_axis is not None} | {0}
    fitting = [place for place, (_, tensor) in enumerate(outputs) if tensor.dtype.is_floating_point and
               any(tensor.dim() > axis and tensor.shape[axis] == batch for axis in axes)]
    known = [place for place in fitting if outputs[place][0] in SCORES]
    return next((found[0] for found in (known, fitting) if len(found) == 1), None), known or fitting


def scores_of(result, inputs, batch):
    """(keys, place) of the tensors in what a model returns: which one a named loss reads, None if that is open. No keys: it is the
    first."""
    outputs = named_tensors(result)
    keys = tuple(key for key, _ in outputs)
    return (keys, _scores(outputs, inputs, batch)[0]) if _keys(keys) else ((), None)


def _place_of_loss(name, outputs, loss_output):
    """Which of the model's tensors is its loss: that with the key `name`, or for "in-model" number `loss_output`, or else that
    with the key "loss", or else the only one that is one number."""
    keys = [key for key, _ in outputs]
    if name != "in-model":
        if name not in keys or not name.strip(".0123456789"):
            raise OptionError(f"--loss: {unknown_name('loss', name, LOSSES + ('module:callable', *_keys(keys)))}")
        index, what = keys.index(name), f"--loss {name}: the model's output of this name"
    elif loss_output is not None:
        _output(outputs, loss_output)
        index, what = loss_output, f"--loss in-model: output {loss_output} of the model"
    elif "loss" in keys:
        index, what = keys.index("loss"), '--loss in-model: "loss" of the model\'s output'
    else:
        numbers = [place for place, (_, tensor) in enumerate(outputs) if _is_number(tensor)]
        if len(numbers) > 1:
            found = ", ".join(keys[place] for place in numbers)
            pick = ("--loss KEY, as in --loss " + _keys([keys[numbers[0]]])[0] if _keys([keys[place] for place in numbers]) else
                    "--loss-output")
            raise InputError(f"--loss in-model: the model returns several numbers, {found}, none of them called loss; name the one "
                             f"to train with {pick}, or return their sum as loss")
        index = numbers[0] if numbers else 0
        what = f"--loss in-model: output {index} of the model"
    tensor = outputs[index][1]
    if not _is_number(tensor):
        raise InputError(f"{what} is {str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}, but a loss is one "
                         f"floating-point number; use --loss-output to pick another output, or --input to give forward the labels "
                         f"from which it computes its loss")
    return index


def _is_number(tensor):
    return tensor.dim() == 0 and tensor.dtype.is_floating_point


def _keys(names):
    """Those of names of outputs that are keys, not places in a list."""
    return [name for name in names if name.strip(".0123456789")]


def _batch_axis(output, inputs, batch):
    axes = [each.batch_axis for each in inputs.values() if each.batch_axis is not None]
    for axis in axes + [0]:
        if output.dim() > axis and output.shape[axis] == batch:
            return axis
    raise InputError(f"--loss: the model's output has shape {list(output.shape)} for {batch} samples, none of its axes is the "
                     f"batch; use --loss-output to pick another output, or --loss module:callable for a custom loss")


def _without(shape, axis):
    return tuple(shape[:axis]) + tuple(shape[axis + 1 :])


def _target(inputs, dtype, shape, batch_axis, bounds):
    """The input `target`, if the user did not give it."""
    if "target" in inputs:
        return ()
    return (Input("target", dtype, _without(shape, batch_axis), batch_axis, bounds),)


def _cross_entropy(output, inputs, batch_axis, index):
    if output.dim() < 2:
        raise InputError(f"--loss cross_entropy: the output has shape {list(output.shape)}, it has no class axis")
    classes = output.dim() - 1 if output.dim() <= 3 else 1
    if "target" in inputs:
        wanted = inputs["target"].full_shape(output.shape[batch_axis])
        fitting = [axis for axis in (classes, 1, output.dim() - 1) if _without(output.shape, axis) == wanted]
        if not fitting:
            raise InputError(f"--loss cross_entropy: the output has shape {list(output.shape)} and target {list(wanted)}; "
                             f"target must have that shape without the axis of classes, 1 or the last")
        classes = fitting[0]
    extra = _target(inputs, torch.int64, _without(output.shape, classes), batch_axis, (0, output.shape[classes]))

    def function(result, tensors):
        scores, target = tensors_of(result)[index], tensors["target"]
        if classes == scores.dim() - 1 and scores.dim() > 2:
            scores, target = scores.flatten(0, -2), target.flatten()
        return functional.cross_entropy(scores, target)

    return Loss(function, extra)


def _next_token(output, inputs, batch_axis, index):
    tokens = [each for each in inputs.values() if each.dtype in (torch.int64, torch.int32) and len(each.shape) == 1]
    named = [each for each in tokens if each.path[-1] in ("input_ids", "tokens")] or tokens
    if output.dim() != 3 or len(named) != 1:
        raise InputError(f"--loss next_token: needs scores of three axes and one input of token numbers, found an output of shape "
                         f"{list(output.shape)} and {', '.join(each.given for each in named) or 'no such input'}; an input called "
                         f"tokens takes precedence")
    name, time = named[0].name, 1 - batch_axis

    def function(result, tensors):
        scores, tokens = tensors_of(result)[index], tensors[name]
        length = tokens.shape[time] - 1
        scores, tokens = scores.narrow(time, 0, length), tokens.narrow(time, 1, length)
        return functional.cross_entropy(scores.flatten(0, 1), tokens.flatten())

    return Loss(function)


def _mse(output, inputs, batch_axis, index):
    extra = _target(inputs, output.dtype, output.shape, batch_axis, None)
    return Loss(lambda result, tensors: functional.mse_loss(tensors_of(result)[index], tensors["target"]), extra)


def _bce(output, inputs, batch_axis, index):
    extra = _target(inputs, output.dtype, output.shape, batch_axis, (0, 1))
    return Loss(lambda result, tensors: functional.binary_cross_entropy_with_logits(tensors_of(result)[index],
                                                                                     tensors["target"]), extra)


def _custom(function, inputs):
    """A custom loss: its first parameter is the model's output, each other one the input of that name."""
    names = list(inspect.signature(function).parameters)[1:]
    for name in names:
        if name not in inputs:
            raise InputError(f'--loss: the loss needs an input "{name}", there are {", ".join(inputs)}; add it with --input')
    return Loss(lambda result, given: function(result, *(given[name] for name in names)))


def with_loss(model, call, inputs, loss):
    """Makes `model`, in place, return (loss, *outputs) for `inputs` in this order, and returns it. `call` runs the
    model's own forward. The class is replaced, not wrapped, so that parameters and modules keep their names."""
    base, names = type(model), [each.name for each in inputs]
    batched = [(each.batch_axis, each.name) for each in inputs if each.batch_axis is not None]

    def run(self, tensors):
        for axis, other in batched[1:]:
            torch._check(tensors[other].shape[axis] == tensors[batched[0][1]].shape[batched[0][0]])
        arguments = call.arguments(tensors)
        result = call(lambda *given, **named: base.forward(self, *given, **named), arguments)
        found = tensors_of(result)
        if loss.function is None:
            return tuple(found)
        value = loss.function(result, tensors | arguments)
        return (value, *(each for each in found if each is not value))

    scope = {"run": run}
    pairs = ", ".join(f'"{name}": {name}' for name in names)
    exec(f"def forward(self, {', '.join(names)}):\n    return run(self, {{{pairs}}})\n", scope)
    model.__class__ = type(base.__name__, (base,), {"forward": scope["forward"], "__module__": base.__module__,
                                                    "__qualname__": base.__qualname__})
    return model
