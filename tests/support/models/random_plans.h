#pragma once

#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "costmodel/bound_plan.h"
#include "costmodel/index.h"
#include "costmodel/schedule.h"
#include "tests/support/models/planned_models.h"

namespace stagecraft::testing {

struct RandomPlan {
  Plan plan;
  std::string what;  ///< "1f1b, replicas 2 1, 5 microbatches"
};

/// A random plan of `planned`: one to four stages, each with one to three replicas, 1 to 12 microbatches, two chunks
/// where the schedule has them. Every schedule in the table occurs except "listed", whose lists would be those of
/// another one.
inline RandomPlan random_plan(const PlannedModel& planned, std::mt19937& random) {
  const auto below = [&](int count) { return static_cast<int>(random() % static_cast<unsigned>(count)); };
  const int layers = to_int(planned.model.layers.size());
  while (true) {
    const ScheduleEntry& schedule = schedules()[to_index(below(to_int(schedules().size())))];
    if (schedule.name == "listed") continue;
    const int positions = 1 + below(4);
    const int chunks = schedule.chunked ? 2 : 1;
    std::vector<int> replicas;
    for (int p = 0; p < positions; ++p)
      replicas.push_back(p > 0 && schedule.equal_replicas ? replicas.front() : 1 + below(3));
    std::vector<int> stages;
    for (int c = 0; c < chunks; ++c) stages.insert(stages.end(), replicas.begin(), replicas.end());
    const int microbatches = 1 + below(12);
    try {
      RandomPlan out;
      out.plan =
          cut_plan(planned, even_cuts(layers, to_int(stages.size())), stages, schedule.name, microbatches, chunks);
      static_cast<void>(BoundPlan(out.plan));
      out.what = schedule.name + ", replicas";
      for (const int r : replicas) out.what += " " + std::to_string(r);
      out.what += ", " + std::to_string(microbatches) + " microbatches";
      return out;
    } catch (const std::invalid_argument&) {}  // the schedule cannot run this shape
  }
}

}  // namespace stagecraft::testing
