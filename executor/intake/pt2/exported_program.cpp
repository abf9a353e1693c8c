#include "executor/intake/pt2/exported_program.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_set>

#include "costmodel/text/number.h"
#include "executor/intake/pt2/flattened_blocks.h"
#include "executor/intake/pt2/program_arguments.h"
#include "executor/intake/pt2/program_guards.h"
#include "executor/intake/pt2/program_metadata.h"
#include "executor/intake/pt2/pt2_archive.h"

namespace stagecraft::intake {
namespace {

using Kind = ProgramValue::Kind;

constexpr int kMajor = 8;

/// "key,path,type" of each frame, joined by ";". A type may contain commas; a second call has "@1" in its key.
std::vector<ModuleFrame> read_module_stack(const format::Cursor& at) {
  const std::string text = at.text();
  std::vector<ModuleFrame> out;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find(';', begin), text.size());
    const std::string frame = text.substr(begin, end - begin);
    begin = end + 1;
    if (frame.starts_with("_empty_nn_module_stack")) continue;
    const std::size_t first = frame.find(',');
    const std::size_t last = frame.rfind(',');
    if (first == last) at.fail("found a frame \"" + frame + "\", expected \"key,path,type\"");
    ModuleFrame module{frame.substr(first + 1, last - first - 1), frame.substr(last + 1), 0};
    const std::string key = frame.substr(0, first);
    const std::size_t call = key.rfind('@');
    if (call != std::string::npos) {
      constexpr int kMostCalls = 1'000'000;
      module.call = number_in<int>(key.substr(call + 1)).value_or(-1);
      if (module.call < 0 || module.call >= kMostCalls)
        at.fail("found a frame \"" + frame + "\", expected a call number after \"@\"");
    }
    out.push_back(std::move(module));
  }
  return out;
}

std::string describe(const std::string& name, const std::string& target, const std::vector<ModuleFrame>& modules) {
  const std::string path = modules.empty() || modules.back().path.empty() ? "" : " of module " + modules.back().path;
  return fmt::format("node \"{}\" ({}){}", name, target, path);
}

ProgramArgument read_node_argument(const format::Cursor& at, const ProgramScope& scope) {
  format::Fields parts(at);
  ProgramArgument out;
  out.name = parts.required("name").text();
  out.value = read_argument(parts.required("arg"), scope);
  (void)parts.optional("kind");
  parts.done();
  return out;
}

ProgramBlock read_block(const format::Cursor& at, const ProgramScope& scope) {
  format::Fields fields(at);
  ProgramBlock out;
  out.name = fields.required("node").text();
  out.target = fields.required("target").text();
  out.arguments =
      fields.required("inputs").list([&](const format::Cursor& input) { return read_node_argument(input, scope); });
  (void)fields.required("graph");
  fields.done();
  return out;
}

ProgramNode read_node(const format::Cursor& at, std::size_t number, ProgramScope& scope) {
  format::Fields fields(at);
  ProgramNode out;
  out.target = fields.required("target").text();
  const auto name = fields.optional("name");
  out.name = name ? name->text() : fmt::format("node_{}", number);
  if (const auto metadata = fields.optional("metadata")) {
    if (!metadata->value().is_object()) metadata->fail_type("an object");
    const auto stack = metadata->value().find("nn_module_stack");
    if (stack != metadata->value().end()) out.modules = read_module_stack(metadata->inside(*stack));
    const auto blocks = metadata->value().find(kBlocksKey);
    if (blocks != metadata->value().end())
      out.blocks =
          metadata->inside(*blocks).list([&](const format::Cursor& block) { return read_block(block, scope); });
  }
  (void)fields.optional("is_hop_single_tensor_return");
  const format::Cursor inputs = fields.required("inputs").under(describe(out.name, out.target, out.modules));
  const format::Cursor outputs = fields.required("outputs").under(describe(out.name, out.target, out.modules));
  fields.done();

  out.arguments = inputs.list([&](const format::Cursor& argument) { return read_node_argument(argument, scope); });
  out.results = outputs.list([&](const format::Cursor& result) { return define_result(result, scope); });
  return out;
}

/// Defines the inputs, in order; nothing for a literal.
std::vector<std::optional<ValueIndex>> define_inputs(const format::Cursor& at, ProgramScope& scope) {
  return at.list([&](const format::Cursor& input) -> std::optional<ValueIndex> {
    const Choice choice = read_choice(input);
    if (choice.key == "as_custom_obj") input.fail("found a custom object as an input, expected tensors and numbers");
    const bool number = choice.key.starts_with("as_sym_");
    if (choice.key != "as_tensor" && !(number && read_choice(choice.value).key == "as_name")) {
      (void)read_argument(input, scope);
      return std::nullopt;
    }
    const ProgramResult result = define_result(input, scope);
    return result.values.empty() ? std::nullopt : std::optional(result.values.front());
  });
}

/// Nodes and outputs of the graph at `at`, whose inputs are in `scope` already.
void read_body(const format::Cursor& at, ProgramScope& scope, ProgramGraph& graph) {
  format::Fields fields(at);
  for (const char* read : {"inputs", "tensor_values", "sym_int_values", "sym_bool_values"}) (void)fields.required(read);
  for (const char* read : {"is_single_tensor_return", "sym_float_values"}) (void)fields.optional(read);
  const auto objects = fields.optional("custom_obj_values");
  if (objects && !objects->value().empty()) objects->fail("found custom objects, expected a program without them");
  const format::Cursor nodes = fields.required("nodes");
  const format::Cursor outputs = fields.required("outputs");
  fields.done();

  std::unordered_set<std::string> names;
  graph.nodes.reserve(nodes.elements());
  for (std::size_t i = 0; i < nodes.elements(); ++i) {
    graph.nodes.push_back(read_node(nodes.at(i), i, scope));
    if (!names.insert(graph.nodes.back().name).second)
      nodes.at(i).fail("node \"" + graph.nodes.back().name + "\" appears twice; names must be unique");
  }
  graph.outputs = outputs.list([&](const format::Cursor& output) { return read_argument(output, scope); });
  scope.check_tables();
}

/// The value to which an input of the signature refers.
ValueIndex input_value(const format::Cursor& spec, format::Fields& fields, const std::optional<ValueIndex>& given,
                       const ProgramScope& scope) {
  const format::Cursor argument = fields.required("arg");
  const std::string name = format::Fields(argument).required("name").text();
  if (!given || scope.value(*given).name != name)
    spec.fail(fmt::format("found value \"{}\", expected {} as in the graph", name,
                          given ? "\"" + scope.value(*given).name + "\"" : "a literal"));
  if (scope.value(*given).kind != Kind::Tensor) spec.fail(fmt::format("value \"{}\" is not a tensor", name));
  return *given;
}

ProgramInput read_input(const format::Cursor& at, const std::optional<ValueIndex>& given, const ProgramScope& scope) {
  const Choice choice = read_choice(at);
  const format::Cursor& spec = choice.value;
  ProgramInput out;
  if (choice.key == "custom_obj" || choice.key == "token")
    at.fail("found an input \"" + choice.key + "\", expected tensors and numbers");
  if (choice.key != "parameter" && choice.key != "buffer" && choice.key != "tensor_constant" &&
      choice.key != "user_input" && choice.key != "constant_input") {
    at.fail(
        unknown_name("input", choice.key, {"parameter", "buffer", "tensor_constant", "user_input", "constant_input"}));
  }
  format::Fields fields(spec);
  if (choice.key == "parameter") {
    out = {ProgramInput::Kind::Parameter, input_value(spec, fields, given, scope),
           fields.required("parameter_name").text(), true};
  } else if (choice.key == "buffer") {
    out = {ProgramInput::Kind::Buffer, input_value(spec, fields, given, scope), fields.required("buffer_name").text(),
           fields.required("persistent").boolean()};
  } else if (choice.key == "tensor_constant") {
    out = {ProgramInput::Kind::Constant, input_value(spec, fields, given, scope),
           fields.required("tensor_constant_name").text(), true};
  } else if (choice.key == "constant_input") {
    out = {ProgramInput::Kind::Folded, {}, fields.required("name").text(), true};
    (void)fields.required("value");
    if (given) spec.fail("found a literal, expected \"" + scope.value(*given).name + "\"");
  } else {
    const ArgumentValue value = read_argument(fields.required("arg"), scope);
    const auto* const named = std::get_if<ValueIndex>(&value);
    if (named == nullptr || given != *named) spec.fail("the value differs from the graph's");
    out = {ProgramInput::Kind::User, *named, scope.value(*named).name, true};
  }
  fields.done();
  return out;
}

void check_output(const format::Cursor& at, const ArgumentValue& given, const ProgramScope& scope) {
  const Choice choice = read_choice(at);
  if (choice.key != "user_output" && choice.key != "loss_output") {
    for (const char* other : {"buffer_mutation", "parameter_mutation", "user_input_mutation", "gradient_to_parameter",
                              "gradient_to_user_input", "token"}) {
      if (choice.key == other)
        at.fail(fmt::format(
            "found an output \"{}\", expected a program from torch.export.export, without run_decompositions()",
            other));
    }
    at.fail(unknown_name("output", choice.key, {"user_output", "loss_output"}));
  }
  format::Fields fields(choice.value);
  const format::Cursor argument = fields.required("arg");
  fields.done();
  bool same = false;
  if (choice.key == "loss_output") {
    const auto* const value = std::get_if<ValueIndex>(&given);
    same = value != nullptr && scope.value(*value).name == format::Fields(argument).required("name").text();
  } else {
    same = read_argument(argument, scope) == given;
  }
  if (!same) argument.fail("the value differs from the graph's");
}

void check_versions(format::Fields& fields) {
  const format::Cursor version = fields.required("schema_version");
  format::Fields parts(version);
  const format::Cursor major = parts.required("major");
  (void)parts.required("minor");
  parts.done();
  if (const std::int64_t found = read_int(major); found != kMajor)
    major.fail(fmt::format("found major version {}, expected {}: export with PyTorch 2.11", found, kMajor));
  const format::Cursor verifiers = fields.required("verifiers");
  const auto found = verifiers.list([](const format::Cursor& verifier) { return verifier.text(); });
  if (found != std::vector<std::string>{"TRAINING"})
    verifiers.fail_type("[\"TRAINING\"], a program from torch.export.export, without run_decompositions()");
}

}  // namespace

std::shared_ptr<const ProgramGraph> read_nested_graph(const format::Cursor& at, const std::set<std::string>& symbols) {
  auto out = std::make_shared<ProgramGraph>();
  ProgramScope scope(at, symbols);
  const format::Cursor inputs = format::Fields(at).required("inputs");
  const auto values = define_inputs(inputs, scope);
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (!values[i]) inputs.at(i).fail_type("a tensor or a number with a name");
    out->inputs.push_back(*values[i]);
  }
  read_body(at, scope, *out);
  out->values = scope.take_values();
  return out;
}

namespace {

ExportedProgram read_document(const format::Json& document, const std::string& place) {
  const format::Cursor root(document, place);
  format::Fields fields(root);
  check_versions(fields);
  ExportedProgram out;
  out.torch_version = fields.required("torch_version").text();

  format::Fields module(fields.required("graph_module"));
  const format::Cursor graph = module.required("graph");
  format::Fields signature(module.required("signature"));
  const format::Cursor input_specs = signature.required("input_specs");
  const format::Cursor output_specs = signature.required("output_specs");
  signature.done();
  for (const char* unread : {"module_call_graph", "metadata", "treespec_namedtuple_fields"})
    (void)module.optional(unread);
  module.done();

  ProgramScope scope(graph, {});
  scope.set_open(true);
  const auto given = define_inputs(format::Fields(graph).required("inputs"), scope);
  scope.set_open(false);
  if (input_specs.elements() != given.size())
    input_specs.fail(fmt::format("found {} inputs, expected {} as in the graph", input_specs.elements(), given.size()));
  std::unordered_set<std::string> stored;
  for (std::size_t i = 0; i < given.size(); ++i) {
    const format::Cursor spec = input_specs.at(i);
    out.inputs.push_back(read_input(spec, given[i], scope));
    const ProgramInput& input = out.inputs.back();
    if (input.kind == ProgramInput::Kind::Folded) continue;
    out.graph.inputs.push_back(input.value);
    if (input.kind == ProgramInput::Kind::User) {
      scope.admit_symbols(input.value);
    } else if (!stored.insert(input.name).second) {
      spec.fail("\"" + input.name + "\" appears twice; inputs must be unique");
    }
  }
  read_body(graph, scope, out.graph);
  if (output_specs.elements() != out.graph.outputs.size()) {
    output_specs.fail(fmt::format("found {} outputs, expected {} as in the graph", output_specs.elements(),
                                  out.graph.outputs.size()));
  }
  for (std::size_t i = 0; i < out.graph.outputs.size(); ++i)
    check_output(output_specs.at(i), out.graph.outputs[i], scope);
  out.graph.values = scope.take_values();

  out.ranges = read_ranges(fields.required("range_constraints"));
  if (const auto guards = fields.optional("guards_code")) check_guards(*guards, out);
  (void)fields.optional("opset_version");
  fields.done();
  return out;
}

}  // namespace

ExportedProgram read_exported_program(const std::string& json, const std::string& place) {
  format::Json document = format::parse_document(json, place);
  ExportedProgram out = read_document(document, place);
  const bool blocks = std::ranges::any_of(out.graph.nodes, [](const ProgramNode& node) {
    return node.target.starts_with("torch.ops.higher_order.wrap_with_");
  });
  return blocks ? read_document(flattened_blocks(std::move(document)), place) : out;
}

}  // namespace stagecraft::intake
