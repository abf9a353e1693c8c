#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <list>
#include <map>
#include <optional>
#include <thread>

#include "costmodel/index.h"
#include "costmodel/text/number.h"
#include "executor/meeting/meeting_protocol.h"
#include "executor/meeting/meeting_store.h"

namespace stagecraft::meeting {
namespace {

using Clock = std::chrono::steady_clock;

/// Limits for clients that have not proved anything yet: how many at once, and for how long.
constexpr std::ptrdiff_t kMostStrangers = 64;
constexpr auto kPatience = std::chrono::seconds(5);
constexpr std::size_t kMostRefused = 4096;
constexpr std::size_t kMostKeyBytes = 1024;

/// A client that waits for keys.
struct Waiting {
  std::vector<std::string> keys;
  Clock::time_point end;
};

/// What a client wants set when it disappears.
struct Will {
  std::string key;
  std::string expected;
  std::string desired;
};

struct Connection {
  Socket socket;
  std::string nonce;
  Clock::time_point since = Clock::now();
  bool trusted = false;
  bool closing = false;  ///< after everything is sent
  std::string in;
  std::string out;
  std::optional<Waiting> waiting;
  std::optional<Will> will;
};

}  // namespace

/// One thread serves all clients. A connection that violates the protocol is closed.
class StoreServer::Loop {
 public:
  explicit Loop(MeetingPlace place)
      : place_(std::move(place)),
        key_(run_key(place_.secret, place_.run_id)),
        listener_(listen_on(place_.host, place_.port)),
        endpoint_(own_end(listener_)),
        stop_(::eventfd(0, EFD_CLOEXEC)),
        thread_([this] { run(); }) {}

  ~Loop() {
    const std::uint64_t one = 1;
    [[maybe_unused]] const auto written = ::write(stop_.get(), &one, sizeof one);
    thread_.join();
  }
  Loop(const Loop&) = delete;
  Loop& operator=(const Loop&) = delete;

  [[nodiscard]] const Endpoint& endpoint() const { return endpoint_; }

 private:
  void run() {
    while (true) {
      std::vector<pollfd> entries = {{stop_.get(), POLLIN, 0}, {listener_.get(), POLLIN, 0}};
      for (const Connection& connection : connections_) {
        entries.push_back({connection.socket.get(), static_cast<short>(connection.out.empty() ? POLLIN : POLLOUT), 0});
      }
      if (::poll(entries.data(), entries.size(), longest_poll()) < 0 && errno != EINTR) return;
      if (entries[0].revents != 0) return;
      auto entry = entries.begin() + 2;
      for (auto connection = connections_.begin(); connection != connections_.end(); ++entry) {
        const bool stays = entry->revents == 0 || serve(*connection, entry->revents);
        connection = stays ? std::next(connection) : drop(connection);
      }
      const auto now = Clock::now();
      std::erase_if(connections_, [&](const Connection& c) { return !c.trusted && now - c.since > kPatience; });
      for (Connection& connection : connections_) {
        if (connection.waiting && connection.waiting->end <= now) finish_wait(connection, kLate);
      }
      if (entries[1].revents != 0) accept_one();
    }
  }

  /// Closes a connection and does what its client wanted then. Returns the next one.
  std::list<Connection>::iterator drop(std::list<Connection>::iterator closed) {
    const std::optional<Will> will = std::move(closed->will);
    const auto next = connections_.erase(closed);
    if (will) (void)compare_set(will->key, will->expected, will->desired);
    return next;
  }

  /// Milliseconds until the next event that needs no message.
  [[nodiscard]] int longest_poll() const {
    auto next = Clock::now() + std::chrono::hours(1);
    for (const Connection& connection : connections_) {
      if (!connection.trusted) next = std::min(next, connection.since + kPatience);
      if (connection.waiting) next = std::min(next, connection.waiting->end);
    }
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(next - Clock::now()).count();
    return to_int(std::max<std::int64_t>(left, 0)) + 1;
  }

  void accept_one() {
    Socket socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (socket.get() < 0) {
      // Out of descriptors: without this pause, the loop would spin on the connection that it cannot accept.
      if (errno == EMFILE || errno == ENFILE) std::this_thread::sleep_for(std::chrono::milliseconds(10));
      return;
    }
    const auto stranger = [](const Connection& connection) { return !connection.trusted; };
    if (std::ranges::count_if(connections_, stranger) >= kMostStrangers)
      connections_.erase(std::ranges::find_if(connections_, stranger));  // the oldest one
    Connection& fresh = connections_.emplace_back();
    fresh.socket = std::move(socket);
    fresh.nonce = random_secret();
    fresh.out = packed({kGreeting, fresh.nonce});
  }

  /// Reads or writes as much as possible; false if the connection is closed.
  bool serve(Connection& client, short events) {
    if ((events & POLLOUT) != 0) {
      const ssize_t count = ::send(client.socket.get(), client.out.data(), client.out.size(), MSG_NOSIGNAL);
      if (count < 0) return errno == EAGAIN || errno == EINTR;
      client.out.erase(0, to_index(count));
      return !client.out.empty() || (!client.closing && next_message(client));
    }
    if ((events & POLLIN) == 0) return false;
    char chunk[1 << 14];
    const ssize_t count = ::recv(client.socket.get(), chunk, sizeof chunk, 0);
    if (count < 0) return errno == EAGAIN || errno == EINTR;
    if (count == 0 || client.waiting) return false;
    client.in.append(chunk, to_index(count));
    return next_message(client);
  }

  bool next_message(Connection& client) {
    try {
      const auto message = take_message(client.in, client.trusted ? kMostRequestBytes : kMostGreetingBytes);
      if (!message) return true;
      if (!client.trusted) return greet(client, *message);
      return !message->empty() && answer(client, *message);
    } catch (const std::exception&) { return false; }
  }

  bool greet(Connection& client, const Message& message) {
    if (message.size() != 4) return false;
    const std::string& rank = message[0];
    const std::string& nonce = message[2];
    if (!number_in<std::int64_t>(rank)) return false;
    const bool right = same_authenticator(message[3], client_proof(key_, rank, client.nonce, nonce));
    if (right) {
      client.trusted = true;
      client.out = packed({kWelcome, server_proof(key_, client.nonce, nonce)});
      return true;
    }
    client.closing = true;
    client.out = packed({message[1] == place_.run_id ? kOtherSecret : kOtherRun});
    if (message[1] == place_.run_id && refused_++ < kMostRefused)
      put(fmt::format("{}/{}", kMeetPrefix, refused_key(rank)), "");
    return true;
  }

  /// Executes a request and answers it, now or when its keys exist.
  bool answer(Connection& client, const Message& message) {
    const std::string& verb = message[0];
    const auto say = [&](const Message& text) {
      client.out = packed(text);
      return true;
    };
    if (verb == kSet && message.size() == 3) return say({put(message[1], message[2]) ? kDone : kNo});
    if (verb == kCompareSet && message.size() == 4) {
      const auto value = compare_set(message[1], message[2], message[3]);
      return value ? say({kDone, *value}) : say({kNo});
    }
    if (verb == kWill && (message.size() == 1 || message.size() == 4)) {
      client.will.reset();
      if (message.size() == 4) client.will = {message[1], message[2], message[3]};
      return say({kDone});
    }
    if (verb == kGet) {
      Message values = {kDone};
      std::size_t bytes = 0;
      for (std::size_t i = 1; i < message.size(); ++i) {
        const auto found = values_.find(message[i]);
        if (found == values_.end()) return say({kNo});
        bytes += found->second.size() + sizeof(std::uint32_t);
        if (bytes > kMostAnswerBytes) return false;
        values.push_back(found->second);
      }
      return say(values);
    }
    if (verb == kWait && message.size() > 1) {
      constexpr std::int64_t kMostMilliseconds = std::int64_t{1} << 40;
      const auto time = number_in<std::int64_t>(message[1]);
      if (!time || *time < 0 || *time > kMostMilliseconds) return false;
      client.waiting = {{message.begin() + 2, message.end()}, Clock::now() + std::chrono::milliseconds(*time)};
      if (all_there(*client.waiting)) finish_wait(client, kDone);
      return true;
    }
    if (verb == kDelete && message.size() == 2) {
      const auto found = values_.find(message[1]);
      if (found == values_.end()) return say({kNo});
      stored_ -= found->first.size() + found->second.size();
      values_.erase(found);
      return say({kDone});
    }
    if (verb == kCount && message.size() == 1) return say({kDone, std::to_string(values_.size())});
    return false;
  }

  /// Sets the key if its value is as expected; "" expects that it is absent. The resulting value, or what was expected
  /// if the key is absent; nothing if there is no room.
  std::optional<std::string> compare_set(const std::string& key, const std::string& expected,
                                         const std::string& desired) {
    const auto found = values_.find(key);
    const bool absent = found == values_.end();
    if (absent ? !expected.empty() : found->second != expected) return absent ? expected : found->second;
    return put(key, desired) ? std::optional(desired) : std::nullopt;
  }

  bool put(const std::string& key, const std::string& value) {
    const auto found = values_.find(key);
    const std::size_t before = found == values_.end() ? 0 : key.size() + found->second.size();
    const std::size_t after = stored_ - before + key.size() + value.size();
    if (key.size() > kMostKeyBytes || after > kMostStoredBytes) return false;
    stored_ = after;
    values_[key] = value;
    for (Connection& connection : connections_) {
      if (connection.waiting && all_there(*connection.waiting)) finish_wait(connection, kDone);
    }
    return true;
  }

  [[nodiscard]] bool all_there(const Waiting& waiting) const {
    return std::ranges::all_of(waiting.keys, [&](const std::string& key) { return values_.contains(key); });
  }

  static void finish_wait(Connection& client, const char* how) {
    client.waiting.reset();
    client.out = packed({how});
  }

  MeetingPlace place_;
  std::string key_;
  Socket listener_;
  Endpoint endpoint_;
  Socket stop_;
  std::list<Connection> connections_;  ///< the oldest first
  std::map<std::string, std::string> values_;
  std::size_t stored_ = 0;  ///< bytes of keys and values
  std::size_t refused_ = 0;
  std::thread thread_;
};

StoreServer::StoreServer(MeetingPlace place) : loop_(std::make_unique<Loop>(std::move(place))) {}

StoreServer::~StoreServer() = default;

Endpoint StoreServer::endpoint() const { return loop_->endpoint(); }

std::string refused_key(const std::string& rank) { return "refused/" + rank; }

std::string run_key(const std::string& secret, const std::string& run_id) {
  return authenticator(secret, "stagecraft run " + run_id);
}

}  // namespace stagecraft::meeting
