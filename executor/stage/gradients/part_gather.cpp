#include "executor/stage/gradients/part_gather.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_copy.h>

#include <utility>

#include "costmodel/index.h"
#include "executor/channel/collective.h"
#include "executor/stage/stage_program.h"

namespace stagecraft::stage {

PartGather::PartGather(channel::CollectiveCall all, int rank, const std::vector<at::Tensor>& tensors,
                       const std::vector<at::Tensor>& own)
    : all_(std::move(all)) {
  std::vector<std::int64_t> values;
  for (const at::Tensor& tensor : tensors) values.push_back(tensor.numel());
  const std::vector<ValueRange> owned = owned_ranges(values, all_.counts, channel::place_of(rank, all_));
  std::int64_t offset = 0;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    // A backward may use a graph that saved the tensor, and shall not see that it changes.
    const at::Tensor flat = in_memory_order(tensors[i].variable_data());
    const auto add = [&](CopiedValues& copies, std::int64_t first, std::int64_t last) {
      if (first == last) return;
      copies.tensors.push_back(flat.narrow(0, first, last - first));
      copies.gathered.push_back(all_.values.narrow(0, offset + first, last - first));
    };
    const std::int64_t end = owned[i].first + owned[i].count;
    if (own.empty()) {
      add(others_, 0, owned[i].first);
      add(own_, owned[i].first, end);
      add(others_, end, values[i]);
    } else {
      add(others_, 0, values[i]);
      if (owned[i].count > 0) {
        own_.tensors.push_back(own[i].variable_data());
        own_.gathered.push_back(all_.values.narrow(0, offset + owned[i].first, owned[i].count));
      }
    }
    offset += values[i];
  }
}

void PartGather::start(channel::Channel& channel) {
  const at::NoGradGuard no_graph;
  if (!own_.tensors.empty()) at::_foreach_copy_(own_.gathered, own_.tensors);
  running_ = channel.start(all_);
}

void PartGather::finish() {
  const at::NoGradGuard no_graph;
  std::exchange(running_, nullptr)->wait();
  if (!others_.tensors.empty()) at::_foreach_copy_(others_.tensors, others_.gathered);
}

}  // namespace stagecraft::stage
