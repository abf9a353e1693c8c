#pragma once

#include <ucp/api/ucp.h>

#include <string>

namespace stagecraft::channel {

/// The functions of UCX that the channel calls. They are loaded when first used: loading the library already installs
/// signal handlers, and a program built with UCX also runs where it is not installed.
struct UcxLibrary {
  decltype(&ucp_get_version) get_version;
  decltype(&ucp_config_read) config_read;
  decltype(&ucp_config_modify) config_modify;
  decltype(&ucp_config_release) config_release;
  decltype(&ucp_init_version) init_version;
  decltype(&ucp_cleanup) cleanup;
  decltype(&ucp_worker_create) worker_create;
  decltype(&ucp_worker_destroy) worker_destroy;
  decltype(&ucp_worker_get_address) worker_get_address;
  decltype(&ucp_worker_release_address) worker_release_address;
  decltype(&ucp_worker_get_efd) worker_get_efd;
  decltype(&ucp_worker_arm) worker_arm;
  decltype(&ucp_worker_signal) worker_signal;
  decltype(&ucp_worker_progress) worker_progress;
  decltype(&ucp_ep_create) ep_create;
  decltype(&ucp_ep_close_nbx) ep_close;
  decltype(&ucp_ep_flush_nbx) ep_flush;
  decltype(&ucp_tag_send_nbx) tag_send;
  decltype(&ucp_tag_recv_nbx) tag_receive;
  decltype(&ucp_tag_recv_request_test) receive_test;
  decltype(&ucp_request_check_status) request_status;
  decltype(&ucp_request_cancel) request_cancel;
  decltype(&ucp_request_free) request_free;
  const char* (*status_string)(ucs_status_t);
  /// Keeps UCX from replacing the process's functions that map and free memory. Only its registration of memory for
  /// RDMA needs to know. Call before a context is created.
  void (*leave_memory_alone)();
};

/// Loads UCX, once. Its log goes to standard error from then on. Throws DeviceError if it cannot be loaded.
[[nodiscard]] const UcxLibrary& ucx_library();

/// While one exists, what UCX logs in this thread is dropped.
class UcxSilence {
 public:
  UcxSilence();
  ~UcxSilence();
  UcxSilence(const UcxSilence&) = delete;
  UcxSilence& operator=(const UcxSilence&) = delete;
};

/// The most recent warning or error that UCX logged in this thread, and forgets it; empty if there is none.
[[nodiscard]] std::string take_ucx_complaint();

}  // namespace stagecraft::channel
