#include "executor/channel/ucx/channel_ucx.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <thread>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <unordered_map>

#include "costmodel/errors.h"
#include "costmodel/index.h"
#include "executor/channel/channel.h"
#include "executor/channel/collective.h"
#include "executor/channel/peer_proof.h"
#include "executor/channel/tensor_message.h"
#include "executor/channel/ucx/ucx_all_reduce.h"
#include "executor/channel/ucx/ucx_library.h"
#include "executor/channel/ucx/ucx_line.h"
#include "executor/channel/ucx/ucx_transports.h"
#include "executor/meeting/meeting_store.h"
#include "executor/meeting/wire.h"

namespace stagecraft::channel {
namespace {

using Clock = std::chrono::steady_clock;
using meeting::PeerError;

constexpr const char* kAbortKey = "abort";

/// Up to here, members times values, an all-reduce takes one round instead of two (bench/channel_bench.cpp).
constexpr std::int64_t kFewValues = std::int64_t{1} << 14;

PeerError late_receiver(UcxLine& line, int to, int tag) {
  return PeerError(fmt::format("rank {} waited {} for rank {} to receive a tensor under tag {}", line.rank(),
                               meeting::seconds_text(line.deadline()), to, tag),
                   PeerError::Cause::Deadline);
}

class UcxSending : public Sending {
 public:
  UcxSending(std::shared_ptr<UcxLine> line, int to, int tag) : line_(std::move(line)), to_(to), tag_(tag) {}
  void add(UcxTransfer transfer) { transfers_.push_back(std::move(transfer)); }

  bool done() override {
    if (all_over()) return true;
    line_->throw_if_aborted();
    line_->progress();
    return all_over();
  }

  void wait() override {
    if (all_over()) return;
    line_->wait_until([&] { return all_over(); }, {&to_, 1}, tag_, kDoing,
                      [&] { return late_receiver(*line_, to_, tag_); });
  }

 private:
  static constexpr const char* kDoing = "while sending to it";

  bool all_over() {
    for (; over_ < transfers_.size(); ++over_) {
      if (!transfers_[over_].over()) return false;
      line_->check(transfers_[over_], to_, tag_, kDoing);
    }
    return true;
  }

  std::shared_ptr<UcxLine> line_;
  std::vector<UcxTransfer> transfers_;  ///< header, if any, and payload
  std::size_t over_ = 0;
  int to_;
  int tag_;
};

/// An expected message. Its payload is only posted to UCX after the header, if any, has been checked.
struct UcxIncoming {
  TensorSpec spec;
  std::vector<std::int64_t> strides;
  at::Tensor header;
  UcxTransfer header_transfer;
  at::Tensor tensor;
  UcxTransfer transfer;
  int count = 0;
  bool posted = false;
};

class UcxReceiving : public Receiving {
 public:
  UcxReceiving(std::shared_ptr<UcxLine> line, Inlet<UcxIncoming>& inlet, std::shared_ptr<UcxIncoming> incoming,
               int from, int tag)
      : line_(std::move(line)), inlet_(inlet), incoming_(std::move(incoming)), from_(from), tag_(tag) {}

  at::Tensor wait() override {
    while (!incoming_->posted) {
      UcxIncoming& next = *inlet_.unposted.front();
      if (next.header.defined()) {
        wait_for(next.header_transfer);
        inlet_.announced.strides = check_header(next.header, line_->rank(), next.spec, from_, tag_);
      }
      post(*line_, inlet_, next, from_, tag_);
      inlet_.unposted.pop_front();
    }
    wait_for(incoming_->transfer);
    if (incoming_->transfer.bytes() != incoming_->tensor.nbytes()) {
      throw PeerError(fmt::format("rank {} expected {} bytes from rank {} under tag {}, got {}", line_->rank(),
                                  incoming_->tensor.nbytes(), from_, tag_, incoming_->transfer.bytes()));
    }
    return from_memory(incoming_->tensor, incoming_->strides);
  }

  static void post(UcxLine& line, const Inlet<UcxIncoming>& inlet, UcxIncoming& incoming, int from, int tag) {
    incoming.strides = inlet.announced.strides;
    incoming.transfer =
        line.receive(incoming.tensor, from, tag, UcxKind::Payload, static_cast<std::uint64_t>(incoming.count));
    incoming.posted = true;
  }

 private:
  void wait_for(UcxTransfer& transfer) {
    line_->wait(transfer, from_, tag_, "while waiting for a tensor",
                [&] { return late_tensor(line_->rank(), line_->deadline(), from_, tag_); });
  }

  std::shared_ptr<UcxLine> line_;
  Inlet<UcxIncoming>& inlet_;
  std::shared_ptr<UcxIncoming> incoming_;
  int from_;
  int tag_;
};

class UcxChannel : public Channel {
 public:
  UcxChannel(std::shared_ptr<UcxLine> line, c10::intrusive_ptr<c10d::Store> store)
      : line_(std::move(line)), store_(std::move(store)) {}

  int rank() const override { return line_->rank(); }
  int ranks() const override { return line_->ranks(); }
  Activity& activity() override { return line_->activity(); }

  std::unique_ptr<Sending> send(const at::Tensor& tensor, int to, int tag) override {
    check_edge(*this, to, tag);
    check_sendable(tensor);
    check_device(tensor);
    const TensorSpec spec = spec_of(tensor);
    check_dimensions(spec);
    line_->throw_if_aborted();
    auto sending = std::make_unique<UcxSending>(line_, to, tag);
    Announced& announced = out_[edge_key(to, tag)];
    if (announced.changes_to(spec)) {
      announced.strides = tensor.strides().vec();
      sending->add(line_->send(make_header({spec, announced.strides}), to, tag, UcxKind::Header, 0));
    }
    const at::Tensor values = memory_of(tensor.detach(), announced.strides);
    sending->add(line_->send(values, to, tag, UcxKind::Payload, static_cast<std::uint64_t>(announced.count)));
    line_->progress();
    return sending;
  }

  std::unique_ptr<Receiving> receive(const TensorSpec& spec, int from, int tag) override {
    check_edge(*this, from, tag);
    check_dimensions(spec);
    line_->throw_if_aborted();
    Inlet<UcxIncoming>& inlet = in_[edge_key(from, tag)];
    auto incoming = std::make_shared<UcxIncoming>();
    incoming->spec = spec;
    incoming->tensor = at::empty(spec.shape, spec.dtype);
    if (inlet.announced.changes_to(spec)) {
      incoming->header = empty_header();
      incoming->header_transfer = line_->receive(incoming->header, from, tag, UcxKind::Header, 0);
    }
    incoming->count = inlet.announced.count;
    if (incoming->header.defined() || !inlet.unposted.empty()) {
      inlet.unposted.push_back(incoming);
    } else {
      UcxReceiving::post(*line_, inlet, *incoming, from, tag);
    }
    line_->progress();
    return std::make_unique<UcxReceiving>(line_, inlet, std::move(incoming), from, tag);
  }

  void barrier() override {
    try {
      one_round_barrier(*this);
    } catch (const PeerError& error) { throw error.within("", ", at a barrier"); }
  }

  void abort(const std::string& reason) override {
    line_->worker().give_up();
    if (!line_->abort(reason) || ranks() == 1) return;
    try {
      if (!store_->check({kAbortKey})) store_->set(kAbortKey, meeting::printable(reason));
    } catch (const std::exception&) {  // the others' deadlines end their waits
    }
  }

 protected:
  void check_device(const at::Tensor& tensor) const override { check_on_cpu("ucx", tensor); }

  std::unique_ptr<CollectiveInProgress> begin(const CollectiveCall& call) override {
    line_->throw_if_aborted();
    const at::Tensor& values = call.values;
    if (call.kind != Collective::AllReduce || values.scalar_type() != at::kFloat ||
        values.numel() * static_cast<std::int64_t>(call.members.size()) <= kFewValues)
      return Channel::begin(call);
    std::vector<UcxAllReduce::ReducePeer> edges;
    for (const int member : call.members) {
      if (member == rank()) continue;
      Announced& out = out_[edge_key(member, call.tag)];
      Announced& in = in_[edge_key(member, call.tag)].announced;
      out.strides = in.strides = {1};
      UcxAllReduce::ReducePeer edge{.rank = member};
      edge.announces_out = out.changes_to(spec_of(values));
      edge.announces_in = in.changes_to(spec_of(values));
      edge.count_out = out.count;
      edge.count_in = in.count;
      edges.push_back(edge);
    }
    return std::make_unique<UcxAllReduce>(line_, scratch_, call, std::move(edges));
  }

 private:
  std::shared_ptr<UcxLine> line_;
  c10::intrusive_ptr<c10d::Store> store_;
  std::shared_ptr<UcxScratch> scratch_ = std::make_shared<UcxScratch>();
  std::unordered_map<std::uint64_t, Announced> out_;
  std::unordered_map<std::uint64_t, Inlet<UcxIncoming>> in_;
};

std::optional<std::string> environment(const char* name) {
  const char* const value = std::getenv(name);
  return value ? std::optional<std::string>(value) : std::nullopt;
}

/// Publishes `value` and returns every rank's, by rank.
std::vector<std::string> swap_over(c10d::Store& store, const meeting::LaunchInfo& launch, const std::string& key,
                                   const std::string& value) {
  store.set(fmt::format("{}/{}", key, launch.rank), value);
  std::vector<std::string> out;
  for (int rank = 0; rank < launch.ranks; ++rank)
    out.push_back(rank == launch.rank ? value : store.get_to_str(fmt::format("{}/{}", key, rank)));
  return out;
}

/// The text of an error without c10's stack trace.
std::string first_line(const std::exception& error) {
  const std::string text = error.what();
  return text.substr(0, text.find('\n'));
}

std::string hexadecimal(const std::string& bytes) {
  std::string out;
  for (const char byte : bytes) out += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  return out;
}

std::string from_hexadecimal(const std::string& text) {
  std::string out;
  for (std::size_t i = 0; i + 1 < text.size(); i += 2)
    out += static_cast<char>(std::strtol(text.substr(i, 2).c_str(), nullptr, 16));
  return out;
}

/// Why shared memory cannot be used; empty if it can. Each rank takes 4.1 MiB of it.
std::string why_no_shared_memory() {
  constexpr const char* kFolder = "/dev/shm";
  constexpr std::uint64_t kRankMebibytes = 5;
  const std::uint64_t ranks = std::max(2U, std::thread::hardware_concurrency());
  struct statvfs room{};
  if (statvfs(kFolder, &room) != 0 || access(kFolder, W_OK) != 0)
    return fmt::format("{} cannot be written: {}", kFolder, std::strerror(errno));
  const std::uint64_t free = room.f_bavail * room.f_frsize >> 20U;
  if (free >= ranks * kRankMebibytes) return "";
  return fmt::format("{} has {} MiB left, {} ranks need {} MiB", kFolder, free, ranks, ranks * kRankMebibytes);
}

}  // namespace

std::string why_no_ucx() {
  try {
    (void)ucx_library();
    return environment("UCX_TLS") ? "" : why_no_shared_memory();
  } catch (const std::exception& error) { return error.what(); }
}

std::string ucx_version() {
  const UcxSilence silence;
  unsigned major = 0;
  unsigned minor = 0;
  unsigned release = 0;
  try {
    ucx_library().get_version(&major, &minor, &release);
  } catch (const DeviceError&) { return "UCX not found"; }
  return fmt::format("UCX {}.{}.{}", major, minor, release);
}

std::unique_ptr<Channel> make_ucx_channel(const meeting::LaunchInfo& launch, std::chrono::milliseconds deadline,
                                          std::shared_ptr<Activity> activity, const std::string& transports) {
  if (launch.ranks > kMostUcxRanks)
    throw std::invalid_argument(fmt::format("channel ucx has at most {} ranks, got {}", kMostUcxRanks, launch.ranks));
  (void)ucx_library();
  const meeting::LaunchInfo found = meeting::find_meeting(launch, deadline);
  const c10::intrusive_ptr<c10d::Store> store = meeting::connect_store(found, "channel ucx " + transports, deadline);
  const auto lost = [&](const std::string& why) {
    return PeerError(fmt::format("rank {} could not connect to the other {} ranks within {}: {}", launch.rank,
                                 launch.ranks - 1, meeting::seconds_text(deadline), why),
                     PeerError::Cause::Deadline);
  };

  UcxSurroundings surroundings;
  UcxLine::Setup setup;
  std::shared_ptr<UcxWorker> worker;
  std::vector<std::string> addresses;
  std::vector<int> processes;
  std::vector<std::string> peer_addresses;
  const std::string own_domain = memory_domain();
  try {
    surroundings.domains = swap_over(*store, found, "memory", own_domain);
    setup.ranks_here = to_int(std::ranges::count(surroundings.domains, own_domain));
    for (const std::string& text : swap_over(*store, found, "process", fmt::format("{}", getpid())))
      processes.push_back(std::atoi(text.c_str()));
    for (const std::string& text :
         swap_over(*store, found, "machine", fmt::format("{}", fmt::join(own_addresses(), " ")))) {
      std::istringstream words(text);
      for (std::string address; words >> address;) peer_addresses.push_back(address);
    }
    std::ranges::sort(peer_addresses);
    peer_addresses.erase(std::ranges::unique(peer_addresses).begin(), peer_addresses.end());
  } catch (const std::exception& error) { throw lost(first_line(error)); }
  const bool any = found.listen.empty() || found.listen == "0.0.0.0" || found.listen == "::";
  surroundings.interface = interface_of(any ? meeting::address_towards(found.host) : found.listen);
  surroundings.rdma_ports = active_rdma_ports();
  surroundings.given_tls = transports.empty() ? environment("UCX_TLS") : transports;
  surroundings.given_devices = environment("UCX_NET_DEVICES");
  UcxSettings settings = choose_transports(surroundings);
  if (!transports.empty()) settings.transports = transports;
  worker = std::make_shared<UcxWorker>(settings, launch.ranks);
  worker->admit_only(peer_addresses);
  try {
    addresses = swap_over(*store, found, "address", hexadecimal(worker->address()));
  } catch (const std::exception& error) { throw lost(first_line(error)); }
  for (int peer = 0; peer < launch.ranks; ++peer) {
    if (peer == launch.rank) continue;
    worker->connect(peer, from_hexadecimal(addresses[to_index(peer)]));
    if (surroundings.domains[to_index(peer)] == own_domain && processes[to_index(peer)] > 0)
      worker->watch(peer, processes[to_index(peer)]);
  }

  setup.rank = launch.rank;
  setup.ranks = launch.ranks;
  setup.deadline = deadline;
  setup.activity = activity ? std::move(activity) : std::make_shared<Activity>();
  setup.aborted_elsewhere = [store]() -> std::string {
    try {
      if (store->check({kAbortKey})) return meeting::printable(store->get_to_str(kAbortKey));
    } catch (const std::exception&) {  // the rendezvous server has disappeared, which others notice
    }
    return "";
  };
  const auto line = std::make_shared<UcxLine>(std::move(setup), worker);
  auto channel = std::make_unique<UcxChannel>(line, store);
  if (launch.ranks > 1) {
    prove_to_each_other(*channel, meeting::run_key(launch.secret, launch.run_id));
    worker->flush(Clock::now() + deadline);
    channel->barrier();
    worker->admit_only({});
  }
  return channel;
}

}  // namespace stagecraft::channel
