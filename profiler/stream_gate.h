#pragma once

#include <c10/core/Device.h>

#include <memory>

namespace stagecraft {

/// Holds back a device's current stream, so that what is launched meanwhile runs without a gap afterwards.
class StreamGate {
 public:
  virtual ~StreamGate() = default;
  /// What is launched from now on waits for open, but at most 50 ms: a launch that itself waits for the stream must not
  /// wait for ever.
  virtual void close() = 0;
  virtual void open() = 0;
};

/// For `device`; on a CPU, where calls return when their work is done, it does nothing. Throws DeviceError.
[[nodiscard]] std::unique_ptr<StreamGate> make_stream_gate(c10::Device device);

}  // namespace stagecraft
