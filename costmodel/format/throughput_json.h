#pragma once

#include "costmodel/format/cursor.h"
#include "costmodel/prediction/throughput.h"

namespace stagecraft::format {

/// Sets `tokens_per_s`, `flops_per_s`, `peak_share` and `peak_of`, as far as they are known.
void put_rates(Json& out, const WorkRates& rates);
/// The inverse.
[[nodiscard]] WorkRates take_rates(Fields& fields);

[[nodiscard]] Json sample_work_json(const SampleWork& work);
[[nodiscard]] SampleWork read_sample_work(const Cursor& at);

}  // namespace stagecraft::format
