"""Finds or builds the model that MODEL names."""

import ast
import dataclasses
import importlib
import importlib.util
import inspect
import json
import os
import struct
import sys

import torch

from .errors import ExportError, first_line, unknown_name
from .inputs import DTYPES, Input

INSTALL = "scripts/setup --with-models installs it"


@dataclasses.dataclass
class Found:
    """A model, the inputs and the loss that suit it if they are known, and arguments that its forward always gets."""

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
            raise ExportError(f'--model-args "{text}": must be key=value')
        try:
            out[key] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            out[key] = value
    return out


def load_callable(text, option):
    """The object `module:name` or `folder/file.py:name`; modules are looked for in the current folder too."""
    place, _, name = text.rpartition(":")
    if not place or not name:
        raise ExportError(f'{option} "{text}": must be module:callable or folder/file.py:callable')
    if place.endswith(".py"):
        if not os.path.isfile(place):
            raise ExportError(f'{option} "{text}": there is no file {place}')
        title = os.path.splitext(os.path.basename(place))[0]
        spec = importlib.util.spec_from_file_location(title, place)
        module = importlib.util.module_from_spec(spec)
        sys.modules[title] = module
        load = lambda: spec.loader.exec_module(module)
    else:
        if os.getcwd() not in sys.path:
            sys.path.insert(0, os.getcwd())
        load = lambda: importlib.import_module(place)
    try:
        module = load() or sys.modules[place if not place.endswith(".py") else title]
    except ModuleNotFoundError as error:
        raise ExportError(f'{option} "{text}": there is no module {error.name}') from error
    except Exception as error:
        raise ExportError(f"{option} {place}: importing it fails, {first_line(error)}") from error
    found = module
    for part in name.split("."):
        if not hasattr(found, part):
            known = [key for key, value in vars(module).items()
                     if callable(value) and getattr(value, "__module__", None) == module.__name__]
            raise ExportError(f"{option} {place}: {unknown_name('callable', name, known or ['none'])}")
        found = getattr(found, part)
    if not callable(found):
        raise ExportError(f'{option} "{text}": {name} is of type {type(found).__name__}, must be callable')
    return found


def find_model(text, arguments, pretrained):
    """The model called `text`. Random weights come from torch's generator, which the caller seeds."""
    if text.startswith("torchvision:"):
        return _torchvision(text.removeprefix("torchvision:"), arguments, pretrained)
    if text.startswith("transformers:"):
        return _transformers(text.removeprefix("transformers:"), arguments, pretrained)
    if ":" not in text:
        return _torchvision(text, arguments, pretrained)
    if pretrained:
        raise ExportError("--pretrained: only models of torchvision and transformers have such weights; --weights FILE "
                          "loads a state dict")
    build = load_callable(text, "MODEL")
    try:
        model = build if isinstance(build, torch.nn.Module) else build(**arguments)
    except Exception as error:
        raise ExportError(f"{text}: building the model fails, {first_line(error)}") from error
    if not isinstance(model, torch.nn.Module):
        raise ExportError(f"{text}: gives {type(model).__name__}, must give a torch.nn.Module")
    return Found(model)


def _torchvision(name, arguments, pretrained):
    try:
        import torchvision
    except ImportError as error:
        raise ExportError(f'MODEL "{name}": needs torchvision, {INSTALL}; models of your own are module:callable') from error
    known = torchvision.models.list_models()
    if name not in known:
        raise ExportError(unknown_name("torchvision model", name, known))
    try:
        model = torchvision.models.get_model(name, weights="DEFAULT" if pretrained else None, **arguments)
    except Exception as error:
        raise ExportError(f"torchvision:{name}: building the model fails, {first_line(error)}") from error
    if name not in torchvision.models.list_models(torchvision.models):
        return Found(model)
    extent = 299 if name == "inception_v3" else arguments.get("image_size", 224)
    return Found(model, (Input("image", torch.float32, (3, extent, extent)),), "cross_entropy")


def _transformers(name, arguments, pretrained):
    try:
        import transformers
    except ImportError as error:
        raise ExportError(f'MODEL "transformers:{name}": needs transformers, {INSTALL}') from error
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    fields = dict(arguments)
    try:
        if pretrained:
            config = transformers.AutoConfig.from_pretrained(name, **fields)
        elif name.endswith(".json"):
            if not os.path.isfile(name):
                raise ExportError(f"MODEL: there is no file {name}")
            with open(name, encoding="utf-8") as file:
                given = json.load(file)
            if "model_type" not in given:
                raise ExportError(f'{name}: has no "model_type", such as "gpt2"')
            config = transformers.AutoConfig.for_model(given.pop("model_type"), **{**given, **fields})
        else:
            if name not in transformers.models.auto.CONFIG_MAPPING:
                raise ExportError(f'unknown transformers model "{name}", it must be a model type such as gpt2, bert or llama, '
                                  f"a configuration file NAME.json, or, with --pretrained, a name on the hub")
            config = transformers.AutoConfig.for_model(name, **fields)
        known = [*type(config)().to_dict(), *config.attribute_map, "attn_implementation"]
        unknown = [key for key in fields if key not in known]
        if unknown:
            raise ExportError(f"transformers:{name}: {unknown_name('field', unknown[0], sorted(set(known)))}")
        causal = type(config) in transformers.MODEL_FOR_CAUSAL_LM_MAPPING
        masked = type(config) in transformers.MODEL_FOR_MASKED_LM_MAPPING
        architecture = (config.architectures or [""])[0]
        if masked and (architecture.endswith("ForMaskedLM") or not architecture) and not getattr(config, "is_decoder", False):
            make, loss = transformers.AutoModelForMaskedLM, "cross_entropy"
        elif causal:
            make, loss = transformers.AutoModelForCausalLM, "next_token"
        else:
            make, loss = transformers.AutoModel, None
        config.use_cache = False
        model = make.from_pretrained(name, config=config) if pretrained else make.from_config(config)
    except ExportError:
        raise
    except Exception as error:
        raise ExportError(f"transformers:{name}: building the model fails, {first_line(error)}") from error
    model.train()
    for module in model.modules():
        if getattr(module, "gradient_checkpointing", False):
            module.gradient_checkpointing = False
    taken = inspect.signature(model.forward).parameters
    constants = {key: value for key, value in {"use_cache": False, "return_dict": False}.items()
                 if key in taken or any(each.kind == each.VAR_KEYWORD for each in taken.values())}
    inputs = ()
    if loss:
        length = min(128, getattr(config, "max_position_embeddings", None) or 128)
        inputs = (Input("input_ids", torch.int64, (length,), 0, (0, config.vocab_size)),)
    return Found(model, inputs, loss, constants)


def load_weights(model, path):
    """Loads a state dict, as torch.save or safetensors wrote it, into `model`. Throws ExportError."""
    try:
        state = _read_safetensors(path) if path.endswith(".safetensors") else torch.load(
            path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise ExportError(f"--weights {path}: {first_line(error)}") from error
    if isinstance(state, dict) and "state_dict" in state and isinstance(state["state_dict"], dict):
        state = state["state_dict"]
    if not isinstance(state, dict) or not all(isinstance(value, torch.Tensor) for value in state.values()):
        raise ExportError(f"--weights {path}: holds {type(state).__name__}, must hold a state dict of tensors")
    try:
        missing, unexpected = model.load_state_dict(state, strict=False)
    except RuntimeError as error:
        reasons = [line.strip() for line in str(error).splitlines()[1:]] or [str(error)]
        raise ExportError(f"--weights {path}: {reasons[0]}") from error
    names = {id(tensor): set() for tensor in model.state_dict(keep_vars=True).values()}
    for key, tensor in model.state_dict(keep_vars=True).items():
        names[id(tensor)].add(key)
    missing = [key for key in missing if not any(key in tied and tied & state.keys() for tied in names.values())]
    if missing or unexpected:
        which, word = (missing, "lacks") if missing else (unexpected, "has")
        raise ExportError(f"--weights {path}: {word} {which[0]}, {'which the model has' if missing else 'which the model lacks'}"
                          f" ({len(missing)} missing, {len(unexpected)} too many)")


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
