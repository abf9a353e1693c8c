#include "executor/intake/pt2/flattened_blocks.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>
#include <vector>

namespace stagecraft::intake {
namespace {

constexpr std::array kTables{"tensor_values", "sym_int_values", "sym_float_values", "sym_bool_values"};
constexpr std::array kBlockTargets{"torch.ops.higher_order.wrap_with_set_grad_enabled",
                                   "torch.ops.higher_order.wrap_with_autocast"};

/// {"as_tensor": {"name": "x"}} of {"name": "x"}.
format::Json tensor(const format::Json& name) { return {{"as_tensor", name}}; }

/// The single arguments in `argument`: of a list of tensors each.
std::vector<format::Json> each_of(const format::Json& argument) {
  std::vector<format::Json> out;
  for (const auto& [kind, value] : argument.items()) {
    if (kind == "as_tensors") {
      for (const format::Json& item : value) out.push_back(tensor(item));
    } else if (kind == "as_optional_tensors") {
      for (const format::Json& item : value) out.push_back(item);
    } else if (kind == "as_optional_tensor") {
      out.push_back(value);
    } else {
      out.push_back(argument);
    }
  }
  return out;
}

std::vector<format::Json> each_of_list(const format::Json& arguments) {
  std::vector<format::Json> out;
  for (const format::Json& argument : arguments) {
    for (format::Json& single : each_of(argument)) out.push_back(std::move(single));
  }
  return out;
}

/// The value of a single argument; empty for a literal.
std::string name_in(const format::Json& argument) {
  for (const auto& [kind, value] : argument.items()) {
    if (kind == "as_tensor") return value.value("name", "");
    if (kind.starts_with("as_sym_") && value.is_object()) return value.value("as_name", "");
  }
  return "";
}

/// Calls `visit` with the name of each value that `argument` reads.
template <class Visit>
void visit_reads(const format::Json& argument, Visit&& visit) {
  for (const auto& [kind, value] : argument.items()) {
    if (kind == "as_graph") continue;
    if (kind.starts_with("as_sym_") && value.is_array()) {
      for (const format::Json& item : value) {
        if (const auto it = item.find("as_name"); it != item.end()) visit(it->get<std::string>());
      }
      continue;
    }
    for (const format::Json& single : each_of(argument)) {
      if (const std::string name = name_in(single); !name.empty()) visit(name);
    }
  }
}

std::vector<std::string> reads_of(const format::Json& node) {
  std::vector<std::string> out;
  for (const format::Json& input : node.at("inputs"))
    visit_reads(input.at("arg"), [&](const std::string& n) { out.push_back(n); });
  return out;
}

std::vector<std::string> made_by(const format::Json& node) {
  std::vector<std::string> out;
  for (const format::Json& output : node.at("outputs"))
    visit_reads(output, [&](const std::string& n) { out.push_back(n); });
  return out;
}

/// Position of the graph among the inputs of a block's node; absent if this is not a block that can be flattened.
std::optional<std::size_t> graph_position(const format::Json& node) {
  const std::string target = node.value("target", "");
  if (std::ranges::find(kBlockTargets, target) == kBlockTargets.end()) return std::nullopt;
  const format::Json& inputs = node.at("inputs");
  std::vector<format::Json> operands;
  std::optional<std::size_t> found;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const format::Json& argument = inputs[i].at("arg");
    if (found) {
      for (format::Json& single : each_of(argument)) operands.push_back(std::move(single));
    } else if (argument.contains("as_graph")) {
      found = i;
    } else if (!reads_of({{"inputs", format::Json::array({inputs[i]})}}).empty()) {
      return std::nullopt;
    }
  }
  if (!found) return std::nullopt;
  const format::Json& graph = inputs[*found].at("arg").at("as_graph").at("graph");
  const bool fits = graph.at("inputs").size() == operands.size() &&
                    each_of_list(graph.at("outputs")).size() == each_of_list(node.at("outputs")).size();
  return fits ? found : std::nullopt;
}

class Flattener {
 public:
  explicit Flattener(format::Json& program) : program_(program), graph_(program.at("graph_module").at("graph")) {}

  void run() {
    const format::Json nodes = std::exchange(graph_.at("nodes"), format::Json::array());
    for (const char* table : kTables) {
      if (const auto it = graph_.find(table); it != graph_.end()) {
        for (const auto& [name, entry] : it->items()) taken_.insert(name);
      }
    }
    add(nodes, {}, "", format::Json::array());
    for (format::Json& node : graph_.at("nodes")) {
      for (format::Json& input : node.at("inputs")) replace_values(input.at("arg"), same_);
    }
    for (format::Json& output : graph_.at("outputs")) replace_values(output, same_);
    for (format::Json& spec : program_.at("graph_module").at("signature").at("output_specs")) replace_in_spec(spec);
    for (const auto& [name, other] : same_) {
      for (const char* table : kTables) {
        if (graph_.contains(table)) graph_.at(table).erase(name);
      }
    }
  }

 private:
  void replace_in_spec(format::Json& spec) {
    for (auto& [kind, value] : spec.items()) {
      format::Json& argument = value.at("arg");
      if (!argument.contains("name")) {
        replace_values(argument, same_);
        continue;
      }
      format::Json named = tensor(argument);
      replace_values(named, same_);
      if (named.contains("as_tensor")) argument = named.at("as_tensor");
    }
  }

  /// Adds nodes of a graph whose values are renamed by `names`, in `blocks`.
  void add(const format::Json& nodes, const ReplacedValues& names, const std::string& prefix,
           const format::Json& blocks) {
    for (format::Json node : nodes) {
      for (format::Json& input : node.at("inputs")) replace_values(input.at("arg"), names);
      for (format::Json& output : node.at("outputs")) replace_values(output, names);
      node["name"] = prefix + node.at("name").get<std::string>();
      if (const auto position = graph_position(node)) {
        open(node, *position, blocks);
        continue;
      }
      if (!blocks.empty()) node["metadata"][kBlocksKey] = blocks;
      graph_.at("nodes").push_back(std::move(node));
    }
  }

  void open(const format::Json& node, std::size_t position, format::Json blocks) {
    const std::string name = node.at("name").get<std::string>();
    const format::Json& inputs = node.at("inputs");
    const format::Json& graph = inputs[position].at("arg").at("as_graph");
    const format::Json& inner = graph.at("graph");
    format::Json before = format::Json::array();
    format::Json operands = format::Json::array();
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      if (i != position) (i < position ? before : operands).push_back(i < position ? inputs[i] : inputs[i].at("arg"));
    }
    blocks.push_back(
        {{"node", name}, {"target", node.at("target")}, {"inputs", before}, {"graph", graph.value("name", "submod")}});

    ReplacedValues names;
    const std::vector<format::Json> given = each_of_list(operands);
    for (std::size_t i = 0; i < given.size(); ++i) names[name_in(inner.at("inputs")[i])] = given[i];
    // The block's results have their outer names.
    const std::vector<format::Json> results = each_of_list(node.at("outputs"));
    const std::vector<format::Json> outputs = each_of_list(inner.at("outputs"));
    std::vector<std::size_t> again;
    for (std::size_t i = 0; i < results.size(); ++i) {
      const std::string value = name_in(outputs[i]);
      if (name_in(results[i]).empty()) continue;
      if (value.empty() || !names.emplace(value, results[i]).second) again.push_back(i);
    }
    for (const format::Json& inner_node : inner.at("nodes")) {
      for (const std::string& value : made_by(inner_node)) add_value(inner, value, name, names);
    }
    add(inner.at("nodes"), names, name + ".", blocks);
    // An operand, or a value that is already another result.
    for (const std::size_t i : again) {
      format::Json other = outputs[i];
      replace_values(other, names);
      replace_values(other, same_);
      same_[name_in(results[i])] = std::move(other);
    }
  }

  /// Gives `value`, made by an inner node, a name that is unique among all values, if it has none.
  void add_value(const format::Json& inner, const std::string& value, const std::string& block, ReplacedValues& names) {
    if (names.contains(value)) return;
    std::string base = block + "_" + value;
    std::ranges::replace(base, '.', '_');
    std::string fresh = base;
    for (int again = 1; !taken_.insert(fresh).second; ++again) fresh = base + "_" + std::to_string(again);
    for (const char* table : kTables) {
      const auto entries = inner.find(table);
      if (entries == inner.end()) continue;
      const auto entry = entries->find(value);
      if (entry == entries->end()) continue;
      graph_[table][fresh] = *entry;
      const std::string kind = table;
      names[value] = kind == "tensor_values"
                         ? tensor({{"name", fresh}})
                         : format::Json{{"as_" + kind.substr(0, kind.find("_values")), {{"as_name", fresh}}}};
    }
  }

  format::Json& program_;
  format::Json& graph_;
  std::set<std::string> taken_;
  ReplacedValues same_;  // results of blocks that are other values
};

/// Puts nodes back into blocks, level by level.
class Restorer {
 public:
  explicit Restorer(const format::Json& graph) : graph_(graph) {
    for (const char* table : kTables) {
      if (!graph.contains(table)) continue;
      for (const auto& [name, entry] : graph.at(table).items()) kind_[name] = table;
    }
  }

  format::Json level(const std::vector<const format::Json*>& nodes, std::size_t depth,
                     const std::set<std::string>& wanted) {
    format::Json out = format::Json::array();
    std::vector<std::set<std::string>> later(nodes.size() + 1, wanted);  // read from node i on
    for (std::size_t i = nodes.size(); i-- > 0;) {
      later[i] = later[i + 1];
      for (const std::string& name : reads_of(*nodes[i])) later[i].insert(name);
    }
    for (std::size_t i = 0; i < nodes.size();) {
      const std::string block = block_of(*nodes[i], depth);
      if (block.empty()) {
        out.push_back(bare(*nodes[i++]));
        continue;
      }
      std::vector<const format::Json*> group;
      while (i < nodes.size() && block_of(*nodes[i], depth) == block) group.push_back(nodes[i++]);
      add_block(out, group, depth, later[i]);
    }
    return out;
  }

 private:
  static std::string block_of(const format::Json& node, std::size_t depth) {
    const auto metadata = node.find("metadata");
    if (metadata == node.end() || !metadata->contains(kBlocksKey)) return "";
    const format::Json& blocks = metadata->at(kBlocksKey);
    return depth < blocks.size() ? blocks[depth].at("node").get<std::string>() : "";
  }

  static format::Json bare(format::Json node) {
    if (node.contains("metadata")) node["metadata"].erase(kBlocksKey);
    return node;
  }

  [[nodiscard]] bool is_number(const std::string& value) const {
    const auto it = kind_.find(value);
    return it != kind_.end() && it->second != "tensor_values";
  }

  [[nodiscard]] format::Json argument(const std::string& value) const {
    const auto it = kind_.find(value);
    const std::string kind = it == kind_.end() ? "tensor_values" : it->second;
    if (kind == "tensor_values") return tensor({{"name", value}});
    return {{"as_" + kind.substr(0, kind.find("_values")), {{"as_name", value}}}};
  }

  std::string fresh(const std::string& wanted) {
    std::string out = wanted;
    for (int again = 1; !names_.insert(out).second; ++again) out = wanted + "_" + std::to_string(again);
    return out;
  }

  void add_block(format::Json& out, const std::vector<const format::Json*>& nodes, std::size_t depth,
                 const std::set<std::string>& later) {
    std::set<std::string> made;
    std::vector<std::string> operands;
    for (const format::Json* node : nodes) {
      for (const std::string& name : reads_of(*node)) {
        if (!made.contains(name) && std::ranges::find(operands, name) == operands.end()) operands.push_back(name);
      }
      for (const std::string& name : made_by(*node)) made.insert(name);
    }
    // Numbers do not leave a block: those that later nodes need are computed again after it.
    std::set<std::string> leaving = later;
    std::vector<const format::Json*> behind;
    for (std::size_t i = nodes.size(); i-- > 0;) {
      const std::vector<std::string> values = made_by(*nodes[i]);
      if (std::ranges::none_of(values, [&](const std::string& n) { return is_number(n) && leaving.contains(n); }))
        continue;
      behind.insert(behind.begin(), nodes[i]);
      for (const std::string& name : reads_of(*nodes[i])) leaving.insert(name);
    }
    std::vector<std::string> results;
    for (const format::Json* node : nodes) {
      for (const std::string& name : made_by(*node)) {
        if (leaving.contains(name) && !is_number(name)) results.push_back(name);
      }
    }
    // torch.export.load rejects a block without results.
    for (auto node = nodes.rbegin(); results.empty() && node != nodes.rend(); ++node) {
      for (const std::string& name : made_by(**node)) {
        if (results.empty() && !is_number(name)) results.push_back(name);
      }
    }

    const format::Json& block = nodes.front()->at("metadata").at(kBlocksKey)[depth];
    format::Json inner = {{"inputs", format::Json::array()}, {"outputs", format::Json::array()}};
    format::Json inputs = block.at("inputs");
    format::Json outputs = format::Json::array();
    format::Json graph_argument = {{"name", fresh(block.at("graph").get<std::string>())}};
    std::vector<format::Json> given;
    for (const std::string& name : operands) {
      inner["inputs"].push_back(argument(name));
      given.push_back({{"name", ""}, {"arg", argument(name)}, {"kind", 1}});
    }
    for (const std::string& name : results) {
      inner["outputs"].push_back(argument(name));
      outputs.push_back(argument(name));
    }
    inner["nodes"] = level(nodes, depth + 1, {results.begin(), results.end()});
    add_tables(inner);
    inner["is_single_tensor_return"] = false;
    inner["custom_obj_values"] = format::Json::object();
    graph_argument["graph"] = std::move(inner);
    inputs.push_back({{"name", ""}, {"arg", {{"as_graph", std::move(graph_argument)}}}, {"kind", 1}});
    for (format::Json& input : given) inputs.push_back(std::move(input));

    const std::string whole = block.at("node").get<std::string>();
    out.push_back({{"target", block.at("target")},
                   {"inputs", std::move(inputs)},
                   {"outputs", std::move(outputs)},
                   {"metadata", bare(*nodes.front()).value("metadata", format::Json::object())},
                   {"is_hop_single_tensor_return", false},
                   {"name", fresh(whole.substr(whole.rfind('.') + 1))}});
    for (const format::Json* node : behind) out.push_back(bare(*node));
  }

 public:
  /// Entries for the inputs of `graph` and its nodes' results.
  void add_tables(format::Json& graph) const {
    std::set<std::string> names;
    const auto add = [&](const std::string& name) { names.insert(name); };
    for (const format::Json& input : graph.at("inputs")) visit_reads(input, add);
    for (const format::Json& node : graph.at("nodes")) {
      for (const std::string& name : made_by(node)) add(name);
    }
    for (const char* table : kTables) {
      format::Json entries = format::Json::object();
      if (graph_.contains(table)) {
        for (const auto& [name, entry] : graph_.at(table).items()) {
          if (names.contains(name)) entries[name] = entry;
        }
      }
      graph[table] = std::move(entries);
    }
  }

 private:
  const format::Json& graph_;
  std::map<std::string, std::string> kind_;  // value -> table
  std::set<std::string> names_;              // of graphs and of blocks' nodes
};

}  // namespace

void replace_values(format::Json& argument, const ReplacedValues& values) {
  const auto find = [&](const std::string& name) {
    const auto it = values.find(name);
    return it == values.end() ? nullptr : &it->second;
  };
  // {"as_name": "n"} or {"as_int": 3} of the replacement for a number.
  const auto replace_number = [&](format::Json& number) {
    const format::Json* const other = find(number.value("as_name", ""));
    if (!other) return;
    const auto only = other->begin();
    number = only.key().starts_with("as_sym_") ? only.value() : *other;
  };
  std::optional<format::Json> whole;
  for (auto& [kind, value] : argument.items()) {
    if (kind == "as_tensor") {
      if (const format::Json* const other = find(value.value("name", ""))) whole = *other;
    } else if (kind == "as_tensors") {
      for (format::Json& item : value) {
        const format::Json* const other = find(item.value("name", ""));
        if (other && other->contains("as_tensor")) item = other->at("as_tensor");
      }
    } else if (kind == "as_optional_tensor") {
      replace_values(value, values);
    } else if (kind == "as_optional_tensors") {
      for (format::Json& item : value) replace_values(item, values);
    } else if (kind.starts_with("as_sym_")) {
      if (value.is_object()) replace_number(value);
      if (value.is_array()) std::ranges::for_each(value, replace_number);
    }
  }
  if (whole) argument = std::move(*whole);
}

format::Json flattened_blocks(format::Json program) {
  const format::Json& nodes = program.at("graph_module").at("graph").at("nodes");
  const bool any =
      std::ranges::any_of(nodes, [](const format::Json& node) { return graph_position(node).has_value(); });
  if (any) Flattener(program).run();
  return program;
}

void restore_blocks(format::Json& graph, const format::Json& nodes, const std::set<std::string>& wanted) {
  Restorer restorer(graph);
  std::vector<const format::Json*> all;
  for (const format::Json& node : nodes) all.push_back(&node);
  format::Json restored = restorer.level(all, 0, wanted);
  format::Json out = graph;
  out["nodes"] = std::move(restored);
  restorer.add_tables(out);
  graph = std::move(out);
}

}  // namespace stagecraft::intake
