#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "costmodel/state_types.h"

namespace stagecraft::stage {

/// Parameters with settings of their own, chosen by name.
struct ParameterGroup {
  std::string pattern;  ///< regular expression of ECMAScript, found anywhere in a parameter's name
  std::optional<double> weight_decay = {};
  std::optional<double> learning_rate = {};  ///< instead of the optimizer's
  double rate_factor = 1;                    ///< on the learning rate
};

/// Reads "PATTERN:SETTING=VALUE,...", such as "bias|norm:weight-decay=0"; the last colon ends the pattern. Settings are
/// weight-decay, learning-rate (or lr) and learning-rate-factor (or lr-factor). Throws std::invalid_argument naming
/// what is wrong in `text`.
[[nodiscard]] ParameterGroup parse_group(const std::string& text);
/// The text that parse_group reads.
[[nodiscard]] std::string group_text(const ParameterGroup& group);

/// For each name, the index of the first group whose pattern is found in it; `groups.size()` if there is none.
[[nodiscard]] std::vector<std::size_t> groups_of(const std::vector<ParameterGroup>& groups,
                                                 const std::vector<std::string>& names);
/// Throws std::invalid_argument naming a group that has none of the parameters `names`: it lists names, or says that
/// earlier groups have all that match.
void check_groups(const std::vector<ParameterGroup>& groups, const std::vector<std::string>& names);

/// The learning rate over the steps of a run. x is the fraction of the steps after the warm-up that has passed.
struct RateSchedule {
  std::string name = "constant";
  std::int64_t warmup = 0;     ///< steps of linear warm-up from 0
  std::int64_t steps = 0;      ///< of the whole run: linear, polynomial, cosine and one-cycle end there
  double last = 0;             ///< final rate of linear, polynomial and cosine / full rate
  double power = 1;            ///< of polynomial
  std::int64_t every = 0;      ///< of step: the steps between two drops
  double gamma = 0.1;          ///< of step, plateau and exponential: the factor of a drop, or of each step
  std::int64_t patience = 10;  ///< of plateau: validations without a better loss that change nothing
  double threshold = 1e-4;     ///< of plateau: a better loss is below the best one by more than this share of it
  double rise = 0.3;           ///< of one-cycle: part of the steps in which the rate rises
  double first_divisor = 25;   ///< of one-cycle: full rate / first rate
  double last_divisor = 1e4;   ///< of one-cycle: first rate / last rate
  std::string anneal = "cos";  ///< of one-cycle: "cos" or "linear"
};

/// All names of rate schedules.
[[nodiscard]] const std::vector<std::string>& rate_schedule_names();
/// Throws std::invalid_argument for an unknown name (listing the known ones), a value out of range, a schedule with an
/// end whose run is not longer than its warm-up, a one-cycle with a warm-up, a step schedule without its steps, and a
/// plateau whose factor is not below 1.
void validate(const RateSchedule& schedule);
/// Factor on the learning rate in step `step`, counted from 0: (step + 1) / warmup while that is below 1; then, with
/// n = step - warmup, x = n / (steps - warmup), at most 1:
///   constant: 1;
///   linear: 1 - (1 - last) x, as LinearLR;
///   polynomial: last + (1 - last) (1 - x)^power, as PolynomialLR;
///   cosine: last + (1 - last) (1 + cos(pi x)) / 2, as CosineAnnealingLR (Loshchilov & Hutter, ICLR 2017, without
///     restarts);
///   step: gamma^floor(n / every), as StepLR;
///   exponential: gamma^n, as ExponentialLR;
///   plateau: 1, times Plateau::factor;
///   one-cycle: as OneCycleLR without a cycle of the momentum; the full rate is its max_lr (Smith & Topin, 2017).
[[nodiscard]] double rate_factor(const RateSchedule& schedule, std::int64_t step);

/// What a plateau schedule has seen, and what it does to the rate: ReduceLROnPlateau in mode "min" with a relative
/// threshold, without its least change of the rate.
struct Plateau {
  double factor = 1;  ///< on the learning rate; RateSchedule::last at least
  double best = std::numeric_limits<double>::infinity();
  std::int64_t waited = 0;  ///< validations since the best one, or since the last drop
  friend bool operator==(const Plateau&, const Plateau&) = default;
};
/// Takes the next loss.
void observe(const RateSchedule& schedule, Plateau& plateau, double loss);

/// An optimizer and its settings: names, meaning and formulas of torch.optim, and lion. Further settings have
/// torch.optim's defaults.
struct OptimizerOptions {
  std::string name = "sgd";
  double learning_rate = 0.01;
  double momentum = 0;  ///< sgd, rmsprop
  double weight_decay = 0;
  double beta1 = 0.9;                       ///< adam and its variants, lion
  std::optional<double> beta2 = {};         ///< adam and its variants, lion; absent: see beta2_of
  std::optional<double> epsilon = {};       ///< all except sgd and lion; absent: see epsilon_of
  RateSchedule rate = {};                   ///< of the learning rate
  double clip_norm = 0;                     ///< largest norm of the whole model's gradient; 0: no clipping
  double dampening = 0;                     ///< sgd
  bool nesterov = false;                    ///< sgd
  bool amsgrad = false;                     ///< adam, adamw
  double alpha = 0.99;                      ///< rmsprop
  bool centered = false;                    ///< rmsprop
  double rho = 0.9;                         ///< adadelta
  double learning_rate_decay = 0;           ///< adagrad
  double initial_accumulator = 0;           ///< adagrad
  double momentum_decay = 4e-3;             ///< nadam
  bool decoupled_weight_decay = false;      ///< nadam, radam
  std::vector<ParameterGroup> groups = {};  ///< a parameter belongs to the first that matches its name, if any
  double ema_decay = 0;                     ///< of moving averages of the parameters; 0: none are kept
  StateTypes types = {};                    ///< of the plan or the profile that it belongs to
};

/// All optimizer names: sgd, adam, adamw, adamax, nadam, radam, adagrad, adadelta, rmsprop as in torch.optim; lion of
/// Chen et al., NeurIPS 2023, algorithm 2, whose weight decay is that of adamw.
[[nodiscard]] const std::vector<std::string>& optimizer_names();
/// Empty for a known name; otherwise what is known, and what to use instead of Adafactor and Muon.
[[nodiscard]] std::string unknown_optimizer_text(const std::string& name);
/// Throws std::invalid_argument for an unknown name (listing the known ones), a value out of range, and a setting that
/// the optimizer does not have, naming those that have it.
void validate(const OptimizerOptions& options);
/// 0.99 for lion, otherwise 0.999, unless set.
[[nodiscard]] double beta2_of(const OptimizerOptions& options);
/// 1e-10 for adagrad, 1e-6 for adadelta, otherwise 1e-8, unless set.
[[nodiscard]] double epsilon_of(const OptimizerOptions& options);

/// The settings that differ from their defaults, except name, rate, momentum, weight decay, betas and epsilon: option
/// name without leading dashes -> value as text.
[[nodiscard]] std::map<std::string, std::string> further_settings(const OptimizerOptions& options);

}  // namespace stagecraft::stage
