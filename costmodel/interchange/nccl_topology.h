#pragma once

#include <string>

#include "costmodel/topology.h"

namespace stagecraft {

/// The topology of a dump that NCCL writes to NCCL_TOPO_DUMP_FILE, all of it declared. A device is a <gpu> with a rank.
/// The levels are declared_levels, then "cluster": the hosts in the dump, joined by the slowest <net>; mostly 1, as
/// the number of nodes is not in a dump (raise the count by hand), and left out of a dump of one host without a <net>.
/// A PCI link without speed or width counts as of 8 GT/s or 16 lanes, a <net> without speed as of 10 Gbit/s, as in
/// NCCL. The latency between hosts is what the slowest <net> says, 10 us at least. Notes say what joins each level.
/// Throws FormatError "FILE: line N: <ELEMENT>: found, wanted" for text that is not XML, a root that is not <system
/// version="1">, an element without an attribute that it needs or with a value that is none, no GPUs, more than 1024,
/// a rank twice, elements nested deeper than 64, hosts of unequal numbers of GPUs, and several hosts without a <net>.
/// Source: src/graph/xml.cc and topo.cc of NCCL 2.30.
[[nodiscard]] Topology parse_nccl_topology(const std::string& text, const std::string& file);

}  // namespace stagecraft
