#include "executor/intake/torchscript/script_module.h"

#include <ATen/core/class_type.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/serialization/import.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "costmodel/errors.h"
#include "costmodel/index.h"

namespace stagecraft::intake {
namespace {

constexpr std::uint64_t kMostCodeBytes = std::uint64_t{1} << 26;
constexpr std::uint64_t kMostInflatedBytes = std::uint64_t{1} << 28;  ///< of all compressed records together
constexpr std::uint64_t kMostPickleBytes = std::uint64_t{1} << 28;

/// The folder of all records, with its slash; empty if there is none.
std::string root_of(const files::ZipArchive& archive) {
  if (archive.records().empty()) return {};
  const std::string& first = archive.records().front().name;
  const std::size_t slash = first.find('/');
  return slash == std::string::npos ? std::string() : first.substr(0, slash + 1);
}

bool is_word(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_'; }

/// Whether `word` is in `code`, not followed by a letter.
bool uses(std::string_view code, std::string_view word) {
  for (std::size_t at = code.find(word); at != std::string_view::npos; at = code.find(word, at + 1)) {
    const std::size_t end = at + word.size();
    if (end == code.size() || !is_word(code[end])) return true;
  }
  return false;
}

/// What is forbidden in the code; empty if nothing is.
std::string fault_of_code(std::string_view code) {
  if (uses(code, "__setstate__")) return "defines __setstate__, which would run while the file is loaded";
  if (uses(code, "__torch__.torch.classes"))
    return "uses a class of a C++ library; only tensors and modules are allowed";
  static constexpr std::array kFiles{"torch.save",    "torch.from_file",    "torch.load",
                                     "ops.aten.save", "ops.aten.from_file", "ops.aten.load"};
  for (const char* file : kFiles) {
    if (uses(code, file)) return fmt::format("calls {}, which reads or writes files", file);
  }
  constexpr std::string_view kOps = "ops.";
  for (std::size_t at = code.find(kOps); at != std::string_view::npos; at = code.find(kOps, at + 1)) {
    if (at > 0 && (is_word(code[at - 1]) || code[at - 1] == '.')) continue;
    std::size_t end = at + kOps.size();
    while (end < code.size() && is_word(code[end])) ++end;
    const std::string_view space = code.substr(at + kOps.size(), end - at - kOps.size());
    if (space == "aten" || space == "prim" || end == code.size() || code[end] != '.') continue;
    return fmt::format("uses operators of \"{}\", which is a Python library; use PyTorch's own operators, \"aten\"",
                       space);
  }
  return {};
}

}  // namespace

std::string first_line(const std::string& text) {
  const std::size_t begin = text.find_first_not_of(" \n\r\t");
  if (begin == std::string::npos) return "no reason given";
  std::string line = text.substr(begin, text.find('\n', begin) - begin);
  while (!line.empty() && (line.back() == '.' || line.back() == ':' || line.back() == ' ')) line.pop_back();
  return line;
}

bool is_torchscript_archive(const files::ZipArchive& archive) {
  const std::string root = root_of(archive);
  return !root.empty() && archive.find(root + "data.pkl") && archive.find(root + "constants.pkl") &&
         std::ranges::any_of(archive.records(),
                             [&](const files::ZipRecord& r) { return r.name.starts_with(root + "code/"); });
}

c10::intrusive_ptr<c10::ivalue::Object> load_torchscript(const files::ZipArchive& archive) {
  const std::string root = root_of(archive);
  std::uint64_t inflated = 0;
  for (const files::ZipRecord& record : archive.records()) {
    const auto fail = [&](const std::string& what) {
      throw FormatError(ErrorKind::UnsupportedModel,
                        fmt::format("{}: record \"{}\": {}", archive.path(), record.name, what));
    };
    if (!record.name.starts_with(root)) fail(fmt::format("is not under \"{}\" like the others", root));
    const bool code = record.name.starts_with(root + "code/");
    if (record.name.ends_with(".pkl") && record.bytes > kMostPickleBytes)
      fail(fmt::format("found {} bytes, expected at most {}", record.bytes, kMostPickleBytes));
    if (record.deflated) inflated += record.bytes;
    if (inflated > kMostInflatedBytes)
      fail(fmt::format("the compressed records hold more than {} bytes in total", kMostInflatedBytes));
    if (code && record.name.ends_with(".py")) {
      if (const std::string fault = fault_of_code(archive.read(record, kMostCodeBytes)); !fault.empty()) fail(fault);
    } else if (record.deflated) {
      (void)archive.read(record, kMostInflatedBytes);
    } else {
      (void)archive.map(record, /*check=*/true);
    }
  }
  const auto refuse = [&](const std::string& what) {
    return FormatError(archive.path() + ": LibTorch cannot load this TorchScript file: " + first_line(what));
  };
  try {
    // Debug files only contain positions in Python sources.
    return torch::jit::load(archive.path(), c10::Device(c10::kCPU), /*load_debug_files=*/false)._ivalue();
  } catch (const c10::Error& e) { throw refuse(e.what_without_backtrace()); } catch (const std::exception& e) {
    throw refuse(e.what());
  }
}

namespace {

bool tied(const at::Tensor& a, const at::Tensor& b) {
  if (a.unsafeGetTensorImpl() == b.unsafeGetTensorImpl()) return true;
  if (!a.has_storage() || !b.has_storage() || a.numel() == 0) return false;
  return a.storage().unsafeGetStorageImpl() == b.storage().unsafeGetStorageImpl() &&
         a.storage_offset() == b.storage_offset() && a.scalar_type() == b.scalar_type() && a.sizes() == b.sizes() &&
         a.strides() == b.strides();
}

std::string name_in(const std::string& path, const c10::ClassType& type, std::size_t slot) {
  return (path.empty() ? "" : path + ".") + type.getAttributeName(slot);
}

bool saved_training(const c10::ivalue::Object& module) {
  const auto slot = module.type()->findAttributeSlot("training");
  return !slot || !module.getSlot(*slot).isBool() || module.getSlot(*slot).toBool();
}

}  // namespace

ScriptState::ScriptState(const c10::intrusive_ptr<c10::ivalue::Object>& root, model::ModelMode mode)
    : root_(root), mode_(mode), saved_evaluating_(!saved_training(*root)) {
  visit(root_, "");
}

void ScriptState::visit(const c10::intrusive_ptr<c10::ivalue::Object>& module, const std::string& path) {
  if (!paths_.emplace(module.get(), path).second) return visit_again(*module, path);
  const auto type = module->type();
  const auto full = [&](std::size_t slot) { return name_in(path, *type, slot); };
  // Python names a module's own tensors before its children's: parameters, then buffers.
  for (const bool parameters : {true, false}) {
    for (std::size_t slot = 0; slot < type->numAttributes(); ++slot) {
      const c10::IValue& value = module->getSlot(slot);
      if (!value.isTensor() || !value.toTensor().defined()) continue;
      const bool buffer = type->is_buffer(slot);
      if (type->is_parameter(slot) != parameters || (!parameters && !buffer)) continue;
      const std::size_t before = tensors_.size();
      const int tensor = index_of(value.toTensor(), full(slot));
      if (tensors_.size() == before) {
        tied_names_.emplace(full(slot), tensors_[to_index(tensor)].name);
        continue;
      }
      tensors_[to_index(tensor)].parameter = parameters;
      tensors_[to_index(tensor)].buffer = buffer;
    }
  }
  for (std::size_t slot = 0; slot < type->numAttributes(); ++slot) {
    const c10::IValue& value = module->getSlot(slot);
    if (value.isObject() && value.toObjectRef().type()->is_module()) visit(value.toObject(), full(slot));
  }
}

void ScriptState::visit_again(const c10::ivalue::Object& module, const std::string& path) {
  const auto type = module.type();
  for (std::size_t slot = 0; slot < type->numAttributes(); ++slot) {
    const c10::IValue& value = module.getSlot(slot);
    const std::string name = name_in(path, *type, slot);
    if (value.isTensor() && value.toTensor().defined() && (type->is_parameter(slot) || type->is_buffer(slot)))
      tied_names_.emplace(name, tensors_[to_index(index_of(value.toTensor(), name))].name);
    if (value.isObject() && value.toObjectRef().type()->is_module()) visit_again(value.toObjectRef(), name);
  }
}

int ScriptState::index_of(const at::Tensor& tensor, const std::string& name) {
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    if (tied(tensors_[i].tensor, tensor)) return to_int(i);
  }
  tensors_.push_back({name, tensor});
  return to_int(tensors_.size()) - 1;
}

const std::string* ScriptState::path_of(const c10::ivalue::Object* module) const {
  const auto it = paths_.find(module);
  return it == paths_.end() ? nullptr : &it->second;
}

bool ScriptState::training(const c10::ivalue::Object& module) {
  asked_ = true;
  return mode_ == model::ModelMode::Training && (saved_evaluating_ || saved_training(module));
}

std::string class_name(const c10::ivalue::Object& module) {
  std::string out;
  const auto name = module.type()->name();
  if (!name) return out;
  for (const std::string& part : name->atoms()) {
    if (part == "__torch__" || part.starts_with("___torch_mangle_")) continue;
    out += (out.empty() ? "" : ".") + part;
  }
  return out;
}

}  // namespace stagecraft::intake
