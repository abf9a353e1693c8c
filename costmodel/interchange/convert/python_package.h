#pragma once

#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "costmodel/format/files/outputs.h"
#include "costmodel/plan.h"

namespace stagecraft::interchange {

/// True for a valid variable name in Python: ASCII letters, digits and "_", not starting with a digit, not a keyword.
[[nodiscard]] bool is_python_name(std::string_view text);

/// `text` as a Python string literal in ASCII: everything but letters, digits, spaces and harmless characters is
/// escaped byte by byte, so that no text can end the literal.
[[nodiscard]] std::string python_string(std::string_view text);

/// One name for each id, in its order, all different and all Python names. "node" with digits stays; any other id is
/// "layer_" and the id, with "_" for everything but ASCII letters and digits, and "_2", "_3", ... appended where two
/// would be equal. So no id becomes a keyword or an attribute of torch.nn.Module.
[[nodiscard]] std::vector<std::string> python_names(const std::vector<std::string>& ids);

/// `parts` joined with ", ".
[[nodiscard]] std::string joined(const std::vector<std::string>& parts);

/// A Python tuple of `parts`, including one or none: "(a,)", "()".
[[nodiscard]] std::string python_tuple(const std::vector<std::string>& parts);

/// The return value of a function that returns `parts`: the value itself if there is one, else a tuple.
[[nodiscard]] std::string python_result(const std::vector<std::string>& parts);

/// One stage of a model as Python. `text` is a file that imports only more_files of the package and defines `class
/// StageN(torch.nn.Module)`, N the stage's number; forward takes `inputs` in order and returns `outputs`: the tensor if
/// there is one, else a tuple. Names of values are Python names, and a value has one name in all stages. Names of
/// parameters and buffers are the same for any split, and only tied ones are in two stages.
struct StageModule {
  std::vector<std::string> inputs;
  std::vector<std::string> outputs;
  std::string text;
  friend bool operator==(const StageModule&, const StageModule&) = default;
};

/// A parameter of a stage.
struct StageParameter {
  int stage = 0;
  std::string name;  ///< in the stage's state_dict
  friend bool operator==(const StageParameter&, const StageParameter&) = default;
};

/// A model as a Python package.
struct PythonPackage {
  std::string arch;                               ///< what arch() returns; any text
  std::vector<std::string> inputs;                ///< of the complete model, in the order of its arguments
  std::vector<std::string> outputs;               ///< of the complete model
  std::vector<StageModule> stages;                ///< a stage reads inputs of the model and outputs of earlier stages
  std::map<std::string, std::string> more_files;  ///< file name -> text, such as "layers.py"
  std::vector<std::vector<StageParameter>> tied = {};  ///< those of a list are one parameter of Fused
  bool gives_loss = false;                             ///< the only output is the loss: then `criterion` is optional
  friend bool operator==(const PythonPackage&, const PythonPackage&) = default;
};

/// First line of each Python file of a package.
inline constexpr const char* kPackageHeader = "# Written by stagecraft convert, which may replace this file.\n";

/// The package's files, name -> text:
///   stageN.py    one per stage
///   fused.py     class Fused, the complete model: it calls the stages and passes values by name. Its state_dict has no
///                stages in its keys, so that the state of one split loads into any other
///   __init__.py  arch(), model(criterion) and full_model() as PipeDream's runtime expects them: model returns a list
///                of (module, names of inputs, names of outputs), `criterion` last, which reads the model's outputs
///   and more_files.
/// Throws std::invalid_argument naming the stage and the value: a name that is not a Python name, an input that nothing
/// before the stage produces, an output that two stages produce, an output of the model that no stage produces; no
/// stages.
[[nodiscard]] std::map<std::string, std::string> package_files(const PythonPackage& package);

/// An exported model in stages.
struct ArchiveStages {
  PythonPackage package;
  std::map<std::string, format::WriteFile> archives;  ///< file name -> "stageN.pt2", which the package reads
};

/// Whether `path` begins as an archive does. False if it is absent.
[[nodiscard]] bool is_archive(const std::string& path);

/// The stages of `plan` for the archive of torch.export at `path`; the plan's options define its layers. Throws
/// FormatError for a file that cannot be read or run, std::invalid_argument for a plan that does not fit the model.
/// Operators need LibTorch, so the implementation is in the executor.
using ArchiveStager = std::function<ArchiveStages(const Plan& plan, const std::string& path)>;

}  // namespace stagecraft::interchange
