#pragma once

#include <map>
#include <string>
#include <vector>

namespace stagecraft::launch {

/// A machine that runs ranks, and the largest number of them.
struct Host {
  std::string name;  ///< as passed to the remote shell: "red", "10.0.0.7" or "user@red"; "localhost" is this machine
  int slots = 1;
  friend bool operator==(const Host&, const Host&) = default;
};

/// The hosts in a file: one `NAME [slots=N]` per line; '#' starts a comment. Throws FormatError naming file and line
/// for a duplicate host, slots that are not an integer of at least 1, and anything else, and for a file without hosts.
[[nodiscard]] std::vector<Host> read_hosts(const std::string& path);

/// Where a rank is started.
struct RankPlace {
  std::string host;
  int local_rank = 0;  ///< its index on that host
  friend bool operator==(const RankPlace&, const RankPlace&) = default;
};

/// The place of each of `ranks` ranks: hosts in order, each filled before the next. Throws std::invalid_argument with
/// both numbers if there are too few slots, and if several hosts would meet at "localhost".
[[nodiscard]] std::vector<RankPlace> place_ranks(const std::vector<Host>& hosts, int ranks);

/// Whether ranks of this host are started without a remote shell.
[[nodiscard]] bool is_local(const std::string& host);
/// "red" of "user@red".
[[nodiscard]] std::string address_of(const std::string& host);

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
