#include <benchmark/benchmark.h>
#include <cupti.h>

#include <cstring>

#include "profiler/kernels/attribution.h"
#include "profiler/kernels/decode_cupti.h"

namespace stagecraft {
namespace {

/// CUPTI buffers of 8 MiB with `records` records: for each kernel a runtime call, a driver call and an external id, as
/// in a step of a network.
std::vector<std::vector<std::uint64_t>> buffers(std::int64_t records) {
  constexpr std::size_t kWords = (std::size_t{8} << 20) / 8;
  std::vector<std::vector<std::uint64_t>> out(1);
  const auto add = [&](const auto& record) {
    if (out.back().size() + (sizeof record + 7) / 8 > kWords) out.emplace_back();
    const std::size_t at = out.back().size();
    out.back().resize(at + (sizeof record + 7) / 8);
    std::memcpy(out.back().data() + at, &record, sizeof record);
  };
  static const char* const names[] = {"gemm", "relu", "norm", "softmax"};
  std::uint64_t time = 1'000'000;
  for (std::uint32_t i = 1; static_cast<std::int64_t>(i) * 4 <= records; ++i) {
    CUpti_ActivityExternalCorrelation external{};
    external.kind = CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION;
    external.externalKind = CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0;
    external.externalId = profiler::encode({static_cast<std::int64_t>(i % 300), profiler::Phase::Forward});
    external.correlationId = i;
    add(external);
    for (const auto kind : {CUPTI_ACTIVITY_KIND_DRIVER, CUPTI_ACTIVITY_KIND_RUNTIME}) {
      CUpti_ActivityAPI call{};
      call.kind = kind;
      call.start = time;
      call.end = time + 900;
      call.threadId = 1;
      call.correlationId = i;
      add(call);
    }
    CUpti_ActivityKernel10 kernel{};
    kernel.kind = CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL;
    kernel.start = time + 2000;
    kernel.end = time + 4000;
    kernel.correlationId = i;
    kernel.streamId = 7;
    kernel.name = names[i % 4];
    add(kernel);
    time += 2100;
  }
  return out;
}

std::vector<std::span<const std::byte>> views(const std::vector<std::vector<std::uint64_t>>& all) {
  std::vector<std::span<const std::byte>> out;
  for (const auto& words : all) out.push_back(std::as_bytes(std::span(words)));
  return out;
}

void decode(benchmark::State& state) {
  const auto all = buffers(state.range(0));
  for (auto _ : state) benchmark::DoNotOptimize(profiler::decode_cupti(views(all)));
  state.SetItemsProcessed(state.iterations() * state.range(0));
}
BENCHMARK(decode)->Arg(1'000'000)->Unit(benchmark::kMillisecond);

void decode_attribute_and_share(benchmark::State& state) {
  const auto all = buffers(state.range(0));
  for (auto _ : state) {
    const profiler::AttributedTrace trace = profiler::attribute(profiler::decode_cupti(views(all)));
    if (!profiler::distrust(trace.quality).empty())
      state.SkipWithError(profiler::distrust(trace.quality).front().c_str());
    benchmark::DoNotOptimize(profiler::shares(trace.activities, trace.activities.front().activity.begin_ns,
                                              trace.activities.back().activity.end_ns));
  }
  state.SetItemsProcessed(state.iterations() * state.range(0));
}
BENCHMARK(decode_attribute_and_share)->Arg(1'000'000)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace stagecraft

BENCHMARK_MAIN();
