"""Finds or builds the model that MODEL names."""

import ast
import dataclasses
import importlib
import importlib.util
import json
import os
import struct
import sys

import torch

from . import places, prepare, transformers_models
from .errors import (ExportError, InputError, MissingPackageError, NotAModelError, OptionError, ReadError, UnknownNameError,
                     WeightsError, first_line, unknown_name)
from .inputs import DTYPES, Input
from .transformers_models import INSTALL


@dataclasses.dataclass
class Found:
    """A model, its inputs and loss if known, and constant arguments of its forward."""

    model: torch.nn.Module
    inputs: tuple = ()
    loss: str | None = None
    constants: dict = dataclasses.field(default_factory=dict)


def parse_arguments(texts):
    """key=value texts as a dict; a value is a Python literal, or else a string."""
    out = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key.isidentifier():
            raise OptionError(f'--model-args "{text}": must be key=value')
        try:
            out[key] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            out[key] = value
    return out


def load_callable(text, option):
    """The object `module:name` or `folder/file.py:name`. Modules are looked for in the current folder too, and those that a file
    imports in the file's folder, as Python does for a script."""
    place, _, name = text.rpartition(":")
    if not place or not name:
        raise OptionError(f'{option} "{text}": must be module:callable or folder/file.py:callable')
    if place.endswith(".py") and not os.path.isfile(place):
        raise ReadError(f'{option} "{text}": file {place} does not exist')
    try:
        if place.endswith(".py"):
            module = _load_file(os.path.realpath(place))
        else:
            _put_first(os.getcwd())
            module = importlib.import_module(place)
    except ModuleNotFoundError as error:
        raise ReadError(f'{option} "{text}": cannot find module {error.name}{places.at(error)}') from error
    except Exception as error:
        raise InputError(f"{option} {place}: it cannot be imported{places.at(error)}, {first_line(error)}") from error
    found = module
    for part in name.split("."):
        if not hasattr(found, part):
            known = [key for key, value in vars(module).items()
                     if callable(value) and getattr(value, "__module__", None) == module.__name__]
            raise UnknownNameError(f"{option} {place}: {unknown_name('callable', name, known or ['none'])}")
        found = getattr(found, part)
    if not callable(found):
        raise InputError(f'{option} "{text}": {name} is of type {type(found).__name__}, must be callable')
    return found


def _put_first(folder):
    if folder not in sys.path:
        sys.path.insert(0, folder)


def _load_file(file):
    """The module in a file, once for all options that name it. One with relative imports is a part of its package."""
    if file in _loaded:
        return _loaded[file]
    folder, name = os.path.split(os.path.splitext(file)[0])
    _put_first(folder)
    levels = _relative_levels(file)
    if levels:
        parts = [name]
        while levels > 0 or os.path.isfile(os.path.join(folder, "__init__.py")):
            folder, parent = os.path.split(folder)
            parts.insert(0, parent)
            levels -= 1
        _put_first(folder)
        module = importlib.import_module(".".join(parts))
        if os.path.realpath(module.__file__) != file:
            raise ImportError(f"the module {module.__name__} is {module.__file__}")
    else:
        name = f"file_{name}" if name in sys.modules else name
        spec = importlib.util.spec_from_file_location(name, file)
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
    _loaded[file] = module
    return module


_loaded = {}


def _relative_levels(file):
    """How many folders up the relative imports of a file lead: 1 for `from . import x`; 0 if it has none."""
    with open(file, "rb") as source:
        tree = ast.parse(source.read(), file)
    return max((node.level for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)), default=0)


def find_model(text, arguments, pretrained, head=None, loss=None):
    """The model called `text`, with the head of that name or one that suits `loss`, where transformers has several. Random weights
    come from torch's generator, which the caller seeds."""
    if head is not None and not text.startswith("transformers:"):
        raise OptionError(f"--head {head}: only models of transformers, such as transformers:bert, have heads to choose from")
    if text.startswith("torchvision:"):
        return _torchvision(text.removeprefix("torchvision:"), arguments, pretrained)
    if text.startswith("transformers:"):
        return _transformers(text.removeprefix("transformers:"), arguments, pretrained, head, loss)
    if text.endswith(".py"):
        raise OptionError(f"MODEL {text}: which model? Write {text}:NAME, where NAME is a function or class in it that builds the model")
    if ":" not in text:
        return _torchvision(text, arguments, pretrained)
    if pretrained:
        raise OptionError("--pretrained: only models of torchvision and transformers have such weights; --weights FILE "
                          "loads a state dict")
    build = load_callable(text, "MODEL")
    try:
        model = build if isinstance(build, torch.nn.Module) else build(**arguments)
    except Exception as error:
        raise InputError(f"{text}: building the model fails{places.at(error)}, {first_line(error)}") from error
    if not isinstance(model, torch.nn.Module):
        raise NotAModelError(f"{text}: returns {type(model).__name__}, must return a torch.nn.Module")
    return Found(prepare.without_compile(model))


def _torchvision(name, arguments, pretrained):
    try:
        import torchvision
    except ImportError as error:
        raise MissingPackageError(f'MODEL "{name}": needs torchvision, {INSTALL}; give your own models as module:callable') from error
    known = torchvision.models.list_models()
    if name not in known:
        raise UnknownNameError(unknown_name("torchvision model", name, known))
    try:
        model = torchvision.models.get_model(name, weights="DEFAULT" if pretrained else None, **arguments)
    except Exception as error:
        raise InputError(f"torchvision:{name}: building the model fails{places.at(error)}, {first_line(error)}") from error
    if name not in torchvision.models.list_models(torchvision.models):
        return Found(model)
    extent = 299 if name == "inception_v3" else arguments.get("image_size", 224)
    return Found(model, (Input("image", torch.float32, (3, extent, extent)),), "cross_entropy")


def _transformers(name, arguments, pretrained, head, loss):
    model, inputs, loss, constants = transformers_models.build(name, arguments, pretrained, head, loss)
    return Found(model, inputs, loss, constants)


def load_weights(model, path):
    """Loads a state dict, as torch.save or safetensors wrote it, into `model`. Throws ExportError."""
    try:
        state = {}
        for part in _weight_files(path):
            found = _read_safetensors(part) if part.endswith(".safetensors") else torch.load(part, map_location="cpu", weights_only=True)
            if isinstance(found, dict) and isinstance(found.get("state_dict"), dict):
                found = found["state_dict"]
            if isinstance(found, dict):
                found = {key: value for key, value in found.items() if not _is_extra(key)}
            if not isinstance(found, dict) or not all(isinstance(value, torch.Tensor) for value in found.values()):
                raise WeightsError(f"--weights {part}: contains {type(found).__name__}, must contain a state dict of tensors")
            state |= found
    except ExportError:
        raise
    except Exception as error:
        raise ReadError(f"--weights {path}: {first_line(error)}") from error
    known = model.state_dict(keep_vars=True).keys()
    state = {_name_in(known, key, state): value for key, value in state.items()}
    try:
        missing, unexpected = model.load_state_dict(state, strict=False)
    except RuntimeError as error:
        reasons = [line.strip() for line in str(error).splitlines()[1:]] or [str(error)]
        raise WeightsError(f"--weights {path}: {reasons[0]}") from error
    missing = [key for key in missing if not _is_extra(key)]
    names = {id(tensor): set() for tensor in model.state_dict(keep_vars=True).values()}
    for key, tensor in model.state_dict(keep_vars=True).items():
        names[id(tensor)].add(key)
    missing = [key for key in missing if not any(key in tied and tied & state.keys() for tied in names.values())]
    if missing or unexpected:
        which, word = (missing, "lacks") if missing else (unexpected, "has")
        raise WeightsError(f"--weights {path}: {word} {which[0]}, {'which the model has' if missing else 'which the model lacks'}"
                           f" ({len(missing)} missing, {len(unexpected)} too many)")


def _is_extra(key):
    """Whether an entry of a state dict is what a module's get_extra_state returns, which training does not change."""
    return str(key).rpartition(".")[2] == "_extra_state"


def _weight_files(path):
    """The files of tensors that `path` means, as executor/files/tensor_files.h says."""
    if os.path.isdir(path):
        names = ("model.safetensors.index.json", "pytorch_model.bin.index.json", "model.safetensors", "pytorch_model.bin")
        found = next((name for name in names if os.path.exists(os.path.join(path, name))), None)
        if found is None:
            raise ReadError(f"--weights {path}: has no weights, expected one of {', '.join(names)} in it")
        path = os.path.join(path, found)
    if not path.endswith(".index.json"):
        return [path]
    with open(path, encoding="utf-8") as file:
        shards = json.load(file)["weight_map"].values()
    return [os.path.join(os.path.dirname(path), os.path.basename(name)) for name in sorted(set(shards))]


def _name_in(known, key, state):
    """The name in a model of a tensor of a file, without the prefixes of wrappers where the model has the rest of it."""
    rest = key.replace("_orig_mod.", "")
    for prefix in ("module.", "model."):
        if rest not in known:
            rest = rest.removeprefix(prefix)
    return rest if rest in known and (rest == key or rest not in state) else key


def _read_safetensors(path):
    types = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "I64": "int64", "I32": "int32",
             "I16": "int16", "I8": "int8", "U8": "uint8", "BOOL": "bool"}
    with open(path, "rb") as file:
        data = bytearray(file.read())
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(bytes(data[8 : 8 + length]))
    out = {}
    for name, entry in header.items():
        if name != "__metadata__":
            begin, end = entry["data_offsets"]
            raw = data[8 + length + begin : 8 + length + end]
            dtype = DTYPES[types[entry["dtype"]]]
            flat = torch.frombuffer(raw, dtype=dtype) if raw else torch.empty(0, dtype=dtype)
            out[name] = flat.reshape(entry["shape"])
    return out
