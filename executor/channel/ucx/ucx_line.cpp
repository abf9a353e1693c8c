#include "executor/channel/ucx/ucx_line.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <algorithm>

#include "costmodel/index.h"
#include "executor/device/machine/processor.h"
#include "executor/meeting/peer_error.h"
#include "executor/meeting/wire.h"

namespace stagecraft::channel {
namespace {

/// How often a wait asks whether another rank has aborted.
constexpr auto kAskElsewhere = std::chrono::milliseconds(100);

}  // namespace

UcxLine::UcxLine(Setup setup, std::shared_ptr<UcxWorker> worker)
    : setup_(std::move(setup)),
      processors_(std::max(1, to_int(device::own_processors().size()))),
      worker_(std::move(worker)) {}

UcxTransfer UcxLine::send(const at::Tensor& tensor, int to, int tag, UcxKind kind, std::uint64_t count) {
  UcxTransfer out = worker_->send(to, ucx_tag(rank(), tag, kind, count), tensor.const_data_ptr(),
                                  to_index(static_cast<std::int64_t>(tensor.nbytes())), tensor);
  if (out.over()) check(out, to, tag, "while sending to it");
  return out;
}

UcxTransfer UcxLine::receive(const at::Tensor& tensor, int from, int tag, UcxKind kind, std::uint64_t count) {
  return worker_->receive(ucx_tag(from, tag, kind, count), tensor.mutable_data_ptr(), tensor.nbytes(), tensor);
}

bool UcxLine::may_spin() const { return setup_.ranks_here * at::get_num_threads() <= processors_; }

void UcxLine::advance() {
  for (auto it = ongoing_.begin(); it != ongoing_.end();) (*it++)->advance();
}

void UcxLine::progress() {
  if (worker_->progress() || !ongoing_.empty()) advance();
}

void UcxLine::wait(UcxTransfer& transfer, int peer, int tag, const char* doing,
                   c10::function_ref<meeting::PeerError()> late) {
  if (!transfer.over()) wait_until([&] { return transfer.over(); }, {&peer, 1}, tag, doing, late);
  check(transfer, peer, tag, doing);
}

void UcxLine::wait_until(c10::function_ref<bool()> ready, std::span<const int> peers, int tag, const char* doing,
                         c10::function_ref<meeting::PeerError()> late) {
  const auto done = [&] {
    advance();
    return ready();
  };
  if (done()) return;
  throw_if_aborted();
  activity().wait_for(peers.front(), tag);
  std::string elsewhere;
  const auto lost = [&] {
    return std::ranges::find_if(peers, [&](int peer) { return worker_->lost(peer).has_value(); });
  };
  const auto stopped = [&] {
    if (aborted_.load(std::memory_order_acquire) || lost() != peers.end()) return true;
    if (const auto now = Clock::now(); setup_.aborted_elsewhere && now - asked_elsewhere_ >= kAskElsewhere) {
      asked_elsewhere_ = now;
      elsewhere = setup_.aborted_elsewhere();
    }
    return !elsewhere.empty();
  };
  const auto outcome = worker_->wait(done, stopped, Clock::now() + deadline(), may_spin());
  if (outcome == UcxWorker::Outcome::Ready) {
    activity().go_on();
    return;
  }
  worker_->give_up();
  if (outcome == UcxWorker::Outcome::Late) throw late();
  throw_if_aborted();
  if (!elsewhere.empty()) throw meeting::PeerError(elsewhere, meeting::PeerError::Cause::Peer);
  fail(*lost(), tag, doing, *worker_->lost(*lost()));
}

void UcxLine::check(const UcxTransfer& transfer, int peer, int tag, const char* doing) {
  if (transfer.status() == UCS_OK) return;
  fail(peer, tag, doing, ucx_library().status_string(transfer.status()));
}

void UcxLine::fail(int peer, int tag, const char* doing, const std::string& why) {
  worker_->give_up();
  throw_if_aborted();
  const std::string elsewhere = setup_.aborted_elsewhere ? setup_.aborted_elsewhere() : "";
  if (!elsewhere.empty()) throw meeting::PeerError(elsewhere, meeting::PeerError::Cause::Peer);
  throw meeting::PeerError(fmt::format("rank {} lost rank {} {} under tag {}: {}", rank(), peer, doing, tag, why),
                           meeting::PeerError::Cause::Peer);
}

void UcxLine::throw_if_aborted() {
  if (!aborted_.load(std::memory_order_acquire)) return;
  const std::lock_guard lock(mutex_);
  throw meeting::PeerError(reason_, meeting::PeerError::Cause::Peer);
}

bool UcxLine::abort(const std::string& reason) {
  {
    const std::lock_guard lock(mutex_);
    if (aborted_) return false;
    reason_ = reason;
    aborted_.store(true, std::memory_order_release);
  }
  worker_->wake();
  return true;
}

}  // namespace stagecraft::channel
