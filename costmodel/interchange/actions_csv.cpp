#include "costmodel/interchange/actions_csv.h"

#include <algorithm>
#include <set>
#include <sstream>
#include <stdexcept>
#include <utility>

#include "costmodel/errors.h"
#include "costmodel/format/plan_json.h"
#include "costmodel/index.h"

namespace stagecraft::interchange {

std::vector<std::vector<Action>> parse_actions_csv(const std::string& text, const std::string& file) {
  std::vector<std::vector<Action>> out;
  std::istringstream lines(text);
  std::string line;
  while (std::getline(lines, line)) {
    try {
      out.push_back(format::parse_actions_row(line));
    } catch (const std::invalid_argument& e) {
      throw FormatError(file + ": line " + std::to_string(out.size() + 1) + ": " + e.what());
    }
  }
  if (out.empty()) throw FormatError(file + ": no line, expected one for each rank");
  return out;
}

std::string actions_csv(const std::vector<std::vector<Action>>& lists) {
  std::string out;
  for (const auto& list : lists) out += format::actions_row(list) + "\n";
  return out;
}

Plan plan_of_lists(const std::vector<std::vector<Action>>& lists) {
  Plan plan;
  plan.schedule = "listed";
  plan.listed = lists;
  plan.model = "none";
  std::vector<std::set<int>> columns;  // the stages of each position
  std::vector<int> ranks;
  int stages = 0;
  int microbatches = 0;
  for (const auto& list : lists) {
    std::set<int> rank_stages;
    for (const Action& action : list) {
      rank_stages.insert(action.stage);
      stages = std::max(stages, action.stage + 1);
      microbatches = std::max(microbatches, action.microbatch + 1);
    }
    const bool same = !columns.empty() && (rank_stages.empty() || rank_stages == columns.back());
    if (!same) {
      columns.push_back(rank_stages);
      ranks.push_back(0);
    }
    ++ranks.back();
  }
  const int positions = to_int(columns.size());
  if (stages % positions != 0) {
    throw std::invalid_argument("the lists hold " + std::to_string(stages) + " stages on " + std::to_string(positions) +
                                " positions, expected the same number on each");
  }
  plan.chunks = stages / positions;
  plan.microbatches = std::max(microbatches, 1);
  int device = 0;
  std::vector<int> replicas;
  for (int s = 0; s < stages; ++s) {
    const std::size_t position = to_index(s % positions);
    if (!columns[position].contains(s)) {
      throw std::invalid_argument("stage " + std::to_string(s) + " is not at position " + std::to_string(position) +
                                  " of " + std::to_string(positions) + ": position d holds the stages d, d + " +
                                  std::to_string(positions) +
                                  ", ...; other placements, such as the V shape of ZBV and DualPipeV, are not run yet");
    }
    Stage stage{{"stage " + std::to_string(s)}, {}, false};
    if (s < positions) {
      for (int r = 0; r < ranks[position]; ++r) stage.devices.push_back(device++);
    } else {
      stage.devices = plan.stages[position].devices;
    }
    if (s > 0) {
      plan.boundaries.push_back({s - 1, s, {{"stage " + std::to_string(s - 1), 0, Bytes(0), {}, "", true}}});
    }
    replicas.push_back(ranks[position]);
    plan.stages.push_back(std::move(stage));
  }
  plan.warmups = warmup_counts(replicas);
  validate(plan);
  return plan;
}

}  // namespace stagecraft::interchange
