#include "executor/channel/ucx/ucx_worker.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <linux/filter.h>
#include <poll.h>
#include <sched.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "costmodel/errors.h"
#include "costmodel/index.h"
#include "costmodel/text/number.h"
#include "executor/meeting/peer_error.h"

namespace stagecraft::channel {
namespace {

using namespace std::chrono_literals;

/// A yield that takes longer has let something else run: the processor has other work.
constexpr auto kYieldToOthers = 20us;
/// Polls between two yields.
constexpr int kPollsPerYield = 32;
/// The longest sleep without a look at `stopped`.
constexpr auto kLongestSleep = 100ms;
/// How long a worker that is destroyed waits for its peers.
constexpr auto kFarewell = 1s;

/// The sockets of this process that listen for TCP connections.
std::vector<int> listening_sockets() {
  std::vector<int> out;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd", error)) {
    const std::string name = entry.path().filename().string();
    const std::optional<int> fd = number_in<int>(name);
    if (!fd) continue;
    int value = 0;
    socklen_t size = sizeof(value);
    if (getsockopt(*fd, SOL_SOCKET, SO_DOMAIN, &value, &size) != 0 || (value != AF_INET && value != AF_INET6)) continue;
    size = sizeof(value);
    if (getsockopt(*fd, SOL_SOCKET, SO_ACCEPTCONN, &value, &size) == 0 && value == 1) out.push_back(*fd);
  }
  std::ranges::sort(out);
  return out;
}

ucp_request_param_t host_memory(std::uint32_t more = 0) {
  ucp_request_param_t out{};
  out.op_attr_mask = UCP_OP_ATTR_FIELD_MEMORY_TYPE | more;
  out.memory_type = UCS_MEMORY_TYPE_HOST;
  return out;
}

}  // namespace

UcxTransfer& UcxTransfer::operator=(UcxTransfer&& other) noexcept {
  if (this == &other) return *this;
  abandon();
  worker_ = std::move(other.worker_);
  request_ = std::exchange(other.request_, nullptr);
  receives_ = other.receives_;
  status_ = other.status_;
  bytes_ = other.bytes_;
  memory_ = std::move(other.memory_);
  return *this;
}

UcxTransfer::~UcxTransfer() { abandon(); }

void UcxTransfer::abandon() noexcept {
  if (request_ == nullptr || over()) return;
  const std::lock_guard lock(worker_->mutex_);
  if (receives_) worker_->ucx_.request_cancel(worker_->worker_, request_);
  if (over()) return;
  worker_->drop_ended();
  worker_->left_behind_.push_back({std::exchange(request_, nullptr), std::move(memory_)});
}

bool UcxTransfer::over() {
  if (request_ == nullptr) return true;
  const std::lock_guard lock(worker_->mutex_);
  ucs_status_t now = UCS_INPROGRESS;
  if (receives_) {
    ucp_tag_recv_info_t info{};
    now = worker_->ucx_.receive_test(request_, &info);
    bytes_ = info.length;
  } else {
    now = worker_->ucx_.request_status(request_);
  }
  if (now == UCS_INPROGRESS) return false;
  status_ = now;
  worker_->ucx_.request_free(std::exchange(request_, nullptr));
  memory_.reset();
  return true;
}

UcxWorker::UcxWorker(const UcxSettings& settings, int ranks)
    : ucx_(ucx_library()), settings_(settings), peers_(to_index(ranks)) {
  const auto check = [&](ucs_status_t status, const char* what) {
    if (status == UCS_OK) return;
    const std::string complaint = take_ucx_complaint();
    throw DeviceError(fmt::format("UCX cannot {}: {}{}{}", what, ucx_.status_string(status),
                                  complaint.empty() ? "" : "; ", complaint));
  };
  if (!settings.rdma && std::getenv("UCX_MEM_EVENTS") == nullptr) ucx_.leave_memory_alone();
  ucp_config_t* config = nullptr;
  check(ucx_.config_read(nullptr, nullptr, &config), "read its settings");
  const std::unique_ptr<ucp_config_t, decltype(ucx_.config_release)> owned(config, ucx_.config_release);
  const auto set = [&](const char* name, const std::string& value) {
    if (!value.empty())
      check(ucx_.config_modify(config, name, value.c_str()), fmt::format("set UCX_{} to {}", name, value).c_str());
  };
  set("TLS", settings.transports);
  set("NET_DEVICES", settings.devices);

  ucp_params_t parameters{};
  parameters.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_ESTIMATED_NUM_EPS | UCP_PARAM_FIELD_NAME;
  parameters.features = UCP_FEATURE_TAG | UCP_FEATURE_WAKEUP;
  parameters.estimated_num_eps = to_index(std::max(ranks - 1, 1));
  parameters.name = "stagecraft";
  const std::vector<int> before = listening_sockets();
  check(ucx_.init_version(UCP_API_MAJOR, UCP_API_MINOR, &parameters, config, &context_), "start");
  try {
    ucp_worker_params_t of_worker{};
    of_worker.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
    of_worker.thread_mode = UCS_THREAD_MODE_SERIALIZED;
    check(ucx_.worker_create(context_, &of_worker, &worker_), "open its transports");
    check(ucx_.worker_get_efd(worker_, &events_), "open its events");
    ucp_address_t* address = nullptr;
    std::size_t length = 0;
    check(ucx_.worker_get_address(worker_, &address, &length), "tell its address");
    address_.assign(reinterpret_cast<const char*>(address), length);
    ucx_.worker_release_address(worker_, address);
  } catch (...) {
    if (worker_ != nullptr) ucx_.worker_destroy(worker_);
    ucx_.cleanup(context_);
    throw;
  }
  std::ranges::set_difference(listening_sockets(), before, std::back_inserter(listening_));
  if (!settings.one_sided) thread_ = std::thread([this] { run_thread(); });
}

UcxWorker::~UcxWorker() {
  if (thread_.joinable()) {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    no_driver_.notify_all();
    wake();
    thread_.join();
  }
  for (const Watched& watched : watched_) close(watched.descriptor);
  const UcxSilence silence;  // after an abort, messages that nobody received are no surprise
  if (!close_endpoints()) return;
  ucx_.worker_destroy(worker_);
  ucx_.cleanup(context_);
}

void UcxWorker::drop_ended() {
  std::erase_if(left_behind_, [&](const Abandoned& abandoned) {
    if (ucx_.request_status(abandoned.request) == UCS_INPROGRESS) return false;
    ucx_.request_free(abandoned.request);
    return true;
  });
}

bool UcxWorker::close_endpoints() {
  const auto end = Clock::now() + kFarewell;
  while (!left_behind_.empty() && !given_up_ && Clock::now() < end) {
    if (ucx_.worker_progress(worker_) == 0) sched_yield();
    drop_ended();
  }
  // Only an endpoint that detects lost peers can be closed while it has transfers: UCX would end the process. The
  // system takes the memory back when the process ends.
  const bool alone = std::ranges::any_of(peers_, [](const Peer& peer) { return peer.has_ended; });
  if (settings_.one_sided && (given_up_ || alone || !left_behind_.empty())) return false;
  ucp_request_param_t parameters{};
  std::vector<void*> closing;
  for (Peer& peer : peers_) {
    if (peer.endpoint == nullptr) continue;
    if (given_up_ || peer.has_ended || peer.status != UCS_OK || !left_behind_.empty()) {
      parameters.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
      parameters.flags = UCP_EP_CLOSE_FLAG_FORCE;
    } else {
      parameters.op_attr_mask = 0;
      parameters.flags = 0;
    }
    void* const request = ucx_.ep_close(std::exchange(peer.endpoint, nullptr), &parameters);
    if (UCS_PTR_IS_PTR(request)) closing.push_back(request);
  }
  while (!closing.empty() && Clock::now() < end) {
    if (ucx_.worker_progress(worker_) == 0) sched_yield();
    std::erase_if(closing, [&](void* request) {
      if (ucx_.request_status(request) == UCS_INPROGRESS) return false;
      ucx_.request_free(request);
      return true;
    });
  }
  drop_ended();
  return closing.empty() && left_behind_.empty();
}

void UcxWorker::on_lost(void* peer, ucp_ep_h, ucs_status_t status) { static_cast<Peer*>(peer)->status = status; }

void UcxWorker::connect(int peer, const std::string& address) {
  const std::lock_guard lock(mutex_);
  Peer& entry = peers_[to_index(peer)];
  ucp_ep_params_t parameters{};
  parameters.field_mask =
      UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER;
  parameters.address = reinterpret_cast<const ucp_address_t*>(address.data());
  // Over shared memory, UCX cannot tell that a peer has died, and would not use CMA if it had to.
  parameters.err_mode = settings_.one_sided ? UCP_ERR_HANDLING_MODE_NONE : UCP_ERR_HANDLING_MODE_PEER;
  parameters.err_handler.cb = on_lost;
  parameters.err_handler.arg = &entry;
  const ucs_status_t status = ucx_.ep_create(worker_, &parameters, &entry.endpoint);
  if (status == UCS_OK) return;
  entry.endpoint = nullptr;
  const std::string complaint = take_ucx_complaint();
  throw meeting::PeerError(fmt::format("UCX cannot connect to rank {}: {}{}{}", peer, ucx_.status_string(status),
                                       complaint.empty() ? "" : "; ", complaint));
}

void UcxWorker::watch(int peer, int process) {
  const int descriptor = static_cast<int>(syscall(SYS_pidfd_open, process, 0));  // since Linux 5.3
  if (descriptor >= 0) watched_.push_back({peer, descriptor});
}

void UcxWorker::sleep(std::unique_lock<std::recursive_mutex>& lock, std::chrono::milliseconds longest) {
  std::vector<pollfd> events{{events_, POLLIN, 0}};
  for (const Watched& watched : watched_) events.push_back({watched.descriptor, POLLIN, 0});
  lock.unlock();
  const int count = poll(events.data(), events.size(), static_cast<int>(longest.count()));
  lock.lock();
  if (count <= 0) return;
  for (std::size_t i = watched_.size(); i-- > 0;) {
    if (events[i + 1].revents == 0) continue;
    peers_[to_index(watched_[i].peer)].has_ended = true;
    close(watched_[i].descriptor);
    watched_.erase(watched_.begin() + static_cast<std::ptrdiff_t>(i));
  }
}

void UcxWorker::flush(Clock::time_point end) {
  const std::lock_guard lock(mutex_);
  const ucp_request_param_t parameters{};
  for (const Peer& peer : peers_) {
    if (peer.endpoint == nullptr) continue;
    void* const request = ucx_.ep_flush(peer.endpoint, &parameters);
    if (!UCS_PTR_IS_PTR(request)) continue;
    while (ucx_.request_status(request) == UCS_INPROGRESS && Clock::now() < end) {
      if (ucx_.worker_progress(worker_) == 0) sched_yield();
    }
    ucx_.request_free(request);
  }
  keep_armed();
}

void UcxWorker::admit_only(const std::vector<std::string>& addresses) {
  // A filter of a listening socket sees the packets that open connections. Each connection is a socket of its own.
  constexpr std::uint32_t kSender = static_cast<std::uint32_t>(SKF_NET_OFF) + 12;  // IPv4's source address
  std::vector<sock_filter> program{BPF_STMT(BPF_LD | BPF_W | BPF_ABS, kSender)};
  for (const std::string& address : addresses) {
    in_addr binary{};
    if (inet_pton(AF_INET, address.c_str(), &binary) != 1) continue;
    program.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, ntohl(binary.s_addr), 0, 1));
    program.push_back(BPF_STMT(BPF_RET | BPF_K, ~std::uint32_t{0}));  // all of it
  }
  program.push_back(BPF_STMT(BPF_RET | BPF_K, 0));  // nothing of it
  const sock_fprog filter = {static_cast<unsigned short>(program.size()), program.data()};
  if (program.size() > BPF_MAXINSNS) return;  // a run on thousands of machines
  for (const int fd : listening_) (void)setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &filter, sizeof(filter));
}

UcxTransfer UcxWorker::started(void* request, bool receives, const at::Tensor& memory) {
  UcxTransfer out;
  out.worker_ = shared_from_this();
  out.receives_ = receives;
  if (UCS_PTR_IS_PTR(request)) {
    out.request_ = request;
    out.memory_ = memory;
  } else {
    out.status_ = UCS_PTR_STATUS(request);
  }
  keep_armed();
  return out;
}

UcxTransfer UcxWorker::send(int peer, ucp_tag_t tag, const void* data, std::size_t bytes, const at::Tensor& memory) {
  const std::lock_guard lock(mutex_);
  const ucp_request_param_t parameters = host_memory();
  void* const request = ucx_.tag_send(peers_[to_index(peer)].endpoint, data, bytes, tag, &parameters);
  return started(request, false, memory);
}

UcxTransfer UcxWorker::receive(ucp_tag_t tag, void* data, std::size_t bytes, const at::Tensor& memory) {
  const std::lock_guard lock(mutex_);
  // UCX tells the length of a message only through a request.
  const ucp_request_param_t parameters = host_memory(UCP_OP_ATTR_FLAG_NO_IMM_CMPL);
  constexpr ucp_tag_t kExactly = ~ucp_tag_t{0};
  void* const request = ucx_.tag_receive(worker_, data, bytes, tag, kExactly, &parameters);
  return started(request, true, memory);
}

bool UcxWorker::progress_all() {
  bool moved = false;
  while (ucx_.worker_progress(worker_) != 0) moved = true;
  return moved;
}

bool UcxWorker::progress() {
  const std::lock_guard lock(mutex_);
  const bool moved = progress_all();
  if (moved) keep_armed();
  return moved;
}

bool UcxWorker::arm() { return ucx_.worker_arm(worker_) == UCS_OK; }

void UcxWorker::keep_armed() {
  if (!thread_.joinable() || drivers_ > 0) return;
  // The thread sleeps on the events. A call of this thread may have consumed one and disarmed the rest.
  while (!arm()) {
    if (!progress_all()) return;
  }
}

UcxWorker::Outcome UcxWorker::wait(c10::function_ref<bool()> ready, c10::function_ref<bool()> stopped,
                                   Clock::time_point end, bool may_spin) {
  std::unique_lock lock(mutex_);
  ++drivers_;
  const auto leave = [&](Outcome outcome) {
    if (--drivers_ == 0 && thread_.joinable()) {
      keep_armed();
      if (parked_) no_driver_.notify_all();
    }
    return outcome;
  };
  progress_all();
  if (ready()) return leave(Outcome::Ready);
  if (may_spin) {
    for (auto now = Clock::now(), stop = now + settings_.spin; now < stop;) {
      for (int i = 0; i < kPollsPerYield; ++i) {
        if (progress_all() && ready()) return leave(Outcome::Ready);
      }
      const auto before = Clock::now();
      sched_yield();
      now = Clock::now();
      if (now - before > kYieldToOthers) break;
    }
  }
  while (true) {
    progress_all();
    if (ready()) return leave(Outcome::Ready);
    if (stopped()) return leave(Outcome::Stopped);
    const auto now = Clock::now();
    if (now >= end) return leave(Outcome::Late);
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - now);
    // Messages for or from a process that has ended can keep UCX from ever arming (GOTCHAS.md): look at the processes
    // all the same.
    sleep(lock, arm() ? std::min<std::chrono::milliseconds>(left, kLongestSleep) : 0ms);
  }
}

void UcxWorker::run_thread() {
  std::unique_lock lock(mutex_);
  while (!stop_) {
    if (drivers_ > 0) {
      parked_ = true;
      no_driver_.wait(lock, [&] { return stop_ || drivers_ == 0; });
      parked_ = false;
      continue;
    }
    progress_all();
    if (!arm()) continue;
    pollfd event{events_, POLLIN, 0};
    lock.unlock();
    (void)poll(&event, 1, static_cast<int>(std::chrono::milliseconds(1s).count()));
    lock.lock();
  }
}

void UcxWorker::wake() noexcept { (void)ucx_.worker_signal(worker_); }

std::optional<std::string> UcxWorker::lost(int peer) {
  const std::lock_guard lock(mutex_);
  const Peer& entry = peers_[to_index(peer)];
  if (entry.has_ended) return "its process has ended";
  if (entry.status == UCS_OK) return std::nullopt;
  return ucx_.status_string(entry.status);
}

}  // namespace stagecraft::channel
