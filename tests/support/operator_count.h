#pragma once

#include <ATen/record_function.h>

#include <functional>
#include <memory>

namespace stagecraft {

/// How many operators of LibTorch `work` calls; those that an operator calls itself do not count. On a GPU, each of
/// those that compute starts at least one kernel.
inline int operators_of(const std::function<void()>& work) {
  static thread_local int depth = 0;
  static thread_local int count = 0;
  depth = count = 0;
  const at::CallbackHandle handle =
      at::addThreadLocalCallback(at::RecordFunctionCallback(
                                     [](const at::RecordFunction&) -> std::unique_ptr<at::ObserverContext> {
                                       if (depth++ == 0) ++count;
                                       return nullptr;
                                     },
                                     [](const at::RecordFunction&, at::ObserverContext*) { --depth; })
                                     .scopes({at::RecordScope::FUNCTION}));
  work();
  at::removeCallback(handle);
  return count;
}

}  // namespace stagecraft
