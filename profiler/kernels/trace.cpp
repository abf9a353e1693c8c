#include "profiler/kernels/trace.h"

#include <array>
#include <stdexcept>

#include "costmodel/index.h"

namespace stagecraft::profiler {
namespace {

constexpr int kLayerBits = 36;
constexpr int kPhaseBits = 4;
constexpr int kCountBits = 12;
constexpr int kMicrobatchShift = kLayerBits + kPhaseBits;
constexpr int kStepShift = kMicrobatchShift + kCountBits;
constexpr std::uint64_t kCountMask = (std::uint64_t{1} << kCountBits) - 1;
constexpr std::int64_t kMostLayers = std::int64_t{1} << kLayerBits;

const std::array<std::string, 9>& names() {
  static const std::array<std::string, 9> all{"none",          "forward",   "backward",      "gradient accumulation",
                                              "recomputation", "optimizer", "communication", "data",
                                              "loss"};
  return all;
}

}  // namespace

std::uint64_t encode(const Tag& tag) {
  if (tag.layer < 0 || tag.layer >= kMostLayers) {
    throw std::invalid_argument("layer " + std::to_string(tag.layer) + " does not fit in a tag, must be 0 to " +
                                std::to_string(kMostLayers - 1));
  }
  if (tag.step < 0 || tag.microbatch < 0) {
    throw std::invalid_argument("step " + std::to_string(tag.step) + " and microbatch " +
                                std::to_string(tag.microbatch) + " do not fit in a tag, must be at least 0");
  }
  if (tag.phase == Phase::None) return 0;
  return (static_cast<std::uint64_t>(tag.step) & kCountMask) << kStepShift |
         (static_cast<std::uint64_t>(tag.microbatch) & kCountMask) << kMicrobatchShift |
         static_cast<std::uint64_t>(tag.phase) << kLayerBits | static_cast<std::uint64_t>(tag.layer);
}

Tag decode_tag(std::uint64_t id) {
  const std::uint64_t phase = id >> kLayerBits & ((1U << kPhaseBits) - 1);
  if (phase == 0 || phase >= names().size()) return {};
  return {static_cast<std::int64_t>(id & (static_cast<std::uint64_t>(kMostLayers) - 1)), static_cast<Phase>(phase),
          to_int(id >> kMicrobatchShift & kCountMask), to_int(id >> kStepShift)};
}

const std::string& name_of(Phase phase) { return names().at(static_cast<std::size_t>(phase)); }

}  // namespace stagecraft::profiler
