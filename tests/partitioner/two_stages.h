#pragma once

#include "partitioner/strategy.h"
#include "tests/support/chains.h"

namespace stagecraft::partitioner {

/// Layers 0 and 1, of 1 + 2 s and 1 KiB of parameters each, on two replicas; layer 2 on the third device.
inline RankedPlan two_stages() {
  RankedPlan out;
  out.origin = "profile, 2 stages";
  out.plan = make_plan(testing::chain_graph({1, 1, 1}, {2, 2, 2}, 0_B, 1_KiB), testing::flat_topology(3),
                       {{0, 0, 1}, {2, 1}}, {});
  out.plan.strategy = "profile";
  out.plan.iteration = out.prediction.iteration = Seconds(20);
  out.prediction.bubble = 0.125;
  out.prediction.timeline.memory = {{0, Bytes(3072), {}}, {1, Bytes(1024), {}}};
  return out;
}

}  // namespace stagecraft::partitioner
