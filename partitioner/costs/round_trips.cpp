#include "partitioner/costs/round_trips.h"

#include <algorithm>

namespace stagecraft::partitioner {

std::vector<ReplicaRange> replica_ranges(int most, int microbatches) {
  constexpr int kEveryNumber = 64;
  constexpr double kAlike = 1.02;
  std::vector<ReplicaRange> out;
  for (int r = 1; r <= most; ++r) {
    const std::int64_t share = (microbatches + r - 1) / r;
    if (r > kEveryNumber && out.back().share == share && r <= kAlike * out.back().first) {
      out.back().last = r;
    } else {
      out.push_back({r, r, share});
    }
  }
  return out;
}

Seconds trips_of(Seconds trip, Seconds forward, Seconds back, std::int64_t share, std::int64_t in_flight) {
  const auto count = [](std::int64_t n) { return static_cast<double>(n); };
  // F_1 .. B_1 covers at most W forwards, and F_n .. B_n at most W backwards.
  const Seconds once = std::max(back * count(share - 1) + forward * count(share - in_flight),
                                forward * count(share - 1) + back * count(share - in_flight));
  Seconds out = trip + once;
  // F_1 .. B_1, then whole trips of W forwards and backwards each, then F_n .. B_n: linear in the number of trips.
  const std::int64_t most = (share + in_flight - 1) / in_flight;
  for (const std::int64_t trips : {std::int64_t{2}, most}) {
    if (trips < 2 || trips > most) continue;
    out = std::max(out, trip * count(trips) + (forward + back) * count(share - (trips - 1) * in_flight - 1));
  }
  return out;
}

}  // namespace stagecraft::partitioner
