"""The built-in transformer under torch.distributed.pipelining, for bench/beside_torch_pipelining.

Run once per rank, with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT set. Prints, on rank 0, the median seconds
of a step after two warm-up steps: forward and backward of all microbatches under the schedule, then an SGD step.
"""

import argparse
import os
import statistics
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B


class Transformer(nn.Module):
    """Embedding, decoder layers used as layer(x, x), norm, output; the layers [begin, end) of it, as in PyTorch's example."""

    def __init__(self, o, begin, end):
        super().__init__()
        self.embedding = nn.Embedding(o.vocabulary, o.width) if begin == 0 else None
        self.layers = nn.ModuleList(
            nn.TransformerDecoderLayer(o.width, o.heads, o.feedforward, dropout=0.1, batch_first=True)
            for _ in range(begin, end)
        )
        last = end == o.layers
        self.norm = nn.LayerNorm(o.width) if last else None
        self.output = nn.Linear(o.width, o.vocabulary) if last else None

    def forward(self, x):
        if self.embedding is not None:
            x = self.embedding(x)
        for layer in self.layers:
            x = layer(x, x)
        if self.output is not None:
            x = self.output(self.norm(x))
        return x


def main():
    parser = argparse.ArgumentParser()
    for name in ("vocabulary", "width", "layers", "heads", "feedforward", "sequence", "microbatch", "microbatches", "steps"):
        parser.add_argument("--" + name, type=int, required=True)
    parser.add_argument("--schedule", choices=("gpipe", "1f1b", "interleaved-1f1b"), required=True)
    o = parser.parse_args()
    torch.set_num_threads(1)
    rank = int(os.environ["RANK"])
    dist.init_process_group("gloo")
    torch.manual_seed(1)
    # Interleaved: two stages per rank, stage s on rank s mod 2.
    stages = 4 if o.schedule == "interleaved-1f1b" else 2
    numbers = range(rank, stages, 2)
    modules = nn.ModuleList(Transformer(o, s * o.layers // stages, (s + 1) * o.layers // stages) for s in numbers)
    # Shapes are given, because inferring them needs numpy, which the wheel does not include.
    hidden = torch.empty(o.microbatch, o.sequence, o.width)
    logits = torch.empty(o.microbatch, o.sequence, o.vocabulary)
    ids = torch.empty(o.microbatch, o.sequence, dtype=torch.int64)
    pipeline_stages = [
        PipelineStage(module, s, stages, torch.device("cpu"), input_args=(ids if s == 0 else hidden,),
                      output_args=(logits if s == stages - 1 else hidden,))
        for s, module in zip(numbers, modules)
    ]

    def loss(output, target):
        return nn.functional.cross_entropy(output.flatten(0, 1), target.flatten())

    if o.schedule == "interleaved-1f1b":
        schedule = ScheduleInterleaved1F1B(pipeline_stages, o.microbatches, loss_fn=loss)
    else:
        schedule = (ScheduleGPipe if o.schedule == "gpipe" else Schedule1F1B)(pipeline_stages[0], o.microbatches, loss_fn=loss)
    optimizer = torch.optim.SGD(modules.parameters(), lr=0.0, fused=True)
    samples = o.microbatch * o.microbatches
    tokens = torch.randint(o.vocabulary, (samples, o.sequence))
    target = torch.randint(o.vocabulary, (samples, o.sequence))
    ends = [time.perf_counter()]
    for _ in range(o.steps):
        optimizer.zero_grad()
        if rank == 0:
            schedule.step(tokens)
        else:
            schedule.step(target=target, losses=[])
        optimizer.step()
        ends.append(time.perf_counter())
    times = [b - a for a, b in zip(ends[2:], ends[3:])]
    if rank == 0:
        print(statistics.median(times))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
