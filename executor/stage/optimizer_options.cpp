#include "executor/stage/optimizer_options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <regex>
#include <set>
#include <sstream>
#include <stdexcept>

#include "costmodel/errors.h"
#include "costmodel/text/number.h"

namespace stagecraft::stage {
namespace {

std::regex compiled(const std::string& pattern) {
  try {
    return std::regex(pattern, std::regex::ECMAScript | std::regex::optimize);
  } catch (const std::regex_error& e) {
    throw std::invalid_argument(fmt::format("\"{}\" is not a regular expression: {}", pattern, e.what()));
  }
}

double setting_value(const std::string& group, const std::string& key, const std::string& text) {
  const std::optional<double> value = number_in<double>(text);
  if (!value || *value < 0 || *value > 1e6)
    throw std::invalid_argument(
        fmt::format("group \"{}\": {} is \"{}\", must be a number from 0 to 1e6", group, key, text));
  return *value;
}

}  // namespace

ParameterGroup parse_group(const std::string& text) {
  const std::size_t colon = text.rfind(':');
  if (colon == std::string::npos || colon == 0 || colon + 1 == text.size()) {
    throw std::invalid_argument(
        fmt::format("group \"{}\": expected PATTERN:SETTING=VALUE, such as \"bias|norm:weight-decay=0\"", text));
  }
  ParameterGroup out{.pattern = text.substr(0, colon)};
  (void)compiled(out.pattern);
  std::set<std::string> seen;
  std::istringstream settings(text.substr(colon + 1));
  for (std::string setting; std::getline(settings, setting, ',');) {
    const std::size_t equals = std::min(setting.find('='), setting.size());
    std::string key = setting.substr(0, equals);
    std::ranges::replace(key, '_', '-');
    if (key == "lr") key = "learning-rate";
    if (key == "lr-factor") key = "learning-rate-factor";
    const std::vector<std::string> known{"weight-decay", "learning-rate", "learning-rate-factor"};
    if (std::ranges::find(known, key) == known.end())
      throw InputError(ErrorKind::UnknownName,
                       fmt::format("group \"{}\": {}", text, unknown_name("setting", key, known)));
    if (!seen.insert(key).second) throw std::invalid_argument(fmt::format("group \"{}\": {} is set twice", text, key));
    const double value = setting_value(text, key, setting.substr(std::min(equals + 1, setting.size())));
    if (key == "weight-decay") out.weight_decay = value;
    if (key == "learning-rate") out.learning_rate = value;
    if (key == "learning-rate-factor") out.rate_factor = value;
  }
  return out;
}

std::string group_text(const ParameterGroup& group) {
  std::vector<std::string> settings;
  if (group.weight_decay) settings.push_back(fmt::format("weight-decay={}", *group.weight_decay));
  if (group.learning_rate) settings.push_back(fmt::format("learning-rate={}", *group.learning_rate));
  if (group.rate_factor != 1) settings.push_back(fmt::format("learning-rate-factor={}", group.rate_factor));
  return fmt::format("{}:{}", group.pattern, fmt::join(settings, ","));
}

std::vector<std::size_t> groups_of(const std::vector<ParameterGroup>& groups, const std::vector<std::string>& names) {
  std::vector<std::regex> patterns;
  for (const ParameterGroup& group : groups) patterns.push_back(compiled(group.pattern));
  std::vector<std::size_t> out;
  for (const std::string& name : names) {
    const auto found =
        std::ranges::find_if(patterns, [&](const std::regex& pattern) { return std::regex_search(name, pattern); });
    out.push_back(static_cast<std::size_t>(found - patterns.begin()));
  }
  return out;
}

void check_groups(const std::vector<ParameterGroup>& groups, const std::vector<std::string>& names) {
  const std::vector<std::size_t> used = groups_of(groups, names);
  for (std::size_t g = 0; g < groups.size(); ++g) {
    if (std::ranges::find(used, g) != used.end()) continue;
    const std::string& pattern = groups[g].pattern;
    const std::regex compiled_pattern = compiled(pattern);
    const auto matches = [&](const std::string& name) { return std::regex_search(name, compiled_pattern); };
    if (std::ranges::any_of(names, matches)) {
      throw std::invalid_argument(
          fmt::format("group \"{}\" has no parameters: earlier groups have all that match", pattern));
    }
    constexpr std::size_t kMost = 40;
    const std::set<std::string> known(names.begin(), names.end());
    std::vector<std::string> listed(known.begin(), known.end());
    const std::size_t more = listed.size() > kMost ? listed.size() - kMost : 0;
    listed.resize(listed.size() - more);
    throw InputError(ErrorKind::UnknownName,
                     fmt::format("group \"{}\" matches no parameter; the model has {}{}", pattern,
                                 fmt::join(listed, ", "), more > 0 ? fmt::format(" and {} more", more) : ""));
  }
}

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

namespace {

using Names = std::vector<std::string>;

bool is_one_of(const std::string& name, const Names& names) { return std::ranges::find(names, name) != names.end(); }

/// A setting: whether it has another value than its default, and who has it.
struct Setting {
  const char* name;
  bool set;
  Names optimizers;
};

std::vector<Setting> settings(const OptimizerOptions& o) {
  static const OptimizerOptions usual;
  const Names with_moments{"adam", "adamw", "adamax", "nadam", "radam", "lion"};
  return {
      {"momentum", o.momentum != usual.momentum, {"sgd", "rmsprop"}},
      {"beta1", o.beta1 != usual.beta1, with_moments},
      {"beta2", o.beta2.has_value(), with_moments},
      {"epsilon",
       o.epsilon.has_value(),
       {"adam", "adamw", "adamax", "nadam", "radam", "adagrad", "adadelta", "rmsprop"}},
      {"dampening", o.dampening != usual.dampening, {"sgd"}},
      {"Nesterov momentum", o.nesterov, {"sgd"}},
      {"amsgrad", o.amsgrad, {"adam", "adamw"}},
      {"alpha", o.alpha != usual.alpha, {"rmsprop"}},
      {"centered form", o.centered, {"rmsprop"}},
      {"rho", o.rho != usual.rho, {"adadelta"}},
      {"learning rate decay", o.learning_rate_decay != usual.learning_rate_decay, {"adagrad"}},
      {"initial accumulator", o.initial_accumulator != usual.initial_accumulator, {"adagrad"}},
      {"momentum decay", o.momentum_decay != usual.momentum_decay, {"nadam"}},
      {"decoupled weight decay", o.decoupled_weight_decay, {"nadam", "radam"}},
  };
}

}  // namespace

const std::vector<std::string>& optimizer_names() {
  static const std::vector<std::string> names{"sgd",   "adam",    "adamw",    "adamax",  "nadam",
                                              "radam", "adagrad", "adadelta", "rmsprop", "lion"};
  return names;
}

std::string unknown_optimizer_text(const std::string& name) {
  if (is_one_of(name, optimizer_names())) return "";
  std::string lower = name;
  std::ranges::transform(lower, lower.begin(), [](char c) { return c >= 'A' && c <= 'Z' ? char(c - 'A' + 'a') : c; });
  std::string instead;
  // Both need whole matrices at once: Adafactor sums of rows and columns, Muon products.
  if (lower == "adafactor")
    instead = "; for less memory than adam, use lion or sgd with momentum, which keep one value per parameter";
  if (lower == "muon")
    instead = "; use adamw, with the learning rate and weight decay of Muon's adjust_lr_fn=\"match_rms_adamw\"";
  return unknown_name("optimizer", name, optimizer_names()) + instead;
}

void validate(const OptimizerOptions& options) {
  if (const std::string why = unknown_optimizer_text(options.name); !why.empty())
    throw InputError(ErrorKind::UnknownName, why);
  const auto check = [](const char* what, double value, double low, double high) {
    if (!(value >= low && value <= high)) {
      throw std::invalid_argument(std::string(what) + " is " + std::to_string(value) + ", must be from " +
                                  std::to_string(low) + " to " + std::to_string(high));
    }
  };
  check("the learning rate", options.learning_rate, 0, 1e6);
  check("the momentum", options.momentum, 0, 1);
  check("the weight decay", options.weight_decay, 0, 1e6);
  check("the largest gradient norm", options.clip_norm, 0, 1e30);
  check("the dampening", options.dampening, 0, 1);
  check("epsilon", epsilon_of(options), 0, 1e6);
  check("alpha", options.alpha, 0, 1);
  check("rho", options.rho, 0, 1);
  check("the learning rate decay", options.learning_rate_decay, 0, 1e6);
  check("the initial accumulator", options.initial_accumulator, 0, 1e30);
  check("the momentum decay", options.momentum_decay, 0, 1e6);
  for (const auto& [what, value] : {std::pair("beta1", options.beta1), std::pair("beta2", beta2_of(options)),
                                    std::pair("the decay of moving averages", options.ema_decay)}) {
    if (!(value >= 0 && value < 1))
      throw std::invalid_argument(fmt::format("{} is {:g}, must be at least 0 and below 1", what, value));
  }
  validate(options.rate);
  for (const Setting& setting : settings(options)) {
    if (setting.set && !is_one_of(options.name, setting.optimizers)) {
      throw std::invalid_argument(fmt::format("optimizer \"{}\" has no {}; use {}", options.name, setting.name,
                                              fmt::join(setting.optimizers, " or ")));
    }
  }
  if (options.nesterov && (options.momentum == 0 || options.dampening != 0))
    throw std::invalid_argument("Nesterov momentum needs a momentum, and no dampening");
}

double beta2_of(const OptimizerOptions& options) {
  return options.beta2.value_or(options.name == "lion" ? 0.99 : 0.999);
}

double epsilon_of(const OptimizerOptions& options) {
  return options.epsilon.value_or(options.name == "adagrad" ? 1e-10 : options.name == "adadelta" ? 1e-6 : 1e-8);
}

std::map<std::string, std::string> further_settings(const OptimizerOptions& options) {
  static const OptimizerOptions usual;
  std::map<std::string, std::string> out;
  const auto flag = [&](const char* name, bool value) {
    if (value) out[name] = "true";
  };
  const auto number = [&](const char* name, double value, double default_value) {
    if (value != default_value) out[name] = fmt::format("{}", value);
  };
  flag("nesterov", options.nesterov);
  flag("amsgrad", options.amsgrad);
  flag("centered", options.centered);
  flag("decoupled-weight-decay", options.decoupled_weight_decay);
  number("dampening", options.dampening, usual.dampening);
  number("alpha", options.alpha, usual.alpha);
  number("rho", options.rho, usual.rho);
  number("lr-decay", options.learning_rate_decay, usual.learning_rate_decay);
  number("initial-accumulator-value", options.initial_accumulator, usual.initial_accumulator);
  number("momentum-decay", options.momentum_decay, usual.momentum_decay);
  number("ema-decay", options.ema_decay, usual.ema_decay);
  const auto type = [&](const char* name, StateType kept) {
    if (kept != StateType::Float32) out[name] = to_string(kept);
  };
  type("parameter-dtype", options.types.parameters);
  type("gradient-dtype", options.types.gradients);
  type("moment-dtype", options.types.moments);
  if (!options.groups.empty()) {
    std::vector<std::string> groups;
    for (const ParameterGroup& group : options.groups) groups.push_back(group_text(group));
    out["group"] = fmt::format("{}", fmt::join(groups, " "));
  }
  return out;
}

}  // namespace stagecraft::stage
