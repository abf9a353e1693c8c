#pragma once

#include <string>

#include "costmodel/format/results/plan_list_json.h"
#include "costmodel/report/drawing.h"

namespace stagecraft::partitioner {

/// Throughput against peak memory of the plans of a list, one colour and line for each number of devices: samples/s if
/// the list has them, else steps/s. Precondition: the list has plans.
[[nodiscard]] report::Picture front_picture(const std::string& name, const format::PlanList& list);

}  // namespace stagecraft::partitioner
