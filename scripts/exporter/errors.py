"""The one exception that means: what the user gave is wrong. And how messages are put."""

import sys


class ExportError(Exception):
    """A message that says where, what was found and what would be right."""


def unknown_name(kind, name, known):
    return f'unknown {kind} "{name}", known are {", ".join(known)}'


def notice(text):
    """Something that the user should know, though the export goes on."""
    print(f"export-model: {text}", file=sys.stderr)


def progress(text):
    """What is being done now; only where a person looks on."""
    if sys.stderr.isatty():
        print(f"export-model: {text} ...", file=sys.stderr)


def first_line(error):
    """An exception in one line: its type and the first line of its text that says something."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
