#pragma once

#include <string>

#include "executor/channel/channel.h"

namespace stagecraft::channel {

/// Returns when every peer has proved over its connection that it knows `key`; all ranks of the channel call it. Needed
/// because a transport may accept any process that connects first as the peer. Throws PeerError naming the rank that
/// does not know it.
void prove_to_each_other(Channel& channel, const std::string& key);

}  // namespace stagecraft::channel
