#include "executor/device/machine/yardstick.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/mm.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "costmodel/index.h"
#include "costmodel/timeline.h"
#include "executor/device/device.h"
#include "executor/device/machine/processor.h"

namespace stagecraft::device {
namespace {

/// Of 5 runs, the median of a copy varies by 7 % (median absolute deviation) while the caches fill; of 15, by 1.3 %.
constexpr int kRuns = 15;
constexpr double kEvery = 4;         ///< seconds between readings in pauses
constexpr double kLeastRatio = 200;  ///< of the time between readings to the time of one: at most 0.5 %

/// An idle GPU lowers its clocks; it takes about this long to raise them again.
constexpr double kWakeSeconds = 0.1;

struct Sizes {
  std::int64_t rows;  ///< of the square matrices
  at::ScalarType dtype;
  std::int64_t copied_mib;
  int repeats;  ///< in a run, so that it is long compared with its start
};

/// On a GPU, bfloat16 has no TF32.
Sizes sizes_on(c10::Device device) {
  return device.is_cpu() ? Sizes{192, at::kFloat, 4, 1} : Sizes{2048, at::kBFloat16, 64, 20};
}

double steady_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double median_run(const FixedWork& work, const std::function<double()>& now) {
  work.run();
  std::vector<double> runs;
  for (int i = 0; i < kRuns; ++i) {
    const double start = now();
    work.run();
    runs.push_back(now() - start);
  }
  return median(std::move(runs));
}

}  // namespace

std::vector<FixedWork> fixed_works(c10::Device device) {
  const Sizes sizes = sizes_on(device);
  const std::string rows = std::to_string(sizes.rows);
  const auto options = at::TensorOptions().dtype(sizes.dtype).device(device);
  const at::Tensor left = at::full({sizes.rows, sizes.rows}, 0.5, options);
  const at::Tensor right = at::full({sizes.rows, sizes.rows}, 0.25, options);
  const at::Tensor product = at::empty({sizes.rows, sizes.rows}, options);
  const at::Tensor source = at::full({sizes.copied_mib << 18}, 1.0, options.dtype(at::kFloat));
  const at::Tensor target = at::empty(source.sizes(), source.options());
  const auto times = [&](const std::string& of_one) {
    return sizes.repeats == 1 ? of_one : std::to_string(sizes.repeats) + " times: " + of_one;
  };
  const auto multiply = [=] {
    at::Tensor out = product;
    for (int i = 0; i < sizes.repeats; ++i) at::mm_out(out, left, right);
    synchronize(device);
  };
  const auto copy = [=] {
    for (int i = 0; i < sizes.repeats; ++i) target.copy_(source);
    synchronize(device);
  };
  if (!device.is_cpu()) {
    for (const double start = steady_now(); steady_now() - start < kWakeSeconds;) multiply();
  }
  return {{times("matrix product of " + rows + " x " + rows + (device.is_cpu() ? " float32" : " bfloat16")), multiply},
          {times("copy of " + std::to_string(sizes.copied_mib) + " MiB"), copy}};
}

YardstickMeter::YardstickMeter(std::string device, int threads, MakeWorks make, std::function<double()> now)
    : device_(std::move(device)), threads_(threads), make_(std::move(make)), now_(std::move(now)) {}

void YardstickMeter::read() {
  const double start = now_();
  const std::vector<FixedWork> works = make_();
  names_.resize(works.size());
  readings_.resize(works.size());
  for (std::size_t i = 0; i < works.size(); ++i) {
    names_[i] = works[i].name;
    readings_[i].push_back(median_run(works[i], now_));
  }
  last_end_ = now_();
  last_took_ = last_end_ - start;
}

void YardstickMeter::read_if_due() {
  if (now_() - last_end_ >= std::max(kEvery, kLeastRatio * last_took_)) read();
}

Yardstick YardstickMeter::result() const {
  Yardstick out{device_, threads_, {}};
  for (std::size_t i = 0; i < readings_.size(); ++i) {
    const std::vector<double>& readings = readings_[i];
    const auto [fastest, slowest] = std::ranges::minmax(readings);
    out.works.push_back({names_[i], Seconds(readings.front()), Seconds(readings.back()), Seconds(median(readings)),
                         Seconds(fastest), Seconds(slowest), to_int(readings.size())});
  }
  return out;
}

YardstickMeter device_yardstick(c10::Device device, int threads) {
  const std::string name = device.is_cpu() ? processor_name() : gpu_properties(device.index()).name;
  return {name, threads, [device] { return fixed_works(device); }, steady_now};
}

}  // namespace stagecraft::device
