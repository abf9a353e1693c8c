#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "costmodel/errors.h"
#include "costmodel/units.h"

namespace stagecraft {

/// How many of one host's processors were busy, on average over a measurement.
struct ProcessorUse {
  double ours = 0;    ///< busy with what was measured
  double others = 0;  ///< busy with other programs, or taken by the hypervisor for other guests
  int count = 1;      ///< all processors of the host
  friend bool operator==(const ProcessorUse&, const ProcessorUse&) = default;
};

/// Whether other programs slowed down what was measured: they used more than a tenth of a processor, and all programs
/// together more than 95 % of all processors.
[[nodiscard]] bool is_crowded(const ProcessorUse& use);

/// Times of one piece of fixed work, from several readings over a measurement. A reading is the median of several runs
/// in a row. All times are above 0, and fastest <= median <= slowest.
struct YardstickTimes {
  std::string work;  ///< "matrix product of 192 x 192 float32": equal names are equal work
  Seconds before;    ///< the reading before the measurement
  Seconds after;     ///< the one after it
  Seconds median;    ///< of all readings: these two and those in pauses
  Seconds fastest;
  Seconds slowest;
  int readings = 1;
  friend bool operator==(const YardstickTimes&, const YardstickTimes&) = default;
};

/// How fast a device was while something was measured on it: times of fixed work with the threads of the measured work.
struct Yardstick {
  std::string device;  ///< model of the processor or GPU
  int threads = 1;
  std::vector<YardstickTimes> works;
  friend bool operator==(const Yardstick&, const Yardstick&) = default;
};

/// What the machine was like while the figures of a document were measured.
struct Conditions {
  std::vector<ProcessorUse> hosts;     ///< by first rank; empty: unknown, or too short a measurement to tell
  std::optional<Yardstick> yardstick;  ///< of rank 0's device; absent: unknown
  friend bool operator==(const Conditions&, const Conditions&) = default;
};

/// One sentence for each crowded host: "other programs kept 0.8 of 2 processors busy, the ranks 1.2: measure on a quiet
/// machine", where `measured` is "the ranks"; with several hosts, "host 1: " and so on first. Empty if no host was
/// crowded.
[[nodiscard]] std::vector<std::string> crowded_reasons(const Conditions& conditions, std::string_view measured);

/// How much slower one piece of fixed work was in a second measurement.
struct WorkDrift {
  std::string work;
  double ratio = 1;  ///< second median / first median
  friend bool operator==(const WorkDrift&, const WorkDrift&) = default;
};

/// How much slower a device was during a second measurement than during a first one.
struct Drift {
  std::vector<WorkDrift> works;  ///< one or more
  double factor = 1;             ///< geometric mean of their ratios
  friend bool operator==(const Drift&, const Drift&) = default;
};

/// The drift from `first` to `second`. Infeasible if they are of different devices or threads or have no work in
/// common.
[[nodiscard]] std::variant<Drift, Infeasible> drift_between(const Yardstick& first, const Yardstick& second);

/// "1.4 % slower (matrix product of 192 x 192 float32 +3.1 %, copy of 4 MiB -0.3 %)".
[[nodiscard]] std::string drift_text(const Drift& drift);

/// The work whose readings differ most, with slowest / fastest. There must be at least one work.
[[nodiscard]] WorkDrift widest_range(const Yardstick& yardstick);

/// How much the device's speed changed while something was measured on it: the standard deviation of its logarithm,
/// from the ranges of the readings; the largest of all works. Of n values of a normal distribution the range is d2(n)
/// standard deviations on average (Tippett 1925; d2 as in control charts). 0 if no work has two readings.
[[nodiscard]] double speed_spread(const Yardstick& yardstick);

/// "the device's speed changed while it was measured: the slowest copy of 4 MiB took 1.40 times as long as the
/// fastest", if some work took more than 1.25 times as long; else empty.
[[nodiscard]] std::string unsteady_text(const Conditions& conditions);

}  // namespace stagecraft
