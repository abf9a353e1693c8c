#include "costmodel/project/project.h"
#include "costmodel/schedule.h"

namespace stagecraft::project {
namespace {

Key options_of(const std::string& verb) {
  return {"options", Kind::Words, "more options of stagecraft " + verb + ", as on its command line", "[]"};
}

std::vector<std::string> training_schedules() {
  std::vector<std::string> out;
  for (const ScheduleEntry& entry : schedules()) {
    if (entry.trains && entry.name != "listed") out.push_back(entry.name);
  }
  out.push_back("csv:FILE");
  return out;
}

}  // namespace

const std::vector<Section>& sections() {
  static const std::vector<Section> table{
      {"model",
       "What is trained.",
       {{"name", Kind::Text, "a built-in model (stagecraft help profile lists them) or a file: .pt2, TorchScript",
         "\"convnet\""},
        {"options", Kind::Named, "options of a built-in model", "{ channels = 32 }"},
        {"graph", Kind::Text, "a graph instead of `name`: nothing is profiled, so nothing needs LibTorch",
         "\"graph.json\""},
        {"microbatch", Kind::Integer, "samples per microbatch", "32", 1},
        {"dtype",
         Kind::Text,
         "bfloat16 and float16 use autocast",
         "\"float32\"",
         {},
         {"float32", "bfloat16", "float16"}},
        {"allow_tf32", Kind::Flag, "let GPUs round the inputs of float32 matrix products to TF32", "false"},
        {"layers", Kind::Text, "files: how to cut into layers: auto, leaf, depth=N or op", "\"auto\""},
        {"loss", Kind::Text, "files without a loss: cross_entropy, mse, ...", "\"cross_entropy\""},
        {"loss_output", Kind::Integer, "files: index of the output that is the loss, or that `loss` reads", "0", 0},
        {"inputs", Kind::Words, "TorchScript files: NAME=TYPE[SHAPE] of one sample", "[\"image=float32[3,224,224]\"]"},
        {"input_ranges", Kind::Words, "files: NAME=LOW..HIGH of an integer input, HIGH excluded",
         "[\"tokens=0..50257\"]"}}},
      {"data",
       "What it is trained with.",
       {{"source", Kind::Text, "synthetic, fashion-mnist, tensors:FILE, text:FILE, ... (stagecraft help run)",
         "\"synthetic\""}}},
      {"cluster",
       "What it is trained on.",
       {{"topology", Kind::Text,
         "this-machine (its links are measured), a topology file, or example:NAME, such as example:dgx-h100",
         "\"this-machine\""},
        {"devices", Kind::Integer, "this-machine: number of processes, or of GPUs", "2", 1},
        {"device", Kind::Text, "cpu or cuda: where profile and run compute", "\"cpu\"", {}, {"cpu", "cuda"}},
        {"estimate", Kind::Text,
         "times of a GPU that is not here, from those measured here (stagecraft estimate --list)", "\"H100-SXM\""},
        {"channel",
         Kind::Text,
         "over which ranks talk: local, ucx, gloo or nccl",
         "\"ucx\"",
         {},
         {"local", "ucx", "gloo", "nccl"}},
        {"hosts", Kind::Text, "file with one host per line: run starts its ranks there over ssh", "\"hosts.txt\""},
        {"threads", Kind::Integer, "threads per rank", "1", 1},
        {"accept_untrusted", Kind::Flag, "go on with times of a machine that was busy", "false"}}},
      {"profile",
       "How layers are measured.",
       {{"max_seconds", Kind::Number, "time limit", "30", 0},
        {"concurrent", Kind::Integer, "measure the slowdown of up to this many ranks on this host (CPU)", "2", 1},
        options_of("profile")}},
      {"links",
       "How links are measured; only with topology = \"this-machine\".",
       {{"seconds", Kind::Number, "approximate time", "20", 0},
        {"max_bytes", Kind::Bytes, "largest message", "\"64MiB\""},
        options_of("links")}},
      {"plan",
       "What a plan may look like.",
       {{"microbatches", Kind::Integer, "microbatches per step", "8", 1},
        {"global_batch", Kind::Integer, "samples per step instead: microbatches times samples per microbatch", "256",
         1},
        {"schedule", Kind::Text, "order of work", "\"1f1b\"", {}, training_schedules()},
        {"strategy", Kind::Text, "how stages are chosen (stagecraft help plan)", "\"optimal\""},
        {"stages", Kind::Integer, "number of stages", "2", 1},
        {"chunks", Kind::Integer, "stages per device, for interleaved-1f1b", "2", 1},
        {"replicas", Kind::Words, "replicas of each stage", "[2, 1]"},
        {"split_at", Kind::Words, "cut by hand: the first layer of every stage but the first", "[\"layer2.0\"]"},
        {"memory_limit", Kind::Bytes, "per device", "\"16GiB\""},
        {"recompute", Kind::Flag, "drop activations after the forward and compute them again", "false"},
        {"recompute_every", Kind::Integer, "the same, in segments of this many layers", "4", 1},
        {"gradient_bucket_bytes", Kind::Bytes, "largest gradient bucket", "\"25MiB\""},
        {"time_limit", Kind::Number, "seconds to search", "3", 0},
        {"accept_other_device", Kind::Flag, "use times of another device than the topology's, and mark every figure",
         "false"},
        options_of("plan")}},
      {"predict",
       "How the plan is predicted.",
       {{"calibration", Kind::Text, "factors from measured runs (stagecraft calibrate)", "\"calibration.json\""},
        options_of("predict")}},
      {"training",
       "Optimizer and learning rate.",
       {{"optimizer", Kind::Text, "sgd, adam, adamw, ... (stagecraft help run)", "\"sgd\""},
        {"learning_rate", Kind::Number, "", "0.01", 0},
        {"momentum", Kind::Number, "of sgd", "0.9", 0},
        {"weight_decay", Kind::Number, "", "0.0001", 0},
        {"rate_schedule", Kind::Text, "constant, cosine, ...", "\"constant\""},
        {"warmup_steps", Kind::Integer, "linear warm-up", "100", 0},
        {"last_rate", Kind::Number, "final rate of cosine, as a fraction of learning_rate", "0.1", 0},
        {"clip_norm", Kind::Number, "clip the gradient of the whole model to this norm", "1", 0},
        {"seed", Kind::Integer, "of weights, data and dropout", "1", 0}}},
      {"run",
       "How long it is trained. Without this section nothing runs: the project ends with a prediction and a report.",
       {{"steps", Kind::Integer, "steps in all", "50", 1},
        {"epochs", Kind::Integer, "passes over the data instead", "1", 1},
        {"log_every", Kind::Integer, "print a line, and write one of the metrics, every N steps", "10", 1},
        {"checkpoint", Kind::Flag, "save checkpoints, from which an interrupted run continues", "true"},
        {"checkpoint_every", Kind::Integer, "steps between checkpoints", "100", 1},
        {"keep", Kind::Integer, "checkpoints to keep", "2", 1},
        {"restart", Kind::Integer, "if a rank fails, restart all from the newest checkpoint, at most this often", "0",
         0},
        {"weights", Kind::Text, "initial parameters: a safetensors file or a state dict", "\"weights.safetensors\""},
        {"on_nonfinite",
         Kind::Text,
         "what to do if a loss or gradient is infinite or NaN",
         "\"stop\"",
         {},
         {"stop", "warn", "skip"}},
        {"check", Kind::Flag, "compare every gradient with a single process", "false"},
        options_of("run")}},
      {"evaluate",
       "Loss and accuracy of the trained weights on other data; needs checkpoints.",
       {{"source", Kind::Text, "as in [data]", "\"fashion-mnist-test\""},
        {"samples", Kind::Integer, "only this many", "1000", 1},
        options_of("evaluate")}},
      {"output",
       "What is written, and where.",
       {{"folder", Kind::Text, "", "\"stagecraft-out\""},
        {"traces", Kind::Flag, "also write timelines for ui.perfetto.dev", "false"},
        {"pictures", Kind::Flag, "also write the report's pictures as SVG files", "false"}}},
  };
  return table;
}

}  // namespace stagecraft::project
