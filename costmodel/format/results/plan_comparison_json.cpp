#include "costmodel/format/results/plan_comparison_json.h"

#include "costmodel/format/shared_notations.h"

namespace stagecraft::format {
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
