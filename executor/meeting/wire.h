#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace stagecraft {

/// The owner of a socket.
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

/// A socket that listens on the first address that `host` (a name or an address) stands for, and on no other. Port 0
/// takes a free one. Throws PeerError naming both if that cannot be had.
[[nodiscard]] Socket listen_on(const std::string& host, std::uint16_t port);
/// A connection to any address of `host`, tried once each. Throws PeerError with the reason of the last.
[[nodiscard]] Socket connect_to(const std::string& host, std::uint16_t port, std::chrono::milliseconds deadline);

/// The address and port of this end.
struct Endpoint {
  std::string address;
  std::uint16_t port = 0;
};
[[nodiscard]] Endpoint own_end(const Socket& socket);
/// This machine's address on the way to `host`, to which nothing is sent. Throws PeerError if there is no way.
[[nodiscard]] std::string address_towards(const std::string& host);
/// Whether an address, or the name "localhost", is this machine for itself: 127.x.x.x or ::1.
[[nodiscard]] bool is_loopback(const std::string& host);

/// A message: some texts.
using Message = std::vector<std::string>;

/// Four bytes that say the length of the rest, then each text behind four bytes of its length.
[[nodiscard]] std::string packed(const Message& message);
/// The first message in `buffer`, which is taken out of it; absent while it is not all there. Throws PeerError if it
/// says to be longer than `most` bytes, or its texts do not fill it.
[[nodiscard]] std::optional<Message> take_message(std::string& buffer, std::size_t most);

/// Sends all of it. Throws PeerError if the other end is gone or takes too long.
void send_message(const Socket& socket, const Message& message, std::chrono::milliseconds deadline);
/// The next message of at most `most` bytes; `buffer` keeps what came after it. Throws as send_message and
/// take_message.
[[nodiscard]] Message receive_message(const Socket& socket, std::string& buffer, std::size_t most,
                                      std::chrono::milliseconds deadline);

/// `text` cut after `most` bytes, with a space for each control character (those of ISO 6429 in UTF-8 too): for words
/// of others that are shown on a terminal.
[[nodiscard]] std::string printable(const std::string& text, std::size_t most = 4000);

}  // namespace stagecraft
