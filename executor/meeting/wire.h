#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace stagecraft::meeting {

/// Owner of a socket.
class Socket {
 public:
  explicit Socket(int number = -1) : number_(number) {}
  ~Socket();
  Socket(Socket&& other) noexcept;
  Socket& operator=(Socket&& other) noexcept;
  [[nodiscard]] int get() const { return number_; }

 private:
  int number_;
};

/// A socket that listens only on the first address of `host` (a name or an address). Port 0 chooses a free port. Throws
/// PeerError naming both if it cannot listen there.
[[nodiscard]] Socket listen_on(const std::string& host, std::uint16_t port);
/// A connection to any address of `host`; each is tried once. Throws PeerError with the reason of the last failure.
[[nodiscard]] Socket connect_to(const std::string& host, std::uint16_t port, std::chrono::milliseconds deadline);

/// The address and port of this end.
struct Endpoint {
  std::string address;
  std::uint16_t port = 0;
};
[[nodiscard]] Endpoint own_end(const Socket& socket);
/// This machine's address on the route to `host`; nothing is sent. Throws PeerError if there is no route.
[[nodiscard]] std::string address_towards(const std::string& host);
/// Whether an address is loopback: 127.x.x.x, ::1 or the name "localhost".
[[nodiscard]] bool is_loopback(const std::string& host);

/// A message: a list of strings.
using Message = std::vector<std::string>;

/// Four bytes with the length of the rest, then each string after four bytes with its length.
[[nodiscard]] std::string packed(const Message& message);
/// The first message in `buffer`, which is removed from it; absent while it is incomplete. Throws PeerError if it
/// declares more than `most` bytes, or its texts do not fill it.
[[nodiscard]] std::optional<Message> take_message(std::string& buffer, std::size_t most);

/// Sends a whole message. Throws PeerError if the other end has closed or takes too long.
void send_message(const Socket& socket, const Message& message, std::chrono::milliseconds deadline);
/// The next message of at most `most` bytes; `buffer` keeps what came after it. Throws as send_message and
/// take_message.
[[nodiscard]] Message receive_message(const Socket& socket, std::string& buffer, std::size_t most,
                                      std::chrono::milliseconds deadline);

/// `text` truncated to `most` bytes, with a space for each control character (including those of ISO 6429 in UTF-8):
/// for untrusted text that is shown on a terminal.
[[nodiscard]] std::string printable(const std::string& text, std::size_t most = 4000);

}  // namespace stagecraft::meeting
