#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/add.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/tanh.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <iostream>
#include <string>
#include <vector>

#include "executor/intake/layer_sources.h"
#include "executor/intake/pt2/pt2_archive.h"
#include "executor/intake/pt2/pt2_graph.h"

// The cost of running a model from a file compared with hand-written C++, and of loading one. bench/beside_torch_export
// makes the files, runs this and Python in turn, and prints both.

namespace {

using Clock = std::chrono::steady_clock;

double seconds(const std::function<void()>& work) {
  const auto begin = Clock::now();
  work();
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

double median(std::vector<double> values) {
  std::ranges::nth_element(values, values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2));
  return values[values.size() / 2];
}

constexpr int kBlocks = 32;
constexpr int kNodes = 4 * kBlocks + 1;

/// The operators of bench/tiny_operators.py.
at::Tensor by_hand(const at::Tensor& x, const at::Tensor& y) {
  at::Tensor h = x;
  for (int i = 0; i < kBlocks; ++i) h = at::tanh(at::add(at::relu(at::mul(h, 1.01)), y));
  return h.sum();
}

/// Microseconds per node, measured in turn.
std::string nodes(const std::string& path) {
  const stagecraft::model::Model model = stagecraft::intake::build_model(path, {});
  const std::vector<at::Tensor> inputs{at::ones({4, 8})};
  const std::vector<at::Tensor> parameters{at::ones({8}).requires_grad_(true)};
  const stagecraft::model::LayerSpec& layer = model.layers.front();
  const auto imported = [&] {
    return layer.forward({.inputs = inputs, .parameters = parameters, .buffers = {}}).front();
  };
  std::string out;
  for (const bool gradients : {false, true}) {
    const at::AutoGradMode mode(gradients);
    std::vector<double> ours, hand;
    for (int round = 0; round < 400; ++round) {
      constexpr int kTimes = 10;
      const auto run = [&](const auto& call) {
        return seconds([&] {
                 for (int i = 0; i < kTimes; ++i) (void)call();
               }) /
               (kTimes * kNodes);
      };
      const double a = run(imported), b = run([&] { return by_hand(inputs[0], parameters[0]); });
      if (round < 50) continue;
      ours.push_back(a);
      hand.push_back(b);
    }
    out += fmt::format("{}\"{}\": {{\"imported_us\": {:.3f}, \"by_hand_us\": {:.3f}}}", out.empty() ? "" : ", ",
                       gradients ? "forward" : "forward_no_grad", median(ours) * 1e6, median(hand) * 1e6);
  }
  return out;
}

/// Milliseconds until a model's tensors are ready.
std::string loading(const std::string& path) {
  std::vector<double> structure, mapped, checked, copied;
  const auto tensors = [](const stagecraft::intake::Pt2Archive& archive, bool check) {
    std::vector<std::shared_ptr<stagecraft::files::MappedRecord>> out;
    for (const auto& [name, stored] : archive.tensors)
      out.push_back(archive.zip->map(*archive.zip->find(stored.record), check));
    return out;
  };
  for (int round = 0; round < 7; ++round) {
    structure.push_back(seconds([&] { (void)stagecraft::intake::build_model(path, {}); }));
    mapped.push_back(seconds([&] {
      const stagecraft::model::Model model = stagecraft::intake::build_model(path, {});
      (void)tensors(stagecraft::intake::read_pt2_archive(path), false);
    }));
    checked.push_back(seconds([&] {
      const stagecraft::model::Model model = stagecraft::intake::build_model(path, {});
      (void)tensors(stagecraft::intake::read_pt2_archive(path), true);
    }));
    copied.push_back(seconds([&] {
      const stagecraft::model::Model model = stagecraft::intake::build_model(path, {});
      for (const stagecraft::model::LayerSpec& layer : model.layers) {
        for (const stagecraft::model::ParameterSpec& parameter : layer.parameters)
          (void)stagecraft::model::initial_value(parameter, 1).clone();
      }
    }));
  }
  return fmt::format(
      "\"layers_ms\": {:.2f}, \"mapped_ms\": {:.2f}, \"mapped_and_checked_ms\": {:.2f}, \"checked_and_copied_ms\": "
      "{:.2f}",
      median(structure) * 1e3, median(mapped) * 1e3, median(checked) * 1e3, median(copied) * 1e3);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::cerr << "usage: intake_bench TINY.pt2 LARGE.pt2; bench/beside_torch_export makes them\n";
    return 2;
  }
  at::set_num_threads(1);
  std::cout << fmt::format("{{\"nodes\": {{{}}}, \"loading\": {{{}}}}}\n", nodes(argv[1]), loading(argv[2]));
  return 0;
}
