"""The runner of scripts/gpu_check with steps that stand in for the real ones, and how their results are judged."""
import io
import json
import os
import pathlib
import stat
import sys
import tempfile
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "scripts/gpu"))
sys.dont_write_bytecode = True

import checks
import steps
from steps import FAIL, MISSED, PASS, SKIP, Ended, Step, Verdict


def shell(text, judge=lambda ended, _: Verdict(PASS if ended.status == 0 else FAIL, ended.how())):
    return steps.command(["sh", "-c", text], judge)


def number_below(goal):
    """Judges the number that a command prints."""
    def judge(ended, _):
        number = float(ended.output)
        return Verdict(PASS if number <= goal else MISSED, f"{number:g}, goal {goal:g}", number, goal)
    return judge


class Runs(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.path = os.path.join(self.folder.name, "results.json")

    def run_steps(self, *given):
        out = io.StringIO()
        status = steps.run(list(given), folder=self.folder.name, path=self.path, environment=dict(os.environ),
                           facts={"device": "none"}, out=out)
        with open(self.path) as file:
            document = json.load(file)
        return status, out.getvalue().splitlines(), document

    def program(self, text):
        path = os.path.join(self.folder.name, "program")
        with open(path, "w") as file:
            file.write("#!/bin/sh\n" + text)
        os.chmod(path, os.stat(path).st_mode | stat.S_IXUSR)
        return path


class Runner(Runs):
    def test_a_missing_tool_is_not_a_failure(self):
        status, lines, document = self.run_steps(
            Step("needs", 20, lambda place: Verdict(SKIP, "the tool is not installed")),
            Step("passes", 20, shell("echo 0.05", number_below(0.15))))
        self.assertEqual(status, 0)
        self.assertRegex(lines[0], r"^SKIP   needs  +[\d.]+ s of 20 s  the tool is not installed$")
        self.assertIn("1 passed, 0 missed their goals, 0 failed, 1 skipped", lines[-1])
        self.assertEqual([step["status"] for step in document["steps"]], [SKIP, PASS])

    def test_a_line_for_each_and_none_ends_the_others(self):
        begin = time.monotonic()
        status, lines, document = self.run_steps(
            Step("fails", 20, shell("echo the reason; exit 7")),
            Step("hangs", 0.5, shell("sleep 60")),
            Step("throws", 20, lambda place: 1 // 0),
            Step("misses", 20, shell("echo 0.25", number_below(0.15))),
            Step("passes", 20, shell("echo 0.05", number_below(0.15))))
        self.assertEqual(status, 1)
        self.assertLess(time.monotonic() - begin, 15)
        self.assertRegex(lines[0], r"^FAIL   fails  +[\d.]+ s of 20 s  exit status 7$")
        self.assertRegex(lines[1], r"^FAIL   hangs  +[\d.]+ s of 0.5 s  stopped at its limit of 0.5 s$")
        self.assertRegex(lines[2], r"^FAIL   throws  +[\d.]+ s of 20 s  ZeroDivisionError")
        self.assertRegex(lines[3], r"^MISSED misses  +[\d.]+ s of 20 s  0.25, goal 0.15$")
        self.assertRegex(lines[4], r"^PASS   passes  +[\d.]+ s of 20 s  0.05, goal 0.15$")
        self.assertIn("  the reason", lines)
        self.assertEqual(lines[-6:-1], lines[:5])  # the table
        self.assertIn("1 passed, 1 missed their goals, 3 failed", lines[-1])
        found = {step["step"]: step for step in document["steps"]}
        self.assertEqual([step["status"] for step in document["steps"]], [FAIL, FAIL, FAIL, MISSED, PASS])
        self.assertEqual((document["device"], document["passed"]), ("none", 1))
        self.assertEqual((found["misses"]["number"], found["misses"]["goal"]), (0.25, 0.15))
        self.assertIn("the reason", found["fails"]["output"])

    def test_is_content_if_all_pass(self):
        status, lines, _ = self.run_steps(Step("passes", 20, shell("true")))
        self.assertEqual(status, 0)
        self.assertIn("1 passed, 0 missed their goals, 0 failed", lines[-1])

    def test_ends_what_a_step_has_started(self):
        child = os.path.join(self.folder.name, "child")
        self.run_steps(Step("hangs", 0.5, shell(f"sleep 60 & echo $! > {child}; wait")))
        with open(child) as file:
            number = int(file.read())
        for _ in range(100):  # whoever adopted it may still have to collect it
            if not os.path.exists(f"/proc/{number}") or " Z " in pathlib.Path(f"/proc/{number}/stat").read_text():
                return
            time.sleep(0.05)
        self.fail("the child of a step that was stopped still runs")

    def test_stops_a_step_that_ignores_requests(self):
        _, lines, _ = self.run_steps(Step("stubborn", 0.5, shell("trap '' TERM; while :; do sleep 0.1; done")))
        self.assertIn("stopped at its limit", lines[0])

    def test_keeps_what_was_done_when_it_is_stopped_itself(self):
        def interrupted(_):
            raise KeyboardInterrupt
        with self.assertRaises(KeyboardInterrupt):
            self.run_steps(Step("passes", 20, shell("true")), Step("interrupted", 20, interrupted))
        with open(self.path) as file:
            self.assertEqual([step["step"] for step in json.load(file)["steps"]], ["passes"])

    def test_a_step_killed_by_a_signal_fails_whatever_it_printed(self):
        _, lines, _ = self.run_steps(Step("killed", 20, shell("echo 0.05; kill -SEGV $$", number_below(0.15))))
        self.assertRegex(lines[0], r"^FAIL   killed  +[\d.]+ s of 20 s  ended by signal 11; 0.05, goal 0.15$")


class GoogleTests(Runs):
    def test_of_a_program_count(self):
        program = self.program("""echo '[ RUN      ] A.One'; echo '[       OK ] A.One (1 ms)'
echo '[ RUN      ] A.Two'; echo 'noise[  FAILED  ] A.Two (1 ms)'
echo '[==========] 2 tests from 1 test suite ran. (2 ms total)'
echo '[  FAILED  ] A.Two'; exit 1""")
        status, lines, document = self.run_steps(Step("tests", 20, steps.tests(program)))
        self.assertEqual(status, 1)
        self.assertIn("1 of 2 tests passed; A.Two: failed", lines[0])
        self.assertEqual((document["steps"][0]["number"], document["steps"][0]["goal"]), (1, 2))

    def test_may_not_skip(self):
        program = self.program("""echo '[ RUN      ] A.One'; echo '[  SKIPPED ] A.One (0 ms)'
echo '[==========] 1 test from 1 test suite ran. (2 ms total)'""")
        _, lines, _ = self.run_steps(Step("tests", 20, steps.tests(program)))
        self.assertIn("0 of 1 tests passed; A.One: skipped", lines[0])

    def test_without_any_test_fail(self):
        program = self.program("echo '[==========] 0 tests from 0 test suites ran. (0 ms total)'")
        _, lines, _ = self.run_steps(Step("tests", 20, steps.tests(program)))
        self.assertRegex(lines[0], "^FAIL .* 0 of 0 tests passed; exit status 0")

    # The second test hangs and the third crashes: the program runs again without what it has done.
    HALF = """case "$*" in
*A.Three*)
  echo '[ RUN      ] A.Four'; echo '[       OK ] A.Four (1 ms)'
  echo '[==========] 1 test ran. (1 ms total)'; exit 0 ;;
*A.Two*) echo '[ RUN      ] A.Three'; kill -ABRT $$ ;;
esac
echo '[ RUN      ] A.One'; echo '[       OK ] A.One (1 ms)'; echo '[ RUN      ] A.Two'; sleep 60"""

    def test_that_hang_or_crash_do_not_end_the_others(self):
        status, lines, document = self.run_steps(Step("tests", 20, steps.tests(self.program(self.HALF), silence_s=0.5)))
        self.assertEqual(status, 1)
        self.assertIn("2 of 4 tests passed; A.Two: stopped after 0.5 s without output; A.Three: ended by signal 6",
                      lines[0])

    def test_end_with_the_time_of_their_step(self):
        _, lines, _ = self.run_steps(Step("tests", 0.7, steps.tests(self.program(self.HALF))))
        self.assertIn("1 of 2 tests passed; A.Two: stopped at its limit of 0.7 s", lines[0])


class Parts(unittest.TestCase):
    LIMITS = (200, 200, 100, 300, 200, 50, 400)

    def split(self, count):
        given = [Step(str(i), limit, None) for i, limit in enumerate(self.LIMITS)]
        return [[step.limit_s for step in part] for part in steps.split(given, count)]

    def test_are_as_full_as_nine_minutes_allow(self):
        # 200 + 200 + 100 = 500, another 300 would make 800; 300 + 200 = 500, 550 with 50; 50 + 400 = 450.
        self.assertEqual(self.split(3), [[200, 200, 100], [300, 200], [50, 400]])

    def test_are_even_if_there_may_be_more(self):
        # With at most 400 a part: 400, 100 + 300, 250, 400. With less, 50 + 200 + 300 need one more.
        self.assertEqual(self.split(4), [[200, 200], [100, 300], [200, 50], [400]])
        self.assertEqual(len(self.split(9)), 9)

    def test_cannot_be_fewer(self):
        with self.assertRaisesRegex(ValueError, "7 steps need at least 3 parts"):
            self.split(2)


class Steps(unittest.TestCase):
    def test_begin_with_those_that_tell_most(self):
        for quick in (False, True):
            everything = checks.steps("root", "bin", "results", quick)
            parts = steps.fewest_parts(everything)
            self.assertEqual([step.name for step in parts[0]],
                             ["gpu_test", "nccl_gpu_test", "training mlp", "profile resnet50", "profile gpt-medium",
                              "profile lstm"])
            self.assertTrue(all(sum(step.limit_s for step in part) < 540 for part in parts))
            names = [step.name for step in everything]
            self.assertEqual(len(names), len(set(names)))

    def test_of_training_compare_losses(self):
        # |2.002 - 2| / 2 = 1e-3 is what later losses may differ by; the first ones may by 1e-5.
        self.assertEqual(checks.compared({"threads": [5e-6, 5e-4]}).status, PASS)
        self.assertEqual(checks.compared({"threads": [5e-6, 5e-4], "NCCL": [2e-5, 5e-4]}).status, MISSED)
        self.assertEqual(checks.compared({"threads": [5e-6, 2e-3]}).status, MISSED)
        with tempfile.TemporaryDirectory() as folder:
            for name, losses in {"cpu.json": [2, 4], "gpu.json": [2.002, 3], "none.json": []}.items():
                with open(os.path.join(folder, name), "w") as file:
                    json.dump({"losses": losses}, file)
            found = checks.differences(folder, "cpu.json", "gpu.json")
            self.assertAlmostEqual(found[0], 1e-3)
            self.assertAlmostEqual(found[1], 0.25)
            with self.assertRaisesRegex(ValueError, "2 losses on the CPU, 0 on the GPU"):
                checks.differences(folder, "cpu.json", "none.json")

    def test_of_training_in_full_tell_errors_from_missed_goals(self):
        holds = '{"model": "mlp", "first_difference": 1e-7, "holds": true}\n'
        differs = '{"model": "gpt", "first_difference": 1e-3, "holds": false}\n'
        breaks = '{"model": "gpt", "largest_difference": null, "holds": false}\n'
        self.assertEqual(checks.trained(Ended(0, "", holds + holds), None).status, PASS)
        self.assertEqual(checks.trained(Ended(1, "", holds + differs), None).status, MISSED)
        self.assertEqual(checks.trained(Ended(1, "", holds + breaks), None).status, FAIL)
        self.assertEqual(checks.trained(Ended(0, "", ""), None).status, FAIL)
        self.assertEqual(checks.trained(Ended(1, "", holds + differs), None).text,
                         "1 of 2 runs hold, first loss at most 1.0e-03 from the CPU's")

    LINKS = """#!/bin/sh
while [ "$1" != -o ]; do shift; done
%s
"""
    TOPOLOGY = {"device": {"host_to_device": [{"bytes": 4, "time_s": 1}, {"bytes": 8, "time_s": 2}]},
                "levels": [{"all_reduce": [{"ranks": 2, "points": [{"bytes": 4, "time_s": 3}]}],
                            "distrust": ["measure on a quiet machine"]}],
                "provenance": {"notes": {}}}

    def measure_links(self, folder, what):
        os.makedirs(os.path.join(folder, "scripts"), exist_ok=True)
        program = os.path.join(folder, "scripts/stagecraft")
        pathlib.Path(program).write_text(self.LINKS % what)
        os.chmod(program, 0o755)
        return checks.links(folder, folder)(steps.Workplace(folder, os.path.join(folder, "log"), 20, dict(os.environ)))

    def test_of_links_tell_an_untrusted_measurement_from_none(self):
        write = f"echo '{json.dumps(self.TOPOLOGY)}' > $2; "
        with tempfile.TemporaryDirectory() as folder:
            verdict = self.measure_links(folder, write + "exit 1")
            self.assertEqual((verdict.status, verdict.text, verdict.number),
                             (MISSED, "3 points; not trusted: measure on a quiet machine", 3))
            self.assertEqual(self.measure_links(folder, write + "exit 0").status, PASS)
            self.assertTrue(os.path.exists(os.path.join(folder, "links_cuda.json")))
            verdict = self.measure_links(folder, "exit 1")
            self.assertEqual((verdict.status, verdict.text), (FAIL, "exit status 1"))

    def test_of_profiles_name_missed_goals(self):
        with tempfile.TemporaryDirectory() as folder:
            for goal, found in {"overhead": {"overhead": 0.214, "of_each_profile": [0.214], "goal": 0.15, "met": False},
                                "identity": {"most_difference_ns": 0, "met": True}}.items():
                with open(os.path.join(folder, goal + ".json"), "w") as file:
                    json.dump({"goal": goal, "networks": {"lstm": found}}, file)
            verdict = checks.measured(Ended(1, "", ""), folder, "lstm")
            self.assertEqual((verdict.status, verdict.text),
                             (MISSED, "1 of 2 goals met; missed overhead 0.214 (goal 0.15)"))
            self.assertEqual((verdict.number, verdict.goal), (1, 2))
        with tempfile.TemporaryDirectory() as folder:  # it wrote nothing
            self.assertEqual(checks.measured(Ended(1, "", ""), folder, "lstm").status, FAIL)


if __name__ == "__main__":
    unittest.main()
