#pragma once

#include <ATen/autocast_mode.h>
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <optional>

namespace stagecraft {

/// LibTorch's autocast on the calling thread while it lives, as torch.autocast sets it, and as it was before
/// afterwards. What `dtype` and `cache` do not say stays as it is.
class AutocastScope {
 public:
  AutocastScope(c10::DeviceType device, bool enabled, std::optional<c10::ScalarType> dtype,
                std::optional<bool> cache = {})
      : device_(device),
        enabled_(at::autocast::is_autocast_enabled(device)),
        type_(at::autocast::get_autocast_dtype(device)),
        cache_(at::autocast::is_autocast_cache_enabled()) {
    at::autocast::set_autocast_enabled(device, enabled);
    if (dtype) at::autocast::set_autocast_dtype(device, *dtype);
    if (cache) at::autocast::set_autocast_cache_enabled(*cache);
    at::autocast::increment_nesting();
  }
  ~AutocastScope() {
    // Weights that were cast are kept until the outermost one ends.
    if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(device_, enabled_);
    at::autocast::set_autocast_dtype(device_, type_);
    at::autocast::set_autocast_cache_enabled(cache_);
  }
  AutocastScope(const AutocastScope&) = delete;
  AutocastScope& operator=(const AutocastScope&) = delete;

 private:
  c10::DeviceType device_;
  bool enabled_;
  at::ScalarType type_;
  bool cache_;
};

}  // namespace stagecraft
