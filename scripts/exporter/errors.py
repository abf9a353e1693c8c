"""The exceptions for wrong input, and the form of messages."""

import difflib
import sys

PROGRAM = "stagecraft-export-model"


class ExportError(Exception):
    """A message with the place, what was found and what was expected. `code` is one of docs/errors.md; this one says that a
    part of the model cannot be exported."""

    code = "SC3002"

    @property
    def status(self):
        """The exit status: 2 for wrong usage, else 1."""
        return 2 if self.code.startswith("SC10") else 1


class MissingOptionError(ExportError):
    """Something must be said by an option."""

    code = "SC1003"


class OptionError(ExportError):
    """The value of an option is wrong, whatever the model is."""

    code = "SC1005"


class ReadError(ExportError):
    """A file cannot be read."""

    code = "SC1101"


class WriteError(ExportError):
    """A file cannot be written."""

    code = "SC1102"


class OverwriteError(ExportError):
    """A file would be overwritten that is an input, or not the tool's own."""

    code = "SC1103"


class InputError(ExportError):
    """An option does not suit the model, or a function of the user fails."""

    code = "SC2001"


class UnknownNameError(ExportError):
    """No model, callable, head or field has this name."""

    code = "SC2002"


class NotAModelError(ExportError):
    """It is not an nn.Module."""

    code = "SC3001"


class WeightsError(ExportError):
    """A state dict is not that of the model."""

    code = "SC3203"


class MissingPackageError(ExportError):
    """A Python package is not installed."""

    code = "SC4003"


INPUTS_UNKNOWN = "the inputs are not known; give each as --input NAME=dtype[extent,...], as in x=float32[3,224,224]"
UNEXPECTED = "SC9001"  # the code of an exception of another kind


def meant(name, known):
    """" did you mean NAME?" for the known name that is nearest, or "". As in costmodel/errors.h, not for names of a few letters."""
    near = difflib.get_close_matches(name, known, 1, 0.75) if len(name) >= 4 else []
    return f" did you mean {near[0]}?" if near else ""


def unknown_name(kind, name, known):
    """Names those that exist, and first the one that may be meant."""
    return f'unknown {kind} "{name}",{meant(name, known)} known are {", ".join(known)}'


def notice(text):
    """Prints a note; the export continues."""
    print(f"{PROGRAM}: note: {text}", file=sys.stderr)


def fail(text, code):
    """Prints why the export ends."""
    print(f"{PROGRAM}: {text} [{code}]", file=sys.stderr)


def progress(text):
    """Prints the current activity, only on a terminal."""
    if sys.stderr.isatty():
        print(f"{PROGRAM}: {text} ...", file=sys.stderr)


def first_line(error):
    """An exception in one line: its type and the first informative line of its text."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    out = f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
    return f"{out}; --structure exports shapes alone, which take no memory" if "allocate memory" in out else out
