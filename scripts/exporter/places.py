"""Where an error or a node came from: the user's line, the library's line and the module."""

import ast
import contextlib
import dataclasses
import inspect
import linecache
import os
import re
import sysconfig
import traceback
from unittest import mock

import torch

_OWN = os.path.dirname(os.path.abspath(__file__))
_TORCH = os.path.dirname(os.path.abspath(torch.__file__))
_STANDARD = tuple(os.path.realpath(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib"))


@dataclasses.dataclass(frozen=True)
class Line:
    """A line of source. `function` is the function that it belongs to."""

    file: str
    number: int
    function: str

    @property
    def text(self):
        return linecache.getline(self.file, self.number).strip()

    @property
    def packaged(self):
        """The file below the folder of installed packages, or None."""
        found = re.search(r"[/\\](?:site|dist)-packages[/\\](.*)", self.file)
        if found:
            return found[1]
        return "torch" + self.file.removeprefix(_TORCH) if self.file.startswith(_TORCH + os.sep) else None

    def is_torch(self):
        """Whether the line belongs to torch, or to what it computes with symbols."""
        return (self.packaged or "").startswith(("torch" + os.sep, "sympy" + os.sep))

    def is_library(self):
        """Whether the line belongs to an installed package or to Python itself."""
        return self.packaged is not None or is_python(self.file)

    def __str__(self):
        short = self.packaged or self.file
        if short.startswith(os.getcwd() + os.sep):
            short = os.path.relpath(short)
        return f'{short}:{self.number} "{self.text}"' if self.text else f"{short}:{self.number}"


def of_class(kind):
    """The Line where a class begins, or None."""
    try:
        return Line(inspect.getsourcefile(kind), inspect.getsourcelines(kind)[1], kind.__name__)
    except (OSError, TypeError):
        return None


def in_source(model, pattern):
    """The first Line that matches `pattern` in the classes of a model's modules, or None; those of torch are left out."""
    for kind in dict.fromkeys(type(module) for module in model.modules()):
        begin = of_class(kind)
        if begin is None or begin.is_torch():
            continue
        lines, first = inspect.getsourcelines(kind)
        for number, text in enumerate(lines, first):
            if re.search(pattern, text.partition("#")[0]):
                return Line(begin.file, number, kind.__name__)
    return None


def is_python(file):
    """Whether a file belongs to Python's own library, or is not a real file."""
    return file.startswith("<") or os.path.realpath(file).startswith(_STANDARD) and "-packages" not in file


@dataclasses.dataclass(frozen=True)
class Place:
    """`lines`: the calls that led there, outermost first, below those of this exporter. `module`: the path of the innermost
    module whose method is among them."""

    lines: tuple = ()
    module: str = ""

    @property
    def user(self):
        """The innermost line that is not in a library."""
        return next((line for line in reversed(self.lines) if not line.is_library()), None)

    @property
    def library(self):
        """The innermost line of a library other than torch and Python's own, if it is below the user's."""
        for line in reversed(self.lines):
            if not line.is_torch() and not is_python(line.file):
                return line if line.is_library() else None
        return None

    @property
    def line(self):
        """The line that a message is about."""
        return self.library or self.user

    def calls(self, file, function=None):
        """The first line of an installed package's file or folder, in the function of that name if one is given."""
        return next((line for line in self.lines
                     if (line.packaged or "").startswith(file) and function in (None, line.function)), None)

    def __str__(self):
        parts = [str(line) for line in (self.user, self.library) if line]
        text = ", in ".join(parts)
        return f"{text} (module {self.module})" if text and self.library and self.module else text


def of_error(error, model=None):
    """Where an exception was raised; an empty Place if it was outside of models and losses. `model`: the model that
    ran, if it does not include its loss."""
    while error is not None:
        names, frames, module = _paths(model), [], ""
        for frame, number in traceback.walk_tb(error.__traceback__):
            file, owner = frame.f_code.co_filename, frame.f_locals.get("self")
            if file.startswith(_OWN + os.sep) and isinstance(owner, torch.nn.Module):
                names = _paths(owner)
            frames.append((file, number, frame.f_code.co_name))
            module = names.get(id(owner), module)
        place = of_frames(frames, module)
        if place.line:
            return place
        error = error.__cause__ or error.__context__
    return Place()


def _paths(model):
    return {id(module): path for path, module in model.named_modules()} if model is not None else {}


def at(error, model=None):
    """" at PLACE" of an exception, or "" if it was outside of models and losses."""
    place = of_error(error, model)
    return f" at {place}" if place.line else ""


def of_frames(frames, module=""):
    """A Place from (file, line number, function) of each call, outermost first."""
    lines = [Line(os.path.abspath(file) if not file.startswith("<") else file, *rest) for file, *rest in frames]
    own = [index for index, line in enumerate(lines) if line.file.startswith(_OWN + os.sep)]
    return Place(tuple(lines[own[-1] + 1 :] if own else lines), module)


@contextlib.contextmanager
def in_nodes():
    """Context in which torch.export records in its nodes every call in models and losses, not only methods called
    forward."""

    def keep(tracer, frames):
        own = [index for index, frame in enumerate(frames) if frame.filename.startswith(_OWN + os.sep)]
        below = frames[own[-1] + 1 :] if own else frames
        return traceback.StackSummary.from_list([frame for frame in below if not Line(frame.filename, 0, "").is_torch()])

    with mock.patch.object(torch.fx.proxy.TracerBase, "_filter_traceback_frames", keep):
        yield


def of_node(node):
    """Where a node of an exported graph was made, if in_nodes() recorded it."""
    found = re.findall(r'File "([^"]+)", line (\d+), in (\S+)', node.meta.get("stack_trace") or "")
    return of_frames([(file, int(number), function) for file, number, function in found])


def statement(line):
    """What the statement at a line is: "check" (an assert, or an if that raises), "branch", "loop", or ""."""
    source = "".join(linecache.getlines(line.file))
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return ""
    begin, kind = 0, ""
    for node in ast.walk(tree):
        tested = node.test if isinstance(node, (ast.If, ast.While, ast.IfExp, ast.Assert)) else getattr(node, "iter", None)
        if not isinstance(tested, ast.AST):
            continue
        first = getattr(node, "lineno", tested.lineno)
        if not max(first, begin) <= line.number <= tested.end_lineno:
            continue
        begin = first
        if isinstance(node, ast.Assert) or isinstance(node, ast.If) and isinstance(node.body[0], ast.Raise):
            kind = "check"
        elif isinstance(node, (ast.If, ast.IfExp)):
            kind = "branch"
        else:
            kind = "loop"
    return kind
