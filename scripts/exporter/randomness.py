"""Random numbers that do not come from torch: torch.export would keep one draw of them forever."""

import pickle
import random
import re
import sys

from . import places
from .errors import ExportError
from .refuse import advice


def check(run, what, model=None):
    """Returns run(), which runs `what` ("the model", "the loss"). Throws ExportError if that draws from Python's generator,
    from NumPy's, or from one that a module of `model` keeps."""
    sources = _sources(model)
    before = _states(sources)
    result = run()
    if _states(sources) != before:
        # Once more: a module that was imported meanwhile may have drawn, and the second time shows the line.
        watch = _Watch(sources)
        watch.run(run)
        if watch.source:
            at = f" at {watch.place}" if watch.place.line else ""
            instead = advice(watch.place) or "use torch.rand, torch.randint or torch.randperm"
            raise ExportError(f"{what} draws random numbers from {watch.source}{at}; an exported program would repeat the "
                              f"same draw forever; {instead}")
    return result


def _sources(model):
    """Generators by name, each with a function that returns its state."""
    out = {"Python's random": random.getstate}
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        out["NumPy's generator (numpy.random)"] = lambda: pickle.dumps(numpy.random.get_state())
    kinds = (random.Random,) + ((numpy.random.Generator, numpy.random.RandomState) if numpy is not None else ())
    for path, module in model.named_modules() if model is not None else ():
        for name, value in vars(module).items():
            if isinstance(value, kinds):
                full = f"{path}.{name}" if path else name
                out[f"{full}, a separate generator ({type(value).__module__}.{type(value).__name__})"] = (
                    lambda value=value: pickle.dumps(value))
    return out


def _states(sources):
    return [state() for state in sources.values()]


class _Watch:
    """The source that changes first, and its line."""

    def __init__(self, sources):
        self.sources, self.before, self.calls = sources, _states(sources), []
        self.source, self.place = None, places.Place()

    def run(self, run):
        old = sys.gettrace()
        sys.settrace(self._enter)
        try:
            run()
        finally:
            sys.settrace(old)
        self._look()

    def _enter(self, frame, event, argument):
        file = frame.f_code.co_filename
        if self.source or places.is_python(file) or re.search(r"-packages[/\\](torch|numpy)[/\\]", file):
            return None
        self._look()
        return self._step

    def _step(self, frame, event, argument):
        self._look()
        if self.source:
            return None
        self.calls = []  # the code that runs until the next event
        frame = frame.f_back if event == "return" else frame
        while frame is not None:
            self.calls.append((frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name))
            frame = frame.f_back
        return self._step

    def _look(self):
        if self.source:
            return
        for name, old, new in zip(self.sources, self.before, _states(self.sources)):
            if old != new:
                self.source, self.place = name, places.of_frames(self.calls[::-1])
                return
