#!/usr/bin/env python3
"""make.py NAME... DIR writes DIR/NAME.pt2 and DIR/NAME.safetensors, a record of 3 steps of 1 or 2 microbatches of 2 samples, for
each test model named; "all" names every model whose package is installed. make.py --list lists the names. 77: none was."""

import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "..", "..", "scripts")]

SEED = 7
# Options of profile if its times do not matter.
QUICKLY = ("--warmup", "0", "--max-seconds", "0.05", "--concurrent", "1", "--accept-untrusted")


def request(name):
    """The request that exports the test model, built from its seed."""
    import torch
    from exporter.inputs import parse_input
    from exporter.program import Request
    from table import MODELS

    entry = MODELS[name]
    torch.manual_seed(SEED)
    return Request(entry.build(), name, tuple(map(parse_input, entry.inputs)), entry.loss, seed=SEED, **entry.options)


def make(name, folder, microbatches=None):
    """Writes both files; returns the program and the record's tensors. `microbatches` overrides the table's."""
    from exporter import program, record
    from table import MODELS

    entry = MODELS[name]
    done = program.export(request(name))
    training = record.Training(samples=entry.samples, microbatches=microbatches or entry.microbatches, learning_rate=entry.learning_rate, seed=SEED)
    tensors = record.make_record(done, training)
    program.save(done, os.path.join(folder, f"{name}.pt2"))
    record.save_record(os.path.join(folder, f"{name}.safetensors"), tensors, training)
    return done, tensors


def chosen(arguments, text, table):
    """(models, folder) of a command line NAME... FOLDER over `table`; an exit status if there is nothing to make."""
    program = os.path.basename(sys.argv[0])
    if arguments == ["--list"]:
        print("\n".join(table))
        return 0
    if len(arguments) < 2 or arguments[0].startswith("-"):
        print(text, file=sys.stderr)
        return 2
    *names, folder = arguments
    if names == ["all"]:
        names = list(table)
    unknown = [name for name in names if name not in table]
    if unknown:
        print(f'{program}: unknown model "{unknown[0]}", known are {", ".join(table)}', file=sys.stderr)
        return 2
    os.makedirs(folder, exist_ok=True)
    return names, folder


def main(arguments):
    from exporter.errors import ExportError
    from table import MODELS

    found = chosen(arguments, __doc__, MODELS)
    if isinstance(found, int):
        return found
    names, folder = found
    installed = [name for name in names if MODELS[name].is_installed()]
    for name in [name for name in names if name not in installed]:
        print(f"make.py: {name} needs {MODELS[name].needs}, scripts/setup --with-models installs it", file=sys.stderr)
    for name in installed:
        try:
            done, tensors = make(name, folder)
        except ExportError as error:
            print(f"make.py: {name}: {error}", file=sys.stderr)
            return 1
        losses = tensors["loss"]
        print(f"{name}: {done.least}..{done.most} samples, loss {losses[0].mean():.4f} to {losses[-1].mean():.4f}")
    return 0 if installed else 77


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
