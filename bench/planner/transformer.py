#!/usr/bin/env python3
"""Writes a transformer as a PipeDream profile, on standard output: times and bytes from its dimensions alone.

bench/planner/transformer.py --layers 96 --width 12288 > transformer.txt
stagecraft import pipedream transformer.txt -o transformer.json

A microbatch is one sequence in 2-byte numbers. Each layer is an attention and a two-layer perceptron; a forward takes
two operations per weight and token at --flops, a backward twice as long.
"""
import argparse


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=96)
    parser.add_argument("--width", type=int, default=12288)
    parser.add_argument("--positions", type=int, default=2048)
    parser.add_argument("--vocabulary", type=int, default=51200)
    parser.add_argument("--flops", type=float, default=150e12, help="operations per second that a device reaches")
    args = parser.parse_args()
    nodes = [("Embedding", 0, args.vocabulary * args.width, args.width)]
    for _ in range(args.layers):
        nodes.append(("Attention", 4 * args.width**2 + 2 * args.positions * args.width, 4 * args.width**2, args.width))
        nodes.append(("Perceptron", 8 * args.width**2, 8 * args.width**2, args.width))
    nodes.append(("Head", args.vocabulary * args.width, args.vocabulary * args.width, args.vocabulary))
    for number, (kind, products, weights, width) in enumerate(nodes, 1):
        time = 2e3 * products * args.positions / args.flops
        print(f"node{number} -- {kind}{number} -- forward_compute_time={time:.3f}, backward_compute_time={2 * time:.3f}, "
              f"activation_size={2 * args.positions * width}.0, parameter_size={2 * weights}.000")
    for number in range(1, len(nodes)):
        print(f"\tnode{number} -- node{number + 1}")


if __name__ == "__main__":
    main()
