#include "costmodel/interchange/chakra.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <optional>
#include <protozero/pbf_builder.hpp>
#include <set>
#include <stdexcept>
#include <tuple>

#include "costmodel/errors.h"
#include "costmodel/format/cursor.h"
#include "costmodel/format/files/files.h"
#include "costmodel/gradient_sums.h"
#include "costmodel/index.h"
#include "costmodel/prediction/memory.h"

namespace stagecraft::interchange {
namespace {

// Field numbers of the schema.
enum class Metadata : protozero::pbf_tag_type { Version = 1, Attribute = 2 };
enum class Attribute : protozero::pbf_tag_type { Name = 1, Int32 = 7, Int64 = 9, Uint64 = 13, Bool = 27, String = 29 };
enum class Node : protozero::pbf_tag_type {
  Id = 1,
  Name = 2,
  Type = 3,
  ControlDependencies = 4,
  DataDependencies = 5,
  Start = 6,
  Duration = 7,
  Attribute = 10
};

using TraceKey = std::tuple<int, int, int, int>;  // kind, stage, microbatch, peer

TraceKey key(const Action& a) { return {static_cast<int>(a.kind), a.stage, a.microbatch, a.peer}; }

std::string place(int rank, int step, const Action& a) {
  std::string out =
      "rank " + std::to_string(rank) + ", step " + std::to_string(step) + ", stage " + std::to_string(a.stage);
  out += std::string(": ") + to_string(a.kind);
  if (a.microbatch >= 0) out += " of microbatch " + std::to_string(a.microbatch);
  return out;
}

std::int64_t microseconds(Seconds time, const Span& span) {
  const double us = time.value * 1e6;
  if (!(us >= 0 && us <= 1e15)) {
    throw std::invalid_argument(place(span.rank, span.step, span.action) + " is at " + std::to_string(time.value) +
                                " s, expected 0 to 10^9 s in a trace");
  }
  return std::llround(us);
}

/// Makes the nodes, rank by rank.
class TraceBuilder {
 public:
  TraceBuilder(const Timeline& timeline, const BoundPlan& plan, const Graph& graph)
      : bound_(plan), plan_(plan.plan()), sums_(gradient_sums(graph, plan)), lists_(plan.action_lists()) {
    if (plan_.sharding == StateSharding::Parameters) {
      throw std::invalid_argument(
          "a Chakra trace cannot say when a rank gathers and releases the parameters of a stage; plan with --shard "
          "optimizer");
    }
    for (const auto& layers : layers_of_stages(graph, plan_)) {
      Bytes outputs;
      for (const Layer* layer : layers) outputs += activation_bytes(*layer);
      outputs_.push_back(outputs);
      parameters_.push_back(held_parameter_bytes(layers));
    }
    if (timeline.ranks != to_int(lists_.size())) {
      throw std::invalid_argument("the timeline has " + std::to_string(timeline.ranks) + " ranks, the plan has " +
                                  std::to_string(lists_.size()));
    }
    spans_.resize(lists_.size());
    std::set<int> steps;
    for (const Span& span : timeline.spans) {
      if (!spans_.at(to_index(span.rank))[span.step].emplace(key(span.action), &span).second)
        throw std::invalid_argument(place(span.rank, span.step, span.action) + " has two spans");
      steps.insert(span.step);
    }
    steps_.assign(steps.begin(), steps.end());
    const double messages = 2.0 * static_cast<double>(plan_.boundaries.size()) * plan_.microbatches *
                            (steps_.empty() ? 1.0 : static_cast<double>(steps_.back()) + 1.0);
    if (messages > std::numeric_limits<std::int32_t>::max())
      throw std::invalid_argument("the steps have more messages than 31-bit ids; export fewer steps");
  }

  ChakraTrace build() {
    for (std::size_t rank = 0; rank < lists_.size(); ++rank) {
      trace_.ranks.emplace_back();
      computed_.reset();
      updated_.clear();
      for (const int step : steps_) build_step(to_int(rank), step);
    }
    return std::move(trace_);
  }

 private:
  void build_step(int rank, int step) {
    std::map<TraceKey, const Span*>& spans = spans_[to_index(rank)][step];
    made_.clear();
    for (const Action& action : lists_[to_index(rank)]) {
      const auto it = spans.find(key(action));
      if (it == spans.end()) throw std::invalid_argument(place(rank, step, action) + " has no span in the timeline");
      const Span& span = *it->second;
      spans.erase(it);
      if (action.kind == ActionKind::Reduce) {
        add_collectives(rank, span, /*gathers=*/false);
      } else if (action.kind == ActionKind::Update) {
        add_update(rank, span);
      } else if (is_transfer(action.kind)) {
        add_message(rank, span);
      } else {
        add_computation(rank, span);
      }
    }
    if (!spans.empty())
      throw std::invalid_argument(place(rank, step, spans.begin()->second->action) + " is not in the plan");
  }

  ChakraNode& add(int rank, const Span& span, ChakraKind kind) {
    auto& nodes = trace_.ranks[to_index(rank)];
    ChakraNode node;
    node.id = nodes.size();
    node.kind = kind;
    node.step = span.step;
    node.action = span.action;
    node.start_us = microseconds(span.start, span);
    node.duration_us = microseconds(span.end, span) - node.start_us;
    if (computed_ && kind != ChakraKind::Send) node.control_dependencies.push_back(*computed_);
    made_[key(span.action)].push_back(node.id);
    nodes.push_back(std::move(node));
    return nodes.back();
  }

  /// `node` reads the result of `action`, if this rank ran it.
  void read(ChakraNode& node, const Action& action) const {
    const auto it = made_.find(key(action));
    if (it == made_.end()) return;
    node.data_dependencies.insert(node.data_dependencies.end(), it->second.begin(), it->second.end());
  }

  void add_computation(int rank, const Span& span) {
    ChakraNode& node = add(rank, span, ChakraKind::Compute);
    const auto [kind, stage, microbatch, peer] = span.action;
    node.bytes = parameters_[to_index(stage)];
    if (kind == ActionKind::Update) {
      read(node, {ActionKind::Reduce, stage, -1, -1});
      if (node.data_dependencies.empty()) read_gradients(node, stage);
      updated_[stage] = node.id;
    } else {
      node.bytes += outputs_[to_index(stage)];
      const auto updated = updated_.find(stage);
      if (kind == ActionKind::Forward && updated != updated_.end()) node.data_dependencies.push_back(updated->second);
      if (const auto before = traits_of(kind).needs) read(node, {*before, stage, microbatch, -1});
      read_inputs(node, span.action);
    }
    computed_ = node.id;
  }

  void read_inputs(ChakraNode& node, const Action& action) const {
    for (const Passage& input : bound_.inputs(action)) {
      read(node, receive_of(action, input));
      read(node, {action.kind, input.peer, action.microbatch, -1});
    }
  }

  /// `node` reads the gradients of the stage's parameters.
  void read_gradients(ChakraNode& node, int stage) const {
    for (int m = 0; m < plan_.microbatches; ++m) {
      const std::size_t before = node.data_dependencies.size();
      read(node, {ActionKind::WeightGradient, stage, m, -1});
      if (node.data_dependencies.size() == before) read(node, {ActionKind::Backward, stage, m, -1});
    }
  }

  void add_message(int rank, const Span& span) {
    const auto [kind, stage, microbatch, peer] = span.action;
    const bool sends = is_send(kind);
    const bool gradient = carries_gradient(kind);
    ChakraNode& node = add(rank, span, sends ? ChakraKind::Send : ChakraKind::Receive);
    const int other = bound_.runner(peer, microbatch);
    node.from = sends ? rank : other;
    node.to = sends ? other : rank;
    const int boundary = bound_.boundary(stage, peer).value();
    for (const BoundaryTensor& tensor : plan_.boundaries[to_index(boundary)].tensors) {
      if (!gradient || tensor.gradient) node.bytes += tensor.bytes;
    }
    node.tag = ((span.step * plan_.microbatches + microbatch) * to_int(plan_.boundaries.size()) + boundary) * 2 +
               (gradient ? 1 : 0);
    if (sends) read(node, producer_of(span.action));
  }

  /// The collectives follow each other; the span is divided by their bytes.
  void add_collectives(int rank, const Span& span, bool gathers) {
    std::vector<const GradientSum*> sums;
    for (const GradientSum& sum : sums_[to_index(span.action.stage)]) {
      if (!gathers || !sum.parts.empty()) sums.push_back(&sum);
    }
    Bytes all;
    for (const GradientSum* sum : sums) all += sum->bytes;
    Bytes done;
    Span part = span;
    for (const GradientSum* sum : sums) {
      done += sum->bytes;
      part.end = sum == sums.back() ? span.end : span.start + (span.end - span.start) * (done / all);
      ChakraNode& node = add(rank, part,
                             gathers              ? ChakraKind::AllGather
                             : sum->parts.empty() ? ChakraKind::AllReduce
                                                  : ChakraKind::ReduceScatter);
      node.bytes = gathers ? gathered_bytes(*sum) : sum->bytes;
      // ASTRA-sim reads group 0 as all ranks.
      node.group = 1 + (sum->tied ? bound_.stages() + *sum->tied : span.action.stage);
      trace_.groups.emplace(node.group, sum->ranks);
      if (!gathers) read_gradients(node, span.action.stage);
      computed_ = node.id;
      if (gathers) updated_[span.action.stage] = node.id;
      part.start = part.end;
    }
  }

  /// An update, and the all-gathers of what the replicas have updated: they divide the span by their bytes.
  void add_update(int rank, const Span& span) {
    const std::vector<GradientSum>& sums = sums_[to_index(span.action.stage)];
    Bytes gathered;
    for (const GradientSum& sum : sums) gathered += sum.parts.empty() ? Bytes(0) : gathered_bytes(sum);
    if (gathered == Bytes(0)) return add_computation(rank, span);
    const Bytes updated = updated_bytes(sums, rank, parameters_[to_index(span.action.stage)]);
    Span update = span;
    update.end = span.start + (span.end - span.start) * (updated / (updated + gathered));
    add_computation(rank, update);
    Span rest = span;
    rest.start = update.end;
    add_collectives(rank, rest, /*gathers=*/true);
  }

  const BoundPlan& bound_;
  const Plan& plan_;
  const std::vector<std::vector<GradientSum>> sums_;  ///< by stage
  const std::vector<std::vector<Action>> lists_;
  std::vector<Bytes> outputs_, parameters_;
  std::vector<std::map<int, std::map<TraceKey, const Span*>>> spans_;
  std::vector<int> steps_;
  ChakraTrace trace_;
  std::map<TraceKey, std::vector<std::uint64_t>> made_;  ///< nodes of this rank and step
  std::optional<std::uint64_t> computed_;                ///< the rank's last computation
  std::map<int, std::uint64_t> updated_;                 ///< by stage, the last update
};

using AttributeWriter = protozero::pbf_builder<Attribute>;

template <class Message, class Tag, class Write>
void add_attribute(Message& message, Tag tag, const char* name, Write write) {
  AttributeWriter attribute(message, tag);
  attribute.add_string(Attribute::Name, name);
  write(attribute);
}

/// Appends `message` after its length, as in Chakra's files.
void append(std::string& out, const std::string& message) {
  protozero::add_varint_to_buffer(&out, message.size());
  out += message;
}

std::string encode(const ChakraNode& node) {
  std::string out;
  protozero::pbf_builder<Node> message(out);
  message.add_uint64(Node::Id, node.id);
  std::string name = "stage " + std::to_string(node.action.stage) + " " + to_string(node.action.kind);
  if (node.action.microbatch >= 0) name += " " + std::to_string(node.action.microbatch);
  message.add_string(Node::Name, name);
  message.add_enum(Node::Type, static_cast<std::int32_t>(std::min(node.kind, ChakraKind::AllReduce)));
  message.add_packed_uint64(Node::ControlDependencies, node.control_dependencies.begin(),
                            node.control_dependencies.end());
  message.add_packed_uint64(Node::DataDependencies, node.data_dependencies.begin(), node.data_dependencies.end());
  message.add_uint64(Node::Start, static_cast<std::uint64_t>(node.start_us));
  message.add_uint64(Node::Duration, static_cast<std::uint64_t>(node.duration_us));
  const auto add_int32 = [&](const char* attribute, std::int32_t value) {
    add_attribute(message, Node::Attribute, attribute, [&](auto& a) { a.add_int32(Attribute::Int32, value); });
  };
  const auto add_int64 = [&](const char* attribute, std::int64_t value) {
    add_attribute(message, Node::Attribute, attribute, [&](auto& a) { a.add_int64(Attribute::Int64, value); });
  };
  add_attribute(message, Node::Attribute, "is_cpu_op", [](auto& a) { a.add_bool(Attribute::Bool, false); });
  if (node.kind == ChakraKind::Compute) {
    add_int64("num_ops", 0);
    add_attribute(message, Node::Attribute, "tensor_size",
                  [&](auto& a) { a.add_uint64(Attribute::Uint64, static_cast<std::uint64_t>(node.bytes.value)); });
  } else {
    add_int64("comm_size", node.bytes.value);
  }
  if (node.kind >= ChakraKind::AllReduce) {
    // ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER
    add_int64("comm_type", node.kind == ChakraKind::AllReduce ? 0 : node.kind == ChakraKind::ReduceScatter ? 7 : 2);
    add_attribute(message, Node::Attribute, "pg_name",
                  [&](auto& a) { a.add_string(Attribute::String, std::to_string(node.group)); });
  } else if (node.kind != ChakraKind::Compute) {
    add_int32("comm_src", node.from);
    add_int32("comm_dst", node.to);
    add_int32("comm_tag", node.tag);
  }
  add_int32("step", node.step);
  add_int32("stage", node.action.stage);
  add_int32("microbatch", node.action.microbatch);
  return out;
}

}  // namespace

ChakraTrace chakra_trace(const Timeline& timeline, const BoundPlan& plan, const Graph& graph) {
  return TraceBuilder(timeline, plan, graph).build();
}

std::string chakra_bytes(const std::vector<ChakraNode>& nodes, const std::string& title) {
  std::string metadata;
  {
    protozero::pbf_builder<Metadata> message(metadata);
    message.add_string(Metadata::Version, "0.0.4");
    add_attribute(message, Metadata::Attribute, "title", [&](auto& a) { a.add_string(Attribute::String, title); });
  }
  std::string out;
  append(out, metadata);
  for (const ChakraNode& node : nodes) append(out, encode(node));
  return out;
}

std::string chakra_groups_json(const ChakraTrace& trace) {
  format::Json out = format::Json::object();
  for (const auto& [group, ranks] : trace.groups) out[std::to_string(group)] = ranks;
  return out.dump() + "\n";
}

void write_chakra(const std::string& folder, const ChakraTrace& trace, const std::string& title) {
  const std::filesystem::path path(folder);
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error) throw FormatError(folder + ": " + error.message());
  for (std::size_t rank = 0; rank < trace.ranks.size(); ++rank)
    format::write_text((path / ("chakra." + std::to_string(rank) + ".et")).string(),
                       chakra_bytes(trace.ranks[rank], title));
  format::write_text((path / "comm_groups.json").string(), chakra_groups_json(trace));
}

}  // namespace stagecraft::interchange
