"""What the check runs, the most informative steps first."""
from __future__ import annotations

import functools
import glob
import json
import os
import shutil
import statistics
import tempfile

from steps import FAIL, MISSED, PASS, SKIP, Ended, Step, Verdict, Workplace, command, tests

# Bound by the GPU in single and in half precision, and by the launches of kernels.
FIRST_NETWORKS = ("resnet50", "gpt-medium", "lstm")
NETWORKS = ("resnet50", "gpt-medium", "resnet18", "lstm", "vgg16")
# Models of bench/gpu_training, by the names of their steps.
TRAINED = {"mlp plans": "mlp", "gpt": "gpt", "net.pt2": "tests/golden/pt2/net.pt2",
           "tied.pt2": "tests/golden/pt2/tied.pt2"}
SANITIZERS = ("memcheck", "racecheck")
# Of one short profile; the others need several or long ones.
FIRST_GOALS = ("coverage", "identity", "closure", "overhead", "isolated", "memory", "planning")
# Relative differences from the CPU's losses: of the first, which no update has touched, and of the others.
FIRST_LOSS, LATER_LOSSES = 1e-5, 1e-3
PREDICTION = 0.05  # median error of a step


def steps(root: str, bin_folder: str, results: str, quick: bool) -> list[Step]:
    program = functools.partial(os.path.join, bin_folder)
    limit_s, options, profiles = (120, ["--quick"], "two short profiles") if quick else (250, [], "five profiles")
    return [
        Step("gpu_test", 110, tests(program("gpu_test")), "profiles and losses of every model on one GPU"),
        Step("nccl_gpu_test", 110, tests(program("nccl_gpu_test")), "NCCL with 2 and 4 ranks that share the GPU"),
        Step("training mlp", 90, training(bin_folder), "2 stages as threads and over NCCL; losses next to the CPU's"),
        *(Step(f"profile {network}", 70, profile(root, network, ["--profiles", "1", "--seconds", "8", *FIRST_GOALS]),
               f"profiler's goals for {network}, one short profile") for network in FIRST_NETWORKS),
        Step("predictions", 160, predictions(root), "steps and memory of six models, predicted and then run"),
        *(Step(f"training {name}", 130 if model == "mlp" else 170, gpu_training(root, ["--model", model]),
               f"plans of {name} as threads and over NCCL, next to the CPU and to one process")
          for name, model in TRAINED.items()),
        Step("links_nccl_test", 40, tests(program("links_nccl_test")), "measurement of copies and of NCCL on one GPU"),
        Step("links", 110, links(root, results), "transfers and collectives of all GPUs here, by size"),
        *(Step(f"goals {network}", limit_s, profile(root, network, options),
               f"profiler's goals for {network}, {profiles}") for network in NETWORKS),
        *(Step(f"sanitizer {tool}", 250, sanitized(root, tool), f"two steps under compute-sanitizer's {tool}")
          for tool in SANITIZERS),
    ]


def sanitized(root: str, tool: str):
    check = gpu_training(root, ["--sanitize", tool])
    return lambda place: check(place) if shutil.which("compute-sanitizer", path=place.environment.get("PATH")) else \
        Verdict(SKIP, "compute-sanitizer is not installed; it comes with the CUDA toolkit")


def differences(folder: str, expected: str, found: str) -> list[float]:
    losses = []
    for name in (expected, found):
        with open(os.path.join(folder, name)) as file:
            losses.append(json.load(file)["losses"])
    if not losses[0] or len(losses[0]) != len(losses[1]):
        raise ValueError(f"{len(losses[0])} losses on the CPU, {len(losses[1])} on the GPU")
    return [abs(a - b) / abs(b) for b, a in zip(*losses)]


def training(bin_folder: str):
    """Trains a small model on the CPU and on the GPU; MISSED if the losses differ by more than the tolerance."""
    def run(place: Workplace) -> Verdict:
        with tempfile.TemporaryDirectory() as folder:
            at = functools.partial(os.path.join, folder)
            tool = lambda name: os.path.join(bin_folder, "stagecraft-" + name)
            train = [tool("run"), at("plan.json"), "--steps", "8", "--learning-rate", "0.01"]
            ways = {"threads": ["--device", "cuda", "--check"],
                    "NCCL": ["--device", "cuda", "--channel", "nccl", "--spawn", "--share-gpu", "--check"]}
            for arguments in (
                    [tool("profile"), "mlp", "--set", "inputs=256", "--set", "width=512", "--microbatch", "8",
                     "--max-seconds", "3", "--concurrent", "1", "--accept-untrusted", "-o", at("graph.json")],
                    [tool("plan"), at("graph.json"), "--accept-untrusted", "-n", "2", "--strategy", "uniform", "--schedule", "1f1b",
                     "--microbatches", "4", "-o", at("plan.json")],
                    [*train, "-o", at("cpu.json")],
                    *([*train, *how, "-o", at(f"{way}.json")] for way, how in ways.items())):
                ended = place.execute(arguments)
                if ended.status != 0:
                    return Verdict(FAIL, f"{' '.join(map(os.path.basename, arguments))}: {ended.how()}")
            found = {way: differences(folder, "cpu.json", f"{way}.json") for way in ways}
        return compared(found)
    return run


def compared(found: dict[str, list[float]]) -> Verdict:
    first = max(d[0] for d in found.values())
    later = max(max(d) for d in found.values())
    good = first <= FIRST_LOSS and later <= LATER_LOSSES
    return Verdict(PASS if good else MISSED, f"first loss {first:.1e} from the CPU's (goal {FIRST_LOSS:g}), later ones "
                   f"{later:.1e} (goal {LATER_LOSSES:g})", first, FIRST_LOSS, found)


def gpu_training(root: str, options: list[str]):
    def run(place: Workplace) -> Verdict:
        with tempfile.TemporaryDirectory() as folder:
            return command([os.path.join(root, "bench/gpu_training"), "--results", folder, *options], trained)(place)
    return run


def trained(ended: Ended, _: Workplace) -> Verdict:
    """Of bench/gpu_training, which prints an object per run. MISSED if every run finished but not all are within tolerance."""
    runs = [json.loads(text) for text in ended.output.splitlines() if text.startswith("{")]
    hold = sum(run["holds"] for run in runs)
    complete = all(run["holds"] or run.get("first_difference") is not None for run in runs)
    largest = max((run["first_difference"] for run in runs if run.get("first_difference") is not None), default=None)
    status = PASS if runs and ended.status == 0 else MISSED if runs and complete and ended.status == 1 else FAIL
    text = f"{hold} of {len(runs)} runs hold"
    if largest is not None:
        text += f", first loss at most {largest:.1e} from the CPU's"
    return Verdict(status, text, hold, len(runs), runs)


def predictions(root: str):
    def run(place: Workplace) -> Verdict:
        with tempfile.TemporaryDirectory() as folder:
            return command([os.path.join(root, "bench/predict_on_gpu"), "--results", folder], predicted)(place)
    return run


def predicted(ended: Ended, _: Workplace) -> Verdict:
    """Of bench/predict_on_gpu, which prints an object per model. MISSED if all ran but the median error is above the goal."""
    models = [json.loads(text) for text in ended.output.splitlines() if text.startswith("{")]
    if not models:
        return Verdict(FAIL, ended.how())
    errors = sorted(abs(model["step"]["error"]) for model in models)
    median = statistics.median(errors)
    inside = sum(model["inside"] for model in models)
    status = PASS if ended.status == 0 else MISSED if ended.status == 1 and median > PREDICTION else FAIL
    return Verdict(status, f"{len(models)} models: median error of the step {median:.1%} (goal {PREDICTION:.0%}), largest "
                   f"{errors[-1]:.1%}; {inside} inside the interval", median, PREDICTION, models)


def links(root: str, results: str):
    path = os.path.join(results, "links_cuda.json")

    def judge(ended: Ended, _: Workplace) -> Verdict:
        if ended.status not in (0, 1) or not os.path.exists(path + ".new"):
            return Verdict(FAIL, ended.how())
        os.replace(path + ".new", path)
        with open(path) as file:
            topology = json.load(file)
        notes = topology["provenance"]["notes"]
        count = points(topology)
        if ended.status == 0:
            return Verdict(PASS, f"{count} points", count, None, notes)
        why = "; ".join(reason for level in topology["levels"] for reason in level.get("distrust", []))
        return Verdict(MISSED, f"{count} points; not trusted: {why}", count, None, notes)

    return command([os.path.join(root, "scripts/stagecraft"), "links", "--channel", "nccl", "--max-bytes", "1GiB",
                    "--sizes-per-octave", "2", "--seconds", "60", "--force", "-o", path + ".new"], judge)


def points(document: object) -> int:
    """Of the curves of a topology."""
    if isinstance(document, dict):
        return 1 if {"bytes", "time_s"} <= document.keys() else sum(map(points, document.values()))
    return sum(map(points, document)) if isinstance(document, list) else 0


def profile(root: str, network: str, options: list[str]):
    def run(place: Workplace) -> Verdict:
        with tempfile.TemporaryDirectory() as folder:
            arguments = ["--device", "cuda", "--networks", network, "--results", folder, *options]
            return command([os.path.join(root, "bench/profile_goals"), *arguments],
                           lambda ended, _: measured(ended, folder, network))(place)
    return run


def measured(ended: Ended, folder: str, network: str) -> Verdict:
    """Of bench/profile_goals, which writes a file per goal."""
    goals = {}
    for path in glob.glob(os.path.join(folder, "*.json")):
        with open(path) as file:
            document = json.load(file)
        goals[document["goal"]] = document["networks"][network]
    met = sum(found["met"] for found in goals.values())
    missed = [f"{goal} {figure(found)}".strip() for goal, found in goals.items() if not found["met"]]
    status = PASS if goals and ended.status == 0 else MISSED if missed and ended.status == 1 else FAIL
    text = f"{met} of {len(goals)} goals met" + (f"; missed {', '.join(missed)}" if missed else "")
    if status == FAIL:
        text += f"; {ended.how()}"
    return Verdict(status, text, met, len(goals), goals)


def figure(found: dict) -> str:
    """The number that missed its goal, and the goal."""
    goal = next((found[key] for key in ("goal", "goal_s") if key in found), None)
    numbers = [value for key, value in found.items()
               if type(value) in (int, float) and key not in ("goal", "goal_s")]
    if not numbers:
        return ""
    return f"{numbers[0]:.3g}" + (f" (goal {goal:g})" if goal is not None else "")
