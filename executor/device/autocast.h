#pragma once

#include <ATen/autocast_mode.h>
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <optional>

namespace stagecraft::device {

/// Sets LibTorch's autocast on the calling thread, as torch.autocast does, and restores it on destruction. An absent
/// `dtype` or `cache` leaves that setting unchanged.
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
    // Cast weights are kept until the outermost one ends.
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

}  // namespace stagecraft::device
