// Writing a kernel trace of a million activities, as in a long capture.

#include <benchmark/benchmark.h>

#include <string>
#include <vector>

#include "profiler/kernels/writers.h"

namespace stagecraft {
namespace {

constexpr int kActivities = 1'000'000;
constexpr int kLayers = 160;

const profiler::AttributedTrace& large() {
  static const profiler::AttributedTrace trace = [] {
    profiler::AttributedTrace out;
    for (int i = 0; i < 300; ++i)
      out.names.push_back("void at::native::vectorized_elementwise_kernel<4, functor_" + std::to_string(i) + ">(int)");
    std::int64_t time = 1'700'000'000'000'000'000;
    for (int i = 0; i < kActivities; ++i) {
      profiler::Attributed a;
      a.launched_ns = time;
      a.activity.begin_ns = time + 4000;
      a.activity.end_ns = time + 9500;
      a.activity.stream = static_cast<std::uint32_t>(7 + i % 3);
      a.activity.name = i % 300;
      a.tag = {i / 8 % kLayers, i % 2000 < 700 ? profiler::Phase::Forward : profiler::Phase::Backward, 0, i / 2000};
      out.activities.push_back(a);
      time += 6000;
    }
    return out;
  }();
  return trace;
}

std::vector<std::string> layer_names() {
  std::vector<std::string> out;
  for (int i = 0; i < kLayers; ++i) out.push_back("encoder.layer" + std::to_string(i));
  return out;
}

template <class Write>
void write(benchmark::State& state, Write writer) {
  std::size_t bytes = 0;
  for (auto _ : state) {
    const std::string text = writer();
    bytes = text.size();
    benchmark::DoNotOptimize(text.data());
  }
  state.counters["bytes_per_activity"] = static_cast<double>(bytes) / kActivities;
  state.SetBytesProcessed(static_cast<std::int64_t>(bytes) * state.iterations());
}

void chrome_trace_of_a_million(benchmark::State& state) {
  const std::vector<std::string> names = layer_names();
  write(state, [&] { return chrome_trace(large(), names, "bench"); });
}
void csv_of_a_million(benchmark::State& state) {
  const std::vector<std::string> names = layer_names();
  write(state, [&] { return profiler::activities_csv(large(), names); });
}

BENCHMARK(chrome_trace_of_a_million)->Unit(benchmark::kMillisecond);
BENCHMARK(csv_of_a_million)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace stagecraft

BENCHMARK_MAIN();
