"""Models of transformers by type, with the matching head."""

import glob
import inspect
import json
import os
import re
import sys

import torch

from . import places
from .errors import (ExportError, InputError, MissingOptionError, MissingPackageError, ReadError, UnknownNameError,
                     first_line, meant, notice, unknown_name)
from .inputs import Input

INSTALL = "scripts/setup --with-models installs it"
PREFIX = "AutoModelFor"
CLASSES = ("sequence-classification", "image-classification", "audio-classification", "video-classification")
TRAINABLE = CLASSES + ("token-classification", "multiple-choice", "next-sentence-prediction", "question-answering",
                       "semantic-segmentation", "masked-lm", "causal-lm", "seq2seq-lm", "speech-seq2seq")
LABELS = ("num_labels", "id2label", "label2id")


def head_name(auto):
    """The name of a head: "sequence-classification" of AutoModelForSequenceClassification."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "-", auto.removeprefix(PREFIX)).lower()


def _heads(kind):
    """The classes of models, by head, for a class of configurations; the usual one first."""
    import transformers

    out = {}
    for auto in dir(transformers):
        if auto.startswith(PREFIX) and auto != "AutoModelForTextEncoding" and kind in getattr(transformers, auto)._model_mapping:
            classes = getattr(transformers, auto)._model_mapping[kind]
            out[head_name(auto)] = tuple(classes) if isinstance(classes, (tuple, list)) else (classes,)
    return out


def heads_of(model):
    """The heads that transformers has for a model of it without one; None for any other model."""
    transformers = sys.modules.get("transformers")
    if transformers is None or not isinstance(model, transformers.PreTrainedModel):
        return None
    kind, bare_of = type(model.config), transformers.AutoModel._model_mapping
    if kind not in bare_of:
        return None
    bare = bare_of[kind]
    heads = _heads(kind)
    if type(model) not in (bare if isinstance(bare, (tuple, list)) else (bare,)) or type(model) in sum(heads.values(), ()):
        return None
    return sorted(heads)


def build(name, arguments, pretrained, head, loss):
    """(model, inputs, loss or None, constants) of what MODEL calls transformers:`name`. `head` and `loss` as the user gave them, or
    None."""
    try:
        import transformers
    except ImportError as error:
        raise MissingPackageError(f'MODEL "transformers:{name}": needs transformers, {INSTALL}') from error
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    where = f"transformers:{name}"
    try:
        config = _config(name, arguments, pretrained)
        _check_fields(where, config, arguments)
        chosen = _choose_head(where, config, arguments, head, loss)
        config.use_cache = False
        _complete(where, config, chosen)
        if chosen is not None and not config.architectures:
            config.architectures = [_heads(type(config))[chosen][0].__name__]
        chooses_experts = getattr(config, "_experts_implementation", None) is not None
        auto = transformers.AutoModel if chosen is None else next(
            getattr(transformers, each) for each in dir(transformers) if each.startswith(PREFIX) and head_name(each) == chosen)
        model = auto.from_pretrained(name, config=config) if pretrained else auto.from_config(config)
    except ExportError:
        raise
    except Exception as error:
        raise InputError(f"{where}: building the model fails{places.at(error)}, {first_line(error)}") from error
    if not chooses_experts:
        _use_torch_experts(where, model)
    model.train()
    for module in model.modules():
        if getattr(module, "gradient_checkpointing", False):
            module.gradient_checkpointing = False
    taken = inspect.signature(model.forward).parameters
    constants = {key: value for key, value in {"use_cache": False, "return_dict": False}.items()
                 if key in taken or any(each.kind == each.VAR_KEYWORD for each in taken.values())}
    return model, *_inputs_and_loss(model, config, chosen, loss), constants


def _use_torch_experts(where, model):
    """Lets a mixture of experts compute with torch's operators only; what transformers prefers cannot be exported."""
    can_set = getattr(model, "_can_set_experts_implementation", None)
    if can_set is None or not can_set() or model.config._experts_implementation == "batched_mm":
        return
    before = model.config._experts_implementation
    model.set_experts_implementation("batched_mm")
    notice(f'{where}: experts_implementation is "batched_mm", because "{before}" cannot be exported; it copies the weights of '
           f"each token's experts")


def _config(name, fields, pretrained):
    import transformers

    if pretrained:
        return transformers.AutoConfig.from_pretrained(name, **fields)
    if name.endswith(".json"):
        if not os.path.isfile(name):
            raise ReadError(f"MODEL: file {name} does not exist")
        with open(name, encoding="utf-8") as file:
            given = json.load(file)
        if "model_type" not in given:
            raise InputError(f'{name}: has no "model_type", such as "gpt2"')
        return transformers.AutoConfig.for_model(given.pop("model_type"), **{**given, **fields})
    if name not in transformers.models.auto.CONFIG_MAPPING:
        raise UnknownNameError(f'unknown transformers model "{name}",{meant(name, transformers.models.auto.CONFIG_MAPPING)} it '
                               f"must be a model type such as gpt2, bert or llama, "
                               f"a configuration file NAME.json, or, with --pretrained, a name on the hub")
    return transformers.AutoConfig.for_model(name, **fields)


def _check_fields(where, config, fields):
    """transformers accepts any field; a misspelt one would be ignored."""
    known = {*type(config)().to_dict(), *config.attribute_map, "attn_implementation", "experts_implementation", "num_labels"}
    for name in [each for each in fields if each not in known]:
        if callable(getattr(type(config), name, None)) or name not in _read_fields(type(config)):
            raise UnknownNameError(f"{where}: {unknown_name('field', name, sorted(known))}")


def _read_fields(kind):
    """Names that the source of a configuration's models reads from it, such as an optional head_dim."""
    out = set()
    for file in glob.glob(os.path.join(os.path.dirname(inspect.getfile(kind)), "*.py")):
        with open(file, encoding="utf-8") as source:
            for found in re.finditer(r"\bconfig\.([a-z]\w*)|\bconfig,\s*[\"']([a-z]\w*)", source.read()):
                out.add(found[1] or found[2])
    return out


def _choose_head(where, config, fields, head, loss):
    """The name of a head, or None for the model without one. Throws ExportError."""
    heads = _heads(type(config))
    by_class = {each.__name__: name for name, classes in heads.items() for each in classes}
    listed = ", ".join([*sorted(heads), "none"])
    if head is not None:
        name = by_class.get(head, head_name(head) if head.startswith(PREFIX) else head)
        if name == "none":
            return None
        if name not in heads:
            raise UnknownNameError(f"--head: {where} has no head {head}, known are {listed}")
        return name
    architecture = (config.architectures or [""])[0]
    if architecture in by_class:
        return by_class[architecture]
    classes = [name for name in CLASSES if name in heads]
    trainable = [name for name in TRAINABLE if name in heads]
    labels = [name for name in LABELS if name in fields]
    by_default = _default_head(config, heads)
    if labels:
        if not classes:
            raise InputError(f"{where}: {labels[0]} is for a head with classes; --head selects one of {listed}")
        chosen = classes[0]
    elif by_default:
        return by_default
    elif loss == "cross_entropy" and len(classes) == 1:
        chosen = classes[0]
    elif len(trainable) == 1 and loss in (None, "cross_entropy"):
        chosen = trainable[0]
    elif loss is None:
        raise MissingOptionError(f"{where}: has no default head; --head selects one of {listed}")
    else:
        return None
    others = [name for name in sorted(heads) if name != chosen]
    another = f"; --head selects another of {', '.join(others)}" if others else ""
    notice(f"{where}: building {heads[chosen][0].__name__}{another}")
    return chosen


def _default_head(config, heads):
    """The pretraining task of a type of model."""
    if getattr(config, "is_encoder_decoder", False):
        return next((name for name in ("seq2seq-lm", "speech-seq2seq") if name in heads), None)
    if "masked-lm" in heads and not getattr(config, "is_decoder", False):
        return "masked-lm"
    return "causal-lm" if "causal-lm" in heads else None


def _complete(where, config, head):
    """Token ids that a head needs and that checkpoints have, but not the bare type."""
    if getattr(config, "is_encoder_decoder", False) and getattr(config, "decoder_start_token_id", None) is None:
        config.decoder_start_token_id = getattr(config, "pad_token_id", None) or 0
        notice(f"{where}: decoder_start_token_id is not set, using {config.decoder_start_token_id}; "
               f"--model-args decoder_start_token_id=N sets it")
    if head == "sequence-classification" and hasattr(config, "pad_token_id") and config.pad_token_id is None:
        config.pad_token_id = 0
        notice(f"{where}: pad_token_id is not set, using 0; --model-args pad_token_id=N sets it")


def _inputs_and_loss(model, config, head, loss):
    """The inputs and the loss of a head, or () and None."""
    main = _main_input(model, config)
    if main is None or head is None or head not in TRAINABLE:
        return (main,) if main and head is None else (), None
    if head in ("seq2seq-lm", "speech-seq2seq"):
        length = min(_length(model, config), getattr(config, "max_target_positions", None) or 128)
        name = "labels" if loss in (None, "in-model") else "decoder_input_ids"
        return (main, Input(name, torch.int64, (length,), 0, (0, config.vocab_size))), "in-model"
    if head == "question-answering":
        positions = tuple(Input(name, torch.int64, (), 0, (0, main.shape[0])) for name in ("start_positions", "end_positions"))
        return (main, *positions), "in-model"
    if head == "semantic-segmentation":
        labels = Input("labels", torch.int64, main.shape[1:], 0, (0, config.num_labels))
        return (main, labels), "in-model"
    if head == "multiple-choice":
        return (Input(main.name, main.dtype, (4, *main.shape), 0, main.range),), "cross_entropy"
    return (main,), "next_token" if head == "causal-lm" else "cross_entropy"


def _main_input(model, config):
    """The input that a model takes first, if its shape is known."""
    name = model.main_input_name
    if name == "input_ids" and hasattr(config, "vocab_size"):
        return Input(name, torch.int64, (_length(model, config),), 0, (0, config.vocab_size))
    if name == "pixel_values":
        extent = getattr(config, "image_size", None) or 224
        extents = tuple(extent) if isinstance(extent, (tuple, list)) else (extent, extent)
        frames = (config.num_frames,) if hasattr(config, "num_frames") else ()
        return Input(name, torch.float32, (*frames, getattr(config, "num_channels", 3), *extents))
    if name == "input_features" and hasattr(config, "max_source_positions"):
        return Input(name, torch.float32, (config.num_mel_bins, 2 * config.max_source_positions))
    if name == "input_values" and hasattr(config, "conv_stride"):
        return Input(name, torch.float32, (16000,))  # a second at the usual rate
    return None


def _length(model, config):
    """Tokens per sample: 128, or the number of the model's positions if smaller."""
    most = getattr(config, "max_position_embeddings", None) or 0
    if most <= 0:
        return 128
    for module in model.modules():  # RoBERTa counts positions from the one after the padding token's
        if isinstance(module, torch.nn.Embedding) and module.num_embeddings == most and module.padding_idx is not None:
            return min(128, most - module.padding_idx - 1)
    return min(128, most)
