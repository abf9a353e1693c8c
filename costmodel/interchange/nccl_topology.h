#pragma once

#include <string>

#include "costmodel/topology.h"

namespace stagecraft::interchange {

/// The topology of a dump that NCCL writes to NCCL_TOPO_DUMP_FILE, all declared. A device is a <gpu> with a rank. The
/// levels are declared_levels, then "cluster": the hosts in the dump, joined by the slowest <net>; usually 1, as
/// the number of nodes is not in a dump (raise the count by hand), and omitted for a dump of one host without a <net>.
/// A PCI link without speed or width counts as 8 GT/s or 16 lanes, a <net> without speed as 10 Gbit/s, as in NCCL. The
/// latency between hosts is that of the slowest <net>, but at least 10 us. Notes name the links of each level. Throws
/// FormatError "FILE: line N: <ELEMENT>: found, expected" for text that is not XML, a root that is not <system
/// version="1">, an element with a missing or invalid attribute, no GPUs, more than 1024,
/// a rank that appears twice, elements nested deeper than 64, hosts of unequal numbers of GPUs, and several hosts
/// without a <net>. Source: src/graph/xml.cc and topo.cc of NCCL 2.30.
[[nodiscard]] Topology parse_nccl_topology(const std::string& text, const std::string& file);

}  // namespace stagecraft::interchange
