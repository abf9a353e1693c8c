#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "costmodel/plan.h"
#include "costmodel/topology.h"
#include "executor/launch/spawn.h"
#include "executor/run_command.h"

// What stagecraft run does with --replan.

namespace stagecraft {

/// Decides what the restarts of a run start. If a rank is gone twice in a row without a new checkpoint in between, it
/// cannot be started again: with --hosts, its host is left out, otherwise one device of the topology. The rest runs the
/// same plan if it has enough slots, else one that stagecraft-plan makes for it.
class Replanner {
 public:
  /// `o` has the option --replan, and must outlive it; `restart` runs all of the plan again. Throws FormatError or
  /// InputError if the graph or the topology cannot be read or are not those of `plan`, and for a plan whose schedule
  /// was given as action lists.
  Replanner(const RunCommand& o, const Plan& plan, launch::RankCommand restart);

  /// What to start after `failed` ended a start. Says on standard error what changes. Throws NoAnswerError if nothing
  /// is left, or if no plan fits what is left.
  [[nodiscard]] launch::RankCommand again(const launch::FailedRank& failed);

 private:
  /// Where a rank was gone, and the steps of the newest checkpoint then.
  struct Gone {
    std::string place;
    std::int64_t step = 0;
    friend bool operator==(const Gone&, const Gone&) = default;
  };
  void plan_for(int devices, const std::string& place);

  const RunCommand& o_;
  Plan plan_;
  std::string plan_file_;
  Topology topology_;
  launch::RankCommand next_;
  std::optional<Gone> gone_;
  int plans_ = 0;  ///< made so far
};

}  // namespace stagecraft
