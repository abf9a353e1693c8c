#include "costmodel/format/plan_hash.h"

#include <string_view>

#include "costmodel/format/json.h"

namespace stagecraft::format {

std::uint64_t plan_hash(const BoundPlan& plan) {
  std::uint64_t hash = 14695981039346656037u;
  const auto add = [&hash](std::string_view text) {
    for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211u;
  };
  Plan bare = plan.plan();
  bare.provenance = {};
  bare.optimizer.clear();  // of the predictions; a run says its own
  add(plan_json(bare));
  for (const auto& list : plan.action_lists()) {
    for (const Action& a : list) add(action_text(a) + ",");
    add("\n");
  }
  return hash;
}

}  // namespace stagecraft::format
