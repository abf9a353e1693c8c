#include <ATen/ops/abs.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/sub.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <string>
#include <vector>

#include "executor/files/safetensors.h"
#include "executor/stage/optimizer.h"
#include "executor/stage/stage_program.h"
#include "tests/support/places.h"
#include "tests/support/run_command.h"

// Every optimizer and schedule against its class in Python, all in one process of Python.

namespace stagecraft::stage {
namespace {

struct OptimizerCase {
  OptimizerOptions options;
  std::string python;  // class and arguments
};

/// Python runs the kernels that the executor calls: fused ones where it does, lists elsewhere. Its fused SGD cannot
/// take a parameter whose momentum begins later than another's.
const std::vector<OptimizerCase> kOptimizers{
    {{.name = "sgd", .learning_rate = 0.1}, "SGD|lr=0.1, fused=True"},
    {{.name = "sgd", .learning_rate = 0.1, .momentum = 0.9, .weight_decay = 0.01, .dampening = 0.3},
     "SGD|lr=0.1, momentum=0.9, weight_decay=0.01, dampening=0.3, foreach=True"},
    {{.name = "sgd", .learning_rate = 0.1, .momentum = 0.9, .weight_decay = 0.01, .nesterov = true},
     "SGD|lr=0.1, momentum=0.9, weight_decay=0.01, nesterov=True, foreach=True"},
    {{.name = "adam", .learning_rate = 0.1, .weight_decay = 0.01}, "Adam|lr=0.1, weight_decay=0.01, fused=True"},
    {{.name = "adam", .learning_rate = 0.1, .beta1 = 0.5, .beta2 = 0.75, .epsilon = 1e-3, .amsgrad = true},
     "Adam|lr=0.1, betas=(0.5, 0.75), eps=1e-3, amsgrad=True, fused=True"},
    {{.name = "adamw", .learning_rate = 0.1, .weight_decay = 0.01}, "AdamW|lr=0.1, weight_decay=0.01, fused=True"},
    {{.name = "adamw", .learning_rate = 0.1, .amsgrad = true},
     "AdamW|lr=0.1, weight_decay=0, amsgrad=True, fused=True"},
    {{.name = "adamax", .learning_rate = 0.1}, "Adamax|lr=0.1, foreach=True"},
    {{.name = "adamax", .learning_rate = 0.1, .weight_decay = 0.01, .beta1 = 0.5, .beta2 = 0.75},
     "Adamax|lr=0.1, weight_decay=0.01, betas=(0.5, 0.75), foreach=True"},
    {{.name = "nadam", .learning_rate = 0.1}, "NAdam|lr=0.1, foreach=True"},
    {{.name = "nadam", .learning_rate = 0.1, .weight_decay = 0.01, .momentum_decay = 0.1},
     "NAdam|lr=0.1, weight_decay=0.01, momentum_decay=0.1, foreach=True"},
    {{.name = "nadam", .learning_rate = 0.1, .weight_decay = 0.01, .decoupled_weight_decay = true},
     "NAdam|lr=0.1, weight_decay=0.01, decoupled_weight_decay=True, foreach=True"},
    {{.name = "radam", .learning_rate = 0.1}, "RAdam|lr=0.1, foreach=True"},
    // With these betas, the last steps are rectified.
    {{.name = "radam", .learning_rate = 0.1, .weight_decay = 0.01, .beta1 = 0.5, .beta2 = 0.9},
     "RAdam|lr=0.1, weight_decay=0.01, betas=(0.5, 0.9), foreach=True"},
    {{.name = "radam", .learning_rate = 0.1, .weight_decay = 0.01, .decoupled_weight_decay = true},
     "RAdam|lr=0.1, weight_decay=0.01, decoupled_weight_decay=True, foreach=True"},
    {{.name = "adagrad", .learning_rate = 0.1}, "Adagrad|lr=0.1, fused=True"},
    {{.name = "adagrad",
      .learning_rate = 0.1,
      .weight_decay = 0.01,
      .learning_rate_decay = 0.2,
      .initial_accumulator = 0.5},
     "Adagrad|lr=0.1, weight_decay=0.01, lr_decay=0.2, initial_accumulator_value=0.5, fused=True"},
    {{.name = "adadelta", .learning_rate = 1}, "Adadelta|lr=1, foreach=True"},
    {{.name = "adadelta", .learning_rate = 1, .weight_decay = 0.01, .rho = 0.5},
     "Adadelta|lr=1, weight_decay=0.01, rho=0.5, foreach=True"},
    {{.name = "rmsprop", .learning_rate = 0.1}, "RMSprop|lr=0.1, foreach=True"},
    {{.name = "rmsprop", .learning_rate = 0.1, .weight_decay = 0.01, .alpha = 0.5, .centered = true},
     "RMSprop|lr=0.1, weight_decay=0.01, alpha=0.5, centered=True, foreach=True"},
    {{.name = "rmsprop", .learning_rate = 0.1, .momentum = 0.9, .centered = true},
     "RMSprop|lr=0.1, momentum=0.9, centered=True, foreach=True"},
};

struct ScheduleCase {
  RateSchedule schedule;
  std::string python;
};

/// At a rate of 0.5, of which `last` is a part.
const std::vector<ScheduleCase> kSchedules{
    {{.name = "linear", .steps = 12, .last = 0.2}, "LinearLR|start_factor=1, end_factor=0.2, total_iters=12|20"},
    {{.name = "polynomial", .steps = 12, .power = 2.5}, "PolynomialLR|total_iters=12, power=2.5|20"},
    {{.name = "cosine", .steps = 12, .last = 0.2}, "CosineAnnealingLR|T_max=12, eta_min=0.1|12"},
    {{.name = "step", .every = 3, .gamma = 0.5}, "StepLR|step_size=3, gamma=0.5|20"},
    {{.name = "exponential", .gamma = 0.9}, "ExponentialLR|gamma=0.9|20"},
    {{.name = "one-cycle", .steps = 20}, "OneCycleLR|max_lr=0.5, total_steps=20, cycle_momentum=False|20"},
    {{.name = "one-cycle", .steps = 20, .rise = 0.45, .first_divisor = 10, .last_divisor = 50, .anneal = "linear"},
     "OneCycleLR|max_lr=0.5, total_steps=20, cycle_momentum=False, pct_start=0.45, div_factor=10, final_div_factor=50, "
     "anneal_strategy='linear'|20"},
};

/// The largest difference of two tensors over the largest value of the second.
double difference(const at::Tensor& found, const at::Tensor& expected) {
  return found.sub(expected).abs().max().item<double>() / expected.abs().max().item<double>();
}

TEST(AgainstTorch, OptimizersAndSchedulesGiveTheSame) {
  const testing::CommandFolder folder;
  std::string cases;
  for (const char* how : {"", "|groups", "|parameters", "|moments"})
    for (const OptimizerCase& tried : kOptimizers) cases += "optimizer|" + tried.python + how + "\n";
  for (const ScheduleCase& tried : kSchedules) cases += "schedule|" + tried.python + "\n";
  const std::vector<double> losses{3, 2, 2, 1.9999, 2.5, 1, 1, 1, 1, 1, 1, 1, 1, 0.5, 1};
  cases += "plateau|factor=0.3, patience=1, threshold=1e-3, min_lr=0.02, eps=0|";
  for (const double& loss : losses) cases += (&loss == losses.data() ? "" : ",") + std::to_string(loss);
  folder.write("cases", cases + "\n");
  const std::string installed = source_folder() + "/.venv/bin/python";
  const std::string python = std::filesystem::exists(installed) ? installed : "python3";
  const testing::Outcome ran =
      folder.run(python + " " + source_folder() + "/tests/executor/stage/torch_optim.py out.safetensors < cases");
  if (ran.status == 77) GTEST_SKIP() << ran.out;
  ASSERT_EQ(ran.status, 0) << ran.err;
  const files::SafetensorsFile file((folder.path() / "out.safetensors").string());

  // Python's power and C++'s may differ in the last bit of a double, and kernels of another LibTorch may round
  // otherwise: some units in the last place of float32.
  constexpr double kRounding = 1e-6;
  std::size_t number = 0;
  for (std::size_t t = 0; t < 4 * kOptimizers.size(); ++t) {
    OptimizerCase tried = kOptimizers[t % kOptimizers.size()];
    const std::size_t how = t / kOptimizers.size();
    tried.options.ema_decay = 0.75;
    if (how == 1) tried.options.groups = {parse_group("1$:weight-decay=0,lr-factor=0.5")};
    if (how >= 2) tried.options.types.parameters = StateType::Bfloat16;
    if (how == 3) tried.options.types.gradients = tried.options.types.moments = StateType::Bfloat16;
    const at::ScalarType type = how >= 2 ? at::kBFloat16 : at::kFloat;
    const at::ScalarType of_gradients = how == 3 ? at::kBFloat16 : at::kFloat;
    const std::vector<std::string> names{"p.0", "p.1"};
    const std::string prefix = std::to_string(number++) + "/";
    std::vector<at::Tensor> parameters;
    for (const char* p : {"0", "1"})
      parameters.push_back(make_leaf(file.read(prefix + "before." + p).to(type), of_gradients));
    Optimizer optimizer(tried.options, parameters, names);
    for (int step = 0; step < 5; ++step) {
      for (std::size_t p = 0; p < parameters.size(); ++p) {
        const std::string name = prefix + "gradient." + std::to_string(step) + "." + std::to_string(p);
        // Divided by 4 again, which is exact.
        if (file.header().tensors.contains(name))
          parameters[p].mutable_grad() = file.read(name).to(of_gradients).mul(4);
      }
      if (step == 3) {  // as in a run that resumes
        Optimizer resumed(tried.options, parameters, names);
        for (std::size_t p = 0; p < parameters.size(); ++p) resumed.set_state(p, optimizer.state(p));
        optimizer = std::move(resumed);
      }
      optimizer.step(4);
    }
    for (std::size_t p = 0; p < parameters.size(); ++p) {
      const at::Tensor expected = file.read(prefix + "after." + std::to_string(p));
      const OptimizerState state = optimizer.state(p);
      const at::Tensor exact = how >= 2 ? state.master : parameters[p].detach();
      EXPECT_LE(difference(exact, expected), kRounding) << tried.python << ", parameter " << p << ", case " << how;
      EXPECT_TRUE(at::equal(parameters[p].detach(), exact.to(type))) << tried.python << ", rounding of parameter " << p;
      EXPECT_TRUE(!state.first.defined() || state.first.scalar_type() == of_gradients) << "as moments here";
      EXPECT_LE(difference(optimizer.state(p).average, file.read(prefix + "average." + std::to_string(p))), kRounding)
          << tried.python << ", average of parameter " << p;
      EXPECT_GE(difference(file.read(prefix + "before." + std::to_string(p)), expected), 1e-3) << "it moved";
    }
  }
  for (const ScheduleCase& tried : kSchedules) {
    validate(tried.schedule);
    const at::Tensor rates = file.read(std::to_string(number++) + "/rates");
    for (std::int64_t step = 0; step < rates.size(0); ++step) {
      // Python multiplies from step to step, which rounds in each.
      EXPECT_NEAR(0.5 * rate_factor(tried.schedule, step), rates[step].item<double>(), 1e-14)
          << tried.python << ", step " << step;
    }
  }
  const RateSchedule schedule{.name = "plateau", .last = 0.04, .gamma = 0.3, .patience = 1, .threshold = 1e-3};
  const at::Tensor rates = file.read(std::to_string(number) + "/rates");
  Plateau plateau;
  for (std::size_t i = 0; i < losses.size(); ++i) {
    observe(schedule, plateau, losses[i]);
    EXPECT_NEAR(0.5 * plateau.factor, rates[static_cast<std::int64_t>(i)].item<double>(), 1e-14) << "loss " << i;
  }
  EXPECT_EQ(plateau.factor, 0.04);
}

}  // namespace
}  // namespace stagecraft::stage
