#include <chrono>
#include <iostream>
#include <string>

#include "executor/run/run.h"
#include "profiler/profile.h"
#include "tests/support/models/planned_models.h"

// range_program run|profile: two steps of a small mlp on one rank, or one watched iteration of it.

int main(int argc, char** argv) {
  using namespace stagecraft;
  const std::string what = argc > 1 ? argv[1] : "";
  const auto planned =
      testing::planned_model("mlp", {{"inputs", "2"}, {"width", "2"}, {"layers", "2"}, {"classes", "2"}}, 1);
  if (what == "profile") return 0;  // planned_model() has already profiled
  const Plan plan = testing::cut_plan(planned, {}, {1}, "gpipe", 2);
  stagecraft::run::RunOptions options;
  options.steps = 2;
  const stagecraft::run::RunResult result =
      stagecraft::run::run_local(plan, planned.model, *planned.data, options, std::chrono::milliseconds(60000));
  std::cout << result.measurement.losses.size() << "\n";
  return 0;
}
