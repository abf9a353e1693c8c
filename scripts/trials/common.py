"""Shared by the trials: a small model and its plans, runs and their checkpoints seen from outside."""
import json, os, re, shutil, socket, struct, subprocess, sys, tempfile, time, zlib

MODEL = ["mlp", "--set", "inputs=64", "--set", "width=96", "--set", "layers=4", "--microbatch", "16"]
PLANS = [(2, "1f1b"), (2, "gpipe"), (3, "1f1b"), (3, "gpipe")]  # one replica per stage: sums in the same order
TRAINING = ["--optimizer", "adamw", "--learning-rate", "0.01"]
SKIPPED = 77  # the exit status of trials that cannot run here


class Wrong(Exception):
    pass


def demand(holds, text):
    if not holds:
        raise Wrong(text)


def skip(why):
    print(f"skipped: {why}")
    sys.exit(SKIPPED)


def need_programs(package_of):
    """Skips unless all programs are there; a dict of them with their packages."""
    absent = sorted({package for program, package in package_of.items() if not shutil.which(program)})
    if absent:
        skip(f"needs {', '.join(p for p in package_of if not shutil.which(p))}; install {' '.join(absent)}")


def default_bin():
    here = os.path.dirname(os.path.realpath(__file__))
    return os.environ.get("STAGECRAFT_BIN", os.path.join(here, "../../build/dev/bin"))


def tool(bin_folder, folder, *command):
    done = subprocess.run([os.path.join(bin_folder, command[0]), *command[1:]], cwd=folder, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if done.returncode:
        sys.exit(f"{' '.join(command)}: {done.stdout}")


def plan_name(stages, schedule):
    return f"plan-{stages}-{schedule}.json"


def make_plans(bin_folder, folder):
    """The model's plans, plan-STAGES-SCHEDULE.json, in the folder."""
    tool(bin_folder, folder, "stagecraft-profile", *MODEL, "--max-seconds", "1", "--concurrent", "1",
         "--accept-untrusted", "-o", "graph.json")
    for stages, schedule in PLANS:
        tool(bin_folder, folder, "stagecraft-plan", "graph.json", "--accept-untrusted", "-n", "3", "--strategy", "uniform", "--stages",
             str(stages), "--schedule", schedule, "-o", plan_name(stages, schedule))


def losses_of(path):
    with open(path) as file:
        return json.load(file)["losses"]


def free_port():
    with socket.socket() as listener:
        listener.bind(("", 0))
        return listener.getsockname()[1]


def is_whole(path):
    """Whether a checkpoint is complete, checked without stagecraft."""
    try:
        with open(path + "/manifest.json") as file:
            text = file.read()
        manifest = json.loads(text)
        own = manifest["manifest_crc32"]
        if f"{zlib.crc32(text.replace(own, '0' * 8).encode()):08x}" != own:
            return False
        for each in manifest["files"]:
            with open(os.path.join(path, each["name"]), "rb") as file:
                data = file.read()
            if len(data) != each["file_bytes"] or f"{zlib.crc32(data):08x}" != each["crc32"]:
                return False
        return manifest["step"] == int(path.rsplit("-", 1)[1])
    except (OSError, ValueError, KeyError):
        return False


def steps_in(folder):
    names = os.listdir(folder) if os.path.isdir(folder) else []
    return sorted(int(m[1]) for m in (re.fullmatch(r"step-(\d+)", n) for n in names) if m)


def newest(folder):
    return max((s for s in steps_in(folder) if is_whole(f"{folder}/step-{s}")), default=0)


def tensors(path):
    out = {}
    for name in os.listdir(path):
        if name.endswith(".safetensors"):
            with open(os.path.join(path, name), "rb") as file:
                data = file.read()
            begin = 8 + struct.unpack("<Q", data[:8])[0]
            for key, entry in json.loads(data[8:begin]).items():
                first, last = entry["data_offsets"]
                out[key] = (entry["dtype"], entry["shape"], data[begin + first:begin + last])
    return out


def is_there(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def rank_of(pid):
    """RANK in a process's environment, or None."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as environ:
            found = re.search(rb"(?:^|\0)(?:RANK|SLURM_PROCID|OMPI_COMM_WORLD_RANK)=(\d+)\0", environ.read())
            return int(found[1]) if found else None
    except OSError:
        return None


def ranks_in(folder, program="stagecraft-run"):
    """Process ids of the ranks that work in a folder, by rank, whoever started them. Excludes the writers of ranks'
    logs, whose parents are ranks."""
    found = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if os.path.basename(os.readlink(f"/proc/{pid}/exe")) != program:
                continue
            if os.path.realpath(os.readlink(f"/proc/{pid}/cwd")) != os.path.realpath(folder):
                continue
            with open(f"/proc/{pid}/stat") as file:
                parent = int(file.read().rsplit(")", 1)[1].split()[1])
        except OSError:
            continue
        rank = rank_of(pid)
        if rank is not None and rank_of(parent) != rank:
            found[rank] = int(pid)
    return found


def until(holds, limit, what):
    """Waits until holds() returns a true value, and returns it and the seconds it took; Wrong if it takes longer."""
    began = time.monotonic()
    while True:
        value = holds()
        took = time.monotonic() - began
        if value:
            return value, took
        demand(took < limit, f"waited {limit} s for {what}")
        time.sleep(0.02)


# A launcher may start its ranks seconds apart, and no rank waits longer than the timeout for the others.
STEPS, EVERY, TIMEOUT_S = 300, 5, 6
# Time until silence is noticed and the second in which others can read the reason from rank 0, doubled because the
# machine may be busy.
DEADLINE_S = 2 * TIMEOUT_S + 2


class Launcher:
    """Runs of one small plan of 3 ranks under a launcher, and of the same plan under --spawn."""

    def __init__(self, bin_folder, work, command, channel=None):
        self.bin, self.work, self.command, self.count = bin_folder, work, command, 0
        make_plans(bin_folder, work)
        self.program = [os.path.join(bin_folder, "stagecraft-run"), plan_name(3, "1f1b"), *TRAINING, "--timeout",
                        str(TIMEOUT_S), *(["--channel", channel] if channel else [])]
        tool(bin_folder, work, "stagecraft-run", *self.program[1:], "--steps", str(STEPS), "--spawn", "-o",
             "spawned.json", "--checkpoint", "spawned")

    def path(self, *parts):
        return os.path.join(self.work, *parts)

    def start(self, *more, steps=STEPS):
        self.count += 1
        self.logs = f"logs-{self.count}"
        self.output = open(self.path(f"output-{self.count}.txt"), "w+")
        arguments = [*self.program, "--steps", str(steps), "--logs", self.logs, "-o", f"measured-{self.count}.json", *more]
        self.process = subprocess.Popen([*self.command, *arguments], cwd=self.work, stdin=subprocess.DEVNULL,
                                        stdout=self.output, stderr=subprocess.STDOUT)

    def log(self, rank):
        try:
            with open(self.path(self.logs, f"rank-{rank}.log"), errors="replace") as file:
                return file.read()
        except OSError:
            return ""

    def said(self):
        with open(self.output.name, errors="replace") as file:
            output = file.read()
        return "\n".join([output] + [f"rank {rank}: {self.log(rank)}" for rank in range(3)])

    def ranks(self):
        return ranks_in(self.work)

    def wait_for_a_checkpoint(self):
        before = newest(self.path("saved"))
        def told():
            demand(self.process.poll() is None, f"ended with {self.process.poll()}: {self.said()}")
            return newest(self.path("saved")) > before and len(self.ranks()) == 3
        until(told, 60, "a checkpoint")

    def end(self, limit=300):
        """The launcher's exit status, and the seconds until no rank was left."""
        try:
            _, took = until(lambda: not self.ranks(), limit, "the end of all ranks")
            return self.process.wait(DEADLINE_S + 30), took
        except (Wrong, subprocess.TimeoutExpired) as problem:
            raise Wrong(f"{problem}: {self.said()}")

    def demand_equal(self):
        """Requires that the last run ended with the losses and tensors of the spawned one."""
        own, spawned = losses_of(self.path(f"measured-{self.count}.json")), losses_of(self.path("spawned.json"))
        demand(own == spawned[STEPS - len(own):], f"losses differ from those under --spawn: {own} and {spawned}")
        if os.path.isdir(self.path("saved")):
            demand(tensors(self.path("saved", f"step-{STEPS}")) == tensors(self.path("spawned", f"step-{STEPS}")),
                   "tensors differ from those under --spawn")
        return len(own)

    def undisturbed(self):
        self.start()
        status, _ = self.end()
        demand(status == 0, f"ended with {status}: {self.said()}")
        print(f"  {self.demand_equal()} steps have the losses of --spawn, bit for bit; logs: "
              f"{' '.join(sorted(os.listdir(self.path(self.logs))))}")

    CHECKPOINTS = ["--checkpoint", "saved", "--checkpoint-every", str(EVERY), "--resume"]

    def kill_a_rank(self):
        """SIGKILL for rank 1: no rank outlives the deadline, and another one's log names it."""
        self.start(*self.CHECKPOINTS)
        self.wait_for_a_checkpoint()
        os.kill(self.ranks()[1], 9)
        status, took = self.end(DEADLINE_S)
        demand(status != 0, f"a killed rank ends with 0: {self.said()}")
        demand(re.search(r"rank 1", self.log(0) + self.log(2)), f"no log names rank 1: {self.said()}")
        print(f"  rank 1 killed: all ranks gone after {took:.1f} s of {DEADLINE_S} s, exit status {status}, "
              f"checkpoint at step {newest(self.path('saved'))}; said: "
              + (re.findall(r"[^\n]*rank 1[^\n]*", self.log(0) + self.log(2))[0]))

    def ask_to_stop(self, ask, statuses=(75,)):
        """`ask(self)` passes SIGTERM to the ranks: they end with a checkpoint."""
        self.start(*self.CHECKPOINTS)
        self.wait_for_a_checkpoint()
        ask(self)
        status, took = self.end(DEADLINE_S)
        found = re.search(r"stopped on request after (\d+) of", self.log(0))
        demand(status in statuses and found, f"asked to stop, ended with {status}: {self.said()}")
        demand(newest(self.path("saved")) == int(found[1]), f"no checkpoint at step {found[1]}: {self.said()}")
        print(f"  asked to stop: all ranks gone after {took:.1f} s, exit status {status}, checkpoint at step {found[1]}")

    def go_on(self):
        begin = newest(self.path("saved"))
        self.start(*self.CHECKPOINTS)
        status, _ = self.end()
        demand(status == 0, f"ended with {status}: {self.said()}")
        demand(f"resuming from saved/step-{begin}" in self.log(0), f"did not resume from step {begin}: {self.said()}")
        print(f"  resumed at step {begin}: {self.demand_equal()} more steps end with the bits of the spawned run")


def run_trial(main):
    """The exit status of a trial: `main(bin_folder, work_folder)`, with the failure on standard error."""
    work = tempfile.mkdtemp(prefix="stagecraft_trial.")
    os.chmod(work, 0o755)
    try:
        main(os.path.abspath(default_bin()), work)
        return 0
    except Wrong as problem:
        print(f"wrong: {problem}", file=sys.stderr)
        return 1
    finally:
        shutil.rmtree(work, ignore_errors=True)
