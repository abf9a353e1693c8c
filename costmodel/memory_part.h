#pragma once

#include <cstddef>
#include <string>

namespace stagecraft {

/// What memory of a rank is for, in the order of the names.
enum class MemoryPart {
  Activations,    ///< saved for the backward
  Communication,  ///< buffers of a channel's sums
  Frozen,         ///< frozen parameters and buffers
  Gradients,
  Inputs,         ///< loaded data
  KeptGradients,  ///< between the two parts of a split backward
  Libraries,      ///< what libraries allocate once
  OlderVersions,  ///< of parameters, under an asynchronous schedule
  Optimizer,      ///< its state
  Parameters,
  Receiving,  ///< messages that were posted and not used
  Reduction,  ///< a copy of gradients while replicas sum them
  Sending,    ///< messages that may not have left, and gradients on their way back
  Workspace,  ///< of the running layer
};

inline constexpr std::size_t kMemoryParts = 14;

/// "activations", "kept gradients", "older versions", ...; the name in files.
[[nodiscard]] const char* to_string(MemoryPart part);
/// The inverse. Throws std::invalid_argument listing the names.
[[nodiscard]] MemoryPart memory_part(const std::string& word);

}  // namespace stagecraft
