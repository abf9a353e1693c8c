#pragma once

#include <vector>

#include "costmodel/doctor/doctor.h"

// The parts of checks().

namespace stagecraft::doctor {

/// Numbers of links and devices that no machine has, or that contradict each other.
[[nodiscard]] std::vector<DoctorCheck> link_checks();
/// Implausible measurements.
[[nodiscard]] std::vector<DoctorCheck> measurement_checks();
/// Documents that do not belong together.
[[nodiscard]] std::vector<DoctorCheck> match_checks();

}  // namespace stagecraft::doctor
