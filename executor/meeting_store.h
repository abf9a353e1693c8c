#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "executor/rendezvous.h"

namespace c10d {
class Store;
}

namespace stagecraft {

/// A key-value store over TCP, served from this process for as long as the object lives.
class StoreServer {
 public:
  /// Port 0 takes a free one. Throws ChannelError if the port cannot be had.
  explicit StoreServer(std::uint16_t port = 0);
  ~StoreServer();
  StoreServer(const StoreServer&) = delete;
  StoreServer& operator=(const StoreServer&) = delete;
  [[nodiscard]] std::uint16_t port() const;

 private:
  c10::intrusive_ptr<c10d::Store> store_;
  std::uint16_t port_ = 0;
};

/// A connection of its own to the run's meeting point; its keys begin with the run id and `prefix`. Throws ChannelError
/// if the meeting point is not reached before the deadline.
[[nodiscard]] c10::intrusive_ptr<c10d::Store> connect_store(const LaunchInfo& launch, const std::string& prefix,
                                                            std::chrono::milliseconds deadline);

/// "127.0.0.1:29500".
[[nodiscard]] std::string meeting_point(const LaunchInfo& launch);

}  // namespace stagecraft
