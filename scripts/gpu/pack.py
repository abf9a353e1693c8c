"""A folder with everything that the check needs on another machine but torch: programs without absolute paths, the
libraries that may be missing there, scripts, golden files, and headers to build the sources with."""
from __future__ import annotations

import datetime
import json
import os
import re
import shutil
import subprocess

import places
from places import Missing

MOST_BYTES = 64 << 20
# Also some that the check does not run, to look closer at what it finds; not those that need no GPU.
TOOLS = ("compare", "discover", "estimate", "export", "import", "links", "plan", "predict", "profile", "run", "verify")
TESTS = ("gpu_test", "nccl_gpu_test", "nccl_rank_program", "links_nccl_test")
BENCHMARKS = ("profiler_bench",)
FILES = ("LICENSE", "docs/gpu.md", "scripts/gpu_check", "scripts/gpu", "scripts/stagecraft", "scripts/export_model.py",
         "scripts/exporter", "bench/gpu_training", "bench/predict_on_gpu", "bench/profile_goals", "tests/golden/pt2")
# What torch or the system brings.
BROUGHT = re.compile(r"lib(torch|c10|cu|nv|nccl|gomp)|(linux-vdso|ld-linux|lib(c|m|dl|rt|pthread|util|resolv))[.\-]")
# A newer one of the system serves as well, an older one does not.
NEWER = re.compile(r"libstdc\+\+|libgcc_s")
# Debian's packages of headers that the sources include, and of libraries that only a build links.
HEADERS = ("nlohmann-json3-dev", "libcli11-dev", "libeigen3-dev", "libfmt-dev", "libfmt9", "libprotozero-dev",
           "libtomlplusplus-dev", "libpugixml-dev", "libpugixml1v5", "libgtest-dev", "libgmock-dev", "libminizip-dev",
           "zlib1g-dev", "libssl-dev", "libgloo-dev", "libbenchmark-dev", "libbenchmark1debian")
# Of Gloo the headers alone are used; zlib and minizip are linked as archives; lib/ has libcrypto.
UNUSED = re.compile(r"/unsupported/|libgloo|Gloo/|libtomlplusplus|libssl|libcrypto|lib(z|minizip)\.so|/pkgconfig/")

README = """Checks stagecraft on a machine with an NVIDIA GPU, which needs a Python with torch 2.11, and no network.

  scripts/gpu_check --list            the steps, their parts and time limits
  scripts/gpu_check --part 1/{parts}        the most informative part; then 2/{parts}, ...
  scripts/gpu_check                   all parts
  scripts/gpu_check --run COMMAND     a command with these programs in front of PATH, for example
                                      scripts/gpu_check --run stagecraft profile mlp --device cuda -o graph.json

Results go to bench/results/ (--results FOLDER: elsewhere). STAGECRAFT_PYTHON names the Python, if python3 has no torch.
If the programs in bin/ do not start, the message says what is missing. To build a source tree with the headers in this
folder, run `scripts/gpu_check --build --deps THIS_FOLDER` in that tree; this takes CMake 3.25 and g++ 12, and torch's
Python. docs/gpu.md says more.
"""


def run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise Missing(f"{' '.join(command)} ended with {done.returncode}: {done.stderr.strip()}")
    return done.stdout


def pack(root: str, folder: str, parts: int) -> str:
    """Makes `folder`. Returns what to say about it."""
    programs = places.find_programs(root)
    if not programs:
        raise Missing("nothing to pack: the programs are not built; run scripts/setup --for all")
    for tool in ("cmake", "strip", "ldd"):
        if not shutil.which(tool):
            raise Missing(f"{tool} is missing, which packing needs")
    if os.path.isdir(folder) and os.listdir(folder) and not places.is_packed(folder):
        raise Missing(f"{folder} contains something else; give an empty or new folder, or one that was packed before")
    shutil.rmtree(folder, ignore_errors=True)
    for name in FILES:
        source, target = os.path.join(root, name), os.path.join(folder, name)
        os.makedirs(os.path.dirname(target), exist_ok=True)
        if os.path.isdir(source):
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy2(source, target)
    names = [*(f"stagecraft-{tool}" for tool in TOOLS), *TESTS,
             *(name for name in BENCHMARKS if os.path.exists(os.path.join(programs, name)))]
    for subfolder in ("bin", "lib/newer"):
        os.makedirs(os.path.join(folder, subfolder))
    for name in names:
        shutil.copy2(os.path.join(programs, name), os.path.join(folder, "bin", name))
    libraries = copy_libraries([os.path.join(programs, name) for name in names], folder)
    files = [os.path.join(folder, "bin", name) for name in names] + libraries
    run("strip", "--strip-unneeded", *files)
    make_relative(files, folder)
    left_out = copy_headers(programs, folder)
    with open(os.path.join(folder, "README"), "w") as file:
        file.write(README.format(parts=parts))
    facts = {"version": run(os.path.join(programs, "stagecraft-predict"), "--version").strip(), "torch": places.TORCH,
             "commit": places.commit(root), "date": datetime.date.today().isoformat(),
             "libraries": sorted(os.path.basename(path) for path in libraries)}
    with open(os.path.join(folder, "pack.json"), "w") as file:
        json.dump(facts, file, indent=1)
        file.write("\n")
    size = sum(os.path.getsize(os.path.join(at, name)) for at, _, inside in os.walk(folder) for name in inside)
    if size >= MOST_BYTES:
        raise Missing(f"{folder} has {size / (1 << 20):.1f} MiB, must be below {MOST_BYTES >> 20} MiB")
    said = f"{folder}: {len(names)} programs, {size / (1 << 20):.1f} MiB, with {', '.join(facts['libraries'])}"
    return said + (f"; headers not packed, because they are not installed: {', '.join(left_out)}" if left_out else "")


def copy_libraries(programs: list[str], folder: str) -> list[str]:
    """Copies the libraries that the programs load and neither torch nor every system brings; returns the copies."""
    found: dict[str, str] = {}
    for program in programs:
        for name, path in re.findall(r"^\s*(\S+) => (.*?)(?: \(0x[0-9a-f]+\))?$", run("ldd", program), re.M):
            if path == "not found":
                raise Missing(f"{program} does not find {name}; build it again")
            if not BROUGHT.match(name):
                found[name] = path
    out = []
    for name, path in sorted(found.items()):
        out.append(os.path.join(folder, "lib/newer" if NEWER.match(name) else "lib", name))
        shutil.copyfile(path, out[-1])
    return out


def make_relative(files: list[str], folder: str) -> None:
    """Programs look for libraries in ../lib, and nothing looks in a folder of this machine."""
    script = os.path.join(folder, "relative.cmake")
    with open(script, "w") as file:
        for path in files:
            quoted = path.replace("\\", "\\\\").replace('"', '\\"')
            where = "\\$ORIGIN/../lib" if os.path.dirname(path).endswith("/bin") else ""
            # CMake's installer does the same; the new path must not be longer than the old one.
            change = f'RPATH_SET FILE "{quoted}" NEW_RPATH "{where}"' if where else f'RPATH_REMOVE FILE "{quoted}"'
            file.write(f"file({change})\n")
    try:
        run("cmake", "-P", script)
    finally:
        os.remove(script)


def copy_headers(programs: str, folder: str) -> list[str]:
    """Copies what a build takes from Debian's packages to deps/usr, and the CUDA headers that torch's packages lack to
    deps/cuda; returns what is not installed."""
    left_out = []
    for package in HEADERS:
        done = subprocess.run(["dpkg", "-L", package], capture_output=True, text=True) if shutil.which("dpkg") else None
        if not done or done.returncode:
            left_out.append(package)
            continue
        for path in done.stdout.splitlines():
            wanted = re.match(r"/usr/include/|.*/cmake/|.*/lib[^/]*\.(a|so[^/]*)$", path)
            if not wanted or UNUSED.search(path) or not os.path.isfile(path):
                continue
            # Alone in front of the compiler's folders, these are found without the one of this architecture.
            target = re.sub(r"^/usr/include/[^/]+-linux-gnu/", "/usr/include/", re.sub("^/lib/", "/usr/lib/", path))
            target = os.path.join(folder, "deps", target.lstrip("/"))
            os.makedirs(os.path.dirname(target), exist_ok=True)
            shutil.copyfile(path, target)
    cache = os.path.join(os.path.dirname(programs), "CMakeCache.txt")
    text = open(cache).read() if os.path.exists(cache) else ""
    for name, inside in (("CRT", "crt"), ("CCCL", "nv")):
        found = re.search(rf"^CudaLibraries_{name}_INCLUDE_DIR:PATH=(.*)$", text, re.M)
        if found and os.path.isdir(os.path.join(found[1], inside)):
            shutil.copytree(os.path.join(found[1], inside), os.path.join(folder, "deps/cuda/include", inside))
        else:
            left_out.append(f"CUDA's {inside}/")
    return left_out
