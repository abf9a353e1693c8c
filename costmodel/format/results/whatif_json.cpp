#include "costmodel/format/results/whatif_json.h"

#include "costmodel/format/shared_notations.h"

namespace stagecraft::format {
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

}  // namespace stagecraft::format
