"""Finds and runs the programs of stagecraft."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import threading
from collections.abc import Callable, Sequence
from typing import IO, TextIO

from .errors import MissingProgramError, ProgramError


def _places() -> list[str]:
    package = os.path.dirname(os.path.abspath(__file__))
    beside = os.path.join(os.path.dirname(os.path.dirname(package)), "bin")  # of a build folder
    given = os.environ.get("STAGECRAFT_BIN")
    return ([given] if given else []) + [beside, sysconfig.get_path("scripts")]


def find(verb: str) -> str:
    """The path of stagecraft-VERB: in STAGECRAFT_BIN, next to this package or Python, or on PATH."""
    name = f"stagecraft-{verb}"
    for place in _places():
        path = os.path.abspath(os.path.join(place, name))  # programs run in another folder
        if os.path.isfile(path) and os.access(path, os.X_OK):
            return path
    on_path = shutil.which(name)
    if on_path:
        return on_path
    raise MissingProgramError(
        f"{name} was not found in {', '.join(_places())} or on PATH; run scripts/setup in the repository of stagecraft, then set "
        f"STAGECRAFT_BIN to its build/dev/bin")


def _show(stream: IO[str], lines: list[str], shown: TextIO | None) -> None:
    for line in stream:
        lines.append(line)
        if shown is not None:
            shown.write(line)
            shown.flush()


def run(verb: str, arguments: Sequence[str], *, folder: str | None = None, log: bool = False,
        watch: Callable[[], None] = lambda: None) -> tuple[str, str]:
    """What stagecraft-VERB writes to standard output and to standard error; with `log`, the latter is also copied to sys.stderr
    immediately. `watch` is called from time to time while the program runs, and once at its end. Raises ProgramError for any exit
    status other than 0. An exception here, such as Ctrl-C, ends the program first."""
    program = find(verb)
    errors: list[str] = []
    outputs: list[str] = []
    process = subprocess.Popen([program, *arguments], cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True, errors="replace", start_new_session=True)
    assert process.stdout is not None and process.stderr is not None
    readers = [threading.Thread(target=_show, args=(process.stderr, errors, sys.stderr if log else None), daemon=True),
               threading.Thread(target=_show, args=(process.stdout, outputs, None), daemon=True)]
    for reader in readers:
        reader.start()
    try:
        while True:
            try:
                process.wait(0.2)
                break
            except subprocess.TimeoutExpired:
                watch()
    except BaseException:
        _end(process)
        raise
    finally:
        for reader in readers:
            reader.join(10)
        process.stdout.close()
        process.stderr.close()
    watch()
    text = "".join(errors)
    if process.returncode != 0:
        raise ProgramError(_message(f"stagecraft-{verb}", process.returncode, text), f"stagecraft-{verb}", process.returncode, text)
    return "".join(outputs), text


def _end(process: subprocess.Popen[str]) -> None:
    """Ends a program and, as it ends them, its ranks."""
    for wanted, seconds in ((signal.SIGTERM, 10), (signal.SIGTERM, 5), (signal.SIGKILL, 5)):
        if process.poll() is not None:
            return
        try:
            os.killpg(process.pid, wanted)
            process.wait(seconds)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            continue


def _message(name: str, status: int, text: str) -> str:
    """The program's own last message, without its name; not what follows from it: notes, and which rank ended."""
    lines = [line for line in text.splitlines() if line.strip() and not re.match(r"note: |stagecraft: ", line)]
    said = [line for line in lines if line.startswith(f"{name}: ") and not re.match(rf"{name}: (warning|note): ", line)]
    line = (said or lines or [""])[-1]
    return line.removeprefix(f"{name}: ") or f"{name} ended with status {status}"
