#!/usr/bin/env python3
"""cluster_test.py SOURCE BIN: runs examples/cluster with stand-ins for the launchers, and checks the Kubeflow manifest."""
import json, os, re, shutil, subprocess, sys, tempfile
sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "fake_launchers"))
from commands_test import Shell
from ranks import free_port

# The fields of a PyTorchJob, kubeflow.org/v1, that the manifest uses, with their types. Written after
# manifests/base/crds/kubeflow.org_pytorchjobs.yaml and pkg/apis/kubeflow.org/v1/{pytorch,common}_types.go of
# github.com/kubeflow/training-operator, release 1.9, and for pods after the Kubernetes API v1 (PodSpec). A tuple lists the values.
# On 2026-11-26, the whole manifest also agreed with the published OpenAPI models, openapi_types in PyPI's kubeflow-training
# 1.9.4 and kubernetes 37.0.2: all 107 values have a field and a type there.
POD = {"spec": {"terminationGracePeriodSeconds": int,
                "containers": [{"name": str, "image": str, "workingDir": str, "command": [str], "args": [str],
                                "env": [{"name": str, "value": str, "valueFrom": {"secretKeyRef": {"name": str, "key": str}}}],
                                "resources": {"limits": {"cpu": str, "memory": str}},
                                "volumeMounts": [{"name": str, "mountPath": str}]}],
                "volumes": [{"name": str, "persistentVolumeClaim": {"claimName": str}}]}}
REPLICAS = {"replicas": int, "restartPolicy": ("Always", "OnFailure", "Never", "ExitCode"), "template": POD}
JOB = {"apiVersion": ("kubeflow.org/v1",), "kind": ("PyTorchJob",), "metadata": {"name": str},
       "spec": {"nprocPerNode": str, "runPolicy": {"cleanPodPolicy": ("All", "Running", "None"), "backoffLimit": int},
                "pytorchReplicaSpecs": {"Master": REPLICAS, "Worker": REPLICAS}}}


def check(value, wanted, where):
    """Raises if a value has a field or a type that JOB doesn't know."""
    if isinstance(wanted, dict):
        assert isinstance(value, dict), f"{where}: is not a mapping"
        for key, each in value.items():
            assert key in wanted, f"{where}/{key}: unknown field, known are {sorted(wanted)}"
            check(each, wanted[key], f"{where}/{key}")
    elif isinstance(wanted, list):
        assert isinstance(value, list) and value, f"{where}: is not a list"
        for i, each in enumerate(value):
            check(each, wanted[0], f"{where}/{i}")
    elif isinstance(wanted, tuple):
        assert value in wanted, f"{where}: {value} is none of {wanted}"
    else:
        assert type(value) is wanted, f"{where}: {value!r} is not of type {wanted.__name__}"


def check_manifest(shell, folder, source):
    """Checks the manifest, and runs its command in a process per pod with what the operator sets."""
    try:
        import yaml
    except ImportError:
        print("the manifest was not checked: Python has no module yaml")
        return
    with open(os.path.join(source, "examples/cluster/pytorchjob.yaml")) as file:
        job = yaml.safe_load(file)
    check(job, JOB, "")
    specs = job["spec"]["pytorchReplicaSpecs"]
    assert specs["Master"]["replicas"] == 1  # the operator accepts no other number
    world, port, running = sum(each["replicas"] for each in specs.values()), free_port(), []
    for kind, spec in specs.items():
        pod = spec["template"]["spec"]
        container = next(c for c in pod["containers"] if c["name"] == "pytorch")
        assert {m["name"] for m in container["volumeMounts"]} == {v["name"] for v in pod["volumes"]}
        assert container["volumeMounts"][0]["mountPath"] == container["workingDir"]
        said = {e["name"]: e.get("value", "from-the-secret") for e in container["env"]}
        for index in range(spec["replicas"]):
            rank = index + (kind == "Worker")
            environment = shell.environment | said | {"RANK": str(rank), "WORLD_SIZE": str(world), "MASTER_ADDR": "localhost",
                                                      "MASTER_PORT": str(port)}
            running.append(subprocess.Popen(container["command"] + container["args"], cwd=folder, env=environment, text=True,
                                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT))
    outputs = [each.communicate()[0] for each in running]
    assert not any(each.returncode for each in running), "\n".join(outputs)
    shutil.rmtree(os.path.join(folder, "checkpoints"))
    print(f"pytorchjob.yaml: fields are known; {world} ranks trained")


def run(shell, folder, command, *wanted):
    done = shell.run(folder, command)
    assert done.returncode == 0, f"{command} ended with {done.returncode}: {done.stdout}"
    for each in wanted:
        assert re.search(each, done.stdout), f"{command}: does not print {each}: {done.stdout}"
    print(f"{command}: done")


def main(source, programs):
    source = os.path.realpath(source)
    scripts = os.path.join(source, "examples/cluster")
    if shutil.which("shellcheck"):
        names = [os.path.join(scripts, n) for n in os.listdir(scripts) if n.endswith((".sh", ".sbatch"))]
        subprocess.run(["shellcheck", *names, os.path.join(source, "scripts/slurm/run.sbatch")], check=True)
    work = tempfile.mkdtemp(prefix="stagecraft_cluster.")
    try:
        shell = Shell(source, os.path.realpath(programs), work)
        folder = shell.folder("everything")
        with open(os.path.join(folder, "hosts.txt"), "w") as file:
            file.write("red slots=2  # the first host\nblue slots=2\n")
        job = "sbatch --nodes=2 --ntasks-per-node=1 examples/cluster/slurm.sbatch mlp --steps 4"
        run(shell, folder, job, "Submitted batch job", "samples per second", "rank 0 idle")
        assert os.path.getsize(os.path.join(folder, "report.html")) > 10000
        run(shell, folder, job.replace("--steps 4", "--steps 6"), "resuming from checkpoints/step-4")  # as after a requeue
        shutil.rmtree(os.path.join(folder, "checkpoints"))

        four = "stagecraft plan graph.json -n 4 --strategy profile --force -o plan.json"
        run(shell, folder, four)
        assert len(json.load(open(os.path.join(folder, "plan.json")))["stages"]) == 4
        run(shell, folder, "STAGECRAFT_SECRET=words examples/cluster/torchrun.sh 2 2 red:29500 plan.json --steps 2", "in 2 steps")
        run(shell, folder, "examples/cluster/mpirun.sh hosts.txt plan.json --steps 4", "resuming from checkpoints/step-2")
        refused = shell.run(folder, "examples/cluster/torchrun.sh 2 2 red:29500 plan.json")
        assert refused.returncode and "STAGECRAFT_SECRET: is not set" in refused.stdout, refused.stdout
        assert shell.run(folder, "examples/cluster/mpirun.sh hosts.txt").returncode == 2
        shutil.rmtree(os.path.join(folder, "checkpoints"))
        check_manifest(shell, folder, source)
    finally:
        shutil.rmtree(work, ignore_errors=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
