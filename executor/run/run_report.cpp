#include "executor/run/run_report.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <iostream>
#include <optional>
#include <utility>
#include <vector>

#include "costmodel/errors.h"
#include "costmodel/index.h"
#include "costmodel/interchange/tensorboard.h"
#include "costmodel/prediction/predict.h"
#include "costmodel/schedule.h"
#include "costmodel/text/units_text.h"

namespace stagecraft::run {
namespace {

/// A new name that TensorBoard takes for an event file, as TensorFlow's are.
std::string new_file(const std::string& folder, double now) {
  std::array<char, 256> host{};
  if (::gethostname(host.data(), host.size() - 1) != 0) host = {"localhost"};
  for (int number = 0;; ++number) {
    const std::filesystem::path path =
        std::filesystem::path(folder) /
        fmt::format("events.out.tfevents.{:010.0f}.{}.{}.{}", now, host.data(), ::getpid(), number);
    std::error_code error;
    if (!std::filesystem::exists(path, error)) return path.string();
  }
}

}  // namespace

TensorBoardFile::TensorBoardFile(const std::string& folder, std::int64_t resumed, std::function<double()> now)
    : now_(std::move(now)), path_(new_file(folder, now_())) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) throw FormatError(ErrorKind::CannotWrite, folder + ": cannot write: " + error.message());
  file_.open(path_, std::ios::binary);
  write(interchange::tensorboard_header(now_()));
  if (resumed > 0) write(interchange::tensorboard_restart(now_(), resumed));
}

void TensorBoardFile::add(const format::StepMetrics& metrics) {
  std::vector<interchange::TensorBoardScalar> scalars;
  const auto put = [&](const char* tag, std::optional<double> value) {
    if (value) scalars.push_back({tag, *value});
  };
  put("train/loss", metrics.loss);
  put("train/learning_rate", metrics.learning_rate);
  put("train/step_s", metrics.step_time.value);
  put("train/samples_per_s", static_cast<double>(metrics.step_samples) / metrics.step_time.value);
  put("train/epoch", metrics.epoch);
  put("train/gradient_norm", metrics.gradient_norm);
  put("train/loss_scale", metrics.loss_scale);
  if (metrics.validation) {
    put("validation/loss", metrics.validation->loss);
    put("validation/accuracy", format::accuracy(*metrics.validation));
    put("validation/perplexity", metrics.validation->perplexity);
  }
  write(interchange::tensorboard_record(now_(), metrics.step, scalars));
}

void TensorBoardFile::write(const std::string& bytes) {
  errno = 0;
  file_.write(bytes.data(), static_cast<std::streamsize>(bytes.size())).flush();
  if (!file_) throw FormatError(ErrorKind::CannotWrite, path_ + ": cannot write: " + std::strerror(errno));
}

namespace {

[[noreturn]] void fail(const std::string& path) {
  throw FormatError(ErrorKind::CannotWrite, path + ": cannot write: " + std::strerror(errno));
}

/// Whether the file ends inside a line.
bool is_cut_off(int descriptor) {
  struct stat status{};
  char last = 0;
  if (::fstat(descriptor, &status) != 0 || !S_ISREG(status.st_mode) || status.st_size == 0) return false;
  return ::pread(descriptor, &last, 1, status.st_size - 1) == 1 && last != '\n';
}

}  // namespace

MetricsFile::MetricsFile(const std::string& path, bool append) : path_(path) {
  // Readable, to see how it ends; a pipe cannot be both.
  const int flags = O_CREAT | O_CLOEXEC | (append ? O_APPEND : O_TRUNC);
  struct stat status{};
  const bool regular = ::stat(path.c_str(), &status) != 0 || S_ISREG(status.st_mode);
  descriptor_ = ::open(path.c_str(), flags | (regular ? O_RDWR : O_WRONLY), 0644);
  if (descriptor_ < 0) fail(path);
  if (append && is_cut_off(descriptor_)) write("\n");
}

MetricsFile::~MetricsFile() { ::close(descriptor_); }

void MetricsFile::add(const format::StepMetrics& metrics) { write(format::metrics_line(metrics)); }

void MetricsFile::write(const std::string& text) const {
  const char* at = text.data();
  for (std::size_t left = text.size(); left > 0;) {
    const ssize_t n = ::write(descriptor_, at, left);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail(path_);
    at += n;
    left -= to_index(n);
  }
}

std::string speed_text(std::int64_t samples, Seconds measured, std::optional<Seconds> predicted,
                       const SampleWork& work) {
  const double rate = static_cast<double>(samples) / measured.value;
  std::string out = fmt::format("{:.{}f} samples/s, ", rate, rate < 100 ? 1 : 0);
  if (const auto tokens = work_rates(work, rate).tokens_per_s) out += fmt::format("{:.0f} tokens/s, ", *tokens);
  out += format_seconds(measured) + " per step";
  if (predicted && predicted->value > 0) {
    out += fmt::format(" (predicted {}, {:+.0f} %)", format_seconds(*predicted),
                       100 * (measured.value / predicted->value - 1));
  }
  return out;
}

Seconds StepReporter::MeanTime::take() {
  const Seconds out = total / static_cast<double>(std::max<std::int64_t>(steps, 1));
  *this = {};
  return out;
}

StepReporter::StepReporter(const Plan& plan, const ReportOptions& options)
    : samples_(plan.microbatch_samples.value_or(0) * plan.microbatches),
      work_(plan.sample_work),
      predicted_(step_in_run(plan)),
      options_(options) {}

std::string StepReporter::text(const Progress& progress, Seconds step_time) const {
  std::string out = fmt::format("step {}/{} ", progress.step + 1, progress.steps);
  if (options_.epoch_samples) {
    out += fmt::format("epoch {:.2f} ", static_cast<double>((progress.step + 1) * samples_) /
                                            static_cast<double>(*options_.epoch_samples));
  }
  out += fmt::format("loss {:.4f} {}", progress.loss, speed_text(samples_, step_time, predicted_, work_));
  if (options_.rate && progress.learning_rate) out += fmt::format(", learning rate {:.4g}", *progress.learning_rate);
  if (progress.gradient_norm) out += fmt::format(", gradient norm {:.4g}", *progress.gradient_norm);
  if (progress.loss_scale) out += fmt::format(", loss scale {:g}", *progress.loss_scale);
  if (progress.validation) {
    out += fmt::format(", validation loss {:.4f}", progress.validation->loss);
    if (const auto share = format::accuracy(*progress.validation)) out += fmt::format(" accuracy {:.4f}", *share);
    if (progress.validation->perplexity) out += fmt::format(" perplexity {:.4g}", *progress.validation->perplexity);
  }
  const std::int64_t left = progress.steps - progress.step - 1;
  if (left > 0 && all_.steps > 0) {
    const double mean = all_.total.value / static_cast<double>(all_.steps);
    out += fmt::format(", {} left", duration_text(Seconds(mean * static_cast<double>(left))));
  }
  return out;
}

bool StepReporter::is_reported(const Progress& progress) const {
  constexpr Seconds kSilence{10};
  const std::int64_t done = progress.step + 1;
  if (steps_ == 1 || done == progress.steps || progress.validation) return true;
  if (options_.every > 0) return done % options_.every == 0;
  return done % std::max<std::int64_t>(1, progress.steps / 10) == 0 || reported_.total >= kSilence;
}

void StepReporter::operator()(const Progress& progress) {
  constexpr std::int64_t kWarmUp = 2;
  ++steps_;
  for (MeanTime* const mean : {&reported_, &written_, &all_}) {
    if (mean == &all_ && steps_ <= kWarmUp) continue;
    mean->total += progress.step_time;
    ++mean->steps;
  }
  const std::int64_t done = progress.step + 1;
  if (options_.every == 0 || done % options_.every == 0 || done == progress.steps || progress.validation)
    write(progress);
  line_.show(text(progress, progress.step_time));
  if (!is_reported(progress)) return;
  const Seconds mean = reported_.take();
  // On a terminal, lines stay only if they were asked for.
  if (line_.visible() && options_.every == 0 && !progress.validation) return;
  line_.clear();
  std::cerr << text(progress, mean) + "\n";
}

void StepReporter::write(const Progress& progress) {
  if (options_.metrics.empty() && options_.tensorboard.empty()) return;
  const std::int64_t done = progress.step + 1;
  // Only now, so that a run that never begins leaves an older file as it is.
  if (!metrics_ && !options_.metrics.empty()) metrics_.emplace(options_.metrics, options_.append);
  if (!tensorboard_ && !options_.tensorboard.empty()) {
    tensorboard_.emplace(options_.tensorboard, done - steps_, [] {
      return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
    });
  }
  format::StepMetrics line{.step = done, .loss = progress.loss, .step_time = written_.take(), .step_samples = samples_};
  if (options_.epoch_samples)
    line.epoch = static_cast<double>(done * samples_) / static_cast<double>(*options_.epoch_samples);
  line.learning_rate = progress.learning_rate;
  line.gradient_norm = progress.gradient_norm;
  line.loss_scale = progress.loss_scale;
  line.validation = progress.validation;
  if (metrics_) metrics_->add(line);
  if (tensorboard_) tensorboard_->add(line);
}

std::string closing_text(const Measurement& measurement, std::optional<Seconds> predicted, const SampleWork& work) {
  const std::int64_t samples = measurement.microbatch_samples.value_or(0) * measurement.microbatches;
  const Seconds step = step_time(measurement.timeline, warm_up_steps(measurement.timeline));
  std::string out =
      fmt::format("loss {:.4f} to {:.4f} in {} steps; {}", measurement.losses.front(), measurement.losses.back(),
                  measurement.losses.size(), speed_text(samples, step, predicted, work));
  WorkRates rates = work_rates(work, static_cast<double>(samples) / step.value);
  rates.tokens_per_s.reset();  // in the speed
  if (const std::string text = work_rates_text(rates, measurement.timeline.ranks); !text.empty()) out += "\n" + text;
  return out;
}

std::string evaluation_text(const Evaluation& evaluation, std::int64_t microbatch_samples,
                            const std::optional<WholePass>& pass) {
  const std::int64_t samples = evaluation.microbatches * microbatch_samples;
  std::string out = fmt::format("loss {:.6g} over {}", evaluation.loss, samples);
  if (!pass) return out + " samples";
  out += fmt::format(" of {} samples", pass->microbatches * microbatch_samples + pass->samples_left);
  if (evaluation.microbatches == pass->microbatches && pass->samples_left > 0)
    out += fmt::format("; {} left over, too few for a microbatch of {}", pass->samples_left, microbatch_samples);
  return out;
}

std::string roles_text(const BoundPlan& plan, const std::vector<std::string>& hosts) {
  std::string out;
  const std::vector<RankRole>& roles = plan.ranks();
  const auto lists = plan.action_lists();
  for (std::size_t rank = 0; rank < roles.size(); ++rank) {
    const int s = roles[rank].stages.front();
    const auto& layers = plan.plan().stages[to_index(s)].layers;
    const std::string host = hosts.empty() ? "" : fmt::format("host {}, ", hosts[rank]);
    out += fmt::format("rank {}: {}device {}, stage {}, replica {}, {} layers {} to {}, {} actions per step\n", rank,
                       host, roles[rank].device, s, roles[rank].replica, layers.size(), layers.front(), layers.back(),
                       lists[rank].size());
  }
  return out;
}

}  // namespace stagecraft::run
