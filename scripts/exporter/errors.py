"""The exception for wrong input, and the form of messages."""

import sys


class ExportError(Exception):
    """A message with the place, what was found and what was expected."""


def unknown_name(kind, name, known):
    return f'unknown {kind} "{name}", known are {", ".join(known)}'


def notice(text):
    """Prints a note; the export continues."""
    print(f"export-model: {text}", file=sys.stderr)


def progress(text):
    """Prints the current activity, only on a terminal."""
    if sys.stderr.isatty():
        print(f"export-model: {text} ...", file=sys.stderr)


def first_line(error):
    """An exception in one line: its type and the first informative line of its text."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
