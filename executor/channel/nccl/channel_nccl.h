#pragma once

#include <c10/core/Device.h>

#include <chrono>
#include <memory>

#include "executor/channel/channel.h"
#include "executor/channel/channel_kind.h"
#include "executor/channel/nccl_program.h"
#include "executor/meeting/launch_info.h"

namespace stagecraft::channel {

/// Options for NCCL.
struct NcclOptions {
  static constexpr int kMostCtas = 2;
  int most_ctas = kMostCtas;   ///< thread blocks per message: one that waits occupies as many multiprocessors
  bool deterministic = false;  ///< sum in the order of the members, see make_nccl_channel
};

/// The channel of a run on GPUs: what `program` lists goes over NCCL on `device`, everything else over `control`. Every
/// communicator has a separate stream; nothing is enqueued on the default stream, and no call waits for the
/// GPU. Received tensors are in memory that is reused after the last reference is gone. A thread watches: an operation
/// that does not finish within `deadline` after its predecessor, an NCCL error or another rank's abort ends all
/// communicators, and the next call throws. NCCL chooses the order of sums of more than two members, which is the same
/// in every run on the same machines but may differ between an all-reduce and a reduce-scatter. With `deterministic`
/// the order is that of the other channels: each rank gets the other members' values and sums them. Members' dtypes and
/// counts are not compared. A collective unlike those of `program`'s calls connects its members when it is first
/// called. Collective: creates and tests all communicators, round by round. Throws PeerError naming the communicator
/// that timed out, and DeviceError if CUDA or NCCL fails or this build has no CUDA.
[[nodiscard]] std::unique_ptr<Channel> make_nccl_channel(const meeting::LaunchInfo& launch, const NcclProgram& program,
                                                         std::unique_ptr<Channel> control, c10::Device device,
                                                         std::chrono::milliseconds deadline,
                                                         const NcclOptions& options = {});

/// Lets the ranks of one machine share a GPU: NCCL refuses two ranks on the same device of a host, so each claims to be
/// on a separate host, connected by the loopback interface. For testing: transfers go through the host. Call before the
/// first communicator of the process is created.
void share_gpu(int rank);

/// The entry of the table of channels.
[[nodiscard]] ChannelKind nccl_channel();

}  // namespace stagecraft::channel
