#!/usr/bin/env python3
"""commands_test.py SOURCE BIN [PAGE...]: runs the commands of the documentation's pages, each page from top to bottom in one
shell and in its own folder, as many pages at once as there are processors.

Blocks without a language, or of language sh, are commands; others are not run unless a comment says so.

A page of docs/ starts with small files under the names that the pages use (graph.json, plan.json, saved and so on); those of
docs/howto and the tutorial start with nothing. `scripts/stagecraft` and `stagecraft` measure briefly, with
small models and messages, and train a tenth of the steps; ssh, srun, sbatch, mpirun and torchrun are those of fake_launchers, which start processes here with the environment
that the real ones set (scripts/trials runs the real ones). Comments of a page, which a reader doesn't see, direct the test:

  <!-- test: prepare COMMANDS -->         run before the next block
  <!-- test: output -->                   the next block has the shape of the last commands' output: the same lines with
                                          other numbers; a line "..." stands for any lines
  <!-- test: run -->                      the next block is Python to run
  <!-- test: fails with STATUS -->        the next block's last command ends with this status
  <!-- test: not run: REASON -->          the next block is not run
  <!-- test: not run `COMMAND`: REASON -->  the same for a command inside a line
"""
import argparse, os, re, shutil, subprocess, sys, tempfile, time
from concurrent.futures import ThreadPoolExecutor
from pages import COMMENT, FENCE, blocks, pages

# Blocks and commands that no machine of the tests can run, or that other tests run. Raise it for a good reason only.
MOST_NOT_RUN = 22
LEAST_RUN = 150
OTHERS = {"CHANGELOG.md"}  # what was once; its commands may be gone

SHIM = """#!/usr/bin/env bash
# stagecraft of the pages' test: measures briefly, with small models and messages, and trains a tenth of the steps.
arguments=() more=() verb=${1:-} model=${2:-}
case "$verb" in
  profile)
    more=(--max-seconds 1)
    case "$model" in
      resnet*) more+=(--set image=32 --set channels=16) ;;
      mlp) [[ "$*" == *width=* ]] || more+=(--set width=64) ;;
      gpt) [[ "$*" == *--structure* ]] || more+=(--set width=64 --set heads=4 --set sequence=16 --set vocabulary=100) ;;
    esac
    ;;
  links) more=(--seconds 0.5 --max-bytes 64KiB) ;;
esac
while [ $# -gt 0 ]; do
  case "$1" in
    --max-seconds | --seconds | --max-bytes) shift ;;
    --help) arguments+=("$1"); more=() ;;
    --steps) if [ "$2" -gt 20 ]; then arguments+=("$1" $((($2 + 9) / 10))); else arguments+=("$1" "$2"); fi; shift ;;
    *) arguments+=("$1") ;;
  esac
  shift
done
exec SOURCE/scripts/stagecraft "${arguments[@]}" "${more[@]}"
"""

SETUP = """#!/usr/bin/env bash
# scripts/setup of the pages' test: checks its options; everything is built already.
for option in "$@"; do SOURCE/scripts/setup --help | grep -qe "$option" || { echo "setup: unknown $option" >&2; exit 2; }; done
"""

FILES = """
cp SOURCE/tests/golden/nccl/* SOURCE/tests/models/readme_model.py .
mv readme_model.py model.py
cp SOURCE/tests/golden/pipedream/alexnet.txt graph.txt
cp SOURCE/examples/topology-2-cpus.json topology.json
stagecraft profile mlp --set width=32 --microbatch 64 -o graph.json
stagecraft plan graph.json topology.json --stages 2 --strategy profile -o plan.json
stagecraft plan graph.json topology.json --stages 2 --strategy uniform --schedule gpipe -o other-plan.json
stagecraft predict graph.json topology.json plan.json -o prediction.json
stagecraft run plan.json --steps 4 --checkpoint saved -o measured.json
"""


def write_program(path, text):
    with open(path, "w") as file:
        file.write(text)
    os.chmod(path, 0o755)


class Shell:
    """Runs commands in new folders in which `scripts`, `examples` and the like are the repository's."""

    def __init__(self, source, programs, work):
        self.source, self.work = source, work
        here = os.path.dirname(os.path.realpath(__file__))
        self.bin = os.path.join(work, "bin")
        shutil.copytree(os.path.join(here, "fake_launchers"), self.bin)
        write_program(os.path.join(self.bin, "stagecraft"), SHIM.replace("SOURCE", source))
        self.environment = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM_", "OMPI_", "MASTER_"))}
        self.environment |= {"STAGECRAFT_BIN": programs, "STAGECRAFT_ACCEPT_UNTRUSTED": "1", "COLUMNS": "120",
                             "PATH": ":".join([self.bin, os.path.join(source, ".venv/bin"), os.environ["PATH"], programs])}

    def folder(self, name, start=None):
        path = os.path.join(self.work, name)
        shutil.copytree(start, path) if start else os.makedirs(path)
        os.makedirs(os.path.join(path, "scripts"))
        os.symlink(os.path.join(self.bin, "stagecraft"), os.path.join(path, "scripts/stagecraft"))
        os.symlink(os.path.join(self.source, "scripts/slurm"), os.path.join(path, "scripts/slurm"))
        write_program(os.path.join(path, "scripts/setup"), SETUP.replace("SOURCE", self.source))
        for name in ("bench", "examples", "tests"):
            os.symlink(os.path.join(self.source, name), os.path.join(path, name))
        return path

    def run(self, folder, script):
        return subprocess.run(["bash", "-eo", "pipefail", "-c", script], cwd=folder, env=self.environment, text=True,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def shape(line):
    """A line with numbers and what depends on them replaced."""
    line = re.sub(r"[-+~]?\d[\d.,:]*(e[-+]?\d+)?(?![\w])( ?([munk]?s|[KMGT]?i?B(/s)?|min|h|%|pt))?(?!\w)", "#", line)
    line = re.sub(r"[-─━═.·#█▁▂▃▄▅▆▇▏▎▍▌▋▊▉]{2,}", "#", line)
    return re.sub(r"\s+", " ", line).strip()


def differs(shown, printed):
    """The first shown line whose shape is not where it should be in what was printed, or None."""
    printed = [shape(line) for line in printed.splitlines()]
    at, free = 0, True
    for line in shown.rstrip("\n").split("\n"):
        if line.strip() == "...":
            free = True
            continue
        wanted = shape(line)
        if free:
            while at < len(printed) and printed[at] != wanted:
                at += 1
        if at >= len(printed) or printed[at] != wanted:
            return line
        at, free = at + 1, False
    return None


class Page:
    """What to run of a page: parts (line, kind, text, status), kind one of prepare, run, output; and what not to."""

    def __init__(self, name, text):
        self.parts, self.not_run = [], []
        apart = {m[1]: m[2].strip() for m in re.finditer(r"<!-- test: not run `([^`]+)`: (.*?)-->", text, re.DOTALL)}
        self.not_run += [f"{name}: {command}: {reason}" for command, reason in apart.items()]
        for block in blocks(text):
            reason, output, program, status = None, False, False, 0
            for said in block.comments:
                if said.startswith("prepare"):
                    self.parts.append((block.line, "prepare", said[7:].strip(), 0))
                elif said.startswith("not run:"):
                    reason = said[8:].strip()
                elif said == "output":
                    output = True
                elif said == "run" and block.language == "python":
                    program = True
                elif said.startswith("fails with "):
                    status = int(said[11:])
                elif not said.startswith("not run `"):
                    raise ValueError(f"{name}:{block.line}: unknown comment \"test: {said}\"")
            if reason:
                self.not_run.append(f"{name}:{block.line}: {reason}")
            elif output:
                self.parts.append((block.line, "output", block.text, 0))
            elif program:
                self.parts.append((block.line, "run", f"python3 - <<'END'\n{block.text}END\n", 0))
            elif block.is_commands():
                self.parts.append((block.line, "run", block.text, status))
        plain = COMMENT.sub(lambda m: re.sub(r"[^\n]", " ", m[0]), FENCE.sub(lambda m: re.sub(r"[^\n]", " ", m[0]), text))
        if name in ("README.md", "docs/commands.md"):  # readme_commands.sh runs the table of docs/commands.md
            plain = ""
        for match in re.finditer(r"`(scripts/stagecraft [^`\n]+)`", plain):
            if match[1] not in apart:
                self.parts.append((plain.count("\n", 0, match.start()) + 1, "run", match[1], 0))
        self.parts.sort(key=lambda part: part[0])

    def commands(self):
        return sum(len(re.sub(r"\\\n", "", text).strip().splitlines()) for _, kind, text, _ in self.parts if kind == "run")


def run_page(shell, name, page, start):
    """Problems of a page."""
    folder = shell.folder(name.replace("/", "_")[:-3], start)
    out = f"{folder}.out"
    os.makedirs(out)
    script = []
    for i, (_, kind, text, status) in enumerate(page.parts):
        if kind != "output":
            # In braces and not in a subshell, so that the page's exports last.
            body = f"{{ {text.rstrip()}\n}} >{out}/{i} 2>&1"
            script += [f"echo {i} >{out}/now"] + ([f"rc=0; {body} || rc=$?; [ $rc = {status} ]"] if status else [body])
    done = shell.run(folder, "\n".join(script))
    if done.returncode:
        now = int(open(f"{out}/now").read())
        line, kind, text, status = page.parts[now]
        said = open(f"{out}/{now}", errors="replace").read()[-4000:] if os.path.exists(f"{out}/{now}") else ""
        return [f"{name}:{line}: ended with {done.returncode}:\n{text}\n{said}{done.stdout}"]
    wrong, last = [], None
    for i, (line, kind, text, _) in enumerate(page.parts):
        if kind == "run":
            last = open(f"{out}/{i}", errors="replace").read()
        elif kind == "output":
            missing = differs(text, last) if last is not None else "there is no command before"
            if missing is not None:
                wrong.append(f"{name}:{line}: this line has no counterpart in the output:\n{missing}\noutput:\n{last}")
    return wrong


def self_check():
    assert shape("step   159.8 ms   -6.1 %") == shape("step  1.2 s  +12 %"), shape("step   159.8 ms   -6.1 %")
    assert shape("stage 0 layers") != shape("stage 0 devices")
    assert differs("a 1\n...\nc 3 ms\n", "x\na 2\nb\nc 4 s\n") is None
    assert differs("a 1\nc 3\n", "a 2\nb\nc 4\n") == "c 3"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source")
    parser.add_argument("bin")
    parser.add_argument("page", nargs="*")
    parser.add_argument("--keep", help="work in this folder and keep it")
    options = parser.parse_args()
    self_check()
    source = os.path.realpath(options.source)
    all_pages = {name: Page(name, open(os.path.join(source, name), encoding="utf-8").read())
                 for name in pages(source) if name not in OTHERS and not name.startswith("tests/")}
    not_run = [each for page in all_pages.values() for each in page.not_run]
    work = options.keep or tempfile.mkdtemp(prefix="stagecraft_pages.")
    os.makedirs(work, exist_ok=True)
    try:
        shell = Shell(source, os.path.realpath(options.bin), os.path.realpath(work))
        files = os.path.join(work, "files")
        os.makedirs(files)
        done = shell.run(files, FILES.replace("SOURCE", source))
        if done.returncode:
            sys.exit(f"making the pages' files: {done.stdout}")
        chosen = {name: page for name, page in all_pages.items() if page.parts and (not options.page or name in options.page)}
        count = sum(page.commands() for page in chosen.values())

        def run(name):
            bare = name.startswith("docs/howto/") or name in ("docs/tutorial.md", "examples/README.md")
            began = time.monotonic()
            found = run_page(shell, name, chosen[name], None if bare else files)
            print(f"{name}: {chosen[name].commands()} commands, {time.monotonic() - began:.1f} s{' WRONG' if found else ''}\n", end="",
                  flush=True)
            return found

        longest_first = sorted(chosen, key=lambda name: -chosen[name].commands())
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            wrong = [each for found in pool.map(run, longest_first) for each in found]
    finally:
        if not options.keep:
            shutil.rmtree(work, ignore_errors=True)
    print("\n".join(wrong))
    print(f"{count} commands were run; not run are {len(not_run)}:", *not_run, sep="\n  ")
    if len(not_run) > MOST_NOT_RUN:
        sys.exit(f"{len(not_run)} are not run, at most {MOST_NOT_RUN} may be")
    if not options.page and count < LEAST_RUN:
        sys.exit(f"{count} commands were run, at least {LEAST_RUN} were expected")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
