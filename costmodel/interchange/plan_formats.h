#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "costmodel/bound_plan.h"
#include "costmodel/graph.h"
#include "costmodel/interchange/foreign.h"

namespace stagecraft::interchange {

/// One of the texts of a converted plan.
struct PlanText {
  std::string kind;  ///< "dp"; selects a text of a format that has several
  std::string file;  ///< its name in a folder with all texts
  std::string text;
};

/// A plan in another program's format, and what the conversion loses, one line each.
struct PlanTexts {
  std::vector<PlanText> texts;
  std::vector<std::string> warnings;
};

struct PlanTextOptions {
  bool transfers = false;           ///< for actions: include sends, receives and reduces
  bool depths = false;              ///< for pipedream-conf: the plan's warm-ups
  std::optional<Graph> graph = {};  ///< for pipedream-conf: written with the plan's stages
};

/// The parts of a plan in another program's file; the rest is absent or empty.
struct ForeignPlan {
  std::optional<Partition> partition;
  std::vector<std::vector<int>> devices;  ///< for each stage; only with a partition, whose replicas are then given too
  std::vector<int> warmups;               ///< of each stage
  std::optional<Plan> lists;              ///< plan_of_lists: schedule, microbatches, number of stages and replicas
};

/// A format of another program for plans. Both functions throw FormatError or std::invalid_argument as the format's own
/// reader and writer do.
struct PlanFormat {
  std::string name;
  std::string what;                  ///< for messages
  std::vector<std::string> kinds;    ///< of its texts, if there are several
  std::string reads;                 ///< the kind of text that `read` takes
  std::vector<std::string> options;  ///< options of stagecraft-export for this format
  std::function<PlanTexts(const BoundPlan&, const PlanTextOptions&)> write;
  std::function<ForeignPlan(const SourceFile&, const Graph&)> read;
};

/// All of them, by name.
[[nodiscard]] const std::vector<PlanFormat>& plan_formats();

/// The format of that name. Throws std::invalid_argument with the known names, `others` among them.
[[nodiscard]] const PlanFormat& plan_format(const std::string& name, const std::vector<std::string>& others = {});

}  // namespace stagecraft::interchange
