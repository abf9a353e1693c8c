#pragma once

#include <string>

namespace stagecraft::meeting {

/// The environment variable with which ranks receive the run's secret.
inline constexpr const char* kSecretVariable = "STAGECRAFT_SECRET";

/// 32 random bytes as 64 hexadecimal digits. Throws std::runtime_error if the system cannot provide them.
[[nodiscard]] std::string random_secret();

/// HMAC-SHA256 of `text` under `key`, as 64 hexadecimal digits.
/// Source: RFC 2104; the test vectors of RFC 4231.
[[nodiscard]] std::string authenticator(const std::string& key, const std::string& text);

/// Whether two authenticators are equal, in constant time.
[[nodiscard]] bool same_authenticator(const std::string& a, const std::string& b);

}  // namespace stagecraft::meeting
