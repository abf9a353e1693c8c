#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "costmodel/bound_plan.h"
#include "executor/data/data_source.h"
#include "executor/intake/layer_sources.h"
#include "executor/run/binding/bound_model.h"
#include "executor/run/run.h"

namespace stagecraft::run {

/// What a run is made of, by name.
struct JobRequest {
  std::string plan;                     ///< file
  std::string model = {};               ///< empty: the plan's
  intake::ModelSettings settings = {};  ///< override the plan's
  std::string data = "synthetic";       ///< data source
  std::string validation = {};          ///< data source; empty: the run does not validate
  std::uint64_t seed = 1;               ///< of the data
  std::function<model::Model(const std::string& model, const intake::ModelSettings&, model::ModelMode)> build =
      intake::build_model;
};

/// Everything to run, read and cross-checked.
struct RunJob {
  /// Throws as read_plan, `build`, bind_model and make_data_source do.
  explicit RunJob(const JobRequest& request);
  RunJob(const RunJob&) = delete;
  RunJob& operator=(const RunJob&) = delete;

  [[nodiscard]] int ranks() const;
  [[nodiscard]] bool trains() const { return plan.schedule().trains; }

  std::string data_name;
  std::string validation_name;
  BoundPlan plan;
  model::Model model;
  BoundModel bound;
  std::unique_ptr<data::DataSource> data;
  std::optional<WholePass> pass;                 ///< for a plan that only evaluates, over finite data
  std::optional<model::Model> evaluated;         ///< the model in evaluation mode, if a plan that trains is to validate
  std::unique_ptr<data::DataSource> validation;  ///< the same for its data
};

/// Steps that go through the data `epochs` times, rounded up. Precondition: fewer than 2^63 samples in all. Throws
/// std::invalid_argument if the plan does not train or the data has no end.
[[nodiscard]] std::int64_t steps_of_epochs(const RunJob& job, std::int64_t epochs);

/// Throws std::invalid_argument unless the job can validate on `samples` samples, or all: its plan trains, its data has
/// an end, and the samples fill a microbatch. Fits any job that does not validate.
void check_validation(const RunJob& job, std::optional<std::int64_t> samples);

/// Throws std::invalid_argument if the plan cannot validate every `every` of `steps` steps: an asynchronous pipeline is
/// empty only after the last one.
void check_validation_steps(const RunJob& job, std::int64_t every, std::int64_t steps);

/// Checks before ranks are started that would fail on all of them: whether the checkpoint folder can be written and
/// resumed from, whether the initial parameters are the model's, and whether each group has parameters. Throws
/// FormatError or std::invalid_argument.
void check_state(const RunJob& job, const RunOptions& options);

}  // namespace stagecraft::run
