#include "executor/run/tensorboard_file.h"

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <optional>
#include <utility>
#include <vector>

#include "costmodel/errors.h"
#include "costmodel/interchange/traces/tensorboard.h"

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

}  // namespace stagecraft::run
