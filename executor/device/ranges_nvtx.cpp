#include <nvtx3/nvtx3.hpp>

#include "executor/device/ranges.h"

namespace stagecraft::device {
namespace {

struct Domain {
  static constexpr const char* name{"stagecraft"};
};

}  // namespace

RangeName range_name(const std::string& text) { return {nvtx3::registered_string_in<Domain>(text).get_handle()}; }

void push_range(RangeName name, std::int64_t number) noexcept {
  const nvtx3::message text(static_cast<nvtxStringHandle_t>(name.handle));
  const nvtx3::event_attributes attributes(text, nvtx3::payload(number));
  nvtxDomainRangePushEx(nvtx3::domain::get<Domain>(), attributes.get());
}

void pop_range() noexcept { nvtxDomainRangePop(nvtx3::domain::get<Domain>()); }

}  // namespace stagecraft::device
