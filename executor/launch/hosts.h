#pragma once

#include <map>
#include <string>
#include <vector>

#include "costmodel/interchange/rank_file.h"

namespace stagecraft::launch {

/// The hosts in a file, as parse_host_list reads them; "localhost" is this machine. Throws as it does and as
/// format::read_text.
[[nodiscard]] std::vector<interchange::HostSlots> read_hosts(const std::string& path);

/// Where a rank is started.
struct RankPlace {
  std::string host;
  int local_rank = 0;  ///< its index on that host
  friend bool operator==(const RankPlace&, const RankPlace&) = default;
};

/// The place of each of `ranks` ranks: hosts in order, each filled before the next. Throws std::invalid_argument with
/// both numbers if there are too few slots.
[[nodiscard]] std::vector<RankPlace> place_ranks(const std::vector<interchange::HostSlots>& hosts, int ranks);

/// The name at which ranks in these places meet: MASTER_ADDR in `environment`, else the first host's. Throws
/// std::invalid_argument if that is localhost and other hosts would have to reach it.
[[nodiscard]] std::string meeting_host(const std::vector<RankPlace>& places,
                                       const std::map<std::string, std::string>& environment);

/// Hosts and their addresses, as this machine resolves them: "red (10.0.0.7)", or "red (no address)".
struct ResolvedHosts {
  std::vector<std::string> of_rank;
  std::vector<std::string> idle;     ///< hosts without a rank
  std::string meeting;               ///< where the ranks meet
  std::vector<std::string> unknown;  ///< names without an address
};

/// The hosts of place_ranks. Throws as it and meeting_host do.
[[nodiscard]] ResolvedHosts resolve_hosts(const std::vector<interchange::HostSlots>& hosts, int ranks,
                                          const std::map<std::string, std::string>& environment);

/// Whether ranks of this host are started without a remote shell.
[[nodiscard]] bool is_local(const std::string& host);

/// `text` quoted as one word of a POSIX shell command line.
[[nodiscard]] std::string shell_word(const std::string& text);

/// The command line that, given to a remote shell, runs `arguments` in `folder` with `environment` on top of the remote
/// machine's, and ends with the program's status. STAGECRAFT_SECRET in `environment` is not put on the command line,
/// which all users of both machines can see: the remote end reads it as the first line of its standard input.
[[nodiscard]] std::string remote_command(const std::vector<std::string>& arguments,
                                         const std::map<std::string, std::string>& environment,
                                         const std::string& folder);

/// The variables of `environment` that a rank on another machine gets: those whose names begin with STAGECRAFT_, GLOO_,
/// NCCL_, CUDA_, OMP_, MKL_ or TORCH_, and LD_LIBRARY_PATH; but not STAGECRAFT_LISTEN, an address of this machine.
[[nodiscard]] std::map<std::string, std::string> handed_over(const std::map<std::string, std::string>& environment);

}  // namespace stagecraft::launch
