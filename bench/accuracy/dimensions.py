"""Time of a GPT training step from its dimensions alone, without a layer profile.

1F1B with full recomputation on nodes of eight A100: (microbatches + stages - 1) times the slowest stage, then the gradients.
Each mechanism is a sum of seconds at a stated guess of its rate; `fit.factors` learns one factor for each. Formulas:
Narayanan et al., SC 2021 (flops: 96 b q h^2 (1 + q / 6h) per layer with recomputation, 8 b q h V for the head without);
Korthikanti et al., MLSys 2023 (bytes that tensor parallelism does not split).
"""

import csv

import sailor

NODE = 8
VOCABULARY = 51200
FLOPS_PER_S = 312e12  # A100, half precision, its peak
MEMORY_BYTES_PER_S = 2.0e12  # A100-80GB
NVLINK_BYTES_PER_S = 235e9  # bus bandwidth of vTrain's all-reduce of eight A100
NODE_BYTES_PER_S = 100e9  # 800 Gb/s per node, the source's own setting
REDUCE_S = 200e-6  # of one all-reduce besides its bytes, launch included, guess
HOST_S = 400e-6  # for a layer's forward, recomputation and backward, guess
MECHANISMS = ("compute", "memory", "host", "latency", "tensor parallel inside", "tensor parallel across", "stage transfers", "gradients",
              "update")
SPREADS = (0.3, 0.7, 0.7, 0.7, 0.5, 0.7, 0.7, 0.7, 0.7)
INTEGERS = ("gpus", "global_batch_samples", "microbatch_samples", "hidden_size", "attention_heads", "layers",
            "sequence_length_tokens", "tensor_parallel", "data_parallel", "pipeline_parallel", "microbatches")


def read_runs(path):
    """The rows of a file like ground_truth_multi_dev.csv; iteration_s may be empty."""
    try:
        with open(path, encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
    except OSError as e:
        raise sailor.DataError(f"{path}: {e.strerror}") from None
    for line, row in enumerate(rows, start=2):
        for key in INTEGERS:
            try:
                row[key] = int(row[key])
            except (KeyError, TypeError, ValueError):
                raise sailor.DataError(f"{path}:{line}: {key}: found {row.get(key)!r}, expected an integer") from None
            if row[key] < 1:
                raise sailor.DataError(f"{path}:{line}: {key}: found {row[key]}, expected at least 1")
        row["iteration_s"] = float(row["iteration_s"]) if row.get("iteration_s") else None
    return rows


def ring(ranks):
    return 2 * (ranks - 1) / ranks


def parts(row):
    """Seconds of each mechanism at its guess, in the order of MECHANISMS."""
    b, q, h = row["microbatch_samples"], row["sequence_length_tokens"], row["hidden_size"]
    t, d, p, m = (row[k] for k in ("tensor_parallel", "data_parallel", "pipeline_parallel", "microbatches"))
    layers = row["layers"] / p
    slots = m + p - 1
    layer_flops = 96 * b * q * h * h * (1 + q / (6 * h))
    head_flops = 6 * b * q * h * VOCABULARY
    # The head runs once for each microbatch in the last stage, which the others wait for.
    compute = (slots * layers * layer_flops + m * head_flops) / t / FLOPS_PER_S
    # Each value is written and read in forward, recomputation and backward; scores of attention are 5 a q^2 of them.
    values = b * q * h * (10 + 24 / t) + 5 * row["attention_heads"] * q * q * b / t
    memory = slots * layers * 3 * values / MEMORY_BYTES_PER_S
    host = slots * layers * HOST_S
    activation = 2 * b * q * h
    reduces = slots * layers * 6 * ring(t) * activation  # two each in forward, recomputation and backward
    latency = slots * layers * 6 * REDUCE_S if t > 1 else 0.0
    inside = reduces / NVLINK_BYTES_PER_S if t <= NODE else 0.0
    across = reduces / NODE_BYTES_PER_S if t > NODE else 0.0
    hop = activation / (NODE_BYTES_PER_S / NODE if t * d >= NODE else NVLINK_BYTES_PER_S)
    transfers = 2 * slots * hop if p > 1 else 0.0
    weights = 12 * h * h * layers / t + VOCABULARY * h / t
    # Ranks count tensor, then data: the replicas of a stage fill nodes of NODE / t.
    in_node = t * d <= NODE
    gradients = ring(d) * 2 * weights / (NVLINK_BYTES_PER_S if in_node else NODE_BYTES_PER_S / min(NODE, t))
    update = 32 * weights / MEMORY_BYTES_PER_S
    return [compute, memory, host, latency, inside, across, transfers, gradients, update]
