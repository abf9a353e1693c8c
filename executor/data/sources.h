#pragma once

#include "executor/data/data_source.h"

namespace stagecraft::data {

// Helpers shared by the data sources.

/// The position among `count` samples of the `index`-th sample of a run that shuffles every epoch.
[[nodiscard]] std::uint64_t shuffled(std::uint64_t index, std::uint64_t count, std::uint64_t seed);

/// The name of `model` and those of its inputs that a source must provide, as DataSourceKind::open takes them.
[[nodiscard]] model::Model without_derived(const model::Model& model);
/// DataSource::batch for all inputs of `model` from `inner`, which provides those of without_derived, in their order
/// and each as [samples, shape...]: moves the batch axis to its place, takes the first sample for an input without a
/// batch axis, and computes derived inputs from their sources. `inner` only loads what this needs.
[[nodiscard]] std::unique_ptr<DataSource> arranged_source(std::unique_ptr<DataSource> inner, const model::Model& model);

/// "image float32[1, 28, 28], target int64[]": the inputs of `model`.
[[nodiscard]] std::string describe_inputs(const model::Model& model);

/// The sequence length of a model that data source `kind` can train: its inputs are tokens int64[sequence], under any
/// name, and target int64[sequence], or tokens alone, which an exported next_token model shifts itself. Throws
/// InputError for another model.
[[nodiscard]] std::int64_t sequence_of(const std::string& kind, const model::Model& model);
/// Windows of a text for such a model: the target is the token after each. `tokens` are contiguous integers of one
/// axis, more than `sequence`. With a `seed` windows begin at random positions, otherwise they are consecutive.
[[nodiscard]] std::unique_ptr<DataSource> token_windows(at::Tensor tokens, std::int64_t sequence,
                                                        std::optional<std::uint64_t> seed);

/// Why this build cannot read images; empty if it can.
[[nodiscard]] std::string why_no_images();

}  // namespace stagecraft::data
