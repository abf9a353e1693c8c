#pragma once

#include <optional>
#include <string>

#include "costmodel/graph.h"
#include "costmodel/plan.h"
#include "costmodel/topology.h"
#include "costmodel/units.h"

namespace stagecraft {

/// The work of a sample of `graph`. Tokens: the longest sequence of integers that a layer other than the last reads, an
/// input of one row per sample. Peaks: known_peak of the devices on which the graph's times were measured, or
/// for which they were estimated, else of the topology's. Precondition: the plan is valid for both.
[[nodiscard]] SampleWork sample_work(const Graph& graph, const Topology& topology, const Plan& plan);

/// Throughput in units other than samples; what is absent is unknown.
struct WorkRates {
  std::optional<double> tokens_per_s = {};
  std::optional<FlopsPerSecond> flops_per_s = {};  ///< of all devices together
  std::optional<double> peak_share = {};           ///< flops_per_s over the devices' peak, also called MFU
  std::string peak_of = {};                        ///< as SampleWork::peak_of; empty without `peak_share`
  friend bool operator==(const WorkRates&, const WorkRates&) = default;
};

/// The throughput of a run that handles `samples_per_s`. Source of the share of the peak (model FLOPs utilization):
/// Chowdhery et al., PaLM, JMLR 24(240), 2023, appendix B.
[[nodiscard]] WorkRates work_rates(const SampleWork& work, double samples_per_s);

/// The rates at `factor` times the speed.
[[nodiscard]] WorkRates scaled(WorkRates rates, double factor);

/// "35100 tokens per second, 85.2 TFLOP/s per device, 8.6 % of the peak of NVIDIA H100 80GB HBM3 (bfloat16)", with what
/// is known; "per device" only of several. `mark` precedes each figure. Empty if nothing is known.
[[nodiscard]] std::string work_rates_text(const WorkRates& rates, int devices, const std::string& mark = "");

/// One clause that says why the share of the peak is low, if it is below 25 %: the devices are idle for most of the
/// step, a share `idle` of it, or the layers themselves are slow. Else empty. Source of what is usual: Narayanan et
/// al., SC 2021, table 1 (44 to 52 %).
[[nodiscard]] std::string low_share_text(const WorkRates& rates, double idle);

}  // namespace stagecraft
