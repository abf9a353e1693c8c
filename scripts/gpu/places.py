"""Where things are on this machine: the GPU, a Python with torch, the programs, and what they need to start."""
from __future__ import annotations

import ctypes
import glob
import json
import os
import re
import shutil
import subprocess
import sys

TORCH = "2.11"
PROGRAMS = ("stagecraft-run", "stagecraft-profile", "gpu_test", "nccl_gpu_test", "nccl_rank_program", "links_nccl_test")
LIBRARIES = ("libtorch_cpu.so", "libtorch_cuda.so", "libc10.so", "libcudart.so", "libcupti.so", "libnccl.so")


class Missing(Exception):
    """What this machine lacks, as one line."""


def no_gpu_reason() -> str | None:
    """Why no program here can use a GPU; None if one can."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return "there is no NVIDIA driver (libcuda.so.1)"
    status = cuda.cuInit(0)
    count = ctypes.c_int(0)
    if status == 0:
        status = cuda.cuDeviceGetCount(ctypes.byref(count))
    if status != 0 and status != 100:  # CUDA_ERROR_NO_DEVICE
        return f"the NVIDIA driver reported error {status}"
    return None if count.value > 0 else "the NVIDIA driver finds no GPU; check CUDA_VISIBLE_DEVICES"


def gpu_name() -> str:
    cuda, device, name = ctypes.CDLL("libcuda.so.1"), ctypes.c_int(0), ctypes.create_string_buffer(256)
    if cuda.cuInit(0) or cuda.cuDeviceGet(ctypes.byref(device), 0) or cuda.cuDeviceGetName(name, len(name), device):
        return "unknown"
    return name.value.decode(errors="replace")


def gpu_facts() -> dict:
    """Name, driver, memory and clocks of the first GPU, as nvidia-smi reports them; the name alone without it."""
    keys = ("name", "driver_version", "memory.total", "clocks.max.sm", "clocks.max.mem", "compute_mode")
    lines = ended(["nvidia-smi", "--query-gpu=" + ",".join(keys), "--format=csv,noheader"]).stdout.splitlines()
    values = lines[0].split(", ") if lines else []
    return {"gpus": len(lines), **dict(zip(keys, values))} if len(values) == len(keys) else {"name": gpu_name()}


# After the import, torch's libraries and those of its packages are in memory, wherever they were installed.
_ASK = f"""
import json, os, torch
paths = {{line.split()[-1] for line in open("/proc/self/maps") if ".so" in line}}
folders = {{os.path.dirname(path) for path in paths if os.path.basename(path).startswith({LIBRARIES!r})}}
print(json.dumps({{"version": torch.__version__, "folder": torch.__path__[0], "cuda": torch.version.cuda,
                   "libraries": sorted(folders)}}))
"""


def ended(command: list[str], environment: dict[str, str] | None = None, timeout_s: int = 120) -> subprocess.CompletedProcess:
    try:
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=timeout_s)
    except (subprocess.TimeoutExpired, OSError) as error:
        return subprocess.CompletedProcess(command, 1, "", str(error))


def last_line(done: subprocess.CompletedProcess) -> str:
    return (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]


def find_torch(root: str) -> dict:
    """The version, the folder and the folders of libraries of the first Python here that imports torch 2.11:
    STAGECRAFT_PYTHON, the one that runs this, python3 of PATH, the .venv of `root`. Throws Missing if there is none."""
    tried = []
    for python in (os.environ.get("STAGECRAFT_PYTHON"), sys.executable, shutil.which("python3"),
                   os.path.join(root, ".venv/bin/python")):
        if not python or not shutil.which(python) or python in [p for p, _ in tried]:
            continue
        done = ended([python, "-c", _ASK], timeout_s=600)  # gigabytes of libraries, perhaps from a slow disk
        if done.returncode != 0:
            tried.append((python, last_line(done)))
            continue
        torch = json.loads(done.stdout.splitlines()[-1])
        if torch["version"].startswith(TORCH + "."):
            torch["python"] = python
            site = os.path.dirname(torch["folder"])
            folders = [*torch["libraries"], os.path.join(torch["folder"], "lib")]
            folders += sorted(glob.glob(os.path.join(site, "nvidia/*/lib")))
            # The system's own folders are searched anyway; in front, they would hide the packed libraries.
            system_folder = re.compile(r"/(usr/)?lib(64)?(/[^/]+-linux-gnu)?")
            torch["libraries"] = [folder for folder in dict.fromkeys(map(os.path.realpath, folders))
                                  if os.path.isdir(folder) and not system_folder.fullmatch(folder)]
            return torch
        tried.append((python, f"has torch {torch['version']}"))
    installs = "" if is_packed(root) else ", or run scripts/setup, which installs it"
    raise Missing(f"no Python here has torch {TORCH} (" + "; ".join(f"{python}: {why}" for python, why in tried)
                  + f"); set STAGECRAFT_PYTHON to one that does{installs}")


def commit(root: str) -> str:
    """The commit of the sources, of those that a folder was packed from."""
    if is_packed(root):
        with open(os.path.join(root, "pack.json")) as file:
            return json.load(file)["commit"]
    done = subprocess.run(["git", "describe", "--always", "--dirty", "--abbrev=40"], cwd=root, capture_output=True,
                          text=True) if shutil.which("git") else None
    return done.stdout.strip() if done and done.returncode == 0 else "unknown"


def is_packed(root: str) -> bool:
    return os.path.exists(os.path.join(root, "pack.json"))


def find_programs(root: str) -> str | None:
    """The folder of the built programs: STAGECRAFT_BIN, that of a packed folder, build/gpu or build/dev. Throws Missing
    if STAGECRAFT_BIN lacks some."""
    def missing(folder: str) -> list[str]:
        return [program for program in PROGRAMS if not os.access(os.path.join(folder, program), os.X_OK)]

    given = os.environ.get("STAGECRAFT_BIN")
    if given and missing(given):
        raise Missing(f"STAGECRAFT_BIN={given} has no {', '.join(missing(given))}")
    usual = [os.path.join(root, folder) for folder in ("bin", "build/gpu/bin", "build/dev/bin")]
    return next((os.path.abspath(folder) for folder in (given, *usual) if folder and not missing(folder)), None)


def environment_of(bin_folder: str, root: str) -> tuple[dict[str, str], dict | None]:
    """The environment in which the programs start, and the torch that it takes libraries from (None if the programs
    find theirs). Throws Missing if they do not start."""
    out = dict(os.environ, STAGECRAFT_BIN=bin_folder, PATH=f"{bin_folder}:{os.environ.get('PATH', '')}")
    why = failure(bin_folder, out)
    if why is None:
        return out, None
    torch = find_torch(root)
    out["STAGECRAFT_PYTHON"] = torch["python"]
    out["PATH"] = f"{bin_folder}:{os.path.dirname(torch['python'])}:{os.environ.get('PATH', '')}"
    # Packed programs look in lib/ by themselves; from here, Python and others would take its libraries too. The system's
    # C++ library serves, unless it is older than the one that the programs were built with.
    for folders in ([], [os.path.join(os.path.dirname(bin_folder), "lib/newer")]):
        already = os.environ.get("LD_LIBRARY_PATH", "").split(":")
        out["LD_LIBRARY_PATH"] = ":".join(f for f in [*torch["libraries"], *folders, *already] if f)
        why = failure(bin_folder, out)
        if why is None:
            return out, torch
    raise Missing(f"the programs in {bin_folder} do not start with torch {torch['version']} of {torch['python']}: "
                  f"{why}; build them here, from the sources: scripts/gpu_check --build --deps PACKED_FOLDER")


def failure(bin_folder: str, environment: dict[str, str]) -> str | None:
    done = ended([os.path.join(bin_folder, "stagecraft-run"), "--version"], environment)
    return None if done.returncode == 0 else last_line(done)


def build(root: str, deps: str | None) -> str:
    """Builds what the check runs from the sources at `root`, in build/gpu, with the torch that it finds. `deps` is a
    packed folder, whose headers and libraries replace Debian's packages. Returns the folder of the programs."""
    if not os.path.exists(os.path.join(root, "CMakeLists.txt")):
        raise Missing(f"{root} has neither sources nor programs; pack it again")
    debian = shutil.which("dpkg-query") is not None
    try:
        torch = find_torch(root)
    except Missing:
        if not debian or deps or subprocess.run(["scripts/setup", "--for", "configure", "gpu"], cwd=root).returncode:
            raise
        torch = find_torch(root)
    if not shutil.which("cmake"):
        raise Missing("cmake is missing; install CMake 3.25 or newer and g++ 12 or newer, or carry built programs "
                      "here: scripts/gpu_check --pack DIR")
    folder = os.path.join(root, "build/gpu")
    configure = ["cmake", "-S", root, "-B", folder, "-DCMAKE_BUILD_TYPE=Release",
                 "-DSTAGECRAFT_WITH_UCX=OFF",  # for ranks on CPUs
                 "-DSTAGECRAFT_WITH_IMAGES=OFF",  # no check reads images
                 f"-DSTAGECRAFT_TORCH={torch['folder']}"]
    if shutil.which("ninja") and not os.path.exists(os.path.join(folder, "Makefile")):
        configure += ["-G", "Ninja"]
    if deps:
        configure += settings_of(os.path.abspath(deps))
    targets = ["stagecraft_tools", "gpu_test", "nccl_gpu_test", "links_nccl_test", "profiler_bench"]
    jobs = os.environ.get("STAGECRAFT_JOBS", str(os.cpu_count() or 1))
    for what in (configure, ["cmake", "--build", folder, "-j", jobs, "--target", *targets]):
        if subprocess.run(what, cwd=root).returncode:
            raise Missing("the programs could not be built, see above; on Debian, scripts/setup --for tests gpu "
                          "installs what is missing, elsewhere --deps takes a packed folder's headers")
    return os.path.join(folder, "bin")


def settings_of(packed: str) -> list[str]:
    """CMake's settings that take headers and libraries from a packed folder before the system's."""
    usr = os.path.join(packed, "deps/usr")
    libraries = sorted(glob.glob(os.path.join(usr, "lib/*-linux-gnu")))
    if not libraries:
        raise Missing(f"{packed} is not a packed folder with headers: it has no deps/usr")
    out = [f"-DCMAKE_PREFIX_PATH={usr}", f"-DCMAKE_LIBRARY_PATH={libraries[0]};{packed}/lib",
           f"-DOPENSSL_INCLUDE_DIR={usr}/include", f"-DOPENSSL_CRYPTO_LIBRARY={packed}/lib/libcrypto.so.3",
           f"-DCMAKE_BUILD_RPATH={libraries[0]};{packed}/lib",
           f"-DCudaLibraries_CRT_INCLUDE_DIR={packed}/deps/cuda/include",
           f"-DCudaLibraries_CCCL_INCLUDE_DIR={packed}/deps/cuda/include"]
    for config in glob.glob(os.path.join(usr, "**/*onfig.cmake"), recursive=True):
        name = os.path.basename(config)
        name = name[:-len("Config.cmake")] if name.endswith("Config.cmake") else name[:-len("-config.cmake")]
        out.append(f"-D{name}_DIR={os.path.dirname(config)}")
    return out
