"""Checks of the output files before the work. Needs no torch."""

import json
import os
import struct
import tempfile
import zipfile

from exporter.errors import ExportError, OverwriteError, WriteError

REMEDY = "; use another name, or --force"


def _is_archive(path):
    try:
        with zipfile.ZipFile(path) as archive:
            return any(name.endswith("extra/stagecraft.json") for name in archive.namelist())
    except (zipfile.BadZipFile, OSError):
        return False


def _is_record(path):
    try:
        with open(path, "rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            header = json.loads(file.read(min(length, 1 << 24)))
            return header["__metadata__"]["format"] == "stagecraft.record"
    except (OSError, struct.error, ValueError, KeyError, TypeError):
        return False


ARCHIVE = ("an archive of export-model", _is_archive)
RECORD = ("a record of export-model", _is_record)


def _same(one, other):
    try:
        return os.path.samefile(one, other)
    except OSError:
        return False


def check(inputs, outputs, force):
    """Raises ExportError if one of `outputs`, pairs of a path and its kind, cannot be written, or, unless `force`, is one of
    `inputs` or is of another kind. Leaves nothing behind."""
    for path, (what, is_kind) in outputs:
        if os.path.isdir(path):
            raise WriteError(f"{path}: is a directory, expected a file")
        try:
            os.rmdir(tempfile.mkdtemp(prefix=f".{os.path.basename(path)}.", dir=os.path.dirname(os.path.abspath(path))))
        except OSError as error:
            raise WriteError(f"{path}: cannot be written, {error.strerror}") from error
        if force or not os.path.isfile(path):
            continue
        for name in inputs:
            if _same(name, path):
                raise OverwriteError(f"{path}: is also an input{'' if name == path else f', as {name}'}, so it is not replaced{REMEDY}")
        if os.path.getsize(path) > 0 and not is_kind(path):
            raise OverwriteError(f"{path}: is not {what}, so it is not replaced{REMEDY}")
