#include <algorithm>
#include <map>
#include <utility>

#include "costmodel/index.h"
#include "executor/data/sources.h"

namespace stagecraft::data {
namespace {

class Arranged : public DataSource {
 public:
  Arranged(std::unique_ptr<DataSource> inner, std::vector<model::ModelInput> inputs)
      : inner_(std::move(inner)), inputs_(std::move(inputs)) {
    int next = 0;
    for (const model::ModelInput& input : inputs_) place_.push_back(input.derive ? -1 : next++);
  }

  std::vector<at::Tensor> batch(std::int64_t step, int microbatch, int microbatches, std::int64_t samples,
                                std::span<const int> inputs) const override {
    std::map<int, at::Tensor> given;  // by index among the model's inputs
    for (const int index : inputs) {
      if (at(index).derive) {
        for (const int source : at(index).sources) given.try_emplace(source);
      } else {
        given.try_emplace(index);
      }
    }
    std::vector<int> sampled;
    std::vector<int> fixed;
    for (const auto& [index, tensor] : given) (at(index).batch_axis ? sampled : fixed).push_back(index);
    fetch(sampled, step, microbatch, microbatches, samples, given);
    fetch(fixed, 0, 0, 1, 1, given);
    for (auto& [index, tensor] : given) {
      const std::optional<int>& axis = at(index).batch_axis;
      tensor = axis ? tensor.movedim(0, *axis).contiguous() : tensor.select(0, 0);
    }
    std::vector<at::Tensor> out;
    for (const int index : inputs) {
      if (!at(index).derive) {
        out.push_back(given.at(index));
        continue;
      }
      std::vector<at::Tensor> sources;
      for (const int source : at(index).sources) sources.push_back(given.at(source));
      out.push_back(at(index).derive(sources));
    }
    return out;
  }

  std::optional<std::int64_t> samples() const override { return inner_->samples(); }

 private:
  const model::ModelInput& at(int index) const { return inputs_.at(to_index(index)); }

  /// Puts the inner source's tensors for `wanted`, none of them derived, into `out`.
  void fetch(const std::vector<int>& wanted, std::int64_t step, int microbatch, int microbatches, std::int64_t samples,
             std::map<int, at::Tensor>& out) const {
    if (wanted.empty()) return;
    std::vector<int> places;
    for (const int index : wanted) places.push_back(place_[to_index(index)]);
    std::vector<at::Tensor> got = inner_->batch(step, microbatch, microbatches, samples, places);
    for (std::size_t i = 0; i < wanted.size(); ++i) out[wanted[i]] = std::move(got[i]);
  }

  std::unique_ptr<DataSource> inner_;
  std::vector<model::ModelInput> inputs_;
  std::vector<int> place_;  ///< of each input among those of the inner source; -1: derived
};

}  // namespace

model::Model without_derived(const model::Model& model) {
  model::Model out;
  out.name = model.name;
  std::ranges::copy_if(model.inputs, std::back_inserter(out.inputs),
                       [](const model::ModelInput& input) { return !input.derive; });
  return out;
}

std::unique_ptr<DataSource> arranged_source(std::unique_ptr<DataSource> inner, const model::Model& model) {
  const bool plain = std::ranges::all_of(
      model.inputs, [](const model::ModelInput& input) { return !input.derive && input.batch_axis == 0; });
  if (plain) return inner;
  return std::make_unique<Arranged>(std::move(inner), model.inputs);
}

}  // namespace stagecraft::data
