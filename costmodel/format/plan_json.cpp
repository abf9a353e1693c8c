#include "costmodel/format/plan_json.h"

#include <algorithm>
#include <map>
#include <set>
#include <stdexcept>
#include <string_view>
#include <utility>

#include "costmodel/fnv.h"
#include "costmodel/format/files/files.h"
#include "costmodel/format/shared_notations.h"
#include "costmodel/index.h"
#include "costmodel/text/number.h"

namespace stagecraft::format {
namespace {

constexpr int kMostStages = 1 << 24;

/// The word of a cell.
struct RowWord {
  std::string_view text;
  const ActionTraits* action;  ///< null: read and skipped
};
const std::vector<RowWord>& row_words() {
  static const std::vector<RowWord> words = [] {
    std::vector<RowWord> out;
    for (const ActionTraits& action : kActions) {
      // An update has no cell, and gathers follow from the sharding.
      if (action.kind == ActionKind::Update || is_residence(action.kind)) continue;
      out.push_back({action.cell, &action});
      if (action.kind == ActionKind::Backward) out.push_back({"I", &action});
    }
    out.insert(out.end(), {{"UNSHARD", nullptr}, {"RESHARD", nullptr}});
    return out;
  }();
  return words;
}
constexpr std::string_view kOverlap = "OVERLAP_F_B";

std::string_view trimmed(std::string_view text) {
  const auto from = text.find_first_not_of(" \t\r");
  if (from == text.npos) return {};
  return text.substr(from, text.find_last_not_of(" \t\r") - from + 1);
}

std::vector<std::string_view> split(std::string_view text, char by) {
  std::vector<std::string_view> out;
  for (std::size_t from = 0;; from = to_index(out.back().data() - text.data()) + out.back().size() + 1) {
    const auto end = text.find(by, from);
    out.push_back(text.substr(from, end == text.npos ? text.npos : end - from));
    if (end == text.npos) return out;
  }
}

[[noreturn]] void refuse(std::size_t cell, const std::string& what) {
  throw std::invalid_argument("cell " + std::to_string(cell + 1) + ": " + what);
}

std::string shown(std::string_view text) {
  std::string out = "\"";
  for (const char c : text.substr(0, 40)) out += c >= ' ' && c <= '~' ? c : '?';
  return out + (text.size() > 40 ? "...\"" : "\"");
}

/// The number at the front of `text`, which is removed; -1 if there is none, or it is `most` or more.
int take_number_below(std::string_view& text, int most) {
  if (text.starts_with('-')) return -1;
  const std::optional<int> value = take_number<int>(text);
  return value && *value < most ? *value : -1;
}

struct Cell {
  Action action;
  const RowWord* word;
};

/// Throws unless the text is exactly one action.
Cell parse_cell(std::string_view text, std::size_t at) {
  std::string_view rest = text;
  Cell out{};
  out.action.stage = take_number_below(rest, kMostStages);
  const std::string_view word = rest.substr(0, std::min(rest.find_first_of("0123456789"), rest.size()));
  const auto it = std::ranges::find(row_words(), word, &RowWord::text);
  rest.remove_prefix(word.size());
  if (out.action.stage < 0 || it == row_words().end()) {
    std::string known;
    for (const RowWord& w : row_words()) known += (known.empty() ? "" : ", ") + std::string(w.text);
    refuse(at, "found " + shown(text) + ", expected a stage, one of " + known + ", and a microbatch, as in 2F0");
  }
  out.word = &*it;
  if (it->action) out.action.kind = it->action->kind;
  if (it->action && it->action->microbatch) {
    out.action.microbatch = take_number_below(rest, kMostMicrobatches);
    if (out.action.microbatch < 0) {
      refuse(at, "found " + shown(text) + ", expected a microbatch from 0 to " + std::to_string(kMostMicrobatches - 1) +
                     " after " + std::string(word));
    }
  }
  if (!rest.empty()) refuse(at, "found " + shown(rest) + " after an action in " + shown(text));
  if (!it->action || it->action->peer == 0) return out;
  out.action.peer = out.action.stage + it->action->peer;
  if (out.action.peer < 0) refuse(at, "found " + shown(text) + ", there is no stage before stage 0");
  return out;
}

/// The actions of a cell, in order: none, one, or the parts of an overlap.
std::vector<Cell> parse_cells(std::string_view text, std::size_t at) {
  if (text.empty()) return {};
  if (text.front() != '(') return {parse_cell(text, at)};
  const auto end = text.find(')');
  if (end == text.npos || text.substr(end + 1) != kOverlap) {
    refuse(at, "found " + shown(text) + ", expected actions in brackets and then " + std::string(kOverlap));
  }
  std::vector<Cell> out;
  for (const std::string_view part : split(text.substr(1, end - 1), ';')) out.push_back(parse_cell(trimmed(part), at));
  return out;
}

}  // namespace

std::vector<Action> parse_actions_row(const std::string& row) {
  std::vector<Action> out;
  std::map<std::pair<int, int>, std::size_t> whole;    // (stage, microbatch) -> cell, of B
  std::map<std::pair<int, int>, std::size_t> inputs;   // of I
  std::map<std::pair<int, int>, std::size_t> weights;  // of W
  std::size_t at = 0;
  for (const std::string_view text : split(row, ',')) {
    for (const auto& [action, word] : parse_cells(trimmed(text), at)) {
      if (!word->action) continue;
      const std::pair key(action.stage, action.microbatch);
      if (word->text == "B") whole.emplace(key, at);
      if (word->text == "I") inputs.emplace(key, at);
      if (word->text == "W") weights.emplace(key, at);
      out.push_back(action);
    }
    ++at;
  }
  const auto name = [](const std::pair<int, int>& key, const char* word) {
    return std::to_string(key.first) + word + std::to_string(key.second);
  };
  for (const auto& [key, cell] : inputs) {
    if (!weights.contains(key)) refuse(cell, "found " + name(key, "I") + " and no " + name(key, "W"));
  }
  for (const auto& [key, cell] : whole) {
    if (weights.contains(key))
      refuse(cell, "found " + name(key, "B") + " together with " + name(key, "W") + ", expected " + name(key, "I"));
  }
  for (const auto& [key, cell] : weights) {
    if (!inputs.contains(key)) refuse(cell, "found " + name(key, "W") + " and no " + name(key, "I"));
  }
  return out;
}

std::string actions_row(const std::vector<Action>& list) {
  std::set<std::pair<int, int>> weights;
  std::set<std::pair<int, int>> backwards;
  for (const Action& action : list) {
    if (action.kind == ActionKind::WeightGradient) weights.insert({action.stage, action.microbatch});
    if (action.kind == ActionKind::Backward) backwards.insert({action.stage, action.microbatch});
  }
  std::string out;
  for (const Action& action : list) {
    const std::string text = action_text(action);
    const std::pair key(action.stage, action.microbatch);
    if (action.kind == ActionKind::Update) throw std::invalid_argument(text + " has no cell in the CSV format");
    if (action.peer >= 0 && std::abs(action.peer - action.stage) != 1) {
      throw std::invalid_argument(text + ": the CSV format has transfers between adjacent stages only");
    }
    if (action.kind == ActionKind::WeightGradient && !backwards.contains(key)) {
      throw std::invalid_argument(text + " has no backward in the list");
    }
    const bool half = action.kind == ActionKind::Backward && weights.contains(key);
    out += (out.empty() ? "" : ",") +
           (half ? std::to_string(action.stage) + "I" + std::to_string(action.microbatch) : text);
  }
  return out;
}

namespace {

Notation<PlanTensor> plan_tensor() {
  return object(fields<PlanTensor>({embedded(&PlanTensor::tensor, state_tensor_fields()),
                                    {required("layer", &PlanTensor::layer, text(), "Id of the layer that has it.")}}),
                "A tensor that a layer keeps from step to step.")
      .named("stateTensor");
}

Notation<Stage> stage() {
  return object<Stage>(
             {
                 required("layers", &Stage::layers, list(text("Id of a layer.")).with("minItems", 1),
                          "Layer ids in execution order."),
                 required("devices", &Stage::devices, list<int>(whole("Device number.")).with("minItems", 1),
                          "Topology device numbers, one per replica."),
                 optional("recompute", &Stage::recompute, boolean(),
                          "Drop activations after forward and run it again before backward. Absent: false."),
                 optional("recompute_every", &Stage::recompute_every, integer(1, kMost),
                          "With recompute: number of layers that run again together; tensors that cross between such "
                          "segments are kept. Absent: the whole stage runs again together.")
                     .then([](const Cursor& at, Stage& stage) {
                       if (!stage.recompute) at.fail("has no effect without \"recompute\": true");
                     }),
                 optional("parameters", &Stage::parameters, list(plan_tensor()),
                          "What the stage trains, by its layers in order; a parameter that several of them share is "
                          "listed for each. Absent: the graph does not name its parameters. Since version 9."),
                 optional("exchanged_buffers", &Stage::exchanged_buffers, list(plan_tensor()),
                          "Buffers that a forward in training writes, and that replicas exchange. Absent: none. Since "
                          "version 9."),
             },
             "These layers, on these devices.")
      .named("stage");
}

Notation<BoundaryTensor> boundary_tensor() {
  return object<BoundaryTensor>(
             {
                 required("layer", &BoundaryTensor::layer, text(), "Id of the layer that produces it."),
                 optional("output", &BoundaryTensor::output, whole(),
                          "Index of the layer's output; absent: all its outputs together."),
                 required("activation_bytes", &BoundaryTensor::bytes, bytes(), "Tensor of the whole microbatch, bytes"),
                 optional("shape", &BoundaryTensor::shape, list<std::int64_t>(integer(0, kMany, "Extent of one axis.")),
                          "Extent of each axis, usually with the batch first.")
                     .only_if([](const BoundaryTensor& of) { return !of.shape.empty() || !of.dtype.empty(); }),
                 optional("dtype", &BoundaryTensor::dtype, text(), "Element type."),
                 required("gradient", &BoundaryTensor::gradient, boolean(), "Whether its gradient is sent back."),
             },
             "A tensor that crosses, for one microbatch.")
      .named("tensor");
}

Notation<Boundary> boundary() {
  return object<Boundary>(
             {
                 required("source", &Boundary::source, whole(), "Number of the sending stage."),
                 required("destination", &Boundary::destination, whole(), "Number of the receiving stage."),
                 required("tensors", &Boundary::tensors, list(boundary_tensor()).with("minItems", 1), "The tensors."),
             },
             "All tensors that one stage sends to a later one for one microbatch, in the order of sending.")
      .named("boundary");
}

Notation<TiedLayers> tied() {
  return object<TiedLayers>(
             {
                 required("parameter", &TiedLayers::parameter, text(), "Its name in the model."),
                 required("layers", &TiedLayers::layers, list(text("Id of a layer.")).with("minItems", 2),
                          "Ids of the layers that have it, in the order of the stages."),
             },
             "A parameter whose gradients are summed over all its layers.")
      .named("tied");
}

Notation<SampleWork> sample_work_notation() {
  return object<SampleWork>({
      optional("tokens", &SampleWork::tokens, integer(1, kMany),
               "Tokens in a sample; absent if the model does not read tokens."),
      optional("flops", &SampleWork::flops, positive(),
               "Floating-point operations of the model's forward and backward; absent if not counted for every layer."),
      optional("peak_flops_per_s", &SampleWork::peak, positive(),
               "Peak of the plan's devices together; absent if unknown for one of them."),
      optional("peak_of", &SampleWork::peak_of, text(), "Those devices, with the type of the computation."),
  });
}

Notation<std::vector<Action>> actions() {
  return as_text<std::vector<Action>>(
      [](const Cursor& at) {
        try {
          return parse_actions_row(at.text());
        } catch (const std::invalid_argument& e) { at.fail(e.what()); }
      },
      actions_row,
      "The actions in order, separated by commas, as in torch.distributed.pipelining's CSV: 1F0, 1B0 (or 1I0 and 1W0), "
      "1SEND_F0, 1RECV_F0, 1SEND_B0, 1RECV_B0, 1REDUCE_GRAD. If no rank lists a transfer, the reader places the "
      "transfers.");
}

void take_default_warmups(Plan& plan) {
  std::vector<int> replicas;
  for (const Stage& stage : plan.stages) replicas.push_back(std::max<int>(1, to_int(stage.devices.size())));
  plan.warmups = warmup_counts(replicas);
}

const Document<Plan>& plan_document() {
  static const Document<Plan> document(
      {.name = "plan",
       .version = 11,
       .title = "Plan",
       .help = "The layers of each stage, their devices and the order of execution.",
       .changes =
           "Version 2 added actions, 3 dtype, gradient_bucket_bytes and recompute_every, 4 tied, 5 allow_tf32, 6 "
           "lower_bound_s, 7 optimizer, 8 sample_work, 9 parameters and exchanged_buffers of stages, 10 "
           "sharding, 11 run_iteration_s, parameter_dtype, gradient_dtype and moment_dtype."},
      fields<Plan>(
          {{
               required("model", &Plan::model, text(), "Name of the graph."),
               optional("options", &Plan::options, text_map(), "The model's options that are not defaults, by name."),
               optional("microbatch_samples", &Plan::microbatch_samples, integer(1, kMany),
                        "Samples in one microbatch; absent: the graph did not give them."),
               optional(
                   "dtype", &Plan::dtype, text(),
                   "Data type of the computation: float32, bfloat16 or float16. Absent: unknown, runs as float32."),
           },
           embedded(&Plan::types, state_types_fields()),
           {
               optional(
                   "allow_tf32", &Plan::allow_tf32, boolean(),
                   "Whether a GPU may round the inputs of float32 operations to TF32. Absent: unknown, runs without."),
               optional("optimizer", &Plan::optimizer, text(),
                        "The optimizer whose time and memory the predictions include. Absent: none was measured."),
               required("microbatches", &Plan::microbatches, integer(1, kMostMicrobatches),
                        "Microbatches in one step."),
               required("schedule", &Plan::schedule, text(), "Name of the schedule; stagecraft help plan lists them."),
               optional("chunks", &Plan::chunks, integer(1, 1 << 20), "Stages per device. Absent: 1."),
               optional("strategy", &Plan::strategy, text(), "The strategy that made the plan."),
               optional("steady_state_s", &Plan::steady_state, not_negative(),
                        "Time of the slowest stage per microbatch, by the strategy's own estimate, seconds"),
               optional("iteration_s", &Plan::iteration, not_negative(), "Predicted time of one step, seconds"),
               optional("run_iteration_s", &Plan::run_iteration, not_negative(),
                        "Predicted time of a step in a run, whose steps overlap, seconds. Absent: iteration_s. Since "
                        "version 11."),
               optional("sample_work", &Plan::sample_work, sample_work_notation(),
                        "What a sample consists of and costs, for throughput beside samples per second."),
               optional(
                   "lower_bound_s", &Plan::lower_bound, not_negative(),
                   "No plan that the strategy considered has a shorter predicted step, seconds; equal to iteration_s: "
                   "this plan is the best of them"),
               required("stages", &Plan::stages, list(stage()).with("minItems", 1),
                        "The stages, in the order of the pipeline."),
               required("boundaries", &Plan::boundaries, list(boundary()),
                        "Tensors that cross between stages, each pair of stages once."),
               optional("tied", &Plan::tied, list(tied()),
                        "Parameters that several layers have, ascending by name. Absent: none."),
               optional(
                   "warmups", &Plan::warmups, list<int>(whole("Forwards.")),
                   "Forwards of each stage before its first backward, one number per stage. Absent: by the replicas.")
                   .always()
                   .or_else(take_default_warmups),
               optional("gradient_bucket_bytes", &Plan::gradient_bucket_bytes, integer(1, Cursor::kMostBytes),
                        "Most bytes of gradients that replicas sum in one all-reduce, bytes. Absent: all of a stage in "
                        "one."),
               optional(
                   "sharding", &Plan::sharding, words("sharding", StateSharding::Parameters),
                   "What of the training state the replicas of a stage divide among them: optimizer, its state and its "
                   "work; gradients, these too; parameters, these too. Absent: none. Since version 10, gradients and "
                   "parameters since version 11.")
                   .only_if([](const Plan& of) { return of.sharding != StateSharding::None; }),
               optional("actions", &Plan::listed, list(actions()),
                        "For schedule listed: each rank's actions, ranks in order of stages and then replicas."),
               provenance_field(&Plan::provenance),
           }}),
      refuse_invalid<Plan>);
  return document;
}

}  // namespace

Plan parse_plan(const std::string& text, const std::string& file) { return plan_document().parse(text, file); }
Plan read_plan(const std::string& path) { return parse_plan(read_text(path), path); }
std::string plan_json(const Plan& plan) { return plan_document().text(plan); }
DocumentSchema plan_schema() { return plan_document().schema(); }

std::uint64_t plan_hash(const BoundPlan& plan) {
  Plan bare = plan.plan();
  bare.provenance = {};
  bare.optimizer.clear();  // of the predictions; a run says its own
  bare.sample_work = {};
  std::uint64_t hash = fnv1a(plan_json(bare));
  for (const auto& list : plan.action_lists()) {
    for (const Action& a : list) hash = fnv1a(action_text(a) + ",", hash);
    hash = fnv1a("\n", hash);
  }
  return hash;
}

}  // namespace stagecraft::format
