"""From a model, its inputs and its loss to a checked torch.export program, and to the archive."""

import contextlib
import copy
import dataclasses
import inspect
import io
import json
import logging
import os
import re
import shutil
import tempfile
import types
import warnings
import zipfile

import torch
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from torch.utils._sympy.symbol import SymT, symbol_is_type

from . import loss_checks, places, prepare, randomness, refuse, self_check, structure
from .errors import INPUTS_UNKNOWN, ExportError, InputError, MissingOptionError, OptionError, WriteError, first_line, notice, progress
from .inputs import draw_all, settled
from .losses import choose_loss, scores_of, with_loss

SAMPLES = 3  # not 1, which torch.export treats as a constant, nor 2, which occurs as an extent in models


@dataclasses.dataclass
class Request:
    """What to export. `templates` say how `inputs` make up forward's arguments, where their paths do not; `constants`
    are further arguments. `static`: the fixed number of samples; None: any number from 1 to `most`, or `fixed` if that
    is impossible."""

    model: torch.nn.Module
    name: str
    inputs: tuple
    loss: object = "none"
    loss_output: int | None = None
    constants: dict = dataclasses.field(default_factory=dict)
    static: int | None = None
    fixed: int = SAMPLES
    most: int = 65536
    seed: int = 0
    rounding: bool = False  # whether the program may differ from the model by rounding
    templates: dict | None = None
    evaluation: bool = False  # as after model.eval(), not in training mode
    structure: bool = False  # shapes only: no values, nothing to compare
    loss_of_microbatches: bool = False  # take the mean over microbatches of a loss that is not a mean over samples


@dataclasses.dataclass
class Program:
    """An exported program that passed its checks. `eager` is the model it was made from, never run, with the loss.
    `inputs` are in the program's order, the loss's own last."""

    exported: torch.export.ExportedProgram
    eager: torch.nn.Module
    inputs: tuple
    has_loss: bool
    symbol: str | None
    least: int
    most: int
    name: str
    tied: list
    rounding: bool = False
    evaluation: bool = False
    outputs: tuple = ()  # without a loss: the keys of what the model returns, if it is a dictionary
    scores: int | None = None  # and which of them a named loss reads
    loss_kind: str | None = None  # "sum", "across"; None: a mean, weighted if there is a weight
    loss_weight: loss_checks.Weight | None = None
    evaluates: bool = True  # whether the training program with dropout off and running statistics is the model after eval()


@prepare.uncompiled
def export(request):
    """The program of a request. Throws ExportError if it would not train like the model."""
    with prepare.untraced() if request.structure else contextlib.nullcontext():
        return _program(request)


def _program(request):
    model = prepare.prepared(request.model)
    refuse.check_model(model)
    refuse.check_head(model, request.loss)
    model.to("meta" if request.structure else "cpu")
    if request.evaluation:
        model.eval()
    else:
        _set_training(model)
    names = [each.name for each in request.inputs]
    if len(set(names)) < len(names):
        raise OptionError(f"--input: {max(names, key=names.count)} appears twice")
    if not names:
        raise MissingOptionError(INPUTS_UNKNOWN)
    call = _caller(model, request)
    samples = request.static or SAMPLES
    result = _probe(model, call, _placed(request.inputs, request), samples, request.seed)
    if not structure.tensors_of(result):
        raise InputError(f"{request.name}: forward returns {type(result).__name__} without a tensor in it")
    by_name = {each.name: each for each in request.inputs}
    loss = choose_loss(request.loss, result, by_name, call.templates, samples, request.loss_output)
    inputs = _placed(tuple(request.inputs) + loss.inputs, request)
    eager = with_loss(_copied(model), call, inputs, loss)
    with_loss(model, call, inputs, loss)
    inputs = settled(inputs, _probe_loss(_copied(eager), inputs, samples, request.seed, loss))

    if loss.function is not None and not request.evaluation:
        loss_checks.check_gradients(_copied(eager), draw_all(inputs, samples, request.seed), request.seed, request.name)
    leasts = [1, 2] if _runs(eager, draw_all(inputs, 1, request.seed)) else [2]
    progress("exporting")
    exported, batch = _checked(model, eager, inputs, request, leasts)
    keys, scores = ((), None) if loss.function else scores_of(result, by_name, samples)
    return Program(exported, eager, inputs, loss.function is not None, *batch, request.name, _tied(eager),
                   request.rounding, request.evaluation, keys, scores, *_loss_kind(eager, loss, inputs, request, exported),
                   _evaluates(eager, exported, batch, inputs, request))


def _evaluates(eager, exported, batch, inputs, request):
    if request.structure or request.evaluation:
        return True
    _, least, most = batch
    tensors = draw_all(inputs, min(max(least, 2), most), request.seed + 1)
    alike = self_check.one_thread(lambda: self_check.evaluates_alike(eager, exported, tensors, request.seed))
    if not alike:
        notice("after eval() the model computes something else than with dropout off and running statistics, so the file cannot be "
               "evaluated; export it again with --evaluation for that")
    return alike


def _loss_kind(eager, loss, inputs, request, exported):
    """(kind, weight) for the archive: "sum" or "across", said; None for a mean, weighted by `weight` unless that is None."""
    if loss.function is None:
        return None, None
    weight = loss_checks.weight_of(exported, inputs)
    if request.structure:
        return None, weight
    try:
        kind, why = loss_checks.kind_of(eager, inputs, exported, weight, request.seed), "it is not a number"
    except Exception as error:
        kind, why = None, first_line(error)
    if kind is None:
        kind = "weighted" if weight else "mean"
        notice(f"the loss of a batch could not be compared with those of its halves, {why}; it is taken as their mean"
               f"{', weighted by what they are divided by' if weight else ''}")
    if kind == "weighted" and not weight.varies(inputs):
        return None, weight  # until a setting allows labels that the loss ignores
    if kind != "mean" and request.loss_of_microbatches:
        notice("the loss is not a mean over samples; as accepted, a step takes the mean of its microbatches' losses")
        return None, None
    if kind == "weighted":
        notice("the loss is a weighted mean: a step weighs each microbatch by what its loss was divided by, as for the whole batch")
        return None, weight
    if kind == "sum":
        notice("the loss is a sum over samples: that of a step is the sum over its microbatches")
        return kind, None
    if kind == "across":
        notice("the loss of a batch does not follow from those of its halves (it compares samples, or adds means over different "
               "things), so a step must be one microbatch; --loss-of-microbatches accepts their mean")
        return kind, None
    return None, None


def _checked(model, eager, inputs, request, leasts):
    """The program and its (symbol or None, least, most), after all checks; from leasts[0] samples on if possible."""
    exported, batch = _export(model, inputs, request, leasts)
    _drop_checks(exported)
    refuse.check_program(exported, [each.name for each in inputs])
    _strip(exported)
    if request.structure:
        return exported, batch
    progress("comparing the exported program with the model")
    symbol, least, most = batch
    counts = [least] if symbol is None else [count for count in (2, 5) if least <= count <= most] or [least]
    for index, count in enumerate(counts):
        passes = 2 if index == 0 else 1  # state of the model shows in the second
        self_check.check(eager, exported, draw_all(inputs, count, request.seed + 1), count, request.seed, passes,
                         request.rounding)
    if symbol is not None and least == 1 and counts != [1]:
        try:
            self_check.check(eager, exported, draw_all(inputs, 1, request.seed + 1), 1, request.seed, 1, request.rounding)
        except ExportError as error:
            notice(f"exported for 2 samples and more: {error}")
            return _checked(model, eager, inputs, request, [2])
    return exported, batch


def _placed(inputs, request):
    return tuple(dataclasses.replace(each, device="meta") for each in inputs) if request.structure else inputs


def _runs(eager, tensors):
    """Whether a model trains on these inputs; BatchNorm may need more than one sample."""
    trial = _copied(eager)
    with torch.random.fork_rng(devices=[]):
        try:
            _without_graph(lambda: trial(*tensors))
        except Exception:
            return False
    return True


def _set_training(model):
    """In training mode; modules that were frozen one by one stay so."""
    if not model.training:
        notice("the whole model was in evaluation mode and is exported in training mode; use --evaluation to keep its mode")
        model.train()
        return
    frozen = [name for name, module in model.named_modules() if not module.training]
    if frozen:
        more = len(frozen) - 1
        others = f" and {more} more module{'s' if more > 1 else ''} stay" if more else " stays"
        notice(f"{frozen[0]}{others} in evaluation mode")


@dataclasses.dataclass(frozen=True)
class _Call:
    """How to call a model's forward: arguments in `by_name` are passed by keyword, those in `by_place` by position."""

    templates: dict
    by_name: list
    by_place: list
    constants: dict

    def arguments(self, tensors):
        """Forward's arguments from tensors by the names of inputs."""
        return {name: structure.assembled(template, tensors) for name, template in self.templates.items()}

    def __call__(self, forward, arguments):
        return forward(*(arguments[name] for name in self.by_place), **{name: arguments[name] for name in self.by_name},
                       **self.constants)


def _caller(model, request):
    """How to call forward: inputs whose names it has are passed by keyword; if it has none of them, all are passed by
    position."""
    templates = request.templates
    if templates is None:
        templates = structure.templates_of([each.path for each in request.inputs], model.forward)
    names, loss = list(templates), request.loss
    parameters = inspect.signature(model.forward).parameters
    open_ended = any(each.kind == each.VAR_KEYWORD for each in parameters.values())
    own = [name for name in names if name in parameters]
    wanted = [each.name for each in parameters.values()
              if each.default is each.empty and each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)]
    places = [each for each in parameters.values() if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]
    varied = any(each.kind == each.VAR_POSITIONAL for each in parameters.values())
    beside = set(names) - set(own)  # for the loss, unless forward takes them by position
    if callable(loss):
        beside &= set(list(inspect.signature(loss).parameters)[1:])
    else:
        beside &= {"target"}
    positional = [name for name in names if name not in own and name not in beside]
    if own and positional and not open_ended:
        raise InputError(f"--input: forward has no parameter {positional[0]}, it has {', '.join(parameters)}")
    if own and not positional or open_ended and not places:
        missing = [name for name in wanted if name not in own]
        if missing:
            raise InputError(f"--input: forward also needs {missing[0]}; given are {', '.join(names)}")
        return _Call(templates, own + positional, [], request.constants)
    if not varied and not len([n for n in wanted]) <= len(positional) <= len(places):
        raise InputError(f"--input: forward takes {', '.join(parameters) or 'nothing'}; given are {', '.join(names)}")
    return _Call(templates, [], positional, request.constants)


def _copied(model):
    try:
        return copy.deepcopy(model)
    except Exception as error:
        raise ExportError(f"the model cannot be copied, {first_line(error)}; tensors that it keeps between calls must be "
                          f"detached") from error


def _without_graph(function):
    """function(), without recording its operators unless it computes a gradient itself."""
    try:
        with torch.no_grad():
            return function()
    except RuntimeError as error:
        if "does not require grad" not in str(error):
            raise
    return function()


def _probe(model, call, inputs, samples, seed):
    """What the model returns for random samples; the model itself is unchanged."""
    trial = _copied(model)
    tensors = dict(zip((each.name for each in inputs), draw_all(inputs, samples, seed)))

    def run():
        try:
            return _without_graph(lambda: call(trial.forward, call.arguments(tensors)))
        except Exception as error:
            given = ", ".join(f"{each.given} {list(tensors[each.name].shape)}" for each in inputs)
            typed = any(each.examples is None for each in inputs)
            one = "; --input gives the shape of one sample, without the batch" if typed and refuse.is_about_shapes(error) else ""
            refuse.check_gradients(error, places.of_error(error, trial))
            raise InputError(f"running the model on {given} fails{places.at(error, trial)}: {first_line(error)}{one}") from error

    versions = {name: buffer._version for name, buffer in trial.named_buffers()}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        result = randomness.check(run, "the model", trial)
    prepare.check_written(trial, {name for name, buffer in trial.named_buffers() if buffer._version != versions.get(name)})
    return result


def _probe_loss(trial, inputs, samples, seed, loss):
    """The ranges of inputs that show when the model and its loss run, by name."""
    tensors = draw_all(inputs, samples, seed)

    def run():
        try:
            return _without_graph(lambda: trial(*tensors))
        except Exception as error:
            raise InputError(f"--loss: running the loss fails{places.at(error, trial)}: {first_line(error)}") from error

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        with prepare.IndexRanges(dict(zip((each.name for each in inputs), tensors))) as indices:
            out = randomness.check(run, "the loss")
    if loss.function is not None and (not isinstance(out[0], torch.Tensor) or out[0].dim() != 0):
        shape = list(out[0].shape) if isinstance(out[0], torch.Tensor) else type(out[0]).__name__
        raise InputError(f"--loss: the loss is {shape}, must be one number, such as its mean")
    return indices.ranges()


def _export(model, inputs, request, leasts):
    """The program, and its (symbol or None, least, most)."""
    samples, more = request.static, ""
    with contextlib.ExitStack() as stack:
        if samples is None:
            reason, fits, samples = None, False, request.fixed
            for least in leasts:
                batch = torch.export.Dim("batch", min=least, max=request.most)
                shapes = tuple(None if each.batch_axis is None else {each.batch_axis: batch} for each in inputs)
                try:
                    exported = _traced(model, draw_all(inputs, SAMPLES, request.seed), shapes, stack)
                    return exported, _batch_of(exported, inputs)
                except Exception as error:
                    if refuse.is_about_data(error):
                        raise ExportError(refuse.why_not(error, model)) from error
                    if refuse.is_about_hidden_tensors(error) or isinstance(error, ExportError):
                        raise ExportError(refuse.why_not(error, model)) from error
                    if reason is None:
                        reason, fits = refuse.why_static(error), refuse.is_about_samples(error)
            notice(f"the number of samples cannot be dynamic: {reason}; trying a fixed batch of {samples}, --static N takes "
                   f"another")
            if fits and samples != SAMPLES:
                more = f"; --record has {samples} samples per microbatch, but the model runs with {SAMPLES}: use --samples {SAMPLES}"
        try:
            exported = _traced(model, draw_all(inputs, samples, request.seed), None, stack)
        except Exception as error:
            raise ExportError(refuse.why_not(error, model) + more) from error
    return exported, (None, samples, samples)


def _traced(model, tensors, shapes, stack):
    """The program of a copy. If torch.distributions' checks of arguments fail, they are off until `stack` ends."""
    try:
        return _trace(copy.deepcopy(model), tensors, shapes)
    except Exception as error:
        if not refuse.is_about_distributions(error) or not torch.distributions.Distribution._validate_args:
            raise
    notice("torch.distributions validates its arguments, which torch.export does not allow; validation is off during the export")
    stack.enter_context(prepare.unvalidated())
    return _trace(copy.deepcopy(model), tensors, shapes)


def _trace(model, tensors, shapes):
    logging.disable(logging.WARNING)
    try:
        # On failure torch prints the whole program; the message has the relevant part.
        with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()), prepare.right_states(), \
                prepare.untraced(), prepare.unasserted(), places.in_nodes():
            warnings.simplefilter("ignore")
            return _without_vmap(torch.export.export(model, tuple(tensors), dynamic_shapes=shapes, strict=False))
    finally:
        logging.disable(logging.NOTSET)


def _without_vmap(exported):
    """The program with operators on whole batches instead of torch.vmap's. Throws ExportError if it also writes buffers, which
    that turns into outputs."""
    from torch._functorch import predispatch

    used = [node for module in exported.graph_module.modules() if isinstance(module, torch.fx.GraphModule)
            for node in module.graph.nodes if getattr(node.target, "__module__", "") == predispatch.__name__]
    if not used:
        return exported
    out = exported.run_decompositions({})
    if out.graph_signature.buffers_to_mutate:
        raise ExportError(f"{places.of_node(used[0])}: torch.vmap in a model whose forward writes a buffer cannot be exported; compute "
                          f"on the whole batch instead")
    out._verifiers = exported._verifiers  # without writes, it is still a program for training
    return out


def _drop_checks(exported):
    """Removes checks of tensors' values, such as torch._check_tensor_all, and what only they compute: numbers that follow
    from values cannot be computed without Python, and these change nothing. Checks of shapes stay."""
    dropped = []
    for module in exported.graph_module.modules():
        if not isinstance(module, torch.fx.GraphModule):
            continue
        checks = [node for node in module.graph.nodes if node.target in _CHECKS and _reads_values(node)]
        dropped += checks
        for check in checks:
            _erase_unused(module.graph, check)
        if checks:
            module.recompile()
    if dropped:
        left = set().union(*(free_unbacked_symbols(node.meta.get("val")) for node in exported.graph.nodes))
        for symbol in [each for each in exported.range_constraints if symbol_is_type(each, _OF_VALUES) and each not in left]:
            del exported.range_constraints[symbol]
        place = places.of_node(dropped[0])
        more = f" and {len(dropped) - 1} more" if len(dropped) > 1 else ""
        notice(f"checks of tensors' values are left out{f': {place}{more}' if place.line else ''}")


_OF_VALUES = (SymT.UNBACKED_INT, SymT.UNBACKED_FLOAT)
_CHECKS = {torch.ops.aten._assert_scalar.default, torch.ops.aten.sym_constrain_range.default,
           torch.ops.aten.sym_constrain_range_for_size.default}


def _reads_values(node):
    """Whether a number that the node takes follows from the values of a tensor."""
    for each in node.all_input_nodes:
        value = each.meta.get("val")
        if each.target is torch.ops.aten.item.default or free_unbacked_symbols(value):
            return True
        if not isinstance(value, torch.Tensor) and _reads_values(each):
            return True
    return False


def _erase_unused(graph, node):
    """Removes a node without users, then those of its inputs that have no other use and no effect."""
    inputs = list(node.all_input_nodes)
    graph.erase_node(node)
    for each in inputs:
        if each.op != "call_function" or not isinstance(each.target, torch._ops.OpOverload | types.FunctionType | types.BuiltinFunctionType):
            continue
        about_type = [user for user in each.users if user.target is torch.ops.aten._assert_tensor_metadata.default]
        if len(about_type) == len(each.users) and not each.is_impure():
            for user in about_type:
                graph.erase_node(user)
            _erase_unused(graph, each)


def _strip(exported):
    """Removes from a program what the archive does not need: half its length, and the paths of sources."""
    for module in exported.graph_module.modules():
        if isinstance(module, torch.fx.GraphModule):
            for node in module.graph.nodes:
                for key in ("stack_trace", "torch_fn", "source_fn_stack", "from_node", "custom"):
                    node.meta.pop(key, None)


def _batch_of(exported, inputs):
    """(symbol, least, most) of the one free number of a program."""
    places = {node.name: node for node in exported.graph.nodes if node.op == "placeholder"}
    symbols = {}
    for each in inputs:
        if each.batch_axis is not None and each.name in places:
            extent = places[each.name].meta["val"].shape[each.batch_axis]
            if not isinstance(extent, torch.SymInt):
                raise ExportError(f"the batch axis of {each.name} became the constant {extent}")
            symbols[extent.node.expr] = each.name
    if len(symbols) != 1:
        raise ExportError("the inputs do not share one batch axis")
    (symbol,) = symbols
    bounds = exported.range_constraints[symbol]
    return str(symbol), int(bounds.lower), int(bounds.upper)


def _tied(model):
    """Names of parameters that are one tensor, in groups."""
    groups = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        groups.setdefault(id(parameter), []).append(name)
    return [names for names in groups.values() if len(names) > 1]


def description(program):
    """extra/stagecraft.json: version 2 has "training", which is true where it is absent, version 3 the rest."""
    more = {**({"loss_kind": program.loss_kind} if program.loss_kind else {}),
            **({"loss_weight": program.loss_weight.description()} if program.loss_weight else {}),
            **({} if program.evaluates else {"evaluates": False}),
            **({"output_keys": list(program.outputs), "scores_output": program.scores} if program.outputs else {})}
    return {
        "format": "stagecraft.pt2",
        "version": 3 if more else 2 if program.evaluation else 1,
        **({"training": False} if program.evaluation else {}),
        **more,
        "batch_symbol": program.symbol,
        "inputs": [{"name": each.name, "batch_axis": each.batch_axis, "range": list(each.range) if each.range else None}
                   for each in program.inputs],
        "samples": {"least": program.least, "most": program.most},
        "loss_output": 0 if program.has_loss else None,
        "tied": program.tied,
        "model": program.name,
        "torch": torch.__version__.split("+")[0],
    }


def save(program, path):
    """Writes the archive; `path` is either the old file or the complete new one."""
    progress(f"writing {path}")
    folder = os.path.dirname(os.path.abspath(path))
    try:
        # A temporary folder, not a temporary name: the archive's root is named after its file, in plain letters.
        temporary = tempfile.mkdtemp(prefix=f".{os.path.basename(path)}.", dir=folder)
    except OSError as error:
        raise WriteError(f"{path}: cannot be written, {error.strerror}") from error
    try:
        file = os.path.join(temporary, re.sub("[^A-Za-z0-9._-]", "_", os.path.basename(path)))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.export.save(program.exported, file,
                              extra_files={"stagecraft.json": json.dumps(description(program), indent=1)})
        with zipfile.ZipFile(file) as archive:
            refuse.check_archive(archive, program.exported)
        os.replace(file, path)
    except (OSError, RuntimeError) as error:
        raise WriteError(f"{path}: cannot be written, {first_line(error)}") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
