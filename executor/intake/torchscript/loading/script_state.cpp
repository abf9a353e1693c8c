#include "executor/intake/torchscript/loading/script_state.h"

#include <ATen/core/class_type.h>

#include "costmodel/index.h"

namespace stagecraft::intake {
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
