#include "costmodel/interchange/convert/layer_kinds.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <stdexcept>

#include "costmodel/errors.h"
#include "costmodel/interchange/convert/python_package.h"

namespace stagecraft::interchange {
namespace {

using Kind = ValueForm::Kind;

[[noreturn]] void refuse(const std::string& what) { throw std::invalid_argument(what); }

/// A module of torch.nn: parameters of its constructor by position; the first `required` are required.
struct TorchModule {
  std::string kind;
  std::vector<std::string> parameters;
  std::size_t required = 0;
  bool fresh = false;
};

const std::vector<std::string> kConvolution{"in_channels", "out_channels", "kernel_size", "stride",      "padding",
                                            "dilation",    "groups",       "bias",        "padding_mode"};
const std::vector<std::string> kTransposed{"in_channels",    "out_channels", "kernel_size", "stride",   "padding",
                                           "output_padding", "groups",       "bias",        "dilation", "padding_mode"};
const std::vector<std::string> kBatchNorm{"num_features", "eps", "momentum", "affine", "track_running_stats"};
const std::vector<std::string> kMaxPool{"kernel_size", "stride", "padding", "dilation", "return_indices", "ceil_mode"};
const std::vector<std::string> kAvgPool{"kernel_size",       "stride",          "padding", "ceil_mode",
                                        "count_include_pad", "divisor_override"};
const std::vector<std::string> kRecurrent{"input_size",  "hidden_size", "num_layers",    "bias",
                                          "batch_first", "dropout",     "bidirectional", "proj_size"};
const std::vector<std::string> kDropout{"p", "inplace"};
const std::vector<std::string> kInplace{"inplace"};

const std::vector<TorchModule>& torch_modules() {
  static const std::vector<TorchModule> table{
      {"AdaptiveAvgPool2d", {"output_size"}, 1, true},
      {"AdaptiveMaxPool2d", {"output_size", "return_indices"}, 1, true},
      {"AvgPool1d", {"kernel_size", "stride", "padding", "ceil_mode", "count_include_pad"}, 1, true},
      {"AvgPool2d", kAvgPool, 1, true},
      {"AvgPool3d", kAvgPool, 1, true},
      {"BatchNorm1d", kBatchNorm, 1, true},
      {"BatchNorm2d", kBatchNorm, 1, true},
      {"BatchNorm3d", kBatchNorm, 1, true},
      {"Conv1d", kConvolution, 3, true},
      {"Conv2d", kConvolution, 3, true},
      {"Conv3d", kConvolution, 3, true},
      {"ConvTranspose1d", kTransposed, 3, true},
      {"ConvTranspose2d", kTransposed, 3, true},
      {"Dropout", kDropout},
      {"Dropout2d", kDropout},
      {"ELU", {"alpha", "inplace"}},
      {"Embedding",
       {"num_embeddings", "embedding_dim", "padding_idx", "max_norm", "norm_type", "scale_grad_by_freq"},
       2},
      {"Flatten", {"start_dim", "end_dim"}},
      {"GELU", {"approximate"}},
      {"GRU", kRecurrent, 2},
      {"GroupNorm", {"num_groups", "num_channels", "eps", "affine"}, 2, true},
      {"Hardtanh", {"min_val", "max_val", "inplace"}},
      {"Identity", {}},
      {"LSTM", kRecurrent, 2},
      {"LayerNorm", {"normalized_shape", "eps", "elementwise_affine", "bias"}, 1, true},
      {"LeakyReLU", {"negative_slope", "inplace"}},
      {"Linear", {"in_features", "out_features", "bias"}, 2, true},
      {"LocalResponseNorm", {"size", "alpha", "beta", "k"}, 1},
      {"LogSoftmax", {"dim"}, 1},
      {"MaxPool1d", kMaxPool, 1, true},
      {"MaxPool2d", kMaxPool, 1, true},
      {"MaxPool3d", kMaxPool, 1, true},
      {"ReLU", kInplace},
      {"ReLU6", kInplace},
      {"SiLU", kInplace},
      {"Sigmoid", {}},
      {"Softmax", {"dim"}, 1},
      {"Tanh", {}},
  };
  return table;
}

struct NamedOperation {
  std::string kind;
  Operation operation;
};

const std::vector<NamedOperation>& operations() {
  static const std::vector<NamedOperation> table{
      {"Add", Operation::Add},          {"Concat", Operation::Concatenate}, {"Mul", Operation::Multiply},
      {"Size", Operation::Size},        {"View", Operation::View},          {"Transpose", Operation::Transpose},
      {"__getitem__", Operation::Item}, {"hidden", Operation::Hidden},
  };
  return table;
}

ValueForm tuple(std::vector<ValueForm> items) { return {Kind::Tuple, std::move(items)}; }
const ValueForm kTensor{Kind::Tensor};

/// The arguments named as in `parameters`, in the order read; must include the first `required` ones.
std::map<std::string, std::string> by_name(const Description& description, const std::vector<std::string>& parameters,
                                           std::size_t required) {
  const std::string takes = description.kind + " takes " + (parameters.empty() ? "no arguments" : joined(parameters));
  if (!description.children.empty()) {
    refuse(fmt::format("module \"{}\" inside, {} and no modules", description.children.front().name, takes));
  }
  std::map<std::string, std::string> out;
  for (std::size_t i = 0; i < description.arguments.size(); ++i) {
    std::string name = description.arguments[i].name;
    if (name.empty()) {
      if (i >= parameters.size()) refuse(fmt::format("{} values, {}", i + 1, takes));
      name = parameters[i];
    }
    if (std::find(parameters.begin(), parameters.end(), name) == parameters.end()) {
      refuse(fmt::format("argument \"{}\", {}", name, takes));
    }
    if (!out.emplace(name, description.arguments[i].literal).second) {
      refuse(fmt::format("argument \"{}\" twice, {}", name, takes));
    }
  }
  for (std::size_t i = 0; i < required; ++i) {
    if (!out.contains(parameters[i])) refuse(fmt::format("argument \"{}\" is missing, {}", parameters[i], takes));
  }
  return out;
}

PythonCall torch_call(const TorchModule& module, const Description& description) {
  PythonCall call;
  call.constructor = "torch.nn." + module.kind;
  call.fresh = module.fresh;
  const auto given = by_name(description, module.parameters, module.required);
  for (const std::string& parameter : module.parameters) {
    const auto it = given.find(parameter);
    if (it == given.end()) continue;
    if (parameter == "inplace") {
      call.inplace = it->second == "True";
    } else {
      call.arguments.push_back(parameter + "=" + it->second);
    }
  }
  if (given.contains("return_indices") && given.at("return_indices") == "True") {
    call.gives = tuple({kTensor, kTensor});
  }
  if (module.kind == "LSTM" || module.kind == "GRU") {
    call.recurrent = true;
    call.most_inputs = 2;
    call.gives = tuple({kTensor, module.kind == "LSTM" ? tuple({kTensor, kTensor}) : kTensor});
  }
  return call;
}

PythonCall operation_call(Operation operation, const Description& description) {
  PythonCall call;
  call.operation = operation;
  const auto numbers = [&](std::size_t least, std::size_t most, const char* wanted) {
    if (!description.children.empty()) refuse("modules inside, expected " + std::string(wanted));
    for (const Argument& argument : description.arguments) {
      const std::optional<std::int64_t> value = whole_number(argument);
      if (!value || !argument.name.empty()) refuse(fmt::format("found {}, expected {}", argument.literal, wanted));
      call.numbers.push_back(*value);
    }
    if (call.numbers.size() < least || call.numbers.size() > most) {
      refuse(fmt::format("{} numbers, expected {}", call.numbers.size(), wanted));
    }
  };
  switch (operation) {
    case Operation::Add:
    case Operation::Multiply:  // "inplace" has no effect here: the sum has its own storage
      (void)by_name(description, {"inplace"}, 0);
      call.least_inputs = 2;
      call.most_inputs = kAnyNumber;
      call.fresh = operation == Operation::Add;
      break;
    case Operation::Concatenate:
      numbers(1, 1, "the axis");
      call.most_inputs = kAnyNumber;
      call.fresh = true;
      break;
    case Operation::Transpose:
      numbers(2, 2, "two axes");
      break;
    case Operation::View:
      numbers(0, 16, "lengths of axes");
      call.most_inputs = kAnyNumber;
      break;
    case Operation::Size:
      numbers(1, 1, "the axis");
      call.gives = {Kind::Number};
      break;
    case Operation::Item:
      numbers(1, 1, "which item");
      if (call.numbers.front() < 0) refuse(fmt::format("item {}, expected 0 or more", call.numbers.front()));
      break;
    case Operation::Hidden:
      numbers(0, 0, "nothing after it");
      call.least_inputs = call.most_inputs = 0;
      call.gives = {Kind::Nothing};
      break;
    case Operation::Module:
      break;
  }
  return call;
}

/// Arguments by name of the module called `name` in `parent`, of kind `kind`.
std::map<std::string, std::string> child(const Description& parent, const std::string& name, const std::string& kind,
                                         const std::vector<std::string>& parameters, std::size_t required) {
  for (const auto& [child_name, description] : parent.children) {
    if (child_name == name && description.kind == kind) return by_name(description, parameters, required);
  }
  refuse(fmt::format("no {} called \"{}\" inside", kind, name));
}

std::map<std::string, std::string> inner_lstm(const Description& parent, const std::string& name, bool both_ways) {
  auto lstm = child(parent, name, "LSTM", {"input_size", "hidden_size", "bidirectional"}, 2);
  if ((lstm.contains("bidirectional") && lstm.at("bidirectional") == "True") != both_ways) {
    refuse(fmt::format("\"{}\": expected bidirectional={}", name, both_ways ? "True" : "False"));
  }
  return lstm;
}

std::map<std::string, std::string> inner_linear(const Description& parent, const std::string& name) {
  return child(parent, name, "Linear", {"in_features", "out_features", "bias"}, 2);
}

/// Its probability.
std::string inner_dropout(const Description& parent) { return child(parent, "dropout", "Dropout", {"p"}, 1).at("p"); }

PythonCall bidirectional_call(const Description& description) {
  const auto lstm = inner_lstm(description, "bidir", true);
  PythonCall call;
  call.constructor = "layers.EmuBidirLSTM";
  call.arguments = {"input_size=" + lstm.at("input_size"), "hidden_size=" + lstm.at("hidden_size")};
  call.least_inputs = call.most_inputs = 2;
  return call;
}

PythonCall attention_call(const Description& description) {
  const auto rnn = inner_lstm(description, "rnn", false);
  const auto attention = std::find_if(description.children.begin(), description.children.end(), [](const auto& c) {
    return c.name == "attn" && c.module.kind == "BahdanauAttention";
  });
  if (attention == description.children.end()) refuse("no BahdanauAttention called \"attn\" inside");
  const auto query = inner_linear(attention->module, "linear_q");
  const auto key = inner_linear(attention->module, "linear_k");
  for (const auto& linear : {query, key}) {
    if (!linear.contains("bias") || linear.at("bias") != "False") refuse("linear_q, linear_k: expected bias=False");
  }
  if (query.at("out_features") != key.at("out_features")) {
    refuse(fmt::format("linear_q has {} features and linear_k {}, expected the same number", query.at("out_features"),
                       key.at("out_features")));
  }
  PythonCall call;
  call.constructor = "layers.RecurrentAttention";
  call.arguments = {"input_size=" + rnn.at("input_size"),    "hidden_size=" + rnn.at("hidden_size"),
                    "context_size=" + key.at("in_features"), "units=" + query.at("out_features"),
                    "dropout=" + inner_dropout(description), "attention_dropout=" + inner_dropout(attention->module)};
  call.least_inputs = call.most_inputs = 4;
  call.recurrent = true;
  call.gives = tuple({kTensor, tuple({kTensor, kTensor}), kTensor, kTensor});
  return call;
}

PythonCall classifier_call(const Description& description) {
  const auto linear = inner_linear(description, "classifier");
  PythonCall call;
  call.constructor = "layers.Classifier";
  for (const auto& [name, literal] : linear) call.arguments.push_back(name + "=" + literal);
  return call;
}

struct Composite {
  std::string kind;
  PythonCall (*call)(const Description&);
};

const std::vector<Composite>& composites() {
  static const std::vector<Composite> table{
      {"Classifier", classifier_call}, {"EmuBidirLSTM", bidirectional_call}, {"RecurrentAttention", attention_call}};
  return table;
}

PythonCall own_call(const Description& description, const std::string& where) {
  const std::size_t colon = where.find(':');
  const std::string module = where.substr(0, colon);
  const std::string name = colon == where.npos ? "" : where.substr(colon + 1);
  std::string dots = module + ".";
  bool good = is_python_name(name);
  for (std::size_t dot = 0; good && !dots.empty(); dots.erase(0, dot + 1)) {
    dot = dots.find('.');
    good = is_python_name(dots.substr(0, dot));
  }
  if (!good) refuse(fmt::format("found \"{}\", expected MODULE:CLASS", where));
  if (module == "layers" || module.starts_with("layers.")) {
    refuse(fmt::format("found \"{}\", expected a module other than \"layers\", which is a file of the package", where));
  }
  PythonCall call;
  call.constructor = module + "." + name;
  call.least_inputs = 0;
  call.most_inputs = kAnyNumber;
  call.gives = {Kind::Unknown};
  if (!description.children.empty()) {
    call.arguments = {python_string(description_text(description))};
    return call;
  }
  for (const Argument& argument : description.arguments) {
    if (!argument.name.empty() && !is_python_name(argument.name)) {
      refuse(fmt::format("argument \"{}\" is not a Python name", argument.name));
    }
    call.arguments.push_back((argument.name.empty() ? "" : argument.name + "=") + argument.literal);
  }
  return call;
}

PythonCall known_call(const Description& description, const OwnKinds& classes) {
  if (const auto it = classes.find(description.kind); it != classes.end()) return own_call(description, it->second);
  for (const NamedOperation& named : operations()) {
    if (named.kind == description.kind) return operation_call(named.operation, description);
  }
  for (const TorchModule& module : torch_modules()) {
    if (module.kind == description.kind) return torch_call(module, description);
  }
  for (const Composite& composite : composites()) {
    if (composite.kind == description.kind) return composite.call(description);
  }
  refuse(fmt::format("{}; use --layer {}=MODULE:CLASS to give its class",
                     unknown_name("kind", description.kind, known_kinds()), description.kind));
}

}  // namespace

PythonCall layer_call(const Description& description, const OwnKinds& classes) {
  try {
    return known_call(description, classes);
  } catch (const std::invalid_argument& e) { throw InputError(kind_of(e), description.kind + ": " + e.what()); }
}

std::vector<std::string> known_kinds() {
  std::vector<std::string> out;
  for (const NamedOperation& named : operations()) out.push_back(named.kind);
  for (const TorchModule& module : torch_modules()) out.push_back(module.kind);
  for (const Composite& composite : composites()) out.push_back(composite.kind);
  std::sort(out.begin(), out.end());
  return out;
}

std::string layers_text() {
  return R"python("""GNMT's own layers. Sequences are (time, batch, features); lengths are (batch,), integers."""
import torch
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence


class EmuBidirLSTM(torch.nn.Module):
    """A bidirectional LSTM over sequences of unequal lengths; zeros after the end of a sequence."""

    def __init__(self, input_size, hidden_size):
        super().__init__()
        self.bidir = torch.nn.LSTM(input_size, hidden_size, bidirectional=True)

    def forward(self, inputs, lengths):
        packed = pack_padded_sequence(inputs, lengths.cpu(), enforce_sorted=False)
        return pad_packed_sequence(self.bidir(packed)[0], total_length=inputs.size(0))[0]


class BahdanauAttention(torch.nn.Module):
    """Scores linear_att . tanh(linear_q(query) + linear_k(key)), and the keys' mean weighted by their softmax."""

    def __init__(self, query_size, key_size, units, dropout=0):
        super().__init__()
        self.linear_q = torch.nn.Linear(query_size, units, bias=False)
        self.linear_k = torch.nn.Linear(key_size, units, bias=False)
        self.linear_att = torch.nn.Parameter(torch.empty(units).uniform_(-(units ** -0.5), units ** -0.5))
        self.dropout = torch.nn.Dropout(p=dropout)

    def forward(self, query, keys, key_lengths):
        query = self.linear_q(query.transpose(0, 1))
        keys = keys.transpose(0, 1)
        scores = torch.tanh(query.unsqueeze(2) + self.linear_k(keys).unsqueeze(1)).matmul(self.linear_att)
        behind = torch.arange(keys.size(1), device=keys.device) >= key_lengths.to(keys.device).unsqueeze(1)
        scores = scores.masked_fill(behind.unsqueeze(1), torch.finfo(scores.dtype).min)
        scores = self.dropout(torch.softmax(scores, dim=-1))
        return torch.bmm(scores, keys).transpose(0, 1), scores.transpose(0, 1)


class RecurrentAttention(torch.nn.Module):
    """An LSTM whose outputs attend to `context`. Returns outputs, state, attended context and scores."""

    def __init__(self, input_size, hidden_size, context_size, units, dropout=0, attention_dropout=0):
        super().__init__()
        self.rnn = torch.nn.LSTM(input_size, hidden_size)
        self.attn = BahdanauAttention(hidden_size, context_size, units, attention_dropout)
        self.dropout = torch.nn.Dropout(p=dropout)

    def forward(self, inputs, hidden, context, context_lengths):
        outputs, hidden = self.rnn(inputs, hidden)
        attended, scores = self.attn(outputs, context, context_lengths)
        return self.dropout(outputs), hidden, attended, scores


class Classifier(torch.nn.Module):
    """Maps features to scores of the vocabulary's words."""

    def __init__(self, in_features, out_features, bias=True):
        super().__init__()
        self.classifier = torch.nn.Linear(in_features, out_features, bias=bias)

    def forward(self, features):
        return self.classifier(features)
)python";
}

}  // namespace stagecraft::interchange
