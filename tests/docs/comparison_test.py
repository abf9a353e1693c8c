#!/usr/bin/env python3
"""comparison_test.py SOURCE: the measured figures of docs/comparison.md are those of the files and tables that it names."""
import json, os, re, statistics, sys


def main(source):
    def read(path):
        with open(os.path.join(source, path), encoding="utf-8") as file:
            return file.read()

    page = read("docs/comparison.md")
    rows = [[c.strip() for c in line.strip("|\n ").split("|")] for line in page.splitlines() if line.startswith("| ")]

    def shown(*words):
        """The ratios of the row whose first cells begin with these words."""
        found = [r for r in rows if all(c.startswith(w) for c, w in zip(r, words))]
        assert len(found) == 1, f"{words}: {len(found)} rows"
        return [float(x) for x in re.findall(r"[\d.]+", found[0][2])]

    checked = 0

    def check(wanted, *words):
        nonlocal checked
        assert shown(*words) == [round(w, 2) for w in wanted], f"{words}: shows {shown(*words)}, the file has {wanted}"
        checked += len(wanted)

    deepspeed = {r["setting"]: r for r in json.loads(read("bench/results/deepspeed.json"))["rows"]}
    transformers = [deepspeed[f"transformer, width {w}"] for w in (32, 128, 512)]
    check([r["deepspeed_over_ucx"] for r in transformers], "DeepSpeed 0.19.8 on Gloo")
    check([r["deepspeed_over_gloo"] for r in transformers], "the same; ours over Gloo")
    check([r["deepspeed_over_ucx"] for name, r in deepspeed.items() if not name.startswith("transformer")], "the same; ours over UCX")

    rounds = json.loads(read("bench/results/torch_pipelining.json"))["rounds"]

    def beside_torch(channel, schedule, of="torch_s"):
        """torch's step, or another, divided by ours over the channel, for each size."""
        return [statistics.median(r[of] / r[channel] for r in rounds if (r["layers"], r["schedule"]) == (layers, schedule))
                for layers in ("small", "medium", "large")]

    check(beside_torch("ucx_s", "1f1b"), "torch.distributed.pipelining")
    check(beside_torch("gloo_s", "1f1b"), "the same; both over Gloo")
    check(beside_torch("ucx_s", "gpipe"), "the same, gpipe")
    check(beside_torch("ucx_s", "interleaved-1f1b"), "the same, interleaved-1f1b")
    check(beside_torch("bound_s", "1f1b", of="ucx_s"), "the bound")

    # Figures that a table of bench/ has.
    bench = " ".join(re.sub(r"[|*]", " ", read(path)) for path in (
        "bench/README.md", "bench/accuracy/README.md", "bench/objective_profiles/README.md"))
    for figure in ("0.23 ms", "15.5 ms", "mean 14.7 %", "Calculon: 15.3 %", "8.4 % on one", "23,041"):
        assert figure in bench, f"bench/ has no {figure}"
        assert re.search(re.escape(re.search(r"[\d.,]+", figure)[0]), page), f"the page has no {figure}"
        checked += 1
    for name, column, figure in (("clean rows, first (n = 18) | stagecraft", 0, "2.9"), ("clean rows, first (n = 18) | maximum", 0, "23.1"),
                                 ("clean rows, first (n = 18) | sum with transfers |", 0, "9.9"), ("several nodes | 65", 1, "9.3"),
                                 ("one node | 180", 1, "11.1")):
        line = next(each for each in read("bench/accuracy/README.md").splitlines() if each.startswith(f"| {name}"))
        cells = [c.strip() for c in line[len(name) + 2:].strip("| ").split("|")]
        assert cells[column] == figure and f"{figure} %" in page, f"{name}: {cells} and {figure}"
        checked += 1
    print(f"{checked} figures are those of their sources")


if __name__ == "__main__":
    main(sys.argv[1])
