"""Cuts exported models into stages with `stagecraft convert` and compares them in PyTorch.

Usage: convert_test.py BIN [--archives DIR] [TESTS]. DIR keeps the archives; existing ones are reused."""

import contextlib
import functools
import json
import pathlib
import sys
import unittest
import warnings
import zipfile
from unittest import mock

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "support"), str(HERE.parent.parent / "scripts")]
import quick_export

try:
    import torch
except ImportError:
    print("skipped: this Python has no torch")
    sys.exit(77)

import make
import table
from exporter import program
from package_case import PackageCase

BIN = pathlib.Path(sys.argv.pop(1)).resolve() if len(sys.argv) > 1 else HERE
ARCHIVES = None
if "--archives" in sys.argv:
    at = sys.argv.index("--archives")
    ARCHIVES = pathlib.Path(sys.argv[at + 1]).resolve()
    del sys.argv[at : at + 2]


def load(path):
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given buffer is not writable")
        return torch.export.load(path)


@contextlib.contextmanager
def each_file_loaded_once(package):
    """torch.export.load gives one program for each file of the package; it yields the programs by name of the file."""
    programs, from_file, folder = {}, torch.export.load, pathlib.Path(package.__file__).parent

    def answer(path):
        path = pathlib.Path(path)
        if path.parent != folder:
            return from_file(path)
        if path.name not in programs:
            programs[path.name] = from_file(path)
        return programs[path.name]

    with mock.patch("torch.export.load", answer):
        yield programs


def records(path):
    """The records of an archive by name, relative to its folder; reading one checks its CRC."""
    with zipfile.ZipFile(path) as archive:
        assert all(each.compress_type == zipfile.ZIP_STORED for each in archive.infolist())
        return {each.filename.partition("/")[2]: archive.read(each) for each in archive.infolist()}


def notes_of(archive):
    """What the exporter notes in an archive."""
    with zipfile.ZipFile(archive) as opened:
        return json.loads(opened.read(f"{opened.namelist()[0].partition('/')[0]}/extra/stagecraft.json"))


def draw(exported, notes, samples, seed):
    """Inputs by name, with this many samples."""
    generator = torch.Generator().manual_seed(seed)
    ranges = {each["name"]: each["range"] for each in notes["inputs"]}
    out = {}
    for node in exported.graph.find_nodes(op="placeholder"):
        if node.name not in exported.graph_signature.user_inputs:
            continue
        value = node.meta["val"]
        shape = [extent if isinstance(extent, int) else samples for extent in value.shape]
        if value.dtype.is_floating_point:
            out[node.name] = torch.rand(shape, generator=generator, dtype=value.dtype)
        elif value.dtype == torch.bool:
            out[node.name] = torch.randint(0, 2, shape, generator=generator).bool()
        else:
            low, high = ranges[node.name]
            out[node.name] = torch.randint(max(low, 0), high, shape, generator=generator, dtype=value.dtype)
            if low == -100:  # labels, some of them ignored
                out[node.name][torch.rand(shape, generator=generator) < 0.25] = low
    return out


def tied_names(module):
    """Names of parameters, with those that share memory in one tuple."""
    names = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        names.setdefault((parameter.data_ptr(), parameter.shape), []).append(name)
    return [tuple(each) for each in names.values()]


def total(gradients):
    """The sum of the gradients that are not None, or None."""
    found = [each for each in gradients if each is not None]
    return sum(found[1:], found[0]) if found else None


def passes(model, inputs, loss_of):
    """The losses of two passes, and the gradients summed over both."""
    torch.manual_seed(5)
    losses = []
    for _ in range(2):
        loss = loss_of(model(*(each.clone() for each in inputs)))
        loss.backward()
        losses.append(loss.detach())
    return losses


class Restored:
    """A module that can return to its first state, without gradients, so that it need not be loaded again."""

    def __init__(self, module):
        self.module = module
        self.tensors = [*module.parameters(), *module.buffers()]
        with torch.no_grad():
            self.first = [each.clone() for each in self.tensors]

    def restore(self):
        with torch.no_grad():
            for each, first in zip(self.tensors, self.first):
                each.grad = None
                each.copy_(first)


class Whole:
    """An archive as PyTorch loads it, and what it computes; both once for all splits of the archive."""

    def __init__(self, archive):
        self.exported = load(archive)
        self.records = records(archive)
        self.notes = json.loads(self.records["extra/stagecraft.json"])
        module = self.exported.module()
        self.tied = tied_names(module)
        self.state = Restored(module)
        self.after = functools.cache(self.after)

    def after(self, samples):
        """(inputs, losses, gradients by name, buffers by name) of two passes of so many samples."""
        self.state.restore()
        module = self.state.module
        inputs = draw(self.exported, self.notes, samples, samples)
        losses = passes(module, inputs.values(), lambda out: out[self.notes["loss_output"]])
        gradients = {name: each.grad for name, each in module.named_parameters(remove_duplicate=False)}
        buffers = {name: each.detach().clone() for name, each in module.named_buffers(remove_duplicate=False)}
        return inputs, losses, gradients, buffers


whole_of = functools.lru_cache(maxsize=1)(Whole)
PROFILES = {}  # graph.json by archive and options


class Stages(PackageCase):
    BIN = BIN

    def archive(self, name):
        entry = table.MODELS[name]
        if not entry.is_installed():
            self.skipTest(f"{name} needs {entry.needs}, scripts/setup --with-models installs it")
        path = (ARCHIVES or self.folder) / f"{name}.pt2"
        if not path.exists():
            program.save(program.export(make.request(name)), str(path))
        return path

    def profile(self, archive, *options):
        """Writes graph.json, which is the same for all tests of an archive; returns the number of layers."""
        path, key = self.folder / "graph.json", (archive, *options)
        if key in PROFILES:
            path.write_text(PROFILES[key])
        else:
            samples = max(notes_of(archive)["samples"]["least"], 2)
            self.tool("profile", archive, "--microbatch", samples, "--max-seconds", 0.02, "--warmup", 0, "--concurrent", 1,
                      "--accept-untrusted", *options, "-o", "graph.json")
            PROFILES[key] = path.read_text()
        return sum(layer["kind"] != "Input" for layer in json.loads(PROFILES[key])["layers"])

    def converted(self, archive, stages, *options):
        """The package converted with a uniform plan."""
        name = f"{archive.stem}_{stages}"
        self.tool("plan", "graph.json", "--accept-untrusted", "--devices", max(stages, 2), "--strategy", "uniform", "--stages", stages, *options,
                  "-o", "plan.json")
        self.tool("convert", "plan.json", "--model", archive, "-o", name)
        return self.package(name)

    def check_equal(self, archive, package, stages):
        original = whole_of(archive)
        least, most = original.notes["samples"]["least"], original.notes["samples"]["most"]
        fused = package.full_model()
        state = Restored(fused)
        for samples in sorted({min(max(least, 2), most), min(5, most)}):
            inputs, wanted, gradients, buffers = original.after(samples)
            state.restore()
            self.assertEqual(fused.INPUTS, tuple(inputs))
            self.assert_same(passes(fused, inputs.values(), lambda out: out), wanted, "losses")

            parts = [stage for _, stage in sorted(fused.named_children())]
            self.assertEqual(len(parts), stages)
            found = {name: each for part in parts for name, each in part.named_parameters(remove_duplicate=False)}
            self.assertEqual(set(found), set(gradients))
            for names in original.tied:
                self.assertEqual(len({id(found[name]) for name in names}), 1, names)
                self.assert_same([found[names[0]].grad], [total(gradients[name] for name in names)], names)
            found = {}
            for part in parts:
                for name, buffer in part.named_buffers():
                    self.assert_same([buffer], [found.setdefault(name, buffer)], name)
            self.assertLessEqual(set(dict(original.exported.named_buffers())), set(found))
            for name, buffer in found.items():
                if name in buffers:
                    self.assert_same([buffer], [buffers[name]], name)

    def assert_same(self, found, wanted, what):
        self.assertEqual(len(found), len(wanted), what)
        for a, b in zip(found, wanted):
            self.assertEqual(a is None, b is None, what)
            if a is not None and not torch.equal(a, b):
                self.fail(f"{what}: {a.flatten()[:4]} {b.flatten()[:4]}")

    def check_files(self, archive, package, stages, programs):
        """Each stage's file opens alone and holds its weights, byte for byte; the configurations name the stages. `programs`:
        those that the package loaded, by name of the file."""
        folder = pathlib.Path(package.__file__).parent
        whole = whole_of(archive).records
        self.assertEqual(len(package.model()), stages + 1)
        self.assertEqual(set(programs), {f"stage{stage}.pt2" for stage in range(stages)})
        config = json.loads(whole["data/weights/model_weights_config.json"])["config"]
        seen = set()
        for stage in range(stages):
            path = folder / f"stage{stage}.pt2"
            part = records(path)
            own = json.loads(part["data/weights/model_weights_config.json"])["config"]
            self.assertEqual(set(own), set(programs[path.name].state_dict))
            seen |= set(own)
            for name, entry in own.items():
                self.assertEqual(entry, config[name])
                record = f"data/weights/{entry['path_name']}"
                self.assertEqual(part[record], whole[record], name)
            with open(path, "rb") as file, zipfile.ZipFile(path) as opened:
                for each in opened.infolist():
                    file.seek(each.header_offset + 26)
                    name, extra = (int.from_bytes(file.read(2), "little") for _ in range(2))
                    self.assertEqual((each.header_offset + 30 + name + extra) % 64, 0, each.filename)
        self.assertEqual(seen, set(config))
        confs = {each: json.loads((folder / f"{each}_conf.json").read_text()) for each in ("dp", "mp", "hybrid")}
        modules = [*range(stages), stages - 1]
        self.assertEqual([confs[each]["module_to_stage_map"] for each in confs], [[0] * (stages + 1), modules, modules])
        self.assertEqual(confs["mp"]["stage_to_rank_map"], {str(stage): [stage] for stage in range(stages)})
        return confs


# With a second name of a buffer that no layer reads. It may come to a stage other than the one that changes the buffer,
# and then keeps its initial value.
KEPT_ELSEWHERE = ("several_names",)


def every_model():
    def test(name):
        def run(self):
            archive = self.archive(name)
            layers = self.profile(archive)
            for stages in (1, 2, 3) if name not in KEPT_ELSEWHERE else (1,):
                with self.subTest(stages=stages):
                    if layers < stages:  # split by operators instead, which allows more cuts
                        layers = self.profile(archive, "--layers", "op")
                    package = self.converted(archive, stages)
                    with each_file_loaded_once(package) as programs:
                        self.check_equal(archive, package, stages)
                        self.check_files(archive, package, stages, programs)

        return run

    return {f"test_{name}": test(name) for name, entry in table.MODELS.items() if not entry.rounds}


EveryModel = type("EveryModel", (Stages,), {**every_model(), "__doc__": "Each test model in 1, 2 and 3 stages."})

class Packages(Stages):
    def setUp(self):
        super().setUp()
        self.file = self.archive("mlp")
        self.assertGreaterEqual(self.profile(self.file), 2)

    def test_the_state_of_the_whole_model_loads_into_any_split(self):
        exported = load(self.file)
        state = {name: torch.full_like(value, index) for index, (name, value) in enumerate(exported.state_dict.items())}
        for stages in (1, 3):
            fused = self.converted(self.file, stages).full_model()
            fused.load_state_dict(state)
            self.assertEqual(set(fused.state_dict()), set(state))
            for name, value in fused.state_dict().items():
                self.assert_same([value], [state[name]], name)

    def test_an_optimizer_changes_what_the_graph_reads(self):
        fused, whole = self.converted(self.file, 2).full_model(), load(self.file).module()
        notes = json.loads(records(self.file)["extra/stagecraft.json"])
        inputs = draw(load(self.file), notes, 4, 1)
        losses = []
        for model, loss_of in ((whole, lambda out: out[0]), (fused, lambda out: out)):
            optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
            steps = []
            for _ in range(3):
                optimizer.zero_grad()
                loss = loss_of(model(*inputs.values()))
                loss.backward()
                optimizer.step()
                steps.append(loss.detach())
            losses.append(steps)
        self.assert_same(losses[1], losses[0], "losses of Adam")
        self.assertNotEqual(losses[1][0], losses[1][2])

    def test_a_stage_moves_to_another_type_whole(self):
        stage = self.converted(self.file, 2).model()[0][0].to(torch.float64)
        self.assertEqual(stage(torch.ones(2, 8, dtype=torch.float64)).dtype, torch.float64)

    def test_a_stage_says_that_it_has_no_eval(self):
        with self.assertRaisesRegex(NotImplementedError, r"^stage0.pt2 computes as it was exported; there is no eval\(\)$"):
            self.converted(self.file, 1).full_model().eval()

    def test_our_own_reader_takes_the_stage_with_the_loss(self):
        package = self.converted(self.file, 2)
        last = pathlib.Path(package.__file__).parent / "stage1.pt2"
        # ReLU and Linear; a value computed from the inputs only, here the ReLU, is part of the layer that reads it.
        self.assertEqual(self.profile(last, "--input-range", "target=0..4"), 1)

    def test_stages_begin_inside_blocks_of_autocast_and_no_grad(self):
        for name, layers in (("whole_autocast", ["blocks.0", "blocks.1", "blocks.2", "head"]),
                             ("whole_no_grad", ["blocks.0", "blocks.1", "blocks.2", "head"])):
            archive = self.archive(name)
            self.assertEqual(self.profile(archive), 4)
            graph = json.loads((self.folder / "graph.json").read_text())
            self.assertEqual([each["name"] for each in graph["layers"] if each["kind"] != "Input"], layers)
            package = self.converted(archive, 2)
            self.check_equal(archive, package, 2)
            # Each stage enters the block again.
            folder = pathlib.Path(package.__file__).parent
            held = [sum("wrap_with_" in str(node.target) for node in load(folder / f"stage{stage}.pt2").graph.nodes) for stage in (0, 1)]
            self.assertEqual(held, [1, 1])

    def test_layers_that_share_a_cast_say_which_block_and_which_parameter(self):
        archive = self.archive("cached_autocast")
        said = self.tool("profile", archive, "--microbatch", 2, "--max-seconds", 0.02, "--warmup", 0, "--accept-untrusted", "-o", "graph.json")
        self.assertRegex(said, r'"shared@1" is part of layer "shared": both read "p_shared_weight", which the torch.autocast block '
                               r'"\w+" casts once for both; cache_enabled=False allows a cut between them')

    def test_ranks_are_those_of_the_replicas(self):
        self.tool("plan", "graph.json", "--accept-untrusted", "--devices", 3, "--strategy", "uniform", "--stages", 2, "--replicas", "2,1", "-o",
                  "plan.json")
        self.tool("convert", "plan.json", "--model", self.file, "-o", "replicas")
        read = lambda name: json.loads((self.folder / "replicas" / f"{name}_conf.json").read_text())["stage_to_rank_map"]
        self.assertEqual(read("hybrid"), {"0": [0, 1], "1": [2]})
        self.assertEqual(read("dp"), {"0": [0, 1, 2]})
        self.assertEqual(read("mp"), {"0": [0], "1": [1]})

    def test_what_does_not_fit_is_refused_and_nothing_is_written(self):
        other = self.archive("long_residual")
        self.converted(self.file, 2)
        said = self.tool("convert", "plan.json", "--model", other, "-o", "other", status=1)
        self.assertIn(f'plan.json: model "{other}": unknown layer "layers.0", known are ', said)
        said = self.tool("convert", "plan.json", "--model", self.file, "--layer", "Linear=a:B", "-o", "other", status=2)
        self.assertIn("is an archive, which contains its layers' code", said)
        said = self.tool("convert", "plan.json", "--model", self.file, "-o", "mlp_2", status=1)
        self.assertIn("mlp_2: is a directory that is not empty, expected an empty one or none", said)
        scripted = self.folder / "scripted.pt"
        torch.jit.save(torch.jit.script(torch.nn.Linear(2, 2)), str(scripted))
        said = self.tool("convert", "plan.json", "--model", scripted, "-o", "other", status=1)
        self.assertIn("is a TorchScript file, which cannot be converted; use the .pt2 that stagecraft export-model writes", said)
        said = self.tool("convert", self.file, "-o", "other", status=1)
        self.assertIn("is an archive, expected graph.json or PipeDream's graph.txt; an archive is converted by a plan.json", said)
        self.assertFalse((self.folder / "other").exists())
        (self.folder / "mlp_2" / "mine.txt").write_text("mine")
        said = self.tool("convert", "plan.json", "--model", self.file, "--force", "-o", "mlp_2", status=1)
        self.assertIn('mlp_2: holds "mine.txt", which stagecraft did not write', said)
        (self.folder / "mlp_2" / "mine.txt").unlink()
        self.tool("convert", "plan.json", "--force", "-o", "mlp_2")

    def test_equal_conversions_give_equal_bytes(self):
        self.converted(self.file, 2)
        self.tool("convert", "plan.json", "--model", self.file, "-o", "again")
        for path in (self.folder / "again").iterdir():
            self.assertEqual(path.read_bytes(), (self.folder / "mlp_2" / path.name).read_bytes(), path.name)


if __name__ == "__main__":
    quick_export.prepare()
    unittest.main()
