"""Models that cannot be trained from an archive without Python, each with a reason and a remedy."""

import json
import math
import operator
import re

import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from torch.nn.parameter import is_lazy

from . import places
from .errors import ExportError, first_line
from .losses import OF_CLASSES
from .transformers_models import heads_of

INSTEAD = "use masks (torch.where) and shapes that follow from the inputs' shapes"
OF_OPERATORS = "write it with torch's operators: x + (y - x).detach() has the value of y and the gradient of x"
HIGHER_ORDER = ("wrap_with_set_grad_enabled", "wrap_with_autocast", "cond")
NUMBERS = {getattr(operator, name) for name in (
    "add sub mul floordiv truediv mod pow neg pos abs eq ne lt le gt ge and_ or_ not_ getitem").split()} | {
    math.trunc, math.floor, math.ceil, torch.sym_int, torch.sym_float, torch.sym_not, torch.sym_ite, torch.sym_max,
    torch.sym_min}


def check_model(model):
    if isinstance(model, torch.jit.ScriptModule):
        raise ExportError("the model is a TorchScript module, which torch.export does not take; give the nn.Module it came from")
    if isinstance(model, (torch.nn.DataParallel, torch.nn.parallel.DistributedDataParallel)):
        raise ExportError(f"the model is wrapped in {type(model).__name__}; give the one inside, model.module: replicas come from the plan")
    if "forward" in vars(model) or model._forward_hooks or model._backward_hooks:
        what = "a separate forward" if "forward" in vars(model) else "hooks"
        raise ExportError(f"the model, {type(model).__name__}, has {what} on the outermost module, which would be lost when the "
                          f"loss is added; put it inside another nn.Module")
    for name, parameter in model.named_parameters():
        if parameter.is_complex():
            raise ExportError(f"parameter {name} is {_type(parameter)}, trainable parameters must be float32; store "
                              f"torch.view_as_real({name}) and call torch.view_as_complex in forward")
        if parameter.requires_grad and parameter.dtype != torch.float32:
            raise ExportError(f"parameter {name} is {_type(parameter)}, trainable parameters must be float32; call model.float(); "
                              f"lower precision is chosen for training")
    for path, module in model.named_modules():
        for name, tensor in (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)):
            if is_lazy(tensor):
                raise ExportError(f"{f'{path}.' if path else ''}{name} has no shape yet ({type(module).__name__}); call the model once "
                                  f"on a batch before the export, or use a module with the number of features")
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if tensor.layout != torch.strided:
            raise ExportError(f"{name} is sparse ({tensor.layout}), must be an ordinary tensor; call to_dense()")
        if type(tensor) not in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer):
            raise ExportError(f"{name} is of type {type(tensor).__name__}, must be an ordinary tensor; torch.export would pickle it")
    for name in [*model._parameters, *model._buffers, *model._modules]:
        if hasattr(torch.fx.GraphModule, name) and not hasattr(torch.nn.Module, name):
            raise ExportError(f'the model has a parameter, buffer or module named "{name}", which torch.export reserves; '
                              f"rename it")
    for path, module in model.named_modules():
        if isinstance(module, torch.jit.ScriptModule):
            raise ExportError(f"{path} is a TorchScript module, which torch.export does not take; give the nn.Module it came from")
        for name, value in vars(module).items():
            if isinstance(value, torch.Generator):
                full = f"{path}.{name}" if path else name
                raise ExportError(f"{full} is a torch.Generator, from which an exported program cannot draw; drop generator=, torch's "
                                  f"default generator is seeded for each step and microbatch")


def check_head(model, loss):
    """Throws ExportError for a model of transformers without a head and a loss that would read its hidden states as scores."""
    heads = heads_of(model)
    if heads is not None and loss in OF_CLASSES:
        listed = f"--head selects one of {', '.join(heads)}" if heads else "transformers has no head for it"
        raise ExportError(f"--loss {loss}: {type(model).__name__} has no head, its outputs are hidden states, not scores; {listed}; "
                          f"a custom loss can read them, --loss module:callable")


def _type(tensor):
    return str(tensor.dtype).removeprefix("torch.")


def check_program(exported, names):
    """Throws ExportError for the first thing in the graph that C++ cannot run."""
    from torch.export.graph_signature import CustomObjArgument, InputKind, TokenArgument

    for spec in exported.graph_signature.input_specs:
        if isinstance(spec.arg, (CustomObjArgument, TokenArgument)) or spec.kind in (InputKind.CUSTOM_OBJ, InputKind.TOKEN):
            raise ExportError(f"{spec.arg.name}: the program keeps an object of a Python class, it must keep only tensors")
    given = [spec.arg.name for spec in exported.graph_signature.input_specs if spec.kind == InputKind.USER_INPUT]
    if given != names:
        wrong = next((name for name in names if name not in given), names[0])
        raise ExportError(f"input {wrong}: torch.export names the inputs {', '.join(given)}; rename this one")
    for module in exported.graph_module.modules():
        if isinstance(module, torch.fx.GraphModule):
            for node in module.graph.nodes:
                _check_node(node)
    trained = {spec.arg.name: spec.target for spec in exported.graph_signature.input_specs
               if spec.kind == InputKind.PARAMETER and exported.state_dict[spec.target].requires_grad}
    _check_writes(exported.graph_module, {name: name for name in trained}, trained)


def _check_writes(graph_module, origin, trained):
    """Throws ExportError for a node that writes a trained parameter. `origin`: the parameter's node, by the name of a placeholder."""
    of = {}  # by node: the placeholder of the whole program whose memory it is
    for node in graph_module.graph.nodes:
        if node.op == "placeholder":
            of[node] = origin.get(node.name)
        elif isinstance(node.target, torch._ops.OpOverload):
            schema = node.target._schema
            for argument, given in zip(schema.arguments, node.args):
                if not isinstance(given, torch.fx.Node) or argument.alias_info is None:
                    continue
                of[node] = of.get(given)  # a view, or what is written in place
                if argument.alias_info.is_write and of[node]:
                    place = places.of_node(node)
                    remedy = (_OF_MAX_NORM if "renorm" in node.target.name() else
                              "only the optimizer changes those; write into a buffer or a frozen parameter, or constrain it with "
                              "torch.nn.utils.parametrize")
                    raise ExportError(f"{f'{place}: ' if place.line else ''}forward changes the trained parameter {trained[of[node]]} "
                                      f"in place ({node.target.name()}){_module(node)}; {remedy}")
        elif isinstance(node.target, torch._ops.HigherOrderOperator):
            bodies = [each for each in node.args if isinstance(each, torch.fx.Node) and each.op == "get_attr"]
            given = node.args[node.args.index(bodies[-1]) + 1 :] if bodies else ()
            given = given[0] if len(given) == 1 and isinstance(given[0], (list, tuple)) else given
            for body in bodies:
                inner = getattr(graph_module, body.target)
                names = [each.name for each in inner.graph.nodes if each.op == "placeholder"]
                _check_writes(inner, {name: of.get(each) for name, each in zip(names, given)}, trained)


_OF_MAX_NORM = ("leave out max_norm, and scale the rows where they are read: rows * (max_norm / rows.norm(dim=-1, "
                "keepdim=True)).clamp(max=1)")


def _check_node(node):
    place = places.of_node(node)
    where = f"{place}: node {node.name}{_module(node)}" if place.line else f"node {node.name}{_module(node)}"
    if node.op == "call_function":
        target = node.target
        if isinstance(target, torch._ops.HigherOrderOperator):
            if "autograd_function" in target.name():
                raise ExportError(f"{where}: {target.name()} is the model's own torch.autograd.Function, whose backward is Python; "
                                  f"{OF_OPERATORS}")
            if target.name() not in HIGHER_ORDER:
                raise ExportError(f"{where}: {target.name()} cannot run without Python; of the higher-order operators, only "
                                  f"{', '.join(HIGHER_ORDER)} can; write it with ordinary operators")
        elif isinstance(target, torch._ops.OpOverload):
            if target.namespace != "aten":
                raise ExportError(f"{where}: operator {target.name()} is not torch's but belongs to {target.namespace}, whose "
                                  f"library needs Python; {advice(place) or 'use a model made of torch operators'}")
            _check_sparse(node, where)
        elif target not in NUMBERS:
            raise ExportError(f"{where}: {_what(node)} cannot run without Python; "
                              f"{advice(place) or 'compute it with operators of torch'}")
    value = node.meta.get("val")
    for each in value if isinstance(value, (list, tuple)) else [value]:
        if isinstance(each, (torch.Tensor, torch.SymInt, torch.SymFloat, torch.SymBool)):
            symbols = free_unbacked_symbols(each)
            if symbols:
                raise ExportError(f"{where}: its shape or value, {sorted(map(str, symbols))[0]}, depends on the data (nonzero, "
                                  f"boolean indexing, .item()); {advice(place) or INSTEAD}")


def _what(node):
    """A Python function of the graph, with what it takes."""
    name = getattr(node.target, "__name__", str(node.target))
    values = [each.meta.get("val") for each in node.all_input_nodes]
    of = "" if not values else " of a tensor" if any(isinstance(each, torch.Tensor) for each in values) else " of a number"
    return f"the Python function {name}{of}"


def _check_sparse(node, where):
    schema = node.target._schema
    given = dict(zip((argument.name for argument in schema.arguments), node.args)) | dict(node.kwargs)
    if given.get("sparse") is True:
        raise ExportError(f"{where}: {node.target.name()} has sparse=True, sparse gradients are not supported; set sparse=False")


def _module(node):
    stack = node.meta.get("nn_module_stack")
    path = list(stack.values())[-1][0] if stack else ""
    return f" in {path}" if path else ""


def check_archive(archive, exported):
    """Checks of the written file: pickled weights, nodes under other names."""
    for name in archive.namelist():
        if name.endswith("_config.json"):
            for key, entry in json.loads(archive.read(name))["config"].items():
                if entry["use_pickle"]:
                    raise ExportError(f"{key}: torch.export pickles this tensor; only ordinary ones can be read without Python")
    (program,) = [name for name in archive.namelist() if re.search(r"/models/[^/]+\.json$", name)]
    written = [node["name"] for node in json.loads(archive.read(program))["graph_module"]["graph"]["nodes"]]
    known = {node.name for node in exported.graph.nodes}
    other = [name for name in written if name not in known]
    if other:
        raise ExportError(f"node {other[0]}: torch.export writes it under a name that is not in the program")


def is_about_data(error):
    """Whether an export failed because the program would depend on the values of tensors."""
    text = str(error)
    return (isinstance(error, (DynamicOutputShapeException, DataDependentOutputException)) or "data-dependent" in text or
            "Could not guard" in text or "unbacked" in text.lower() or re.search(r"Unknown symbol z?u[f]?\d", text) is not None)


def is_about_shapes(error):
    """Whether running a model failed because an input does not have the shape that it needs."""
    return bool(re.search(r"shape|size|dimension|channels|expected (?:input|\d+D)|[1-9]D |must match|Tensor with \d", str(error),
                          re.IGNORECASE))


def is_about_hidden_tensors(error):
    """Whether an export failed because forward computes with a tensor that torch.export does not follow."""
    return "fake tensor in the exported program constant" in str(error) or "Expected FakeTensor" in str(error)


_GRADIENTS = r"\bautograd\.grad\(|\.backward\(|\bfunc\.(?:grad|grad_and_value|jacrev|jacfwd|hessian|vjp|jvp|linearize)\b"
_HIDDEN = (
    (_GRADIENTS, "a gradient that forward computes cannot be exported; write the derivative with torch's operators"),
    (r"\.data\b", "torch.export does not follow .data; write in place under torch.no_grad(): parameter.mul_(0.9)"),
    (r"\.detach_\(|\bset_\(", "torch.export does not follow this change of a tensor; use detach() or copy_"),
)


def check_gradients(error, place):
    """Throws ExportError if an error of the model is one of a gradient that it computes in forward."""
    found = next((line for line in reversed(place.lines) if re.search(_GRADIENTS, line.text)), None)
    if found:
        raise ExportError(f"running the model fails at {found}: {first_line(error)}; {_HIDDEN[0][1]}") from error


def is_about_samples(error):
    """Whether an export failed because the model does not accept every number of samples."""
    text = str(error)
    return bool(re.search(r"(?:inferred|specialized)[^\n]*?constant[^\n]*?\(?(\d+)", text) or "specializ" in text.lower() or
                "Constraints violated" in text)


def is_about_distributions(error):
    """Whether an export failed in a check of arguments in torch.distributions."""
    return is_about_data(error) and places.of_error(error).calls("torch/distributions/") is not None


def why_static(error):
    """The reason in torch's terms, without those of torch.export."""
    text = str(error)
    if isinstance(error, ExportError):
        return text
    if is_about_samples(error):
        return ("the model uses the number of samples as a plain number (int(x.shape[0]), a literal shape in view or "
                "zeros, a Python list or loop over the batch) or needs it to be a multiple of something"
                f" [{_short(text)}]")
    return first_line(error) + places.at(error)


def why_not(error, model):
    """The meaning of an exception of torch.export of a model, and a remedy."""
    if isinstance(error, ExportError):
        return str(error)
    if is_about_hidden_tensors(error):
        for pattern, remedy in _HIDDEN:
            line = places.in_source(model, pattern)
            if line:
                return f"torch.export fails, probably at {line}: {remedy}"
        return ("torch.export fails: forward computes with a tensor that is neither an input nor a parameter or buffer, or changes "
                f"one in a way that is not traced; register it with register_buffer, and write with copy_ [{first_line(error)[:150]}]")
    place = places.of_error(error)
    at = f" at {place}" if place.line else ""
    return f"torch.export fails{at}: {_reason(error, place)}"


def _reason(error, place):
    if not is_about_data(error):
        if ".numpy()" in str(error):
            return "NumPy cannot be exported; use torch operators"
        if "torch._C.Generator" in str(error):
            return ("an exported program cannot draw from a torch.Generator; drop generator=, torch's default generator is seeded "
                    "for each step and microbatch")
        if place.calls("torch/nn/modules/rnn.py") and "FakeTensor" in str(error):
            return ("the shape of a packed sequence depends on the lengths in it; run the layer on the padded sequence and pick "
                    "the states at the lengths with torch.gather")
        return first_line(error)
    causal = place.calls("torch/nn/modules/transformer.py", "_detect_is_causal_mask")
    if causal:
        return (f"nn.Transformer reads the values of its mask to see whether it is causal; state it in the call, with "
                f"{_causal_argument(place)}=True or False")
    if place.calls("torch/distributions/"):
        return ("torch.distributions validates its arguments, which torch.export does not allow; create the distribution with "
                "validate_args=False")
    if place.calls("torch/nn/modules/batchnorm.py"):
        return "batch norm with momentum=None divides by a count that changes during training; give it a momentum"
    if advice(place):
        return f"the computation depends on the values of a tensor; {advice(place)}"
    kind = places.statement(place.line) if place.line else ""
    library = place.line and place.line.is_library()
    if kind == "check":
        skip = 'skip it during an export, with "if not torch.compiler.is_exporting():"'
        return (f"this check reads the values of a tensor, which torch.export does not allow; "
                f"{'look for an option of the library that avoids it' if library else skip}")
    if kind == "branch":
        return "this branch depends on the values of a tensor; compute both sides and select with torch.where"
    if kind == "loop":
        return ("the number of iterations of this loop depends on the values of a tensor; use a number that follows from the "
                "inputs' shapes")
    short = "" if place.line else f" [{_short(str(error))}]"
    return f"a shape or a number depends on the values of a tensor (.item(), int(), nonzero, boolean indexing); {INSTEAD}{short}"


def _causal_argument(place):
    """The argument for a causal mask of the outermost called module of nn.Transformer's family."""
    calls = [line for line in place.lines if (line.packaged or "") == "torch/nn/modules/transformer.py"]
    argument = next((line.text.partition(" =")[0] for line in calls if "_detect_is_causal_mask(" in line.text), "is_causal")
    return f"src_{argument}" if argument == "is_causal" and any("self.encoder(" in line.text for line in calls) else argument


def advice(place):
    """The remedy for a line of transformers that a field of its configurations controls."""
    line = place.library
    if line is None or not line.packaged.startswith("transformers"):
        return None
    if "expert" in line.text or line.packaged == "transformers/integrations/moe.py":
        return ('set experts_implementation="batched_mm" in the model\'s configuration (--model-args '
                "experts_implementation=batched_mm), which uses only torch operators")
    if "layerdrop" in line.text:
        return "set layerdrop to 0 in the model's configuration (--model-args layerdrop=0)"
    if line.function == "_compute_mask_indices":
        return "set apply_spec_augment to False in the model's configuration (--model-args apply_spec_augment=False)"
    return None


def _short(text):
    lines = [line.strip(" -") for line in text.splitlines() if line.strip()]
    telling = [line for line in lines if re.search(r"batch|[Cc]onstraint|specializ|guard", line) and len(line) < 300]
    return (telling[1] if len(telling) > 1 and telling[0].startswith("Constraints violated") else (telling or lines)[0])[:300]
