#pragma once

#include <ATen/autocast_mode.h>
#include <c10/core/Device.h>
#include <c10/core/DispatchKey.h>
#include <c10/core/ScalarType.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <optional>

namespace stagecraft::device {

/// Sets LibTorch's autocast on the calling thread, as torch.autocast does, and restores it on destruction. An absent
/// `dtype` or `cache` leaves that setting unchanged. LibTorch knows no autocast for the device "meta": the profiler
/// makes one under the name of PrivateUse1.
class AutocastScope {
 public:
  AutocastScope(c10::DeviceType device, bool enabled, std::optional<c10::ScalarType> dtype,
                std::optional<bool> cache = {})
      : device_(device == c10::kMeta ? c10::kPrivateUse1 : device),
        enabled_(at::autocast::is_autocast_enabled(device_)),
        type_(at::autocast::get_autocast_dtype(device_)),
        cache_(at::autocast::is_autocast_cache_enabled()) {
    enable(enabled);
    if (dtype) at::autocast::set_autocast_dtype(device_, *dtype);
    if (cache) at::autocast::set_autocast_cache_enabled(*cache);
    at::autocast::increment_nesting();
  }
  ~AutocastScope() {
    // Cast weights are kept until the outermost one ends.
    if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
    enable(enabled_);
    at::autocast::set_autocast_dtype(device_, type_);
    at::autocast::set_autocast_cache_enabled(cache_);
  }
  AutocastScope(const AutocastScope&) = delete;
  AutocastScope& operator=(const AutocastScope&) = delete;

 private:
  void enable(bool enabled) const {
    at::autocast::set_autocast_enabled(device_, enabled);
    // Tensors bring the keys of their own device along, not this one.
    if (device_ == c10::kPrivateUse1)
      c10::impl::tls_set_dispatch_key_included(c10::DispatchKey::AutocastPrivateUse1, enabled);
  }

  c10::DeviceType device_;
  bool enabled_;
  at::ScalarType type_;
  bool cache_;
};

}  // namespace stagecraft::device
