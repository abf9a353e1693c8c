#include "costmodel/format/results/objective_json.h"

#include <cmath>
#include <limits>

#include "costmodel/format/description.h"

namespace stagecraft::format {
namespace {

constexpr Integer kCount{1, kMost, ""};

Notation<ObjectiveStage> objective_stage() {
  using S = ObjectiveStage;
  return object<S>({
      required("layers", &S::layers, list(text()), "ids as in the source"),
      required("device", &S::device, words("device", {"accelerator", "cpu"})),
      required("replicas", &S::replicas, kCount),
      required("tensor_devices", &S::tensor_devices, kCount, "devices of each replica"),
      required("time_s", &S::time, not_negative()),
      optional("memory_bytes", &S::memory_bytes, not_negative(),
               "on each device; absent if the profile counts no memory"),
      optional("modes", &S::modes, map_of<int>(whole()), "how many layers run in each mode"),
  });
}

const Document<ObjectiveAnswer>& objective_document() {
  using A = ObjectiveAnswer;
  const auto count = integer(0, kMany);
  static const Document<A> document(
      {.name = "objective",
       .version = 1,
       .title = "Objective",
       .help = "Result of stagecraft plan --objective-profile: the best plan by another planner's cost model. The tool "
               "writes it and never reads it."},
      {
          required("profile", &A::profile, text(), "name of the cost model, such as max-load"),
          required("source", &A::source, text(), "the file with the problem"),
          required("unit", &A::unit, text(), "what value_s is"),
          required("value_s", &A::value, not_negative()),
          required("lower_bound_s", &A::lower_bound, not_negative(),
                   "no plan that the profile considers has a smaller value"),
          shown<A, std::optional<double>>(
              "gap", [](const A& of) { return std::isfinite(gap(of)) ? std::optional(gap(of)) : std::nullopt; },
              not_negative(), "value_s / lower_bound_s - 1; absent if the bound is 0 and the value is not"),
          shown<A, bool>("exact", is_exact, boolean(), "whether value_s equals lower_bound_s"),
          optional("stopped", &A::stopped, text(),
                   "why the answer may not be exact; absent if the search ended by itself"),
          required("stages", &A::stages, list(objective_stage()), "first to last"),
          group<A>("search",
                   {
                       required("nodes", &A::nodes, count, "after joining those that stay together"),
                       required("downsets", &A::downsets, count, "0: not enumerated"),
                       required("pairs", &A::pairs, count, "pairs of down-sets that were weighed as stages"),
                   }),
          required("notes", &A::notes, list(text()), "how numbers were read, what the profile leaves out"),
      });
  return document;
}

}  // namespace

double gap(const ObjectiveAnswer& answer) {
  if (is_exact(answer)) return 0;
  if (answer.lower_bound <= Seconds(0)) return std::numeric_limits<double>::infinity();
  return answer.value / answer.lower_bound - 1;
}

bool is_exact(const ObjectiveAnswer& answer) { return answer.value == answer.lower_bound; }

std::string objective_json(const ObjectiveAnswer& answer) { return objective_document().text(answer); }
DocumentSchema objective_schema() { return objective_document().schema(); }

}  // namespace stagecraft::format
