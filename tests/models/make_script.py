#!/usr/bin/env python3
"""make_script.py NAME... DIR writes DIR/NAME.pt, which torch.jit.trace or torch.jit.script made, and DIR/NAME.safetensors, a
record of 3 steps of 2 microbatches of 2 samples of the model itself, and DIR/NAME.json, what train_test.py needs to know of it,
for each model named; "all" names every one.
make_script.py --list lists the names. 77: there is no torch."""

import os
import sys
import tempfile
import warnings

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "..", "..", "scripts")]

SEED = 7


def save_without_places(module, path):
    """Saves without the debug records, which contain the paths of Python sources."""
    import torch

    with tempfile.TemporaryDirectory() as work:
        whole = os.path.join(work, os.path.basename(path))
        module.save(whole)
        reader = torch._C.PyTorchFileReader(whole)
        writer = torch._C.PyTorchFileWriter(path)
        for name in reader.get_all_records():
            if name.endswith(".debug_pkl") or name.startswith("traced_inputs") or name == ".data/serialization_id":
                continue
            if name in ("version", "byteorder"):
                continue
            data = reader.get_record(name)
            writer.write_record(name, data, len(data))
        writer.write_end_of_file()


def make(name, folder):
    import torch
    from exporter import record
    from exporter.inputs import draw_all, parse_input
    from make import describe
    from script_models import SCRIPT_MODELS

    entry = SCRIPT_MODELS[name]
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    model = entry.build()
    inputs = tuple(map(parse_input, entry.inputs))
    training = record.Training(samples=2, learning_rate=entry.learning_rate, seed=SEED)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # Tracing runs the model and updates its running statistics.
        state = {key: value.clone() for key, value in model.state_dict().items()}
        if entry.traced:
            module = torch.jit.trace(model, tuple(draw_all(inputs, 3, SEED)), check_trace=False)
            model.load_state_dict(state)
        else:
            module = torch.jit.script(model)
        save_without_places(module, os.path.join(folder, f"{name}.pt"))
    tensors = record.make_eager_record(model, inputs, training)
    record.save_record(os.path.join(folder, f"{name}.safetensors"), tensors, training)
    describe(name, folder, samples=2, microbatches=2, learning_rate=entry.learning_rate, rounds=False, two=False, inputs=entry.inputs)
    return tensors


def main(arguments):
    from make import chosen, has_torch

    if not has_torch():
        return 77
    from script_models import SCRIPT_MODELS

    found = chosen(arguments, __doc__, SCRIPT_MODELS)
    if isinstance(found, int):
        return found
    names, folder = found
    for name in names:
        losses = make(name, folder)["loss"]
        print(f"{name}: loss {losses[0].mean():.4f} to {losses[-1].mean():.4f}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
