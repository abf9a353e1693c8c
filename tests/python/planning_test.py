"""import stagecraft: the same numbers and messages as the programs. Usage: planning_test.py BIN."""

import glob
import inspect
import json
import os
import pathlib
import pickle
import shlex
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree

import stagecraft

SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
CASES = os.path.join(SOURCE, "tests", "golden", "cases")
BIN = None


def document(case, name):
    """A document of a golden case."""
    types = {"stagecraft.graph": stagecraft.Graph, "stagecraft.topology": stagecraft.Topology, "stagecraft.plan": stagecraft.Plan,
             "stagecraft.prediction": stagecraft.Prediction, "stagecraft.timeline": stagecraft.Measurement,
             "stagecraft.comparison": stagecraft.Comparison}
    path = os.path.join(CASES, case, name)
    with open(path) as file:
        return types[json.load(file)["format"]].load(path)


def scenario(case):
    return document(case, "graph.json"), document(case, "topology.json"), document(case, "plan.json")


def without_origin(text):
    """A document's content without who made it."""
    content = json.loads(text)
    content.pop("provenance", None)
    return content


def split(arguments):
    """(files, keyword arguments) of a program's command line."""
    words, files, named = shlex.split(arguments), [], {}
    while words:
        word = words.pop(0)
        if word == "-o":
            words.pop(0)
        elif word == "--json":
            pass
        elif word.startswith("--"):
            key, value = word[2:].replace("-", "_"), True
            if words and not words[0].startswith("-"):
                value = words.pop(0)
            if key in ("split_at", "replicas"):
                value = [int(each) if key == "replicas" else each for each in value.split(",")]
            elif key == "set":
                key, value = "changes", named.get("changes", []) + [value]
            elif isinstance(value, str) and value.isdecimal():
                value = int(value)
            named[key] = value
        else:
            files.append(word)
    return files, named


FUNCTIONS = {"plan": stagecraft.plan, "predict": stagecraft.predict, "whatif": stagecraft.whatif, "explain": stagecraft.explain,
             "diff": stagecraft.diff, "compare": stagecraft.compare}


class SameAsThePrograms(unittest.TestCase):
    def test_every_golden_case(self):
        ran = dict.fromkeys(FUNCTIONS, 0)
        for path in sorted(glob.glob(os.path.join(CASES, "*", "case.json"))):
            case = os.path.basename(os.path.dirname(path))
            with open(path) as file:
                runs = json.load(file)["runs"]
            for run in runs:
                if run["verb"] not in FUNCTIONS or "calibration" in run["arguments"]:
                    continue
                with self.subTest(case=case, verb=run["verb"], arguments=run["arguments"]):
                    self.compare_run(case, run)
                    ran[run["verb"]] += 1
        self.assertTrue(all(ran.values()), ran)

    def compare_run(self, case, run):
        files, named = split(run["arguments"])
        function = FUNCTIONS[run["verb"]]
        if not named.keys() <= inspect.signature(function).parameters.keys():
            return  # options of the program alone
        to_stdout = ["-o", "-"] if run["verb"] == "plan" and " -o " not in run["arguments"] else []
        program = subprocess.run([os.path.join(BIN, f"stagecraft-{run['verb']}"), *shlex.split(run["arguments"]), *to_stdout],
                                 cwd=os.path.join(CASES, case), capture_output=True, text=True)
        try:
            answer = function(*(document(case, name) for name in files), **named)
        except (stagecraft.Error, TypeError) as error:
            self.assertNotEqual(program.returncode, 0, error)
            if not isinstance(error, TypeError):  # of documents in the wrong order
                said = str(error).removeprefix("graph: ").replace("global_batch ", "--global-batch ")
                self.assertIn(said, program.stderr)
            return
        self.assertEqual(program.returncode, 0, program.stderr)
        if "--json" in run["arguments"] or run["verb"] in ("plan", "predict"):
            self.assertEqual(without_origin(answer.to_json()), without_origin(program.stdout))

    def test_default_plan(self):
        graph, topology, _ = scenario("1f1b")
        program = subprocess.run([os.path.join(BIN, "stagecraft-plan"), "graph.json", "topology.json", "--microbatches", "8", "-o", "-"],
                                 cwd=os.path.join(CASES, "1f1b"), capture_output=True, text=True, check=True)
        plan = stagecraft.plan(graph, topology, microbatches=8)
        self.assertEqual(without_origin(plan.to_json()), without_origin(program.stdout))
        plain = stagecraft.plan(graph, stagecraft.Topology.of([2], [25e9]), microbatches=8)
        program = subprocess.run([os.path.join(BIN, "stagecraft-plan"), "graph.json", "--devices", "2", "--bandwidths", "25e9",
                                  "--microbatches", "8", "-o", "-"], cwd=os.path.join(CASES, "1f1b"), capture_output=True, text=True, check=True)
        self.assertEqual(without_origin(plain.to_json()), without_origin(program.stdout))

    def test_paths_instead_of_documents(self):
        graph, topology, plan = scenario("1f1b")
        paths = [os.path.join(CASES, "1f1b", name) for name in ("graph.json", "topology.json", "plan.json")]
        first = pathlib.Path(paths[0])
        self.assertEqual(stagecraft.plan(first, paths[1], microbatches=8), stagecraft.plan(graph, topology, microbatches=8))
        for function, given in ((stagecraft.predict, ()), (stagecraft.explain, ()), (stagecraft.whatif, (["microbatches=4"],))):
            self.assertEqual(function(first, *paths[1:], *given).to_json(), function(graph, topology, plan, *given).to_json())
        self.assertEqual(stagecraft.diff(*paths, paths[2]).to_json(), stagecraft.diff(graph, topology, plan, plan).to_json())
        self.assertEqual(stagecraft.changed(*paths, ["microbatches=4"]), stagecraft.changed(graph, topology, plan, ["microbatches=4"]))
        with self.assertRaisesRegex(stagecraft.InputError, "^none.json: "):
            stagecraft.plan("none.json", topology)

    def test_report(self):
        with tempfile.TemporaryDirectory() as folder:
            # The page names its files as the documents are called in Python.
            called = ["graph", "topology", "plan", "prediction"]
            documents = [*scenario("1f1b"), stagecraft.predict(*scenario("1f1b"))]
            for value, name in zip(documents, called):
                value.save(os.path.join(folder, name))
            page = subprocess.run([os.path.join(BIN, "stagecraft-report"), *called], cwd=folder, capture_output=True, text=True,
                                  check=True).stdout
            report = stagecraft.report(*documents)
            self.assertEqual(report.html, page)
            report.save(os.path.join(folder, "report.html"))
            with open(os.path.join(folder, "report.html")) as file:
                self.assertEqual(file.read(), page)
            # A list of plans, as the program writes it.
            listed = subprocess.run([os.path.join(BIN, "stagecraft-plan"), "graph", "topology", "--top", "3", "--json"], cwd=folder,
                                    capture_output=True, text=True, check=True).stdout
            with open(os.path.join(folder, "planlist"), "w") as file:
                file.write(listed)
            plans = stagecraft.PlanList.load(os.path.join(folder, "planlist"))
            document = json.loads(listed)
            self.assertEqual([each.step_s for each in plans.plans], [each["step_s"] for each in document["plans"]])
            self.assertEqual((len(plans), plans.list), (len(document["plans"]), "top"))
            page = subprocess.run([os.path.join(BIN, "stagecraft-report"), "planlist"], cwd=folder, capture_output=True, text=True,
                                  check=True).stdout
            self.assertEqual(stagecraft.report(plans).html, page)
            self.assertIn(plans.plans[0].origin, plans._repr_html_())
        self.assertIn("gantt", report.figures)
        for figure in report.figures.values():
            xml.etree.ElementTree.fromstring(figure._repr_svg_())


def microbatches_of(graph, samples):
    """The graph, with so many samples in a microbatch."""
    return stagecraft.Graph.from_json(json.dumps(json.loads(graph.to_json()) | {"microbatch_samples": samples}))


class Documents(unittest.TestCase):
    def test_numbers_are_in_base_units(self):
        graph, topology, plan = scenario("1f1b")
        # Two layers of 1 s forward and 2 s backward; 17 s, see the case.
        self.assertEqual([layer.forward.median_s for layer in graph.layers], [1, 1])
        self.assertEqual(graph.compute_s, 6)
        self.assertEqual(topology.device_count, 2)
        self.assertEqual([stage.layers for stage in plan.stages], [["a"], ["b"]])
        prediction = stagecraft.predict(graph, topology, plan)
        self.assertEqual(prediction.iteration_s, 17)
        self.assertAlmostEqual(prediction.bubble, 5 / 17)
        self.assertEqual([stage.compute_s for stage in prediction.stages], [12, 12])
        with open(os.path.join(CASES, "1f1b", "prediction.json")) as file:
            stages = json.load(file)["stages"]
        self.assertEqual([rank.total_bytes for rank in prediction.memory], [stage["memory"]["total_bytes"] for stage in stages])
        self.assertEqual(prediction.timeline.spans[0].kind, "forward")
        self.assertEqual(prediction.stages[0].intervals.keys(),
                         {"forward_s", "backward_s", "compute_s", "update_s", "reduce_s", "exposed_transfer_s", "bubble_s",
                          "memory_bytes"})

    def test_round_trips(self):
        graph, topology, plan = scenario("1f1b")
        prediction = stagecraft.predict(graph, topology, plan)
        run = document("compare", "measured.json")
        for value in (graph, topology, plan, prediction, run):
            with self.subTest(type=type(value).__name__), tempfile.TemporaryDirectory() as folder:
                path = os.path.join(folder, "document.json")
                value.save(path)
                self.assertEqual(type(value).load(path), value)
                self.assertEqual(type(value).from_json(value.to_json()), value)
                self.assertEqual(pickle.loads(pickle.dumps(value)), value)
                self.assertNotEqual(value, None)
        self.assertNotEqual(graph, topology)

    def test_parts_outlive_their_document(self):
        layers = document("1f1b", "graph.json").layers
        self.assertEqual([layer.id for layer in layers], ["a", "b"])

    def test_shown_in_notebooks(self):
        graph, topology, plan = scenario("explain")
        values = [graph, topology, plan, stagecraft.predict(graph, topology, plan), stagecraft.plans(graph, topology),
                  stagecraft.explain(graph, topology, plan), stagecraft.diff(graph, topology, plan, plan),
                  stagecraft.whatif(graph, topology, plan, {"microbatches": 4}), stagecraft.report(graph),
                  document("compare", "measured.json"),
                  stagecraft.compare(document("compare", "prediction.json"), document("compare", "measured.json"), skip=1)]
        for value in values:
            with self.subTest(type=type(value).__name__):
                self.assertTrue(repr(value).startswith(f"{type(value).__name__}("), repr(value))
                self.assertLess(len(repr(value)), 200)
                xml.etree.ElementTree.fromstring(value._repr_html_())

    def test_whatif_by_mapping(self):
        graph, topology, plan = scenario("whatif")
        answer = stagecraft.whatif(graph, topology, plan, {"link.node.bandwidth": "2x"})
        # 13 s of layers, 1 s of messages that halves; see the case.
        self.assertAlmostEqual(answer.before.iteration_s, 14)
        self.assertAlmostEqual(answer.after.iteration_s, 13.5)
        changed = stagecraft.changed(graph, topology, plan, ["link.node.bandwidth=2x"])
        self.assertEqual(stagecraft.predict(*changed).iteration_s, answer.after.iteration_s)

    def test_compared_numbers(self):
        # A comparison of steps of 4 s and 5 s; see the case.
        answer = stagecraft.compare(document("compare", "prediction.json"), document("compare", "measured.json"), skip=1)
        self.assertEqual((answer.step_s.predicted, answer.step_s.measured), (4, 5))
        self.assertAlmostEqual(answer.step_s.error, -0.2)
        self.assertEqual((answer.memory[0].peak_bytes.predicted, answer.memory[0].peak_bytes.measured), (300, 200))

    def test_changed_numbers(self):
        graph, topology, plan = scenario("whatif")
        before = stagecraft.predict(graph, topology, plan)
        after = stagecraft.predict(*stagecraft.changed(graph, topology, plan, {"compute": "2x"}))
        answer = stagecraft.compare(before, after)
        self.assertFalse(answer.measured)
        self.assertEqual((answer.step_s.first, answer.step_s.second), (before.iteration_s, after.iteration_s))
        self.assertEqual((answer.bubble.first, answer.bubble.second), (before.bubble, after.bubble))
        forwards = [each.time_s.change for each in answer.actions if each.kind == "forward"]
        self.assertEqual(forwards, [1.0] * len(plan.stages))
        self.assertIn("StepChange(predictions: step ", repr(answer))
        run = document("compare", "measured.json")
        self.assertEqual(stagecraft.compare(run, run, skip=1).step_s.change, 0)


class Errors(unittest.TestCase):
    def raises(self, kind, code, text, function, *given, **named):
        with self.assertRaises(kind) as caught:
            function(*given, **named)
        self.assertEqual(str(caught.exception), text)
        self.assertEqual(caught.exception.code, code)

    def test_wrong_documents(self):
        with self.assertRaises(stagecraft.InputError) as caught:
            stagecraft.Graph.load("none.json")
        self.assertRegex(str(caught.exception), r"^none\.json: ")
        self.assertIsInstance(caught.exception, ValueError)
        self.raises(stagecraft.InputError, "SC1105",
                    'text: /format: found "stagecraft.topology", expected "stagecraft.graph", which stagecraft profile writes',
                    stagecraft.Graph.from_json, document("1f1b", "topology.json").to_json())

    def test_wrong_arguments(self):
        graph, topology, plan = scenario("1f1b")
        self.raises(stagecraft.InputError, "SC2001", "microbatches: 0 is not an integer from 1 to 1048576", stagecraft.plan, graph, topology,
                    microbatches=0)
        self.raises(stagecraft.InputError, "SC2002",
                    'unknown option of strategy optimal "speed", known are time-limit', stagecraft.plan, graph, topology,
                    options={"speed": 1})
        self.raises(stagecraft.InputError, "SC2001", "schedule 1f1b runs one stage per device; use schedule=\"interleaved-1f1b\"",
                    stagecraft.plan, graph, topology, chunks=2)
        self.raises(stagecraft.InputError, "SC2001",
                    "graph: its microbatches have 2 samples, which do not divide global_batch 7; 6 or 8 would do", stagecraft.plan,
                    microbatches_of(graph, 2), topology, global_batch=7)
        self.assertEqual(stagecraft.plan(microbatches_of(graph, 2), topology, global_batch=6).microbatches, 3)
        self.raises(stagecraft.InputError, "SC2001", "split_at: gives the stages; remove strategy, stages and options", stagecraft.plan,
                    graph, topology, split_at=["b"], stages=2)
        with self.assertRaises(stagecraft.InputError):
            stagecraft.plan(graph, topology, memory_limit="16 apples")
        with self.assertRaises(stagecraft.InputError):
            stagecraft.plan(graph, topology, strategy="magic")
        with self.assertRaisesRegex(TypeError, "^found a Topology, expected a Graph or the path of its file$"):
            stagecraft.plan(topology, graph)
        with self.assertRaises(TypeError):
            stagecraft.report(graph, "plan.json")
        with self.assertRaises(stagecraft.InputError):
            stagecraft.report(graph, graph)

    def test_no_plan(self):
        graph, topology, _ = scenario("memory-limit")
        with open(os.path.join(CASES, "memory-limit", "case.json")) as file:
            run = next(run for run in json.load(file)["runs"] if "--memory-limit 500" in run["arguments"])
        text = run["error"].removeprefix("stagecraft-plan: graph.json: ").removesuffix(" [SC2102]\n")
        self.raises(stagecraft.NoPlanError, "SC2102", text,
                    stagecraft.plan, graph, topology, strategy="profile", schedule="gpipe", memory_limit=500)
        plan = stagecraft.plan(graph, topology, strategy="profile", schedule="gpipe", memory_limit="1 KiB")
        self.assertEqual(plan.iteration_s, 24)

    def test_distrust(self):
        content = json.loads(document("1f1b", "graph.json").to_json())
        content["slowdown"] = [1.0, 1.5]
        content["device"] = {"name": "Some CPU", "kind": "processor", "host_processors": 2}
        graph = stagecraft.Graph.from_json(json.dumps(content))
        content = json.loads(document("1f1b", "topology.json").to_json())
        content["device"] = {"name": "Some GPU", "kind": "gpu"}
        topology = stagecraft.Topology.from_json(json.dumps(content))
        with self.assertRaises(stagecraft.InputError) as caught:
            stagecraft.plan(graph, topology)
        self.assertIn("the topology's devices are GPUs (Some GPU)", str(caught.exception))
        plan = stagecraft.plan(graph, topology, accept_other_device=True)
        self.assertTrue(stagecraft.predict(graph, topology, plan, accept_other_device=True).other_device)


if __name__ == "__main__":
    BIN = sys.argv.pop(1)
    unittest.main()
