#!/usr/bin/env python3
"""train_test.py BIN MODEL [FOLDER]: exports the test model, trains it with stagecraft and compares every loss, every
gradient, and the parameters and buffers at the end with Python's, bit for bit: unsplit and in 2, 3 and 4 stages, as
threads and as processes over Gloo, with layers of every granularity that divides the model differently. Models whose
record has one microbatch are also trained with two, where they must agree within rounding; models marked `rounds` in the
table are trained only that way. 77: the model's package is not installed.

With FOLDER, which holds what make.py or make_script.py wrote for MODEL, nothing is exported."""

import functools
import json
import os
import re
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "..", "..", "scripts")]

from make import QUICKLY

STEPS, SEED = 3, 7


def call(*command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)}\nexit status {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout + done.stderr


def layers_of(graph):
    with open(graph) as file:
        return [layer["name"] for layer in json.load(file)["layers"] if layer["kind"] != "Input"]


def described(inputs):
    """The inputs of a TorchScript file, which does not describe them, as options of profile."""
    out = []
    for text in inputs:
        name, _, rest = text.partition("=")
        shape, *options = rest.split(":")
        for option in options:
            key, _, value = option.partition("=")
            if key == "range":
                out += ["--input-range", f"{name}={value}"]
            else:
                shape += f":{option}"
        out += ["--input", f"{name}={shape}"]
    return out


def make_model(name, folder):
    """Writes the model's files to the folder if its package is installed."""
    import make
    import make_script
    import torch
    from script_models import SCRIPT_MODELS
    from table import MODELS

    torch.set_num_threads(1)
    if name in SCRIPT_MODELS:
        make_script.make(name, folder)
    elif MODELS[name].is_installed():
        make.make_for_training(name, folder)


def main(binaries, name, folder=None):
    with tempfile.TemporaryDirectory() as work:
        if folder is None:
            folder = work
            make_model(name, folder)
        return compare(binaries, name, folder, work)


def compare(binaries, name, folder, work):
    try:
        with open(os.path.join(folder, f"{name}.json")) as file:
            entry = json.load(file)
    except FileNotFoundError:
        print(f"{name} was not exported: its package is not installed; scripts/setup --with-models installs it")
        return 77
    model = os.path.join(folder, f"{name}.pt" if "inputs" in entry else f"{name}.pt2")
    record = os.path.join(folder, f"{name}.safetensors")
    options = [*described(entry.get("inputs", ())), "--microbatch", str(entry["samples"]), *QUICKLY]
    wrong = []

    @functools.cache
    def profile(granularity):
        """The graph's file and the names of its layers."""
        graph = os.path.join(work, f"{granularity}.json")
        call(f"{binaries}/stagecraft-profile", model, *options, "--layers", granularity, "-o", graph)
        return graph, layers_of(graph)

    def plan(granularity, stages, microbatches):
        path = os.path.join(work, f"{granularity}-{stages}-{microbatches}.json")
        call(f"{binaries}/stagecraft-plan", profile(granularity)[0], "--accept-untrusted", "-n", str(stages), "--strategy", "uniform",
             "--stages", str(stages), "--microbatches", str(microbatches), "-o", path)
        return path

    def train(granularity, record, stages, microbatches, channels, accepted):
        """Trains in this many stages over each channel and compares with the record; records a failure if a verdict does
        not match `accepted`."""
        planned = plan(granularity, stages, microbatches)
        for channel in channels:
            said = call(f"{binaries}/stagecraft-run", planned, "--data", f"tensors-in-order:{record}", "--expect", record, "--steps",
                        str(STEPS), "--learning-rate", str(entry["learning_rate"]), "--seed", str(SEED), "--channel", *channel)
            found = re.search(r"compared with .*", said)
            verdict = found[0].split("losses, ")[1] if found else "no verdict"
            where = f"layers {granularity}, {stages} stages, {microbatches} microbatches, {channel[0]}"
            print(f"{name}: {where}: {verdict}")
            if not re.fullmatch(accepted, verdict):
                wrong.append(f"{where}: {verdict}")

    trained = set()  # (layers, stages): a granularity that gives the same layers would train the same stages again
    for granularity in () if entry["rounds"] else ("auto", "leaf", "op"):
        layers = profile(granularity)[1]
        for count in (1, 2, 3, 4) if granularity == "auto" else (4,):
            stages = min(count, len(layers))
            if (key := (tuple(layers), stages)) not in trained:
                trained.add(key)
                train(granularity, record, stages, entry["microbatches"], (["local"], ["gloo", "--spawn"]), "all bit-equal")
    if entry["two"]:
        for stages in sorted({min(count, len(profile("auto")[1])) for count in (1, 2, 3)}):
            train("auto", os.path.join(folder, f"{name}.two.safetensors"), stages, 2, (["local"],),
                  r"all bit-equal|.*\(within rounding\).*")
    if wrong:
        print(f"{name} differs from Python:", *wrong, sep="\n  ")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
