#include <dlfcn.h>
#include <execinfo.h>
#include <gtest/gtest.h>
#include <link.h>

#include <array>
#include <atomic>
#include <barrier>
#include <cstdlib>
#include <mutex>
#include <new>
#include <set>
#include <string>
#include <string_view>
#include <thread>

#include "costmodel/index.h"
#include "executor/channel/channel_local.h"
#include "executor/run/worker/synchronous_worker.h"
#include "tests/support/models/planned_models.h"

// Counts the allocations of this program's own code in a step. An allocation belongs to the first function up the stack
// that is neither part of the C++ library nor instantiated from it; allocations inside a call into LibTorch belong to
// LibTorch.

namespace {

thread_local bool counting = false;
std::atomic<std::int64_t> own_allocations = 0;
std::mutex mutex;
std::set<std::string> places;  // where counted allocations happened, for messages

bool of_the_library(const Dl_info& info) {
  if (std::string_view(info.dli_fname).find("libstdc++") != std::string_view::npos) return true;
  if (!info.dli_sname) return false;
  const std::string_view name = info.dli_sname;
  return name.starts_with("_ZNSt") || name.starts_with("_ZNKSt") || name.starts_with("_ZSt") ||
         name.starts_with("_ZN9__gnu_cxx");
}

/// Addresses of this program and of the C++ library: only calls from there are examined, so most allocations need no
/// walk up the stack.
struct Places {
  Places() {
    dl_iterate_phdr(
        [](dl_phdr_info* info, std::size_t, void* self) {
          auto& found = static_cast<Places*>(self)->ranges;
          const std::string_view name = info->dlpi_name;
          if (!name.empty() && name.find("libstdc++") == std::string_view::npos) return 0;
          for (int i = 0; i < info->dlpi_phnum; ++i) {
            const auto& part = info->dlpi_phdr[i];
            if (part.p_type != PT_LOAD || !(part.p_flags & PF_X)) continue;
            found.emplace_back(info->dlpi_addr + part.p_vaddr, info->dlpi_addr + part.p_vaddr + part.p_memsz);
          }
          return 0;
        },
        this);
  }
  [[nodiscard]] bool hold(const void* address) const {
    const auto at = reinterpret_cast<std::uintptr_t>(address);
    for (const auto& [begin, end] : ranges) {
      if (at >= begin && at < end) return true;
    }
    return false;
  }
  std::vector<std::pair<std::uintptr_t, std::uintptr_t>> ranges;
};
const Places looked_at;

[[gnu::noinline]] void note() {
  counting = false;  // the code below may allocate
  static const void* const here = [] {
    Dl_info info{};
    dladdr(reinterpret_cast<const void*>(&own_allocations), &info);
    return info.dli_fbase;
  }();
  std::array<void*, 12> frames{};
  const int depth = backtrace(frames.data(), stagecraft::to_int(frames.size()));
  for (int i = 2; i < depth; ++i) {  // skip this function and operator new
    Dl_info info{};
    if (!dladdr(frames[stagecraft::to_index(i)], &info) || of_the_library(info)) continue;
    if (info.dli_fbase == here) {
      ++own_allocations;
      std::string place = info.dli_sname ? info.dli_sname : "in an unnamed namespace";
      for (int k = 2; k < depth; ++k) {
        char text[32];
        std::snprintf(text, sizeof text, " %lx",
                      static_cast<unsigned long>(static_cast<char*>(frames[stagecraft::to_index(k)]) -
                                                 static_cast<char*>(info.dli_fbase)));
        place += text;
      }
      const std::lock_guard lock(mutex);
      places.insert(place);
    }
    break;
  }
  counting = true;
}

}  // namespace

[[gnu::noinline]] void* operator new(std::size_t bytes) {
  if (counting && looked_at.hold(__builtin_return_address(0))) note();
  if (void* const out = std::malloc(bytes ? bytes : 1)) return out;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace stagecraft::run {
namespace {

using stagecraft::testing::cut_plan;
using stagecraft::testing::even_cuts;
using stagecraft::testing::planned_model;
using stagecraft::testing::PlannedModel;

/// Stops counting for its lifetime.
class Pause {
 public:
  Pause() : before_(std::exchange(counting, false)) {}
  ~Pause() { counting = before_; }
  Pause(const Pause&) = delete;
  Pause& operator=(const Pause&) = delete;

 private:
  bool before_;
};

/// The model with its layers' own allocations (each returns a vector) not counted.
model::Model uncounted(model::Model model) {
  for (model::LayerSpec& layer : model.layers) {
    layer.forward = [forward = std::move(layer.forward)](const model::LayerCall& call) {
      const Pause pause;
      return forward(call);
    };
  }
  return model;
}

/// Allocations of all ranks on local channels in the steps after the third.
std::int64_t allocations(const PlannedModel& planned, const Plan& plan, int steps) {
  const model::Model model = uncounted(planned.model);
  const BoundPlan bound_plan(plan);
  const BoundModel bound = bind_model(bound_plan, model);
  const int count = to_int(bound_plan.ranks().size());
  auto channels = channel::make_local_channels(count, std::chrono::milliseconds(60000));
  own_allocations = 0;
  places.clear();
  {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < count; ++rank) {
      threads.emplace_back([&, rank] {
        constexpr int kWarmup = 3;
        SynchronousWorker worker(bound, rank, *channels[to_index(rank)], *planned.data, {.steps = kWarmup + steps});
        for (int step = 0; step < kWarmup + steps; ++step) {
          counting = step >= kWarmup;
          worker.compute(step);
          (void)worker.take_losses(step);
          worker.update_step(step);
        }
        counting = false;
      });
    }
  }
  return own_allocations;
}

std::string all_places() {
  std::string out;
  for (const std::string& place : places) out += place + "\n";
  return out;
}

TEST(Allocations, AreCountedWhereTheyAreOurs) {
  void* frames[4];
  backtrace(frames, 4);  // loads the unwinder
  own_allocations = 0;
  counting = true;
  const std::vector<int> values(100);
  const std::string long_text(100, 'x');
  const at::Tensor theirs = at::Tensor();
  counting = false;
  EXPECT_EQ(own_allocations, 2) << all_places();
}

TEST(Allocations, AreNoneInAStepOnTheLocalChannel) {
  const PlannedModel planned = planned_model("mlp", {{"inputs", "8"}, {"width", "8"}, {"layers", "5"}}, 2);
  const int layers = to_int(planned.model.layers.size());
  for (const char* schedule : {"gpipe", "1f1b", "forward"}) {
    for (const std::vector<int>& replicas : std::vector<std::vector<int>>{{1}, {1, 1}, {2, 1}}) {
      const Plan plan = cut_plan(planned, even_cuts(layers, to_int(replicas.size())), replicas, schedule, 4);
      EXPECT_EQ(allocations(planned, plan, 3), 0) << schedule << " on " << replicas.size() << " stages\n"
                                                  << all_places();
    }
  }
  Plan plan = cut_plan(planned, even_cuts(layers, 2), {2, 1}, "1f1b", 4);
  plan.sharding = StateSharding::Optimizer;
  EXPECT_EQ(allocations(planned, plan, 3), 0) << "with divided state\n" << all_places();
  plan = cut_plan(planned, even_cuts(layers, 4), {1, 1, 1, 1}, "gpipe", 4);
  plan.schedule = "interleaved-1f1b";
  plan.chunks = 2;
  for (int s = 0; s < 4; ++s) plan.stages[to_index(s)].devices = {s % 2};
  EXPECT_EQ(allocations(planned, plan, 3), 0) << "interleaved-1f1b\n" << all_places();
}

}  // namespace
}  // namespace stagecraft::run
