#include "executor/channel/nccl_program.h"

#include <c10/util/accumulate.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "costmodel/index.h"
#include "executor/channel/channel.h"
#include "executor/channel/collective.h"

namespace stagecraft::channel {
namespace {

Collective kind_of(const NcclCall& call) {
  return call.kind == NcclCall::Kind::AllReduce       ? Collective::AllReduce
         : call.kind == NcclCall::Kind::ReduceScatter ? Collective::ReduceScatter
                                                      : Collective::AllGather;
}

}  // namespace

CollectiveCall collective_of(const NcclCall& call, at::Tensor values, std::vector<int> members) {
  return {.kind = kind_of(call),
          .values = std::move(values),
          .members = std::move(members),
          .tag = call.tag,
          .counts = call.counts};
}

std::string to_string(const NcclCall& call) {
  const char* const kind = call.kind == NcclCall::Kind::Send      ? "send"
                           : call.kind == NcclCall::Kind::Receive ? "receive"
                                                                  : collective_text(kind_of(call));
  const std::string parts = call.counts.empty() ? "" : fmt::format(" in parts of {}", fmt::join(call.counts, ", "));
  return fmt::format("{} of {}{} under tag {}", kind, describe(call.spec), parts, call.tag);
}

int NcclProgram::reduction(const std::vector<int>& members, int tag) const {
  for (std::size_t c = 0; c < communicators.size(); ++c) {
    const CommunicatorPlan& communicator = communicators[c];
    if (communicator.reduces && communicator.ranks == members && std::ranges::binary_search(communicator.tags, tag))
      return to_int(c);
  }
  return -1;
}

int assign_rounds(std::vector<CommunicatorPlan>& communicators) {
  std::map<int, std::set<int>> taken;  // rounds, by rank
  int rounds = 0;
  for (CommunicatorPlan& communicator : communicators) {
    communicator.round = 0;
    while (std::ranges::any_of(communicator.ranks, [&](int rank) { return taken[rank].contains(communicator.round); }))
      ++communicator.round;
    for (const int rank : communicator.ranks) taken[rank].insert(communicator.round);
    rounds = std::max(rounds, communicator.round + 1);
  }
  std::ranges::stable_sort(communicators, {}, &CommunicatorPlan::round);
  return rounds;
}

std::int64_t bytes_of(const NcclCall& call) {
  return static_cast<std::int64_t>(c10::elementSize(call.spec.dtype)) * c10::multiply_integers(call.spec.shape);
}

std::vector<std::vector<NcclCall>> distinct_messages(const NcclProgram& program, int communicator, int rank) {
  std::vector<std::vector<NcclCall>> out;
  if (to_index(rank) >= program.calls.size()) return out;
  std::set<std::vector<std::int64_t>> seen;  // kind, bytes and counts of the calls
  std::vector<NcclCall> message;
  const auto end_message = [&] {
    std::vector<std::int64_t> content;
    for (const NcclCall& call : message) {
      content.insert(content.end(), {static_cast<std::int64_t>(call.kind), bytes_of(call)});
      content.insert(content.end(), call.counts.begin(), call.counts.end());
    }
    if (!message.empty() && seen.insert(content).second) out.push_back(message);
    message.clear();
  };
  for (const NcclCall& call : program.calls[to_index(rank)]) {
    if (call.communicator != communicator) continue;
    if (!call.joins) end_message();
    message.push_back(call);
  }
  end_message();
  return out;
}

std::string find_mismatch(const NcclProgram& program) {
  std::vector<std::map<int, std::vector<const NcclCall*>>> calls(program.communicators.size());  // by rank
  for (std::size_t rank = 0; rank < program.calls.size(); ++rank) {
    for (const NcclCall& call : program.calls[rank]) calls[to_index(call.communicator)][to_int(rank)].push_back(&call);
  }
  for (std::size_t c = 0; c < calls.size(); ++c) {
    const CommunicatorPlan& communicator = program.communicators[c];
    const std::vector<const NcclCall*>& first = calls[c][communicator.ranks.front()];
    for (const auto& [rank, called] : calls[c]) {
      const auto place = std::ranges::find(communicator.ranks, rank);
      if (place == communicator.ranks.end())
        return fmt::format("{}: rank {} calls it but is not a member", communicator.name, rank);
      const bool front = place == communicator.ranks.begin();
      const auto is_right = [&](const NcclCall& call) {
        if (communicator.reduces) return is_collective(call.kind);
        return call.kind == (front ? NcclCall::Kind::Send : NcclCall::Kind::Receive);
      };
      for (std::size_t i = 0; i < std::max(called.size(), first.size()); ++i) {
        const auto text = [&](const std::vector<const NcclCall*>& list) {
          if (i >= list.size()) return std::string("nothing");
          const std::string call = to_string(*list[i]);
          return (call.starts_with('a') ? "an " : "a ") + call +
                 (list[i]->joins ? ", grouped with the call before it" : "");
        };
        const bool same = i < called.size() && i < first.size() && is_right(*called[i]) &&
                          (!communicator.reduces || called[i]->kind == first[i]->kind) &&
                          called[i]->counts == first[i]->counts && bytes_of(*called[i]) == bytes_of(*first[i]) &&
                          called[i]->joins == first[i]->joins;
        if (same) continue;
        return fmt::format("{}, call {}: rank {} has {}, rank {} has {}", communicator.name, i + 1,
                           communicator.ranks.front(), text(first), rank, text(called));
      }
    }
    if (first.empty()) continue;
    for (const int rank : communicator.ranks) {
      if (!calls[c].contains(rank)) return fmt::format("{}: rank {} never calls it", communicator.name, rank);
    }
  }
  return "";
}

}  // namespace stagecraft::channel
