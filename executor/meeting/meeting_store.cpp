#include "executor/meeting/meeting_store.h"

#include <c10/util/Logging.h>
#include <fmt/format.h>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <algorithm>
#include <cstdlib>
#include <mutex>
#include <sstream>
#include <thread>

#include "executor/meeting/launch_info.h"
#include "executor/meeting/meeting_protocol.h"
#include "executor/meeting/secret.h"

namespace stagecraft::meeting {
namespace {

using Clock = std::chrono::steady_clock;
using ByteVector = std::vector<std::uint8_t>;
using std::chrono::milliseconds;

/// The first line of an error's text: c10's errors contain a stack trace.
std::string first_line(const std::exception& error) {
  const std::string text = error.what();
  return text.substr(0, text.find('\n'));
}

/// c10d prints each failed call with a stack trace before it throws. We catch it and report what it means;
/// TORCH_CPP_LOG_LEVEL enables its log.
void quiet_log() {
  static const bool once = [] {
    if (std::getenv("TORCH_CPP_LOG_LEVEL") == nullptr) FLAGS_caffe2_log_level = c10::GLOG_FATAL;
    return true;
  }();
  static_cast<void>(once);
}

/// The rendezvous server has a different secret from this rank: retrying is useless.
class OtherSecret : public PeerError {
 public:
  using PeerError::PeerError;
};

std::string to_text(const ByteVector& bytes) { return {bytes.begin(), bytes.end()}; }
ByteVector to_bytes(const std::string& text) { return {text.begin(), text.end()}; }

/// A connection whose two ends have proved that they know the run's secret.
struct ProvenConnection {
  Socket socket;
  std::string buffer;
};

ProvenConnection open_link(const LaunchInfo& launch, milliseconds deadline) {
  ProvenConnection link{connect_to(launch.host, launch.port, deadline), {}};
  const auto receive = [&] { return receive_message(link.socket, link.buffer, kMostGreetingBytes, deadline); };
  const Message greeting = receive();
  if (greeting.size() != 2 || greeting[0] != kGreeting) throw PeerError("the server there is not a rendezvous server");
  const std::string key = run_key(launch.secret, launch.run_id);
  const std::string rank = std::to_string(launch.rank);
  const std::string nonce = random_secret();
  send_message(link.socket, {rank, launch.run_id, nonce, client_proof(key, rank, greeting[1], nonce)}, deadline);
  const Message answer = receive();
  const std::string verdict = answer.empty() ? "" : answer[0];
  const bool welcome = verdict == kWelcome && answer.size() == 2;
  if (welcome && same_authenticator(answer[1], server_proof(key, greeting[1], nonce))) return link;
  if (verdict == kOtherRun) throw PeerError("it belongs to another run");
  if (!welcome && verdict != kOtherSecret) throw PeerError("the server there is not a rendezvous server");
  throw OtherSecret(
      launch.secret.empty()
          ? fmt::format("rank {} has no secret, unlike the rendezvous server at {}; start all ranks with the "
                        "same {}",
                        launch.rank, meeting_point(launch), kSecretVariable)
          : fmt::format(
                "rank {} has a different secret from the rendezvous server at {}; start all ranks with the same {}",
                launch.rank, meeting_point(launch), kSecretVariable));
}

/// A link, retried until the deadline: the rendezvous server may start later than this rank.
ProvenConnection reach(const LaunchInfo& launch, milliseconds deadline) {
  constexpr milliseconds kPause{50};
  const auto end = Clock::now() + deadline;
  while (true) {
    std::string why;
    try {
      const auto left = std::chrono::ceil<milliseconds>(end - Clock::now());
      return open_link(launch, std::max(left, milliseconds(1)));
    } catch (const OtherSecret&) { throw; } catch (const PeerError& error) {
      why = error.what();
    }
    if (Clock::now() + kPause >= end) {
      throw PeerError(fmt::format("rank {} did not reach the rendezvous server at {} within {}: {}", launch.rank,
                                  meeting_point(launch), seconds_text(deadline), why),
                      PeerError::Cause::Deadline);
    }
    std::this_thread::sleep_for(kPause);
  }
}

/// A connection to the rendezvous server as a c10d store.
class MeetingStore : public c10d::Store {
 public:
  MeetingStore(const LaunchInfo& launch, std::string prefix, milliseconds deadline)
      : c10d::Store(deadline), launch_(launch), prefix_(std::move(prefix)), link_(reach(launch, deadline)) {}

  c10::intrusive_ptr<c10d::Store> clone() override {
    return c10::make_intrusive<MeetingStore>(launch_, prefix_, timeout_);
  }

  void set(const std::string& key, const ByteVector& value) override {
    if (ask({kSet, full(key), to_text(value)})[0] != kDone) throw no_room(key);
  }

  ByteVector compareSet(const std::string& key, const ByteVector& expected, const ByteVector& desired) override {
    const Message answer = ask({kCompareSet, full(key), to_text(expected), to_text(desired)});
    if (answer.size() != 2) throw no_room(key);
    return to_bytes(answer[1]);
  }

  ByteVector get(const std::string& key) override { return multiGet({key}).front(); }

  std::vector<ByteVector> multiGet(const std::vector<std::string>& keys) override {
    Message request = {kGet};
    for (const std::string& key : keys) request.push_back(full(key));
    Message answer = ask(request);
    if (answer[0] != kDone) {
      wait(keys);
      answer = ask(request);
    }
    if (answer.size() != keys.size() + 1) throw PeerError("the rendezvous server lost a key");
    std::vector<ByteVector> values;
    for (std::size_t i = 1; i < answer.size(); ++i) values.push_back(to_bytes(answer[i]));
    return values;
  }

  void multiSet(const std::vector<std::string>& keys, const std::vector<ByteVector>& values) override {
    for (std::size_t i = 0; i < keys.size(); ++i) set(keys[i], values.at(i));
  }

  void append(const std::string& key, const ByteVector& more) override {
    change(key, [&](const std::string& text) { return text + to_text(more); });
  }

  std::int64_t add(const std::string& key, std::int64_t value) override {
    return std::stoll(change(
        key, [&](const std::string& text) { return std::to_string((text.empty() ? 0 : std::stoll(text)) + value); }));
  }

  bool check(const std::vector<std::string>& keys) override { return wait_for(keys, milliseconds(0)); }
  void wait(const std::vector<std::string>& keys) override { wait(keys, timeout_); }
  void wait(const std::vector<std::string>& keys, const milliseconds& timeout) override {
    if (!wait_for(keys, timeout)) throw PeerError("timed out waiting for keys", PeerError::Cause::Deadline);
  }

  bool deleteKey(const std::string& key) override { return ask({kDelete, full(key)})[0] == kDone; }
  std::int64_t getNumKeys() override { return std::stoll(ask({kCount}).at(1)); }
  bool hasExtendedApi() const override { return true; }

  void leave_will(const std::string& key, const std::string& expected, const std::string& desired) {
    (void)ask({kWill, full(key), expected, desired});
  }
  void withdraw_will() { (void)ask({kWill}); }

 private:
  [[nodiscard]] std::string full(const std::string& key) const { return prefix_ + "/" + key; }
  [[nodiscard]] PeerError no_room(const std::string& key) const {
    return PeerError(
        fmt::format("the rendezvous server at {} rejected the value of \"{}\": too long, or too many values",
                    meeting_point(launch_), key));
  }

  /// Sends one request and returns its answer, which has at least one text.
  Message ask(const Message& request, milliseconds longer = milliseconds(0)) {
    const std::lock_guard lock(mutex_);
    send_message(link_.socket, request, timeout_);
    Message answer = receive_message(link_.socket, link_.buffer, kMostAnswerBytes, timeout_ + longer);
    if (answer.empty()) throw PeerError("the rendezvous server sent an empty answer");
    return answer;
  }

  bool wait_for(const std::vector<std::string>& keys, milliseconds longest) {
    Message request = {kWait, std::to_string(longest.count())};
    for (const std::string& key : keys) request.push_back(full(key));
    return ask(request, longest)[0] == kDone;
  }

  /// Replaces the value of a key ("" if absent) with `next` of it, and returns the new value.
  template <typename Next>
  std::string change(const std::string& key, const Next& next) {
    ByteVector before;
    while (true) {
      const std::string after = next(to_text(before));
      const ByteVector found = compareSet(key, before, to_bytes(after));
      if (to_text(found) == after) return after;
      before = found;
    }
  }

  LaunchInfo launch_;
  std::string prefix_;
  std::mutex mutex_;
  ProvenConnection link_;
};

/// Key in the store of torchrun's agent under which rank 0 publishes the rendezvous server.
std::string agent_key(const LaunchInfo& launch) { return fmt::format("stagecraft/{}/meeting", launch.run_id); }

std::string place_proof(const LaunchInfo& launch, const std::string& host, const std::string& port) {
  return authenticator(run_key(launch.secret, launch.run_id), "place " + host + " " + port);
}

c10::intrusive_ptr<c10d::TCPStore> connect_agent(const LaunchInfo& launch, milliseconds deadline) {
  quiet_log();
  c10d::TCPStoreOptions options;
  options.port = launch.port;
  options.waitWorkers = false;
  options.timeout = deadline;
  try {
    return c10::make_intrusive<c10d::TCPStore>(launch.host, options);
  } catch (const std::exception& error) {
    throw PeerError(fmt::format("rank {} did not reach torchrun's agent at {} within {}: {}", launch.rank,
                                meeting_point(launch), seconds_text(deadline), first_line(error)),
                    PeerError::Cause::Deadline);
  }
}

}  // namespace

std::unique_ptr<StoreServer> serve_meeting(const LaunchInfo& launch, milliseconds deadline) {
  MeetingPlace place;
  place.host = !launch.listen.empty() ? launch.listen : launch.agent ? address_towards(launch.host) : launch.host;
  place.port = launch.agent ? 0 : launch.port;
  place.secret = launch.secret;
  place.run_id = launch.run_id;
  auto server = std::make_unique<StoreServer>(place);
  if (launch.agent) {
    const std::string host = launch.listen.empty() ? place.host : address_towards(launch.host);
    const std::string port = std::to_string(server->port());
    connect_agent(launch, deadline)
        ->set(agent_key(launch), to_bytes(fmt::format("{} {} {}", host, port, place_proof(launch, host, port))));
  }
  return server;
}

LaunchInfo find_meeting(const LaunchInfo& launch, milliseconds deadline) {
  if (!launch.agent) return launch;
  std::string text;
  try {
    text = to_text(connect_agent(launch, deadline)->get(agent_key(launch)));
  } catch (const PeerError&) { throw; } catch (const std::exception& error) {
    throw PeerError(fmt::format("rank {} waited {} for rank 0 to publish the rendezvous server at torchrun's agent {}",
                                launch.rank, seconds_text(deadline), meeting_point(launch)),
                    PeerError::Cause::Deadline);
  }
  std::istringstream words(text.substr(0, kMostGreetingBytes));
  std::string host;
  std::string port;
  std::string proof;
  words >> host >> port >> proof;
  if (!same_authenticator(proof, place_proof(launch, host, port))) {
    throw PeerError(
        fmt::format("rank {}: the rendezvous server's address in torchrun's store was written with a different secret; "
                    "start all ranks with the same {}",
                    launch.rank, kSecretVariable));
  }
  LaunchInfo found = launch;
  found.agent = false;
  found.host = host;
  found.port = static_cast<std::uint16_t>(std::stoi(port));
  return found;
}

c10::intrusive_ptr<c10d::Store> connect_store(const LaunchInfo& launch, const std::string& prefix,
                                              milliseconds deadline) {
  quiet_log();
  return c10::make_intrusive<MeetingStore>(launch, prefix, deadline);
}

void leave_will(c10d::Store& store, const std::string& key, const std::string& expected, const std::string& desired) {
  dynamic_cast<MeetingStore&>(store).leave_will(key, expected, desired);
}

void withdraw_will(c10d::Store& store) { dynamic_cast<MeetingStore&>(store).withdraw_will(); }

std::string meeting_point(const LaunchInfo& launch) { return fmt::format("{}:{}", launch.host, launch.port); }

}  // namespace stagecraft::meeting
