"""What the trials share: a small model and its plans, runs and their checkpoints seen from outside."""
import json, os, re, shutil, socket, struct, subprocess, sys, time, zlib

MODEL = ["mlp", "--set", "inputs=64", "--set", "width=96", "--set", "layers=4", "--microbatch", "16"]
PLANS = [(2, "1f1b"), (2, "gpipe"), (3, "1f1b"), (3, "gpipe")]  # one replica a stage: sums in the same order
TRAINING = ["--optimizer", "adamw", "--learning-rate", "0.01"]
SKIPPED = 77  # the exit status of trials that cannot be made here


class Wrong(Exception):
    pass


def demand(holds, text):
    if not holds:
        raise Wrong(text)


def skip(why):
    print(f"skipped: {why}")
    sys.exit(SKIPPED)


def need_programs(package_of):
    """Skips unless all programs are there; a dict of them with the packages that bring them."""
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
        tool(bin_folder, folder, "stagecraft-plan", "graph.json", "-n", "3", "--strategy", "uniform", "--stages",
             str(stages), "--schedule", schedule, "-o", plan_name(stages, schedule))


def losses_of(path):
    with open(path) as file:
        return json.load(file)["losses"]


def free_port():
    with socket.socket() as listener:
        listener.bind(("", 0))
        return listener.getsockname()[1]


def is_whole(path):
    """Whether a checkpoint is complete, found out without stagecraft."""
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
    """Process ids of the ranks that work in a folder, by rank, whoever started them. The writer of a rank's log is
    none: its parent is a rank."""
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
    """Waits until holds() gives something true, and returns that and the seconds it took; Wrong if it takes longer."""
    began = time.monotonic()
    while True:
        value = holds()
        took = time.monotonic() - began
        if value:
            return value, took
        demand(took < limit, f"waited {limit} s for {what}")
        time.sleep(0.02)
