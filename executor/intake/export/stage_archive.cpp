#include "executor/intake/export/stage_archive.h"

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "costmodel/errors.h"
#include "costmodel/format/cursor.h"
#include "costmodel/index.h"
#include "executor/files/zip_archive.h"
#include "executor/intake/export/stage_numbers.h"
#include "executor/intake/pt2/flattened_blocks.h"

namespace stagecraft::intake {

/// The JSON parts of the whole archive, unchanged.
struct StageArchives::Documents {
  format::Json program;
  format::Json weights;
  format::Json constants;
  format::Json notes;  ///< null: none
};

namespace {

constexpr std::uint64_t kMostJsonBytes = std::uint64_t{1} << 30;
/// torch.export.load expects this model name.
constexpr const char* kModel = "model";
constexpr const char* kWeights = "data/weights/";
constexpr const char* kConstants = "data/constants/";

format::Json read_document(const Pt2Archive& archive, const std::string& name, format::Json otherwise) {
  const files::ZipRecord* const record = archive.zip->find(archive.root + "/" + name);
  if (!record) return otherwise;
  return format::parse_document(archive.zip->read(*record, kMostJsonBytes), archive.zip->path() + ": " + name);
}

format::Json tensor_argument(const std::string& name) { return {{"as_tensor", {{"name", name}}}}; }

/// A node of torch.utils._pytree's trees. Its context is JSON in a string.
format::Json tree(const char* type, const char* context, format::Json children) {
  return {{"type", type}, {"context", context}, {"children_spec", std::move(children)}};
}

/// `leaves` tensors in a tuple.
format::Json tuple_of(std::size_t leaves) {
  const format::Json leaf{{"type", nullptr}, {"context", nullptr}, {"children_spec", format::Json::array()}};
  return tree("builtins.tuple", "null", std::vector<format::Json>(leaves, leaf));
}

/// The text of a tree, after the version of its format.
std::string tree_spec(format::Json root) { return format::Json::array({1, std::move(root)}).dump(); }

std::string result_spec(std::size_t leaves) { return tree_spec(tuple_of(leaves)); }

/// Of the arguments of a call: a tuple of the positional ones, and a dictionary of those by name.
std::string call_spec(std::size_t leaves) {
  const format::Json by_name = tree("builtins.dict", "[]", format::Json::array());
  return tree_spec(tree("builtins.tuple", "null", format::Json::array({tuple_of(leaves), by_name})));
}

/// Names "x" of all L['x'] in a guard.
std::set<std::string> guarded(const std::string& guard) {
  std::set<std::string> out;
  const std::string before = "L['";
  for (std::size_t at = guard.find(before); at != guard.npos; at = guard.find(before, at)) {
    at += before.size();
    out.insert(guard.substr(at, guard.find('\'', at) - at));
  }
  return out;
}

/// Writes one stage's program.
class StageDocument {
 public:
  StageDocument(const OperatorGraph& graph, const format::Json& whole, const StageGraph& stage)
      : graph_(graph), whole_(whole), old_(whole.at("graph_module").at("graph")), stage_(stage) {
    for (const GraphValue& value : graph.values) taken_.insert(value.name);
    for (const GraphNode& node : graph.nodes) taken_.insert(node.name);
  }

  format::Json build() {
    add_inputs();
    for (const int v : stage_.copied) add_copy(v);
    for (const SizeSource& source : stage_.sizes) add_size(source);
    for (const int n : stage_.nodes) {
      format::Json node = old_.at("nodes").at(to_index(n));
      for (format::Json& input : node.at("inputs")) replace_values(input.at("arg"), copies_);
      nodes_.push_back(std::move(node));
      for (const int v : graph_.nodes[to_index(n)].gives) keep_entry(graph_.values[to_index(v)].name);
    }
    for (const int v : stage_.outputs) {
      outputs_.push_back(tensor_argument(name(v)));
      output_specs_.push_back({{"user_output", {{"arg", tensor_argument(name(v))}}}});
    }
    return whole();
  }

 private:
  [[nodiscard]] const std::string& name(int value) const { return graph_.values[to_index(value)].name; }

  std::string fresh(const std::string& wanted) {
    std::string out = wanted;
    for (int again = 1; !taken_.insert(out).second; ++again) out = wanted + "_" + std::to_string(again);
    return out;
  }

  /// Keeps the value's entries in the graph's tables.
  void keep_entry(const std::string& value) {
    for (const char* table : kTables) {
      const auto entries = old_.find(table);
      if (entries == old_.end()) continue;
      const auto it = entries->find(value);
      if (it != entries->end()) tables_[table][value] = *it;
    }
  }

  void add_input(const std::string& value, const format::Json& spec) {
    inputs_.push_back(tensor_argument(value));
    input_specs_.push_back(spec);
    keep_entry(value);
  }

  void add_inputs() {
    std::set<std::string> stored;
    for (const int v : stage_.tensors) stored.insert(name(v));
    const format::Json& specs = whole_.at("graph_module").at("signature").at("input_specs");
    for (std::size_t i = 0; i < old_.at("inputs").size(); ++i) {
      const format::Json& input = old_.at("inputs").at(i);
      if (!input.contains("as_tensor")) continue;
      const std::string value = input.at("as_tensor").at("name").get<std::string>();
      if (stored.contains(value)) add_input(value, specs.at(i));
    }
    for (const auto* const values : {&stage_.received, &stage_.inputs}) {
      for (const int v : *values) {
        add_input(name(v), {{"user_input", {{"arg", tensor_argument(name(v))}}}});
        arguments_.push_back(name(v));
        // If the graph has fewer axes, the file has an extra axis of 1 at position 1.
        const std::optional<TensorMeta>& known = graph_.values[to_index(v)].meta;
        format::Json& meta = tables_["tensor_values"][name(v)];
        if (!known || meta.at("sizes").size() == known->sizes.size()) continue;
        meta.at("sizes").erase(1);
        meta.at("strides").erase(1);
      }
    }
  }

  void add_copy(int v) {
    const std::string copy = fresh(name(v) + "_copy");
    nodes_.push_back(
        new_node("torch.ops.aten.clone.default", copy, {{"self", tensor_argument(name(v))}}, tensor_argument(copy)));
    tables_["tensor_values"][copy] = tables_["tensor_values"][name(v)];
    copies_[name(v)] = tensor_argument(copy);
  }

  void add_size(const SizeSource& source) {
    const GraphValue& number = graph_.values[to_index(source.number)];
    const GraphValue& tensor = graph_.values[to_index(source.tensor)];
    const format::Json& extent = tables_["tensor_values"][tensor.name].at("sizes").at(to_index(source.axis));
    NumberNodes made =
        number_nodes({.tensor = tensor.name,
                      .axis = source.axis,
                      .extent = tensor.meta->sizes[to_index(source.axis)],
                      .hint = extent.at("as_expr").value("hint", format::Json()).value("as_int", std::int64_t{1}),
                      .number = number.name,
                      .expression = *number.number},
                     [&](const std::string& wanted) { return fresh(wanted); });
    for (format::Json& node : made.nodes) nodes_.push_back(std::move(node));
    for (auto& [value, entry] : made.entries) tables_["sym_int_values"][value] = std::move(entry);
    keep_entry(number.name);
  }

  /// Symbols that sizes and numbers of the stage depend on.
  [[nodiscard]] std::set<std::string> symbols() const {
    std::set<std::string> out;
    const auto add = [&](int v) {
      const GraphValue& value = graph_.values[to_index(v)];
      if (value.number) out.merge(symbols_of(*value.number));
      if (!value.meta) return;
      for (const auto* const list : {&value.meta->sizes, &value.meta->strides}) {
        for (const SizeExpression& size : *list) out.merge(symbols_of(size));
      }
    };
    for (const auto* const values : {&stage_.received, &stage_.inputs}) std::ranges::for_each(*values, add);
    for (const int n : stage_.nodes) std::ranges::for_each(graph_.nodes[to_index(n)].gives, add);
    return out;
  }

  [[nodiscard]] format::Json calls() const {
    std::set<std::string> used;
    for (const int n : stage_.nodes) {
      for (const ModuleFrame& frame : graph_.nodes[to_index(n)].modules) used.insert(frame.path);
    }
    format::Json out = format::Json::array();
    out.push_back({{"fqn", ""},
                   {"signature",
                    {{"inputs", format::Json::array()},
                     {"outputs", format::Json::array()},
                     {"in_spec", call_spec(arguments_.size())},
                     {"out_spec", result_spec(outputs_.size())},
                     {"forward_arg_names", arguments_}}}});
    for (const format::Json& entry : whole_.at("graph_module").value("module_call_graph", format::Json::array())) {
      const std::string path = entry.value("fqn", "");
      if (!path.empty() && used.contains(path.substr(0, path.find('@'))))
        out.push_back({{"fqn", path}, {"signature", nullptr}});
    }
    return out;
  }

  format::Json whole() {
    format::Json out = whole_;
    format::Json& module = out.at("graph_module");
    format::Json& graph = module.at("graph");
    graph["inputs"] = inputs_;
    graph["outputs"] = outputs_;
    graph["nodes"] = nodes_;
    for (const char* table : kTables) {
      if (graph.contains(table) || !tables_[table].empty()) graph[table] = tables_[table];
    }
    graph["is_single_tensor_return"] = false;
    const bool blocks =
        std::ranges::any_of(stage_.nodes, [&](int n) { return !graph_.nodes[to_index(n)].blocks.empty(); });
    if (blocks) {
      std::set<std::string> wanted;
      for (const int v : stage_.outputs) wanted.insert(name(v));
      restore_blocks(graph, nodes_, wanted);
    }
    module["signature"] = {{"input_specs", input_specs_}, {"output_specs", output_specs_}};
    module["module_call_graph"] = calls();

    const std::set<std::string> used = symbols();
    format::Json ranges = format::Json::object();
    for (const auto& [key, range] : whole_.at("range_constraints").items()) {
      const bool wanted = std::ranges::any_of(used, [&](const std::string& s) { return key.find(s) != key.npos; });
      if (wanted) ranges[key] = range;
    }
    out["range_constraints"] = ranges;
    format::Json guards = format::Json::array();
    for (const format::Json& guard : whole_.value("guards_code", format::Json::array())) {
      const std::set<std::string> names = guarded(guard.get<std::string>());
      const bool wanted = std::ranges::all_of(
          names, [&](const std::string& n) { return std::ranges::find(arguments_, n) != arguments_.end(); });
      if (wanted) guards.push_back(guard);
    }
    out["guards_code"] = guards;
    return out;
  }

  static constexpr const char* kTables[] = {"tensor_values", "sym_int_values", "sym_bool_values", "sym_float_values",
                                            "custom_obj_values"};

  const OperatorGraph& graph_;
  const format::Json& whole_;
  const format::Json& old_;
  const StageGraph& stage_;
  std::set<std::string> taken_;
  ReplacedValues copies_;
  std::vector<std::string> arguments_;
  format::Json inputs_ = format::Json::array(), outputs_ = format::Json::array(), nodes_ = format::Json::array();
  format::Json input_specs_ = format::Json::array(), output_specs_ = format::Json::array();
  std::map<std::string, format::Json> tables_{{"tensor_values", format::Json::object()},
                                              {"sym_int_values", format::Json::object()},
                                              {"sym_bool_values", format::Json::object()},
                                              {"sym_float_values", format::Json::object()},
                                              {"custom_obj_values", format::Json::object()}};
};

/// The entries of `whole` for `names`.
format::Json subset(const format::Json& whole, const std::set<std::string>& names) {
  format::Json config = format::Json::object();
  for (const auto& [key, value] : whole.at("config").items()) {
    if (names.contains(key)) config[key] = value;
  }
  return {{"config", config}};
}

/// The model's names of the stage's tensors.
std::set<std::string> held_names(const Pt2Archive& archive, const StageGraph& stage) {
  std::set<std::string> out;
  for (const ProgramInput& input : archive.program.inputs) {
    if (std::ranges::find(stage.tensors, input.value.index) != stage.tensors.end()) out.insert(input.name);
  }
  return out;
}

}  // namespace

StageArchives::StageArchives(const Pt2Archive& archive, const OperatorGraph& graph, int loss)
    : archive_(archive), graph_(graph), loss_(loss) {
  const format::Json nothing = {{"config", format::Json::object()}};
  auto documents = std::make_unique<Documents>();
  documents->program = flattened_blocks(read_document(archive, "models/" + archive.model + ".json", nullptr));
  documents->weights = read_document(archive, kWeights + archive.model + "_weights_config.json", nothing);
  documents->constants = read_document(archive, kConstants + archive.model + "_constants_config.json", nothing);
  documents->notes = read_document(archive, "extra/stagecraft.json", nullptr);
  documents_ = std::move(documents);
}

StageArchives::~StageArchives() = default;

std::string StageArchives::program(const StageGraph& stage) const {
  return StageDocument(graph_, documents_->program, stage).build().dump();
}

void StageArchives::write(const StageGraph& stage, const std::string& path) const {
  const std::string root = std::filesystem::path(path).stem().string() + "/";
  const std::set<std::string> names = held_names(archive_, stage);
  std::set<std::string> records;
  for (const std::string& name : names) records.insert(archive_.tensors.at(name).record);

  files::ZipWriter zip(path);
  for (const std::string& name : records) {
    const files::ZipRecord* const record = archive_.zip->find(name);
    if (!record) throw FormatError(ErrorKind::DamagedFile, archive_.zip->path() + ": has no record \"" + name + "\"");
    zip.add(root + name.substr(archive_.root.size() + 1), archive_.zip->map(*record, /*check=*/true)->bytes());
  }
  const std::string model = kModel;
  zip.add(root + kWeights + model + "_weights_config.json", subset(documents_->weights, names).dump());
  zip.add(root + kConstants + model + "_constants_config.json", subset(documents_->constants, names).dump());
  zip.add(root + "models/" + model + ".json", program(stage));
  // The record is required; empty means none.
  zip.add(root + "data/sample_inputs/" + model + ".pt", "");
  if (!documents_->notes.is_null()) zip.add(root + "extra/stagecraft.json", notes(stage));
  zip.add(root + "archive_format", "pt2");
  zip.add(root + "archive_version", "0");
  zip.add(root + ".data/version", "3\n");
  zip.add(root + "byteorder", "little");
  zip.finish();
}

std::string StageArchives::notes(const StageGraph& stage) const {
  format::Json out = documents_->notes;
  format::Json inputs = format::Json::array();
  for (const auto* const values : {&stage.received, &stage.inputs}) {
    for (const int v : *values) {
      const GraphValue& value = graph_.values[to_index(v)];
      const format::Json& known = documents_->notes.value("inputs", format::Json::array());
      const auto it =
          std::ranges::find_if(known, [&](const format::Json& n) { return n.value("name", "") == value.name; });
      if (value.origin == GraphValue::Origin::Input && it != known.end()) {
        inputs.push_back(*it);
        continue;
      }
      format::Json axis = nullptr;
      const std::vector<SizeExpression>& sizes = value.meta->sizes;
      for (std::size_t a = 0; a < sizes.size() && axis.is_null(); ++a) {
        if (!symbols_of(sizes[a]).empty()) axis = a;
      }
      inputs.push_back({{"name", value.name}, {"batch_axis", axis}, {"range", nullptr}});
    }
  }
  out["inputs"] = inputs;
  // A stage without inputs of the batch's size does not have the symbol.
  std::set<std::string> symbols;
  for (const auto* const values : {&stage.received, &stage.inputs}) {
    for (const int v : *values) {
      for (const SizeExpression& size : graph_.values[to_index(v)].meta->sizes) symbols.merge(symbols_of(size));
    }
  }
  if (const auto it = out.find("batch_symbol"); it != out.end() && it->is_string()) {
    if (!symbols.contains(it->get<std::string>())) out.erase(it);
  }
  const std::set<std::string> stored = held_names(archive_, stage);
  format::Json tied = format::Json::array();
  for (const format::Json& group : out.value("tied", format::Json::array())) {
    format::Json here = format::Json::array();
    std::ranges::copy_if(group, std::back_inserter(here),
                         [&](const format::Json& name) { return stored.contains(name.get<std::string>()); });
    if (here.size() > 1) tied.push_back(here);
  }
  out["tied"] = tied;
  out.erase("loss_output");
  out.erase("loss_kind");
  out.erase("loss_weight");
  const auto loss = std::ranges::find(stage.outputs, loss_);
  if (loss != stage.outputs.end()) out["loss_output"] = loss - stage.outputs.begin();
  return out.dump(1);
}

}  // namespace stagecraft::intake
