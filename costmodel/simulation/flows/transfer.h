#pragma once

#include "costmodel/units.h"

namespace stagecraft {

/// How a message moves.
enum class TransferMode {
  Rendezvous,  ///< starts once sent and its receive is posted, one at a time per directed edge; links are shared
  Latency,     ///< arrives a fixed time after it was sent and does not occupy links; closed forms assume this
};

/// Processor time of a message at one end.
struct Handling {
  Seconds fixed;      ///< before the message leaves, or after all of it has arrived
  Seconds streaming;  ///< while it moves
};

/// A message between two ranks on otherwise idle links and processors: `latency` first, then `transmission` on the
/// ports. Flows on one port share it equally; a flow moves at the smaller of its two ports' shares. Port -1 is never
/// shared. Handling overlaps with that time and adds only what exceeds it. With MessageThread::Separate a message takes
/// the sender's fixed time, the rest of the latency, the longest of transmission and both ends' streaming, and the
/// receiver's fixed time; the thread of a rank handles one message end at a time, in the order in which they arise.
/// With MessageThread::Own, a Send occupies the rank for the sender's time; then the rest of the latency passes; the
/// receiver spends its time while it waits for a message, and transmission may continue after that. A wait receives all
/// messages that have arrived, one after the other.
struct Transfer {
  Seconds latency;
  Seconds transmission;
  int egress = -1;
  int ingress = -1;
  Handling sender = {};
  Handling receiver = {};
};

}  // namespace stagecraft
