#pragma once

#include <string>

#include "costmodel/topology.h"

namespace stagecraft::interchange {

/// The topology of a dump that NCCL, or RCCL as version 2, writes to NCCL_TOPO_DUMP_FILE, all declared. A device is a
/// <gpu> with a rank. The levels are declared_levels, then "cluster": the hosts in the dump; usually 1, as the number
/// of nodes is not in a dump (raise the count by hand), and omitted for a dump of one host without a <net>. A GPU uses
/// the <net>s of its host to which its path is fastest and, of these, nearest: behind the same PCI switch, then at the
/// same processor. Its bandwidth to other hosts is that of these, each divided by the GPUs that use it, but no more
/// than the GPU's own PCI link; that of the level is the smallest one. A PCI link without speed or width counts as 8
/// GT/s or 16 lanes, a <net> without speed as 10 Gbit/s, as in NCCL. The latency between hosts is that of the slowest
/// <net> that a GPU uses, but at least 10 us. Notes name the links of each level. Text that does not begin with "<" is
/// the matrix of `nvidia-smi topo -m`, which has no cluster: NVLinks count as 20 GB/s each and PCI links as 16 GT/s
/// with 16 lanes, as the matrix does not say. Throws FormatError "FILE: line N: <ELEMENT>: found, expected" for text
/// that is not XML, a root that is not <system> of version 1 or 2, an element with a missing or invalid attribute, no
/// GPUs, more than 1024, a rank that appears twice, elements nested deeper than 64, hosts of unequal numbers of GPUs,
/// several hosts without a <net>, and a matrix with an incomplete row. Source: src/graph/xml.cc, topo.cc and paths.cc
/// (ncclTopoGetLocal) of NCCL 2.30.
[[nodiscard]] Topology parse_nccl_topology(const std::string& text, const std::string& file);

}  // namespace stagecraft::interchange
