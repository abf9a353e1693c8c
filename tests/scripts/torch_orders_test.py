#!/usr/bin/env python3
"""torch_orders_test.py BIN: the action lists of our schedules are those that torch.distributed.pipelining makes, action
by action, over a grid of devices, stages per device and microbatches. Exits with 77, which CTest treats as skipped, if
this Python has no torch.

What torch lists as an overlapped pair is a forward and then a backward here. torch's LoopedBFS runs the backwards of a
stage in descending order, ours in ascending order."""

import json
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor

try:
    from torch.distributed.pipelining import schedules
except ImportError:
    print("skipped: this Python has no torch.distributed.pipelining")
    sys.exit(77)

OURS = {"Interleaved1F1B": "interleaved-1f1b", "LoopedBFS": "looped-bfs", "InterleavedZeroBubble": "interleaved-zb",
        "ZBVZeroBubble": "zb-v", "DualPipeV": "dualpipev"}
V_SHAPED = ("ZBVZeroBubble", "DualPipeV")


def grid():
    for name in OURS:
        for devices in (1, 2, 3, 4, 5, 6, 8):
            for chunks in (2,) if name in V_SHAPED else (2, 3):
                for microbatches in sorted({1, devices, 2 * devices - 1, 2 * devices, 3 * devices, 4 * devices + 1}):
                    groups = name.startswith("Interleaved")
                    if groups and microbatches % devices != 0 or name == "DualPipeV" and microbatches < 2 * devices:
                        continue
                    yield name, devices, chunks, microbatches


def torchs(name, devices, chunks, microbatches):
    """The rows of torch's schedule, without its process group."""
    kind = schedules.get_schedule_class(name)
    rows = []
    for rank in range(devices):
        schedule = object.__new__(kind)
        schedule.pp_group_size = devices
        schedule.rank = rank
        schedule.num_stages = schedule._num_stages = devices * chunks
        schedule.n_local_stages = chunks
        schedule._stages = [None] * chunks
        schedule._n_microbatches = microbatches
        schedule.number_of_rounds = max(1, microbatches // devices)
        schedule.microbatches_per_round = microbatches // schedule.number_of_rounds
        row = []
        for action in schedule._calculate_single_rank_operations(rank):
            if action is not None:
                row += [str(part) for part in action.sub_actions or (action,)]
        if name == "LoopedBFS":
            half = len(row) // 2
            runs = [row[i:i + microbatches] for i in range(half, len(row), microbatches)]
            row = row[:half] + [cell for run in runs for cell in reversed(run)]
        rows.append(row)
    return rows


def ours(binaries, folder, case):
    name, devices, chunks, microbatches = case
    stages = devices * chunks
    position = (lambda s: min(s, stages - 1 - s)) if name in V_SHAPED else (lambda s: s % devices)
    plan = {"format": "stagecraft.plan", "version": 9, "model": "none", "microbatches": microbatches,
            "schedule": OURS[name], "chunks": chunks,
            "stages": [{"layers": [f"l{s}"], "devices": [position(s)]} for s in range(stages)],
            "boundaries": [{"source": s, "destination": s + 1,
                            "tensors": [{"layer": f"l{s}", "activation_bytes": 1, "gradient": True}]}
                           for s in range(stages - 1)]}
    path = os.path.join(folder, "-".join(map(str, case)))
    with open(path + ".json", "w") as file:
        json.dump(plan, file)
    subprocess.run([os.path.join(binaries, "stagecraft-export"), "torch-pipelining", "--kind", "csv", path + ".json",
                    "-o", path],
                   check=True)
    with open(path) as file:
        return [line.split(",") for line in file.read().splitlines()]


def main():
    cases = list(grid())
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(2) as pool:
        for case, found in zip(cases, pool.map(lambda case: ours(sys.argv[1], folder, case), cases)):
            wanted = torchs(*case)
            if found == wanted:
                continue
            rank = next(r for r in range(len(wanted)) if r >= len(found) or found[r] != wanted[r])
            print("FAILED:", *case, "\n  torch's rank", rank, ",".join(wanted[rank]), "\n  ours         ",
                  ",".join(found[rank]) if rank < len(found) else "none")
            return 1
    print(f"{len(cases)} schedules as torch makes them")
    return 0


sys.exit(main())
