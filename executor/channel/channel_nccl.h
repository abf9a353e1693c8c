#pragma once

#include <c10/core/Device.h>

#include <chrono>
#include <memory>

#include "executor/channel/channel.h"
#include "executor/channel/nccl_program.h"
#include "executor/meeting/launch_info.h"

namespace stagecraft {

/// How a run uses NCCL.
struct NcclOptions {
  int most_ctas = 2;           ///< thread blocks of a transfer: one that waits holds as many multiprocessors
  bool deterministic = false;  ///< all-reduces add up in the order of the members, see make_nccl_channel
};

/// The channel of a run on GPUs: what `program` names goes over NCCL, on `device`, everything else over `control`.
/// Every communicator has a separate stream; nothing is enqueued on the default stream, and no call waits for the
/// GPU. Received tensors lie in memory that is used again once the last reference has gone. A thread watches: an
/// operation that stays unfinished longer than `deadline` after its predecessor, an error of NCCL, or another rank's
/// abort ends all communicators, and the next call tells. Sums of more than two members are in an order that NCCL
/// chooses, the same in every run on the same machines; with `deterministic` they are those of the other channels, for
/// which each rank gathers all members' values and adds them.
/// Collective: creates and tries all communicators, round by round. Throws PeerError naming the communicator that
/// was not there in time; DeviceError as CUDA and NCCL refuse; where stagecraft was built without CUDA, one that says
/// so.
[[nodiscard]] std::unique_ptr<Channel> make_nccl_channel(const LaunchInfo& launch, NcclProgram program,
                                                         std::unique_ptr<Channel> control, c10::Device device,
                                                         std::chrono::milliseconds deadline,
                                                         const NcclOptions& options = {});

/// Lets the ranks of one machine share GPU: NCCL refuses two ranks on one device of one host, so each pretends to be on
/// a host of its own, joined by the loopback interface. For checks: transfers take the detour through the host. To be
/// called before the first communicator of the process.
void share_gpu(int rank);

}  // namespace stagecraft
