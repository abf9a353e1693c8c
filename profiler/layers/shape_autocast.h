#pragma once

namespace stagecraft::profiler {

/// Lets autocast act on tensors without memory as it does on those of a processor: operators get copies of their
/// arguments in the type that LibTorch's autocast gives them there. device::AutocastScope of the device "meta" turns it
/// on. An operator that autocast treats in a way of its own throws c10::Error. For the process; later calls have no
/// effect.
void register_shape_autocast();

}  // namespace stagecraft::profiler
