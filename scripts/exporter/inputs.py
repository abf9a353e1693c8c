"""The inputs of an exported model: their names, types and shapes, and random samples of them."""

import dataclasses
import keyword
import re

import torch

from . import structure
from .errors import ExportError, InputError, OptionError, unknown_name

DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16,
                  torch.int8, torch.uint8, torch.bool)
}
# Other names that PyTorch has for them.
ALIASES = {"float": "float32", "double": "float64", "half": "float16", "long": "int64", "int": "int32", "short": "int16"}
IGNORED = -100  # a range that begins here is that of labels from 0 on and of this one, which PyTorch's losses ignore
FORM = "NAME=dtype[extent,...], optionally followed by :batch_axis=N or :range=LOW..HIGH, as in tokens=int64[128]:range=0..50257"


@dataclasses.dataclass(frozen=True)
class Input:
    """One input: `shape` is that of one sample, without the batch axis. `batch_axis` None: one tensor for all samples.
    `range` (low, high) bounds the allowed values and random samples, high excluded; without a range, floats are
    normally distributed and integers 0, which is an index of everything. `examples`: tensors from the user, from which samples are then taken in turn. `path`: the
    keys that lead to it in an argument of forward, the argument's name first; `name` joins them."""

    name: str
    dtype: torch.dtype
    shape: tuple
    batch_axis: int | None = 0
    range: tuple | None = None
    examples: torch.Tensor | None = dataclasses.field(default=None, compare=False)
    path: tuple = ()
    device: str = "cpu"  # "meta": samples without values

    def __post_init__(self):
        object.__setattr__(self, "path", self.path or (self.name,))

    @property
    def given(self):
        """The name as the user typed it."""
        return ".".join(self.path)

    def is_whole(self):
        return not self.dtype.is_floating_point and self.dtype != torch.bool

    def full_shape(self, samples):
        if self.batch_axis is None:
            return self.shape
        return self.shape[: self.batch_axis] + (samples,) + self.shape[self.batch_axis :]

    def draw(self, samples, generator):
        """Random values for that many samples."""
        if self.device == "meta":
            return torch.empty(self.full_shape(samples), dtype=self.dtype, device="meta")
        if self.examples is not None:
            if self.batch_axis is None:
                return self.examples.clone()
            rows = torch.arange(samples) % self.examples.shape[self.batch_axis]
            return self.examples.index_select(self.batch_axis, rows)
        shape = self.full_shape(samples)
        if self.dtype == torch.bool:
            return torch.randint(0, 2, shape, generator=generator).to(torch.bool)
        if self.is_whole() and self.range and self.range[0] == IGNORED < 0 < self.range[1]:
            labels = torch.randint(0, self.range[1], shape, generator=generator, dtype=self.dtype)
            return labels.masked_fill(torch.rand(shape, generator=generator) < 0.3, IGNORED)
        if self.is_whole():
            return torch.randint(*(self.range or (0, 1)), shape, generator=generator, dtype=self.dtype)
        if self.range:
            low, high = self.range
            return (torch.rand(shape, generator=generator) * (high - low) + low).to(self.dtype)
        return torch.randn(shape, generator=generator).to(self.dtype)


def draw_all(inputs, samples, seed):
    """One tensor per input, in order; equal for equal seeds."""
    generator = torch.Generator().manual_seed(seed)
    return [each.draw(samples, generator) for each in inputs]


def path_of(text, where):
    """The keys in the name of an input: ("batch", "image") of "batch.image". Throws ExportError."""
    first, *rest = text.split(".")
    if not first.isidentifier() or keyword.iskeyword(first) or first == "self":
        raise OptionError(f'{where}: "{first}" cannot be the name of an input, it must be a Python name')
    wrong = [key for key in rest if not key.isidentifier() and not key.isdecimal()]
    if wrong:
        raise OptionError(f'{where}: "{wrong[0]}" in "{text}" must be a dict key, a field, or a list index')
    return (first, *rest)


def parse_range(text, where):
    """(low, high) of LOW..HIGH. Throws ExportError."""
    ends = re.fullmatch(r"(-?\d+)\.\.(-?\d+)", text)
    if not ends or int(ends[1]) >= int(ends[2]):
        raise OptionError(f'{where}: range is "{text}", must be LOW..HIGH, HIGH excluded, as in 0..50257')
    return int(ends[1]), int(ends[2])


def parse_input(text):
    """An Input from its text. The range of an integer input stays None if it gives none. Throws ExportError."""
    where = f'--input "{text}"'
    match = re.fullmatch(r"([^=]+)=(\w+)\[([^\]]*)\]((?::[^:]+)*)", text)
    if not match:
        raise OptionError(f"{where}: must be {FORM}")
    name, dtype, extents, options = match.groups()
    path = path_of(name, where)
    dtype = ALIASES.get(dtype, dtype)
    if dtype not in DTYPES:
        raise OptionError(f"{where}: {unknown_name('type', dtype, DTYPES)}")
    if not re.fullmatch(r"|\s*[1-9]\d*\s*(,\s*[1-9]\d*\s*)*", extents):
        raise OptionError(f'{where}: the shape "[{extents}]" must be positive integers, those of one sample without the batch')
    shape = tuple(int(extent) for extent in extents.split(",")) if extents.strip() else ()
    axis, bounds = 0, None
    for option in options.split(":")[1:]:
        key, _, value = option.partition("=")
        if key == "batch_axis":
            if value != "none" and not (value.isdecimal() and int(value) <= len(shape)):
                raise OptionError(f'{where}: batch_axis is "{value}", must be none or a number from 0 to {len(shape)}')
            axis = None if value == "none" else int(value)
        elif key == "range":
            bounds = parse_range(value, where)
        else:
            raise OptionError(f"{where}: {unknown_name('option', key, ['batch_axis', 'range'])}")
    out = Input(structure.python_name(path), DTYPES[dtype], shape, axis, bounds, path=path)
    return dataclasses.replace(out, range=None) if out.dtype == torch.bool else out


def parse_examples(values, axes=(), ranges=()):
    """(inputs, templates by argument) of what the callable of --inputs returned, with the texts of --batch-axis and
    --range. The range of an integer input stays None if no text gives one. Throws ExportError."""
    if not isinstance(values, dict):
        raise InputError(f"--inputs: returns {type(values).__name__}, must return a dict of tensors by name")
    templates, tensors = {}, []
    for name, value in values.items():
        path_of(str(name), "--inputs")
        templates[name], found = structure.template_of(value, (str(name),))
        tensors += found
    if not tensors:
        raise InputError("--inputs: returns no tensor")
    known = [".".join(path) for path, _ in tensors]
    axis_of, range_of = {}, {}
    for text in axes:
        name, _, value = text.partition("=")
        if name not in known or not (value == "none" or value.isdecimal()):
            raise OptionError(f'--batch-axis "{text}": must be NAME=N or NAME=none, NAME one of {", ".join(known)}')
        axis_of[name] = None if value == "none" else int(value)
    for text in ranges:
        name, _, value = text.partition("=")
        if name not in known:
            raise OptionError(f'--range "{text}": must be NAME=LOW..HIGH, NAME one of {", ".join(known)}')
        range_of[name] = parse_range(value, f'--range "{text}"')
    inputs = (_from_example(path, tensor, axis_of.get(name, 0), range_of.get(name)) for name, (path, tensor) in zip(known, tensors))
    return tuple(inputs), templates


def _from_example(path, tensor, batch_axis, bounds):
    name = ".".join(path)
    tensor = tensor.detach().cpu()
    if tensor.dtype not in DTYPES.values():
        more = "; give real and imaginary parts as a last axis of size 2 (torch.view_as_real)" if tensor.is_complex() else ""
        raise InputError(f"--inputs: {name}: {unknown_name('type', str(tensor.dtype).removeprefix('torch.'), DTYPES)}{more}")
    if batch_axis is not None and tensor.dim() <= batch_axis:
        raise InputError(f"--inputs: {name} has shape {list(tensor.shape)}, it lacks the batch axis {batch_axis}")
    if not tensor.numel():
        raise InputError(f"--inputs: {name} has shape {list(tensor.shape)}, it must have at least one sample")
    shape = tuple(tensor.shape)
    if batch_axis is not None:
        shape = shape[:batch_axis] + shape[batch_axis + 1 :]
    out = Input(structure.python_name(path), tensor.dtype, shape, batch_axis, bounds, tensor, path)
    if bounds and out.dtype == torch.bool:
        raise InputError(f"--range {name}: the example is of type bool, which has no range")
    if bounds and out.is_whole() and not bounds[0] <= tensor.min() <= tensor.max() < bounds[1]:
        raise InputError(f"--range {name}={bounds[0]}..{bounds[1]}: the example has {tensor.min()} to {tensor.max()}, and HIGH "
                         f"is excluded")
    return out


def settled(inputs, known):
    """Inputs with a range for every integer input: its own, else the one of that name in `known`, extended down to the
    example's minimum (losses ignore labels of -100). Throws ExportError if nothing bounds an input."""
    return tuple(_with_range(each, known.get(each.name)) if each.range is None and each.is_whole() else each for each in inputs)


def _with_range(each, bounds):
    if each.examples is None:
        if bounds is None:
            raise OptionError(f"--input {each.given}: the range of these integers is unknown, because they index neither an "
                              f"embedding nor the classes of a loss; add it, as in :range=0..50257 (the end is excluded)")
        return dataclasses.replace(each, range=bounds)
    low, high = each.examples.min().item(), each.examples.max().item()
    if bounds is None:
        raise InputError(f"--inputs: {each.given} contains integers, {low} to {high} in the example, and its range is unknown; "
                         f"give --range {each.given}=LOW..HIGH (HIGH excluded), as in --range {each.given}={low}..{high + 1}")
    return dataclasses.replace(each, range=(min(low, bounds[0]), bounds[1]))
