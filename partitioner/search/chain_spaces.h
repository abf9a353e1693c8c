#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "costmodel/units.h"
#include "partitioner/exact/chain_search.h"
#include "partitioner/exact/lattice.h"
#include "partitioner/search/search_context.h"

namespace stagecraft::partitioner {

/// The searches over all splits that the constraints allow, one for each number of chunks and, with several chunks, of
/// devices. Each goes on for the time that the context allows. Where the down-sets are too many, stages are cut from
/// one order of the layers.
class ChainSpaces {
 public:
  /// The context must outlive it.
  explicit ChainSpaces(const SearchContext& context);
  ChainSpaces(const ChainSpaces&) = delete;
  ChainSpaces& operator=(const ChainSpaces&) = delete;

  [[nodiscard]] bool is_empty() const { return spaces_.empty(); }
  /// Whether they hold every split.
  [[nodiscard]] bool is_whole() const { return is_whole_; }

  /// The largest time found, from `low` to `high`, that all of them refute; `low` if they are not whole.
  [[nodiscard]] Seconds least(Seconds low, Seconds high);

  /// Predicts all splits by bounds that rise from `low`. Returns the bound up to which nothing was left out, as the
  /// function enumerate does.
  Seconds enumerate_all(Seconds low, Seconds done);

 private:
  void make_lattice();
  void add(const SearchSpace& space);
  void add_chunks(SearchSpace space);

  const SearchContext& context_;
  std::optional<Lattice> lattice_;
  std::vector<std::unique_ptr<ChainSearch>> spaces_;
  bool is_whole_ = true;
};

}  // namespace stagecraft::partitioner
