#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <map>
#include <string>
#include <vector>

#include "executor/files/zip_archive.h"
#include "executor/model/model.h"

namespace stagecraft::intake {

/// Whether `archive` has the records of a model that torch.jit.save wrote: code/, data.pkl and constants.pkl under one
/// folder.
[[nodiscard]] bool is_torchscript_archive(const files::ZipArchive& archive);

/// The module in `archive`, its tensors on the CPU. No code runs: before LibTorch's reader sees the file, the CRC of
/// every record is checked, sizes are bounded, and its code is searched for anything that would run during loading or
/// access more than tensors. Throws FormatError, with file and record, for a damaged or oversized record, for code that
/// defines __setstate__, uses classes of C++ libraries, operators that read or write files, or operators of a namespace
/// other than PyTorch's own (named), and, with the first line of LibTorch's reason, if LibTorch cannot load it.
[[nodiscard]] c10::intrusive_ptr<c10::ivalue::Object> load_torchscript(const files::ZipArchive& archive);

/// The first line that is not empty.
[[nodiscard]] std::string first_line(const std::string& text);

/// A tensor that a loaded module holds.
struct HeldTensor {
  std::string name;  ///< for tied tensors the first, as in Python's named_parameters
  at::Tensor tensor;
  bool parameter = false;
  bool buffer = false;  ///< neither: a constant
};

/// Modules and tensors of a loaded TorchScript module, by their names in Python.
class ScriptState {
 public:
  ScriptState(const c10::intrusive_ptr<c10::ivalue::Object>& root, model::ModelMode mode);

  [[nodiscard]] const c10::intrusive_ptr<c10::ivalue::Object>& root() const { return root_; }
  [[nodiscard]] const std::vector<HeldTensor>& tensors() const { return tensors_; }
  /// Names of tied tensors in the module's state dict, other than those in tensors(), and those in tensors().
  [[nodiscard]] const std::map<std::string, std::string>& tied_names() const { return tied_names_; }
  /// Index into tensors() of `tensor`, or of one with the same memory and geometry: tied. A new one is a constant
  /// called `name`.
  int index_of(const at::Tensor& tensor, const std::string& name);
  /// The path under which a module was found first; null: not part of the root.
  [[nodiscard]] const std::string* path_of(const c10::ivalue::Object* module) const;
  /// Attribute `training` for the mode. For training: as saved, or true for all modules if the root was saved for
  /// evaluation; for evaluation: false.
  [[nodiscard]] bool training(const c10::ivalue::Object& module);
  [[nodiscard]] model::ModelMode mode() const { return mode_; }
  /// Whether the laid-out code computes the model's evaluation: it was saved for that, or it reads `training`, which a
  /// trace does not.
  [[nodiscard]] bool exact_evaluation() const { return saved_evaluating_ || asked_; }

 private:
  void visit(const c10::intrusive_ptr<c10::ivalue::Object>& module, const std::string& path);
  /// A module that was visited before, under a further path.
  void visit_again(const c10::ivalue::Object& module, const std::string& path);

  c10::intrusive_ptr<c10::ivalue::Object> root_;
  std::vector<HeldTensor> tensors_;
  std::map<const c10::ivalue::Object*, std::string> paths_;
  std::map<std::string, std::string> tied_names_;
  model::ModelMode mode_;
  bool saved_evaluating_ = false;
  bool asked_ = false;  ///< for `training`
};

/// "torch.nn.modules.linear.Linear" of a class that the file calls "__torch__.torch.nn...___torch_mangle_3.Linear".
[[nodiscard]] std::string class_name(const c10::ivalue::Object& module);

}  // namespace stagecraft::intake
