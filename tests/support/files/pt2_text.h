#pragma once

#include <stdexcept>
#include <string>
#include <vector>

#include "tests/support/files/zip_text.h"

// A small archive as written by torch.export.save, for tests that change single words of it.

namespace stagecraft::testing {

/// `text` with the first `from` replaced by `to`; throws if there is none.
inline std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const std::size_t at = text.find(from);
  if (at == std::string::npos) throw std::logic_error("the text has no " + from);
  return text.replace(at, from.size(), to);
}

/// Metadata of a float tensor without gaps in memory.
inline std::string tensor_meta(const std::string& sizes, const std::string& strides) {
  return R"({"dtype": 7, "sizes": )" + sizes +
         R"(, "requires_grad": false, "device": {"type": "cpu", "index": null}, "strides": )" + strides +
         R"(, "storage_offset": {"as_int": 0}, "layout": 7})";
}

/// y = fc(x), [s77, 3] to [s77, 2]; then its halves, the left one without gradient, and their difference.
inline std::string program_text() {
  const std::string s77 = R"-({"as_expr": {"expr_str": "Symbol('s77', positive=True, integer=True)", "hint": null}})-";
  const std::string column = tensor_meta("[" + s77 + R"(, {"as_int": 1}])", R"([{"as_int": 2}, {"as_int": 1}])");
  return R"({"graph_module": {"graph": {
"inputs": [{"as_tensor": {"name": "p_w"}}, {"as_tensor": {"name": "b_n"}}, {"as_tensor": {"name": "x"}}, {"as_int": 4}],
"outputs": [{"as_tensor": {"name": "difference"}}, {"as_int": 3}, {"as_none": true}],
"nodes": [
{"target": "torch.ops.aten.sym_size.int", "name": "size",
 "inputs": [{"name": "self", "arg": {"as_tensor": {"name": "x"}}, "kind": 1}, {"name": "dim", "arg": {"as_int": 0}, "kind": 1}],
 "outputs": [{"as_sym_int": {"as_name": "size"}}],
 "metadata": {"nn_module_stack": "_empty_nn_module_stack_from_metadata_hook,_empty_nn_module_stack,_empty"},
 "is_hop_single_tensor_return": null},
{"target": "torch.ops.aten.linear.default", "name": "linear",
 "inputs": [{"name": "input", "arg": {"as_tensor": {"name": "x"}}, "kind": 1}, {"name": "weight", "arg": {"as_tensor": {"name": "p_w"}}, "kind": 1}],
 "outputs": [{"as_tensor": {"name": "linear"}}],
 "metadata": {"nn_module_stack": "L__self__,,models.Net;L__self___fc@1,h.fc,torch.nn.modules.linear.Linear"}},
{"target": "torch.ops.aten.chunk.default", "name": "chunk",
 "inputs": [{"name": "self", "arg": {"as_tensor": {"name": "linear"}}}, {"name": "chunks", "arg": {"as_int": 2}}],
 "outputs": [{"as_tensors": [{"name": "left"}, {"name": "right"}]}], "metadata": {}},
{"target": "torch.ops.higher_order.wrap_with_set_grad_enabled", "name": "quiet",
 "inputs": [{"name": "", "arg": {"as_bool": false}}, {"name": "", "arg": {"as_graph": {"name": "submod_1", "graph": {
   "inputs": [{"as_tensor": {"name": "left"}}], "outputs": [{"as_tensor": {"name": "doubled"}}],
   "nodes": [{"target": "torch.ops.aten.mul.Tensor", "name": "doubled",
     "inputs": [{"name": "self", "arg": {"as_tensor": {"name": "left"}}}, {"name": "other", "arg": {"as_float": 2.0}}],
     "outputs": [{"as_tensor": {"name": "doubled"}}], "metadata": {}}],
   "tensor_values": {"left": )" +
         column + R"(, "doubled": )" + column + R"(},
   "sym_int_values": {}, "sym_bool_values": {}, "is_single_tensor_return": false, "custom_obj_values": {}, "sym_float_values": {}}}}},
  {"name": "", "arg": {"as_tensor": {"name": "left"}}}],
 "outputs": [{"as_tensor": {"name": "quiet"}}], "metadata": {}},
{"target": "torch.ops.aten.sub.Tensor", "name": "difference",
 "inputs": [{"name": "self", "arg": {"as_tensor": {"name": "quiet"}}}, {"name": "other", "arg": {"as_tensor": {"name": "right"}}}],
 "outputs": [{"as_tensor": {"name": "difference"}}], "metadata": {}}],
"tensor_values": {"p_w": )" +
         replaced(tensor_meta(R"([{"as_int": 2}, {"as_int": 3}])", R"([{"as_int": 3}, {"as_int": 1}])"),
                  "\"requires_grad\": false", "\"requires_grad\": true") +
         R"(, "b_n": )" + replaced(tensor_meta("[]", "[]"), "\"dtype\": 7", "\"dtype\": 5") + R"(, "x": )" +
         tensor_meta("[" + s77 + R"(, {"as_int": 3}])", R"([{"as_int": 3}, {"as_int": 1}])") + R"(, "linear": )" +
         tensor_meta("[" + s77 + R"(, {"as_int": 2}])", R"([{"as_int": 2}, {"as_int": 1}])") + R"(, "left": )" +
         column + R"(, "right": )" +
         replaced(column, R"("storage_offset": {"as_int": 0})", R"("storage_offset": {"as_int": 1})") +
         R"(, "quiet": )" + column + R"(, "difference": )" + column + R"(},
"sym_int_values": {"size": )" +
         s77 + R"(}, "sym_bool_values": {}, "is_single_tensor_return": false,
"custom_obj_values": {}, "sym_float_values": {}},
"signature": {"input_specs": [{"parameter": {"arg": {"name": "p_w"}, "parameter_name": "h.fc.weight"}},
 {"buffer": {"arg": {"name": "b_n"}, "buffer_name": "h.n", "persistent": true}},
 {"user_input": {"arg": {"as_tensor": {"name": "x"}}}},
 {"constant_input": {"name": "times", "value": {"as_int": 4}}}],
"output_specs": [{"user_output": {"arg": {"as_tensor": {"name": "difference"}}}}, {"user_output": {"arg": {"as_int": 3}}},
 {"user_output": {"arg": {"as_none": true}}}]},
"module_call_graph": [], "metadata": {}, "treespec_namedtuple_fields": {}},
"opset_version": {"aten": 10}, "range_constraints": {"s77": {"min_val": 1, "max_val": 64}},
"schema_version": {"major": 8, "minor": 17}, "verifiers": ["TRAINING"], "torch_version": "2.11.0", "guards_code": []})";
}

/// Its weights: 2 x 3 floats and an integer.
inline std::string weights_text() {
  return R"({"config": {"h.fc.weight": {"path_name": "weight_0", "is_param": true, "use_pickle": false, "tensor_meta": )" +
         replaced(tensor_meta(R"([{"as_int": 2}, {"as_int": 3}])", R"([{"as_int": 3}, {"as_int": 1}])"),
                  "\"requires_grad\": false", "\"requires_grad\": true") +
         R"(}, "h.n": {"path_name": "weight_1", "is_param": false, "use_pickle": false, "tensor_meta": )" +
         replaced(tensor_meta("[]", "[]"), "\"dtype\": 7", "\"dtype\": 5") + "}}}";
}

inline std::string notes_text() {
  return R"({"format": "stagecraft.pt2", "version": 1, "batch_symbol": "s77",
"inputs": [{"name": "x", "batch_axis": 0, "range": null}], "samples": {"least": 1, "most": 64}, "loss_output": 0,
"tied": [["h.fc.weight", "h.n"]], "model": "net", "torch": "2.11.0"})";
}

inline std::vector<ZipPart> archive_parts() {
  return {{"net/data/weights/weight_0", std::string(24, '\1')},
          {"net/data/weights/weight_1", std::string(8, '\2')},
          {"net/data/weights/model_weights_config.json", weights_text()},
          {"net/data/constants/model_constants_config.json", R"({"config": {}})"},
          {"net/models/model.json", program_text()},
          {"net/extra/stagecraft.json", notes_text()},
          {"net/archive_format", "pt2"},
          {"net/archive_version", "0"},
          {"net/byteorder", "little"}};
}

}  // namespace stagecraft::testing
