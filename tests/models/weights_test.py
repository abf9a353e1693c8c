#!/usr/bin/env python3
"""weights_test.py BIN FOLDER NAME...: trains the models that make.py and make_script.py wrote to FOLDER in two stages, with a
checkpoint at the end, and gives each one's state dict back to its module in Python. load_state_dict(strict=True) accepts it, its
values are those of the same training in Python, tied tensors and buffers included, and the module's outputs are equal. 77: no
torch, or none of the models' packages."""

import json
import os
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "..", "..", "scripts")]
try:
    import torch
    from safetensors.torch import load_file
except ImportError as error:
    print(f"this Python lacks a package: {error}")
    sys.exit(77)

from exporter.inputs import draw_all, parse_input
from make import QUICKLY
from script_models import SCRIPT_MODELS
from table import MODELS
from train_test import SEED, STEPS, call, described, layers_of

# Models that return the cross entropy of their attribute `model`.
EVALUATED = ("cnn_traced", "cnn_scripted", "several_names_scripted")
TIED = ("gpt2", "bert", "tied_dropout", "several_names", "several_names_scripted")


def trained(binaries, name, folder, work):
    """The state dict after training in two stages, and the record of the training in Python."""
    with open(os.path.join(folder, f"{name}.json"), encoding="utf-8") as file:
        entry = json.load(file)
    scripted = "inputs" in entry
    model = os.path.join(folder, f"{name}.pt" if scripted else f"{name}.pt2")
    record = os.path.join(folder, f"{name}.safetensors")
    graph, plan, saved, out = (os.path.join(work, each) for each in ("graph.json", "plan.json", "saved", "model.safetensors"))
    call(f"{binaries}/stagecraft-profile", model, *described(entry.get("inputs", ())), "--microbatch", str(entry["samples"]),
         *QUICKLY, "-o", graph)
    stages = str(min(2, len(layers_of(graph))))
    call(f"{binaries}/stagecraft-plan", graph, "--accept-untrusted", "-n", stages, "--strategy", "uniform", "--stages", stages, "--microbatches",
         str(entry["microbatches"]), "-o", plan)
    call(f"{binaries}/stagecraft-run", plan, "--data", f"tensors-in-order:{record}", "--steps", str(STEPS), "--learning-rate",
         str(entry["learning_rate"]), "--seed", str(SEED), "--checkpoint", saved)
    call(f"{binaries}/stagecraft-weights", saved, "-o", out)
    # A run takes the file, with tied tensors under all their names, as initial weights.
    call(f"{binaries}/stagecraft-run", plan, "--data", f"tensors-in-order:{record}", "--steps", "1", "--weights", out)
    said = call(f"{binaries}/stagecraft-evaluate", saved, "--data", f"tensors-in-order:{record}", "--json") if name in EVALUATED else "{}"
    return load_file(out), load_file(record), json.loads(said)


def outputs(name, module):
    """What the module returns in evaluation mode."""
    module.eval()
    torch.manual_seed(SEED)
    with torch.no_grad():
        if name in SCRIPT_MODELS:
            return module(*draw_all(tuple(map(parse_input, SCRIPT_MODELS[name].inputs)), 2, 1))
        inputs = tuple(map(parse_input, MODELS[name].inputs))
        tensors = draw_all(inputs, 2, 1)
        constants = MODELS[name].options.get("constants")
        if constants is None:
            return module(*tensors)
        return module(**{each.name: tensor for each, tensor in zip(inputs, tensors)}, **constants)


def compare_evaluation(name, module, record, evaluation):
    """The loss and the accuracy of `stagecraft evaluate` are those of the module after eval()."""
    module.eval()
    with torch.no_grad():
        losses = [module(x, target).item() for x, target in zip(record["x"].split(2), record["target"].split(2))]
        right = int((module.model(record["x"]).argmax(1) == record["target"]).sum())
    expected = sum(losses) / len(losses)
    assert abs(evaluation["loss"] / expected - 1) < 1e-6, f"{name}: {evaluation}, expected loss {expected}"
    assert (evaluation["correct"], evaluation["predictions"]) == (right, len(record["x"])), f"{name}: {evaluation}, expected {right}"


def check(binaries, name, folder):
    with tempfile.TemporaryDirectory() as work:
        state, record, evaluation = trained(binaries, name, folder, work)
    build = (SCRIPT_MODELS if name in SCRIPT_MODELS else MODELS)[name].build
    torch.manual_seed(SEED + 1)  # other initial values than those that were trained
    module = build()
    expected_names = set(module.state_dict())
    assert set(state) == expected_names, f"{name}: {sorted(set(state) ^ expected_names)}"
    module.load_state_dict(state, strict=True)
    reference = build()
    values = {key.split("/", 1)[1]: tensor for key, tensor in record.items() if key.startswith(("parameter/", "buffer/"))}
    own = {**dict(reference.named_parameters()), **dict(reference.named_buffers())}
    for key in own.keys() & values.keys() & expected_names:  # a record also has buffers with persistent=False
        own[key].data.copy_(values[key])
    unrecorded = [key for key in own if key not in values and key in expected_names]
    assert not unrecorded, f"{name}: {unrecorded}"
    for key, expected in reference.state_dict().items():
        assert torch.equal(module.state_dict()[key], expected), f"{name}: {key}"
    found, wanted = (torch.utils._pytree.tree_leaves(outputs(name, each)) for each in (module, reference))
    for one, other in zip(found, wanted, strict=True):
        assert torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other, name
    if name in EVALUATED:
        compare_evaluation(name, module, record, evaluation)
    tied = len(state) - len({tensor.data_ptr() for tensor in reference.state_dict().values()})
    assert (tied > 0) == (name in TIED), f"{name}: {tied} further names"
    print(f"{name}: {len(state)} tensors, {tied} further names of tied ones, outputs equal")


def main(binaries, folder, *names):
    torch.set_num_threads(1)
    there = [name for name in names if os.path.exists(os.path.join(folder, f"{name}.json"))]
    for name in there:
        check(binaries, name, folder)
    return 0 if there else 77


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
