#include "costmodel/format/results/analysis_json.h"

#include "costmodel/format/shared_notations.h"

namespace stagecraft::format {
namespace {

Notation<StepParts> step_parts() {
  return object<StepParts>({
      required("compute_s", &StepParts::compute, not_negative(), "The layers' own forwards and backwards, seconds."),
      required("host_s", &StepParts::host, not_negative(),
               "What host time per action, and ranks that share a host, add to computations and updates, seconds."),
      required("exposed_transfer_s", &StepParts::exposed_transfer, not_negative(),
               "Idle while a needed message was on the link, seconds."),
      required("reduce_s", &StepParts::reduce, not_negative(), "Gradient all-reduce that no backward hides, seconds."),
      required("update_s", &StepParts::update, not_negative(), "The optimizer's own time, seconds."),
      required("bubble_s", &StepParts::bubble, not_negative(), "Idle otherwise, seconds."),
  });
}

Notation<PositionParts> position_parts() {
  using P = PositionParts;
  return object<P>(
      {
          required("stages", &P::stages, list<int>(whole("Stage number.")), "Its stages."),
          required("ranks", &P::ranks, integer(1, kMost), "Number of its ranks."),
          required("parts", &P::parts, step_parts(), "The parts add up to iteration_s."),
          optional("least_slack_s", &P::least_slack, not_negative(),
                   "How late a computation, reduction or update may end alone without a longer step: the least of "
                   "them; absent without a path, seconds."),
      },
      "Stages that share ranks, one unless the plan has chunks; a mean over these ranks.");
}

Notation<PathShare> path_share() {
  return object<PathShare>(
      {
          required("stage", &PathShare::stage, whole(), "Stage number."),
          required("action", &PathShare::kind, action(""), "Kind of action."),
          required("count", &PathShare::count, integer(1, kMost), "Number of actions."),
          required("time_s", &PathShare::time, not_negative(), "Their time on the path, seconds."),
      },
      "Actions of one stage and kind; a message counts for its sender.");
}

Notation<Span> segment() {
  return object<Span>(
      {
          shown<Span, std::string>(
              "action", [](const Span& span) { return action_text(span.action); }, text(),
              "In the notation of torch.distributed.pipelining, stage first."),
          required("rank", &Span::rank, whole(), "Its rank; of a message the sender."),
          required("start_s", &Span::start, finite(), "Start, seconds."),
          required("end_s", &Span::end, finite(), "End, seconds."),
      },
      "One action; a message from the moment both ends are ready, a reduce from the arrival of its last member.");
}

Field<Explanation> critical_path() {
  using E = Explanation;
  return group<E>("path",
                  {
                      required("steps", &E::steps, integer(1, kMost),
                               "Number of steps that it covers: more than one with an asynchronous schedule."),
                      required("shares", &E::path_shares, list(path_share()), "Sums over the path, the largest first."),
                      required("segments", &E::path, list(segment()),
                               "The chain of actions: each begins as the one before ends."),
                  },
                  "The critical path; absent for a step too long to be replayed in full.")
      .only_if([](const E& of) { return !of.path.empty(); });
}

Notation<LayerMove> layer_move() {
  return object<LayerMove>({
      required("layer", &LayerMove::layer, text(), "Id of the layer."),
      required("from", &LayerMove::from, whole(), "Its stage."),
      required("to", &LayerMove::to, whole(), "Its stage after the move."),
      required("iteration_s", &LayerMove::step, not_negative(), "One step after the move, seconds."),
  });
}

Notation<MemoryHeadroom> memory_headroom() {
  using M = MemoryHeadroom;
  return object<M>(
      {
          required("rank", &M::rank, whole(), "Rank number."),
          required("peak_bytes", &M::peak, bytes(), "Predicted peak, bytes."),
          optional("room_bytes", &M::room, integer(-Cursor::kMostBytes, Cursor::kMostBytes),
                   "The device's memory minus the peak, bytes; absent: no limit."),
      },
      "One rank.");
}

const Document<Explanation>& explanation_document() {
  using E = Explanation;
  static const Document<E> document(
      {.name = "explanation",
       .version = 1,
       .title = "Explanation",
       .help = "Where the time of a predicted step goes. Written by stagecraft explain --json."},
      {
          required("iteration_s", path(&E::prediction, &Prediction::iteration), not_negative(), "One step, seconds."),
          required("parts", &E::parts, step_parts(), "Mean over all ranks; the parts add up to iteration_s."),
          required("positions", &E::positions, list(position_parts()), "The pipeline positions in order."),
          group<E>("bottleneck",
                   {
                       required("position", &E::bottleneck, whole(), "Its number."),
                       required("over_mean", &E::imbalance, finite(),
                                "That time over its mean over all ranks, minus 1; a ratio."),
                   },
                   "The position whose ranks compute, update and reduce longest."),
          critical_path(),
          required("moves", &E::moves, whole(),
                   "Number of single moves of a layer to an adjacent stage that are possible."),
          optional("best_move", &E::best_move, layer_move(),
                   "The move with the shortest step; absent if none is possible or fits in memory."),
          required("memory", &E::memory, list(memory_headroom()), "Peak memory of each rank."),
      });
  return document;
}

}  // namespace

std::string explanation_json(const Explanation& explanation) { return explanation_document().text(explanation); }
DocumentSchema explanation_schema() { return explanation_document().schema(); }

namespace {

Notation<RankMemory> rank_peak() {
  return object<RankMemory>(
      {
          required("rank", &RankMemory::rank, whole(), "Rank number."),
          required("peak_bytes", &RankMemory::total, bytes(), "Predicted peak, bytes."),
      },
      "One rank.");
}

Notation<Prediction> side() {
  using P = Prediction;
  const auto fits = [](const P& of) {
    std::vector<bool> out;
    for (const StagePrediction& stage : of.stages) out.push_back(stage.fits);
    return out;
  };
  return object(fields<P>(
      {predicted_step_fields(),
       {
           optional("other_device", &P::other_device, text(),
                    "Why the times are for a device other than the topology's, or how they were estimated for it; "
                    "absent if they belong to it. Since version 2."),
           required("bubble", &P::bubble, finite(),
                    "Share of all ranks' time that is neither compute, update nor reduce; a ratio."),
           required("memory", path(&P::timeline, &Timeline::memory), list(rank_peak()), "Peak memory of each rank."),
           shown<P, std::vector<bool>>("fits", fits, list(boolean("Whether it fits.")),
                                       "Of each stage, whether its rank's peak fits in the device's memory."),
       }}));
}

const Document<WhatIf>& whatif_document() {
  static const Document<WhatIf> document(
      {.name = "whatif",
       .version = 2,
       .title = "What if",
       .help = "A prediction before and after changes. Written by stagecraft whatif --json.",
       .changes = "Version 2 added other_device."},
      {
          required("changes", &WhatIf::changes, list(text("NAME=VALUE.")), "The changes, in order."),
          required("before", &WhatIf::before, side(), "Before the changes."),
          required("after", &WhatIf::after, side(), "After the changes."),
          required("time_ratio", &WhatIf::ratio, step_ratio("after_over_before"), kStepRatioHelp),
      });
  return document;
}

}  // namespace

std::string whatif_json(const WhatIf& result) { return whatif_document().text(result); }
DocumentSchema whatif_schema() { return whatif_document().schema(); }

namespace {

Notation<MovedLayer> moved_layer() {
  return object<MovedLayer>(
      {
          required("layer", &MovedLayer::layer, text(), "Its id."),
          required("first", &MovedLayer::first, whole(), "Its stage in the first plan."),
          required("second", &MovedLayer::second, whole(), "Its stage in the second plan."),
      },
      "One layer.");
}

Notation<PlanDifference> plan_difference() {
  return object<PlanDifference>(
      {
          required("what", &PlanDifference::what, text(), "In words."),
          required("first", &PlanDifference::first, text(), "In the first plan."),
          required("second", &PlanDifference::second, text(), "In the second plan."),
      },
      "One difference.");
}

const Document<PlanComparison>& diff_document() {
  using P = PlanComparison;
  static const Document<P> document(
      {.name = "diff",
       .version = 1,
       .title = "Diff",
       .help = "Two plans for one graph and topology. Written by stagecraft diff --json."},
      {
          required("moved", &P::moved, list(moved_layer()), "Layers in different stages."),
          required("differences", &P::differences, list(plan_difference()), "What else differs."),
          required("first", &P::first, object(predicted_step_fields()), "The first plan's prediction."),
          required("second", &P::second, object(predicted_step_fields()), "The second plan's prediction."),
          required("time_ratio", &P::ratio, step_ratio("first_over_second"), kStepRatioHelp),
      });
  return document;
}

}  // namespace

std::string plan_comparison_json(const PlanComparison& comparison) { return diff_document().text(comparison); }
DocumentSchema plan_comparison_schema() { return diff_document().schema(); }

}  // namespace stagecraft::format
