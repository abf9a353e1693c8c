"""What cannot be trained from an archive without Python, each with a reason and a way out."""

import json
import math
import operator
import re

import torch
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from .errors import ExportError, first_line

HIGHER_ORDER = ("wrap_with_set_grad_enabled", "wrap_with_autocast", "cond")
NUMBERS = {getattr(operator, name) for name in (
    "add sub mul floordiv truediv mod pow neg pos abs eq ne lt le gt ge and_ or_ not_ getitem").split()} | {
    math.trunc, math.floor, math.ceil, torch.sym_int, torch.sym_float, torch.sym_not, torch.sym_ite, torch.sym_max,
    torch.sym_min}


def check_model(model):
    if isinstance(model, torch.jit.ScriptModule):
        raise ExportError("the model is a TorchScript module, which torch.export does not take; give the nn.Module it came from")
    if "forward" in vars(model) or model._forward_hooks or model._backward_hooks:
        what = "a forward of its own" if "forward" in vars(model) else "hooks"
        raise ExportError(f"the model, {type(model).__name__}, has {what} on the outermost module, which the loss would lose; "
                          f"put it inside another nn.Module")
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and parameter.dtype != torch.float32:
            raise ExportError(f"parameter {name} is {_type(parameter)}, trainable parameters must be float32; call "
                              f"model.float(), lower precision is chosen when training")
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if tensor.layout != torch.strided:
            raise ExportError(f"{name} is sparse ({tensor.layout}), must be an ordinary tensor; call to_dense()")
        if type(tensor) not in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer):
            raise ExportError(f"{name} is of type {type(tensor).__name__}, must be an ordinary tensor; torch.export would pickle it")


def _type(tensor):
    return str(tensor.dtype).removeprefix("torch.")


def check_program(exported, names):
    """Throws ExportError for the first thing in the graph that C++ cannot run."""
    from torch.export.graph_signature import CustomObjArgument, InputKind, TokenArgument

    for spec in exported.graph_signature.input_specs:
        if isinstance(spec.arg, (CustomObjArgument, TokenArgument)) or spec.kind in (InputKind.CUSTOM_OBJ, InputKind.TOKEN):
            raise ExportError(f"{spec.arg.name}: the program keeps an object of a Python class, it must keep tensors only")
    given = [spec.arg.name for spec in exported.graph_signature.input_specs if spec.kind == InputKind.USER_INPUT]
    if given != names:
        wrong = next((name for name in names if name not in given), names[0])
        raise ExportError(f"input {wrong}: torch.export calls the inputs {', '.join(given)}; give it another name")
    for module in exported.graph_module.modules():
        if isinstance(module, torch.fx.GraphModule):
            for node in module.graph.nodes:
                _check_node(node)


def _check_node(node):
    where = f"node {node.name}{_module(node)}"
    if node.op == "call_function":
        target = node.target
        if isinstance(target, torch._ops.HigherOrderOperator):
            if target.name() not in HIGHER_ORDER:
                raise ExportError(f"{where}: {target.name()} cannot run without Python, of its kind only "
                                  f"{', '.join(HIGHER_ORDER)} can; write it with ordinary operators")
        elif isinstance(target, torch._ops.OpOverload):
            if target.namespace != "aten":
                raise ExportError(f"{where}: operator {target.name()} is not one of torch's own but of {target.namespace}, whose "
                                  f"library needs Python; use a model built of torch's operators")
            _check_sparse(node, where)
        elif target not in NUMBERS:
            raise ExportError(f"{where}: {getattr(target, '__name__', target)} of a number is not known in C++; compute it "
                              f"with torch's operators")
    value = node.meta.get("val")
    for each in value if isinstance(value, (list, tuple)) else [value]:
        if isinstance(each, (torch.Tensor, torch.SymInt, torch.SymFloat, torch.SymBool)):
            symbols = free_unbacked_symbols(each)
            if symbols:
                raise ExportError(f"{where}: its shape or value, {sorted(map(str, symbols))[0]}, depends on the data (nonzero, "
                                  f"boolean indexing, .item()); use shapes that the inputs' shapes give, such as torch.where")


def _check_sparse(node, where):
    schema = node.target._schema
    given = dict(zip((argument.name for argument in schema.arguments), node.args)) | dict(node.kwargs)
    if given.get("sparse") is True:
        raise ExportError(f"{where}: {node.target.name()} has sparse=True, sparse gradients are not trained; set sparse=False")


def _module(node):
    stack = node.meta.get("nn_module_stack")
    path = list(stack.values())[-1][0] if stack else ""
    return f" in {path}" if path else ""


def check_archive(archive, exported):
    """What only the written file shows: pickled weights, nodes under other names."""
    for name in archive.namelist():
        if name.endswith("_config.json"):
            for key, entry in json.loads(archive.read(name))["config"].items():
                if entry["use_pickle"]:
                    raise ExportError(f"{key}: torch.export pickles this tensor, only ordinary ones are read without Python")
    (program,) = [name for name in archive.namelist() if re.search(r"/models/[^/]+\.json$", name)]
    written = [node["name"] for node in json.loads(archive.read(program))["graph_module"]["graph"]["nodes"]]
    known = {node.name for node in exported.graph.nodes}
    other = [name for name in written if name not in known]
    if other:
        raise ExportError(f"node {other[0]}: torch.export writes it under a name that the program does not have")


def why_static(error):
    """The reason in words for one who knows torch, not torch.export."""
    text = str(error)
    if isinstance(error, ExportError):
        return text
    constant = re.search(r"(?:inferred|specialized)[^\n]*?constant[^\n]*?\(?(\d+)", text)
    if constant or "specializ" in text.lower() or "Constraints violated" in text:
        return ("the model uses the number of samples as a plain number (int(x.shape[0]), a shape written out in view or "
                "zeros, a Python list or loop over the batch) or wants it to be a multiple of something"
                f" [{_short(text)}]")
    if "data-dependent" in text or "unbacked" in text.lower():
        return f"a shape or a branch depends on the values of tensors [{_short(text)}]"
    return first_line(error)


def why_not(error):
    text = str(error)
    if "_detect_is_causal_mask" in text:
        return "nn.Transformer looks into its mask to see whether it is causal; say so, with tgt_is_causal=True or is_causal=True"
    if "data-dependent" in text or "Could not guard" in text or "unbacked" in text.lower():
        return (f"a branch or a shape depends on the values of a tensor (if tensor.sum() > 0, .item(), nonzero); use "
                f"torch.where or shapes that are known [{_short(text)}]")
    return first_line(error)


def _short(text):
    lines = [line.strip(" -") for line in text.splitlines() if line.strip()]
    telling = [line for line in lines if re.search(r"batch|[Cc]onstraint|specializ|guard", line) and len(line) < 300]
    return (telling[1] if len(telling) > 1 and telling[0].startswith("Constraints violated") else (telling or lines)[0])[:300]
