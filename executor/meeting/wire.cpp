#include "executor/meeting/wire.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <utility>

#include "costmodel/index.h"
#include "executor/meeting/peer_error.h"

namespace stagecraft::meeting {
namespace {

using Clock = std::chrono::steady_clock;
using Addresses = std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)>;

constexpr std::size_t kLengthBytes = 4;

PeerError gone(const std::string& what) { return PeerError(what, PeerError::Cause::Peer); }

Addresses addresses_of(const std::string& host, std::uint16_t port, int kind) {
  addrinfo wanted{};
  wanted.ai_family = AF_UNSPEC;
  wanted.ai_socktype = kind;
  addrinfo* found = nullptr;
  const int status = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &wanted, &found);
  if (status != 0) throw PeerError(fmt::format("unknown host \"{}\": {}", host, ::gai_strerror(status)));
  return {found, &::freeaddrinfo};
}

/// Returns once the socket is ready for `events`.
void wait_until_ready(const Socket& socket, short events, Clock::time_point end) {
  while (true) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - Clock::now()).count();
    pollfd entry{socket.get(), events, 0};
    const int ready = ::poll(&entry, 1, to_int(std::clamp<std::int64_t>(left, 0, 1 << 30)));
    if (ready > 0) return;
    if (ready == 0) throw PeerError("timed out", PeerError::Cause::Deadline);
    if (errno != EINTR) throw gone(std::strerror(errno));
  }
}

void append_length(std::string& out, std::size_t length) {
  const std::uint32_t ordered = htonl(static_cast<std::uint32_t>(length));
  out.append(reinterpret_cast<const char*>(&ordered), kLengthBytes);
}

std::size_t length_at(const std::string& buffer, std::size_t at) {
  std::uint32_t ordered = 0;
  std::memcpy(&ordered, buffer.data() + at, kLengthBytes);
  return ntohl(ordered);
}

}  // namespace

Socket::~Socket() {
  if (number_ >= 0) ::close(number_);
}

Socket::Socket(Socket&& other) noexcept : number_(std::exchange(other.number_, -1)) {}

Socket& Socket::operator=(Socket&& other) noexcept {
  std::swap(number_, other.number_);
  return *this;
}

Socket listen_on(const std::string& host, std::uint16_t port) {
  const Addresses addresses = addresses_of(host, port, SOCK_STREAM);
  const addrinfo& first = *addresses;
  Socket socket(::socket(first.ai_family, first.ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, first.ai_protocol));
  const int yes = 1;
  if (socket.get() < 0 || ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes) != 0 ||
      ::bind(socket.get(), first.ai_addr, first.ai_addrlen) != 0 || ::listen(socket.get(), SOMAXCONN) != 0) {
    throw PeerError(fmt::format("cannot listen on {} port {}: {}", host, port, std::strerror(errno)));
  }
  return socket;
}

Socket connect_to(const std::string& host, std::uint16_t port, std::chrono::milliseconds deadline) {
  const auto end = Clock::now() + deadline;
  const Addresses addresses = addresses_of(host, port, SOCK_STREAM);
  std::string why;
  for (const addrinfo* address = addresses.get(); address != nullptr; address = address->ai_next) {
    Socket socket(
        ::socket(address->ai_family, address->ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, address->ai_protocol));
    int error = 0;
    if (socket.get() < 0 ||
        (::connect(socket.get(), address->ai_addr, address->ai_addrlen) != 0 && errno != EINPROGRESS)) {
      error = errno;
    } else {
      wait_until_ready(socket, POLLOUT, end);
      socklen_t length = sizeof error;
      ::getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &length);
    }
    if (error != 0) {
      why = std::strerror(error);
      continue;
    }
    const int yes = 1;
    ::setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    return socket;
  }
  throw gone(why);
}

Endpoint own_end(const Socket& socket) {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  char host[NI_MAXHOST] = "";
  char port[NI_MAXSERV] = "0";
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  if (::getsockname(socket.get(), generic, &length) != 0 ||
      ::getnameinfo(generic, length, host, sizeof host, port, sizeof port, NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
    throw PeerError("a socket has no address");
  }
  return {host, static_cast<std::uint16_t>(std::stoi(port))};
}

std::string address_towards(const std::string& host) {
  constexpr std::uint16_t kAnyPort = 9;
  const Addresses addresses = addresses_of(host, kAnyPort, SOCK_DGRAM);
  for (const addrinfo* address = addresses.get(); address != nullptr; address = address->ai_next) {
    const Socket socket(::socket(address->ai_family, address->ai_socktype | SOCK_CLOEXEC, address->ai_protocol));
    if (socket.get() >= 0 && ::connect(socket.get(), address->ai_addr, address->ai_addrlen) == 0)
      return own_end(socket).address;
  }
  throw PeerError(fmt::format("no route to {}: {}", host, std::strerror(errno)));
}

bool is_loopback(const std::string& host) { return host.starts_with("127.") || host == "::1" || host == "localhost"; }

std::string packed(const Message& message) {
  std::size_t total = 0;
  for (const std::string& text : message) total += kLengthBytes + text.size();
  std::string out;
  out.reserve(kLengthBytes + total);
  append_length(out, total);
  for (const std::string& text : message) {
    append_length(out, text.size());
    out += text;
  }
  return out;
}

std::optional<Message> take_message(std::string& buffer, std::size_t most) {
  if (buffer.size() < kLengthBytes) return std::nullopt;
  const std::size_t total = length_at(buffer, 0);
  if (total > most) throw PeerError(fmt::format("a message of {} bytes, expected at most {}", total, most));
  const std::size_t end = kLengthBytes + total;
  if (buffer.size() < end) return std::nullopt;
  Message message;
  for (std::size_t at = kLengthBytes; at < end;) {
    const std::size_t length = end - at < kLengthBytes ? end : length_at(buffer, at);
    if (length > end - at - std::min(end - at, kLengthBytes))
      throw PeerError("a message whose text exceeds its length");
    message.push_back(buffer.substr(at + kLengthBytes, length));
    at += kLengthBytes + length;
  }
  buffer.erase(0, end);
  return message;
}

void send_message(const Socket& socket, const Message& message, std::chrono::milliseconds deadline) {
  const auto end = Clock::now() + deadline;
  const std::string bytes = packed(message);
  for (std::size_t sent = 0; sent < bytes.size();) {
    wait_until_ready(socket, POLLOUT, end);
    const ssize_t count = ::send(socket.get(), bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
    if (count >= 0) {
      sent += to_index(count);
    } else if (errno != EAGAIN && errno != EINTR) {
      throw gone(std::strerror(errno));
    }
  }
}

Message receive_message(const Socket& socket, std::string& buffer, std::size_t most,
                        std::chrono::milliseconds deadline) {
  const auto end = Clock::now() + deadline;
  char chunk[1 << 14];
  while (true) {
    if (auto message = take_message(buffer, most)) return *std::move(message);
    wait_until_ready(socket, POLLIN, end);
    const ssize_t count = ::recv(socket.get(), chunk, sizeof chunk, 0);
    if (count == 0) throw gone("the connection was closed");
    if (count > 0) {
      buffer.append(chunk, to_index(count));
    } else if (errno != EAGAIN && errno != EINTR) {
      throw gone(std::strerror(errno));
    }
  }
}

std::string printable(const std::string& text, std::size_t most) {
  std::string out;
  unsigned char before = 0;
  for (const char character : text.substr(0, most)) {
    const auto byte = static_cast<unsigned char>(character);
    const bool control = byte < ' ' || byte == 0x7f || (before == 0xc2 && byte >= 0x80 && byte < 0xa0);
    before = byte;
    out += control ? ' ' : character;
  }
  return out;
}

}  // namespace stagecraft::meeting
