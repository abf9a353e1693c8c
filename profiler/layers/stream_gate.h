#pragma once

#include <c10/core/Device.h>

#include <memory>

namespace stagecraft::profiler {

/// Blocks the current stream of a device, so that work launched meanwhile runs without gaps once the gate opens.
class StreamGate {
 public:
  virtual ~StreamGate() = default;
  /// Work launched from now on waits for open(), but at most 50 ms: a launch that waits for the stream must not block
  /// forever.
  virtual void close() = 0;
  virtual void open() = 0;
};

/// A gate for `device`. On a CPU, where a call returns when its work is done, it does nothing. Throws DeviceError if
/// the device fails.
[[nodiscard]] std::unique_ptr<StreamGate> make_stream_gate(c10::Device device);

}  // namespace stagecraft::profiler
