#!/usr/bin/env python3
"""Writes an input of dnn-partitioning for bench/objective_profiles/measure: a seeded graph of a known shape.

  inception BLOCKS WIDTH   blocks of WIDTH parallel chains of different lengths, joined by a concatenation
  training BLOCKS WIDTH    the same with a backward node for each forward node
  operators LAYERS         a transformer's operators: three projections, attention, feed-forward, residuals; weights as
                           separate nodes
"""

import argparse
import json
import random


class Input:
    def __init__(self, seed):
        self.random = random.Random(seed)
        self.nodes = []
        self.edges = []

    def node(self, before, ms, megabytes, **more):
        """A node that reads `before` and sends `megabytes` to each reader; its number."""
        number = len(self.nodes)
        time = ms * self.random.uniform(0.5, 1.5)
        self.nodes.append({"id": number, "supportedOnFpga": True, "cpuLatency": 10 * time, "fpgaLatency": time,
                           "isBackwardNode": False, "size": megabytes * 1e6, "megabytes": megabytes, **more})
        for other in before:
            self.edges.append((other, number))
        return number

    def backward(self):
        """A mirror of the graph, each node with the device of its mate."""
        forward = len(self.nodes)
        for v in range(forward):
            self.nodes[v]["colorClass"] = v
            mate = dict(self.nodes[v], id=forward + v, isBackwardNode=True)
            mate["fpgaLatency"] *= 2
            mate["cpuLatency"] *= 2
            self.nodes.append(mate)
        self.edges += [(forward + b, forward + a) for a, b in self.edges]
        self.edges.append((forward - 1, 2 * forward - 1))

    def text(self, accelerators, cpus):
        cost = [node.pop("megabytes") * 1e6 / (2**31 / 1000) for node in self.nodes]
        return json.dumps({"maxSizePerFPGA": 1e12, "maxFPGAs": accelerators, "maxCPUs": cpus, "nodes": self.nodes,
                           "edges": [{"sourceId": a, "destId": b, "cost": cost[a]} for a, b in self.edges]})


def inception(made, blocks, width):
    last = made.node([], 2, 1)
    for _ in range(blocks):
        ends = []
        for branch in range(width):
            at = last
            for _ in range(2 + branch % 3):
                at = made.node([at], 1, 0.5)
            ends.append(at)
        last = made.node(ends, 0.1, 1)


def operators(made, layers):
    def weighted(before, ms, megabytes):
        weight = made.node([], 0, 0)
        return made.node([*before, weight], ms, megabytes)

    stream = made.node([], 0.5, 0.2)
    for _ in range(layers):
        norm = weighted([stream], 0.05, 0.2)
        heads = []
        for _ in range(3):
            at = weighted([norm], 0.4, 0.2)
            for ms in (0.02, 0.01, 0.03):
                at = made.node([at], ms, 0.2)
            heads.append(at)
        scores = made.node(heads[:2], 0.2, 0.8)
        for ms in (0.05, 0.1, 0.05):
            scores = made.node([scores], ms, 0.8)
        mixed = made.node([scores, heads[2]], 0.2, 0.2)
        for ms in (0.02, 0.02):
            mixed = made.node([mixed], ms, 0.2)
        out = weighted([mixed], 0.4, 0.2)
        stream = made.node([stream, out], 0.03, 0.2)
        at = weighted([stream], 0.05, 0.2)
        at = weighted([at], 1.2, 0.8)
        for ms in (0.05, 0.05):
            at = made.node([at], ms, 0.8)
        at = weighted([at], 1.2, 0.2)
        stream = made.node([stream, at], 0.03, 0.2)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=["inception", "training", "operators"])
    parser.add_argument("sizes", type=int, nargs="+")
    parser.add_argument("--accelerators", type=int, default=8)
    parser.add_argument("--cpus", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    made = Input(arguments.seed)
    if arguments.kind == "operators":
        operators(made, arguments.sizes[0])
    else:
        inception(made, *arguments.sizes)
    if arguments.kind == "training":
        made.backward()
    print(made.text(arguments.accelerators, arguments.cpus))


if __name__ == "__main__":
    main()
