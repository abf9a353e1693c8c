"""Nested inputs and outputs: dictionaries, lists, tuples and dataclasses with tensors in them.

A template says how to make an argument of forward from tensors: a Leaf for a tensor, a Node for a structure; anything else is
the value itself."""

import collections.abc
import dataclasses
import enum
import types
import typing
from typing import Callable

import torch
from torch.utils import _pytree as pytree

from .errors import ExportError, InputError, OptionError

PLAIN = (bool, int, float, str, type(None), torch.dtype, enum.Enum)


@dataclasses.dataclass(frozen=True)
class Leaf:
    """The tensor of the input with this name."""

    name: str


@dataclasses.dataclass(frozen=True)
class Node:
    """`make(parts)` builds the structure from its parts, which are templates."""

    make: Callable
    parts: tuple


def assembled(template, tensors):
    """The value of a template, with tensors by name."""
    if isinstance(template, Leaf):
        return tensors[template.name]
    if isinstance(template, Node):
        return template.make([assembled(part, tensors) for part in template.parts])
    return template


def python_name(path):
    """The name of an input in the exported program: batch_image of ("batch", "image")."""
    return "_".join("".join(letter if letter.isalnum() else "_" for letter in part) for part in path)


def tensors_of(result):
    """The tensors in a model's output, however nested, in order."""
    return [tensor for _, tensor in named_tensors(result)]


def named_tensors(result, name=""):
    """The same with names: "loss" or "losses.kl" by keys and fields, "0" or "losses.0" by places in lists; "0" for one tensor."""
    if isinstance(result, torch.Tensor):
        return [(name or "0", result)]
    pairs = _pairs(result)
    if pairs is None:
        pairs = [(index, leaf) for index, leaf in enumerate(pytree.tree_leaves(result)) if isinstance(leaf, torch.Tensor)]
    return [found for key, part in pairs for found in named_tensors(part, f"{name}.{key}" if name else str(key))]


def template_of(value, path):
    """(template, [(path, tensor), ...]) of an example of tensors and plain values. Throws ExportError for others."""
    if isinstance(value, torch.Tensor):
        return Leaf(python_name(path)), [(path, value)]
    pairs = _pairs(value)
    if pairs is None:
        if isinstance(value, PLAIN):
            return value, []
        raise InputError(f"--inputs: {'.'.join(path)} is of type {type(value).__name__}, must be a tensor, a plain value, or a "
                         f"dict, list, tuple or dataclass of them")
    parts, found = [], []
    for key, part in pairs:
        template, more = template_of(part, path + (str(key),))
        parts.append(template)
        found += more
    return Node(lambda parts: _like(value, parts), tuple(parts)), found


def _is_record(value):
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def _pairs(value):
    """The (key, part) pairs of a structure, or None if it is not one."""
    if _is_record(value):
        return [(field.name, getattr(value, field.name)) for field in dataclasses.fields(value) if field.init]
    if isinstance(value, collections.abc.Mapping):
        return list(value.items())
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return list(zip(value._fields, value))
    return list(enumerate(value)) if isinstance(value, (list, tuple)) else None


def _like(value, parts):
    """A structure like `value`, with other parts in the same order."""
    named = dict(zip((key for key, _ in _pairs(value)), parts))
    if _is_record(value):
        return dataclasses.replace(value, **named)
    if isinstance(value, collections.abc.Mapping):
        return named if type(value) is dict else type(value)(named)
    return type(value)(**named) if hasattr(value, "_fields") else type(value)(parts)


def templates_of(paths, forward):
    """The template of each argument that inputs make up, by the argument's name. `paths` are those of the inputs. An argument is
    of the class that its annotation in `forward` says (a dataclass, a NamedTuple, tuple), else a list if its keys count from 0,
    else a dict. Throws ExportError."""
    nested = {}
    for path in paths:
        place = nested
        for key in path[:-1]:
            place = place.setdefault(key, {})
            if isinstance(place, Leaf):
                break
        if isinstance(place, Leaf) or path[-1] in place:
            raise OptionError(f"--input: {'.'.join(path)} appears twice")
        place[path[-1]] = Leaf(python_name(path))
    hints = _hints(forward)
    return {name: _typed(template, hints.get(name), (name,)) for name, template in nested.items()}


def _typed(template, hint, path):
    """A template of nested dicts, by the annotation."""
    if isinstance(template, Leaf):
        return template
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        options = [each for each in typing.get_args(hint) if each is not type(None)]
        hint = options[0] if len(options) == 1 else None
    kind = typing.get_origin(hint) or hint
    kind = kind if isinstance(kind, type) else None
    place = ".".join(path)
    if kind and (dataclasses.is_dataclass(kind) or issubclass(kind, tuple) and hasattr(kind, "_fields")):
        hints = _hints(kind)
        fields = getattr(kind, "_fields", None) or [field.name for field in dataclasses.fields(kind)]
        unknown = [key for key in template if key not in fields]
        if unknown:
            raise InputError(f"--input {place}.{unknown[0]}: {kind.__name__} has the fields {', '.join(fields)}")
        make = lambda parts: kind(**dict(zip(template, parts)))
    elif all(key.isdecimal() for key in template):
        missing = [str(index) for index in range(len(template)) if str(index) not in template]
        if missing:
            raise OptionError(f"--input: {place}.{missing[0]} is missing, the keys of a list count from 0 without a gap")
        template = {str(index): template[str(index)] for index in range(len(template))}
        hints = dict.fromkeys(template, (typing.get_args(hint) or (None,))[0]) if kind is list else {}
        make = tuple if kind is tuple else list
    else:
        hints = dict.fromkeys(template, (typing.get_args(hint) or (None,))[-1]) if kind is dict else {}
        make = lambda parts: dict(zip(template, parts))
    return Node(make, tuple(_typed(part, hints.get(key), path + (key,)) for key, part in template.items()))


def _hints(of):
    try:
        return typing.get_type_hints(of)
    except Exception:  # an annotation may name undefined types
        return {}
