"""Steps with time limits: each prints one line, a failed one does not end the others, and a table and a JSON file keep
the results."""
from __future__ import annotations

import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
import time
from typing import Callable

PASS, FAIL, MISSED, SKIP = "PASS", "FAIL", "MISSED", "SKIP"
PART_SECONDS = 530  # the limits of a part's steps add up to at most this: under nine minutes


@dataclasses.dataclass
class Verdict:
    """The result of a step. MISSED: it ran correctly, but its number missed its goal. SKIP: a tool is missing."""
    status: str
    text: str
    number: float | None = None
    goal: float | None = None
    found: object = None  # details, for the JSON file


@dataclasses.dataclass
class Ended:
    """How a command ended: its exit status (negative: the signal), or why it was stopped, and what it printed."""
    status: int | None
    stopped: str
    output: str

    def how(self) -> str:
        if self.stopped:
            return self.stopped
        return f"ended by signal {-self.status}" if self.status < 0 else f"exit status {self.status}"


class Workplace:
    """Where a step runs: its folder, its environment, and the time it has left."""

    def __init__(self, folder: str, log: str, limit_s: float, environment: dict[str, str]):
        self.folder, self.log, self.limit_s, self.environment = folder, log, limit_s, environment
        self.end = time.monotonic() + limit_s

    def left(self) -> float:
        return self.end - time.monotonic()

    def execute(self, command: list[str], silence_s: float | None = None) -> Ended:
        """Runs the command until it ends, the step's time is up, or it prints nothing for silence_s."""
        with open(self.log, "ab") as log:
            log.write(f"$ {' '.join(command)}\n".encode())
            log.flush()
            start = log.tell()
            process = subprocess.Popen(command, cwd=self.folder, env=self.environment, stdin=subprocess.DEVNULL,
                                       stdout=log, stderr=log, start_new_session=True)
            stopped = ""
            size, heard = start, time.monotonic()
            try:
                while process.poll() is None and not stopped:
                    time.sleep(0.05)
                    now, before, size = time.monotonic(), size, os.path.getsize(self.log)
                    heard = now if size != before else heard
                    if now >= self.end:
                        stopped = f"stopped at its limit of {self.limit_s:g} s"
                    elif silence_s and now - heard >= silence_s:
                        stopped = f"stopped after {silence_s:g} s without output"
            finally:
                end_group(process)
        with open(self.log, "rb") as log:
            log.seek(start)
            output = log.read().decode(errors="replace")
        return Ended(None if stopped else process.returncode, stopped, output)


def end_group(process: subprocess.Popen) -> None:
    """Ends what is left of the command and of what it started."""
    for number, seconds in ((signal.SIGTERM, 2), (signal.SIGKILL, 5)):
        try:
            os.killpg(process.pid, number)
            process.wait(seconds)
        except (ProcessLookupError, PermissionError):
            break
        except subprocess.TimeoutExpired:
            pass


@dataclasses.dataclass
class Step:
    name: str
    limit_s: float
    run: Callable[[Workplace], Verdict]
    what: str = ""


def command(arguments: list[str], judge: Callable[[Ended, Workplace], Verdict]) -> Callable[[Workplace], Verdict]:
    """A step of one command. One that was stopped or killed has failed, whatever `judge` thinks."""
    def run(place: Workplace) -> Verdict:
        ended = place.execute(arguments)
        verdict = judge(ended, place)
        if ended.status is None or ended.status < 0:
            text = ended.how() if verdict.text in ("", ended.how()) else f"{ended.how()}; {verdict.text}"
            return dataclasses.replace(verdict, status=FAIL, text=text)
        return verdict
    return run


def tests(program: str, silence_s: float = 60) -> Callable[[Workplace], Verdict]:
    """A step of one GoogleTest program. If a test crashes the program or hangs, the rest run without it."""
    def run(place: Workplace) -> Verdict:
        results: dict[str, str] = {}
        while True:
            ended = place.execute([program, "--gtest_color=no", "--gtest_filter=*-" + ":".join(results)], silence_s)
            running = None
            for what, name in re.findall(r"\[( RUN      |       OK |  FAILED  |  SKIPPED )\] ([\w./]+)", ended.output):
                if what.strip() == "RUN":
                    running = name
                elif name == running:  # a summary names the tests that failed once more
                    results[name] = {"OK": "passed", "FAILED": "failed", "SKIPPED": "skipped"}[what.strip()]
                    running = None
            if running:
                results[running] = ended.how()
            complete = re.search(r"^\[==========\] .* ran\.", ended.output, re.M)
            if complete or not running or place.left() <= 0:
                break
        passed = sum(how == "passed" for how in results.values())
        text = f"{passed} of {len(results)} tests passed"
        others = [f"{name}: {how}" for name, how in results.items() if how != "passed"]
        if others:
            text += "; " + "; ".join(others)
        good = bool(results) and not others and ended.status == 0
        if not good and not others:
            text += f"; {ended.how()}"
        return Verdict(PASS if good else FAIL, text, passed, len(results), results)
    return run


def fewest_parts(steps: list[Step], most_s: float = PART_SECONDS) -> list[list[Step]]:
    """The steps in consecutive parts whose limits add up to at most `most_s`, each as full as possible."""
    parts: list[list[Step]] = [[]]
    for step in steps:
        if parts[-1] and sum(s.limit_s for s in parts[-1]) + step.limit_s > most_s:
            parts.append([])
        parts[-1].append(step)
    return parts


def split(steps: list[Step], count: int) -> list[list[Step]]:
    """The steps in `count` consecutive parts, none above PART_SECONDS. The first parts are as full as they may be if
    there are as few parts as possible, else parts are even. Throws ValueError if there must be more parts."""
    fewest = fewest_parts(steps)
    if count < len(fewest):
        raise ValueError(f"{len(steps)} steps need at least {len(fewest)} parts, so that each takes under nine minutes")
    if count == len(fewest):
        return fewest
    even = max((s.limit_s for s in steps), default=0)
    while len(fewest_parts(steps, even)) > count:
        even += 1
    parts = fewest_parts(steps, even)
    return parts + [[] for _ in range(count - len(parts))]


def line(result: dict, width: int) -> str:
    time_used = f"{result['seconds']:6.1f} s of {result['limit_s']:g} s"
    return f"{result['status']:<6} {result['step']:<{width}} {time_used}  {result['text']}"


def run(steps: list[Step], *, folder: str, path: str, environment: dict[str, str], facts: dict, out=sys.stdout) -> int:
    """Runs the steps in `folder`, prints a line each and a table at the end, and writes `path` after each step, so that
    nothing is lost if the whole is stopped. Each step's output goes to logs/ next to that file. Returns the exit
    status: 0 if all passed or were skipped."""
    logs = os.path.join(os.path.dirname(os.path.abspath(path)), "logs")
    os.makedirs(logs, exist_ok=True)
    results: list[dict] = []
    width = max((len(s.name) for s in steps), default=0)
    for step in steps:
        log = os.path.join(logs, re.sub(r"[^\w.-]+", "_", step.name) + ".log")
        open(log, "w").close()
        begin = time.monotonic()
        try:
            verdict = step.run(Workplace(folder, log, step.limit_s, environment))
        except Exception as error:  # what a step threw is its result
            verdict = Verdict(FAIL, f"{type(error).__name__}: {error}")
        result = {"step": step.name, "status": verdict.status, "seconds": round(time.monotonic() - begin, 1),
                  "limit_s": step.limit_s, "number": verdict.number, "goal": verdict.goal, "text": verdict.text,
                  "found": verdict.found}
        if verdict.status == FAIL:
            with open(log, errors="replace") as file:
                result["output"] = file.read().splitlines()[-40:]
        results.append(result)
        print(line(result, width), file=out, flush=True)
        write_json(path, {**facts, "passed": sum(r["status"] == PASS for r in results), "steps": results})
    for result in results:
        if result.get("output"):
            print(f"\nend of the output of {result['step']}, all of which is in {logs}:", file=out)
            print("\n".join("  " + text for text in result["output"][-15:]), file=out)
    print(f"\n{'':<6} {'step':<{width}}  result", file=out)
    for result in results:
        print(line(result, width), file=out)
    passed, missed, failed, skipped = (sum(r["status"] == status for r in results) for status in (PASS, MISSED, FAIL, SKIP))
    print(f"{passed} passed, {missed} missed their goals, {failed} failed"
          + (f", {skipped} skipped" if skipped else "") + f"; {path}", file=out, flush=True)
    return 0 if passed + skipped == len(results) else 1


def write_json(path: str, value: object) -> None:
    with open(path + ".partial", "w") as file:
        json.dump(value, file, indent=1)
        file.write("\n")
    os.replace(path + ".partial", path)
