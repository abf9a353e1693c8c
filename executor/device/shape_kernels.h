#pragma once

namespace stagecraft::device {

/// Lets operators run on tensors without memory (LibTorch's device "meta") that LibTorch can only run there from
/// Python. They compute shapes, as they are on a processor, and nothing else. For the process; later calls have no
/// effect. Operators that are still missing throw c10::Error.
void register_shape_kernels();

}  // namespace stagecraft::device
