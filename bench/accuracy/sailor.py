"""Documents for `stagecraft predict` from the runs, layer profiles, link and collective measurements of the data folder's
measured_runs/sailor and collectives. One device of the topology represents one tensor-parallel group of GPUs.

How a run of that system (DeepSpeed's pipeline engine) differs from an ideal 1F1B:
- Each stage receives a gradient before it sends the next activation. The later stage of a boundary therefore waits for both
  transfers of a microbatch, one after the other: its "Exchange" layer.
- Ranks send 1/tp of a tensor; the receiver gathers the parts (all-gather over its tensor-parallel group): "Exchange" in the
  forward, "Gather" in the backward.
"""

import json
import math
import os
import re

MECHANISMS = ("compute", "launch", "transfer", "reduce", "host")
# Standard deviation of log(factor) before any run was seen. Layer times are measured, those bound by launches less well;
# links are fits of the source; host time is a guess.
SPREADS = (0.05, 0.1, 0.3, 0.3, 1.0)
HOST_S = 0.5e-3  # host time of one message between stages, guess
STATES = 2  # values that AdamW keeps for each parameter


class DataError(Exception):
    """The data folder or the runs file is wrong; the message says where."""


def read_json(path):
    try:
        with open(path, encoding="utf-8") as file:
            return json.load(file)
    except OSError as e:
        raise DataError(f"{path}: {e.strerror}") from None
    except ValueError as e:
        raise DataError(f"{path}: {e}") from None


class Data:
    """The measurements of a data folder, each file read once."""

    def __init__(self, folder):
        self.runs_folder = os.path.join(folder, "measured_runs", "sailor")
        self.collectives_folder = os.path.join(folder, "collectives")
        self.cache = {}

    def read(self, path):
        if path not in self.cache:
            self.cache[path] = read_json(path)
        return self.cache[path]

    def runs(self, path=None):
        path = path or os.path.join(self.runs_folder, "runs_dev.json")
        document = read_json(path)
        if not isinstance(document, dict) or "runs" not in document:
            raise DataError(f'{path}: /: key "runs" is missing')
        return document["runs"]

    def profile(self, name):
        return self.read(os.path.join(self.runs_folder, name))

    def larger_profiles(self, name):
        """The profile and those of larger microbatches, as taken, without the ones that the source adjusted by hand."""
        match = re.fullmatch(r"(layers_.*_mbs)(\d+)(_adjusted)?\.json", name)
        if not match:
            return [self.profile(name)]
        out = []
        for other in sorted(os.listdir(self.runs_folder)):
            same = re.fullmatch(re.escape(match[1]) + r"(\d+)\.json", other)
            if same and int(same[1]) > int(match[2]):
                out.append(self.profile(other))
        return [self.profile(name)] + out

    def layers(self, name):
        """The layers of a profile, each with "launch_bound". A layer never takes longer than with more samples: where its
        forward was measured so, launches bound it, and the smaller time counts."""
        profiles = self.larger_profiles(name)
        out = []
        for i, layer in enumerate(profiles[0]["layers"]):
            layer = dict(layer)
            layer["launch_bound"] = any(p["layers"][i]["forward_s"] < layer["forward_s"] for p in profiles)
            for key in ("forward_s", "backward_s"):
                layer[key] = min(p["layers"][i][key] for p in profiles)
            out.append(layer)
        return out

    def bandwidth(self, run, sender, receiver, same_node):
        """Bytes per second of one tensor-parallel group to another: each of its GPUs sends to one of the other group's, and
        all groups of a node do so at once."""
        level = self.read(os.path.join(self.runs_folder, run["network_file"]))["levels"][0 if same_node else -1]
        links = [l for l in level["links"] if (l["sender"], l["receiver"]) == (sender, receiver) and not l["suspect"]]
        if not links:
            raise DataError(f"{run['network_file']}: level {level['name']}: no link from {sender} to {receiver}")
        group = run["tensor_parallel"]
        pairs = group if same_node else max(group, run["gpus_used_per_node"])
        nearest = min(links, key=lambda l: abs(math.log(l["concurrent_pairs"] / pairs)))
        together = nearest["bandwidth_bytes_per_s"]
        if nearest["concurrent_pairs"] < pairs:  # each GPU's own port adds up, a shared one does not
            together = min(together * pairs / nearest["concurrent_pairs"], max(l["bandwidth_bytes_per_s"] for l in links))
        return together * group / pairs

    def gather_time(self, gpu, ranks, part_bytes):
        """Seconds of an all-gather in one node; each rank gives part_bytes. 0 if it was not measured."""
        if ranks < 2 or part_bytes <= 0:
            return 0.0
        path = os.path.join(self.collectives_folder, f"sailor_{gpu}_collectives.json")
        if not os.path.exists(path):
            return 0.0
        for table in self.read(path)["tables"]:
            if (table["collective"], table["element_type"], table["ranks"]) == ("all_gather", "float32", ranks):
                return log_interpolate([(p["message_bytes"], p["time_s"]) for p in table["points"]], part_bytes)
        return 0.0


def log_interpolate(points, x):
    """Piecewise linear in log-log; constant below the first point, in proportion above the last."""
    points = sorted(points)
    if x <= points[0][0]:
        return points[0][1]
    if x >= points[-1][0]:
        return points[-1][1] * x / points[-1][0]
    for (x0, y0), (x1, y1) in zip(points, points[1:]):
        if x <= x1:
            return y0 * (y1 / y0) ** (math.log(x / x0) / math.log(x1 / x0))


def replicas(stage):
    """GPU and profile of each replica of a stage, in order."""
    return [(g["gpu"], g["layers_file"]) for g in stage["replica_groups"] for _ in range(g["replicas"])]


def chains(run):
    """The different pipelines of a run: for each stage the GPU and the profile of replica j."""
    columns = zip(*[replicas(stage) for stage in run["stages"]])
    return list(dict.fromkeys(columns))


def timing(seconds):
    return {"median_s": seconds, "count": 0}


def layer_document(name, kind, forward_s, backward_s, output_bytes, update_s=0.0, parameter_bytes=0, saved_bytes=0):
    return {
        "id": name,
        "name": name,
        "kind": kind,
        "forward": timing(forward_s),
        "backward": timing(backward_s),
        "update": timing(update_s),
        "outputs": [{"activation_bytes": output_bytes}],
        "parameter_bytes": parameter_bytes,
        "saved_bytes": saved_bytes,
        "workspace_bytes": 0,
    }


def node_of(run, stage, replica):
    """The node of a tensor-parallel group: ranks count tensor, then data, then pipeline."""
    groups_in_node = max(1, run["gpus_used_per_node"] // run["tensor_parallel"])
    return (stage * run["data_parallel"] + replica) // groups_in_node


def reduce_points(data, run, bytes_list):
    """The all-reduce of a stage's gradients over its replicas, by bytes of one GPU: a ring through the slowest link that
    joins neighbours."""
    d, tp = run["data_parallel"], run["tensor_parallel"]
    slowest = math.inf
    for s, stage in enumerate(run["stages"]):
        gpus = [gpu for gpu, _ in replicas(stage)]
        for j, gpu in enumerate(gpus):
            after = (j + 1) % d
            same = node_of(run, s, j) == node_of(run, s, after)
            slowest = min(slowest, data.bandwidth(run, gpu, gpus[after], same))
    return [{"bytes": b, "time_s": 2 * (d - 1) / d * b * tp / slowest} for b in bytes_list]


def documents(data, run, chain, factors):
    """graph, topology and plan of one chain of a run, all replicas alike, with its mechanisms scaled by `factors`."""
    compute, launch, transfer, reduce, host = factors
    tp, d, p = run["tensor_parallel"], run["data_parallel"], run["pipeline_parallel"]
    layers, stages, boundaries = [], [], []
    for s, stage in enumerate(run["stages"]):
        gpu, name = chain[s]
        optimizer = data.profile(name)["optimizer_step"]
        update = optimizer["measured_s"] / optimizer["covers_parameter_bytes"]
        stage_layers = []
        if s > 0:
            before, before_name = chain[s - 1]
            crossing = data.profile(before_name)["layers"][stage["first_layer"] - 1]["activation_bytes"]
            same_node = node_of(run, s - 1, 0) == node_of(run, s, 0)
            there = crossing / data.bandwidth(run, before, gpu, same_node)
            back = crossing / data.bandwidth(run, gpu, before, same_node)
            gathered = data.gather_time(gpu, tp, crossing / tp)
            stage_layers.append(layer_document(f"exchange_{s}", "Exchange",
                                               (there + gathered) * transfer + HOST_S * host,
                                               back * transfer + HOST_S * host, crossing))
            boundaries.append({"source": s - 1, "destination": s,
                               "tensors": [{"layer": layers[-1]["id"], "activation_bytes": crossing, "gradient": True}]})
        for layer in data.layers(name)[stage["first_layer"] : stage["last_layer"] + 1]:
            scale = launch if layer["launch_bound"] else compute
            stage_layers.append(layer_document(f"layer_{layer['index']}", "Layer", layer["forward_s"] * scale,
                                               layer["backward_s"] * scale, layer["activation_bytes"],
                                               layer["parameter_bytes"] * update, layer["parameter_bytes"],
                                               layer["saved_for_backward_bytes"]))
        if s + 1 < p:
            crossing = stage_layers[-1]["outputs"][0]["activation_bytes"]
            gathered = data.gather_time(gpu, tp, crossing / tp)
            stage_layers.append(layer_document(f"gather_{s}", "Gather", 0.0, gathered * transfer, crossing))
        layers += stage_layers
        stages.append({"layers": [l["id"] for l in stage_layers], "devices": list(range(s * d, (s + 1) * d))})
    microbatches = run["microbatches"] * d
    graph = {
        "format": "stagecraft.graph", "version": 1, "name": run["model"],
        "microbatch_samples": run["microbatch_samples"], "optimizer_state_values": STATES, "layers": layers,
        "edges": [{"source": a["id"], "destination": b["id"]} for a, b in zip(layers, layers[1:])],
    }
    level = {"name": "cluster", "count": d * p, "bandwidth_bytes_per_s": 1e12, "latency_s": 0.0}
    if d > 1:
        top = sum(l["parameter_bytes"] for l in layers)
        level["all_reduce"] = [{"ranks": d, "points": [dict(q, time_s=q["time_s"] * reduce)
                                                       for q in reduce_points(data, run, [max(1, top // 64), max(2, top)])]}]
    topology = {"format": "stagecraft.topology", "version": 1, "name": run["cluster"],
                "device": {"name": f"{tp} GPUs"}, "levels": [level]}
    plan = {"format": "stagecraft.plan", "version": 1, "model": run["model"],
            "microbatch_samples": run["microbatch_samples"], "microbatches": microbatches, "schedule": run["schedule"],
            "stages": stages, "boundaries": boundaries}
    return graph, topology, plan
