"""Built-in models of stagecraft under DeepSpeed's PipelineModule, for bench/channels --deepspeed.

Run once per rank, with RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT and DS_ACCELERATOR=cpu set. Rank 0 prints the median
seconds of a step after two warm-up steps: train_batch(), which ends with an SGD step of learning rate 0.
"""

import argparse
import json
import os
import statistics
import time

import deepspeed
import torch
from deepspeed.pipe import PipelineModule
from torch import nn
from torch.nn import functional


class Decoder(nn.TransformerDecoderLayer):
    """A layer that reads its input as its memory too, as the built-in transformer does."""

    def forward(self, x):
        return super().forward(x, x)


def transformer(o):
    layers = [Decoder(o["width"], o["heads"], o["feedforward"], dropout=0.1, batch_first=True) for _ in range(o["layers"])]
    tail = [nn.LayerNorm(o["width"]), nn.Linear(o["width"], o["vocabulary"])]
    return [nn.Embedding(o["vocabulary"], o["width"]), *layers, *tail]


def convnet(o):
    return [nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(),
            nn.MaxPool2d(2), nn.Flatten(), nn.Linear(64 * 7 * 7, 256), nn.ReLU(), nn.Dropout(0.25), nn.Linear(256, 10)]


def resnet18(o):
    import torchvision

    return [torchvision.models.resnet18(num_classes=o["classes"])]


def sample(o):
    """Inputs and targets of one microbatch."""
    n = o["microbatch"]
    if o["model"] == "transformer":
        shape = n, o["sequence"]
        return torch.randint(o["vocabulary"], shape), torch.randint(o["vocabulary"], shape)
    shape = (1, 28, 28) if o["model"] == "convnet" else (3, o["image"], o["image"])
    return torch.rand(n, *shape), torch.randint(10, (n,))


def loss(output, target):
    return functional.cross_entropy(output.flatten(0, -2), target.flatten())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", type=json.loads, required=True, help="JSON: model, its sizes, microbatch")
    parser.add_argument("--cut", type=int, required=True, help="layers in the first of two stages; 0: two replicas of one stage")
    parser.add_argument("--microbatches", type=int, required=True, help="of a step, over all replicas")
    parser.add_argument("--steps", type=int, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    deepspeed.init_distributed("gloo")
    torch.manual_seed(1)
    o = options.model
    layers = {"transformer": transformer, "convnet": convnet, "resnet18": resnet18}[o["model"]](o)
    stages = 2 if options.cut else 1
    if options.cut:   # one module a stage, so that the split is the plan's
        layers = [nn.Sequential(*layers[:options.cut]), nn.Sequential(*layers[options.cut:])]
    model = PipelineModule(layers=layers, num_stages=stages, loss_fn=loss, partition_method="uniform")
    engine, *_ = deepspeed.initialize(
        model=model, model_parameters=[parameter for parameter in model.parameters() if parameter.requires_grad],
        optimizer=torch.optim.SGD([parameter for parameter in model.parameters() if parameter.requires_grad], lr=0.0, fused=True),
        config={"train_micro_batch_size_per_gpu": o["microbatch"], "gradient_accumulation_steps": options.microbatches * stages // 2,
                "steps_per_print": 1 << 30})
    batch = sample(o)

    def forever():
        while True:
            yield batch

    data = forever()
    times = []
    for _ in range(options.steps):
        start = time.perf_counter()
        engine.train_batch(data_iter=data)
        times.append(time.perf_counter() - start)
    if engine.global_rank == 0:
        print(f"median {statistics.median(times[2:])}", flush=True)
    os._exit(0)   # DeepSpeed leaves threads that can abort an orderly exit


main()
