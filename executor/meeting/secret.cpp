#include "executor/meeting/secret.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <sys/random.h>

#include <array>
#include <span>
#include <stdexcept>

#include "costmodel/index.h"

namespace stagecraft::meeting {
namespace {

std::string hexadecimal(std::span<const unsigned char> bytes) {
  constexpr const char* kDigits = "0123456789abcdef";
  std::string out;
  for (const unsigned char byte : bytes) {
    out += kDigits[byte / 16];
    out += kDigits[byte % 16];
  }
  return out;
}

}  // namespace

std::string random_secret() {
  std::array<unsigned char, 32> bytes{};
  if (::getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) {
    throw std::runtime_error("cannot get random bytes from the system");
  }
  return hexadecimal(bytes);
}

std::string authenticator(const std::string& key, const std::string& text) {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned int length = 0;
  const auto* const bytes = reinterpret_cast<const unsigned char*>(text.data());
  if (::HMAC(::EVP_sha256(), key.data(), to_int(key.size()), bytes, text.size(), digest.data(), &length) == nullptr) {
    throw std::runtime_error("OpenSSL cannot compute HMAC-SHA256");
  }
  return hexadecimal({digest.data(), length});
}

bool same_authenticator(const std::string& a, const std::string& b) {
  return a.size() == b.size() && ::CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

}  // namespace stagecraft::meeting
