#pragma once

#include <vector>

#include "executor/channel/channel.h"
#include "executor/device/machine/processor.h"

namespace stagecraft::channel {

/// Call on all ranks when the measurement has ended on all of them: gathers on rank 0 what their processes used from
/// `before` to `after`. Returns the use of each host on rank 0, see device::processor_use; empty on the others. Throws
/// PeerError as the channel does.
[[nodiscard]] std::vector<ProcessorUse> gather_processor_use(Channel& channel, const device::ProcessorMoment& before,
                                                             const device::ProcessorMoment& after);

}  // namespace stagecraft::channel
