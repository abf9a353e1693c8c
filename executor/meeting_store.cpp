#include "executor/meeting_store.h"

#include <c10/util/Logging.h>
#include <fmt/format.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <cstdlib>

#include "executor/channel_checks.h"

namespace stagecraft {
namespace {

/// The first line of an error's text: c10's carry a stack trace.
std::string first_line(const std::exception& error) {
  const std::string text = error.what();
  return text.substr(0, text.find('\n'));
}

/// c10d prints each failed call with a stack trace before it throws. We catch and say what it means; who wants its log
/// sets TORCH_CPP_LOG_LEVEL.
void quiet_log() {
  static const bool once = [] {
    if (std::getenv("TORCH_CPP_LOG_LEVEL") == nullptr) FLAGS_caffe2_log_level = c10::GLOG_FATAL;
    return true;
  }();
  static_cast<void>(once);
}

}  // namespace

StoreServer::StoreServer(std::uint16_t port) {
  quiet_log();
  c10d::TCPStoreOptions options;
  options.port = port;
  options.isServer = true;
  options.waitWorkers = false;
  try {
    auto store = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
    port_ = store->getPort();
    store_ = std::move(store);
  } catch (const std::exception& error) {
    throw ChannelError(fmt::format("cannot serve the meeting point on port {}: {}", port, first_line(error)));
  }
}

StoreServer::~StoreServer() = default;

std::uint16_t StoreServer::port() const { return port_; }

c10::intrusive_ptr<c10d::Store> connect_store(const LaunchInfo& launch, const std::string& prefix,
                                              std::chrono::milliseconds deadline) {
  quiet_log();
  c10d::TCPStoreOptions options;
  options.port = launch.port;
  options.waitWorkers = false;
  options.timeout = deadline;
  try {
    return c10::make_intrusive<c10d::PrefixStore>(fmt::format("stagecraft/{}/{}", launch.run_id, prefix),
                                                  c10::make_intrusive<c10d::TCPStore>(launch.host, options));
  } catch (const std::exception& error) {
    throw ChannelError(fmt::format("rank {} did not reach the meeting point at {} within {}: {}", launch.rank,
                                   meeting_point(launch), seconds_text(deadline), first_line(error)));
  }
}

std::string meeting_point(const LaunchInfo& launch) { return fmt::format("{}:{}", launch.host, launch.port); }

}  // namespace stagecraft
