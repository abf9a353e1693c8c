#include "executor/device/machine/program.h"

// Every test is a process of its own, and would take 70 ms to destroy LibTorch's operator tables.
namespace stagecraft::testing {
namespace {

[[maybe_unused]] const bool ends_quickly = (device::skip_library_destructors(), true);

}  // namespace
}  // namespace stagecraft::testing
