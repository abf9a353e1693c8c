#include "executor/intake/graph/calls/node_program.h"

#include <ATen/Context.h>
#include <ATen/ops/alias.h>
#include <ATen/ops/empty_strided.h>

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <stdexcept>

#include "costmodel/index.h"
#include "executor/intake/graph/calls/block_scope.h"
#include "executor/model/model.h"

namespace stagecraft::intake {
namespace {

using Origin = GraphValue::Origin;

/// Operators of files draw from the device's default generator, which all threads share.
std::mutex& random_turn() {
  static std::mutex turn;
  return turn;
}

void set_seed(const c10::Device& device, std::uint64_t seed) {
  if (device.is_meta()) return;  // tensors without values draw no numbers
  at::Generator generator = at::globalContext().defaultGenerator(device);
  const std::lock_guard lock(generator.mutex());
  generator.unsafeGetGeneratorImpl()->set_current_seed(seed);
}

/// `value` with its numbers where `strides` puts them.
at::Tensor laid_out(const at::Tensor& value, const std::vector<SizeExpression>& strides, const Symbols& symbols) {
  if (to_index(value.dim()) != strides.size()) return value;
  std::vector<std::int64_t> wanted;
  bool same = true;
  for (std::size_t axis = 0; axis < strides.size(); ++axis) {
    wanted.push_back(evaluate(strides[axis], symbols));
    const auto at = static_cast<std::int64_t>(axis);
    if (value.size(at) == 1) continue;
    if (wanted.back() <= 0) return value;
    same = same && wanted.back() == value.stride(at);
  }
  if (same) return value;
  at::Tensor out = at::empty_strided(value.sizes(), wanted, value.options().requires_grad(false));
  return out.copy_(value);
}

/// Whether all arguments' strides are those of a contiguous tensor for every batch size; then layouts cannot differ.
bool contiguous(const TensorMeta& meta) {
  SizeExpression extent(1);
  for (std::size_t axis = meta.sizes.size(); axis-- > 0;) {
    const auto size = constant_value(meta.sizes[axis]);
    if (!(meta.strides[axis] == extent) && size != 1) return false;
    if (axis == 0) break;
    const auto before = constant_value(extent);
    if (!size || !before) return false;
    extent = SizeExpression(*size * *before);
  }
  return true;
}

/// The blocks that a run is in, left in reverse order.
class OpenBlocks {
 public:
  OpenBlocks() = default;
  ~OpenBlocks() { keep(0); }
  OpenBlocks(const OpenBlocks&) = delete;
  OpenBlocks& operator=(const OpenBlocks&) = delete;
  void keep(std::size_t outermost) {
    while (scopes_.size() > outermost) scopes_.pop_back();
  }
  void enter(const GraphBlock& block, c10::DeviceType device) {
    scopes_.push_back(std::make_unique<BlockScope>(block, device));
  }

 private:
  std::vector<std::unique_ptr<BlockScope>> scopes_;
};

}  // namespace

NodeProgram::NodeProgram(const OperatorGraph& graph, std::vector<int> nodes, std::vector<int> outputs) {
  // Numbers that follow from the symbols are computed from them, others by their nodes.
  std::set<int> needed(nodes.begin(), nodes.end());
  std::set<std::string> symbols;
  std::vector<int> pending = nodes;
  std::set<int> numbers;
  bool holds_graphs = false;
  while (!pending.empty()) {
    const GraphNode& node = graph.nodes[to_index(pending.back())];
    pending.pop_back();
    holds_graphs = holds_graphs || node.holds_graphs;
    for (const int value : node.reads) {
      const GraphValue& read = graph.values[to_index(value)];
      if (read.kind != GraphValue::Kind::Number) continue;
      if (read.number) {
        numbers.insert(value);
        symbols.merge(symbols_of(*read.number));
      } else if (read.origin == Origin::Node && needed.insert(read.source).second) {
        pending.push_back(read.source);
      }
    }
  }
  if (holds_graphs) symbols.insert(graph.symbols.begin(), graph.symbols.end());
  nodes.assign(needed.begin(), needed.end());

  std::set<int> given;
  std::vector<int> from_nodes;
  std::vector<int> from_inputs;
  std::map<int, std::vector<int>> stored;  // tensor -> values
  for (const int n : nodes) given.insert(graph.nodes[to_index(n)].gives.begin(), graph.nodes[to_index(n)].gives.end());
  const std::set<int> written = written_values(graph, nodes);
  for (const int n : nodes) {
    const GraphNode& node = graph.nodes[to_index(n)];
    for (const int value : node.reads) {
      const GraphValue& read = graph.values[to_index(value)];
      if (given.contains(value) || numbers.contains(value)) continue;
      std::vector<int>& values = read.origin == Origin::Node    ? from_nodes
                                 : read.origin == Origin::Input ? from_inputs
                                                                : stored[read.source];
      if (std::ranges::find(values, value) == values.end()) values.push_back(value);
    }
  }
  if (!graph.reading_order) {
    std::ranges::sort(from_nodes);
    std::ranges::sort(from_inputs);
  }
  std::map<int, int> slot;
  const auto new_slot = [&](int value) { return slot[value] = to_int(slots_++); };
  for (const auto* const values : {&from_nodes, &from_inputs}) {
    for (const int value : *values) {
      arguments_.push_back(value);
      SlotArgument argument{new_slot(value), written.contains(value), {}};
      const GraphValue& read = graph.values[to_index(value)];
      if (read.origin == Origin::Node && read.meta && !contiguous(*read.meta)) {
        argument.strides = read.meta->strides;
        for (const SizeExpression& stride : argument.strides) symbols.merge(symbols_of(stride));
      }
      argument_slots_.push_back(std::move(argument));
    }
  }
  bind(graph, {symbols.begin(), symbols.end()});
  for (const auto& [tensor, values] : stored) {
    tensors_.push_back(tensor);
    tensor_slots_.emplace_back();
    for (const int value : values) tensor_slots_.back().push_back(new_slot(value));
    copied_tensors_.push_back(graph.mode == model::ModelMode::Evaluation &&
                              std::ranges::any_of(values, [&](int value) { return written.contains(value); }));
  }
  for (const int value : numbers) numbers_.emplace_back(new_slot(value), *graph.values[to_index(value)].number);

  std::set<int> read;
  for (const int n : nodes) read.insert(graph.nodes[to_index(n)].reads.begin(), graph.nodes[to_index(n)].reads.end());
  read.insert(outputs.begin(), outputs.end());
  for (const int value : given) {
    if (read.contains(value) && !slot.contains(value)) new_slot(value);
  }
  std::map<int, std::size_t> last;
  std::vector<GraphBlock> inside;
  for (const int n : nodes) {
    const GraphNode& node = graph.nodes[to_index(n)];
    const auto lookup = [&](int value) {
      const auto it = slot.find(value);
      return it == slot.end() ? -1 : it->second;
    };
    for (const auto* const values : {&node.reads, &node.gives}) {
      for (const int value : *values) {
        if (lookup(value) >= 0) last[value] = steps_.size();
      }
    }
    steps_.push_back({graph.compile(n, lookup), {}, node.random ? node.name : ""});
    const auto [left, entered] = std::ranges::mismatch(inside, node.blocks);
    steps_.back().stay = to_index(left - inside.begin());
    steps_.back().enter.assign(entered, node.blocks.end());
    inside = node.blocks;
    keeps_casts_ = keeps_casts_ || keeps_casts(node);
  }
  for (const int value : outputs) {
    outputs_.push_back(slot.at(value));
    last.erase(value);
  }
  for (const auto& [value, step] : last) steps_[step].release.push_back(slot.at(value));
}

void NodeProgram::bind(const OperatorGraph& graph, const std::vector<std::string>& symbols) {
  const auto find = [&](const std::string& symbol) {
    for (std::size_t i = 0; i < arguments_.size(); ++i) {
      const GraphValue& value = graph.values[to_index(arguments_[i])];
      if (!value.meta) continue;
      for (std::size_t axis = 0; axis < value.meta->sizes.size(); ++axis) {
        const SizeExpression& extent = value.meta->sizes[axis];
        const std::set<std::string> determined = symbols_of(extent);
        if (determined.size() != 1 || *determined.begin() != symbol || !solve(extent, evaluate(extent, {{symbol, 1}})))
          continue;
        bindings_.push_back({symbol, i, static_cast<std::int64_t>(axis), extent});
        return true;
      }
    }
    return false;
  };
  for (const std::string& symbol : symbols) {
    if (find(symbol)) continue;
    // No argument determines it, but an input of the model does.
    for (std::size_t v = 0; v < graph.values.size(); ++v) {
      const GraphValue& value = graph.values[v];
      if (value.origin != Origin::Input || !value.meta) continue;
      const bool tells = std::ranges::any_of(value.meta->sizes, [&](const SizeExpression& e) {
        return e.kind == SizeExpression::Kind::Symbol && e.symbol == symbol;
      });
      if (!tells) continue;
      arguments_.push_back(to_int(v));
      argument_slots_.push_back({to_int(slots_++), false, {}});
      break;
    }
    if (!find(symbol)) throw std::invalid_argument(graph.file + ": no input determines the size " + symbol);
  }
}

std::vector<at::Tensor> NodeProgram::run(std::span<const at::Tensor> arguments, std::vector<at::Tensor> tensors,
                                         const NodeRun& how) const {
  Frame frame;
  frame.slots.resize(slots_);
  const at::Tensor* const first = !tensors.empty()     ? &tensors.front()
                                  : !arguments.empty() ? &arguments.front()
                                                       : nullptr;
  if (first) frame.device = first->device();
  Symbols symbols;
  for (const Binding& binding : bindings_) {
    const at::Tensor& told = arguments[binding.argument];
    const auto value = binding.axis < told.dim() ? solve(binding.extent, told.size(binding.axis)) : std::nullopt;
    if (!value) {
      throw std::invalid_argument("size " + std::to_string(binding.axis < told.dim() ? told.size(binding.axis) : 0) +
                                  " in axis " + std::to_string(binding.axis) + ", expected " +
                                  to_string(binding.extent));
    }
    symbols[binding.symbol] = *value;
  }
  frame.symbols = &symbols;
  frame.run = how;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const SlotArgument& argument = argument_slots_[i];
    at::Tensor value = argument.strides.empty() ? arguments[i] : laid_out(arguments[i], argument.strides, symbols);
    if (argument.copy && value.is_same(arguments[i])) value = value.clone();
    // Autocast caches casts of leaves; a value from another layer is not a leaf in the whole model.
    if (keeps_casts_ && value.requires_grad() && value.is_leaf()) value = at::alias(value);
    frame.slots[to_index(argument.slot)] = std::move(value);
  }
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    at::Tensor tensor = copied_tensors_[i] ? tensors[i].clone() : std::move(tensors[i]);
    const std::vector<int>& slots = tensor_slots_[i];
    for (std::size_t other = 1; other < slots.size(); ++other) frame.slots[to_index(slots[other])] = tensor;
    frame.slots[to_index(slots.front())] = std::move(tensor);
  }
  for (const auto& [slot, number] : numbers_) frame.slots[to_index(slot)] = evaluate(number, symbols);
  OpenBlocks blocks;
  for (const Step& step : steps_) {
    blocks.keep(step.stay);
    for (const GraphBlock& block : step.enter) blocks.enter(block, frame.device.type());
    if (step.random.empty()) {
      step.call(frame);
    } else {
      const std::lock_guard turn(random_turn());
      set_seed(frame.device, model::mix_seed(how.seed, step.random, static_cast<std::uint64_t>(how.step),
                                             static_cast<std::uint64_t>(how.microbatch)));
      step.call(frame);
    }
    for (const int slot : step.release) frame.slots[to_index(slot)] = c10::IValue();
  }
  std::vector<at::Tensor> out;
  out.reserve(outputs_.size());
  for (const int slot : outputs_) {
    at::Tensor value = std::move(frame.slots[to_index(slot)]).toTensor();
    // A view made under no_grad reports that it requires a gradient, but does not receive one.
    if (value.requires_grad() && !value.grad_fn() && value.is_view()) value = value.detach();
    out.push_back(std::move(value));
  }
  return out;
}

}  // namespace stagecraft::intake
