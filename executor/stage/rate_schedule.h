#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

namespace stagecraft::stage {

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

}  // namespace stagecraft::stage
