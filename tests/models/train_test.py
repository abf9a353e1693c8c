#!/usr/bin/env python3
"""train_test.py BIN MODEL [FOLDER]: exports the test model, trains it with stagecraft and compares every loss, every
gradient, and the parameters and buffers at the end with Python's, bit for bit: unsplit and in 2, 3 and 4 stages, as
threads and as processes over Gloo, with layers of every granularity. Models whose record has one microbatch are also
trained with two, where they must agree within rounding; models marked `rounds` in the table are trained only that way.
77: the model's package is not installed.

With FOLDER, which holds MODEL.pt2 and MODEL.safetensors from make.py, nothing is exported."""

import os
import re
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "..", "..", "scripts")]

STEPS, SEED = 3, 7


def call(*command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)}\nexit status {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout + done.stderr


def count_layers(graph):
    import json

    with open(graph) as file:
        return sum(layer["kind"] != "Input" for layer in json.load(file)["layers"])


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


def main(binaries, name, folder=None):
    import make
    from script_models import SCRIPT_MODELS
    from table import MODELS

    scripted = name in SCRIPT_MODELS
    entry = SCRIPT_MODELS[name] if scripted else MODELS[name]
    if not scripted and not entry.is_installed():
        print(f"{name} needs {entry.needs}; scripts/setup --with-models installs it")
        return 77
    samples, microbatches = (2, 2) if scripted else (entry.samples, entry.microbatches)
    rounds = not scripted and entry.rounds
    wrong = []

    def profile(model, granularity, work):
        graph = os.path.join(work, "graph.json")
        call(f"{binaries}/stagecraft-profile", model, *(described(entry.inputs) if scripted else ()), "--microbatch", str(samples),
             "--layers", granularity, *make.QUICKLY, "-o", graph)
        return graph

    def train(graph, granularity, record, stages, microbatches, channel, accepted):
        """Trains in this many stages and compares with the record; records a failure if the verdict does not match
        `accepted`."""
        plan = os.path.join(os.path.dirname(graph), f"plan-{stages}-{microbatches}.json")
        call(f"{binaries}/stagecraft-plan", graph, "-n", str(stages), "--strategy", "uniform", "--stages", str(stages),
             "--microbatches", str(microbatches), "-o", plan)
        said = call(f"{binaries}/stagecraft-run", plan, "--data", f"tensors-in-order:{record}", "--expect", record, "--steps",
                    str(STEPS), "--learning-rate", str(entry.learning_rate), "--seed", str(SEED), "--channel", *channel)
        found = re.search(r"compared with .*", said)
        verdict = found[0].split("losses, ")[1] if found else "no verdict"
        where = f"layers {granularity}, {stages} stages, {microbatches} microbatches, {channel[0]}"
        print(f"{name}: {where}: {verdict}")
        if not re.fullmatch(accepted, verdict):
            wrong.append(f"{where}: {verdict}")

    with tempfile.TemporaryDirectory() as work:
        made = folder is None
        if made:
            import torch

            import make_script

            torch.set_num_threads(1)
            (make_script if scripted else make).make(name, work)
            folder = work
        model = os.path.join(folder, f"{name}.pt" if scripted else f"{name}.pt2")
        record = os.path.join(folder, f"{name}.safetensors")
        for granularity in () if rounds else ("auto", "leaf", "op"):
            graph = profile(model, granularity, work)
            layers = count_layers(graph)
            counts = (1, 2, 3, 4) if granularity == "auto" else (4,)
            for stages in sorted({min(count, layers) for count in counts}):
                for channel in (["local"], ["gloo", "--spawn"]):
                    train(graph, granularity, record, stages, microbatches, channel, "all bit-equal")
        if made and (rounds or microbatches == 1):
            more = os.path.join(work, "more")
            os.mkdir(more)
            make.make(name, more, microbatches=2)
            graph = profile(os.path.join(more, f"{name}.pt2"), "auto", more)
            for stages in sorted({min(count, count_layers(graph)) for count in (1, 2, 3)}):
                train(graph, "auto", os.path.join(more, f"{name}.safetensors"), stages, 2, ["local"],
                      r"all bit-equal|.*\(within rounding\).*")
        if wrong:
            print(f"{name} differs from Python:", *wrong, sep="\n  ")
        return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
