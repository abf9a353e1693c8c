#include "executor/intake/graph/program/dropout_call.h"

#include <algorithm>
#include <optional>
#include <set>
#include <utility>
#include <variant>
#include <vector>

#include "costmodel/errors.h"
#include "costmodel/index.h"

namespace stagecraft::intake {
namespace {

constexpr const char* kTarget = "torch.ops.stagecraft.dropout.default";

/// A mask that is drawn before a node's own.
struct EarlierMask {
  double probability = 0;
  std::vector<SizeExpression> sizes;
};

std::vector<EarlierMask> earlier_masks(const ProgramGraph& graph, const DropoutArguments& own,
                                       const std::string& place) {
  std::vector<std::pair<std::int64_t, EarlierMask>> found;
  for (const ProgramNode& node : graph.nodes) {
    if (!is_dropout(node)) continue;
    const DropoutArguments other = dropout_arguments(graph, node, place);
    if (!other.active() || other.block != own.block || other.stream != own.stream || other.place >= own.place) continue;
    const std::optional<TensorMeta>& meta = graph.values[to_index(other.input.index)].tensor;
    if (!meta)
      throw FormatError(ErrorKind::UnsupportedModel, place + ": the shape of the mask before this one is unknown");
    found.emplace_back(other.place, EarlierMask{other.probability, meta->sizes});
  }
  std::ranges::sort(found, {}, [](const auto& mask) { return mask.first; });
  std::vector<EarlierMask> out;
  for (auto& [at, mask] : found) out.push_back(std::move(mask));
  return out;
}

/// The values of the symbols in `sizes` for which these are the sizes of `x`.
Symbols symbols_of_shape(const std::vector<SizeExpression>& sizes, const at::Tensor& x) {
  Symbols out;
  for (std::size_t axis = 0; axis < sizes.size(); ++axis) {
    const std::set<std::string> symbols = symbols_of(sizes[axis]);
    if (symbols.size() != 1) continue;
    if (const auto value = solve(sizes[axis], x.size(static_cast<std::int64_t>(axis)))) out[*symbols.begin()] = *value;
  }
  return out;
}

MaskStream& stream_of(Frame& frame, std::uint64_t seed) {
  const auto it = std::ranges::find(frame.masks, seed, &MaskStream::seed);
  return it == frame.masks.end() ? frame.masks.emplace_back(seed) : *it;
}

}  // namespace

bool is_dropout(const ProgramNode& node) { return node.target == kTarget; }

ProgramNode dropout_node(const DropoutArguments& arguments, ValueIndex result) {
  return {.name = "",
          .target = kTarget,
          .arguments = {{"input", arguments.input},
                        {"p", arguments.probability},
                        {"train", arguments.train},
                        {"block", arguments.block},
                        {"stream", arguments.stream},
                        {"place", arguments.place}},
          .results = {{{result}, false}},
          .modules = {}};
}

DropoutArguments dropout_arguments(const ProgramGraph& graph, const ProgramNode& node, const std::string& place) {
  const auto read = [&]<class T>(const char* name, T& into) {
    const auto it = std::ranges::find(node.arguments, name, &ProgramArgument::name);
    const T* const value = it == node.arguments.end() ? nullptr : std::get_if<T>(&it->value);
    if (!value)
      throw FormatError(ErrorKind::UnsupportedModel,
                        place + ": argument \"" + name + "\" is missing or of another type");
    into = *value;
  };
  DropoutArguments out;
  read("input", out.input);
  read("p", out.probability);
  read("train", out.train);
  read("block", out.block);
  read("stream", out.stream);
  read("place", out.place);
  if (graph.values[to_index(out.input.index)].kind != ProgramValue::Kind::Tensor || out.probability < 0 ||
      out.probability >= 1)
    throw FormatError(ErrorKind::UnsupportedModel, place + ": expected a tensor, and a probability in [0, 1)");
  if (node.results.size() != 1 || node.results[0].values.size() != 1 || node.results[0].list)
    throw FormatError(ErrorKind::UnsupportedModel, place + ": expected one tensor as result");
  return out;
}

NodeFacts dropout_facts(const ProgramGraph& graph, const ProgramNode& node, const std::string& place) {
  const DropoutArguments arguments = dropout_arguments(graph, node, place);
  NodeFacts out;
  if (!arguments.active()) out.aliases = {{node.results[0].values[0].index, arguments.input.index}};
  return out;
}

NodeCall dropout_call(const ProgramGraph& graph, const ProgramNode& node, const std::string& place,
                      const std::function<int(int)>& slot) {
  const DropoutArguments own = dropout_arguments(graph, node, place);
  const auto from = to_index(slot(own.input.index));
  const auto to = to_index(slot(node.results[0].values[0].index));
  if (!own.active()) return [=](Frame& frame) { frame.slots[to] = frame.slots[from]; };
  std::vector<EarlierMask> earlier = earlier_masks(graph, own, place);
  const std::optional<TensorMeta>& meta = graph.values[to_index(own.input.index)].tensor;
  return [from, to, own, earlier = std::move(earlier),
          sizes = meta ? meta->sizes : std::vector<SizeExpression>()](Frame& frame) {
    const std::uint64_t block = model::mix_seed(frame.run.seed, own.block, static_cast<std::uint64_t>(frame.run.step),
                                                static_cast<std::uint64_t>(frame.run.microbatch));
    MaskStream& masks = stream_of(frame, own.stream.empty() ? block : model::mix_seed(block, own.stream));
    const at::Tensor& x = frame.slots[from].toTensor();
    if (to_index(masks.drawn()) < earlier.size()) {
      const Symbols symbols = symbols_of_shape(sizes, x);
      for (std::size_t i = to_index(masks.drawn()); i < earlier.size(); ++i) {
        std::vector<std::int64_t> shape;
        for (const SizeExpression& size : earlier[i].sizes) shape.push_back(evaluate(size, symbols));
        masks.skip(shape, x, earlier[i].probability);
      }
    }
    frame.slots[to] = masks.drop(x, own.probability);
  };
}

}  // namespace stagecraft::intake
