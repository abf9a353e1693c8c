#include "executor/channel/ucx/ucx_library.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <ucm/api/ucm.h>
#include <ucs/debug/log_def.h>

#include <csignal>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <utility>

#include "costmodel/errors.h"

namespace stagecraft::channel {
namespace {

std::string& complaint() {
  thread_local std::string text;
  return text;
}

thread_local bool silent = false;

/// By default UCX logs to standard output, where results go.
ucs_log_func_rc_t log_to_stderr(const char*, unsigned, const char*, ucs_log_level_t level,
                                const ucs_log_component_config_t*, const char* format, va_list arguments) {
  if (silent) return UCS_LOG_FUNC_RC_STOP;
  char text[1024];
  (void)std::vsnprintf(text, sizeof(text), format, arguments);
  if (level <= UCS_LOG_LEVEL_WARN) complaint() = text;
  std::cerr << fmt::format("ucx: {}\n", text);
  return UCS_LOG_FUNC_RC_STOP;
}

/// A shared library, kept until the program ends: UCX cannot be unloaded.
class SharedLibrary {
 public:
  explicit SharedLibrary(const char* name, int binding = RTLD_NOW)
      : name_(name), handle_(dlopen(name, binding | RTLD_LOCAL)) {
    if (handle_ != nullptr) return;
    const char* why = dlerror();
    throw DeviceError(ErrorKind::NotInBuild, fmt::format("UCX cannot be loaded: {}", why ? why : name));
  }
  template <typename Function>
  void find(Function& function, const char* symbol) const {
    void* const found = dlsym(handle_, symbol);
    if (found == nullptr)
      throw DeviceError(ErrorKind::NotInBuild, fmt::format("UCX cannot be used: {} has no function {}", name_, symbol));
    function = reinterpret_cast<Function>(found);
  }

 private:
  const char* name_;
  void* handle_;
};

/// Gives signals that end the process back to it: UCX prints a backtrace of its own, and may wait for a debugger.
void give_back_signals(const SharedLibrary& ucs) {
  void (*disable)(int) = nullptr;
  ucs.find(disable, "ucs_debug_disable_signal");
  for (const int signal : {SIGILL, SIGSEGV, SIGBUS, SIGFPE}) disable(signal);
}

decltype(&ucm_set_global_opts) set_memory_options = nullptr;
const ucm_global_config_t* memory_options = nullptr;

void leave_memory_alone() {
  ucm_global_config_t options = *memory_options;
  options.enable_events = 0;
  options.mmap_hook_mode = UCM_MMAP_HOOK_NONE;
  set_memory_options(&options);
}

UcxLibrary load() {
  // libucs patches libc while it is loaded, unless libucm, whose functions it uses, was told before. libucm needs
  // functions of libucs, too: they are bound when they are called.
  const SharedLibrary ucm("libucm.so.0", RTLD_LAZY);
  ucm.find(set_memory_options, "ucm_set_global_opts");
  ucm.find(memory_options, "ucm_global_opts");
  if (std::getenv("UCX_MEM_EVENTS") == nullptr) leave_memory_alone();
  const SharedLibrary ucs("libucs.so.0");
  const SharedLibrary ucp("libucp.so.0");
  decltype(&ucs_log_push_handler) push_handler = nullptr;
  ucs.find(push_handler, "ucs_log_push_handler");
  push_handler(log_to_stderr);
  give_back_signals(ucs);

  UcxLibrary out{};
  out.leave_memory_alone = leave_memory_alone;
  ucs.find(out.status_string, "ucs_status_string");
  ucp.find(out.get_version, "ucp_get_version");
  ucp.find(out.config_read, "ucp_config_read");
  ucp.find(out.config_modify, "ucp_config_modify");
  ucp.find(out.config_release, "ucp_config_release");
  ucp.find(out.init_version, "ucp_init_version");
  ucp.find(out.cleanup, "ucp_cleanup");
  ucp.find(out.worker_create, "ucp_worker_create");
  ucp.find(out.worker_destroy, "ucp_worker_destroy");
  ucp.find(out.worker_get_address, "ucp_worker_get_address");
  ucp.find(out.worker_release_address, "ucp_worker_release_address");
  ucp.find(out.worker_get_efd, "ucp_worker_get_efd");
  ucp.find(out.worker_arm, "ucp_worker_arm");
  ucp.find(out.worker_signal, "ucp_worker_signal");
  ucp.find(out.worker_progress, "ucp_worker_progress");
  ucp.find(out.ep_create, "ucp_ep_create");
  ucp.find(out.ep_close, "ucp_ep_close_nbx");
  ucp.find(out.ep_flush, "ucp_ep_flush_nbx");
  ucp.find(out.tag_send, "ucp_tag_send_nbx");
  ucp.find(out.tag_receive, "ucp_tag_recv_nbx");
  ucp.find(out.receive_test, "ucp_tag_recv_request_test");
  ucp.find(out.request_status, "ucp_request_check_status");
  ucp.find(out.request_cancel, "ucp_request_cancel");
  ucp.find(out.request_free, "ucp_request_free");
  return out;
}

}  // namespace

const UcxLibrary& ucx_library() {
  static const UcxLibrary library = load();
  return library;
}

UcxSilence::UcxSilence() { silent = true; }
UcxSilence::~UcxSilence() { silent = false; }

std::string take_ucx_complaint() { return std::exchange(complaint(), {}); }

}  // namespace stagecraft::channel
