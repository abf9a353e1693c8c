#!/usr/bin/env python3
"""make.py NAME... DIR writes DIR/NAME.pt2 and DIR/NAME.safetensors, a record of 3 steps of 1 or 2 microbatches of 2 samples, for
each test model named, DIR/NAME.two.safetensors with 2 microbatches where the first record has 1 or the table says `rounds`, and
DIR/NAME.json, what train_test.py needs to know of the model; "all" names every model whose package is installed.
make.py --list lists the names. 77: none was, or there is no torch."""

import importlib.util
import json
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "..", "..", "scripts")]

SEED = 7
# Options of profile if its times do not matter.
QUICKLY = ("--warmup", "0", "--max-seconds", "0.05", "--concurrent", "1", "--accept-untrusted")


def request(name, structure=False):
    """The request that exports the test model, built from its seed, or, for a structure, without values."""
    import torch
    from exporter.inputs import parse_input
    from exporter.program import Request
    from table import MODELS

    entry = MODELS[name]
    torch.manual_seed(SEED)
    with torch.device("meta" if structure else "cpu"):
        model = entry.build()
    return Request(model, name, tuple(map(parse_input, entry.inputs)), entry.loss, seed=SEED, structure=structure,
                   **entry.options)


def describe(name, folder, **facts):
    with open(os.path.join(folder, f"{name}.json"), "w") as file:
        json.dump(facts, file)


def write_record(name, done, path, microbatches):
    """Writes a record of the exported program; returns its tensors."""
    from exporter import record
    from table import MODELS

    entry = MODELS[name]
    training = record.Training(samples=entry.samples, microbatches=microbatches, learning_rate=entry.learning_rate, seed=SEED)
    tensors = record.make_record(done, training)
    record.save_record(path, tensors, training)
    return tensors


def make(name, folder, microbatches=None):
    """Writes archive and record; returns the program and the record's tensors. `microbatches` overrides the table's."""
    from exporter import program
    from table import MODELS

    done = program.export(request(name))
    program.save(done, os.path.join(folder, f"{name}.pt2"))
    return done, write_record(name, done, os.path.join(folder, f"{name}.safetensors"), microbatches or MODELS[name].microbatches)


def make_for_training(name, folder):
    """Writes all that train_test.py needs; returns as make."""
    from table import MODELS

    entry = MODELS[name]
    done, tensors = make(name, folder)
    two = entry.rounds or entry.microbatches == 1
    if two:
        write_record(name, done, os.path.join(folder, f"{name}.two.safetensors"), 2)
    describe(name, folder, samples=entry.samples, microbatches=entry.microbatches, learning_rate=entry.learning_rate,
             rounds=entry.rounds, two=two)
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


def has_torch():
    if importlib.util.find_spec("torch"):
        return True
    print("this Python has no torch", file=sys.stderr)
    return False


def main(arguments):
    if not has_torch():
        return 77
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
            done, tensors = make_for_training(name, folder)
        except ExportError as error:
            print(f"make.py: {name}: {error}", file=sys.stderr)
            return 1
        losses = tensors["loss"]
        print(f"{name}: {done.least}..{done.most} samples, loss {losses[0].mean():.4f} to {losses[-1].mean():.4f}")
    return 0 if installed else 77


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
