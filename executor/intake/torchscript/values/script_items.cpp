#include "executor/intake/torchscript/values/script_items.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>

#include "costmodel/errors.h"
#include "costmodel/index.h"

namespace stagecraft::intake {
namespace {

constexpr std::size_t kLongestList = 200'000;

}  // namespace

std::optional<std::vector<ScriptValue>> on_items(const std::string& name, const std::vector<ScriptValue>& arguments,
                                                 std::size_t results, const std::string& place) {
  using Results = std::vector<ScriptValue>;
  if (name == "aten::__is__" || name == "aten::__isnot__") {
    const bool a = arguments[0].is_none();
    const bool b = arguments[1].is_none();
    if (a || b) return Results{constant_value_of((name == "aten::__is__") == (a && b))};
  }
  if (name == "aten::is_grad_enabled") return Results{constant_value_of(true)};
  if (arguments.empty() || arguments[0].kind != ScriptValue::Kind::Items) return std::nullopt;
  std::vector<ScriptValue>& items = arguments[0].items->items;
  const auto list = [&](std::vector<ScriptValue> members) {
    auto out = std::make_shared<ScriptItems>(*arguments[0].items);
    out->items = std::move(members);
    return Results{{.kind = ScriptValue::Kind::Items, .items = std::move(out)}};
  };
  const auto whole = [&](std::size_t i, std::int64_t otherwise) -> std::optional<std::int64_t> {
    if (arguments.size() <= i || arguments[i].is_none()) return otherwise;
    if (arguments[i].kind != ScriptValue::Kind::Constant || !arguments[i].constant.isInt()) return std::nullopt;
    return arguments[i].constant.toInt();
  };
  const auto count = static_cast<std::int64_t>(items.size());
  if (name == "prim::TupleUnpack" || name == "prim::ListUnpack") {
    if (items.size() != results)
      throw FormatError(ErrorKind::UnsupportedModel, place + ": found a list of " + std::to_string(items.size()) +
                                                         ", expected " + std::to_string(results));
    return items;
  }
  if (name == "aten::len") return Results{constant_value_of(count)};
  if (name == "prim::TupleIndex" || name == "aten::__getitem__") {
    const auto index = whole(1, 0);
    if (!index) return std::nullopt;
    const std::int64_t at = *index < 0 ? *index + count : *index;
    if (at < 0 || at >= count)
      throw FormatError(ErrorKind::UnsupportedModel,
                        place + ": index " + std::to_string(*index) + " of a list of " + std::to_string(count));
    return Results{items[to_index(at)]};
  }
  if (name == "aten::list") return list(items);
  if (name == "aten::append" && items.size() < kLongestList) {
    items.push_back(arguments[1]);
    return Results(results, arguments[0]);
  }
  if (name == "aten::add" && arguments[1].kind == ScriptValue::Kind::Items) {
    std::vector<ScriptValue> joined = items;
    joined.insert(joined.end(), arguments[1].items->items.begin(), arguments[1].items->items.end());
    return list(std::move(joined));
  }
  if (name == "aten::slice") {
    const auto step = whole(3, 1);
    auto begin = whole(1, 0);
    auto end = whole(2, std::numeric_limits<std::int64_t>::max());
    if (!step || *step != 1 || !begin || !end) return std::nullopt;
    const auto inside = [&](std::int64_t at) { return std::clamp<std::int64_t>(at < 0 ? at + count : at, 0, count); };
    begin = inside(*begin);
    end = std::max(*begin, inside(*end));
    return list({items.begin() + *begin, items.begin() + *end});
  }
  return std::nullopt;
}

}  // namespace stagecraft::intake
