#include "executor/intake/pt2/exported_program.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "costmodel/errors.h"
#include "costmodel/index.h"
#include "executor/intake/pt2/pt2_archive.h"
#include "tests/support/files/pt2_text.h"

namespace stagecraft::intake {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::program_text;
using testing::replaced;
using ::testing::SizeIs;
using ::testing::ThrowsMessage;

void expect_refused(const std::string& json, const std::string& message) {
  EXPECT_THAT([&] { (void)read_exported_program(json, "a.pt2: models/model.json"); },
              ThrowsMessage<FormatError>(AllOf(HasSubstr("a.pt2: models/model.json: "), HasSubstr(message))));
}
/// The small program with `from` replaced by `to` is refused with `message`.
void expect_refused(const std::string& from, const std::string& to, const std::string& message) {
  expect_refused(replaced(program_text(), from, to), message);
}

/// The argument that is read if the number of chunks is `json`.
ArgumentValue argument(const std::string& json) {
  const ExportedProgram program =
      read_exported_program(replaced(program_text(), R"({"as_int": 2}}])", json + "}]"), "p");
  return program.graph.nodes[2].arguments[1].value;
}
void expect_argument_refused(const std::string& json, const std::string& message) {
  expect_refused(R"({"as_int": 2}}])", json + "}]", message);
}

std::vector<std::string> names_of(const ProgramGraph& graph, const std::vector<ValueIndex>& values) {
  std::vector<std::string> out;
  for (const ValueIndex value : values) out.push_back(graph.values.at(to_index(value.index)).name);
  return out;
}

TEST(ExportedPrograms, GiveInputsNodesAndOutputs) {
  const ExportedProgram program = read_exported_program(program_text(), "p");
  const ProgramGraph& graph = program.graph;
  EXPECT_EQ(program.torch_version, "2.11.0");
  EXPECT_THAT(names_of(graph, graph.inputs), ElementsAre("p_w", "b_n", "x"));
  ASSERT_THAT(program.inputs, SizeIs(4));
  EXPECT_EQ(program.inputs[0].kind, ProgramInput::Kind::Parameter);
  EXPECT_EQ(program.inputs[0].name, "h.fc.weight");
  EXPECT_EQ(program.inputs[1].kind, ProgramInput::Kind::Buffer);
  EXPECT_EQ(program.inputs[2].kind, ProgramInput::Kind::User);
  EXPECT_EQ(program.inputs[2].name, "x");
  EXPECT_EQ(program.inputs[3].kind, ProgramInput::Kind::Folded);
  EXPECT_EQ(program.inputs[3].value.index, -1);

  ASSERT_THAT(graph.nodes, SizeIs(5));
  EXPECT_EQ(graph.nodes[1].target, "torch.ops.aten.linear.default");
  EXPECT_EQ(graph.nodes[1].arguments[1].name, "weight");
  EXPECT_EQ(std::get<ValueIndex>(graph.nodes[1].arguments[1].value), program.inputs[0].value);
  EXPECT_THAT(names_of(graph, graph.nodes[2].results[0].values), ElementsAre("left", "right"));
  EXPECT_TRUE(graph.nodes[2].results[0].list);
  EXPECT_FALSE(graph.nodes[1].results[0].list);
  ASSERT_THAT(graph.outputs, SizeIs(3));
  EXPECT_THAT(names_of(graph, {std::get<ValueIndex>(graph.outputs[0])}), ElementsAre("difference"));
  EXPECT_EQ(graph.outputs[1], ArgumentValue(std::int64_t{3}));
  EXPECT_EQ(graph.outputs[2], ArgumentValue());
}

TEST(ExportedPrograms, GiveTypesSizesAndRanges) {
  const ExportedProgram program = read_exported_program(program_text(), "p");
  const auto& values = program.graph.values;
  ASSERT_EQ(values[0].name, "p_w");
  EXPECT_EQ(values[0].tensor->sizes, (std::vector<SizeExpression>{2, 3}));
  EXPECT_EQ(values[0].tensor->strides, (std::vector<SizeExpression>{3, 1}));
  EXPECT_TRUE(values[0].tensor->requires_grad);
  EXPECT_EQ(values[1].tensor->dtype, c10::kLong);
  EXPECT_EQ(to_string(values[2].tensor->sizes[0]), "s77");
  ASSERT_EQ(values[3].name, "size");
  EXPECT_EQ(values[3].kind, ProgramValue::Kind::Int);
  EXPECT_EQ(to_string(*values[3].number), "s77");
  ASSERT_EQ(values[6].name, "right");
  EXPECT_EQ(values[6].tensor->storage_offset, SizeExpression(1));
  EXPECT_EQ(program.ranges.at("s77"), std::pair(std::int64_t{1}, std::int64_t{64}));
}

TEST(ExportedPrograms, GiveTheModulesOfNodes) {
  const ExportedProgram program = read_exported_program(program_text(), "p");
  EXPECT_THAT(program.graph.nodes[0].modules, IsEmpty());
  EXPECT_THAT(program.graph.nodes[1].modules,
              ElementsAre(ModuleFrame{"", "models.Net", 0}, ModuleFrame{"h.fc", "torch.nn.modules.linear.Linear", 1}));
  EXPECT_THAT(program.graph.nodes[2].modules, IsEmpty());
  const auto comma = read_exported_program(replaced(program_text(), "fc@1,h.fc,", "fc@12,h[1,2].fc,"), "p");
  EXPECT_EQ(comma.graph.nodes[1].modules[1], (ModuleFrame{"h[1,2].fc", "torch.nn.modules.linear.Linear", 12}));
  expect_refused(
      "L__self___fc@1,h.fc,torch.nn.modules.linear.Linear", "fc",
      "/graph_module/graph/nodes/1/metadata/nn_module_stack: found a frame \"fc\", expected \"key,path,type\"");
  expect_refused("fc@1,", "fc@one,", "expected a call number after \"@\"");
}

TEST(ExportedPrograms, ReadAGraphInsideAnotherWithNamesOfItsOwn) {
  // Blocks that change modes are flattened instead, see flattened_blocks_test.cpp.
  const ExportedProgram program =
      read_exported_program(replaced(program_text(), "wrap_with_set_grad_enabled", "cond"), "p");
  const auto& inner = *std::get<std::shared_ptr<const ProgramGraph>>(program.graph.nodes[3].arguments[1].value);
  EXPECT_THAT(names_of(inner, inner.inputs), ElementsAre("left"));
  ASSERT_THAT(inner.values, SizeIs(2));
  ASSERT_THAT(inner.nodes, SizeIs(1));
  EXPECT_EQ(inner.nodes[0].arguments[1].value, ArgumentValue(2.0));
  EXPECT_EQ(std::get<ValueIndex>(inner.outputs[0]).index, 1);
  // Inner graphs cannot name outer values.
  expect_refused(R"([{"name": "self", "arg": {"as_tensor": {"name": "left"}}}, {"name": "other")",
                 R"([{"name": "self", "arg": {"as_tensor": {"name": "right"}}}, {"name": "other")",
                 "node \"doubled\" (torch.ops.aten.mul.Tensor): "
                 "/graph_module/graph/nodes/3/inputs/1/arg/as_graph/graph/nodes/0/inputs/0/arg/as_tensor: value "
                 "\"right\" is used before an input or node makes it");
}

TEST(ExportedPrograms, ReadEveryKindOfArgument) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  EXPECT_EQ(argument(R"({"as_none": true})"), ArgumentValue());
  EXPECT_EQ(argument(R"({"as_tensor": {"name": "x"}})"), ArgumentValue(ValueIndex{2}));
  EXPECT_EQ(argument(R"({"as_tensors": [{"name": "x"}, {"name": "p_w"}]})"),
            ArgumentValue(std::vector<std::optional<ValueIndex>>{ValueIndex{2}, ValueIndex{0}}));
  EXPECT_EQ(argument(R"({"as_optional_tensor": {"as_none": true}})"), ArgumentValue());
  EXPECT_EQ(argument(R"({"as_optional_tensor": {"as_tensor": {"name": "x"}}})"), ArgumentValue(ValueIndex{2}));
  EXPECT_EQ(argument(R"({"as_optional_tensors": [{"as_none": true}, {"as_tensor": {"name": "x"}}]})"),
            ArgumentValue(std::vector<std::optional<ValueIndex>>{std::nullopt, ValueIndex{2}}));
  EXPECT_EQ(argument(R"({"as_int": -9223372036854775808})"), ArgumentValue(std::numeric_limits<std::int64_t>::min()));
  EXPECT_EQ(argument(R"({"as_ints": [2, -1]})"),
            ArgumentValue(std::vector<IntItem>{std::int64_t{2}, std::int64_t{-1}}));
  EXPECT_EQ(argument(R"({"as_float": 0.5})"), ArgumentValue(0.5));
  EXPECT_EQ(argument(R"({"as_float": "-Infinity"})"), ArgumentValue(-kInfinity));
  EXPECT_TRUE(std::isnan(std::get<double>(argument(R"({"as_float": "NaN"})"))));
  EXPECT_EQ(argument(R"({"as_floats": [1, "Infinity"]})"), ArgumentValue(std::vector<double>{1, kInfinity}));
  EXPECT_EQ(argument(R"({"as_bool": true})"), ArgumentValue(true));
  EXPECT_EQ(argument(R"({"as_bools": [true, false]})"), ArgumentValue(std::vector<bool>{true, false}));
  EXPECT_EQ(argument(R"({"as_string": "none"})"), ArgumentValue(std::string("none")));
  EXPECT_EQ(argument(R"({"as_strings": ["a", "b"]})"), ArgumentValue(std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(argument(R"({"as_complex": {"real": 1.0, "imag": -2.0}})"), ArgumentValue(std::complex<double>(1, -2)));
  EXPECT_EQ(argument(R"({"as_sym_int": {"as_name": "size"}})"), ArgumentValue(ValueIndex{3}));
  EXPECT_EQ(argument(R"({"as_sym_int": {"as_int": 7}})"), ArgumentValue(std::int64_t{7}));
  EXPECT_EQ(argument(R"({"as_sym_ints": [{"as_name": "size"}, {"as_int": -1}]})"),
            ArgumentValue(std::vector<IntItem>{ValueIndex{3}, std::int64_t{-1}}));
  EXPECT_EQ(argument(R"({"as_sym_float": {"as_float": 0.5}})"), ArgumentValue(0.5));
  EXPECT_EQ(argument(R"({"as_sym_floats": [{"as_float": 0.5}]})"), ArgumentValue(std::vector<double>{0.5}));
  EXPECT_EQ(argument(R"({"as_sym_bool": {"as_bool": true}})"), ArgumentValue(true));
  EXPECT_EQ(argument(R"({"as_scalar_type": 13})"), ArgumentValue(c10::kBFloat16));
  EXPECT_EQ(argument(R"({"as_layout": 7})"), ArgumentValue(c10::kStrided));
  EXPECT_EQ(argument(R"({"as_memory_format": 2})"), ArgumentValue(c10::MemoryFormat::ChannelsLast));
  EXPECT_EQ(argument(R"({"as_device": {"type": "cuda", "index": 1}})"), ArgumentValue(c10::Device(c10::kCUDA, 1)));
  EXPECT_EQ(argument(R"({"as_operator": "add"})"), ArgumentValue(std::string("add")));
}

TEST(ExportedPrograms, KnowEveryCodeOfTypesAndFormats) {
  // The file's code and c10's number for each type, from the reference.
  const std::vector<std::pair<int, int>> types{{1, 0},   {2, 1},   {3, 2},   {4, 3},   {5, 4},   {6, 5},
                                               {7, 6},   {8, 7},   {9, 8},   {10, 9},  {11, 10}, {12, 11},
                                               {13, 15}, {28, 27}, {29, 24}, {30, 23}, {31, 26}, {32, 25}};
  for (const auto& [code, type] : types) {
    const ArgumentValue value = argument(R"({"as_scalar_type": )" + std::to_string(code) + "}");
    EXPECT_EQ(static_cast<int>(std::get<c10::ScalarType>(value)), type) << code;
  }
  for (const auto& [code, format] : std::vector<std::pair<int, int>>{{1, 0}, {2, 2}, {3, 3}, {4, 1}}) {
    const ArgumentValue value = argument(R"({"as_memory_format": )" + std::to_string(code) + "}");
    EXPECT_EQ(static_cast<int>(std::get<c10::MemoryFormat>(value)), format) << code;
  }
}

TEST(ExportedPrograms, RefuseArgumentsNamingNodeModuleAndPointer) {
  expect_refused(R"("weight", "arg": {"as_tensor": {"name": "p_w"}})",
                 R"("weight", "arg": {"as_tensors": {"name": "p_w"}})",
                 "a.pt2: models/model.json: node \"linear\" (torch.ops.aten.linear.default) of module h.fc: "
                 "/graph_module/graph/nodes/1/inputs/1/arg/as_tensors: found {\"name\":\"p_w\"}, expected an array");
  expect_argument_refused(
      R"({"as_thing": 2})",
      "unknown argument \"as_thing\", did you mean as_string? known are as_bool, as_bools, as_complex");
  expect_argument_refused(R"({"as_int": 2, "as_bool": true})", "expected an object with exactly one key");
  expect_argument_refused("{}", "expected an object with exactly one key");
  expect_argument_refused("2", "expected an object with exactly one key");
  expect_argument_refused(R"({"as_int": 2.5})", "found 2.5, expected an integer");
  expect_argument_refused(R"({"as_int": 9223372036854775808})", "expected an integer from");
  expect_argument_refused(R"({"as_float": "nan"})",
                          "found \"nan\", expected a number, \"Infinity\", \"-Infinity\" or \"NaN\"");
  expect_argument_refused(R"({"as_float": 1e999})", "1e999");
  expect_argument_refused(R"({"as_bool": 1})", "expected true or false");
  expect_argument_refused(R"({"as_scalar_type": 14})", "found code 14, expected a type of values: 1, 2, 3");
  expect_argument_refused(R"({"as_layout": 1})", "found code 1, expected a strided layout: 7");
  expect_argument_refused(R"({"as_memory_format": 0})", "found code 0, expected a memory format: 1, 2, 3, 4");
  expect_argument_refused(R"({"as_device": {"type": "mps", "index": null}})", "unknown device \"mps\", known are cpu");
  expect_argument_refused(R"({"as_sym_int": {"as_float": 2}})", "unknown key \"as_float\", known are as_name, as_int");
  expect_argument_refused(R"({"as_sym_int": {"as_name": "x"}})", "value \"x\" is a tensor, expected an integer");
  expect_argument_refused(R"({"as_tensor": {"name": "size"}})", "value \"size\" is an integer, expected a tensor");
  expect_argument_refused(R"({"as_tensor": {"name": "x", "more": 1}})", "unknown key \"more\", known are name");
  expect_argument_refused(R"({"as_optional_tensors": [{"as_tensors": []}]})", "unknown key \"as_tensors\"");
  for (const char* other : {"as_custom_obj", "as_nested_tensors", "as_int_lists", "as_string_to_argument"}) {
    expect_argument_refused(std::string("{\"") + other + "\": 1}", "is not supported");
  }
}

TEST(ExportedPrograms, RefuseValuesThatAreNotMadeOnceBeforeTheirUse) {
  expect_refused(
      R"({"name": "self", "arg": {"as_tensor": {"name": "linear"}}})",
      R"({"name": "self", "arg": {"as_tensor": {"name": "quiet"}}})",
      "node \"chunk\" (torch.ops.aten.chunk.default): /graph_module/graph/nodes/2/inputs/0/arg/as_tensor: value "
      "\"quiet\" is used before an input or node makes it");
  expect_refused(R"([{"name": "left"}, {"name": "right"}])", R"([{"name": "left"}, {"name": "left"}])",
                 "value \"left\" is made twice");
  expect_refused(R"([{"name": "left"}, {"name": "right"}])", R"([{"name": "left"}, {"name": "x"}])",
                 "value \"x\" is made twice");
  expect_refused(R"([{"name": "left"}, {"name": "right"}])", R"([{"name": "left"}, {"name": "centre"}])",
                 "value \"centre\" is not in the graph's tensor_values");
  expect_refused(R"("sym_int_values": {"size": )", R"("sym_int_values": {"other": {"as_int": 1}, "size": )",
                 "/graph_module/graph/sym_int_values/other: no input and no node makes the value \"other\"");
  expect_refused(R"("name": "linear",)", R"("name": "size",)", "node \"size\" appears twice");
  expect_refused(R"("outputs": [{"as_sym_int": {"as_name": "size"}}])", R"("outputs": [{"as_int": 3}])",
                 "unknown output \"as_int\"");
}

TEST(ExportedPrograms, RefuseSizesThatDependOnData) {
  const std::string data = R"-({"as_expr": {"expr_str": "Symbol('u0', integer=True)", "hint": null}})-";
  const std::string end = "depends on data; sizes must follow from those of the inputs";
  expect_refused(
      R"("sym_int_values": {"size": )", R"("sym_int_values": {"size": )" + data + R"(, "none": )",
      "node \"size\" (torch.ops.aten.sym_size.int): /graph_module/graph/nodes/0/outputs/0: makes \"size\", whose "
      "size or value \"u0\" " +
          end);
  expect_refused(
      R"("linear": {"dtype": 7, )",
      R"("linear": )" + testing::tensor_meta("[" + data + "]", R"([{"as_int": 1}])") + R"(, "none": {"dtype": 7, )",
      "node \"linear\" (torch.ops.aten.linear.default) of module h.fc: /graph_module/graph/nodes/1/outputs/0: "
      "makes \"linear\", whose size or value \"u0\" " +
          end);
  const std::string item =
      replaced(replaced(program_text(), R"("outputs": [{"as_sym_int": {"as_name": "size"}}])",
                        R"("outputs": [{"as_sym_float": {"as_name": "size"}}])"),
               R"("sym_float_values": {}},
"signature")",
               R"-("sym_float_values": {"size": {"as_expr": {"expr_str": "Symbol('zuf0')", "hint": null}}}},
"signature")-");
  expect_refused(item, "makes \"size\", whose size or value \"zuf0\" " + end);
}

TEST(ExportedPrograms, RefuseImpossibleTensors) {
  const std::string where = "/graph_module/graph/tensor_values/p_w";
  const std::string weight = R"("p_w": {"dtype": 7, "sizes": [{"as_int": 2}, {"as_int": 3}])";
  const auto refuse = [&](const std::string& sizes, const std::string& message) {
    expect_refused(weight, R"("p_w": {"dtype": 7, "sizes": )" + sizes, message);
  };
  refuse(R"([{"as_int": -2}, {"as_int": 3}])", where + "/sizes/0: found a size of -2, must be at least 0");
  refuse(R"([{"as_int": 6}])", where + ": found 1 sizes and 2 strides, expected equal numbers");
  refuse(R"([{"as_int": 4294967296}, {"as_int": 2147483648}])",
         where + "/sizes: found more values than 64 bits can count");
  refuse(R"-([{"as_expr": {"expr_str": "exp(1)"}}, {"as_int": 3}])-",
         where + "/sizes/0/as_expr/expr_str: size \"exp(1)\": at character 1: unknown function, known are Integer");
  refuse(R"([{"as_float": 2}, {"as_int": 3}])", "unknown key \"as_float\", known are as_int, as_expr");
  expect_refused(R"("strides": [{"as_int": 3}, {"as_int": 1}])", R"("strides": [{"as_int": 3}, {"as_int": -1}])",
                 "/strides/1: found a stride of -1, must be at least 0");
  expect_refused(R"("storage_offset": {"as_int": 0})", R"("storage_offset": {"as_int": -1})",
                 "/storage_offset: found an offset of -1, must be at least 0");
  expect_refused(R"("layout": 7)", R"("layout": 1)", "/layout: found code 1, expected a strided layout: 7");
  expect_refused(R"("layout": 7)", R"("layout": 7, "more": 1)", "unknown key \"more\", known are dtype, sizes");
}

TEST(ExportedPrograms, RefuseOtherVersionsAndDialects) {
  expect_refused(R"("major": 8)", R"("major": 9)",
                 "/schema_version/major: found major version 9, expected 8: export with PyTorch 2.11");
  EXPECT_NO_THROW((void)read_exported_program(replaced(program_text(), R"("minor": 17)", R"("minor": 18)"), "p"));
  expect_refused(R"(["TRAINING"])", R"(["ATEN"])",
                 "/verifiers: found [\"ATEN\"], expected [\"TRAINING\"], a program from torch.export.export, without "
                 "run_decompositions()");
  expect_refused(R"("opset_version")", R"("opset")", "unknown key \"opset\"");
  expect_refused("{}", "key \"schema_version\" is missing");
  expect_refused("", "is empty, expected a JSON document");
  expect_refused("[1, 2", "not JSON");
  expect_refused(std::string(1000, '['), "nested deeper than 64 levels");
}

TEST(ExportedPrograms, RefuseASignatureUnlikeTheGraph) {
  const std::string where = "/graph_module/signature/input_specs/";
  expect_refused(R"({"arg": {"name": "p_w"}, "parameter_name")", R"({"arg": {"name": "x"}, "parameter_name")",
                 where + "0/parameter: found value \"x\", expected \"p_w\" as in the graph");
  expect_refused(R"("buffer_name": "h.n")", R"("buffer_name": "h.fc.weight")",
                 where + "1: \"h.fc.weight\" appears twice; inputs must be unique");
  expect_refused(R"("user_input": {"arg": {"as_tensor": {"name": "x"}})", R"("user_input": {"arg": {"as_int": 1})",
                 where + "2/user_input: the value differs from the graph's");
  expect_refused(R"("constant_input")", R"("token")",
                 where + "3: found an input \"token\", expected tensors and numbers");
  expect_refused(R"("constant_input")", R"("custom_obj")", "found an input \"custom_obj\"");
  expect_refused(R"("constant_input")", R"("gift")", "unknown input \"gift\", known are parameter, buffer");
  expect_refused(R"(,
 {"constant_input": {"name": "times", "value": {"as_int": 4}}})",
                 "", "input_specs: found 3 inputs, expected 4 as in the graph");
  expect_refused(R"({"as_int": 4}],)", R"({"as_custom_obj": {"name": "o", "class_fqn": "C"}}],)",
                 "/graph_module/graph/inputs/3: found a custom object as an input");
  expect_refused(R"("custom_obj_values": {}, "sym_float_values": {}},
"signature")",
                 R"("custom_obj_values": {"o": {}}, "sym_float_values": {}},
"signature")",
                 "/graph_module/graph/custom_obj_values: found custom objects");
  for (const char* mutation : {"buffer_mutation", "parameter_mutation", "user_input_mutation", "gradient_to_parameter",
                               "gradient_to_user_input", "token"}) {
    expect_refused(R"("user_output")", std::string("\"") + mutation + "\"",
                   std::string("/graph_module/signature/output_specs/0: found an output \"") + mutation +
                       "\", expected a program from torch.export.export, without run_decompositions()");
  }
  expect_refused(R"({"user_output": {"arg": {"as_int": 3}}})", R"({"user_output": {"arg": {"as_int": 4}}})",
                 "/graph_module/signature/output_specs/1/user_output/arg: the value differs from the graph's");
  const std::string difference = R"({"user_output": {"arg": {"as_tensor": {"name": "difference"}}}})";
  EXPECT_NO_THROW((void)read_exported_program(
      replaced(program_text(), difference, R"({"loss_output": {"arg": {"name": "difference"}}})"), "p"));
}

TEST(ExportedPrograms, KnowTheRangesOfSymbols) {
  const auto ranges = [](const std::string& json) {
    return read_exported_program(replaced(program_text(), R"({"s77": {"min_val": 1, "max_val": 64}})", json), "p")
        .ranges;
  };
  using Ranges = std::map<std::string, std::pair<std::int64_t, std::int64_t>>;
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  EXPECT_EQ(ranges(R"({"s77": {"min_val": 2, "max_val": null}})"), (Ranges{{"s77", {2, kMost}}}));
  // 2 s in 3 to 9: s from 2 to 4.
  EXPECT_EQ(ranges(R"({"2*s77": {"min_val": 3, "max_val": 9}, "s77": {"min_val": 0, "max_val": 100}})"),
            (Ranges{{"s77", {2, 4}}}));
  expect_refused(R"("min_val": 1)", R"("min_val": 65)", "/range_constraints/s77: found an empty range from 65 to 64");
  expect_refused(R"({"s77": {"min_val")", R"({"s77 + 1": {"min_val")",
                 "found a range of \"s77 + 1\", expected the range of a symbol");
  expect_refused(R"({"s77": {"min_val")", R"({"0*s77": {"min_val")", "found a range of \"0*s77\"");
}

TEST(ExportedPrograms, AcceptGuardsThatTheRangesImplyAndNoOthers) {
  const auto with = [](const std::string& guard) {
    return replaced(program_text(), R"("guards_code": [])", R"("guards_code": [")" + guard + R"("])");
  };
  const std::string batch = "L['x'].size()[0]";  // from 1 to 64
  for (const std::string& guard : std::vector<std::string>{
           batch + " == " + batch, "(5*" + batch + ") == (5*" + batch + ")", batch + " >= 1", batch + " < 65",
           batch + " != 65", batch + " > 0", "8*" + batch + " >= 2", batch + " // 64 <= 1", "L['x'].size()[1] == 3",
           "((4*" + batch + ") % 2) == 0", "2*" + batch + " + 1 - " + batch + " == " + batch + " + 1",
           batch + "**2 >= " + batch, "-" + batch + " < 0"}) {
    EXPECT_NO_THROW((void)read_exported_program(with(guard), "p")) << guard;
  }
  for (const std::string& guard : std::vector<std::string>{
           batch + " >= 2", batch + " == 3", batch + " != 64", batch + " % 2 == 0", batch + " <= 63",
           "L['y'].size()[0] == 3", "L['x'].size()[2] == 3", batch, batch + " == ", "f(" + batch + ") == 1",
           batch + " == 1 or True", batch + " / 2 < 9", "L['x'].dim() == 2", "1 % (" + batch + " - " + batch + ") == 0",
           std::string(5000, '(')}) {
    expect_refused(with(guard),
                   "/guards_code/0: the program is valid only if " + guard + ", which its size ranges do not imply");
  }
  // Too many values to try each.
  expect_refused(replaced(with(batch + " // 2 >= 0"), R"("max_val": 64)", R"("max_val": null)"), "valid only if");
}

TEST(ExportedPrograms, MutatedGiveErrorsAndNeverAnythingElse) {
  constexpr std::uint64_t kSeed = 12;
  std::mt19937_64 random(kSeed);
  const std::string whole = program_text();
  const std::vector<std::string> pieces{"-1",   "9223372036854775807", "null", "{}",   "[]",   "\"x\"",
                                        "u0",   "as_tensor",           "s77",  "true", "1e99", "\"left\"",
                                        "[{}]", "\"as_graph\"",        ",",    "}"};
  int refused = 0;
  for (int round = 0; round < 20000; ++round) {
    std::string text = whole;
    for (std::uint64_t i = 0; i <= random() % 3; ++i) {
      const std::size_t at = random() % text.size();
      switch (random() % 5) {
        case 0:
          text[at] = static_cast<char>(random());
          break;
        case 1:
          text.erase(at, 1 + random() % 9);
          break;
        case 2:
          text.insert(at, whole.substr(random() % whole.size(), random() % 60));
          break;
        case 3:
          text.replace(at, random() % 9, pieces[random() % pieces.size()]);
          break;
        default: {  // one word replaces another
          const std::size_t from = text.find('"', at);
          const std::size_t to = whole.find('"', random() % whole.size());
          if (from == text.npos || to == whole.npos) break;
          text.replace(from, text.find('"', from + 1) - from, whole.substr(to, whole.find('"', to + 1) - to));
        }
      }
    }
    try {
      (void)read_exported_program(text, "p");
    } catch (const FormatError&) { ++refused; }
  }
  EXPECT_GT(refused, 10000) << "seed " << kSeed;
}

}  // namespace
}  // namespace stagecraft::intake
