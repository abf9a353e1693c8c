#include "executor/stage/gradients/tied_gradients.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <ranges>
#include <utility>

#include "executor/channel/control_tags.h"

namespace stagecraft::stage {

TiedGradients::TiedGradients(channel::Channel& channel, const std::vector<TiedHolders>& tied,
                             std::vector<StageProgram*> programs)
    : channel_(channel), programs_(std::move(programs)) {
  for (const TiedHolders& holders : tied) {
    Tie tie{holders.parameter, {}, holders.ranks, channel::kTiesTag + holders.tag};
    for (std::size_t p = 0; p < programs_.size(); ++p) {
      Copies copies;
      copies.program = p;
      const std::vector<Parameter>& leaves = programs_[p]->leaves();
      for (std::size_t i = 0; i < leaves.size(); ++i) {
        if (leaves[i].name == holders.parameter) copies.leaves.push_back(i);
      }
      if (!copies.leaves.empty()) tie.stages.push_back(std::move(copies));
    }
    ties_.push_back(std::move(tie));
  }
}

bool TiedGradients::is_tied(const std::string& name) const {
  return std::ranges::find(ties_, name, &Tie::name) != ties_.end();
}

at::Tensor& TiedGradients::value(const Copies& copies, std::size_t i) const {
  return programs_[copies.program]->leaves()[copies.leaves[i]].value;
}

void TiedGradients::add_copies(std::size_t program, int microbatch, bool last) {
  const at::NoGradGuard no_graph;
  for (Tie& tie : ties_) {
    for (Copies& copies : tie.stages) {
      const std::size_t count = copies.leaves.size();
      if (copies.program != program || count < 2) continue;
      std::vector<at::Tensor>& gradients = copies.begun[microbatch];
      gradients.resize(count);
      for (std::size_t i = 0; i < count; ++i) {
        at::Tensor& gradient = value(copies, i).mutable_grad();
        if (gradient.defined()) gradients[i] = gradients[i].defined() ? gradients[i].add(gradient) : gradient;
        gradient = at::Tensor();
      }
      if (!last) continue;
      at::Tensor uses;
      // The last holder first, as in a backward.
      for (const at::Tensor& gradient : std::views::reverse(gradients)) {
        if (gradient.defined()) uses = uses.defined() ? uses.add(gradient) : gradient;
      }
      if (uses.defined()) copies.sum = copies.sum.defined() ? copies.sum.add_(uses) : uses;
      copies.begun.erase(microbatch);
    }
  }
}

void TiedGradients::reduce() {
  const at::NoGradGuard no_graph;
  for (Tie& tie : ties_) {
    at::Tensor sum;
    for (Copies& copies : std::views::reverse(tie.stages)) {
      const at::Tensor stage_sum = copies.leaves.size() > 1 ? std::exchange(copies.sum, {}) : value(copies, 0).grad();
      if (stage_sum.defined()) sum = sum.defined() ? sum.add(stage_sum) : stage_sum.clone();
    }
    if (tie.ranks.size() > 1) sum = over_ranks(tie, sum);
    // Stages take separate gradients: the optimizer divides each of them in place.
    for (const Copies& copies : tie.stages) {
      at::Tensor& parameter = value(copies, 0);
      parameter.mutable_grad() = sum.defined() ? at::empty_like(parameter).copy_(sum) : at::Tensor();
    }
  }
}

at::Tensor TiedGradients::over_ranks(const Tie& tie, const at::Tensor& sum) const {
  const at::Tensor& parameter = value(tie.stages.front(), 0);
  at::Tensor message = at::empty({parameter.numel() + 1}, parameter.options().requires_grad(false));
  at::Tensor total = message.narrow(0, 0, parameter.numel()).view(parameter.sizes());
  sum.defined() ? total.copy_(sum) : total.zero_();
  const at::Tensor count = message[parameter.numel()].fill_(sum.defined() ? 1 : 0);
  channel_.start({.kind = Collective::AllReduce, .values = message, .members = tie.ranks, .tag = tie.tag})->wait();
  // Only a rank without a gradient waits for a GPU to learn whether another rank has one.
  return sum.defined() || count.item<float>() > 0 ? total : at::Tensor();
}

}  // namespace stagecraft::stage
