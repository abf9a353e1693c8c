"""Tests packages written by `stagecraft convert` in PyTorch. Usage: convert_packages.py BIN GOLDEN [TESTS]."""
import importlib
import json
import pathlib
import sys
import unittest

try:
    import torch
except ImportError as reason:
    print(f"skipped: {sys.executable} has no PyTorch: {reason}")
    sys.exit(77)

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))
from package_case import PackageCase

BIN, GOLDEN = (pathlib.Path(argument).resolve() for argument in sys.argv[1:3])
NODE = ("node{} -- {} -- forward_compute_time=1.000, backward_compute_time=1.000, activation_size=4.0, "
        "parameter_size=0.000")


def graph_text(descriptions, edges, stages=None):
    """Layer i is node{i}, in stage stages[i]."""
    lines = [NODE.format(i, text) for i, text in enumerate(descriptions)]
    if stages:
        lines = [f"{line} -- stage_id={stage}" for line, stage in zip(lines, stages)]
    return "\n".join(lines + [f"\tnode{a} -- node{b}" for a, b in edges]) + "\n"


def bytes_of_layers(text):
    """Layer -> parameter bytes, from the profile."""
    lines = [line.split(" -- ") for line in text.splitlines() if not line.startswith("\t")]
    return {line[0]: float(line[2].split("parameter_size=")[1]) for line in lines}


class Packages(PackageCase):
    BIN = BIN

    def setUp(self):
        super().setUp()
        torch.manual_seed(1)

    def planned(self, profile, stages, *options):
        """The package of a profile in the folder, planned by `stagecraft plan`."""
        name = f"{pathlib.Path(profile).stem}_{stages}"
        self.tool("import", "pipedream", profile, "-o", "graph.json")
        self.tool("plan", "graph.json", "--devices", 4, "--strategy", "profile", "--stages", stages, *options, "-o",
                  "plan.json")
        self.tool("convert", "plan.json", "--model", profile, "-o", name)
        return self.package(name)

    def parted(self, name, text, *options):
        """The package of an already partitioned graph."""
        (self.folder / f"{name}.txt").write_text(text)
        self.tool("convert", f"{name}.txt", "-o", name, *options)
        return self.package(name)

    def gradients(self, model, inputs, seed=7):
        """Outputs, and the gradients of every parameter by name."""
        torch.manual_seed(seed)
        model.zero_grad()
        outputs = model(*inputs)
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        sum((output * torch.linspace(-1, 1, output.numel()).view_as(output)).sum() for output in outputs).backward()
        names = {id(value): name for name, value in model.state_dict(keep_vars=True).items()}
        return outputs, {names[id(value)]: value.grad for value in model.parameters()}

    def assert_equal_tensors(self, first, second, name):
        self.assertTrue(first is not None and second is not None and torch.equal(first, second), name)

    def reference(self, whole, inputs):
        """A model of the package, its outputs and its gradients."""
        model = whole.full_model()
        return model, *self.gradients(model, inputs)

    def assert_same(self, reference, split, inputs):
        """Both packages contain the same model: the same names, and with the same weights the same bits."""
        model, outputs, gradients = reference
        with torch.device("meta"):
            other = split.full_model()
        self.assertEqual(list(model.state_dict()), list(other.state_dict()))
        other.load_state_dict(model.state_dict(), assign=True)
        other_outputs, other_gradients = self.gradients(other, inputs)
        self.assertEqual(len(outputs), len(other_outputs))
        for i, (a, b) in enumerate(zip(outputs, other_outputs)):
            self.assert_equal_tensors(a, b, f"output {i}")
        self.assertEqual(gradients.keys(), other_gradients.keys())
        for name, gradient in gradients.items():
            self.assert_equal_tensors(gradient, other_gradients[name], name)

    def check_profile(self, name, inputs):
        profile = GOLDEN / f"{name}.txt"
        whole = self.planned(profile, 1)
        with torch.device("meta"):
            stage = whole.full_model().stage0
        layers = dict(stage.named_children())
        for layer, wanted in bytes_of_layers(profile.read_text()).items():
            found = sum(p.numel() * p.element_size() for p in layers[layer].parameters()) if layer in layers else 0
            self.assertEqual(found, wanted, f"parameter bytes of {layer}")
        reference = self.reference(whole, inputs)
        for stages in (2, 4):
            split = self.planned(profile, stages)
            self.assertEqual(len(split.model(None)), stages + 1)
            self.assertEqual(split.arch(), name)
            self.assert_same(reference, split, inputs)


class PublishedProfiles(Packages):
    """One, two and four stages give the same bits, dropout included, and parameters have the bytes that the profile
    states."""

    def test_alexnet(self):
        self.check_profile("alexnet", [torch.randn(2, 3, 224, 224)])

    def test_vgg16(self):
        self.check_profile("vgg16", [torch.randn(1, 3, 224, 224)])

    def test_resnet18(self):
        self.check_profile("resnet18", [torch.randn(2, 3, 224, 224)])

    def test_resnet50(self):
        self.check_profile("resnet50", [torch.randn(2, 3, 224, 224)])

    def test_gnmt(self):
        words = torch.randint(1, 32320, (3, 2))
        self.check_profile("gnmt", [words, torch.tensor([3, 2]), torch.randint(1, 32320, (2, 2))])


class Stages(Packages):
    def test_hand_gradients_back_over_detached_tensors(self):
        """Runs the stages as a pipeline would: no gradient is lost at a boundary."""
        package = self.planned(GOLDEN / "resnet18.txt", 4)
        whole = package.full_model()
        inputs = [torch.randn(2, 3, 224, 224)]
        outputs, wanted = self.gradients(whole, inputs)
        modules = package.model(None)[:-1]
        state = whole.state_dict()
        given = dict(zip(whole.INPUTS, inputs))
        received, made, gradients = [], [], {}
        for module, names, results in modules:
            self.assertEqual((tuple(names), tuple(results)), (module.INPUTS, module.OUTPUTS))
            module.load_state_dict({key: state[key] for key in module.state_dict()})
            taken = {name: given[name].detach().requires_grad_() for name in names}
            result = module(*taken.values())
            made.append(dict(zip(results, result if len(results) > 1 else (result,))))
            received.append(taken)
            given.update(made[-1])
        last = given["node71"]
        self.assert_equal_tensors(outputs[0], last, "output")
        gradients["node71"] = torch.linspace(-1, 1, last.numel()).view_as(last)
        for (module, _, _), taken, results in reversed(list(zip(modules, received, made))):
            torch.autograd.backward(list(results.values()), [gradients[name] for name in results])
            for name, value in taken.items():
                gradients[name] = gradients[name] + value.grad if name in gradients else value.grad
            for name, parameter in module.named_parameters():
                self.assert_equal_tensors(parameter.grad, wanted[name], name)

    def test_leave_what_they_received_as_it_is(self):
        text = graph_text(["Input", "Linear(2, 2)", "ReLU(inplace)"], [(0, 1), (1, 2)], [0, 0, 1])
        stage, _, _ = self.parted("cut", text).model(None)[1]
        received = torch.tensor([-1.0, 1.0], requires_grad=True)
        stage(received).sum().backward()
        self.assertEqual((received.tolist(), received.grad.tolist()), ([-1.0, 1.0], [0.0, 1.0]))

    def test_replicas_of_one_stage_are_a_configuration(self):
        package = self.planned(GOLDEN / "alexnet.txt", 1, "--replicas", 4)
        conf = {path.name: json.loads(path.read_text()) for path in (self.folder / "alexnet_1").glob("*.json")}
        self.assertEqual(sorted(conf), ["dp_conf.json", "hybrid_conf.json", "mp_conf.json"])
        for name, ranks in (("dp_conf.json", [0, 1, 2, 3]), ("hybrid_conf.json", [0, 1, 2, 3]), ("mp_conf.json", [0])):
            self.assertEqual(conf[name]["module_to_stage_map"], [0, 0])
            self.assertEqual(conf[name]["stage_to_rank_map"], {"0": ranks})
        self.assertEqual(len(package.model(None)), 2)

    def test_long_residual_networks_convert_and_run(self):
        """300 residual blocks have 2^300 paths."""
        descriptions, edges, blocks = ["Input"], [], 300
        for _ in range(blocks):
            last = len(descriptions) - 1
            descriptions += ["Conv2d(2, 2, kernel_size=(1, 1))", "BatchNorm2d(2)", "ReLU(inplace)", "Add(inplace)"]
            edges += [(last, last + 1), (last + 1, last + 2), (last + 2, last + 3), (last + 3, last + 4),
                      (last, last + 4)]
        stages = [max(i - 1, 0) * 4 // (4 * blocks) for i in range(len(descriptions))]
        whole = self.parted("long_1", graph_text(descriptions, edges, [0] * len(stages)))
        split = self.parted("long_4", graph_text(descriptions, edges, stages))
        self.assertEqual(len(split.model(None)), 5)
        inputs = [torch.randn(2, 2, 4, 4)]
        self.assert_same(self.reference(whole, inputs), split, inputs)

    def test_inputs_outputs_and_values_of_two_readers_in_any_stage(self):
        descriptions = ["Input0", "Linear(4, 4)", "ReLU(inplace)", "Input1", "Add", "Linear(4, 3)", "Mul",
                        "Linear(4, 2)"]
        edges = [(0, 1), (1, 2), (2, 4), (3, 4), (4, 5), (2, 6), (4, 6), (6, 7)]
        whole = self.parted("wide_1", graph_text(descriptions, edges, [0] * 8))
        split = self.parted("wide_3", graph_text(descriptions, edges, [0, 0, 0, 0, 1, 1, 2, 2]))
        inputs = [torch.randn(5, 4), torch.randn(5, 4)]
        self.assertEqual(whole.full_model().OUTPUTS, ("node5", "node7"))
        self.assertEqual(split.model("loss")[3], ("loss", ["node5", "node7"], ["loss"]))
        model, *_ = reference = self.reference(whole, inputs)
        self.assert_same(reference, split, inputs)
        state = model.state_dict()
        hidden = torch.relu(inputs[0] @ state["node1.weight"].T + state["node1.bias"])
        total = hidden + inputs[1]
        five, seven = model(*inputs)
        torch.testing.assert_close(five, total @ state["node5.weight"].T + state["node5.bias"])
        torch.testing.assert_close(seven, (hidden * total) @ state["node7.weight"].T + state["node7.bias"])

    def test_states_of_recurrent_layers_cross(self):
        descriptions = ["Input", "LSTM(4, 4)", "__getitem__(0)", "__getitem__(1)", "LSTM(4, 4)", "__getitem__(0)",
                        "Tanh"]
        edges = [(0, 1), (1, 2), (1, 3), (2, 4), (3, 4), (4, 5), (5, 6)]
        whole = self.parted("state_1", graph_text(descriptions, edges, [0] * 7))
        split = self.parted("state_2", graph_text(descriptions, edges, [0, 0, 0, 1, 1, 1, 1]))
        self.assertEqual(len(split.model(None)[0][2]), 3)
        inputs = [torch.randn(3, 2, 4)]
        self.assert_same(self.reference(whole, inputs), split, inputs)

    def test_a_state_of_another_model_is_refused(self):
        model = self.parted("strict", graph_text(["Input", "Linear(2, 2)"], [(0, 1)], [0, 0])).full_model()
        state = model.state_dict()
        with self.assertRaisesRegex(RuntimeError, "Unexpected key.*node9.weight"):
            model.load_state_dict({**state, "node9.weight": torch.ones(1)})
        with self.assertRaisesRegex(RuntimeError, "Missing key.*stage0.node1.bias"):
            model.load_state_dict({"node1.weight": state["node1.weight"]})

    def test_a_kind_of_ones_own_is_constructed(self):
        (self.folder / "my_layers.py").write_text("import torch\n\n\nclass Scale(torch.nn.Module):\n"
                                                  "    def __init__(self, by, name):\n        super().__init__()\n"
                                                  "        self.by, self.name = by, name\n\n"
                                                  "    def forward(self, x):\n        return x * self.by\n")
        text = graph_text(["Input", "Times(3, name='a-b')"], [(0, 1)], [0, 0])
        package = self.parted("own", text, "--layer", "Times=my_layers:Scale")
        self.assertEqual(package.full_model()(torch.ones(1)), 3)
        self.assertEqual(package.full_model().stage0.node1.name, "a-b")


class HostileFiles(Packages):
    """No text from a file is executed."""

    def test_run_nothing(self):
        mark = "import pathlib; pathlib.Path('MARK').touch()"
        call = "__import__('pathlib').Path('MARK').touch()"
        descriptions = [f"Linear({call}, 2)", f"Linear(2, 2, bias={call})", f"Tanh(); {mark}", f"Tanh\x0b{mark}",
                        f"Dropout(p=0.5, {call}=1)", f"Sequential((a): {call})", "Linear(2, 2, bias='\\')",
                        f'"""{mark}', f"{call}(1)", "Size(0); 1", "__getitem__('a')", "__class__", "self.__init__(1)",
                        "eval('1')"]
        for i, text in enumerate(descriptions):
            (self.folder / "hostile.txt").write_text(graph_text(["Input", text], [(0, 1)], [0, 0]))
            message = self.tool("convert", "hostile.txt", "-o", f"hostile_{i}", status=1)
            self.assertIn('layer "node1": ', message)
            self.assertFalse((self.folder / f"hostile_{i}").exists())

    def test_give_ids_and_names_that_do_nothing(self):
        ids = ["forward", "a\"\nb", "a); raise SystemExit(", "__init__", "import", "état", "x" * 300, "a'\"\"\"", "."]
        text = graph_text(["Input"] + ["Linear(2, 2)"] * len(ids), [(i, i + 1) for i in range(len(ids))])
        (self.folder / "plain.txt").write_text(text)
        self.tool("import", "pipedream", "plain.txt", "-o", "graph.json")
        document = json.loads((self.folder / "graph.json").read_text())
        document["name"] = "m\"\"\"\nraise SystemExit('named')\n"
        new = {f"node{i + 1}": name for i, name in enumerate(ids)}
        for layer in document["layers"]:
            layer["id"] = new.get(layer["id"], layer["id"])
            layer["stage"] = int(layer["id"] in ids[5:])
        for edge in document["edges"]:
            edge["source"], edge["destination"] = (new.get(edge[end], edge[end]) for end in ("source", "destination"))
        document["provenance"]["notes"] = {}
        (self.folder / "hostile.json").write_text(json.dumps(document))
        self.tool("convert", "hostile.json", "-o", "hostile")
        package = self.package("hostile")
        self.assertEqual(package.arch(), document["name"])
        self.assertEqual(package.full_model()(torch.ones(1, 2)).shape, (1, 2))
        self.assertEqual(len(package.full_model().state_dict()), 2 * len(ids))


class GnmtLayers(Packages):
    """Compares the package's own definitions with the formulas."""

    def setUp(self):
        super().setUp()
        text = graph_text(["Input", "Classifier(  (classifier): Linear(in_features=2, out_features=2, bias=True))"],
                          [(0, 1)], [0, 0])
        self.parted("own_layers", text)
        self.layers = importlib.import_module("own_layers.layers")

    def test_bidirectional_lstm_reads_each_sequence_to_its_own_end(self):
        module = self.layers.EmuBidirLSTM(3, 4)
        inputs, lengths = torch.randn(5, 3, 3), [2, 5, 4]
        outputs = module(inputs, torch.tensor(lengths))
        self.assertEqual(outputs.shape, (5, 3, 8))
        for i, length in enumerate(lengths):
            alone, _ = module.bidir(inputs[:length, i:i + 1])
            torch.testing.assert_close(outputs[:length, i], alone[:, 0])
            self.assertEqual(outputs[length:, i].count_nonzero(), 0)

    def test_attention_weighs_keys_by_the_softmax_of_their_scores(self):
        module = self.layers.RecurrentAttention(3, 4, 6, 5)
        inputs, context, lengths = torch.randn(2, 2, 3), torch.randn(4, 2, 6), [4, 2]
        outputs, state, attended, scores = module(inputs, None, context, torch.tensor(lengths))
        wanted, wanted_state = module.rnn(inputs)
        torch.testing.assert_close(outputs, wanted)
        torch.testing.assert_close(state, wanted_state)
        attention = module.attn
        for t in range(2):
            for b, length in enumerate(lengths):
                energy = [attention.linear_att @ torch.tanh(attention.linear_q.weight @ wanted[t, b] +
                                                            attention.linear_k.weight @ context[k, b])
                          for k in range(length)]
                weights = torch.stack(energy).exp() / torch.stack(energy).exp().sum()
                torch.testing.assert_close(scores[t, b, :length], weights)
                self.assertEqual(scores[t, b, length:].count_nonzero(), 0)
                torch.testing.assert_close(attended[t, b], sum(w * context[k, b] for k, w in enumerate(weights)))


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
