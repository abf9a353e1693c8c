#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "costmodel/units.h"

namespace stagecraft::device {

/// "cpu", "cuda".
[[nodiscard]] const std::vector<std::string>& device_names();

/// Asks CUDA for as many hardware queues as it has, CUDA_DEVICE_MAX_CONNECTIONS=32, unless the user has set that. Call
/// before the first call of CUDA, and before the process has threads. Every edge has its own stream; with the default
/// of 8 queues, work behind a transfer that waits for its peer would wait too, although on another stream.
void ask_for_queues();

/// What a program that will open `name` calls before anything computes and before it has threads: LibTorch decides once
/// in a process whether it has CUDA, at the first operator that asks, which convolutions and backwards on a CPU do too.
/// Loads LibTorch's CUDA libraries, and sets CUDA_DEVICE_MAX_CONNECTIONS to 32 unless the user has set it; makes no
/// CUDA context. No effect for "cpu", and where there is no GPU or no such library: open_device says so.
void prepare_device(const std::string& name);

/// The device `name`: "cpu", "cuda" (the first one) or "cuda:N". Prepares it if that was not done. Throws
/// std::invalid_argument for another name (listing the known ones), DeviceError, with reason and advice, for a GPU that
/// does not exist, or that LibTorch cannot use because something was computed before prepare_device. On a GPU, sets
/// allow_tf32 for the process.
[[nodiscard]] c10::Device open_device(const std::string& name, bool allow_tf32 = false);

/// Whether matrix products, convolutions and recurrent layers of float32 may round their inputs to TF32 (10 bits after
/// the point) on GPUs. LibTorch starts with convolutions and recurrent layers allowed. No effect on a CPU.
void allow_tf32(bool allowed);
/// Whether any of them may.
[[nodiscard]] bool tf32_allowed();

/// Loads LibTorch's CUDA libraries, with or without a GPU; they stay loaded. Returns why LibTorch cannot use them;
/// absent if it can.
[[nodiscard]] std::optional<std::string> load_cuda_libraries();

/// Why this process cannot use a GPU, and what would help; absent if it can.
[[nodiscard]] std::optional<std::string> no_gpu_reason();

/// How many GPUs this process can use.
[[nodiscard]] int gpu_count();

/// Facts about one GPU of this machine.
struct GpuProperties {
  std::string name;
  std::string uuid;
  std::string driver;  ///< the newest CUDA version that the driver supports, "13.0"
  Bytes memory;
  Bytes l2_bytes;
  friend bool operator==(const GpuProperties&, const GpuProperties&) = default;
};
/// Throws DeviceError if there is no GPU `index`.
[[nodiscard]] GpuProperties gpu_properties(int index);

/// While it exists, the calling thread enqueues its work for `device` on a separate stream instead of the default one,
/// which waits for others. No effect on a CPU.
class OwnStream {
 public:
  explicit OwnStream(c10::Device device);
  ~OwnStream();
  OwnStream(const OwnStream&) = delete;
  OwnStream& operator=(const OwnStream&) = delete;

 private:
  std::optional<c10::Stream> before_;
};

/// Returns when `device` has finished all work; immediately on a CPU.
void synchronize(c10::Device device);

}  // namespace stagecraft::device
