#pragma once

#include <string>

#include "executor/meeting/secret.h"

// Protocol of a connection to a rendezvous server.
//
// The server begins: {kGreeting, nonce}. The client answers {rank, run id, nonce, proof}, and the server
// {kWelcome, proof}, or kOtherRun or kOtherSecret before it closes. After that, each request of the client gets one
// answer, which begins with kDone, kLate or kNo.

namespace stagecraft::meeting {

inline constexpr const char* kGreeting = "stagecraft meeting point 1";
inline constexpr const char* kWelcome = "welcome";
inline constexpr const char* kOtherRun = "another run";
inline constexpr const char* kOtherSecret = "another secret";

inline constexpr const char* kSet = "set";                 ///< key, value
inline constexpr const char* kGet = "get";                 ///< keys; kDone and the values, or kNo if one is absent
inline constexpr const char* kWait = "wait";               ///< milliseconds, keys; kDone once all exist, or kLate
inline constexpr const char* kCompareSet = "compare_set";  ///< key, expected, desired; kDone and the resulting value
inline constexpr const char* kDelete = "delete";           ///< key; kDone, or kNo if it is absent
inline constexpr const char* kCount = "count";             ///< kDone and the number of keys
/// key, expected, desired: a kCompareSet for the moment when this connection closes; nothing: not any more. kDone
inline constexpr const char* kWill = "will";

inline constexpr const char* kDone = "done";
inline constexpr const char* kLate = "late";
inline constexpr const char* kNo = "no";

/// Proof that a client of this rank knows the run's key, for a server that sent `server_nonce`.
[[nodiscard]] inline std::string client_proof(const std::string& key, const std::string& rank,
                                              const std::string& server_nonce, const std::string& client_nonce) {
  return authenticator(key, "client " + rank + " " + server_nonce + " " + client_nonce);
}

/// Proof that the server knows it.
[[nodiscard]] inline std::string server_proof(const std::string& key, const std::string& server_nonce,
                                              const std::string& client_nonce) {
  return authenticator(key, "server " + server_nonce + " " + client_nonce);
}

}  // namespace stagecraft::meeting
