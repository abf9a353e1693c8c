#include "costmodel/format/plan_hash.h"

#include "costmodel/fnv.h"
#include "costmodel/format/plan_json.h"

namespace stagecraft::format {

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
