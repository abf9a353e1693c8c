"""Training: profile, run and evaluate take a torch.nn.Module and a DataLoader as they are.

The module goes through torch.export to an archive, the batches to files, both in a temporary folder; then the programs of
stagecraft do the work as separate processes. torch is imported when a module is given."""

from __future__ import annotations

import contextlib
import dataclasses
import html
import inspect
import itertools
import json
import math
import os
import pathlib
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Union

from . import _html, _programs
from ._core import Comparison, Graph, Measurement, Plan, Prediction
from .errors import InputError
from .planning import File, _read, compare

if TYPE_CHECKING:
    import torch

Model = Union["torch.nn.Module", str, "os.PathLike[str]"]
Loss = Union[str, Callable[..., Any], None]
# The exporter's messages name its options; these are the arguments here.
_ARGUMENTS = {"--inputs": "data", "--input": "data", "--range": "ranges", "--loss-output": "loss_output",
              "--loss-of-microbatches": "loss_of_microbatches", "--loss": "loss",
              "--static": "static", "--evaluation": "evaluation", "--batch-axis": "batch_axes"}


@dataclasses.dataclass(frozen=True)
class Run:
    """The result of a run.

    `state_dict` holds the trained weights under the module's own names, and the module's extra states as they are;
    `ema_state_dict` the same with moving averages of the parameters, or None without the option ema_decay; `metrics` a dict for
    each step (see docs/run.md), `measurement` all times, and `comparison` compares them with the prediction, if one was
    given. After a resume, metrics, measurement and comparison cover only the steps since then; measurement and comparison are
    None if all steps had been done before.
    """

    state_dict: dict[str, torch.Tensor] = dataclasses.field(repr=False)
    metrics: list[dict[str, Any]] = dataclasses.field(repr=False)
    measurement: Measurement | None
    comparison: Comparison | None
    log: str = dataclasses.field(repr=False)
    ema_state_dict: dict[str, torch.Tensor] | None = dataclasses.field(default=None, repr=False)

    def _repr_html_(self) -> str:
        if self.measurement is None:
            return f"<pre>{html.escape(repr(self))}</pre>"
        return _html.measurement(self.measurement) if self.comparison is None else _html.comparison(self.comparison)


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """How well a model does on data. `accuracy` (0 to 1) and `perplexity` are None if the loss does not give them; `left` is the
    number of samples at the end that did not fill a microbatch."""

    loss: float
    samples: int
    left: int
    accuracy: float | None
    perplexity: float | None
    document: dict[str, Any] = dataclasses.field(repr=False)

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(repr(self))}</pre>"


def _is_extra(name: str) -> bool:
    """Whether an entry of a state dict is what a module's get_extra_state returns, which need not be a tensor."""
    return name.rpartition(".")[2] == "_extra_state"


def _is_module(model: object) -> bool:
    return not isinstance(model, (str, os.PathLike))


def _forward_names(module: torch.nn.Module, count: int) -> list[str]:
    """The names of forward's first `count` positional parameters."""
    parameters = inspect.signature(module.forward).parameters.values()
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    names = [parameter.name for parameter in parameters if parameter.kind in positional]
    if len(names) < count:
        if any(parameter.kind == inspect.Parameter.VAR_POSITIONAL for parameter in parameters):
            return names + [f"input_{index}" for index in range(len(names), count)]
        raise InputError(f"data: a batch has {count} inputs, forward takes {', '.join(names) or 'none'}")
    return names[:count]


def _has_target(loss: Loss) -> bool:
    return callable(loss) or loss in ("cross_entropy", "mse", "bce")


def _fields(module: torch.nn.Module, batch: Any) -> Any:
    """A batch that is a dataclass as a dict of its fields, if they are forward's arguments; other batches as they are."""
    if not dataclasses.is_dataclass(batch) or isinstance(batch, type):
        return batch
    fields = {field.name: getattr(batch, field.name) for field in dataclasses.fields(batch)}
    parameters = inspect.signature(module.forward).parameters
    return fields if any(name in parameters for name in fields) else batch


def _arguments(module: torch.nn.Module, batch: Any, loss: Loss) -> dict[str, Any]:
    """Forward's arguments by name, and `target` for the loss, of one batch: a dict of arguments; or a pair of input and target;
    or, without a target, a tensor or a sequence of inputs. An input may be a dict or a sequence of several."""
    batch = _fields(module, batch)
    if isinstance(batch, Mapping):
        return {str(name): value for name, value in batch.items()}
    target: dict[str, Any] = {}
    if _has_target(loss):
        if not isinstance(batch, (tuple, list)) or len(batch) < 2:
            raise InputError(f"data: a batch is {type(batch).__name__}, must be a pair of input and target, or a dict of forward's "
                             f"arguments")
        *inputs, last = batch
        target = {"target": last}
        batch = inputs[0] if len(inputs) == 1 else inputs
        if isinstance(batch, Mapping):
            return {str(name): value for name, value in batch.items()} | target
    values = list(batch) if isinstance(batch, (tuple, list)) else [batch]
    return dict(zip(_forward_names(module, len(values)), values)) | target


def _loss(loss: Loss, batch: Any) -> Loss:
    """The loss for the exporter, which passes a function the inputs that its parameters name."""
    if loss is None:
        if isinstance(batch, Mapping) or dataclasses.is_dataclass(batch):
            return "in-model"
        raise InputError("loss: give cross_entropy, mse, bce, next_token, in-model, none, the key of the loss that forward returns, or "
                         "a function of output and target")
    if isinstance(loss, str) or isinstance(batch, Mapping):
        return loss
    function = loss

    def of_pair(output: Any, target: Any) -> Any:
        return function(output, target)

    return of_pair


@dataclasses.dataclass(frozen=True)
class _Exported:
    """A module as an archive. `inputs` are those of the exporter; their names are the same in the archive and in data."""

    path: str
    module: torch.nn.Module
    loss: Loss
    inputs: list[Any]

    @property
    def names(self) -> list[str]:
        return [each.name for each in self.inputs]

    def tensors(self, batch: Any) -> dict[str, torch.Tensor]:
        """The tensors of a batch by the names of inputs, with the samples on the first axis."""
        from ._exporter import structure

        found = {}
        for name, value in _arguments(self.module, batch, self.loss).items():
            for path, tensor in structure.template_of(value, (name,))[1]:
                found[structure.python_name(path)] = tensor
        missing = [name for name in self.names if name not in found]
        if missing:
            raise InputError(f"data: a batch lacks {missing[0]}, it has {', '.join(found)}")
        out = {}
        for each in self.inputs:
            tensor = found[each.name]
            if tensor.dim() <= each.batch_axis:
                raise InputError(f"data: {each.given} has shape {list(tensor.shape)}, it lacks the batch axis {each.batch_axis}")
            out[each.name] = tensor.movedim(each.batch_axis, 0)
            _check_range(each, tensor)
        return out


def _check_range(each: Any, tensor: torch.Tensor) -> None:
    """Refuses integers that the archive does not take, such as labels to be ignored that the exported batch did not have."""
    if each.range is None or tensor.dtype.is_floating_point or tensor.is_meta or not tensor.numel():
        return
    low, high = int(tensor.min()), int(tensor.max())
    if each.range[0] <= low and high < each.range[1]:
        return
    wanted = (min(low, each.range[0]), max(high + 1, each.range[1]))
    raise InputError(f"data: {each.given} has {low if low < each.range[0] else high}, the first batch and the model allow "
                     f"{each.range[0]} to {each.range[1] - 1}; if the loss ignores such labels, or the model takes them, give "
                     f"ranges={{{each.given!r}: {wanted}}}")


def _export(module: torch.nn.Module, batch: Any, path: str, loss: Loss, *, loss_output: int | None = None,
            ranges: Mapping[str, tuple[int, int]] = {}, batch_axes: Mapping[str, int] = {}, static: int | None = None,
            fixed: int | None = None, evaluation: bool = False, loss_of_microbatches: bool = False) -> _Exported:
    """`fixed`: the number of samples if it cannot be any; default: those of the batch."""
    import torch

    from ._exporter import errors, inputs, prepare, program

    if not isinstance(module, torch.nn.Module):
        raise InputError(f"model: {type(module).__name__} is not a torch.nn.Module, nor the name of a model or file")
    try:
        chosen = _loss(loss, batch)
        arguments = _arguments(module, batch, loss)
        bounds = [f"{name}={low}..{high}" for name, (low, high) in ranges.items()]
        axes = [f"{name}={axis}" for name, axis in batch_axes.items()]
        found, templates = inputs.parse_examples(arguments, axes, bounds)
        whole = [each for each in found if each.batch_axis is not None and each.examples is not None]
        fixed = fixed or (whole[0].examples.shape[whole[0].batch_axis] if whole else program.SAMPLES)
        request = program.Request(prepare.copied(module), type(module).__name__, found, chosen, loss_output,
                                  static=static, fixed=fixed, templates=templates, evaluation=evaluation,
                                  structure=any(parameter.is_meta for parameter in module.parameters()),
                                  loss_of_microbatches=loss_of_microbatches)
        with torch.random.fork_rng(devices=[]):
            done = program.export(request)
            program.save(done, path)
    except errors.ExportError as error:
        text = str(error)
        for option, argument in _ARGUMENTS.items():
            text = text.replace(option, argument)
        wrong = InputError(text)
        wrong.code = error.code
        raise wrong from error
    return _Exported(path, module, loss, list(done.inputs))


def export(module: torch.nn.Module, data: Any, path: str | os.PathLike[str], *, loss: Loss = None, loss_output: int | None = None,
           ranges: Mapping[str, tuple[int, int]] = {}, batch_axes: Mapping[str, int] = {}, static: int | None = None,
           evaluation: bool = False, loss_of_microbatches: bool = False) -> None:
    """Writes a module with its loss as an archive (.pt2) that the programs train without Python, as export-model does.

    The module is exported in training mode and stays as it is; the export proves that the archive trains as the module does. Of a
    module on the device "meta" only shapes and operators are written, for profile(path, structure=True).

    data -- a DataLoader, of which the first batch is taken, or a batch: (input, target), or a dict of forward's arguments
    loss -- "cross_entropy", "mse", "bce", "next_token"; a function of (output, target); "in-model" (the default if a batch is a
        dict): forward returns the loss, with the key "loss" or as its only number; another key of what forward returns; or "none"
    ranges -- (low, high) of integer inputs, high excluded, where no embedding or loss determines it, or where the loss ignores
        labels that the batch does not have, such as -100
    batch_axes -- the axis of the samples, by input, where it is not the first: {"tokens": 1} if a batch is time-major
    static -- export for exactly this many samples
    evaluation -- export the module as it is after module.eval()
    loss_of_microbatches -- take the mean over microbatches of a loss that is not a mean over samples, although that is not the loss
        of the whole batch
    """
    _export(module, _first(data), os.fspath(path), loss, loss_output=loss_output, ranges=ranges, batch_axes=batch_axes,
            static=static, evaluation=evaluation, loss_of_microbatches=loss_of_microbatches)


def _is_loader(data: Any) -> bool:
    """Whether data are batches, not one batch."""
    import torch

    return not isinstance(data, (torch.Tensor, Mapping, tuple)) and not _is_batch(data) and not dataclasses.is_dataclass(data)


def _is_batch(data: Any) -> bool:
    import torch

    return isinstance(data, list) and bool(data) and isinstance(data[0], torch.Tensor)


def _first(data: Any) -> Any:
    """The first batch."""
    if not _is_loader(data):
        return data
    for batch in data:
        return batch
    raise InputError("data: there is no batch")


def _samples(tensors: Mapping[str, torch.Tensor]) -> int:
    counts = {name: tensor.shape[0] if tensor.dim() else 1 for name, tensor in tensors.items()}
    if len(set(counts.values())) > 1:
        raise InputError(f"data: the tensors of a batch have different numbers of samples: "
                         f"{', '.join(f'{name} {count}' for name, count in counts.items())}")
    return next(iter(counts.values()))


def _write(exported: _Exported, batches: Iterable[Any], folder: str) -> int:
    """Writes the batches as one .npy file per input; the number of samples."""
    from ._tensors import NpyFile

    os.makedirs(folder, exist_ok=True)
    files = {each.name: NpyFile(os.path.join(folder, f"{each.name}.npy"), each.name, each.batch_axis) for each in exported.inputs}
    try:
        for batch in batches:
            tensors = exported.tensors(batch)
            _samples(tensors)
            for name, tensor in tensors.items():
                files[name].append(tensor)
    finally:
        for file in files.values():
            file.close()
    rows = [file.rows for file in files.values()]
    if not rows or not rows[0]:
        raise InputError("data: there is no sample")
    return rows[0]


def _full(exported: _Exported, data: Any, samples: int, epochs: int, steps: int | None) -> Iterable[Any]:
    """The batches for a run: of each pass those that are full, `steps` in all if given."""
    if not _is_loader(data):
        data = [data]
    count = 0
    for epoch in itertools.count():
        before = count
        last = None
        for batch in data:
            found = _samples(exported.tensors(batch))
            if last is not None:
                raise InputError(f"data: a batch has {last} samples, a step of the plan has {samples}; give the DataLoader "
                                 f"batch_size={samples}, or plan with other microbatches")
            if found != samples:
                last = found  # right only as the last of a pass
                continue
            yield batch
            count += 1
            if count == steps:
                return
        if count == before:
            raise InputError(f"data: there are {last or 0} samples{' in a batch' if last else ''}, a step of the plan has {samples}; "
                             f"give the DataLoader batch_size={samples}, or plan with other microbatches")
        if steps is None and epoch + 1 == epochs:
            return


def _options(options: Mapping[str, Any]) -> list[str]:
    """Keyword arguments as a program's options: learning_rate=0.1 is --learning-rate 0.1."""
    out = []
    for name, value in options.items():
        option = f"--{name.replace('_', '-')}"
        if value is True:
            out.append(option)
        elif isinstance(value, Mapping):
            out += [text for key, setting in value.items() for text in (option, f"{key}={setting}")]
        elif isinstance(value, (list, tuple)):
            out += [text for each in value for text in (option, str(each))]
        elif value is not None and value is not False:
            out += [option, os.fspath(value) if isinstance(value, os.PathLike) else str(value)]
    return out


def profile(model: Model, data: Any = None, *, microbatch: int | None = None, loss: Loss = None, loss_output: int | None = None,
            ranges: Mapping[str, tuple[int, int]] = {}, batch_axes: Mapping[str, int] = {}, static: int | None = None,
            loss_of_microbatches: bool = False, accept_untrusted: bool | None = None, log: bool = False,
            **options: Any) -> Graph:
    """Measures every layer of a model, forward, backward and update.

    model -- a torch.nn.Module; or a built-in model by name, or a model file
    data -- of a module, a DataLoader or one batch: (input, target), or a dict of forward's arguments. Its samples also train the
        profile's steps. Otherwise a data source of the programs, such as "fashion-mnist"
    microbatch -- samples of a microbatch; default: of a module, those of the batch; otherwise 1
    loss, loss_output, ranges, batch_axes, static, loss_of_microbatches -- of a module, see export
    structure (an option) -- measure nothing, only count operations and bytes, for estimate; the module may be on the device "meta",
        without memory for its weights
    accept_untrusted -- return a profile even if the program says that it cannot be trusted; default:
        STAGECRAFT_ACCEPT_UNTRUSTED
    log -- show the program's messages on sys.stderr
    options -- those of the program: device="cuda", optimizer="adam", max_seconds=10, ...; stagecraft help profile lists them
    """
    extra = _options(options | {"accept_untrusted": accept_untrusted})
    with tempfile.TemporaryDirectory(prefix="stagecraft-") as folder:
        if _is_module(model):
            module: Any = model
            batch = _first(data)
            name = f"{type(module).__name__}.pt2"
            exported = _export(module, batch, os.path.join(folder, name), loss, loss_output=loss_output, ranges=ranges,
                               batch_axes=batch_axes, static=static, fixed=microbatch,
                               loss_of_microbatches=loss_of_microbatches)
            samples = _samples(exported.tensors(batch))
            microbatch = microbatch or samples
            copies = -(-microbatch // samples)
            _write(exported, [batch] * copies, os.path.join(folder, "data"))
            extra += ["--data", "tensors-in-order:data"]
        else:
            name = os.path.abspath(model) if os.path.exists(os.fspath(model)) else os.fspath(model)
            if isinstance(loss, str):
                extra += ["--loss", loss]
            if data is not None:
                extra += ["--data", str(data)]
        _programs.run("profile", [name, "--microbatch", str(microbatch or 1), "-o", os.path.join(folder, "graph.json"), *extra],
                      folder=folder, log=log)
        return Graph.load(os.path.join(folder, "graph.json"))


def estimate(graph: Graph | File, device: str, *, from_profile: Graph | File | None = None, **options: Any) -> Graph:
    """The graph with its layers' times estimated for a device that you may not have, as the program does. Needs operations and
    bytes, which profile counts, also with structure=True; every time carries the spread of an estimate.

    device -- a card such as "H100-SXM"; an unknown one raises ProgramError, which lists them
    from_profile -- a measured profile, from which efficiencies are learned; default: the graph's own times, if it has any
    options -- those of the program: math="tf32", ...; stagecraft help estimate lists them
    """
    with tempfile.TemporaryDirectory(prefix="stagecraft-") as folder:
        _read(Graph, graph).save(os.path.join(folder, "graph.json"))
        extra = _options(options)
        if from_profile is not None:
            _read(Graph, from_profile).save(os.path.join(folder, "profile.json"))
            extra += ["--from-profile", "profile.json"]
        _programs.run("estimate", ["graph.json", "--device", device, "-o", os.path.join(folder, "estimate.json"), *extra],
                      folder=folder)
        return Graph.load(os.path.join(folder, "estimate.json"))


class _Metrics:
    """Reads a file of metrics while a run writes it."""

    def __init__(self, path: str, on_metrics: Callable[[dict[str, Any]], None] | None) -> None:
        self._path, self._on_metrics, self._place = path, on_metrics, 0
        self.lines: list[dict[str, Any]] = []

    def __call__(self) -> None:
        if not os.path.exists(self._path):
            return
        with open(self._path, "rb") as file:
            file.seek(self._place)
            text = file.read()
        whole = text[: text.rfind(b"\n") + 1]
        self._place += len(whole)
        for line in whole.splitlines():
            values = json.loads(line)
            self.lines.append(values)
            if self._on_metrics is not None:
                self._on_metrics(values)


def _check_checkpoint(folder: str, resume: bool) -> None:
    """Refuses checkpoints from which nobody asked to resume, as the program does, but before anything is written."""
    names = os.listdir(folder) if os.path.isdir(folder) and not resume else []
    found = [name for name in names
             if re.fullmatch(r"step-[0-9]+", name) and os.path.exists(os.path.join(folder, name, "manifest.json"))]
    if found:
        newest = max(found, key=lambda name: int(name.removeprefix("step-")))
        raise InputError(f"checkpoint: {os.path.join(folder, newest)} already exists; continue from it with resume=True, or use "
                         f"another folder")


def _keep(checkpoint: str, archive: str, data: str) -> tuple[str, str]:
    """The paths of a module's archive and its data among the checkpoints, where a later call finds them under the same names: a
    checkpoint names both, and refuses others. The archive is copied, the data are a link."""
    folder = os.path.join(checkpoint, "module")
    os.makedirs(folder, exist_ok=True)
    kept, link = os.path.join(folder, os.path.basename(archive)), os.path.join(folder, "data")
    shutil.copyfile(archive, f"{kept}.partial")
    os.replace(f"{kept}.partial", kept)
    if os.path.islink(link):
        os.unlink(link)  # of a call that was killed
    os.symlink(data, link)
    return kept, link


def run(plan: Plan | File, model: Model | None, data: Any, *, steps: int | None = None, epochs: int | None = None, loss: Loss = None,
        loss_output: int | None = None, ranges: Mapping[str, tuple[int, int]] = {}, batch_axes: Mapping[str, int] = {},
        static: int | None = None, loss_of_microbatches: bool = False, prediction: Prediction | None = None,
        checkpoint: str | os.PathLike[str] | None = None, resume: bool = False,
        on_metrics: Callable[[dict[str, Any]], None] | None = None, log: bool = False, **options: Any) -> Run:
    """Trains a model as a plan says, in one process per rank on this machine, and returns its weights.

    plan -- a Plan, or the path of its file
    model -- the torch.nn.Module that was profiled, whose weights are the initial ones and stay as they are; or a built-in model
        by name, a model file, or None for the plan's
    data -- of a module, a DataLoader: each batch is a step, in its order, and must have plan.step_samples samples; the last one
        of a pass is left out if it is smaller. Otherwise a data source of the programs
    steps, epochs -- how long: number of steps, or of passes over the data (default: one pass)
    loss, loss_output, ranges, batch_axes, static, loss_of_microbatches -- of a module, see export
    prediction -- to compare with: then the result has a comparison
    checkpoint -- a folder in which checkpoints are kept; default: a temporary one
    resume -- continue from the newest complete checkpoint, if there is one. steps and epochs count from the very first step; the
        data must be the same and in the same order, including that of completed steps
    on_metrics -- called with a dict for each step during the run
    log -- show the program's messages on sys.stderr
    options -- those of the program: optimizer="adamw", learning_rate=1e-3, clip_norm=1, device="cuda",
        group=["bias|norm:weight-decay=0"], ...; stagecraft help run lists them

    The batches of a DataLoader are written to a temporary folder first (TMPDIR says where), so they need space there.
    """
    if steps is not None and epochs is not None:
        raise InputError("steps and epochs are mutually exclusive")
    for name, value in (("steps", steps), ("epochs", epochs)):
        if value is not None and value < 1:
            raise InputError(f"{name}: {value} is not an integer of 1 or more")
    if resume and checkpoint is None:
        raise InputError("resume: needs checkpoint, the folder of the checkpoints to continue from")
    with tempfile.TemporaryDirectory(prefix="stagecraft-") as folder, contextlib.ExitStack() as at_end:
        saved = os.path.abspath(checkpoint) if checkpoint is not None else os.path.join(folder, "checkpoints")
        _check_checkpoint(saved, resume)
        arguments = [os.path.join(folder, "plan.json")]
        plan = _read(Plan, plan)
        plan.save(arguments[0])
        model_options: list[str] = []
        if model is not None and _is_module(model):
            module: Any = model
            if plan.step_samples is None:
                raise InputError("plan: does not say how many samples a microbatch has; plan with a graph of profile")
            path = os.path.join(folder, f"{type(module).__name__}.pt2")
            exported = _export(module, _first(data), path, loss, loss_output=loss_output, ranges=ranges, batch_axes=batch_axes,
                               static=static, fixed=plan.step_samples // plan.microbatches,
                               loss_of_microbatches=loss_of_microbatches)
            batches = os.path.join(folder, "data")
            written = _write(exported, _full(exported, data, plan.step_samples, epochs or 1, steps), batches)
            steps, epochs = written // plan.step_samples, None
            if checkpoint is not None:
                path, batches = _keep(saved, path, batches)
                at_end.callback(pathlib.Path(batches).unlink, missing_ok=True)
            model_options = ["--model", path]
            arguments += ["--data", f"tensors-in-order:{batches}"]
        else:
            if model is not None:
                name = os.fspath(model)
                model_options = ["--model", os.path.abspath(name) if os.path.exists(name) else name]
            arguments += ["--data", str(data)]
        if epochs is not None:
            arguments += ["--epochs", str(epochs)]
        elif steps is not None:
            arguments += ["--steps", str(steps)]
        if resume:
            arguments.append("--resume")
        if plan.ranks > 1 and options.get("channel") != "local" and "hosts" not in options:
            arguments.append("--spawn")
        metrics = _Metrics(os.path.join(folder, "metrics.jsonl"), on_metrics)
        measured = os.path.join(folder, "measured.json")
        _, text = _programs.run("run", [*arguments, *model_options, "--checkpoint", saved, "--metrics",
                                        os.path.join(folder, "metrics.jsonl"), "-o", measured, *_options(options)],
                                log=log, watch=metrics)
        measurement = Measurement.load(measured) if os.path.exists(measured) else None  # nothing was left to do
        comparison = None
        if prediction is not None and measurement is not None:
            comparison = compare(prediction, measurement)
        from ._tensors import read_state

        def read_weights(*how: str) -> dict[str, torch.Tensor]:
            weights = os.path.join(folder, "weights.safetensors")
            _programs.run("weights", [saved, *model_options, "-o", weights, "--force", *how])
            state = read_state(weights)
            if model is not None and _is_module(model):
                state |= {name: value for name, value in module.state_dict().items() if _is_extra(name)}
            return state

        averages = read_weights() if options.get("ema_decay") else None
        return Run(read_weights("--no-ema"), metrics.lines, measurement, comparison, text, averages)


def evaluate(model: Model, data: Any, *, loss: Loss = None, loss_output: int | None = None, ranges: Mapping[str, tuple[int, int]] = {},
             batch_axes: Mapping[str, int] = {}, static: int | None = None, loss_of_microbatches: bool = False,
             microbatch: int | None = None, log: bool = False, **options: Any) -> Evaluation:
    """Loss, accuracy and perplexity of a model on data, in evaluation mode and in one process; nothing is changed.

    model -- a torch.nn.Module with its weights; or a checkpoint folder, or a weights file with the option model=FILE
    data -- of a module, a DataLoader, of which each sample is read once; otherwise a data source of the programs
    loss, loss_output, ranges, batch_axes, static, loss_of_microbatches -- of a module, see export
    microbatch -- samples per microbatch; default: those of the first batch
    options -- those of the program; stagecraft help evaluate lists them
    """
    with tempfile.TemporaryDirectory(prefix="stagecraft-") as folder:
        if _is_module(model):
            from ._tensors import write_state

            module: Any = model
            batch = _first(data)
            path = os.path.join(folder, f"{type(module).__name__}.pt2")
            exported = _export(module, batch, path, loss, loss_output=loss_output, ranges=ranges, batch_axes=batch_axes,
                               static=static, fixed=microbatch, evaluation=True, loss_of_microbatches=loss_of_microbatches)
            _write(exported, data if _is_loader(data) else [batch], os.path.join(folder, "data"))
            state = module.state_dict()
            write_state(os.path.join(folder, "weights.safetensors"), {name: state[name] for name in state if not _is_extra(name)})
            microbatch = microbatch or _samples(exported.tensors(batch))
            arguments = [os.path.join(folder, "weights.safetensors"), "--model", path, "--data",
                         f"tensors-in-order:{os.path.join(folder, 'data')}"]
        else:
            arguments = [os.path.abspath(model), "--data", str(data)]
        if microbatch is not None:
            arguments += ["--microbatch", str(microbatch)]
        text, _ = _programs.run("evaluate", [*arguments, "--json", *_options(options)], log=log)
    found = json.loads(text)
    return Evaluation(math.nan if found["loss"] is None else found["loss"], found["samples"], found.get("samples_left", 0), found.get("accuracy"),
                      found.get("perplexity"), found)
