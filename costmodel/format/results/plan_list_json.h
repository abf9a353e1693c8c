#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "costmodel/analysis/explain.h"
#include "costmodel/format/document_schema.h"
#include "costmodel/units.h"

namespace stagecraft::format {

/// One plan of a list.
struct ListedPlan {
  std::string origin;                ///< strategy that found it
  std::string file;                  ///< where it was written; empty if it was not
  std::vector<std::string> first;    ///< the first layer of each stage
  std::vector<std::string> devices;  ///< of each stage: "0-3,8"
  std::vector<int> replicas;         ///< of each stage
  int device_count = 0;              ///< each counted once
  int chunks = 1;
  int recomputed = 0;  ///< number of stages that recompute
  Seconds step;
  std::optional<double> samples_per_s;
  Bytes memory;  ///< of the device that needs the most
  Seconds device_time;
  std::optional<double> price;          ///< of a step
  std::optional<StepParts> parts = {};  ///< of the step, mean over the plan's devices; absent: unknown
  bool explained = false;               ///< parts.host is known; else it is 0, and in parts.compute and parts.update
  friend bool operator==(const ListedPlan&, const ListedPlan&) = default;
};

/// A request without one of its constraints, planned to see what the constraint costs.
struct Relaxation {
  std::string change;                ///< "without --stages 2", "with 4 devices instead of 2"
  std::optional<Seconds> step = {};  ///< of the best plan; absent: there is none
  bool better = false;               ///< that plan is better by the objective: the constraint binds
  friend bool operator==(const Relaxation&, const Relaxation&) = default;
};

/// What a search of settings knows about plans with one of them.
struct ListedSetting {
  std::optional<std::int64_t> microbatch_samples;
  std::string times;  ///< of that microbatch size: "measured ...", "interpolated ..."; empty: of the graph
  int microbatches = 1;
  std::string schedule;
  bool recompute = false;
  int recompute_every = 0;  ///< Stage::recompute_every
  std::optional<Bytes> gradient_bucket_bytes;
  StateSharding sharding = StateSharding::None;
  std::vector<int> replicas;           ///< of the stages of the best plan that was found; empty: none was
  int chunks = 1;                      ///< of that plan
  std::optional<Seconds> step;         ///< of that plan
  std::optional<Seconds> run_step;     ///< Plan::run_iteration of that plan
  std::optional<Bytes> memory;         ///< of its device that needs the most; without a plan what is needed at least
  std::optional<Seconds> lower_bound;  ///< no plan with these settings has a shorter step; absent: unknown
  std::string outcome;                 ///< "best", "not better", "does not fit", "no plan", "open"
  friend bool operator==(const ListedSetting&, const ListedSetting&) = default;
};

/// The plans that stagecraft plan --top, --front or --settings lists.
struct PlanList {
  std::string model;
  std::string list;       ///< "top", "front" or "settings"
  std::string objective;  ///< "time", "cost" or "memory"
  std::optional<double> min_samples_per_s;
  std::optional<double> price_per_device_hour;
  std::string schedule;                    ///< of the best plan
  int microbatches = 1;                    ///< of the best plan
  std::optional<Bytes> memory_limit = {};  ///< that a plan may use of a device; absent: unlimited
  std::optional<Seconds> lower_bound;      ///< of the predicted step; absent: unknown
  std::optional<int> proven = {};  ///< for how many plans no unlisted plan is known to be shorter; absent: unknown
  int considered = 0;              ///< distinct plans that fit in memory; of settings, those with such a plan
  std::vector<ListedPlan> plans;   ///< best first
  std::vector<Relaxation> relaxations = {};
  std::vector<ListedSetting> settings = {};          ///< best first
  std::vector<std::pair<std::string, int>> skipped;  ///< reasons, and how many candidates each ruled out
  friend bool operator==(const PlanList&, const PlanList&) = default;
};

// The document "stagecraft.plans", see graph_json.h for the rules of all readers and writers.

/// Plans are in the order of the document, whatever their ranks in it.
[[nodiscard]] PlanList parse_plan_list(const std::string& text, const std::string& file);
[[nodiscard]] std::string plan_list_json(const PlanList& list);
[[nodiscard]] DocumentSchema plan_list_schema();

}  // namespace stagecraft::format
