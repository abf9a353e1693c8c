#pragma once

#include <string>
#include <vector>

#include "costmodel/bound_plan.h"

namespace stagecraft::interchange {

/// A machine and its devices.
struct HostSlots {
  std::string name;  ///< as a remote shell takes it: "red", "10.0.0.7" or "user@red"
  int slots = 1;
  friend bool operator==(const HostSlots&, const HostSlots&) = default;
};

/// The hosts in the text of a host file, as for stagecraft run --hosts and Open MPI: one `NAME [slots=N]` per line, or
/// MPICH's `NAME:N`; '#' starts a comment. Throws FormatError naming file and line for anything else, a host that
/// appears twice, also as another user's, slots that are not an integer of at least 1, and a file without hosts.
[[nodiscard]] std::vector<HostSlots> parse_host_list(const std::string& text, const std::string& file);

/// "red" of "user@red".
[[nodiscard]] std::string address_of(const std::string& host);

// Where the ranks of a plan run. Device d of the plan is slot d of all hosts, counted in the list's order. Both throw
// std::invalid_argument for a device beyond the last slot.

/// Open MPI's rank file: "rank 0=red slot=0-3" for each rank. The devices of a host get `cores` cores each, the first
/// device the first ones. Precondition: cores > 0.
[[nodiscard]] std::string open_mpi_rank_file(const BoundPlan& plan, const std::vector<HostSlots>& hosts, int cores);

/// A host list that puts each rank of the plan on its host if hosts are filled in order, one after the other. Throws
/// std::invalid_argument, naming the ranks, if the ranks of a host are not consecutive, or not in its devices' order.
[[nodiscard]] std::string host_list(const BoundPlan& plan, const std::vector<HostSlots>& hosts);

}  // namespace stagecraft::interchange
