#pragma once

#include "executor/data/data_source.h"

namespace stagecraft {

// What the files of data sources share.

/// The place among `count` samples of the `index`-th of a run, which takes each epoch in an order of its own.
[[nodiscard]] std::uint64_t shuffled(std::uint64_t index, std::uint64_t count, std::uint64_t seed);

/// The name of `model` and those of its inputs that a source must give: what DataSourceKind::open takes for `model`.
[[nodiscard]] Model without_derived(const Model& model);
/// DataSource::batch for all inputs of `model` from `inner`, which gives those of without_derived, in their order and
/// each as [samples, shape...]: the samples' axis moved to its place, the first sample of all for an input that has no
/// such axis, and derived inputs made from their sources. `inner` is asked for no more than that takes.
[[nodiscard]] std::unique_ptr<DataSource> arranged_source(std::unique_ptr<DataSource> inner, const Model& model);

/// "image float32[1, 28, 28], target int64[]": what `model` asks for.
[[nodiscard]] std::string describe_inputs(const Model& model);

}  // namespace stagecraft
