#include "executor/intake/pt2/pt2_graph.h"

#include <ATen/ops/from_blob.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <stdexcept>
#include <utility>
#include <vector>

#include "costmodel/errors.h"
#include "costmodel/index.h"
#include "executor/device/dtype.h"
#include "executor/files/zip_archive.h"
#include "executor/intake/graph/layers/graph_model.h"
#include "executor/intake/graph/program/evaluating.h"
#include "executor/intake/graph/program/program_nodes.h"
#include "executor/intake/pt2/pt2_archive.h"

namespace stagecraft::intake {
namespace {

using Origin = GraphValue::Origin;

/// Reads a program into a graph.
class ProgramReader {
 public:
  ProgramReader(const Pt2Archive& archive, const std::map<std::string, std::pair<std::int64_t, std::int64_t>>& ranges,
                model::ModelMode mode)
      : archive_(archive), ranges_(ranges) {
    ExportedProgram program = archive.program;
    out_.file = archive.zip->path();
    out_.mode = mode;
    out_.exact_evaluation = archive.notes && !archive.notes->training;
    out_.evaluation_advice = "export it in evaluation mode: stagecraft export-model --evaluation";
    out_.evaluates = !archive.notes || archive.notes->evaluates;
    if (mode == model::ModelMode::Evaluation && !out_.exact_evaluation)
      program.graph = evaluating(std::move(program.graph));
    program_ = std::make_shared<const ExportedProgram>(std::move(program));
  }

  OperatorGraph build() {
    for (const auto& [symbol, range] : program_->ranges) out_.symbols.push_back(symbol);
    if (out_.symbols.size() > 1) {
      throw FormatError(ErrorKind::UnsupportedModel,
                        out_.file + ": has " + std::to_string(out_.symbols.size()) + " dynamic sizes (" +
                            out_.symbols[0] + ", " + out_.symbols[1] +
                            "), expected only the batch: export all batched inputs with the same torch.export.Dim");
    }
    add_program(out_, {program_, &program_->graph});
    for (const GraphNode& node : out_.nodes) {
      if (node.target == "torch.ops.aten.lstm.input") mend_states(node);
    }
    for (const ProgramInput& input : program_->inputs) {
      if (input.kind == ProgramInput::Kind::User) continue;
      if (input.kind != ProgramInput::Kind::Folded) add_tensor(input);
    }
    for (const ProgramInput& input : program_->inputs) {
      if (input.kind == ProgramInput::Kind::User) add_input(input);
    }
    check_ranges();
    set_samples();
    for (const ArgumentValue& output : program_->graph.outputs) {
      const auto* const value = std::get_if<ValueIndex>(&output);
      out_.outputs.push_back(value ? value->index : -1);
    }
    if (archive_.notes && archive_.notes->loss_output) {
      out_.loss = *archive_.notes->loss_output;
      out_.loss_kind = archive_.notes->loss_kind;
      out_.loss_terms = loss_terms();
    }
    if (archive_.notes) {
      out_.output_keys = archive_.notes->output_keys;
      out_.scores = archive_.notes->scores_output;
    }
    return std::move(out_);
  }

 private:
  [[nodiscard]] std::optional<LossTerms> loss_terms() const {
    const std::optional<ExportedWeight>& weight = archive_.notes->loss_weight;
    if (!weight) return std::nullopt;
    const auto labels = std::ranges::find(out_.inputs, weight->labels, &model::ModelInput::name);
    if (labels != out_.inputs.end() && weight->ignored &&
        (*weight->ignored < labels->least || *weight->ignored >= labels->classes))
      return std::nullopt;  // none is ignored
    const auto value = [&](const std::string& name) {
      return to_int(std::ranges::find(out_.values, name, &GraphValue::name) - out_.values.begin());
    };
    return LossTerms{.count = value(weight->count),
                     .ignored = weight->ignored,
                     .class_weights = weight->class_weights.empty() ? -1 : value(weight->class_weights),
                     .least = weight->least,
                     .added = weight->added};
  }

  /// torch.export writes the last hidden and cell states of an LSTM, [layers, batch, width], with a second axis of 1.
  void mend_states(const GraphNode& lstm) {
    for (std::size_t i = 1; i < lstm.gives.size(); ++i) {
      std::optional<TensorMeta>& meta = out_.values[to_index(lstm.gives[i])].meta;
      if (!meta || meta->sizes.size() != 4 || constant_value(meta->sizes[1]) != 1) continue;
      meta->sizes.erase(meta->sizes.begin() + 1);
      meta->strides.erase(meta->strides.begin() + 1);
    }
  }

  void add_tensor(const ProgramInput& input) {
    const auto stored = archive_.tensors.find(input.name);
    if (stored == archive_.tensors.end())
      throw FormatError(ErrorKind::UnsupportedModel,
                        out_.file + ": the archive has no bytes for \"" + input.name + "\"");
    const StoredTensor& tensor = stored->second;
    const bool trainable = input.kind == ProgramInput::Kind::Parameter && tensor.requires_grad;
    GraphValue& value = out_.values[to_index(input.value.index)];
    value.origin = trainable                                    ? Origin::Parameter
                   : input.kind == ProgramInput::Kind::Constant ? Origin::Constant
                                                                : Origin::Buffer;
    if (trainable && tensor.dtype != c10::ScalarType::Float) {
      throw FormatError(ErrorKind::UnsupportedModel,
                        out_.file + ": " + untrainable_text(input.name, tensor.dtype, "export model.float()"));
    }
    // Tied parameters are one tensor with several names.
    for (std::size_t i = 0; i < out_.tensors.size(); ++i) {
      if (trainable && stored_[i] == tensor) {
        value.source = to_int(i);
        return;
      }
      if (stored_[i].record == tensor.record && (trainable || out_.tensors[i].trainable)) {
        throw FormatError(
            ErrorKind::UnsupportedModel,
            out_.file + ": \"" + out_.tensors[i].name + "\" and \"" + input.name +
                "\" are different views of one tensor, which no optimizer can train separately; clone() them");
      }
    }
    value.source = to_int(out_.tensors.size());
    stored_.push_back(tensor);
    const bool constant = input.kind == ProgramInput::Kind::Constant || !input.persistent;
    out_.tensors.push_back({input.name, tensor.sizes, tensor.dtype, trainable, constant,
                            [zip = archive_.zip, tensor] { return load_tensor(*zip, tensor); }, tensor.has_values});
  }

  void add_input(const ProgramInput& input) {
    GraphValue& value = out_.values[to_index(input.value.index)];
    value.origin = Origin::Input;
    value.source = to_int(out_.inputs.size());
    if (value.kind != GraphValue::Kind::Tensor || !value.meta)
      throw FormatError(ErrorKind::UnsupportedModel, out_.file + ": input \"" + input.name + "\" is not a tensor");
    const ExportedInput* notes = nullptr;
    if (archive_.notes) {
      const auto it = std::ranges::find(archive_.notes->inputs, input.name, &ExportedInput::name);
      if (it != archive_.notes->inputs.end()) notes = &*it;
    }
    model::ModelInput out{.name = input.name, .dtype = "", .shape = {}};
    out.dtype = device::dtype_text(value.meta->dtype);
    if (c10::isComplexType(value.meta->dtype) || out.dtype == c10::toString(value.meta->dtype)) {
      throw FormatError(ErrorKind::UnsupportedModel, out_.file + ": input \"" + input.name + "\" has type " +
                                                         c10::toString(value.meta->dtype) +
                                                         ", which no data source provides");
    }
    out.batch_axis = std::nullopt;
    for (std::size_t axis = 0; axis < value.meta->sizes.size(); ++axis) {
      const SizeExpression& extent = value.meta->sizes[axis];
      if (const auto number = constant_value(extent)) {
        out.shape.push_back(*number);
        continue;
      }
      if (extent.kind != SizeExpression::Kind::Symbol || out.batch_axis) {
        throw FormatError(ErrorKind::UnsupportedModel,
                          out_.file + ": input \"" + input.name + "\" has size " + to_string(extent) + " in axis " +
                              std::to_string(axis) + ", expected the batch size in one axis and numbers in the others");
      }
      out.batch_axis = to_int(axis);
    }
    if (out_.symbols.empty() && !out.shape.empty()) {
      // Exported for one batch size: the notes give the batch axis, else it is the first.
      out.batch_axis = notes ? notes->batch_axis : 0;
      if (out.batch_axis && *out.batch_axis >= to_int(out.shape.size())) {
        throw FormatError(ErrorKind::UnsupportedModel, out_.file + ": extra/stagecraft.json: input \"" + input.name +
                                                           "\" has no axis " + std::to_string(*out.batch_axis));
      }
      if (out.batch_axis) {
        const std::int64_t samples = out.shape[to_index(*out.batch_axis)];
        out.shape.erase(out.shape.begin() + *out.batch_axis);
        if (fixed_ && *fixed_ != samples) {
          throw FormatError(ErrorKind::UnsupportedModel,
                            out_.file + ": input \"" + input.name + "\" holds " + std::to_string(samples) +
                                " samples, the inputs before it have " + std::to_string(*fixed_) +
                                "; export the model with a dynamic batch size");
        }
        fixed_ = samples;
      }
    }
    const std::vector<Reader> readers = readers_of(input.value.index);
    if (const auto range = ranges_.find(input.name); range != ranges_.end()) {
      for (const Reader& reader : readers) check_range(input.name, range->second, reader);
      out.least = range->second.first;
      out.classes = range->second.second;
    } else if (notes && notes->range) {
      out.least = notes->range->first;
      out.classes = notes->range->second;
    } else {
      out.classes = readers.empty() ? 0 : readers.front().classes;
    }
    // A label below 0 excludes its sample; random ones could leave no loss.
    const bool ignores = std::ranges::any_of(readers, [&](const Reader& reader) { return reader.least < 0; });
    if (ignores && out.least < 0 && out.classes > 0) out.least_drawn = 0;
    out_.inputs.push_back(std::move(out));
  }

  /// An operator that uses an input's values as row or class indices.
  struct Reader {
    std::size_t node = 0;
    std::int64_t classes = 0;
    std::int64_t least = 0;  ///< below 0 if it ignores that value
    const char* what = "";
  };

  void check_range(const std::string& input, const std::pair<std::int64_t, std::int64_t>& range,
                   const Reader& reader) const {
    if (range.first >= std::min<std::int64_t>(reader.least, 0) && range.second <= reader.classes) return;
    throw std::invalid_argument(fmt::format(
        "{}: has {} {}; found range {}..{} of input \"{}\", expected one within {}..{} (upper end excluded)",
        place_of(out_, out_.nodes[reader.node]), reader.classes, reader.what, range.first, range.second, input,
        std::min<std::int64_t>(reader.least, 0), reader.classes));
  }

  /// The readers of the input, directly or after operators that only rearrange values.
  [[nodiscard]] std::vector<Reader> readers_of(int input) const {
    std::vector<Reader> out;
    std::vector<int> same{input};
    for (std::size_t n = 0; n < program_->graph.nodes.size(); ++n) {
      const ProgramNode& node = program_->graph.nodes[n];
      const auto argument = [&](const char* name) -> const ProgramValue* {
        const auto it = std::ranges::find(node.arguments, name, &ProgramArgument::name);
        const auto* const value = it == node.arguments.end() ? nullptr : std::get_if<ValueIndex>(&it->value);
        return value ? &program_->graph.values[to_index(value->index)] : nullptr;
      };
      const auto reads = [&](const char* name) {
        const ProgramValue* const value = argument(name);
        return value && std::ranges::find(same, to_int(value - program_->graph.values.data())) != same.end();
      };
      const auto extent = [](const ProgramValue* value, std::size_t axis) -> std::int64_t {
        if (!value || !value->tensor || axis >= value->tensor->sizes.size()) return 0;
        return constant_value(value->tensor->sizes[axis]).value_or(0);
      };
      if (node.target == "torch.ops.aten.embedding.default" && reads("indices"))
        out.push_back({n, extent(argument("weight"), 0), 0, "rows"});
      const bool loss = node.target == "torch.ops.aten.cross_entropy_loss.default" ||
                        node.target == "torch.ops.aten.nll_loss_nd.default";
      if (loss && reads("target") && argument("self")) {
        const bool one_sample = argument("self")->tensor && argument("self")->tensor->sizes.size() == 1;
        const auto ignored = std::ranges::find(node.arguments, "ignore_index", &ProgramArgument::name);
        const auto* const number =
            ignored == node.arguments.end() ? nullptr : std::get_if<std::int64_t>(&ignored->value);
        out.push_back({n, extent(argument("self"), one_sample ? 0 : 1), number ? *number : -100, "classes"});
      }
      std::erase_if(out, [](const Reader& reader) { return reader.classes == 0; });
      static const std::vector<std::string> movers{"view",       "reshape",   "flatten",   "slice",   "select",
                                                   "contiguous", "clone",     "transpose", "permute", "expand",
                                                   "alias",      "unsqueeze", "squeeze",   "to"};
      const std::string name = node.target.starts_with("torch.ops.aten.") ? node.target.substr(15) : "";
      const bool moves = std::ranges::any_of(movers, [&](const std::string& m) { return name.starts_with(m + "."); });
      if (moves && (reads("self") || reads("input")) && node.results.size() == 1 && !node.results[0].list)
        same.push_back(node.results[0].values.at(0).index);
    }
    return out;
  }

  void check_ranges() const {
    for (const auto& [name, range] : ranges_) {
      std::vector<std::string> known;
      for (const model::ModelInput& input : out_.inputs) known.push_back(input.name);
      if (std::ranges::find(known, name) == known.end())
        throw InputError(ErrorKind::UnknownName, out_.file + ": " + unknown_name("input", name, known));
    }
  }

  void set_samples() {
    if (!out_.symbols.empty()) {
      const auto& [least, most] = program_->ranges.begin()->second;
      out_.least_samples = std::max<std::int64_t>(least, 1);
      out_.most_samples = most;
    } else if (fixed_) {
      out_.least_samples = out_.most_samples = *fixed_;
    }
    if (archive_.notes && archive_.notes->samples && !out_.symbols.empty()) {
      out_.least_samples = std::max(out_.least_samples, archive_.notes->samples->first);
      out_.most_samples = std::min(out_.most_samples, archive_.notes->samples->second);
    }
  }

  const Pt2Archive& archive_;
  std::shared_ptr<const ExportedProgram> program_;
  const std::map<std::string, std::pair<std::int64_t, std::int64_t>>& ranges_;
  OperatorGraph out_;
  std::vector<StoredTensor> stored_;
  std::optional<std::int64_t> fixed_;
};

}  // namespace

at::Tensor load_tensor(const files::ZipArchive& archive, const StoredTensor& stored) {
  if (!stored.has_values) {
    throw InputError(ErrorKind::BadInput,
                     archive.path() +
                         ": has shapes but no weights: it can be used by stagecraft profile --structure; to "
                         "measure or train, export it without --structure");
  }
  const files::ZipRecord* const record = archive.find(stored.record);
  if (!record) throw FormatError(ErrorKind::DamagedFile, archive.path() + ": has no record \"" + stored.record + "\"");
  std::shared_ptr<files::MappedRecord> bytes = archive.map(*record, /*check=*/true);
  const auto options = at::TensorOptions(stored.dtype);
  const auto item = static_cast<std::int64_t>(c10::elementSize(stored.dtype));
  std::byte* const begin = bytes->bytes().data() + stored.storage_offset * item;
  at::Tensor out = at::from_blob(begin, stored.sizes, stored.strides, [bytes](void*) {}, options);
  // PyTorch aligns records for kernels; other writers may not.
  constexpr std::uintptr_t kAlignment = 16;
  return reinterpret_cast<std::uintptr_t>(begin) % kAlignment == 0 ? out : out.clone();
}

OperatorGraph pt2_graph(const Pt2Archive& archive,
                        const std::map<std::string, std::pair<std::int64_t, std::int64_t>>& ranges,
                        model::ModelMode mode) {
  return ProgramReader(archive, ranges, mode).build();
}

namespace {

OperatorGraph read_graph(const std::string& path, const ModelSettings& settings, model::ModelMode mode) {
  for (const auto& [key, text] : settings) {
    if (key == "samples" || key.starts_with("input.")) {
      throw std::invalid_argument(path + ": setting " + key +
                                  " is only for TorchScript files; this file describes its inputs");
    }
  }
  return pt2_graph(read_pt2_archive(path), input_ranges(settings), mode);
}

/// As pt2_graph keeps the first name of tied parameters.
std::map<std::string, std::string> tied_names_of(const Pt2Archive& archive) {
  std::vector<std::pair<std::string, StoredTensor>> kept;
  std::map<std::string, std::string> out;
  for (const ProgramInput& input : archive.program.inputs) {
    if (input.kind != ProgramInput::Kind::Parameter && input.kind != ProgramInput::Kind::Buffer) continue;
    const auto stored = archive.tensors.find(input.name);
    if (stored == archive.tensors.end()) continue;
    const bool trainable = input.kind == ProgramInput::Kind::Parameter && stored->second.requires_grad;
    const auto first = std::ranges::find(kept, stored->second, &std::pair<std::string, StoredTensor>::second);
    if (trainable && first != kept.end()) {
      out[input.name] = first->first;
    } else {
      kept.emplace_back(input.name, stored->second);
    }
  }
  return out;
}

}  // namespace

LayerSource pt2_source() {
  return {.name = "pt2",
          .models = "a .pt2 archive of torch.export.save",
          .ending = ".pt2",
          .has =
              [](const std::string& path) {
                return files::has_record_in_folder(files::ZipArchive(path, files::ZipArchive::Deflated::Read),
                                                   "archive_format");
              },
          .build =
              [](const std::string& path, const ModelSettings& settings, model::ModelMode mode) {
                return model_of_file(path, settings, mode, {.read = read_graph, .same_nodes = true});
              },
          .tied_names = [](const std::string& path) { return tied_names_of(read_pt2_archive(path)); },
          .digest = archive_digest};
}

}  // namespace stagecraft::intake
