#include "executor/launch/rendezvous.h"

#include <fmt/format.h>
#include <unistd.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "costmodel/index.h"
#include "executor/meeting/launch_info.h"
#include "executor/meeting/meeting_store.h"

namespace stagecraft::launch {
namespace {

using Clock = std::chrono::steady_clock;
using DoubleSeconds = std::chrono::duration<double>;

constexpr const char* kFailureKey = "failure";
constexpr const char* kNoFailure = "none";
constexpr const char* kLeft = "left";
/// Set by the rank that prints the report of a disappearance, which no rank has found.
constexpr const char* kReporterKey = "reporter";
/// Limit of a rank's value in an exchange.
constexpr std::size_t kMostExchangedBytes = std::size_t{1} << 20;

/// How long the rank that runs the rendezvous server waits for the others to read why the run ends.
constexpr auto kFarewell = std::chrono::milliseconds(1000);

std::string rank_key(int rank) { return fmt::format("rank/{}", rank); }

std::string to_text(const std::vector<std::uint8_t>& bytes) { return {bytes.begin(), bytes.end()}; }
std::vector<std::uint8_t> to_bytes(const std::string& text) { return {text.begin(), text.end()}; }

/// A heartbeat: its number, then what the rank is doing.
std::string heartbeat(std::uint64_t number, const std::string& activity) {
  return fmt::format("{} {}", number, activity);
}

/// A failure as in the server: the rank that found it, and the message.
std::string finding(int rank, const std::string& reason) {
  return fmt::format("{} {}", rank, meeting::printable(reason));
}

/// The failure that the server records when the connection of a rank that has not left closes.
std::string disappearance(int rank) {
  return finding(rank, fmt::format("rank {} has disappeared: its connection to the rendezvous server closed", rank));
}

/// The text after the number of a heartbeat or a finding.
std::string after_number(const std::string& text) {
  const std::size_t space = text.find(' ');
  return space == std::string::npos ? "" : meeting::printable(text.substr(space + 1));
}

/// The last heartbeat of a rank, and its age.
struct Heard {
  std::string beat;
  DoubleSeconds silent{0};
};

class StoreRendezvous : public Rendezvous {
 public:
  StoreRendezvous(const meeting::LaunchInfo& launch, std::chrono::milliseconds deadline)
      : server_(launch.rank == 0 && !launch.served ? meeting::serve_meeting(launch, deadline) : nullptr),
        launch_(meeting::find_meeting(launch, deadline)),
        deadline_(deadline),
        period_(std::clamp(deadline / 8, std::chrono::milliseconds(20), std::chrono::milliseconds(250))),
        heard_(to_index(launch.ranks)) {
    store_ = meeting::connect_store(launch_, meeting::kMeetPrefix, deadline);
    watch_store_ = meeting::connect_store(launch_, meeting::kMeetPrefix, deadline);
    store_->compareSet(kFailureKey, {}, to_bytes(kNoFailure));
    publish(heartbeat(0, ""));
    for (int rank = 0; rank < launch.ranks; ++rank) rank_keys_.push_back(rank_key(rank));
    wait_for_all(rank_keys_, "join the run");
    meeting::leave_will(*watch_store_, kFailureKey, kNoFailure, disappearance(launch_.rank));
    heart_ = std::thread([this] { beat(); });
    guard_ = std::thread([this] { guard(); });
  }

  ~StoreRendezvous() override {
    if (!leaving_) fail("ended before it was finished");
    stop();
  }

  std::vector<std::string> exchange(const std::string& key, const std::string& value) override {
    const int round = ++rounds_[key];
    std::vector<std::string> keys;
    for (int rank = 0; rank < launch_.ranks; ++rank) keys.push_back(fmt::format("exchange/{}/{}/{}", key, round, rank));
    try {
      store_->set(keys[to_index(launch_.rank)], value);
    } catch (const std::exception&) { throw meeting::PeerError(gone(), meeting::PeerError::Cause::Peer); }
    wait_for_all(keys, fmt::format("send \"{}\"", key));
    std::vector<std::string> values;
    try {
      for (const auto& bytes : store_->multiGet(keys)) values.push_back(to_text(bytes));
    } catch (const std::exception&) { throw meeting::PeerError(gone(), meeting::PeerError::Cause::Peer); }
    for (std::size_t rank = 0; rank < values.size(); ++rank) {
      if (values[rank].size() <= kMostExchangedBytes) continue;
      throw meeting::PeerError(fmt::format("rank {} has {} bytes as \"{}\", must be at most {}", rank,
                                           values[rank].size(), key, kMostExchangedBytes));
    }
    return values;
  }

  void fail(const std::string& reason) noexcept override {
    if (leaving_.exchange(true)) return;
    try {
      const bool names_itself = reason.starts_with(fmt::format("rank {} ", launch_.rank));
      const std::string found =
          finding(launch_.rank, names_itself ? reason : fmt::format("rank {} failed: {}", launch_.rank, reason));
      const std::string first = to_text(watch_store_->compareSet(kFailureKey, to_bytes(kNoFailure), to_bytes(found)));
      if (first != found) {
        say(after_number(first) + (reports(first) ? report() : ""));
      } else if (const std::string lines = report(); !lines.empty()) {
        say(fmt::format("when rank {} failed:{}", launch_.rank, lines));
      }
      publish(kLeft);
      say_farewell();
    } catch (const std::exception&) { say(gone() + report()); }
    unguard();
  }

  std::shared_ptr<channel::Activity> activity() const override { return activity_; }

  void leave() noexcept override {
    if (leaving_) return;
    try {
      if (server_) {
        // The others need the rendezvous server: this rank keeps watching them until the last has left.
        publish(kLeft);
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [this] { return all_left_; });
        leaving_ = true;
      } else {
        leaving_ = true;
        publish(kLeft);
      }
    } catch (const std::exception&) {  // the run is over for this rank even if the others cannot be reached
      leaving_ = true;
    }
    stop();
  }

 private:
  /// Sets this rank's key. After it has left, the key stays as it is.
  void publish(const std::string& text) {
    const std::lock_guard lock(publishing_);
    if (said_left_) return;
    said_left_ = text == kLeft;
    if (said_left_) meeting::withdraw_will(*watch_store_);
    watch_store_->set(rank_key(launch_.rank), text);
  }

  void wait_for_all(const std::vector<std::string>& keys, const std::string& what) {
    try {
      store_->wait(keys, deadline_);
      return;
    } catch (const std::exception&) {}
    std::vector<int> absent;
    std::string why;
    try {
      for (int rank = 0; rank < launch_.ranks; ++rank) {
        if (store_->check({keys[to_index(rank)]})) continue;
        absent.push_back(rank);
        if (store_->check({meeting::refused_key(std::to_string(rank))}))
          why += fmt::format("; rank {} has a different secret from the rendezvous server", rank);
      }
    } catch (const std::exception&) { throw meeting::PeerError(gone(), meeting::PeerError::Cause::Peer); }
    if (absent.empty()) return;  // the last one has joined since
    if (server_ && meeting::is_loopback(server_->endpoint().address) && !meeting::is_loopback(launch_.host)) {
      why += fmt::format(
          "; {} resolves to {} here, which other machines cannot reach: set STAGECRAFT_LISTEN to an address that they "
          "can reach",
          launch_.host, server_->endpoint().address);
    }
    throw meeting::PeerError(fmt::format("rank {} waited {} for {} to {}{}", launch_.rank,
                                         meeting::seconds_text(deadline_), meeting::name_ranks(absent), what, why),
                             meeting::PeerError::Cause::Deadline);
  }

  [[nodiscard]] std::string gone() const {
    return fmt::format("the rendezvous server at {}{} has disappeared", meeting::meeting_point(launch_),
                       launch_.served ? "" : ", served by rank 0,");
  }

  /// Publishes this rank's heartbeat and checks the others', until it leaves.
  void beat() {
    std::vector<std::string> keys = {kFailureKey};
    keys.insert(keys.end(), rank_keys_.begin(), rank_keys_.end());
    auto before = Clock::now();
    bool disappeared = false;
    for (std::uint64_t number = 1; !leaving_; ++number) {
      try {
        publish(heartbeat(number, activity_->text()));
        const auto values = watch_store_->multiGet(keys);
        beats_.fetch_add(1, std::memory_order_relaxed);
        if (leaving_) return;
        if (const std::string failure = to_text(values[0]); failure != kNoFailure) {
          // This rank's channel may be about to say what it lost with the peer.
          if (disappeared || !is_disappearance(failure)) end(failure, false);
          disappeared = true;
        }
        // Only time in which this thread ran counts: otherwise all other ranks look silent after a stop of this
        // process.
        const DoubleSeconds passed = std::min<DoubleSeconds>(Clock::now() - before, 2 * period_);
        before = Clock::now();
        const std::optional<int> silent = hear(values, passed);
        if (silent) accuse(*silent);
      } catch (const std::exception&) {
        if (leaving_) return;
        say(gone() + report());
        ::_exit(kPeerFailed);  // other threads may be in calls that do not return
      }
      std::unique_lock lock(mutex_);
      changed_.wait_for(lock, period_, [this] { return leaving_.load(); });
    }
  }

  /// Watches the watcher, whose calls to the server can hang if the process that runs it is stopped.
  void guard() {
    std::uint64_t last = 0;
    DoubleSeconds silent(0);
    auto before = Clock::now();
    std::unique_lock lock(mutex_);
    while (!changed_.wait_for(lock, period_, [this] { return !guarded_; })) {
      const DoubleSeconds passed = std::min<DoubleSeconds>(Clock::now() - before, 2 * period_);
      before = Clock::now();
      const std::uint64_t now = beats_.load(std::memory_order_relaxed);
      silent = now == last ? silent + passed : DoubleSeconds(0);
      last = now;
      if (silent > deadline_) {
        lock.unlock();
        say(fmt::format("the rendezvous server at {}{} has been silent for {}", meeting::meeting_point(launch_),
                        launch_.served ? "" : ", served by rank 0,", meeting::seconds_text(silent)) +
            report());
        ::_exit(kHung);
      }
    }
  }

  /// Updates with the heartbeats of all ranks, read `passed` after the previous ones. Returns a rank that has been
  /// silent for longer than the deadline, if any.
  std::optional<int> hear(const std::vector<std::vector<std::uint8_t>>& values, DoubleSeconds passed) {
    const std::lock_guard lock(mutex_);
    std::optional<int> silent;
    bool all_left = true;
    for (int rank = 0; rank < launch_.ranks; ++rank) {
      if (rank == launch_.rank) continue;
      Heard& heard = heard_[to_index(rank)];
      std::string beat = to_text(values[to_index(rank + 1)]);
      heard.silent = beat == heard.beat ? heard.silent + passed : DoubleSeconds(0);
      heard.beat = std::move(beat);
      if (heard.beat == kLeft) continue;
      all_left = false;
      if (!silent && heard.silent > deadline_) silent = rank;
    }
    if (all_left) {
      all_left_ = true;
      changed_.notify_all();
    }
    return silent;
  }

  [[noreturn]] void accuse(int rank) {
    const std::string text = finding(launch_.rank, fmt::format("rank {} has been silent for {}", rank,
                                                               meeting::seconds_text(heard_[to_index(rank)].silent)));
    // The first finding is kept, so that all ranks report the same.
    const std::string first = to_text(watch_store_->compareSet(kFailureKey, to_bytes(kNoFailure), to_bytes(text)));
    end(first, first == text);
  }

  [[nodiscard]] bool is_disappearance(const std::string& failure) const {
    for (int rank = 0; rank < launch_.ranks; ++rank) {
      if (failure == disappearance(rank)) return true;
    }
    return false;
  }

  /// Whether this rank prints the report of a failure that it has not found: the first that sees a disappearance does.
  [[nodiscard]] bool reports(const std::string& failure) noexcept {
    try {
      const std::vector<std::uint8_t> key = to_bytes(rank_key(launch_.rank));
      return is_disappearance(failure) && watch_store_->compareSet(kReporterKey, {}, key) == key;
    } catch (const std::exception&) { return false; }
  }

  [[noreturn]] void end(const std::string& failure, bool found_here) {
    say(after_number(failure) + (found_here || reports(failure) ? report() : ""));
    try {
      publish(kLeft);
      say_farewell();
    } catch (const std::exception&) {  // the reason matters, and it has been printed
    }
    ::_exit(found_here ? kHung : kPeerFailed);
  }

  /// One line per rank, each preceded by a newline; empty if no rank has started anything.
  [[nodiscard]] std::string report() noexcept {
    try {
      const std::lock_guard lock(mutex_);
      std::string lines;
      bool begun = false;
      for (int rank = 0; rank < launch_.ranks; ++rank) {
        const Heard& heard = heard_[to_index(rank)];
        const bool is_self = rank == launch_.rank;
        std::string text = is_self ? activity_->text() : heard.beat == kLeft ? "has left" : after_number(heard.beat);
        begun = begun || !text.empty();
        if (text.empty()) text = "has not started";
        if (!is_self && heard.beat != kLeft && heard.silent > 2 * period_) {
          text += fmt::format(" (last heard {} ago)", meeting::seconds_text(heard.silent));
        }
        lines += fmt::format("\nstagecraft:   rank {}: {}", rank, text);
      }
      return begun ? lines : "";
    } catch (const std::exception&) { return ""; }
  }

  /// If this rank runs the rendezvous server: waits until all others have read the reason, at most kFarewell.
  void say_farewell() {
    if (!server_) return;
    const auto until = Clock::now() + kFarewell;
    while (Clock::now() < until) {
      const auto values = watch_store_->multiGet(rank_keys_);
      if (std::all_of(values.begin(), values.end(), [](const auto& bytes) { return to_text(bytes) == kLeft; })) return;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  }

  static void say(const std::string& text) {
    const std::string line = fmt::format("stagecraft: {}\n", text);  // one write: lines of several ranks do not mix
    [[maybe_unused]] const auto written = ::write(STDERR_FILENO, line.data(), line.size());
  }

  void unguard() {
    const std::lock_guard lock(mutex_);
    guarded_ = false;
    changed_.notify_all();
  }

  void stop() {
    unguard();
    if (heart_.joinable()) heart_.join();
    if (guard_.joinable()) guard_.join();
  }

  std::unique_ptr<meeting::StoreServer> server_;
  meeting::LaunchInfo launch_;
  std::chrono::milliseconds deadline_;
  std::chrono::milliseconds period_;
  c10::intrusive_ptr<c10d::Store> store_;        ///< for the caller's thread, which may wait in it
  c10::intrusive_ptr<c10d::Store> watch_store_;  ///< for everything that must not wait for it
  std::vector<std::string> rank_keys_;
  std::map<std::string, int> rounds_;
  std::shared_ptr<channel::Activity> activity_ = std::make_shared<channel::Activity>();
  std::atomic<std::uint64_t> beats_ = 0;
  std::atomic<bool> leaving_ = false;  ///< the other ranks no longer matter to this one
  std::mutex publishing_;
  bool said_left_ = false;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Heard> heard_;  ///< by rank
  bool all_left_ = false;
  bool guarded_ = true;
  std::thread heart_;
  std::thread guard_;
};

}  // namespace

int exit_status(const meeting::PeerError& error) {
  switch (error.cause()) {
    case meeting::PeerError::Cause::Deadline:
      return kHung;
    case meeting::PeerError::Cause::Peer:
      return kPeerFailed;
    case meeting::PeerError::Cause::Found:
      break;
  }
  return 1;
}

std::unique_ptr<Rendezvous> join(const meeting::LaunchInfo& launch, std::chrono::milliseconds deadline) {
  return std::make_unique<StoreRendezvous>(launch, deadline);
}

}  // namespace stagecraft::launch
