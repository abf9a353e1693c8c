#pragma once

#include <string>

#include "executor/channel/channel.h"

namespace stagecraft {

/// Returns when every peer has shown over its connection that it knows `key`; all ranks of the channel call it. A
/// transport may take whoever connects first for the peer. Throws PeerError naming the rank that does not know it.
void prove_to_each_other(Channel& channel, const std::string& key);

}  // namespace stagecraft
