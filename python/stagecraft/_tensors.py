"""Tensors in files: batches of a DataLoader as .npy, state dicts as safetensors. Needs torch, not NumPy."""

from __future__ import annotations

import ctypes
import json
import math
import os
import struct
from collections.abc import Mapping
from typing import IO

import torch

from .errors import InputError

_NPY = {torch.float64: "<f8", torch.float32: "<f4", torch.float16: "<f2", torch.int64: "<i8", torch.int32: "<i4",
        torch.int16: "<i2", torch.int8: "|i1", torch.uint8: "|u1", torch.bool: "|b1"}
_SAFE = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I64": torch.int64,
         "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool}
_HEADER = 128  # bytes of an .npy header, enough for eight axes


def _raw(tensor: torch.Tensor) -> bytes:
    tensor = tensor.detach().cpu().contiguous()
    return ctypes.string_at(tensor.data_ptr(), tensor.numel() * tensor.element_size()) if tensor.numel() else b""


class NpyFile:
    """An .npy file that grows by rows: the samples of one input, which are on `axis` of the complete file."""

    def __init__(self, path: str, name: str, axis: int = 0) -> None:
        self._path, self._name, self._axis = path, name, axis
        self._file: IO[bytes] = open(path, "wb")
        self._file.write(b" " * _HEADER)
        self._dtype: torch.dtype | None = None
        self._shape: tuple[int, ...] = ()
        self.rows = 0

    def append(self, tensor: torch.Tensor) -> None:
        """Adds the samples on the first axis. Raises InputError if the type or shape differs from earlier batches."""
        if self._dtype is None:
            if tensor.dtype not in _NPY:
                raise InputError(f"{self._name}: a DataLoader cannot provide tensors of type {tensor.dtype}, known are "
                                 f"{', '.join(str(dtype) for dtype in _NPY)}")
            self._dtype, self._shape = tensor.dtype, tuple(tensor.shape[1:])
        if (tensor.dtype, tuple(tensor.shape[1:])) != (self._dtype, self._shape):
            raise InputError(f"{self._name}: a batch has samples of {tensor.dtype}{list(tensor.shape[1:])}, those before have "
                             f"{self._dtype}{list(self._shape)}")
        self._file.write(_raw(tensor))
        self.rows += tensor.shape[0]

    def _move_axis(self) -> None:
        """Rewrites the rows with the samples on their axis."""
        assert self._dtype is not None
        self._file.close()
        rows = f"{self._path}.rows"
        os.replace(self._path, rows)
        count = math.prod(self._shape) * self.rows
        header = _HEADER // self._dtype.itemsize
        values = torch.from_file(rows, shared=False, size=header + count, dtype=self._dtype)[header:]
        self._file = open(self._path, "wb")
        self._file.write(b" " * _HEADER)
        for part in values.view(self.rows, *self._shape).movedim(0, self._axis):
            self._file.write(_raw(part))
        os.unlink(rows)

    def close(self) -> None:
        """Closes the file; it is complete if there was a sample."""
        if self._dtype is None or self._file.closed:
            self._file.close()
            return
        extents = [*self._shape]
        extents.insert(self._axis, self.rows)
        if self._axis:
            self._move_axis()
        shape = "".join(f"{extent}, " for extent in extents)
        text = f"{{'descr': '{_NPY[self._dtype]}', 'fortran_order': False, 'shape': ({shape}), }}".encode()
        self._file.seek(0)
        self._file.write(b"\x93NUMPY\x01\x00" + struct.pack("<H", _HEADER - 10) + text.ljust(_HEADER - 11) + b"\n")
        self._file.close()


def read_state(path: str) -> dict[str, torch.Tensor]:
    """The tensors of a safetensors file by name."""
    out = {}
    with open(path, "rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(length))
        header.pop("__metadata__", None)
        for name, entry in header.items():
            begin, end = entry["data_offsets"]
            file.seek(8 + length + begin)
            dtype = _SAFE[entry["dtype"]]
            raw = bytearray(file.read(end - begin))
            flat = torch.frombuffer(raw, dtype=dtype) if raw else torch.empty(0, dtype=dtype)
            out[name] = flat.reshape(entry["shape"])
    return out


def write_state(path: str, state: Mapping[str, torch.Tensor]) -> None:
    """Writes tensors as a safetensors file."""
    names = {dtype: name for name, dtype in _SAFE.items()}
    header, place = {}, 0
    for name, tensor in state.items():
        count = tensor.numel() * tensor.element_size()
        header[name] = {"dtype": names[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [place, place + count]}
        place += count
    text = json.dumps(header).encode()
    text = text.ljust(-(-len(text) // 8) * 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for tensor in state.values():
            file.write(_raw(tensor))

