#pragma once

#include "executor/data/data_source.h"

namespace stagecraft {

/// Values drawn from the seed: Normal(1) for floating types, both values for bool, else uniform in [least, classes).
/// Throws std::invalid_argument naming an input of whole numbers without classes, or with a range that its type lacks.
[[nodiscard]] std::unique_ptr<DataSource> synthetic_source(const Model& model, std::uint64_t seed);
/// The images of Fashion-MNIST from `directory`, the 60,000 for training or the 10,000 for tests; with a `seed` in an
/// order of its own each epoch.
[[nodiscard]] std::unique_ptr<DataSource> fashion_mnist_source(const std::string& directory, bool test,
                                                               const Model& model, std::optional<std::uint64_t> seed);
/// Windows of the bytes of `file`: a byte is a token, the target is the next one. With a `seed` they begin anywhere,
/// without they are the file's consecutive windows.
[[nodiscard]] std::unique_ptr<DataSource> text_source(const std::string& file, const Model& model,
                                                      std::optional<std::uint64_t> seed);

/// Samples from files of tensors, one for each input under its name: `path` is a safetensors file, a folder with
/// NAME.npy for each, or a list NAME=FILE.npy,... of them. With a `seed` in an order of its own each epoch, else in the
/// order of the files, which are mapped and must not become shorter meanwhile. Messages name `kind`. Throws FormatError naming
/// file and input for what is missing (listing what is there), of another type or shape, for files that do not hold
/// equally many samples, and for the first whole number outside the input's range.
[[nodiscard]] std::unique_ptr<DataSource> tensors_source(const std::string& kind, const std::string& path,
                                                         const Model& model, std::optional<std::uint64_t> seed);

/// The place among `count` samples of the `index`-th of a run, which takes each epoch in an order of its own.
[[nodiscard]] std::uint64_t shuffled(std::uint64_t index, std::uint64_t count, std::uint64_t seed);

/// The name of `model` and those of its inputs that a source must give: what the functions above take for `model`.
[[nodiscard]] Model without_derived(const Model& model);
/// DataSource::batch for all inputs of `model` from `inner`, which gives those of without_derived, in their order and
/// each as [samples, shape...]: the samples' axis moved to its place, the first sample of all for an input that has no
/// such axis, and derived inputs made from their sources. `inner` is asked for no more than that takes.
[[nodiscard]] std::unique_ptr<DataSource> arranged_source(std::unique_ptr<DataSource> inner, const Model& model);

/// "image float32[1, 28, 28], target int64[]": what `model` asks for.
[[nodiscard]] std::string describe_inputs(const Model& model);

}  // namespace stagecraft
