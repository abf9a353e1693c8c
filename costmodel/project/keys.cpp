#include "costmodel/errors.h"
#include "costmodel/links/channel_traits.h"
#include "costmodel/project/project.h"
#include "costmodel/schedule.h"

namespace stagecraft::project {
namespace {

ProjectKey options_of(const std::string& verb) {
  return {"options", KeyKind::Words, "more options of stagecraft " + verb + ", as on its command line", "[]"};
}

std::vector<std::string> training_schedules() {
  std::vector<std::string> out;
  for (const ScheduleEntry& entry : schedules()) {
    if (entry.trains && !entry.needs_lists) out.push_back(entry.name);
  }
  out.push_back("csv:FILE");
  return out;
}

std::vector<std::string> channel_names() {
  std::vector<std::string> out;
  for (const ChannelTraits& channel : channel_traits()) out.push_back(channel.name);
  return out;
}

}  // namespace

const std::vector<ProjectSection>& sections() {
  static const std::vector<std::string> channels = channel_names();
  static const std::vector<ProjectSection> table{
      {"model",
       "The model to train.",
       {{"name", KeyKind::Text, "a built-in model (stagecraft help profile lists them) or a file: .pt2, TorchScript",
         "\"convnet\""},
        {"options", KeyKind::Named, "options of a built-in model", "{ channels = 32 }"},
        {"graph", KeyKind::Text, "a graph instead of `name`: nothing is profiled, so nothing needs LibTorch",
         "\"graph.json\""},
        {"microbatch", KeyKind::Integer, "samples per microbatch", "32", 1},
        {"dtype",
         KeyKind::Text,
         "bfloat16 and float16 use autocast",
         "\"float32\"",
         {},
         {"float32", "bfloat16", "float16"}},
        {"allow_tf32", KeyKind::Flag, "let GPUs round the inputs of float32 matrix products to TF32", "false"},
        {"layers", KeyKind::Text, "how to cut into layers: auto, leaf, depth=N or op", "\"auto\""},
        {"loss", KeyKind::Text, "files without a loss: cross_entropy, mse, ...", "\"cross_entropy\""},
        {"loss_output", KeyKind::Integer, "files: index of the output that is the loss, or that `loss` reads", "0", 0},
        {"inputs", KeyKind::Words, "TorchScript files: NAME=TYPE[SHAPE] of one sample",
         "[\"image=float32[3,224,224]\"]"},
        {"input_ranges", KeyKind::Words, "files: NAME=LOW..HIGH of an integer input, HIGH excluded",
         "[\"tokens=0..50257\"]"}}},
      {"data",
       "The training data.",
       {{"source", KeyKind::Text, "synthetic, fashion-mnist, tensors:FILE, text:FILE, ... (stagecraft help run)",
         "\"synthetic\""}}},
      {"cluster",
       "The devices to train on.",
       {{"topology", KeyKind::Text,
         "this-machine (its links are measured), a topology file, or example:NAME, such as example:dgx-h100",
         "\"this-machine\""},
        {"devices", KeyKind::Integer, "this-machine: number of processes, or of GPUs", "2", 1},
        {"device", KeyKind::Text, "cpu or cuda: where profile and run compute", "\"cpu\"", {}, {"cpu", "cuda"}},
        {"estimate", KeyKind::Text,
         "estimate the times of a GPU that you do not have from those measured here (stagecraft estimate --list)",
         "\"H100-SXM\""},
        {"channel", KeyKind::Text, "channel between ranks: " + joined_words(channels, "or"), "\"ucx\"", {}, channels},
        {"hosts", KeyKind::Text, "file with one host per line: run starts its ranks there over ssh", "\"hosts.txt\""},
        {"remote_shell", KeyKind::Text, "with hosts: command that starts a rank, like ssh", "\"ssh -o BatchMode=yes\""},
        {"threads", KeyKind::Integer, "threads per rank", "1", 1},
        {"accept_untrusted", KeyKind::Flag, "accept times measured on a busy machine", "false"}}},
      {"profile",
       "How layers are measured.",
       {{"max_seconds", KeyKind::Number, "time limit", "30", 0},
        {"concurrent", KeyKind::Integer, "measure the slowdown of up to this many ranks on this host (CPU)", "2", 1},
        options_of("profile")}},
      {"links",
       "How links are measured; only with topology = \"this-machine\".",
       {{"seconds", KeyKind::Number, "approximate time", "20", 0},
        {"max_bytes", KeyKind::Bytes, "largest message", "\"64MiB\""},
        options_of("links")}},
      {"plan",
       "Constraints on the plan.",
       {{"microbatches", KeyKind::Integer, "microbatches per step", "8", 1},
        {"global_batch", KeyKind::Integer, "samples per step instead: microbatches times samples per microbatch", "256",
         1},
        {"schedule", KeyKind::Text, "order of work", "\"1f1b\"", {}, training_schedules()},
        {"strategy", KeyKind::Text, "how stages are chosen (stagecraft help plan)", "\"optimal\""},
        {"settings",
         KeyKind::Text,
         "best: search schedule, recomputation and gradient buckets too, unless given here; given: only stages; "
         "default: "
         "best with strategy optimal",
         "\"best\"",
         {},
         {"best", "given"}},
        {"stages", KeyKind::Integer, "number of stages", "2", 1},
        {"chunks", KeyKind::Integer, "stages per device, for schedules such as " + chunked_schedule().name, "2", 1},
        {"replicas", KeyKind::Words, "replicas of each stage", "[2, 1]"},
        {"split_at", KeyKind::Words, "cut by hand: the first layer of every stage except the first", "[\"layer2.0\"]"},
        {"memory_limit", KeyKind::Bytes, "per device", "\"16GiB\""},
        {"recompute", KeyKind::Flag, "drop activations after the forward and compute them again", "false"},
        {"recompute_every", KeyKind::Integer, "the same, in segments of this many layers", "4", 1},
        {"gradient_bucket_bytes", KeyKind::Bytes, "largest gradient bucket", "\"25MiB\""},
        {"time_limit", KeyKind::Number, "seconds to search", "3", 0},
        {"accept_other_device", KeyKind::Flag,
         "use times measured on a device other than the topology's, and mark every figure", "false"},
        options_of("plan")}},
      {"predict",
       "How the plan is predicted.",
       {{"calibration", KeyKind::Text, "factors from measured runs (stagecraft calibrate)", "\"calibration.json\""},
        options_of("predict")}},
      {"training",
       "Optimizer and learning rate.",
       {{"optimizer", KeyKind::Text, "sgd, adam, adamw, ... (stagecraft help run)", "\"sgd\""},
        {"learning_rate", KeyKind::Number, "", "0.01", 0},
        {"momentum", KeyKind::Number, "of sgd and rmsprop", "0.9", 0},
        {"weight_decay", KeyKind::Number, "", "0.0001", 0},
        {"betas", KeyKind::Pair, "beta1 and beta2 of adam and its variants, and of lion", "[0.9, 0.999]", 0},
        {"eps", KeyKind::Number, "term added to the denominator", "1e-08", 0},
        {"dampening", KeyKind::Number, "of sgd's momentum", "0", 0},
        {"nesterov", KeyKind::Flag, "Nesterov momentum, for sgd", "false"},
        {"amsgrad", KeyKind::Flag, "adam and adamw: use the AMSGrad variant", "false"},
        {"alpha", KeyKind::Number, "decay rate of rmsprop's squares", "0.99", 0},
        {"centered", KeyKind::Flag, "rmsprop: use the centered variant", "false"},
        {"rho", KeyKind::Number, "decay rate of adadelta", "0.9", 0},
        {"lr_decay", KeyKind::Number, "learning rate decay of adagrad", "0", 0},
        {"initial_accumulator_value", KeyKind::Number, "initial accumulator value of adagrad", "0", 0},
        {"momentum_decay", KeyKind::Number, "of nadam", "0.004", 0},
        {"decoupled_weight_decay", KeyKind::Flag, "nadam and radam: decoupled weight decay, as in AdamW", "false"},
        {"ema_decay", KeyKind::Number, "keep a moving average of each parameter with this decay, for evaluation",
         "0.999", 0},
        {"group", KeyKind::Words,
         "settings of parameters by name: a regular expression, then weight-decay, learning-rate or "
         "learning-rate-factor",
         "[\"bias|norm:weight-decay=0\"]"},
        {"rate_schedule", KeyKind::Text,
         "constant, linear, polynomial, cosine, step, exponential, one-cycle or plateau", "\"constant\""},
        {"warmup_steps", KeyKind::Integer, "linear warm-up", "100", 0},
        {"last_rate", KeyKind::Number,
         "final rate of linear, polynomial and cosine, or least rate of plateau, as a fraction of learning_rate", "0.1",
         0},
        {"lr_power", KeyKind::Number, "power of polynomial", "2", 0},
        {"lr_step_size", KeyKind::Integer, "step: number of steps between decays", "1000", 1},
        {"lr_gamma", KeyKind::Number, "step and plateau: factor of each decay; exponential: factor of each step", "0.1",
         0},
        {"lr_patience", KeyKind::Integer, "plateau: validations without a better loss before the rate falls", "10", 0},
        {"lr_threshold", KeyKind::Number, "plateau: share of the best loss by which a better one is below it", "0.0001",
         0},
        {"pct_start", KeyKind::Number, "fraction of one-cycle in which the rate rises to learning_rate", "0.3", 0},
        {"div_factor", KeyKind::Number, "one-cycle begins with learning_rate / this", "25", 1},
        {"final_div_factor", KeyKind::Number, "one-cycle ends with its first rate / this", "10000", 1},
        {"anneal_strategy", KeyKind::Text, "how one-cycle moves between its rates", "\"cos\"", {}, {"cos", "linear"}},
        {"clip_norm", KeyKind::Number, "clip the gradient of the whole model to this norm", "1", 0},
        {"loss_scale", KeyKind::Number, "float16: fixed loss scale (default: dynamic)", "1024", 0, {}, true},
        {"loss_scale_growth_interval", KeyKind::Integer,
         "float16: steps without an overflow before the dynamic loss scale doubles", "2000", 1},
        {"seed", KeyKind::Integer, "of weights, data and dropout", "1", 0}}},
      {"run",
       "How long it is trained. Without this section nothing runs: the project ends with a prediction and a report.",
       {{"steps", KeyKind::Integer, "steps in all", "50", 1},
        {"epochs", KeyKind::Integer, "passes over the data instead", "1", 1},
        {"log_every", KeyKind::Integer, "print a line, and write a line of metrics, every N steps", "10", 1},
        {"validate_data", KeyKind::Text, "validate on this data after the last step: a source as in [data]",
         "\"fashion-mnist-test\""},
        {"validate_every", KeyKind::Integer, "also validate every N steps", "500", 1},
        {"validate_samples", KeyKind::Integer, "validate on this many samples; required for endless data", "1000", 1},
        {"checkpoint", KeyKind::Flag, "save checkpoints, from which an interrupted run continues", "true"},
        {"checkpoint_every", KeyKind::Integer, "steps between checkpoints", "100", 1},
        {"keep", KeyKind::Integer, "checkpoints to keep", "2", 1},
        {"restart", KeyKind::Integer,
         "if a rank fails, restart all ranks from the newest checkpoint, at most this many times", "0", 0},
        {"weights", KeyKind::Text, "initial parameters: a safetensors file or a state dict", "\"weights.safetensors\""},
        {"on_nonfinite",
         KeyKind::Text,
         "what to do if a loss or gradient is infinite or NaN",
         "\"stop\"",
         {},
         {"stop", "warn", "skip"}},
        {"deterministic", KeyKind::Flag, "add replicas' gradients in rank order over nccl, too", "false"},
        {"timeout", KeyKind::Number, "end the run if a rank is silent for this many seconds", "60", 0, {}, true},
        {"check", KeyKind::Flag, "compare every gradient with a single process", "false"},
        options_of("run")}},
      {"evaluate",
       "Loss and accuracy of the trained weights on other data; needs checkpoints.",
       {{"source", KeyKind::Text, "as in [data]", "\"fashion-mnist-test\""},
        {"samples", KeyKind::Integer, "only this many", "1000", 1},
        options_of("evaluate")}},
      {"output",
       "What is written, and where.",
       {{"folder", KeyKind::Text, "", "\"stagecraft-out\""},
        {"traces", KeyKind::Flag, "also write timelines for ui.perfetto.dev", "false"},
        {"tensorboard", KeyKind::Flag, "also write the run's metrics for TensorBoard", "false"},
        {"pictures", KeyKind::Flag, "also write the report's pictures as SVG files", "false"},
        {"png", KeyKind::Flag, "with pictures: as PNG files too, which needs the package librsvg2-bin", "false"}}},
  };
  return table;
}

}  // namespace stagecraft::project
