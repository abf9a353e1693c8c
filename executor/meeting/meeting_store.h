#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "executor/meeting/launch_info.h"
#include "executor/meeting/peer_error.h"
#include "executor/meeting/wire.h"

namespace c10d {
class Store;
}

namespace stagecraft {

/// Where a meeting point listens, and whom it lets in.
struct MeetingPlace {
  std::string host = "127.0.0.1";
  std::uint16_t port = 0;  ///< 0: a free one
  std::string secret{};
  std::string run_id = "0";
};

/// A key-value store over TCP, served from this process for as long as the object lives. Whoever connects first proves
/// that it knows secret and run id, and is proved the same. Until then it may send kMostGreetingBytes within a few
/// seconds, and few may be in that state at once.
class StoreServer {
 public:
  /// Throws PeerError if address and port cannot be had.
  explicit StoreServer(MeetingPlace place = {});
  ~StoreServer();
  StoreServer(const StoreServer&) = delete;
  StoreServer& operator=(const StoreServer&) = delete;
  [[nodiscard]] Endpoint endpoint() const;
  [[nodiscard]] std::uint16_t port() const { return endpoint().port; }

 private:
  class Loop;
  std::unique_ptr<Loop> loop_;
};

inline constexpr std::size_t kMostGreetingBytes = 1024;
/// Of a request by who was let in, and of its answer.
inline constexpr std::size_t kMostRequestBytes = std::size_t{1} << 24;
inline constexpr std::size_t kMostAnswerBytes = std::size_t{1} << 29;
/// Of all keys and values that a meeting point keeps.
inline constexpr std::size_t kMostStoredBytes = std::size_t{1} << 28;

/// Serves the meeting point of `launch`, whose rank 0 this is: at LaunchInfo::listen if it is set, else where the host
/// of the meeting point points to; beside torchrun's agent, on a free port that the agent's store tells the others.
/// Throws PeerError if that cannot be had.
[[nodiscard]] std::unique_ptr<StoreServer> serve_meeting(const LaunchInfo& launch, std::chrono::milliseconds deadline);
/// `launch` with host and port of the meeting point, asked from torchrun's agent where there is one. Throws
/// PeerError if the agent does not tell before the deadline, or what it tells was not written with the run's secret.
[[nodiscard]] LaunchInfo find_meeting(const LaunchInfo& launch, std::chrono::milliseconds deadline);

/// A connection of its own to the run's meeting point, as find_meeting gives it; its keys begin with `prefix`. Throws
/// PeerError if the meeting point is not reached before the deadline, and at once if it has another secret.
[[nodiscard]] c10::intrusive_ptr<c10d::Store> connect_store(const LaunchInfo& launch, const std::string& prefix,
                                                            std::chrono::milliseconds deadline);

/// What ranks of one run share and nobody else knows, as far as the secret is one: its key for authenticators.
[[nodiscard]] std::string run_key(const std::string& secret, const std::string& run_id);

inline constexpr const char* kMeetPrefix = "meet";
/// The key, under kMeetPrefix, where the server notes that somebody called itself this rank and had another secret.
[[nodiscard]] std::string refused_key(const std::string& rank);

/// "127.0.0.1:29500".
[[nodiscard]] std::string meeting_point(const LaunchInfo& launch);

}  // namespace stagecraft
