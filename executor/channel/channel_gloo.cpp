#include "executor/channel/channel_gloo.h"

// The only file that includes gloo's headers, which differ from those that the wheel was built with (GOTCHAS.md).
#include <ATen/ops/empty.h>
#include <fmt/format.h>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <mutex>
#include <thread>
#include <unordered_map>

#include "executor/channel/channel.h"
#include "executor/channel/control_tags.h"
#include "executor/channel/peer_proof.h"
#include "executor/channel/tensor_message.h"
#include "executor/meeting/launch_info.h"
#include "executor/meeting/meeting_store.h"

namespace stagecraft::channel {
namespace {

using Clock = std::chrono::steady_clock;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;

constexpr const char* kAbortKey = "abort";

// A message longer than its receive terminates the process, so each is announced; a slot contains the count of the
// announcements.
constexpr int kHeaderSlot = Channel::kMostTags;
constexpr int kSlotStep = Channel::kMostTags * 2;
constexpr int kSlots = 64;  // a slot is a non-negative int

/// The slot of a payload under `tag`.
int payload_slot(const Announced& announced, int tag) { return tag + kSlotStep * (announced.count % kSlots); }

/// An error's text without gloo's source position and c10's stack trace.
std::string short_text(const std::exception& error) {
  std::string text = error.what();
  text = text.substr(0, text.find('\n'));
  const std::size_t position = text.find("] ");
  return text.starts_with('[') && position != std::string::npos ? text.substr(position + 2) : text;
}

/// State shared by all waits of one channel.
struct Line {
  int rank = 0;
  std::chrono::milliseconds deadline{};
  std::shared_ptr<Activity> activity;
  c10::intrusive_ptr<c10d::Store> store;
  std::mutex mutex;  ///< of the group and the reason
  c10::intrusive_ptr<c10d::ProcessGroupGloo> group;
  std::string reason;
  std::atomic<bool> aborted = false;

  void throw_if_aborted() {
    if (!aborted.load(std::memory_order_acquire)) return;
    const std::lock_guard lock(mutex);
    throw meeting::PeerError(reason, meeting::PeerError::Cause::Peer);
  }

  /// Throws what a failed operation with `peer` means: an abort here or there, or a lost peer.
  [[noreturn]] void fail(int peer, const std::string& doing, const std::exception& error) {
    throw_if_aborted();
    std::string told;
    try {
      if (store->check({kAbortKey})) told = meeting::printable(store->get_to_str(kAbortKey));
    } catch (const std::exception&) {  // the rendezvous server has disappeared too; the lost peer is what matters
    }
    if (!told.empty()) throw meeting::PeerError(told, meeting::PeerError::Cause::Peer);
    throw meeting::PeerError(fmt::format("rank {} lost rank {} {}: {}", rank, peer, doing, short_text(error)),
                             meeting::PeerError::Cause::Peer);
  }
};

/// A message on its way out: header and payload.
struct Transmission {
  std::vector<WorkPtr> works;
  int to = 0;
  int tag = 0;
  std::mutex mutex;
  std::condition_variable finished;
  std::atomic<bool> over = false;
  std::exception_ptr error;
};

/// Waits for the sends whose completion was asked for: gloo only reports completion to a thread that waits.
class Reaper {
 public:
  Reaper() : thread_([this] { run(); }) {}
  ~Reaper() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    changed_.notify_one();
    thread_.join();
  }
  Reaper(const Reaper&) = delete;
  Reaper& operator=(const Reaper&) = delete;

  void take(std::shared_ptr<Transmission> transmission) {
    {
      const std::lock_guard lock(mutex_);
      transmissions_.push_back(std::move(transmission));
    }
    changed_.notify_one();
  }

 private:
  void run() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [&] { return stop_ || !transmissions_.empty(); });
      if (transmissions_.empty()) return;
      const std::shared_ptr<Transmission> transmission = std::move(transmissions_.front());
      transmissions_.pop_front();
      lock.unlock();
      std::exception_ptr error;
      try {
        // The deadline applies to waits; a peer may be slow to post a receive.
        for (const WorkPtr& work : transmission->works) work->wait(std::chrono::hours(24 * 365));
      } catch (...) { error = std::current_exception(); }
      {
        const std::lock_guard inner(transmission->mutex);
        transmission->error = error;
        transmission->over.store(true, std::memory_order_release);
      }
      transmission->finished.notify_all();
      lock.lock();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<Transmission>> transmissions_;
  bool stop_ = false;
  std::thread thread_;
};

class GlooSending : public Sending {
 public:
  GlooSending(std::shared_ptr<Line> line, std::unique_ptr<Reaper>& reaper, std::shared_ptr<Transmission> transmission)
      : line_(std::move(line)), reaper_(reaper), transmission_(std::move(transmission)) {}

  bool done() override {
    if (!handed_over_) {
      handed_over_ = true;
      if (!reaper_) reaper_ = std::make_unique<Reaper>();
      reaper_->take(transmission_);
    }
    if (!transmission_->over.load(std::memory_order_acquire)) return false;
    rethrow();
    return true;
  }

  void wait() override {
    if (waited_) return;
    line_->activity->wait_for(transmission_->to, transmission_->tag);
    if (!handed_over_) {
      line_->throw_if_aborted();
      const auto start = Clock::now();
      try {
        for (const WorkPtr& work : transmission_->works) work->wait(line_->deadline);
      } catch (const std::exception& error) {
        if (!line_->aborted && Clock::now() - start >= line_->deadline) throw late();
        line_->fail(transmission_->to, doing(), error);
      }
    } else {
      std::unique_lock lock(transmission_->mutex);
      if (!transmission_->finished.wait_for(lock, line_->deadline, [&] { return transmission_->over.load(); }))
        throw late();
      lock.unlock();
      rethrow();
    }
    line_->activity->go_on();
    waited_ = true;
  }

 private:
  [[nodiscard]] std::string doing() const {
    return fmt::format("while sending to it under tag {}", transmission_->tag);
  }
  [[nodiscard]] meeting::PeerError late() const {
    return meeting::PeerError(
        fmt::format("rank {} waited {} for rank {} to receive a tensor under tag {}", line_->rank,
                    meeting::seconds_text(line_->deadline), transmission_->to, transmission_->tag),
        meeting::PeerError::Cause::Deadline);
  }
  void rethrow() {
    if (!transmission_->error) return;
    try {
      std::rethrow_exception(transmission_->error);
    } catch (const std::exception& error) { line_->fail(transmission_->to, doing(), error); }
  }

  std::shared_ptr<Line> line_;
  std::unique_ptr<Reaper>& reaper_;
  std::shared_ptr<Transmission> transmission_;
  bool handed_over_ = false;
  bool waited_ = false;
};

/// Posts one message's tensor to or from a peer.
WorkPtr post(Line& line, const at::Tensor& tensor, int peer, int slot, bool out) {
  std::vector<at::Tensor> tensors = {tensor};
  try {
    const std::lock_guard lock(line.mutex);
    return out ? line.group->send(tensors, peer, slot) : line.group->recv(tensors, peer, slot);
  } catch (const std::exception& error) {
    line.fail(peer, out ? "while sending to it" : "while receiving from it", error);
  }
}

/// The payload for `tensor`: itself, or one byte if it is empty, so that it still arrives after it was sent.
at::Tensor payload_of(const at::Tensor& tensor) { return tensor.numel() == 0 ? at::empty({1}, at::kByte) : tensor; }

/// An expected message. Its payload is only posted to gloo after the header, if any, has been checked.
struct GlooIncoming {
  TensorSpec spec;
  std::vector<std::int64_t> strides;
  at::Tensor header;
  WorkPtr header_work;
  at::Tensor tensor, payload;
  WorkPtr payload_work;
  int slot = 0;
};

class GlooReceiving : public Receiving {
 public:
  GlooReceiving(std::shared_ptr<Line> line, Inlet<GlooIncoming>& inlet, std::shared_ptr<GlooIncoming> incoming,
                int from, int tag)
      : line_(std::move(line)), inlet_(inlet), incoming_(std::move(incoming)), from_(from), tag_(tag) {}

  at::Tensor wait() override {
    while (!incoming_->payload_work) {
      GlooIncoming& next = *inlet_.unposted.front();
      if (next.header_work) {
        wait_for(*next.header_work);
        inlet_.announced.strides = check_header(next.header, line_->rank, next.spec, from_, tag_);
      }
      next.strides = inlet_.announced.strides;
      next.payload_work = post(*line_, next.payload, from_, next.slot, false);
      inlet_.unposted.pop_front();
    }
    wait_for(*incoming_->payload_work);
    return from_memory(incoming_->tensor, incoming_->strides);
  }

 private:
  void wait_for(c10d::Work& work) {
    line_->throw_if_aborted();
    line_->activity->wait_for(from_, tag_);
    const auto start = Clock::now();
    try {
      work.wait(line_->deadline);
      line_->activity->go_on();
    } catch (const std::exception& error) {
      if (!line_->aborted && Clock::now() - start >= line_->deadline) {
        throw late_tensor(line_->rank, line_->deadline, from_, tag_);
      }
      line_->fail(from_, fmt::format("while waiting for a tensor under tag {}", tag_), error);
    }
  }

  std::shared_ptr<Line> line_;
  Inlet<GlooIncoming>& inlet_;
  std::shared_ptr<GlooIncoming> incoming_;
  int from_;
  int tag_;
};

class GlooChannel : public Channel {
 public:
  GlooChannel(std::shared_ptr<Line> line, int ranks) : line_(std::move(line)), ranks_(ranks) {}

  ~GlooChannel() override {
    reaper_.reset();
    line_->group.reset();
  }

  int rank() const override { return line_->rank; }
  int ranks() const override { return ranks_; }
  Activity& activity() override { return *line_->activity; }

  std::unique_ptr<Sending> send(const at::Tensor& tensor, int to, int tag) override {
    check_edge(*this, to, tag);
    check_sendable(tensor);
    check_device(tensor);
    const TensorSpec spec = spec_of(tensor);
    check_dimensions(spec);
    line_->throw_if_aborted();
    auto transmission = std::make_shared<Transmission>();
    transmission->to = to;
    transmission->tag = tag;
    Announced& announced = out_[edge_key(to, tag)];
    if (announced.changes_to(spec)) {
      announced.strides = tensor.strides().vec();
      transmission->works.push_back(post(*line_, make_header({spec, announced.strides}), to, tag + kHeaderSlot, true));
    }
    const at::Tensor values = memory_of(tensor.detach(), announced.strides);
    transmission->works.push_back(post(*line_, payload_of(values), to, payload_slot(announced, tag), true));
    return std::make_unique<GlooSending>(line_, reaper_, std::move(transmission));
  }

  std::unique_ptr<Receiving> receive(const TensorSpec& spec, int from, int tag) override {
    check_edge(*this, from, tag);
    check_dimensions(spec);
    line_->throw_if_aborted();
    Inlet<GlooIncoming>& inlet = in_[edge_key(from, tag)];
    auto incoming = std::make_shared<GlooIncoming>();
    incoming->spec = spec;
    incoming->tensor = at::empty(spec.shape, spec.dtype);
    incoming->payload = payload_of(incoming->tensor);
    if (inlet.announced.changes_to(spec)) {
      incoming->header = empty_header();
      incoming->header_work = post(*line_, incoming->header, from, tag + kHeaderSlot, false);
    }
    incoming->slot = payload_slot(inlet.announced, tag);
    if (incoming->header_work || !inlet.unposted.empty()) {
      inlet.unposted.push_back(incoming);
    } else {
      incoming->strides = inlet.announced.strides;
      incoming->payload_work = post(*line_, incoming->payload, from, incoming->slot, false);
    }
    return std::make_unique<GlooReceiving>(line_, inlet, std::move(incoming), from, tag);
  }

  void barrier() override {
    const at::Tensor token = at::empty({1}, at::kByte);
    try {
      // After the round with distance d, every rank knows of the 2d - 1 ranks before it.
      for (int distance = 1; distance < ranks_; distance *= 2) {
        auto receiving = receive(spec_of(token), (rank() - distance + ranks_) % ranks_, kBarrierTag);
        auto sending = send(token, (rank() + distance) % ranks_, kBarrierTag);
        (void)receiving->wait();
        sending->wait();
      }
    } catch (const meeting::PeerError& error) { throw error.within("", ", at a barrier"); }
  }

  void abort(const std::string& reason) override {
    {
      const std::lock_guard lock(line_->mutex);
      if (line_->aborted) return;
      line_->reason = reason;
      line_->aborted.store(true, std::memory_order_release);
    }
    if (ranks_ == 1) return;
    try {
      if (!line_->store->check({kAbortKey})) line_->store->set(kAbortKey, meeting::printable(reason));
    } catch (const std::exception&) {  // the others notice only the closed connections
    }
    // ProcessGroupGloo::abort does nothing. But a wait that times out closes every connection of the group, which
    // ends all waits at both ends of each.
    try {
      post(*line_, at::empty({1}, at::kByte), (rank() + 1) % ranks_, kBarrierTag + kHeaderSlot + kSlotStep, false)
          ->wait(std::chrono::milliseconds(1));
    } catch (const std::exception&) {}
  }

 protected:
  void check_device(const at::Tensor& tensor) const override { check_on_cpu("gloo", tensor); }

 private:
  std::shared_ptr<Line> line_;
  int ranks_;
  std::unique_ptr<Reaper> reaper_;
  std::unordered_map<std::uint64_t, Announced> out_;
  std::unordered_map<std::uint64_t, Inlet<GlooIncoming>> in_;
};

/// The interface that GLOO_SOCKET_IFNAME names, else the given address or that on the route to the rendezvous server.
std::shared_ptr<gloo::transport::Device> make_device(const meeting::LaunchInfo& launch) {
  if (const char* name = std::getenv("GLOO_SOCKET_IFNAME")) {
    return c10d::ProcessGroupGloo::createDeviceForInterface(name);
  }
  const bool any = launch.listen.empty() || launch.listen == "0.0.0.0" || launch.listen == "::";
  return c10d::ProcessGroupGloo::createDeviceForHostname(any ? meeting::address_towards(launch.host) : launch.listen);
}

}  // namespace

std::unique_ptr<Channel> make_gloo_channel(const meeting::LaunchInfo& launch, std::chrono::milliseconds deadline,
                                           std::shared_ptr<Activity> activity) {
  const meeting::LaunchInfo found = meeting::find_meeting(launch, deadline);
  auto line = std::make_shared<Line>();
  line->rank = launch.rank;
  line->deadline = deadline;
  line->activity = activity ? std::move(activity) : std::make_shared<Activity>();
  line->store = meeting::connect_store(found, "channel", deadline);
  const auto options = c10d::ProcessGroupGloo::Options::create(deadline);
  options->threads = 1;  // only needed for collectives, which are not used
  try {
    options->devices.push_back(make_device(found));
    line->group = c10::make_intrusive<c10d::ProcessGroupGloo>(line->store, launch.rank, launch.ranks, options);
  } catch (const std::exception& error) {
    throw meeting::PeerError(fmt::format("rank {} could not connect to the other {} ranks within {}: {}", launch.rank,
                                         launch.ranks - 1, meeting::seconds_text(deadline), short_text(error)),
                             meeting::PeerError::Cause::Deadline);
  }
  auto channel = std::make_unique<GlooChannel>(line, launch.ranks);
  if (launch.ranks > 1) prove_to_each_other(*channel, meeting::run_key(launch.secret, launch.run_id));
  return channel;
}

ChannelKind gloo_channel() {
  return {.name = "gloo",
          .help = "one process per rank, on CPUs, over TCP",
          .device = "cpu",
          .make_process =
              [](const ChannelSetup& setup) { return make_gloo_channel(setup.launch, setup.deadline, setup.activity); },
          .version = [] { return std::string("Gloo (c10d)"); }};
}

}  // namespace stagecraft::channel
