#pragma once

#include <optional>
#include <string>
#include <vector>

#include "costmodel/units.h"

namespace stagecraft {

/// What a GPU can do at most according to its vendor: dense rates (without sparsity), with tensor cores where it has
/// them. A rate that could not be confirmed, or that the GPU does not have, is absent.
struct Card {
  std::string name;                        ///< as CUDA and NVML report it: "NVIDIA A100-SXM4-80GB"
  std::string short_name;                  ///< for command lines: "A100-SXM-80GB"
  FlopsPerSecond float32;                  ///< without rounding to TF32
  std::optional<FlopsPerSecond> tf32;      ///< of float32 that may be rounded to TF32; absent: as float32
  std::optional<FlopsPerSecond> float16;   ///< with sums in float32
  std::optional<FlopsPerSecond> bfloat16;  ///< likewise
  BytesPerSecond bandwidth;                ///< of its memory
  Bytes memory;                            ///< as advertised; 1 GB is 10^9 bytes
  std::string source;                      ///< public pages that give the figures
};

/// The table of cards, oldest generation first.
[[nodiscard]] const std::vector<Card>& cards();

/// The card with this name or short name, case ignored; else the only card whose two names together have all words of
/// `name` ("h200", "a100 80gb pcie"). Throws std::invalid_argument listing the candidates if several have, and all
/// cards if none has.
[[nodiscard]] const Card& find_card(const std::string& name);

/// The peak rate of `card` for tensors of `dtype` ("float32", "float16", "bfloat16"; empty: float32). Throws
/// std::invalid_argument if it is not in the table or the type is unknown.
[[nodiscard]] FlopsPerSecond peak_rate(const Card& card, const std::string& dtype, bool allow_tf32);

/// What a device can do at most.
struct Peak {
  FlopsPerSecond rate;
  std::string of;  ///< "NVIDIA H100 80GB HBM3 (bfloat16)"
  friend bool operator==(const Peak&, const Peak&) = default;
};

/// The peak of the device called `name`, for tensors of `dtype`; of any type that may be meant, if it is the same for
/// all. Absent if no card may be meant, their peaks differ, or one is not in the table.
[[nodiscard]] std::optional<Peak> known_peak(const std::string& name, const std::string& dtype, bool allow_tf32);

/// Whether that rate is one of tensor cores.
[[nodiscard]] bool uses_tensor_cores(const Card& card, const std::string& dtype, bool allow_tf32);

/// The table as text: names, peaks, bandwidth, memory and source.
[[nodiscard]] std::string cards_text();

}  // namespace stagecraft
