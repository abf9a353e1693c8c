#include "costmodel/interchange/convert/python_package.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <set>
#include <stdexcept>
#include <unordered_set>

#include "costmodel/index.h"

namespace stagecraft::interchange {
namespace {

constexpr std::array<std::string_view, 35> kKeywords{
    "False",  "None", "True",     "and",    "as",   "assert", "async",  "await",   "break", "class",  "continue", "def",
    "del",    "elif", "else",     "except", "for",  "from",   "global", "finally", "if",    "import", "in",       "is",
    "lambda", "not",  "nonlocal", "or",     "pass", "raise",  "return", "try",     "while", "with",   "yield"};

bool is_digit(char c) { return c >= '0' && c <= '9'; }

bool is_word(char c) { return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }

bool is_numbered_node(std::string_view id) {
  constexpr std::string_view kNode = "node";
  return id.starts_with(kNode) && id.size() > kNode.size() &&
         std::all_of(id.begin() + kNode.size(), id.end(), is_digit);
}

constexpr const char* kFusedHead = R"python(import torch

{imports}

def _drop_stages(module, state, prefix, _):
    for key in [key for key in state if key.startswith(prefix + "stage")]:
        value = state.pop(key)
        state[prefix + key[len(prefix):].partition(".")[2]] = value


def _add_stages(module, state, prefix, *_):
    places = {{}}
    for name, stage in module.named_children():
        for key in stage.state_dict():
            places.setdefault(prefix + key, []).append(f"{{prefix}}{{name}}.{{key}}")
    for key in [key for key in state if key in places]:
        value = state.pop(key)
        state.update({{place: value for place in places[key]}})
{tie}

class Fused(torch.nn.Module):
    """The whole model: calls its stages in order.

    Keys of state_dict() are those of the stages without their names, so that a state loads into any other split.
    """

    INPUTS = {inputs}
    OUTPUTS = {outputs}

    def __init__(self):
        super().__init__()
{children}{ties}        self.register_state_dict_post_hook(_drop_stages)
        self.register_load_state_dict_pre_hook(_add_stages)

    def forward({arguments}):
)python";

constexpr const char* kTie = R"python(

def _tie(stage, name, parameter):
    path, _, name = name.rpartition(".")
    setattr(stage.get_submodule(path), name, parameter)
)python";

constexpr const char* kInit = R"python({imports}

def arch():
    return {arch}


def model({criterion}):
    """Modules in order, each with the names of its input and output tensors; `criterion` computes the loss."""
    return [
{modules}    ]


def full_model():
    return Fused()
)python";

std::vector<std::string> quoted(const std::vector<std::string>& names) {
  std::vector<std::string> out;
  for (const std::string& name : names) out.push_back(python_string(name));
  return out;
}

std::string list(const std::vector<std::string>& names) { return "[" + joined(quoted(names)) + "]"; }

/// Throws unless each name can be a variable, and each value has one source, before its readers.
void check(const PythonPackage& package) {
  if (package.stages.empty()) throw std::invalid_argument("the package has no stages, expected at least one");
  std::set<std::string> given;
  const auto give = [&](const std::string& place, const std::string& name) {
    if (!is_python_name(name)) throw std::invalid_argument(fmt::format("{}: \"{}\" is not a Python name", place, name));
    if (!given.insert(name).second) {
      throw std::invalid_argument(fmt::format("{}: value \"{}\" already has a source", place, name));
    }
  };
  for (const std::string& name : package.inputs) give("inputs of the model", name);
  for (std::size_t s = 0; s < package.stages.size(); ++s) {
    const std::string place = fmt::format("stage {}", s);
    for (const std::string& name : package.stages[s].inputs) {
      if (!given.contains(name)) {
        throw std::invalid_argument(
            fmt::format("{}: reads value \"{}\", which nothing before it produces", place, name));
      }
    }
    for (const std::string& name : package.stages[s].outputs) give(place, name);
  }
  for (const auto& group : package.tied) {
    for (const StageParameter& parameter : group) {
      if (parameter.stage < 0 || parameter.stage >= to_int(package.stages.size())) {
        throw std::invalid_argument(fmt::format("tied parameter \"{}\": there is no stage {}, the package has {}",
                                                parameter.name, parameter.stage, package.stages.size()));
      }
    }
  }
  for (const std::string& name : package.outputs) {
    if (!given.contains(name)) {
      throw std::invalid_argument(fmt::format("outputs of the model: no stage produces value \"{}\"", name));
    }
  }
}

std::string fused_text(const PythonPackage& package) {
  std::string imports;
  std::string children;
  std::string calls;
  for (std::size_t s = 0; s < package.stages.size(); ++s) {
    const StageModule& stage = package.stages[s];
    imports += fmt::format("from .stage{0} import Stage{0}\n", s);
    children += fmt::format("        self.stage{0} = Stage{0}()\n", s);
    const std::string call = fmt::format("self.stage{}({})", s, joined(stage.inputs));
    calls += "        " + (stage.outputs.empty() ? call : joined(stage.outputs) + " = " + call) + "\n";
  }
  std::string ties;
  for (const auto& group : package.tied) {
    for (std::size_t i = 1; i < group.size(); ++i) {
      ties += fmt::format("        _tie(self.stage{}, {}, self.stage{}.get_parameter({}))\n", group[i].stage,
                          python_string(group[i].name), group[0].stage, python_string(group[0].name));
    }
  }
  std::vector<std::string> arguments = package.inputs;
  arguments.insert(arguments.begin(), "self");
  return fmt::format(fmt::runtime(kFusedHead), fmt::arg("imports", imports),
                     fmt::arg("inputs", python_tuple(quoted(package.inputs))),
                     fmt::arg("outputs", python_tuple(quoted(package.outputs))), fmt::arg("children", children),
                     fmt::arg("ties", ties), fmt::arg("tie", package.tied.empty() ? "" : kTie),
                     fmt::arg("arguments", joined(arguments))) +
         calls + "        return " + python_result(package.outputs) + "\n";
}

std::string init_text(const PythonPackage& package) {
  std::string imports = package.gives_loss ? "import torch\n\n" : "";
  imports += "from .fused import Fused\n";
  std::string modules;
  for (std::size_t s = 0; s < package.stages.size(); ++s) {
    const StageModule& stage = package.stages[s];
    imports += fmt::format("from .stage{0} import Stage{0}\n", s);
    modules += fmt::format("        (Stage{}(), {}, {}),\n", s, list(stage.inputs), list(stage.outputs));
  }
  modules += fmt::format("        (criterion, {}, [\"loss\"]),\n", list(package.outputs));
  return fmt::format(fmt::runtime(kInit), fmt::arg("imports", imports), fmt::arg("arch", python_string(package.arch)),
                     fmt::arg("modules", modules),
                     fmt::arg("criterion", package.gives_loss ? "criterion=torch.nn.Identity()" : "criterion"));
}

}  // namespace

bool is_python_name(std::string_view text) {
  return !text.empty() && !is_digit(text.front()) && std::all_of(text.begin(), text.end(), is_word) &&
         std::find(kKeywords.begin(), kKeywords.end(), text) == kKeywords.end();
}

std::string python_string(std::string_view text) {
  constexpr std::string_view kHarmless = " .,:;=()[]{}+-*/<>_!?@#%&|~^$";
  std::string out = "\"";
  for (const char c : text) {
    if (is_word(c) || kHarmless.find(c) != kHarmless.npos) {
      out += c;
    } else {
      out += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    }
  }
  return out + "\"";
}

std::vector<std::string> python_names(const std::vector<std::string>& ids) {
  std::vector<std::string> out;
  std::unordered_set<std::string> taken;
  for (const std::string& id : ids) {
    std::string name = id;
    if (!is_numbered_node(id)) {
      std::replace_if(name.begin(), name.end(), [](char c) { return !is_word(c); }, '_');
      name = "layer_" + name;
    }
    std::string free = name;
    for (int again = 2; !taken.insert(free).second; ++again) free = fmt::format("{}_{}", name, again);
    out.push_back(std::move(free));
  }
  return out;
}

std::string joined(const std::vector<std::string>& parts) { return fmt::format("{}", fmt::join(parts, ", ")); }

std::string python_tuple(const std::vector<std::string>& parts) {
  return "(" + joined(parts) + (parts.size() == 1 ? ",)" : ")");
}

std::string python_result(const std::vector<std::string>& parts) {
  return parts.size() == 1 ? parts.front() : python_tuple(parts);
}

std::map<std::string, std::string> package_files(const PythonPackage& package) {
  check(package);
  std::map<std::string, std::string> files = package.more_files;
  for (std::size_t s = 0; s < package.stages.size(); ++s) {
    files[fmt::format("stage{}.py", s)] = package.stages[s].text;
  }
  files["fused.py"] = fused_text(package);
  files["__init__.py"] = init_text(package);
  for (auto& [name, text] : files) {
    if (name.ends_with(".py")) text = kPackageHeader + text;
  }
  return files;
}

bool is_archive(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::string first(4, '\0');
  return in.read(first.data(), 4) && first == "PK\3\4";
}

}  // namespace stagecraft::interchange
