"""A chain of 129 operators on 32 numbers, also hand-written in bench/intake_bench.cpp, and its time in Python."""

import json
import statistics
import sys
import time

import torch


class Tiny(torch.nn.Module):
    """The operators called as functions."""

    def __init__(self):
        super().__init__()
        self.y = torch.nn.Parameter(torch.ones(8))

    def forward(self, x):
        h = x
        for _ in range(32):
            h = torch.tanh(torch.add(torch.relu(torch.mul(h, 1.01)), self.y))
        return h.sum()


class Block(torch.nn.Module):
    def __init__(self, y):
        super().__init__()
        self.y, self.relu, self.tanh = y, torch.nn.ReLU(), torch.nn.Tanh()

    def forward(self, x):
        return self.tanh(self.relu(x * 1.01) + self.y)


class Modules(torch.nn.Module):
    """The same operators grouped in modules, as in real models."""

    def __init__(self):
        super().__init__()
        self.y = torch.nn.Parameter(torch.ones(8))
        self.blocks = torch.nn.Sequential(*(Block(self.y) for _ in range(32)))

    def forward(self, x):
        return self.blocks(x).sum()


def microseconds(model, gradients):
    """Time per operator: the median of 350 rounds of 10 calls."""
    x, operators, times = torch.ones(4, 8), 129, []
    with torch.set_grad_enabled(gradients):
        for round in range(400):
            begin = time.perf_counter()
            for _ in range(10):
                model(x)
            if round >= 50:
                times.append((time.perf_counter() - begin) / (10 * operators))
    return float(f"{statistics.median(times) * 1e6:.3f}")


def main():
    torch.set_num_threads(1)
    json.dump({name: {"python_functions_us": microseconds(Tiny(), gradients), "python_modules_us": microseconds(Modules(), gradients)}
               for name, gradients in (("forward_no_grad", False), ("forward", True))}, sys.stdout)


if __name__ == "__main__":
    main()
