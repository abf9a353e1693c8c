#include "executor/intake/graph/calls/block_scope.h"

#include <c10/core/GradMode.h>

#include <algorithm>
#include <mutex>
#include <optional>

#include "executor/device/autocast.h"

namespace stagecraft::intake {

struct BlockScope::Parts {
  Parts(const GraphBlock& block, c10::DeviceType device) {
    if (!block.autocast) {
      grad.emplace(block.enabled);
    } else if (block.enabled && block.cache.value_or(at::autocast::is_autocast_cache_enabled())) {
      turn = std::unique_lock(turns());
      cached.emplace(device, block.enabled, block.dtype, block.cache);
    } else {
      plain.emplace(device, block);
    }
  }

  static std::recursive_mutex& turns() {
    static std::recursive_mutex all;
    return all;
  }

  /// Autocast without cached casts: these end with the outermost AutocastScope.
  class Plain {
   public:
    Plain(c10::DeviceType device, const GraphBlock& block)
        : device_(device),
          enabled_(at::autocast::is_autocast_enabled(device)),
          type_(at::autocast::get_autocast_dtype(device)),
          cache_(at::autocast::is_autocast_cache_enabled()) {
      at::autocast::set_autocast_enabled(device, block.enabled);
      if (block.dtype) at::autocast::set_autocast_dtype(device, *block.dtype);
      if (block.cache) at::autocast::set_autocast_cache_enabled(*block.cache);
    }
    ~Plain() {
      at::autocast::set_autocast_enabled(device_, enabled_);
      at::autocast::set_autocast_dtype(device_, type_);
      at::autocast::set_autocast_cache_enabled(cache_);
    }
    Plain(const Plain&) = delete;
    Plain& operator=(const Plain&) = delete;

   private:
    c10::DeviceType device_;
    bool enabled_;
    at::ScalarType type_;
    bool cache_;
  };

  std::unique_lock<std::recursive_mutex> turn;
  std::optional<c10::AutoGradMode> grad;
  std::optional<device::AutocastScope> cached;
  std::optional<Plain> plain;
};

BlockScope::BlockScope(const GraphBlock& block, c10::DeviceType device)
    : parts_(std::make_unique<Parts>(block, device)) {}
BlockScope::~BlockScope() = default;

bool keeps_casts(const GraphNode& node) {
  const auto inner = std::ranges::find_if(node.blocks.rbegin(), node.blocks.rend(), &GraphBlock::autocast);
  return inner != node.blocks.rend() && inner->enabled && inner->cache.value_or(true);
}

}  // namespace stagecraft::intake
