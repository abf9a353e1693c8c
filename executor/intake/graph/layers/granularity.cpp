#include "executor/intake/graph/layers/granularity.h"

#include <algorithm>
#include <map>
#include <stdexcept>
#include <string_view>

#include "costmodel/index.h"
#include "costmodel/text/number.h"

namespace stagecraft::intake {
namespace {

const std::map<std::string, Granularity::Kind> kWords{
    {"auto", Granularity::Kind::Auto}, {"leaf", Granularity::Kind::Leaf}, {"op", Granularity::Kind::Operator}};
constexpr std::string_view kDepth = "depth=";

std::string last_word(const std::string& type) { return type.substr(type.rfind('.') + 1); }

bool ends_in_number(const std::string& path) {
  const std::string last = last_word(path);
  return !last.empty() && std::ranges::all_of(last, [](char c) { return c >= '0' && c <= '9'; });
}

/// A frame, with its call number and those of the modules around it.
LayerLabel label_of(const std::vector<ModuleFrame>& modules, std::size_t frame) {
  const ModuleFrame& module = modules[frame];
  int call = 0;
  for (std::size_t i = 0; i <= frame; ++i) call = std::max(call, modules[i].call);
  return {call > 0 ? module.path + "@" + std::to_string(call) : module.path, module.path, last_word(module.type)};
}

}  // namespace

Granularity parse_granularity(const std::string& text) {
  if (const auto word = kWords.find(text); word != kWords.end()) return {word->second, 0};
  if (text.starts_with(kDepth)) {
    const std::optional<int> depth = number_in<int>(text.substr(kDepth.size()));
    if (depth && *depth >= 1 && *depth <= 100) return {Granularity::Kind::Depth, *depth};
  }
  throw std::invalid_argument("layers \"" + text + "\": expected auto, leaf, op, or depth=N with N in 1..100");
}

bool names_granularity(const std::string& text) { return kWords.contains(text) || text.starts_with(kDepth); }

LayerLabel label_of(const GraphNode& node, const Granularity& granularity) {
  const std::vector<ModuleFrame>& modules = node.modules;
  if (modules.empty()) return {};
  const std::size_t last = modules.size() - 1;
  switch (granularity.kind) {
    case Granularity::Kind::Auto:
      for (std::size_t i = 0; i < modules.size(); ++i) {
        if (ends_in_number(modules[i].path) && last_word(modules[i].type) != "Sequential") return label_of(modules, i);
      }
      return label_of(modules, last);
    case Granularity::Kind::Leaf:
      return label_of(modules, last);
    case Granularity::Kind::Depth:
      return label_of(modules, std::min(last, to_index(granularity.depth)));
    case Granularity::Kind::Operator: {
      LayerLabel out = label_of(modules, last);
      out.name = out.path.empty() ? node.name : out.path + ":" + node.name;
      out.kind = last_word(node.target.substr(0, node.target.rfind('.')));
      return out;
    }
  }
  return {};
}

}  // namespace stagecraft::intake
