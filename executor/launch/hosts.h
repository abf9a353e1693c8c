#pragma once

#include <map>
#include <string>
#include <vector>

namespace stagecraft {

/// A machine that runs ranks, and how many of them at most.
struct Host {
  std::string name;  ///< as the remote shell takes it: "red", "10.0.0.7" or "user@red"; "localhost" is this machine
  int slots = 1;
  friend bool operator==(const Host&, const Host&) = default;
};

/// The hosts of a file: a line a host, `NAME [slots=N]`, and comments from '#' on. Throws FormatError naming file and
/// line of a host named twice, of slots that are no number from 1 on and of anything else, and for a file without
/// hosts.
[[nodiscard]] std::vector<Host> read_hosts(const std::string& path);

/// Where a rank is started.
struct Place {
  std::string host;
  int local_rank = 0;  ///< its number on that host
  friend bool operator==(const Place&, const Place&) = default;
};

/// The place of each of `ranks` ranks: hosts in order, each filled before the next. Throws std::invalid_argument that
/// says both numbers if the slots are too few, and if several hosts are to meet at one that calls itself localhost.
[[nodiscard]] std::vector<Place> place_ranks(const std::vector<Host>& hosts, int ranks);

/// Whether ranks of this host are started without a remote shell.
[[nodiscard]] bool is_local(const std::string& host);
/// "red" of "user@red".
[[nodiscard]] std::string address_of(const std::string& host);

/// `text` as one word of a POSIX shell's command line.
[[nodiscard]] std::string shell_word(const std::string& text);

/// The command line that, given to a remote shell, runs `arguments` in `folder` with `environment` over the far
/// machine's own, and ends with the program's status. Of what stands in `environment`, STAGECRAFT_SECRET is not on the
/// command line, where all users of both machines would see it: the far end reads it as the first line of its standard
/// input.
[[nodiscard]] std::string remote_command(const std::vector<std::string>& arguments,
                                         const std::map<std::string, std::string>& environment,
                                         const std::string& folder);

/// The variables of `environment` that a rank on another machine gets: those whose names begin with STAGECRAFT_, GLOO_,
/// NCCL_, CUDA_, OMP_, MKL_ or TORCH_, and LD_LIBRARY_PATH; but not STAGECRAFT_LISTEN, an address of this one.
[[nodiscard]] std::map<std::string, std::string> handed_over(const std::map<std::string, std::string>& environment);

}  // namespace stagecraft
