#include "executor/intake/layer_sources.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <stdexcept>

#include "costmodel/errors.h"
#include "executor/files/torch_file.h"
#include "executor/files/zip_archive.h"
#include "executor/intake/builtin/builtin_models.h"
#include "executor/intake/pt2/pt2_graph.h"
#include "executor/intake/torchscript/torchscript_graph.h"

namespace stagecraft::intake {
namespace {

LayerSource builtin_source() {
  return {.name = "built-in",
          .models = fmt::format("{}", fmt::join(builtin_model_names(), ", ")),
          .ending = "",
          .has =
              [](const std::string& model) {
                const std::vector<std::string> names = builtin_model_names();
                return std::ranges::find(names, model) != names.end();
              },
          .build = [](const std::string& model, const ModelSettings& settings,
                      model::ModelMode /*mode*/) { return build_builtin_model(model, settings); },
          .tied_names = {}};
}

/// `what` of each source, either of files or not.
std::vector<std::string> of_sources(std::string LayerSource::* what, bool files) {
  std::vector<std::string> out;
  for (const LayerSource& source : layer_sources()) {
    if (source.ending.empty() != files) out.push_back(source.*what);
  }
  return out;
}

[[noreturn]] void refuse_file(const std::string& path) {
  const std::string known = fmt::format("{}", fmt::join(of_sources(&LayerSource::models, true), " or "));
  if (files::is_zip_file(path) &&
      files::has_record_in_folder(files::ZipArchive(path, files::ZipArchive::Deflated::Read), "data.pkl")) {
    throw FormatError(ErrorKind::NotAModel,
                      path +
                          ": contains tensors but no model, as written by torch.save(model.state_dict()); pass it as " +
                          "--weights, and as model " + known);
  }
  throw FormatError(ErrorKind::NotAModel, path + ": is not a model, expected " + known);
}

/// The source that has `name`; throws as build_model does if there is none.
const LayerSource& source_of(const std::string& name) {
  const bool file = is_model_file(name);
  for (const LayerSource& source : layer_sources()) {
    if (source.ending.empty() != file && source.has(name)) return source;
  }
  if (name.find(".py:") != std::string::npos || name.ends_with(".py"))
    throw InputError(ErrorKind::NotAModel,
                     fmt::format("{}: is Python; export the model first: stagecraft export-model {} ... -o model.pt2",
                                 name, name.ends_with(".py") ? name + ":FUNCTION" : name));
  if (file) refuse_file(name);
  throw InputError(
      ErrorKind::UnknownName,
      fmt::format("{}, and files that end in {}", unknown_name("model", name, of_sources(&LayerSource::models, false)),
                  fmt::join(of_sources(&LayerSource::ending, true), " or ")));
}

}  // namespace

const std::vector<LayerSource>& layer_sources() {
  static const std::vector<LayerSource> sources{builtin_source(), pt2_source(), torchscript_source()};
  return sources;
}

bool is_model_file(const std::string& name) {
  return std::ranges::any_of(layer_sources(), [&](const LayerSource& source) {
    return !source.ending.empty() && name.ends_with(source.ending);
  });
}

model::Model build_model(const std::string& name, const ModelSettings& settings, model::ModelMode mode) {
  if (is_model_file(name)) check_import_settings(settings);
  return source_of(name).build(name, settings, mode);
}

std::map<std::string, std::string> tied_names(const std::string& name) {
  return is_model_file(name) ? source_of(name).tied_names(name) : std::map<std::string, std::string>();
}

std::uint64_t model_digest(const std::string& path) { return source_of(path).digest(path); }

}  // namespace stagecraft::intake
