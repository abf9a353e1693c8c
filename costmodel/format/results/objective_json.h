#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "costmodel/format/document_schema.h"
#include "costmodel/units.h"

namespace stagecraft::format {

/// A stage in another planner's cost model.
struct ObjectiveStage {
  std::vector<std::string> layers;     ///< ids, as in the source
  std::string device = "accelerator";  ///< or "cpu"
  int replicas = 1;
  int tensor_devices = 1;  ///< of each replica
  Seconds time;
  std::optional<double> memory_bytes;  ///< of each device, where that cost model counts memory
  std::map<std::string, int> modes;    ///< layers that run in each mode; empty if the planner has no modes
};

/// The best plan by another planner's cost model, and how far it is from the best possible.
struct ObjectiveAnswer {
  std::string profile;  ///< "max-load"
  std::string source;   ///< the file
  std::string unit;     ///< what value is: "seconds per sample of the slowest device"
  Seconds value;
  Seconds lower_bound;                 ///< no plan that the profile considers has a smaller value
  std::vector<ObjectiveStage> stages;  ///< first to last
  std::int64_t nodes = 0;              ///< after joining those that stay together
  std::int64_t downsets = 0;           ///< 0: not enumerated
  std::int64_t pairs = 0;              ///< of down-sets evaluated as stages
  std::string stopped;                 ///< why it may not be exact; empty if the search ran to completion
  std::vector<std::string> notes;
};

/// value / lower_bound - 1; 0 for an exact answer, infinite if the bound is 0 and the value is not.
[[nodiscard]] double gap(const ObjectiveAnswer& answer);

/// Whether the value equals its bound.
[[nodiscard]] bool is_exact(const ObjectiveAnswer& answer);

/// The document "stagecraft.objective" for other programs.
[[nodiscard]] std::string objective_json(const ObjectiveAnswer& answer);
[[nodiscard]] DocumentSchema objective_schema();

}  // namespace stagecraft::format
