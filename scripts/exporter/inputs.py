"""The inputs of an exported model: their names, types and shapes, and random samples of them."""

import dataclasses
import keyword
import re

import torch

from .errors import ExportError, unknown_name

DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16,
                  torch.int8, torch.uint8, torch.bool)
}
FORM = "NAME=dtype[extent,...], then :batch_axis=N or :range=LOW..HIGH if wanted, as in tokens=int64[128]:range=0..50257"


@dataclasses.dataclass(frozen=True)
class Input:
    """One input: `shape` is that of one sample, without the batch axis. `batch_axis` None: one tensor for all samples.
    `range` (low, high) are the values that random samples have, high excluded; without one floats are normal.
    `examples`: whole tensors of the user's; samples are then taken from them in turn."""

    name: str
    dtype: torch.dtype
    shape: tuple
    batch_axis: int | None = 0
    range: tuple | None = None
    examples: torch.Tensor | None = dataclasses.field(default=None, compare=False)

    def full_shape(self, samples):
        if self.batch_axis is None:
            return self.shape
        return self.shape[: self.batch_axis] + (samples,) + self.shape[self.batch_axis :]

    def draw(self, samples, generator):
        """Random values for that many samples."""
        if self.examples is not None:
            if self.batch_axis is None:
                return self.examples.clone()
            rows = torch.arange(samples) % self.examples.shape[self.batch_axis]
            return self.examples.index_select(self.batch_axis, rows)
        shape = self.full_shape(samples)
        if self.dtype == torch.bool:
            return torch.randint(0, 2, shape, generator=generator).to(torch.bool)
        if not self.dtype.is_floating_point:
            return torch.randint(*self.range, shape, generator=generator, dtype=self.dtype)
        if self.range:
            low, high = self.range
            return (torch.rand(shape, generator=generator) * (high - low) + low).to(self.dtype)
        return torch.randn(shape, generator=generator).to(self.dtype)


def draw_all(inputs, samples, seed):
    """One tensor per input, in order; equal for equal seeds."""
    generator = torch.Generator().manual_seed(seed)
    return [each.draw(samples, generator) for each in inputs]


def check_name(name, where):
    if not name.isidentifier() or keyword.iskeyword(name) or name == "self":
        raise ExportError(f'{where}: "{name}" is no name of an input, it must be a Python name')


def parse_input(text):
    """An Input from its text. Throws ExportError."""
    where = f'--input "{text}"'
    match = re.fullmatch(r"([^=]+)=(\w+)\[([^\]]*)\]((?::[^:]+)*)", text)
    if not match:
        raise ExportError(f"{where}: must be {FORM}")
    name, dtype, extents, options = match.groups()
    check_name(name, where)
    if dtype not in DTYPES:
        raise ExportError(f"{where}: {unknown_name('type', dtype, DTYPES)}")
    if not re.fullmatch(r"|\s*[1-9]\d*\s*(,\s*[1-9]\d*\s*)*", extents):
        raise ExportError(f'{where}: the shape "[{extents}]" must be whole numbers from 1 on, of one sample, without batch')
    shape = tuple(int(extent) for extent in extents.split(",")) if extents.strip() else ()
    axis, bounds = 0, None
    for option in options.split(":")[1:]:
        key, _, value = option.partition("=")
        if key == "batch_axis":
            if value != "none" and not (value.isdecimal() and int(value) <= len(shape)):
                raise ExportError(f'{where}: batch_axis is "{value}", must be none or in 0..{len(shape)}')
            axis = None if value == "none" else int(value)
        elif key == "range":
            ends = re.fullmatch(r"(-?\d+)\.\.(-?\d+)", value)
            if not ends or int(ends[1]) >= int(ends[2]):
                raise ExportError(f'{where}: range is "{value}", must be LOW..HIGH, HIGH excluded, as in 0..50257')
            bounds = (int(ends[1]), int(ends[2]))
        else:
            raise ExportError(f"{where}: {unknown_name('option', key, ['batch_axis', 'range'])}")
    dtype = DTYPES[dtype]
    if bounds is None and not dtype.is_floating_point and dtype != torch.bool:
        raise ExportError(f"{where}: whole numbers need the values they may have, as in :range=0..50257")
    return Input(name, dtype, shape, axis, None if dtype == torch.bool else bounds)


def from_examples(name, tensor, batch_axis=0):
    """An Input that gives the user's own samples."""
    check_name(name, "--inputs")
    if not isinstance(tensor, torch.Tensor):
        raise ExportError(f"--inputs: {name} is of type {type(tensor).__name__}, must be a tensor")
    tensor = tensor.detach().cpu()
    if batch_axis is not None and tensor.dim() <= batch_axis:
        raise ExportError(f"--inputs: {name} has shape {list(tensor.shape)}, it lacks the batch axis {batch_axis}")
    bounds = None
    if not tensor.dtype.is_floating_point and tensor.dtype != torch.bool:
        bounds = (int(tensor.min()), int(tensor.max()) + 1)
    shape = tuple(tensor.shape)
    if batch_axis is not None:
        shape = shape[:batch_axis] + shape[batch_axis + 1 :]
    return Input(name, tensor.dtype, shape, batch_axis, bounds, tensor)
