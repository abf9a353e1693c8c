#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "costmodel/bound_plan.h"
#include "costmodel/graph.h"
#include "costmodel/interchange/foreign.h"

namespace stagecraft {

/// One of the texts that a plan becomes.
struct PlanText {
  std::string kind;  ///< "dp"; chooses among the texts of a format that has several
  std::string file;  ///< its name in a folder of them all
  std::string text;
};

/// What a plan becomes in another program's words, and what of it they do not carry, a line each.
struct PlanTexts {
  std::vector<PlanText> texts;
  std::vector<std::string> warnings;
};

struct PlanTextOptions {
  bool transfers = false;           ///< of actions: sends, receives and reduces too
  bool depths = false;              ///< of pipedream-conf: the plan's warm-ups
  std::optional<Graph> graph = {};  ///< of pipedream-conf: written with the plan's stages
};

/// What another program's file says of a plan; what it does not say is absent or empty.
struct ForeignPlan {
  std::optional<Partition> partition;
  std::vector<std::vector<int>> devices;  ///< of each stage; with a partition, and then its replicas are told too
  std::vector<int> warmups;               ///< of each stage
  std::optional<Plan> lists;              ///< plan_of_lists: schedule, microbatches, number of stages and replicas
};

/// A format of another program that carries plans. Both functions throw FormatError or std::invalid_argument as the
/// format's own reader and writer do.
struct PlanFormat {
  std::string name;
  std::string what;                ///< for people
  std::vector<std::string> kinds;  ///< of its texts, where there are several
  std::function<PlanTexts(const BoundPlan&, const PlanTextOptions&)> write;
  std::function<ForeignPlan(const SourceFile&, const Graph&)> read;
};

/// All of them, by name: actions, deepspeed, megatron, pipedream-conf, torch-pipelining.
[[nodiscard]] const std::vector<PlanFormat>& plan_formats();

/// The format of that name. Throws std::invalid_argument with the known names, `others` among them.
[[nodiscard]] const PlanFormat& plan_format(const std::string& name, const std::vector<std::string>& others = {});

}  // namespace stagecraft
