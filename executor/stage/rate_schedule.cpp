#include "executor/stage/rate_schedule.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <stdexcept>

#include "costmodel/errors.h"

namespace stagecraft::stage {
namespace {

/// Whether the schedule depends on the number of steps of the run.
bool has_end(const std::string& name) {
  return name == "linear" || name == "polynomial" || name == "cosine" || name == "one-cycle";
}

/// From `from` at 0 to `to` at 1.
double annealed(const std::string& how, double from, double to, double x) {
  if (how == "linear") return from + (to - from) * x;
  return to + (from - to) / 2 * (1 + std::cos(std::numbers::pi * x));
}

double one_cycle(const RateSchedule& schedule, std::int64_t step) {
  const double top = schedule.rise * static_cast<double>(schedule.steps) - 1;
  const double end = static_cast<double>(schedule.steps) - 1;
  const auto now = static_cast<double>(step);
  const double first = 1 / schedule.first_divisor;
  if (now <= top) return annealed(schedule.anneal, first, 1, top > 0 ? now / top : 1);
  return annealed(schedule.anneal, 1, first / schedule.last_divisor, std::min((now - top) / (end - top), 1.0));
}

void check(const char* what, double value, double low, double high) {
  if (value >= low && value <= high) return;
  throw std::invalid_argument(fmt::format("{} is {:g}, must be {:g} to {:g}", what, value, low, high));
}

}  // namespace

const std::vector<std::string>& rate_schedule_names() {
  static const std::vector<std::string> names{"constant", "linear",      "polynomial", "cosine",
                                              "step",     "exponential", "one-cycle",  "plateau"};
  return names;
}

void validate(const RateSchedule& schedule) {
  if (std::ranges::find(rate_schedule_names(), schedule.name) == rate_schedule_names().end())
    throw InputError(ErrorKind::UnknownName, unknown_name("rate schedule", schedule.name, rate_schedule_names()));
  if (schedule.warmup < 0)
    throw std::invalid_argument("the warm-up is " + std::to_string(schedule.warmup) + " steps, must be at least 0");
  if (!(schedule.last >= 0 && schedule.last <= 1))
    throw std::invalid_argument("the last rate is " + std::to_string(schedule.last) +
                                " of the full one, must be 0 to 1");
  check("the power", schedule.power, 0, 1e3);
  check("gamma", schedule.gamma, 0, 1e3);
  check("the rising part", schedule.rise, 0, 1);
  check("the divisor of the first rate", schedule.first_divisor, 1, 1e30);
  check("the divisor of the last rate", schedule.last_divisor, 1, 1e30);
  if (schedule.anneal != "cos" && schedule.anneal != "linear")
    throw InputError(ErrorKind::UnknownName, unknown_name("annealing", schedule.anneal, {"cos", "linear"}));
  if (schedule.name == "step" && schedule.every < 1)
    throw std::invalid_argument("schedule \"step\" needs the number of steps between two drops; use --lr-step-size");
  if (schedule.patience < 0)
    throw std::invalid_argument(fmt::format("the patience is {}, must be at least 0", schedule.patience));
  check("the threshold", schedule.threshold, 0, 1);
  if (schedule.name == "plateau" && schedule.gamma >= 1)
    throw std::invalid_argument(fmt::format("gamma of schedule \"plateau\" is {:g}, must be below 1", schedule.gamma));
  if (schedule.name == "one-cycle" && schedule.warmup > 0)
    throw std::invalid_argument("schedule \"one-cycle\" begins with its own warm-up; use no other");
  if (has_end(schedule.name) && schedule.steps <= schedule.warmup) {
    throw std::invalid_argument(
        fmt::format("schedule {} over {} steps with a warm-up of {}: the run must be longer than the warm-up",
                    schedule.name, schedule.steps, schedule.warmup));
  }
}

double rate_factor(const RateSchedule& schedule, std::int64_t step) {
  if (step + 1 < schedule.warmup) return static_cast<double>(step + 1) / static_cast<double>(schedule.warmup);
  const std::string& name = schedule.name;
  if (name == "constant" || name == "plateau") return 1;
  if (name == "one-cycle") return one_cycle(schedule, step);
  // The last step of a warm-up has the full rate already.
  const std::int64_t n = std::max<std::int64_t>(step - schedule.warmup, 0);
  if (name == "step") return std::pow(schedule.gamma, static_cast<double>(n / schedule.every));
  if (name == "exponential") return std::pow(schedule.gamma, static_cast<double>(n));
  const double x = std::clamp(static_cast<double>(n) / static_cast<double>(schedule.steps - schedule.warmup), 0.0, 1.0);
  const double above = 1 - schedule.last;
  if (name == "linear") return 1 - above * x;
  if (name == "polynomial") return schedule.last + above * std::pow(1 - x, schedule.power);
  return schedule.last + above * (1 + std::cos(std::numbers::pi * x)) / 2;
}

void observe(const RateSchedule& schedule, Plateau& plateau, double loss) {
  if (loss < plateau.best * (1 - schedule.threshold)) {
    plateau.best = loss;
    plateau.waited = 0;
  } else if (++plateau.waited > schedule.patience) {
    plateau.factor = std::max(plateau.factor * schedule.gamma, schedule.last);
    plateau.waited = 0;
  }
}

}  // namespace stagecraft::stage
