#include "profiler/profile.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <map>
#include <memory>
#include <numeric>
#include <set>
#include <stdexcept>
#include <thread>

#include "costmodel/timeline.h"
#include "executor/dtype.h"
#include "executor/memory_tracker.h"
#include "executor/ranges.h"
#include "executor/stage_program.h"
#include "profiler/layer_clock.h"

namespace stagecraft {
namespace {

std::vector<int> all_layers(const Model& model) {
  std::vector<int> out(model.layers.size());
  std::iota(out.begin(), out.end(), 0);
  return out;
}

/// The model as one stage, with an optimizer a layer and one over all.
class Subject {
 public:
  Subject(const Model& model, const ProfileOptions& options)
      : program_(model, all_layers(model), {}, {}, options.seed) {
    OptimizerOptions still = options.optimizer;
    still.learning_rate = 0;
    std::vector<at::Tensor> all;
    std::map<int, std::vector<at::Tensor>> by_layer;
    for (const Parameter& parameter : program_.parameters()) {
      all.push_back(parameter.value);
      by_layer[parameter.layer].push_back(parameter.value);
    }
    whole_ = std::make_unique<Optimizer>(still, std::move(all));
    for (auto& [layer, values] : by_layer)
      layers_.emplace_back(layer, std::make_unique<Optimizer>(still, std::move(values)));
  }

  StageProgram& program() { return program_; }

  void clear_gradients() {
    for (Parameter& parameter : program_.parameters()) {
      if (parameter.value.grad().defined()) parameter.value.mutable_grad().zero_();
    }
  }
  /// Seconds of forward, backward and update as a run does them.
  double iterate(const std::vector<at::Tensor>& batch, std::int64_t step) {
    clear_gradients();
    const Range range(plain_range_, step);
    const double start = steady_seconds();
    (void)program_.backward(program_.forward({}, batch, step, 0), {});
    whole_->step(1);
    return steady_seconds() - start;
  }
  /// Forward and backward under the clock.
  void watch(const std::vector<at::Tensor>& batch, std::int64_t step, LayerClock& clock) {
    clear_gradients();
    clock.reset();
    const Range range(watched_range_, step);
    Flight flight = program_.forward({}, batch, step, 0, true, &clock);
    clock.begin_backward();
    (void)program_.backward(std::move(flight), {});
    clock.end_backward();
  }
  /// Seconds of each layer's update, by layer.
  void update(std::vector<std::vector<double>>& samples) {
    for (auto& [layer, optimizer] : layers_) {
      const double start = steady_seconds();
      optimizer->step(1);
      samples[static_cast<std::size_t>(layer)].push_back(steady_seconds() - start);
    }
  }

 private:
  StageProgram program_;
  RangeName plain_range_ = range_name("iteration");
  RangeName watched_range_ = range_name("watched iteration");
  std::unique_ptr<Optimizer> whole_;
  std::vector<std::pair<int, std::unique_ptr<Optimizer>>> layers_;
};

struct Samples {
  std::vector<double> whole;
  std::vector<double> loading;
  std::vector<std::vector<double>> forward, backward, update;

  /// Of each watched iteration the layers' seconds together.
  [[nodiscard]] std::vector<double> sums() const {
    std::vector<double> out(whole.size());
    for (const auto* parts : {&forward, &backward, &update}) {
      for (const std::vector<double>& part : *parts) {
        for (std::size_t i = 0; i < part.size(); ++i) out[i] += part[i];
      }
    }
    return out;
  }
};

std::string input_id(const ModelInput& input) { return "input:" + input.name; }

Output output_of(const at::Tensor& tensor) {
  return {Bytes(static_cast<std::int64_t>(tensor.nbytes())), tensor.sizes().vec(), dtype_name(tensor.scalar_type()),
          tensor.requires_grad()};
}

/// The layers and edges without costs.
Graph skeleton(const Model& model, const ProfileOptions& options, const std::vector<std::vector<Output>>& outputs) {
  Graph graph;
  graph.name = model.name;
  graph.options = model.options;
  graph.microbatch_samples = options.microbatch_samples;
  graph.dtype = "float32";
  graph.optimizer = options.optimizer.name;
  graph.optimizer_state_values = state_values(options.optimizer);
  graph.threads = options.threads;
  std::map<std::string, int> holders;
  for (const LayerSpec& spec : model.layers) {
    std::set<std::string> own;
    for (const ParameterSpec& parameter : spec.parameters) own.insert(parameter.name);
    for (const std::string& name : own) ++holders[name];
  }
  const int inputs = static_cast<int>(model.inputs.size());
  for (const ModelInput& input : model.inputs) {
    Layer layer;
    layer.id = layer.name = input_id(input);
    layer.kind = kInputKind;
    std::vector<std::int64_t> shape = input.shape;
    shape.insert(shape.begin(), options.microbatch_samples);
    std::int64_t values = 1;
    for (const std::int64_t axis : shape) values *= axis;
    const std::int64_t bytes = values * static_cast<std::int64_t>(c10::elementSize(dtype_of(input.dtype)));
    layer.outputs = {{Bytes(bytes), shape, input.dtype, false}};
    graph.layers.push_back(std::move(layer));
  }
  for (std::size_t i = 0; i < model.layers.size(); ++i) {
    const LayerSpec& spec = model.layers[i];
    Layer layer;
    layer.id = layer.name = spec.name;
    layer.kind = spec.kind;
    layer.outputs = outputs[i];
    layer.parameters = parameter_count(spec);
    layer.parameter_bytes = Bytes(*layer.parameters * static_cast<std::int64_t>(sizeof(float)));
    for (const ParameterSpec& parameter : spec.parameters) {
      if (!parameter.trainable || holders[parameter.name] < 2) continue;
      std::int64_t values = 1;
      for (const std::int64_t axis : parameter.shape) values *= axis;
      layer.tied.push_back({parameter.name, Bytes(values * static_cast<std::int64_t>(sizeof(float)))});
    }
    graph.layers.push_back(std::move(layer));
    for (const ValueRef& argument : spec.inputs) {
      const int source = argument.layer >= 0 ? inputs + argument.layer : argument.input;
      graph.edges.push_back({source, inputs + static_cast<int>(i), argument.layer >= 0 ? argument.output : 0});
    }
  }
  return graph;
}

/// Seconds of an iteration while `count` threads run it at once.
double concurrent_time(const Model& model, const std::vector<at::Tensor>& batch, const ProfileOptions& options,
                       int count) {
  std::vector<std::unique_ptr<Subject>> subjects;
  for (int i = 0; i < count; ++i) subjects.push_back(std::make_unique<Subject>(model, options));
  std::vector<std::vector<double>> samples(static_cast<std::size_t>(count));
  std::atomic<bool> stop{false};
  std::barrier ready(count);
  std::vector<std::jthread> threads;
  for (int i = 0; i < count; ++i) {
    threads.emplace_back([&, i] {
      at::set_num_threads(options.threads);
      Subject& subject = *subjects[static_cast<std::size_t>(i)];
      auto& own = samples[static_cast<std::size_t>(i)];
      for (int k = 0; k < options.warmup; ++k) (void)subject.iterate(batch, k);
      ready.arrive_and_wait();
      const double start = steady_seconds();
      // All go on until the slowest has enough, so that every sample was taken with company.
      while (!stop) {
        own.push_back(subject.iterate(batch, static_cast<std::int64_t>(own.size())));
        const double spent = steady_seconds() - start;
        if (i == 0 && ((own.size() >= 5 && spent > options.rule.most_seconds / 8) || spent > options.rule.most_seconds))
          stop = true;
      }
    });
  }
  threads.clear();
  std::vector<double> all;
  for (const auto& own : samples) all.insert(all.end(), own.begin(), own.end());
  return median(std::move(all));
}

void check(const ProfileOptions& options) {
  const auto at_least = [](const char* what, std::int64_t value, std::int64_t low) {
    if (value < low)
      throw std::invalid_argument(std::string(what) + " is " + std::to_string(value) + ", wanted at least " +
                                  std::to_string(low));
  };
  at_least("the microbatch", options.microbatch_samples, 1);
  at_least("the number of threads", options.threads, 1);
  at_least("the number of ranks at once", options.concurrent, 1);
  at_least("the warm-up", options.warmup, 0);
  at_least("the fewest samples", static_cast<std::int64_t>(options.rule.fewest), 1);
  validate(options.optimizer);
}

}  // namespace

Profile profile_model(const Model& model, const DataSource& data, const ProfileOptions& options,
                      const std::function<void(const ProfileProgress&)>& progress) {
  check(options);
  const auto tell = [&](const char* phase, std::size_t iteration, double error = 0) {
    if (progress) progress({phase, iteration, error});
  };
  at::set_num_threads(options.threads);
  const std::size_t layers = model.layers.size();
  MemoryTracker memory;
  auto counting = std::make_unique<MemoryTracker::Scope>(memory);
  Subject subject(model, options);
  const auto load = [&](std::int64_t step) {
    return data.batch(step, 0, 1, options.microbatch_samples, subject.program().data_inputs());
  };
  std::vector<at::Tensor> batch = load(0);
  // All inputs in order, as data_inputs lists only those that layers read.
  std::vector<std::vector<Output>> outputs(layers);
  {
    Model recording = model;
    for (std::size_t i = 0; i < layers; ++i) {
      recording.layers[i].forward = [inner = model.layers[i].forward, &own = outputs[i]](const LayerCall& call) {
        std::vector<at::Tensor> results = inner(call);
        own.clear();
        for (const at::Tensor& result : results) own.push_back(output_of(result));
        return results;
      };
    }
    tell("warm-up", 0);
    StageProgram once(recording, all_layers(model), {}, {}, options.seed);
    (void)once.forward({}, batch, 0, 0);
  }
  Profile out;
  out.graph = skeleton(model, options, outputs);

  for (int i = 0; i < options.warmup; ++i) {
    tell("warm-up", static_cast<std::size_t>(i) + 1);
    (void)subject.iterate(batch, i);
  }
  {
    tell("memory", 0);
    LayerClock clock(layers, subject.program().parameters(), &memory);
    subject.watch(batch, 0, clock);
    // A layer that lets more go than it leaves has its surplus taken off the layers after it.
    std::int64_t carried = 0;
    for (std::size_t i = 0; i < layers; ++i) {
      Layer& layer = out.graph.layers[model.inputs.size() + i];
      const std::int64_t growth = clock.growth()[i] + carried;
      layer.saved_bytes = Bytes(std::max<std::int64_t>(growth, 0));
      carried = std::min<std::int64_t>(growth, 0);
      layer.workspace_bytes = Bytes(std::max<std::int64_t>(clock.transient()[i], 0));
    }
  }
  counting.reset();

  Samples samples;
  samples.forward.resize(layers);
  samples.backward.resize(layers);
  samples.update.resize(layers);
  std::vector<std::vector<double>> parts;
  {
    LayerClock clock(layers, subject.program().parameters());
    const double start = steady_seconds();
    for (std::size_t i = 0; out.stop == Stop::No; ++i) {
      const auto step = static_cast<std::int64_t>(i);
      const double begin = steady_seconds();
      batch = load(step);
      samples.loading.push_back(steady_seconds() - begin);
      samples.whole.push_back(subject.iterate(batch, step));
      subject.watch(batch, step, clock);
      subject.update(samples.update);
      out.unmapped += clock.unmapped();
      for (std::size_t l = 0; l < layers; ++l) {
        samples.forward[l].push_back(clock.forward()[l]);
        samples.backward[l].push_back(clock.backward()[l]);
      }
      parts = samples.forward;
      parts.insert(parts.end(), samples.backward.begin(), samples.backward.end());
      out.stop = should_stop(options.rule, samples.whole, parts, steady_seconds() - start);
      tell("measuring", i + 1, relative_error(samples.whole));
    }
  }

  for (std::size_t l = 0; l < layers; ++l) {
    Layer& layer = out.graph.layers[model.inputs.size() + l];
    layer.forward = summarize(samples.forward[l]);
    layer.backward = summarize(samples.backward[l]);
    out.sum += layer.forward.median + layer.backward.median;
    if (samples.update[l].empty()) continue;
    layer.update = summarize(samples.update[l]);
    out.sum += layer.update->median;
  }
  out.watched = Seconds(median(samples.sums()));
  // Loading is one call for all inputs; it is told with the first.
  if (!model.inputs.empty()) out.graph.layers.front().forward = summarize(samples.loading);
  out.graph.iteration = summarize(samples.whole);

  if (options.concurrent > 1) {
    out.graph.slowdown = {1};
    double alone = 0;
    for (int count = 1; count <= options.concurrent; ++count) {
      tell((std::to_string(count) + " at once").c_str(), 0);
      const double time = concurrent_time(model, batch, options, count);
      if (count == 1) {
        alone = time;
      } else {
        out.graph.slowdown.push_back(std::max(out.graph.slowdown.back(), time / alone));
      }
    }
  }
  return out;
}

}  // namespace stagecraft
