#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/FunctionRef.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "executor/channel/ucx/ucx_library.h"

namespace stagecraft::channel {

/// How a worker reaches its peers.
struct UcxSettings {
  std::string transports{};  ///< as UCX_TLS; empty: as the environment says, else UCX's choice
  std::string devices{};     ///< as UCX_NET_DEVICES; empty likewise
  /// Every transport moves data without the help of the sender's processor once a receiver asks for it. If not, a
  /// thread makes progress while the rank computes.
  bool one_sided = false;
  /// RDMA may be used, which registers memory.
  bool rdma = false;
  /// How long a wait polls before it sleeps, if the processors have nothing else to do.
  std::chrono::microseconds spin{2000};
};

class UcxWorker;

/// A message in transit, sent or received. Holds its memory until UCX is done with it. Moved, not copied.
class UcxTransfer {
 public:
  UcxTransfer() = default;
  UcxTransfer(UcxTransfer&& other) noexcept { *this = std::move(other); }
  UcxTransfer& operator=(UcxTransfer&& other) noexcept;
  /// Cancels an unfinished receive; the worker keeps the memory of an unfinished send or receive.
  ~UcxTransfer();

  /// Whether it has ended, well or not. Makes no progress.
  [[nodiscard]] bool over();
  /// UCS_OK, or why it failed. Call once over.
  [[nodiscard]] ucs_status_t status() const { return status_; }
  /// Bytes received. Call once over.
  [[nodiscard]] std::size_t bytes() const { return bytes_; }
  /// Whether this is a transfer at all.
  [[nodiscard]] bool exists() const { return worker_ != nullptr; }

 private:
  friend class UcxWorker;
  void abandon() noexcept;

  std::shared_ptr<UcxWorker> worker_;
  void* request_ = nullptr;  ///< until it is over
  bool receives_ = false;
  ucs_status_t status_ = UCS_OK;
  std::size_t bytes_ = 0;
  at::Tensor memory_;
};

/// This process's end of all connections: UCP's context, worker and endpoints. Used by the rank's thread; wake may be
/// called by any.
class UcxWorker : public std::enable_shared_from_this<UcxWorker> {
 public:
  using Clock = std::chrono::steady_clock;

  /// Throws DeviceError if UCX is missing or none of the transports works here.
  UcxWorker(const UcxSettings& settings, int ranks);
  ~UcxWorker();
  UcxWorker(const UcxWorker&) = delete;
  UcxWorker& operator=(const UcxWorker&) = delete;

  /// What peers need to connect.
  [[nodiscard]] const std::string& address() const { return address_; }
  /// Creates the endpoint to `peer`. Throws PeerError if `address` cannot be reached over the transports.
  void connect(int peer, const std::string& address);
  /// Detects when the process of `peer`, on this machine, ends, which shared memory does not report.
  void watch(int peer, int process);
  /// Returns when all endpoints have sent what they were given, or `end` has passed.
  void flush(Clock::time_point end);
  /// From now on only these IPv4 addresses can connect to the TCP ports that UCX has opened here: it believes whatever
  /// arrives there. Connections that exist stay.
  void admit_only(const std::vector<std::string>& addresses);

  /// Starts to send `bytes` from `data`, which lies in `memory`. A failure is the transfer's status.
  [[nodiscard]] UcxTransfer send(int peer, ucp_tag_t tag, const void* data, std::size_t bytes,
                                 const at::Tensor& memory);
  /// Posts a receive. A longer message is UCS_ERR_MESSAGE_TRUNCATED.
  [[nodiscard]] UcxTransfer receive(ucp_tag_t tag, void* data, std::size_t bytes, const at::Tensor& memory);

  /// Moves what can be moved; true if anything did.
  bool progress();

  enum class Outcome { Ready, Late, Stopped };
  /// Makes progress until `ready()`, `end`, or `stopped()`. Polls while the processor has nothing else to do, at most
  /// UcxSettings::spin and not at all unless `may_spin`; then sleeps until there is an event. `stopped` is asked before
  /// the first sleep and then at least ten times a second.
  [[nodiscard]] Outcome wait(c10::function_ref<bool()> ready, c10::function_ref<bool()> stopped, Clock::time_point end,
                             bool may_spin);

  /// Wakes a sleeping wait.
  void wake() noexcept;
  /// Why `peer` cannot be reached any longer, if so.
  [[nodiscard]] std::optional<std::string> lost(int peer);
  /// Peers are not waited for when the worker is destroyed.
  void give_up() { given_up_.store(true, std::memory_order_relaxed); }

 private:
  friend class UcxTransfer;
  struct Peer {
    ucp_ep_h endpoint = nullptr;
    ucs_status_t status = UCS_OK;
    bool has_ended = false;  ///< its process, if watched
  };
  static void on_lost(void* peer, ucp_ep_h endpoint, ucs_status_t status);
  /// The transfer of a UCX call's result.
  UcxTransfer started(void* request, bool receives, const at::Tensor& memory);
  bool progress_all();
  /// Prepares the event descriptor; false if there is progress to make first.
  bool arm();
  void keep_armed();
  /// Sleeps until there is an event or a watched process ends, at most so long; notes which processes have ended.
  /// Unlocks the mutex meanwhile.
  void sleep(std::unique_lock<std::recursive_mutex>& lock, std::chrono::milliseconds longest);
  void run_thread();
  void drop_ended();
  /// Closes all endpoints; false if that is impossible.
  bool close_endpoints();

  const UcxLibrary& ucx_;
  UcxSettings settings_;
  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;
  int events_ = -1;  ///< readable when there is progress to make, after arm
  std::string address_;
  std::vector<Peer> peers_;
  struct Watched {
    int peer;
    int descriptor;  ///< readable once the process has ended
  };
  std::vector<Watched> watched_;
  std::vector<int> listening_;  ///< sockets on which UCX listens
  struct Abandoned {
    void* request;
    at::Tensor memory;
  };
  std::vector<Abandoned> left_behind_;  ///< transfers that nobody waits for but UCX has not ended
  std::atomic<bool> given_up_ = false;

  // UCP's worker is not thread-safe. Recursive: `ready` asks transfers.
  std::recursive_mutex mutex_;
  std::condition_variable_any no_driver_;
  int drivers_ = 0;  ///< waits in progress, which make the thread superfluous
  bool parked_ = false;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace stagecraft::channel
