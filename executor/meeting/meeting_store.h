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

namespace stagecraft::meeting {

/// Where a rendezvous server listens, and who may connect.
struct MeetingPlace {
  std::string host = "127.0.0.1";
  std::uint16_t port = 0;  ///< 0: a free one
  std::string secret{};
  std::string run_id = "0";
};

/// A key-value store over TCP, served by this process while the object exists. A client first proves that it knows
/// secret and run id, and so does the server. Until then, a client may send kMostGreetingBytes within a few seconds,
/// and only a few may be in that state at once.
class StoreServer {
 public:
  /// Throws PeerError if it cannot listen on address and port.
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
/// Limit of a request by an accepted client, and of its answer.
inline constexpr std::size_t kMostRequestBytes = std::size_t{1} << 24;
inline constexpr std::size_t kMostAnswerBytes = std::size_t{1} << 29;
/// Limit of all keys and values of a rendezvous server.
inline constexpr std::size_t kMostStoredBytes = std::size_t{1} << 28;

/// Starts the rendezvous server of `launch` on its rank 0: at LaunchInfo::listen if set, else at the address of
/// LaunchInfo::host; with torchrun's agent, on a free port published in the agent's store. Throws PeerError if it
/// cannot listen there.
[[nodiscard]] std::unique_ptr<StoreServer> serve_meeting(const LaunchInfo& launch, std::chrono::milliseconds deadline);
/// `launch` with host and port of the rendezvous server, read from torchrun's agent if there is one. Throws PeerError
/// if the agent does not have it before the deadline, or if it was not written with the run's secret.
[[nodiscard]] LaunchInfo find_meeting(const LaunchInfo& launch, std::chrono::milliseconds deadline);

/// A separate connection to the run's rendezvous server, as found by find_meeting; its keys begin with `prefix`. Throws
/// PeerError if the server cannot be reached before the deadline, and immediately if it has a different secret.
[[nodiscard]] c10::intrusive_ptr<c10d::Store> connect_store(const LaunchInfo& launch, const std::string& prefix,
                                                            std::chrono::milliseconds deadline);

/// Sets `key` to `desired` if it is `expected` once this connection, a store of connect_store, has closed, even if its
/// process was killed; nothing instead if withdrawn before. A connection has one will, its last.
void leave_will(c10d::Store& store, const std::string& key, const std::string& expected, const std::string& desired);
void withdraw_will(c10d::Store& store);

/// The key for authenticators, known only to the ranks of one run as long as the secret is secret.
[[nodiscard]] std::string run_key(const std::string& secret, const std::string& run_id);

inline constexpr const char* kMeetPrefix = "meet";
/// The key, under kMeetPrefix, where the server records that a client claimed this rank with a different secret.
[[nodiscard]] std::string refused_key(const std::string& rank);

/// "127.0.0.1:29500".
[[nodiscard]] std::string meeting_point(const LaunchInfo& launch);

}  // namespace stagecraft::meeting
