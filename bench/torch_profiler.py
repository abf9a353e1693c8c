"""resnet18 under torch's own profiler, for bench/beside_torch_profiler. Prints one JSON object: the median seconds of an
iteration (forward, backward, SGD step) unprofiled and profiled, and the sum of the profiler's parts (self time of every
operator on the CPU, of every kernel on a GPU) for an iteration."""

import argparse
import json
import statistics
import time

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile


class Block(nn.Module):
    def __init__(self, inside, outside, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outside)
        self.conv2 = nn.Conv2d(outside, outside, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outside)
        self.down = None
        if stride != 1 or inside != outside:
            self.down = nn.Sequential(nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside))

    def forward(self, x):
        y = torch.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        return torch.relu(y + (x if self.down is None else self.down(x)))


class ResNet18(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
        blocks, inside = [], 64
        for width, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
            blocks += [Block(inside, width, stride), Block(width, width, 1)]
            inside = width
        self.blocks = nn.Sequential(*blocks)
        self.fc = nn.Linear(512, 1000)

    def forward(self, x):
        return self.fc(self.blocks(self.stem(x)).mean((2, 3)))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--image", type=int, default=224)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--device", default="cpu")
    o = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(1)
    model = ResNet18().to(o.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0, fused=True)
    image = torch.rand(o.batch, 3, o.image, o.image, device=o.device)
    target = torch.randint(1000, (o.batch,), device=o.device)
    gpu = o.device != "cpu"

    def iterate():
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.grad.zero_()
        if gpu:
            torch.cuda.synchronize()
        start = time.perf_counter()
        nn.functional.cross_entropy(model(image), target).backward()
        optimizer.step()
        if gpu:
            torch.cuda.synchronize()
        return time.perf_counter() - start

    for _ in range(5):
        iterate()
    plain, watched, parts = [], [], []
    activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if gpu else [])
    for _ in range(o.rounds):
        plain += [iterate() for _ in range(o.steps)]
        with profile(activities=activities) as recorded:
            times = [iterate() for _ in range(o.steps)]
        watched += times
        events = recorded.key_averages()
        total = sum(e.self_device_time_total if gpu else e.self_cpu_time_total for e in events)
        parts.append(total * 1e-6 / o.steps)
    print(json.dumps({"plain_s": statistics.median(plain), "watched_s": statistics.median(watched),
                      "parts_s": statistics.median(parts), "torch": torch.__version__}))


if __name__ == "__main__":
    main()
