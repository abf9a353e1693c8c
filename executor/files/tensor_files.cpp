#include "executor/files/tensor_files.h"

#include "costmodel/errors.h"
#include "executor/files/safetensors.h"
#include "executor/files/torch_file.h"

namespace stagecraft::files {

std::unique_ptr<TensorFile> open_tensor_file(const std::string& path) {
  if (is_zip_file(path)) return std::make_unique<TorchFile>(path);
  return std::make_unique<SafetensorsFile>(path);
}

TensorFiles::TensorFiles(const std::vector<std::string>& paths) {
  for (const std::string& path : paths) {
    files_.push_back(open_tensor_file(path));
    for (const std::string& name : files_.back()->names()) {
      const auto [it, fresh] = file_of_.emplace(name, files_.size() - 1);
      if (!fresh) throw FormatError(path + ": tensor \"" + name + "\" is also in " + files_[it->second]->path());
    }
  }
}

std::vector<std::string> TensorFiles::names() const {
  std::vector<std::string> out;
  for (const auto& [name, file] : file_of_) out.push_back(name);
  return out;
}

const std::string& TensorFiles::path_of(const std::string& name) const {
  const auto it = file_of_.find(name);
  return files_.at(it == file_of_.end() ? 0 : it->second)->path();
}

at::Tensor TensorFiles::read(const std::string& name) const {
  const auto it = file_of_.find(name);
  if (it == file_of_.end()) throw FormatError(files_.at(0)->path() + ": " + unknown_name("tensor", name, names()));
  return files_[it->second]->read(name);
}

}  // namespace stagecraft::files
