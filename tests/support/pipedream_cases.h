#pragma once

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "costmodel/format/files/files.h"
#include "costmodel/interchange/pipedream.h"
#include "costmodel/topology.h"
#include "partitioner/search/pipedream_search.h"

namespace stagecraft {

/// A command line of PipeDream's optimizer and its answer.
struct PipedreamCase {
  std::string profile;
  std::string arguments;
  Topology topology;
  partitioner::PipedreamOptions options;
  int states = 0;
  double time = 0;  ///< seconds per minibatch in the slowest stage
};

/// A topology of `counts` and `bandwidths`, innermost first; a missing bandwidth is 1e9 bytes per second.
inline Topology levels_topology(const std::vector<int>& counts, const std::vector<double>& bandwidths) {
  Topology topology;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    Level level;
    level.name = "level " + std::to_string(i + 1);
    level.count = counts[i];
    level.link.bandwidth = BytesPerSecond(i < bandwidths.size() ? bandwidths[i] : 1e9);
    topology.levels.push_back(level);
  }
  return topology;
}

/// Reads PipeDream's own command line: -n COUNTS, -b BANDWIDTHS, -s BYTES and the four switches.
inline void read_pipedream_arguments(PipedreamCase& one) {
  std::vector<int> counts;
  std::vector<double> bandwidths;
  std::istringstream words(one.arguments);
  std::string option;
  partitioner::PipedreamOptions& options = one.options;
  for (std::string word; words >> word;) {
    if (word[0] == '-') {
      option = word;
      if (word == "--straight_pipeline") options.straight_pipeline = true;
      if (word == "--use_memory_constraint") options.use_memory_constraint = true;
      if (word == "--use_fewer_machines") options.use_fewer_machines = true;
      continue;
    }
    if (option == "-n")
      counts.push_back(std::stoi(word));
    else if (option == "-b")
      bandwidths.push_back(std::stod(word));
    else if (option == "-s")
      options.memory_limit = Bytes(static_cast<std::int64_t>(std::stod(word)));
    else if (option == "--activation_compression_ratio")
      options.activation_compression_ratio = std::stod(word);
    else
      throw std::runtime_error("unknown PipeDream option " + option);
  }
  one.topology = levels_topology(counts, bandwidths);
}

/// Reads the profile `name`.txt in `folder`.
inline Graph read_pipedream_profile(const std::string& folder, const std::string& name) {
  const std::string path = folder + "/" + name + ".txt";
  return interchange::parse_pipedream(format::read_text(path), path);
}

/// Reads the cases of `folder`/expected.json.
inline std::vector<PipedreamCase> read_pipedream_cases(const std::string& folder) {
  std::ifstream file(folder + "/expected.json");
  if (!file) throw std::runtime_error(folder + "/expected.json: cannot be read");
  std::vector<PipedreamCase> cases;
  for (const auto& entry : nlohmann::json::parse(file)) {
    PipedreamCase one;
    one.profile = entry.at("profile");
    one.arguments = entry.at("args");
    one.states = entry.at("num_states");
    one.time = entry.at("pipeline_time");
    read_pipedream_arguments(one);
    cases.push_back(one);
  }
  return cases;
}

}  // namespace stagecraft
