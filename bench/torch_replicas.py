"""The built-in transformer under torch's data parallelism, for bench/beside_torch_replicas.

Run once per rank, with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT set. Prints, on rank 0, the median seconds of a
step after two warm-up steps: forward, backward and AdamW, one microbatch on each rank.
"""

import argparse
import os
import statistics
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from torch_pipelining import Transformer


def main():
    parser = argparse.ArgumentParser()
    for name in ("vocabulary", "width", "layers", "heads", "feedforward", "sequence", "microbatch", "steps"):
        parser.add_argument("--" + name, type=int, required=True)
    parser.add_argument("--wrapper", choices=("ddp", "fsdp2"), required=True)
    o = parser.parse_args()
    torch.set_num_threads(1)
    rank = int(os.environ["RANK"])
    dist.init_process_group("gloo")
    torch.manual_seed(1)
    module = Transformer(o, 0, o.layers)
    if o.wrapper == "ddp":
        module = DistributedDataParallel(module)
    else:
        for layer in module.layers:
            fully_shard(layer)
        fully_shard(module)
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-4, fused=True)
    tokens = torch.randint(o.vocabulary, (o.microbatch, o.sequence))
    target = torch.randint(o.vocabulary, (o.microbatch * o.sequence,))
    ends = [time.perf_counter()]
    for _ in range(o.steps):
        optimizer.zero_grad()
        nn.functional.cross_entropy(module(tokens).flatten(0, 1), target).backward()
        optimizer.step()
        ends.append(time.perf_counter())
    if rank == 0:
        print(statistics.median(b - a for a, b in zip(ends[2:], ends[3:])))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
