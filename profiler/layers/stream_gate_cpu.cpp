#include "profiler/layers/stream_gate.h"

namespace stagecraft::profiler {
namespace {

class NoGate : public StreamGate {
 public:
  void close() override {}
  void open() override {}
};

}  // namespace

std::unique_ptr<StreamGate> make_stream_gate(c10::Device) { return std::make_unique<NoGate>(); }

}  // namespace stagecraft::profiler
