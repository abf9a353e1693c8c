#include "executor/intake/torchscript/model_input.h"

#include <optional>
#include <stdexcept>
#include <string_view>

#include "costmodel/index.h"
#include "costmodel/text/number.h"
#include "executor/device/dtype.h"

namespace stagecraft::intake {
namespace {

constexpr std::size_t kMostAxes = 16;
constexpr std::int64_t kLongestAxis = std::int64_t{1} << 31;

std::optional<std::int64_t> whole(std::string_view text) {
  const std::optional<std::int64_t> out = number_in<std::int64_t>(text);
  return out && *out >= 0 && *out <= kLongestAxis ? out : std::nullopt;
}

}  // namespace

model::ModelInput parse_model_input(const std::string& name, const std::string& text) {
  const auto refuse = [&](const std::string& why) {
    throw std::invalid_argument("input \"" + name + "\" is \"" + text + "\": " + why +
                                ", expected TYPE[SIZES] of one sample, such as float32[3,224,224] or int64[], then "
                                ":batch_axis=N (default: 0) or :batch_axis=none");
  };
  const std::string_view all = text;
  const std::size_t open = all.find('[');
  const std::size_t close = all.find(']');
  if (open == std::string_view::npos || close == std::string_view::npos || close < open) refuse("found no sizes");
  model::ModelInput out{.name = name, .dtype = std::string(all.substr(0, open)), .shape = {}};
  try {
    (void)device::dtype_of(out.dtype);
  } catch (const std::invalid_argument& e) { refuse(e.what()); }
  if (c10::isComplexType(device::dtype_of(out.dtype))) refuse("no data source provides complex numbers");
  std::string_view sizes = all.substr(open + 1, close - open - 1);
  while (!sizes.empty()) {
    const std::size_t comma = sizes.find(',');
    const auto size = whole(sizes.substr(0, comma));
    if (!size || *size == 0) refuse("found size \"" + std::string(sizes.substr(0, comma)) + "\"");
    out.shape.push_back(*size);
    if (out.shape.size() > kMostAxes) refuse("found too many sizes");
    if (comma != std::string_view::npos && comma + 1 == sizes.size()) refuse("found a comma at the end");
    sizes = comma == std::string_view::npos ? std::string_view() : sizes.substr(comma + 1);
  }
  const std::string_view rest = all.substr(close + 1);
  constexpr std::string_view kAxis = ":batch_axis=";
  if (rest.empty()) return out;
  if (!rest.starts_with(kAxis)) refuse("found \"" + std::string(rest) + "\" at the end");
  const std::string_view axis = rest.substr(kAxis.size());
  if (axis == "none") {
    out.batch_axis.reset();
    return out;
  }
  const auto number = whole(axis);
  if (!number || *number > static_cast<std::int64_t>(out.shape.size()))
    refuse("found batch axis \"" + std::string(axis) + "\"");
  out.batch_axis = to_int(*number);
  return out;
}

}  // namespace stagecraft::intake
