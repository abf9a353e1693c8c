#pragma once

namespace stagecraft::profiler {

/// Lets operators run on tensors without memory (LibTorch's device "meta") that LibTorch can only run there from
/// Python. They compute shapes, as they are on a processor, and nothing else. For the process; later calls have no
/// effect. Operators that are still missing throw c10::Error.
void register_shape_kernels();

/// Lets autocast act on tensors without memory as it does on those of a processor: operators get copies of their
/// arguments in the type that LibTorch's autocast gives them there. device::AutocastScope of the device "meta" turns it
/// on. An operator that autocast treats in a way of its own throws c10::Error. For the process; later calls have no
/// effect.
void register_shape_autocast();

}  // namespace stagecraft::profiler
