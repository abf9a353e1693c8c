"""Tests of bench/accuracy on an invented cluster. Usage: accuracy_test.py FOLDER_OF_PROGRAMS"""

import importlib.machinery
import importlib.util
import json
import math
import os
import runpy
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "bench", "accuracy"))
sys.dont_write_bytecode = True

import dimensions  # noqa: E402
import fit  # noqa: E402
import sailor  # noqa: E402
import scores  # noqa: E402

_loader = importlib.machinery.SourceFileLoader("estimate_devices", os.path.join(ROOT, "bench", "accuracy", "estimate_devices"))
estimate_devices = importlib.util.module_from_spec(importlib.util.spec_from_loader("estimate_devices", _loader))
_loader.exec_module(estimate_devices)

PROGRAMS = sys.argv.pop() if len(sys.argv) > 1 else os.path.join(ROOT, "build", "planner", "bin")


class Scores(unittest.TestCase):
    def test_errors_of_four_pairs(self):
        # Signed errors 0.1, -0.2, 0.3, 0: sizes 0, 0.1, 0.2, 0.3; p90 lies 0.7 of the way from 0.2 to 0.3.
        e = scores.errors([(1.1, 1), (0.8, 1), (2.6, 2), (5, 5)])
        self.assertEqual(e["n"], 4)
        for key, value in (("median", 0.15), ("mean", 0.15), ("p90", 0.27), ("max", 0.3), ("bias", 0.05)):
            self.assertAlmostEqual(e[key], value, msg=key)

    def test_order_counts_pairs_and_regret(self):
        # Predicted 1 < 2 < 3, measured 4, 3, 5: of three pairs the first is wrong. The predicted best takes 4, the best 3.
        o = scores.order([[(1, 4), (2, 3), (3, 5)], [(1, 1)]])
        self.assertEqual((o["pairs"], o["right"]), (3, 2))
        self.assertAlmostEqual(o["tau"], 1 / 3)
        self.assertAlmostEqual(o["regret_max"], 1 / 3)

    def test_conformal_takes_the_rank_above_the_share(self):
        # 19 residuals: rank ceil(20 * 0.9) = 18.
        self.assertEqual(scores.conformal([(-1) ** i * i / 100 for i in range(1, 20)]), 0.18)

    def test_conformal_stretches_the_largest_of_few(self):
        # 4 residuals: rank ceil(5 * 0.9) = 5 of 4.
        self.assertAlmostEqual(scores.conformal([0.1, -0.2, 0.05, 0.15]), 0.2 * math.sqrt(5 / 4))


class PredictCpuRuns(unittest.TestCase):
    """With programs that write down their arguments, and what predict_cpu_runs reads of their documents."""

    PROGRAM = """#!/usr/bin/env python3
import json, os, sys
with open(os.path.join(os.path.dirname(__file__), "log"), "a") as log:
    log.write(json.dumps([os.path.basename(__file__), *sys.argv[1:]]) + "\\n")
# A step takes longer with each round, a predicted one shorter.
out = sys.argv[sys.argv.index("-o") + 1]
number = int(out[-6]) if out[-6].isdigit() else 0
steps = [{"start_s": i, "end_s": i + 1 + 0.1 * number ** 2} for i in range(4)]
runs = [{"name": file, "predicted_s": 1, "measured_s": 1} for file in sys.argv if "measured" in file]
with open(out, "w") as file:
    json.dump({"iteration_s": 1 - 0.1 * number, "microbatches": 4, "timeline": {"ranks": 1, "steps": steps}, "runs": runs}, file)
print("the scores")
"""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        for name in ("links", "profile", "plan", "predict", "run", "validate"):
            path = os.path.join(self.folder, f"stagecraft-{name}")
            with open(path, "w", encoding="utf-8") as file:
                file.write(self.PROGRAM)
            os.chmod(path, 0o755)

    def score(self, *arguments):
        """predict_cpu_runs of one plan, and the calls that it made."""
        log = os.path.join(self.folder, "log")
        if os.path.exists(log):
            os.remove(log)
        done = subprocess.run(
            [sys.executable, os.path.join(ROOT, "bench", "accuracy", "predict_cpu_runs"), os.path.join(self.folder, "out"),
             "--models", "convnet", "--plans", "1", *arguments],
            capture_output=True, text=True, env={**os.environ, "STAGECRAFT_BIN": self.folder})
        if not os.path.exists(log):
            return done, []
        with open(log, encoding="utf-8") as file:
            return done, [json.loads(line) for line in file]

    def test_hands_the_noise_to_validate(self):
        done, calls = self.score("--rounds", "1", "--noise", "0.03")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual([call[0] for call in calls], [f"stagecraft-{name}" for name in "links profile plan predict run validate".split()])
        self.assertEqual(calls[-1][calls[-1].index("--noise") + 1], "0.03")
        for call in calls[:-1]:
            self.assertNotIn("--noise", call)
        # Another noise takes the runs that are there.
        done, calls = self.score("--rounds", "1", "--noise", "0.07")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertNotIn("stagecraft-run", [call[0] for call in calls])
        self.assertEqual(calls[-1][calls[-1].index("--noise") + 1], "0.07")

    def test_measures_all_in_each_round_and_takes_medians(self):
        done, calls = self.score("--rounds", "3")
        self.assertEqual(done.returncode, 0, done.stderr)
        first, later = "links profile plan predict run".split(), "links profile predict run".split()
        self.assertEqual([call[0] for call in calls], [f"stagecraft-{name}" for name in [*first, *later, *later, "validate"]])
        # Predictions 1, 0.9 and 0.8 s, runs 1, 1.1 and 1.4 s.
        self.assertEqual([os.path.basename(file) for file in calls[-1][1:3]],
                         ["convnet.1-gpipe-4.prediction-1.json", "convnet.1-gpipe-4.measured-1.json"])
        # The middle one of the differences ln 1.1, ln 1.4 / 1.1 and ln 1.4.
        self.assertAlmostEqual(float(calls[-1][calls[-1].index("--noise") + 1]), math.log(1.4 / 1.1), places=4)

    def test_tells_what_choosing_by_prediction_costs(self):
        path = os.path.join(ROOT, "bench", "accuracy", "predict_cpu_runs")
        script = runpy.run_path(path)
        # The second is predicted as the fastest, and takes 1.2 s where the third takes 1 s.
        self.assertAlmostEqual(script["regret_of_choice"]([(1.1, 1.3), (0.9, 1.2), (1.0, 1.0)]), 0.2)
        self.assertEqual(script["regret_of_choice"]([(0.9, 1.0), (1.0, 1.1)]), 0)
        done, _ = self.score("--rounds", "1")
        self.assertIn("Regret of the plan predicted as the fastest on any number of ranks: convnet 0.0% (4 microbatches)", done.stdout)

    def test_takes_every_pair_of_one_round(self):
        done, calls = self.score("--rounds", "1")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(calls[-1][calls[-1].index("--noise") + 1], "0.0")

    def test_refuses_a_noise_that_is_not_a_share_before_it_measures(self):
        for noise in ("3%", "-0.1", "1.5", "nan"):
            done, calls = self.score(f"--noise={noise}")
            self.assertEqual(done.returncode, 2)
            self.assertIn(f'argument --noise: "{noise}" is not a number from 0 to 1', done.stderr)
            self.assertEqual(calls, [])


class MessageDelays(unittest.TestCase):
    COLUMNS = ["action", "rank", "step", "stage", "microbatch", "peer", "start_s", "end_s"]

    def delays(self, spans):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "measured.json")
            with open(path, "w", encoding="utf-8") as file:
                json.dump({"timeline": {"ranks": 3, "columns": self.COLUMNS, "spans": spans}}, file)
            return subprocess.run([sys.executable, os.path.join(ROOT, "bench", "accuracy", "message_delays"), path,
                                   "--processors", "2"], capture_output=True, text=True)

    def test_tells_waits_from_messages_that_were_there(self):
        # Rank 1 waits from 0 s for the message sent at 1 s, and has it 4 ms later. Meanwhile ranks 0 and 2 compute for 3 and 1 of
        # the 4 ms: 1 of 2 processors is idle. At 2 s it asks for the message sent at 1.5 s, and has it 1 ms later. The message
        # of the first step does not count.
        done = self.delays([
            ["send-activation", 0, 0, 0, 0, 1, 0, 0],
            ["receive-activation", 1, 0, 1, 0, 0, 0, 9],
            ["send-activation", 0, 2, 0, 0, 1, 1, 1],
            ["forward", 0, 2, 0, 1, -1, 1, 1.003],
            ["forward", 2, 2, 0, 1, -1, 0.5, 1.001],
            ["receive-activation", 1, 2, 1, 0, 0, 0, 1.004],
            ["send-activation", 0, 2, 0, 1, 1, 1.5, 1.5],
            ["receive-activation", 1, 2, 1, 1, 0, 2, 2.001],
        ])
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual([line.split() for line in done.stdout.splitlines()[1:3]],
                         [["ready", "1", "1.00", "ms", "1.00", "ms", "1.00", "ms"],
                          ["waits", "1", "4.00", "ms", "4.00", "ms", "4.00", "ms"]])
        self.assertIn("1 waits longer than 0.6 ms, 1 of them while more than 0.2 processors were idle, on average 1.00", done.stdout)

    def test_says_that_there_are_no_messages(self):
        done = self.delays([["forward", 0, 2, 0, 0, -1, 0, 1]])
        self.assertEqual(done.returncode, 1)
        self.assertEqual(done.stderr, "message_delays: no messages after the second step\n")


class ThreadMoves(unittest.TestCase):
    def test_counts_moves_and_the_uneven_time(self):
        script = runpy.run_path(os.path.join(ROOT, "bench", "accuracy", "thread_moves"))
        thread = lambda pid, cpu: f"comm=a b pid={pid} prio=120 target_cpu=00{cpu}"
        moves = lambda pid, cpu: f"comm=a b pid={pid} prio=120 orig_cpu={1 - cpu} dest_cpu={cpu}"
        switch = lambda last, state, following: (f"prev_comm=a prev_pid={last} prev_prio=120 prev_state={state} ==> "
                                                 f"next_comm=b next_pid={following} next_prio=120")
        # Thread 2 waits for CPU 0 while CPU 1 is idle, from 0 to 6 s, when it moves; thread 3 from 7.5 s to 8 s, when thread 2 wakes
        # on CPU 1; thread 3's move there at 8.5 s is not one to an idle CPU. The second half counts, but for its last tenth.
        events = [
            (0.0, 0, 1, "sched_wakeup", thread(2, 0)),
            (6.0, 1, 0, "sched_migrate_task", moves(2, 1)),
            (7.0, 1, 2, "sched_switch", switch(2, "S", 0)),
            (7.5, 0, 1, "sched_wakeup", thread(3, 0)),
            (8.0, 0, 1, "sched_wakeup_new", thread(2, 1)),
            (8.5, 1, 2, "sched_migrate_task", moves(3, 1)),
            (8.6, 1, 2, "sched_switch", switch(2, "S", 3)),
            (10.0, 0, 1, "sched_wakeup", thread(9, 0)),
        ]
        length, uneven, moves_to_idle = script["study"](events)
        self.assertAlmostEqual(length, 4.5)
        self.assertAlmostEqual(uneven, 1 + 0.5)
        self.assertEqual(moves_to_idle, 1)

    def test_reads_lines_of_the_kernels_trace(self):
        line = runpy.run_path(os.path.join(ROOT, "bench", "accuracy", "thread_moves"))["LINE"]
        found = line.match("     a b-c-28616   [001] dNh2. 16312.495161: sched_wakeup: comm=a b pid=7 prio=120 target_cpu=001")
        self.assertEqual(found.groups(), ("28616", "001", "16312.495161", "sched_wakeup", "comm=a b pid=7 prio=120 target_cpu=001"))
        self.assertEqual(line.match("          <idle>-0       [000] d..2. 1.5: sched_switch: x").groups(),
                         ("0", "000", "1.5", "sched_switch", "x"))
        self.assertIsNone(line.match("# tracer: nop"))


class EstimateDevices(unittest.TestCase):
    def test_counts_a_transformer_layer(self):
        # 1 sample, sequence 2, width 3, 1 head: activations of 6 values, matrices of 9, scores of 4.
        # 24 * 2 * 9 + 4 * 2 * 2 * 3 operations. Forward 50 activations, 12 matrices, 6 scores; backward 84, 60 and 7.
        forward, backward = estimate_devices.transformer_work(1, 2, 3, 1)
        self.assertEqual(forward, {"flops": 480, "moved_bytes": 4 * (50 * 6 + 12 * 9 + 6 * 4), "operators": 20})
        self.assertEqual(backward, {"flops": 960, "moved_bytes": 4 * (84 * 6 + 60 * 9 + 7 * 4), "operators": 35})

    def test_counts_the_head(self):
        # Activations of 6 values, a weight of 3 * 5, logits of 2 * 5: 2 * 2 * 15 operations.
        # Forward 1 activation, 1 weight, 5 logits; backward 2, 5 and 9.
        forward, backward = estimate_devices.head_work(1, 2, 3, 5)
        self.assertEqual(forward, {"flops": 60, "moved_bytes": 4 * (6 + 15 + 50), "operators": 3})
        self.assertEqual(backward, {"flops": 120, "moved_bytes": 4 * (12 + 75 + 90), "operators": 7})

    def profile(self, gpu, factor):
        layer = {"parameter_bytes": 4 * 64 * 1000, "activation_bytes": 1, "backward_s": 0.02 * factor,
                 "forward_s": 0.01 * factor}
        return {"gpu": gpu, "model": "OPT-350", "microbatch_samples": 1, "sequence_length_tokens": 32, "hidden_size": 64,
                "attention_heads": 2, "suspect": None,
                "layers": [dict(layer, index=i, name=name) for i, name in enumerate("embedding first second head".split())]}

    def results(self, factor):
        with tempfile.TemporaryDirectory() as folder:
            runs = os.path.join(folder, "measured_runs", "sailor")
            os.makedirs(runs)
            for gpu in ("rtx3090", "titanrtx"):
                with open(os.path.join(runs, f"layers_{gpu}_opt350m_tp1_mbs1.json"), "w", encoding="utf-8") as file:
                    json.dump(self.profile(gpu, factor if gpu == "rtx3090" else 1), file)
            out = os.path.join(folder, "out.json")
            program = os.path.join(ROOT, "bench", "accuracy", "estimate_devices")
            done = subprocess.run([sys.executable, program, folder, "-o", out], capture_output=True, text=True,
                                  env={**os.environ, "STAGECRAFT_BIN": PROGRAMS})
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn("| rtx3090 to titanrtx | 6 |", done.stdout)
            with open(out, encoding="utf-8") as file:
                return json.load(file)["estimates"]

    def test_estimates_are_in_proportion_to_the_measured_times(self):
        def key(row):
            return row["source"], row["target"], row["layer"], row["direction"]

        once = {key(r): r["estimated_s"] for r in self.results(1)}
        twice = {key(r): r["estimated_s"] for r in self.results(2)}
        self.assertEqual(len(once), 4 * 6)  # each of the two from the other, and from no profile
        for k in once:
            self.assertAlmostEqual(twice[k] / once[k], 2 if k[0] == "rtx3090" else 1, msg=str(k))


class CollectiveCurves(unittest.TestCase):
    """Times in us at 1, 2, 3, ... KiB of an all-reduce of four ranks."""

    def document(self, times, first=1):
        return {"tables": [{"collective": "all_reduce", "ranks": 4, "nodes": 1, "points": [
            {"message_bytes": 1024 * (first + i), "time_s": time * 1e-6} for i, time in enumerate(times)]}]}

    def results(self, known, held_out=None):
        with tempfile.TemporaryDirectory() as folder:
            for name, document in (("collectives", known), ("apart", held_out)):
                os.makedirs(os.path.join(folder, name))
                if document:
                    with open(os.path.join(folder, name, "lab_gpu.json"), "w", encoding="utf-8") as file:
                        json.dump(document, file)
            out = os.path.join(folder, "out.json")
            done = subprocess.run(
                [sys.executable, os.path.join(ROOT, "bench", "accuracy", "collective_curves"), folder,
                 *([os.path.join(folder, "apart")] if held_out else []), "-o", out],
                capture_output=True, text=True, env=dict(os.environ, STAGECRAFT_BIN=PROGRAMS))
            self.assertEqual(done.returncode, 0, done.stderr)
            with open(out, encoding="utf-8") as file:
                return json.load(file)["lab, all-reduce"]

    def test_holds_out_every_second_size(self):
        # 10, 30 and 50 us are kept; the line through them has 20 and 40 us, where 25 and 40 us were measured.
        row = self.results(self.document([10, 25, 30, 40, 50]))
        self.assertEqual(row["n"], 2)
        self.assertAlmostEqual(row["fit"]["max"], 5 / 25)
        self.assertAlmostEqual(row["fit"]["median"], 5 / 25 / 2)

    def test_scores_the_fit_beside_what_was_measured(self):
        # 10, 90, 30 and 100 us are kept; the fit has 30 us instead of 90 us. At 2 KiB it has 20 us, the measured curve 50.
        row = self.results(self.document([10, 20, 90, 30, 30, 65, 100]))
        self.assertAlmostEqual(row["fit"]["max"], 0)
        self.assertAlmostEqual(row["measured"]["max"], 1.5)

    def test_takes_held_out_points_from_another_folder(self):
        # Between 10 us at 1 KiB and 30 us at 3 KiB; 9 KiB is outside the curve and does not count.
        apart = self.document([25], first=2)
        apart["tables"][0]["points"].append({"message_bytes": 9 * 1024, "time_s": 1})
        known = self.document([10, 20, 30])
        known["tables"][0]["points"].pop(1)
        row = self.results(known, apart)
        self.assertEqual(row["n"], 1)
        self.assertAlmostEqual(row["fit"]["max"], 5 / 25)
        # The declared 10 % alone: 1.645 standard deviations hold no error of log(25 / 20) = 0.22.
        self.assertEqual(row["inside"], 0)
        self.assertAlmostEqual(row["half_width"], math.expm1(0.16448536))


class MicrobatchSizes(unittest.TestCase):
    def results(self, forward):
        """Of an embedding, three layers and a head with these forwards by samples; backwards take twice as long."""
        with tempfile.TemporaryDirectory() as folder:
            runs = os.path.join(folder, "measured_runs", "sailor")
            os.makedirs(runs)
            for samples, time in forward.items():
                layers = [{"name": name, "forward_s": time, "backward_s": 2 * time, "parameter_bytes": 4,
                           "activation_bytes": samples} for name in ("embedding", "first", "second", "third", "head")]
                document = {"gpu": "card", "model": "m", "tensor_parallel": 1, "microbatch_samples": samples,
                            "suspect": None, "layers": layers}
                with open(os.path.join(runs, f"layers_card_m_tp1_mbs{samples}.json"), "w", encoding="utf-8") as file:
                    json.dump(document, file)
            out = os.path.join(folder, "out.json")
            done = subprocess.run(
                [sys.executable, os.path.join(ROOT, "bench", "accuracy", "microbatch_sizes"), folder, "-o", out],
                capture_output=True, text=True, env=dict(os.environ, STAGECRAFT_BIN=PROGRAMS))
            self.assertEqual(done.returncode, 0, done.stderr)
            with open(out, encoding="utf-8") as file:
                return json.load(file)

    def test_leaves_out_one_size_at_a_time(self):
        # 3 s with 2 samples, the line through 1 and 4 samples has 2 s: a third low. From 2 and 4 samples, 1 sample takes 3 -
        # 1 / 2 s, 2.5 times too long; from 1 and 2 samples, 4 take 1 + 3 * 2 s, 1.75 times too long.
        found = self.results({1: 1.0, 2: 3.0, 4: 4.0})
        groups = found["groups"]
        self.assertAlmostEqual(groups["interpolated, whole model"]["bias"], -1 / 3)
        self.assertEqual(groups["interpolated, whole model"]["n"], 1)
        # The embedding's forward, and both of the first, second and last layer.
        self.assertEqual(groups["interpolated, single layers"]["n"], 7)
        self.assertAlmostEqual(groups["extrapolated to the smallest size, whole model"]["bias"], 1.5)
        self.assertAlmostEqual(groups["extrapolated to the largest size, whole model"]["bias"], 0.75)
        # 5 forwards and 4 backwards, without the embedding's: 13 times 2 s.
        whole = [r for r in found["estimates"] if r["time"] == "whole model" and not r["extrapolated"]]
        self.assertAlmostEqual(whole[0]["estimated_s"], 26)


class Fit(unittest.TestCase):
    def test_solves_two_equations(self):
        # x + 2y = 5, 3x + y = 5: x = 1, y = 2.
        self.assertEqual([round(v, 12) for v in fit.solve([[1, 2], [3, 1]], [5, 5])], [1, 2])

    def test_one_mechanism_of_one_run_is_shrunk(self):
        # t = f, measured e^0.04: least (0.04 - x)^2 / 0.05^2 + x^2 / 0.05^2 has x = 0.02.
        self.assertAlmostEqual(math.log(fit.factors([(0.0, [1.0], math.exp(0.04))], [0.05])[0]), 0.02)

    def test_an_outlier_counts_linearly(self):
        # Beyond 1.345 noise the pull is 1.345 / 0.05 whatever the size: x / 0.05^2 = 1.345 / 0.05, x = 0.06725.
        for size in (0.5, 2.0):
            factor = fit.factors([(0.0, [1.0], math.exp(size))], [0.05])[0]
            self.assertAlmostEqual(math.log(factor), 1.345 * 0.05, places=6)

    def test_an_unseen_mechanism_keeps_one(self):
        self.assertEqual(fit.factors([(0.0, [1.0, 0.0], 1.2)], [0.1, 0.1])[1], 1.0)


def layers(forward_s):
    return [
        {"index": i, "name": f"l{i}", "forward_s": forward_s, "backward_s": 2 * forward_s, "parameter_bytes": 1000,
         "activation_bytes": 4000, "saved_for_backward_bytes": 8000}
        for i in range(4)
    ]


def profile(forward_s):
    return {"layers": layers(forward_s), "optimizer_step": {"measured_s": 1e-6, "covers_parameter_bytes": 1000}}


def run(name, nodes, iteration_s, stages=1, microbatches=4):
    size = 4 // stages
    return {
        "run_id": name, "cluster": "c", "network_file": "network_c.json", "model": "m", "group": f"n{nodes}", "nodes": nodes,
        "gpus_used_per_node": 1, "tensor_parallel": 1, "data_parallel": 1, "pipeline_parallel": stages, "schedule": "1f1b",
        "microbatch_samples": 1, "microbatches": microbatches, "iteration_s": iteration_s, "peak_memory_bytes": 5 << 30,
        "stages": [{"first_layer": s * size, "last_layer": (s + 1) * size - 1,
                    "replica_groups": [{"gpu": "g", "replicas": 1, "layers_file": "layers_g_m_mbs1.json"}]}
                   for s in range(stages)],
    }


class Runs(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        os.makedirs(os.path.join(self.folder, "measured_runs", "sailor"))
        self.write("layers_g_m_mbs1.json", profile(0.01))
        self.write("layers_g_m_mbs2.json", profile(0.02))
        link = {"sender": "g", "receiver": "g", "suspect": None, "concurrent_pairs": 1, "bandwidth_bytes_per_s": 4e6}
        self.write("network_c.json", {"levels": [{"name": "node", "links": [link]}, {"name": "cluster", "links": [link]}]})

    def write(self, name, value):
        with open(os.path.join(self.folder, "measured_runs", "sailor", name), "w", encoding="utf-8") as file:
            json.dump(value, file)

    def predict(self, runs, known=()):
        self.write("runs_dev.json", {"runs": list(known)})
        self.write("runs.json", {"runs": runs})
        out = os.path.join(self.folder, "out.json")
        done = subprocess.run(
            [sys.executable, os.path.join(ROOT, "bench", "accuracy", "predict_runs"), self.folder,
             os.path.join(self.folder, "measured_runs", "sailor", "runs.json"), "-o", out],
            capture_output=True, text=True, env=dict(os.environ, STAGECRAFT_BIN=PROGRAMS))
        if done.returncode:
            return done.stderr
        with open(out, encoding="utf-8") as file:
            return json.load(file)

    def test_one_stage_is_its_microbatches_and_the_update(self):
        # 4 microbatches of 4 layers of 10 + 20 ms, 4 updates of 1 us; without known runs 15 %.
        row = self.predict([run("a", 1, None)])["a"]
        self.assertAlmostEqual(row["iteration_s"], 0.480004, places=9)
        self.assertAlmostEqual(row["hi"] / row["iteration_s"], 1.15)
        self.assertAlmostEqual(row["iteration_s"] / row["lo"], 1.15)

    def test_the_later_stage_waits_for_both_transfers(self):
        # Stages of 20 + 40 ms, transfers of 1 ms and 0.5 ms of host time each way: the later stage takes 63 ms for each of
        # 4 microbatches after one forward of the earlier, then one backward, whose update of 2 layers is last.
        row = self.predict([run("a", 2, None, stages=2)])["a"]
        self.assertAlmostEqual(row["iteration_s"], 0.020 + 4 * 0.063 + 0.040 + 2e-6, places=9)

    def test_a_run_is_never_predicted_from_itself(self):
        known = [run("a", 1, 0.5), run("b", 2, 0.55)]
        first = self.predict([known[0]], known)["a"]
        moved = self.predict([run("a", 1, 5.0)], [run("a", 1, 5.0), known[1]])["a"]
        self.assertEqual(first, moved)
        # But run b moves it: 0.55 measured, 0.480004 predicted.
        self.assertGreater(first["iteration_s"], 0.4805)

    def test_the_smaller_time_of_more_samples_counts(self):
        self.write("layers_g_m_mbs2.json", profile(0.004))
        self.assertAlmostEqual(self.predict([run("a", 1, None)])["a"]["iteration_s"], 0.192004, places=9)

    def test_names_a_missing_key(self):
        broken = run("a", 1, None)
        del broken["microbatches"]
        self.assertIn('/runs/0: key "microbatches" is missing', self.predict([broken]))


HEADER = ("row_id,gpus,global_batch_samples,microbatch_samples,hidden_size,attention_heads,layers,sequence_length_tokens,"
          "tensor_parallel,data_parallel,pipeline_parallel,microbatches,iteration_s,note\n")


class Dimensions(unittest.TestCase):
    def rows(self, text):
        with tempfile.NamedTemporaryFile("w", suffix=".csv", encoding="utf-8") as file:
            file.write(HEADER + text)
            file.flush()
            return dimensions.read_runs(file.name)

    def test_counts_flops_and_bytes_by_hand(self):
        # b = 1, q = 6, h = 1, a = 1, 2 layers, t = 1, d = 2, p = 2, m = 3: 4 slots of one layer on each stage.
        parts = dict(zip(dimensions.MECHANISMS, dimensions.parts(self.rows("x,4,6,1,1,1,2,6,1,2,2,3,1.5,\n")[0])))
        # 96 * 6 * (1 + 6/6) = 1152 flops a layer, 6 * 6 * 51200 a head.
        self.assertAlmostEqual(parts["compute"], (4 * 1152 + 3 * 1843200) / 312e12, places=20)
        # 6 * 34 values and 5 * 36 scores, three times.
        self.assertAlmostEqual(parts["memory"], 4 * 3 * (204 + 180) / 2e12, places=20)
        self.assertAlmostEqual(parts["host"], 4 * dimensions.HOST_S)
        self.assertEqual(parts["latency"], 0)
        # Two all-reduced bytes a weight: 12 + 51200 weights, a ring of two moves them once, inside the node.
        self.assertAlmostEqual(parts["gradients"], 2 * 51212 / 235e9, places=15)

    def test_names_the_line_of_a_bad_number(self):
        with self.assertRaisesRegex(sailor.DataError, "csv:2: layers: found '', expected an integer"):
            self.rows("x,4,6,1,1,1,,6,1,2,2,3,1.5,\n")

    def test_a_missing_measurement_is_none(self):
        self.assertIsNone(self.rows("x,4,6,1,1,1,2,6,1,2,2,3,,\n")[0]["iteration_s"])


class Interpolation(unittest.TestCase):
    def test_is_a_line_in_log_log(self):
        # 1 -> 1, 100 -> 10: at 10 the geometric mean, sqrt(10).
        self.assertAlmostEqual(sailor.log_interpolate([(1, 1.0), (100, 10.0)], 10), math.sqrt(10))
        self.assertEqual(sailor.log_interpolate([(1, 1.0), (100, 10.0)], 0.5), 1.0)
        self.assertEqual(sailor.log_interpolate([(1, 1.0), (100, 10.0)], 200), 20.0)


if __name__ == "__main__":
    unittest.main()
