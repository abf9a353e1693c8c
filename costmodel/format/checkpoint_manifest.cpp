#include "costmodel/format/checkpoint_manifest.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <set>

#include "costmodel/format/shared_notations.h"

namespace stagecraft::format {
namespace {

/// An unsigned number as text in `base`; `wanted` for messages. Only the writer's form is accepted.
template <class T>
T read_digits(const Cursor& at, int base, std::size_t digits, const std::string& wanted) {
  const std::string text = at.text();
  T value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, base);
  const bool whole = error == std::errc() && end == text.data() + text.size() && !text.starts_with('-');
  const bool form = digits != 0 ? text.size() == digits && text.find_first_of("ABCDEF") == text.npos
                                : text == "0" || !text.starts_with('0');
  if (!whole || !form) at.fail_type(wanted);
  return value;
}

std::string crc_text(std::uint32_t crc) {
  char text[9];
  std::snprintf(text, sizeof text, "%08x", crc);
  return text;
}

std::uint32_t read_crc(const Cursor& at) { return read_digits<std::uint32_t>(at, 16, 8, "8 hexadecimal digits"); }

Notation<std::uint32_t> crc() { return as_text<std::uint32_t>(read_crc, crc_text); }

Notation<CheckpointFile> checkpoint_file() {
  using F = CheckpointFile;
  const auto refuse_path = [](const Cursor& at, F& file) {
    if (file.name.empty() || file.name.starts_with('.') || file.name.find('/') != file.name.npos ||
        file.name.find('\0') != file.name.npos)
      at.fail_type("the name of a file next to the manifest");
  };
  return object<F>({
      required("name", &F::name, text(), "Name of the file.").then(refuse_path),
      required("file_bytes", &F::bytes, bytes(), "Bytes of the file."),
      required("crc32", &F::crc32, crc(), "CRC-32 of the complete file (as in zlib and PNG), 8 hexadecimal digits."),
  });
}

/// First indices of a slice of a tensor of `shape`, or how many.
std::vector<std::int64_t> read_indices(const Cursor& at, const std::vector<std::int64_t>& shape) {
  if (at.elements() != shape.size())
    at.fail_type(std::to_string(shape.size()) + " numbers, one for each dimension of the tensor");
  return at.list([](const Cursor& c) { return c.integer(0, Cursor::kMostBytes); });
}

/// Refuses pieces outside the tensor, two with a common element, and a tensor with an element in none.
void check_pieces(const Cursor& at, const std::string& name, const SavedTensor& tensor) {
  const std::string what = "tensor \"" + name + "\": found ";
  std::vector<std::size_t> order;
  std::int64_t found = 0;
  for (std::size_t i = 0; i < tensor.pieces.size(); ++i) {
    const TensorSlice& part = tensor.pieces[i].part;
    if (!is_inside(part, tensor.shape)) {
      at.at(i).fail(what + "the piece " + slice_text(part) + ", expected one inside " +
                    slice_text(whole_slice(tensor.shape)));
    }
    if (element_count(part.shape) > 0) order.push_back(i);
  }
  std::ranges::sort(order, {}, [&](std::size_t i) { return tensor.pieces[i].part.begin; });
  for (auto it = order.begin(); it != order.end(); ++it) {
    const TensorSlice& part = tensor.pieces[*it].part;
    for (auto next = it + 1; next != order.end(); ++next) {
      const TensorSlice& other = tensor.pieces[*next].part;
      if (!part.begin.empty() && other.begin.front() >= part.begin.front() + part.shape.front()) break;
      if (element_count(common_part(part, other).shape) == 0) continue;
      at.at(*next).fail(what + "the piece " + slice_text(other) + ", which overlaps " + slice_text(part) +
                        ", expected each element once");
    }
    found += element_count(part.shape);
  }
  const std::int64_t wanted = element_count(tensor.shape);
  if (found != wanted || tensor.pieces.empty()) {
    at.fail(what + "pieces with " + std::to_string(found) + " of " + std::to_string(wanted) +
            " elements, expected all in one piece or more");
  }
}

/// A piece as documents have it: without what follows from its tensor.
struct WrittenPiece {
  std::string file;
  std::optional<std::vector<std::int64_t>> begin;
  std::optional<std::vector<std::int64_t>> shape;
};

struct WrittenTensor {
  std::string name;
  std::string dtype;
  std::vector<std::int64_t> shape;
  std::vector<WrittenPiece> pieces;
};

Notation<WrittenTensor> written_tensor() {
  using P = WrittenPiece;
  using T = WrittenTensor;
  const auto indices = list<std::int64_t>(integer(0, Cursor::kMostBytes));
  const auto piece = object<P>(
      {
          required("file", &P::file, text(), "Name of the file that holds it."),
          optional("begin", &P::begin, indices, "First index along each dimension of the tensor; zeros if absent."),
          optional("shape", &P::shape, indices,
                   "Number of indices along each dimension; those of the tensor if absent."),
      },
      "A slice of the tensor. Its file holds it under the tensor's name if it is the whole tensor, otherwise under "
      "NAME[BEGIN:END, ...], the indices along each dimension.");
  return object<T>({
      required("name", &T::name, text(), "Full name, unique."),
      required("dtype", &T::dtype, text(), "Type of an element, as safetensors names it."),
      required("shape", &T::shape, indices, "Shape of the whole tensor."),
      required("pieces", &T::pieces, list(piece).with("minItems", 1),
               "Each element of the tensor is in exactly one piece."),
  });
}

std::vector<WrittenTensor> written_tensors(const CheckpointManifest& manifest) {
  std::vector<WrittenTensor> out;
  for (const auto& [name, tensor] : manifest.tensors) {
    WrittenTensor& one = out.emplace_back(WrittenTensor{name, tensor.dtype, tensor.shape, {}});
    for (const TensorPiece& piece : tensor.pieces) {
      WrittenPiece& part = one.pieces.emplace_back(WrittenPiece{piece.file, {}, {}});
      if (piece.part == whole_slice(tensor.shape)) continue;
      part.begin = piece.part.begin;
      part.shape = piece.part.shape;
    }
  }
  return out;
}

/// The piece of a tensor; `at` is its place.
TensorPiece piece_of(const Cursor& at, const WrittenPiece& read, const std::string& name, const SavedTensor& tensor,
                     const std::set<std::string>& files) {
  TensorPiece out{read.file, whole_slice(tensor.shape)};
  if (!files.contains(read.file))
    at.fail("tensor \"" + name + "\": " + unknown_name("file", read.file, {files.begin(), files.end()}));
  if (read.begin) out.part.begin = read_indices(at.member("begin"), tensor.shape);
  if (read.shape) out.part.shape = read_indices(at.member("shape"), tensor.shape);
  return out;
}

void take_tensors(const Cursor& at, CheckpointManifest& manifest, const std::vector<WrittenTensor>& read) {
  std::set<std::string> files;
  for (const CheckpointFile& file : manifest.files) files.insert(file.name);
  for (std::size_t i = 0; i < read.size(); ++i) {
    const auto& [name, dtype, shape, pieces] = read[i];
    const auto [it, fresh] = manifest.tensors.try_emplace(name);
    if (!fresh) at.at(i).member("name").fail("tensor \"" + name + "\" appears twice");
    SavedTensor& tensor = it->second;
    const SafetensorsEntry type = read_tensor_type(at.at(i).member("dtype"), at.at(i).member("shape"));
    tensor.dtype = type.dtype;
    tensor.shape = type.shape;
    const Cursor place = at.at(i).member("pieces");
    for (std::size_t k = 0; k < pieces.size(); ++k)
      tensor.pieces.push_back(piece_of(place.at(k), pieces[k], name, tensor, files));
    check_pieces(place, name, tensor);
  }
}

FieldList<CheckpointManifest> optimizer() {
  using C = CheckpointManifest;
  return {
      required("name", &C::optimizer, text(),
               "sgd, adam, adamw, adamax, nadam, radam, adagrad, adadelta, rmsprop or lion."),
      required("learning_rate", &C::learning_rate, finite(), "Learning rate."),
      required("momentum", &C::momentum, finite(), "Momentum of sgd and rmsprop."),
      required("weight_decay", &C::weight_decay, finite(), "Weight decay."),
      required("beta1", &C::beta1, finite(), "Decay rate of the first moment (the adams, lion)."),
      required("beta2", &C::beta2, finite(), "Decay rate of the second moment (the adams), or of the momentum (lion)."),
      required("epsilon", &C::epsilon, finite(), "Term added to the denominator (all but sgd and lion)."),
      optional("settings", &C::optimizer_settings, text_map(),
               "Further settings that are not defaults, by the name of their option."),
  };
}

Notation<SavedPlateau> plateau() {
  using P = SavedPlateau;
  return object<P>({
      required("factor", &P::factor, not_negative(), "Factor on the learning rate."),
      optional("best", &P::best, finite(), "Best validation loss; absent before the first validation."),
      required("waited", &P::waited, integer(0, kMany), "Validations since the best one or the last drop."),
  });
}

Field<CheckpointManifest> files() {
  return required("files", &CheckpointManifest::files, filled_list(checkpoint_file(), "at least one file"),
                  "Files next to this one, in the safetensors format. Without tensors below, each tensor is whole in "
                  "one of them.")
      .then([](const Cursor& at, CheckpointManifest& manifest) {
        std::set<std::string> names;
        for (std::size_t i = 0; i < manifest.files.size(); ++i) {
          const std::string& name = manifest.files[i].name;
          if (!names.insert(name).second) at.at(i).fail("file \"" + name + "\" appears twice");
        }
      });
}

const Document<CheckpointManifest>& checkpoint_document() {
  using C = CheckpointManifest;
  static const Document<C> document(
      {.name = "checkpoint",
       .version = 6,
       .title = "Checkpoint",
       .help =
           "manifest.json of a checkpoint: what was trained and how far, the files with its tensors, and where in "
           "them each tensor is. A checkpoint exists only with this file, and is valid only if all checksums match.",
       .changes = "Version 2 added loss_scale, version 3 finite, version 4 settings of the optimizer, version 5 "
                  "plateau, version 6 tensors."},
      {
          required("step", &C::step, integer(0, kMany), "Steps done; the number of the next step."),
          required(
              "seed", &C::seed,
              as_text<std::uint64_t>(
                  [](const Cursor& at) { return read_digits<std::uint64_t>(at, 10, 0, "a 64-bit integer as text"); },
                  [](const std::uint64_t& seed) { return std::to_string(seed); }),
              "Random seed of weights, data and dropout: a 64-bit integer as text."),
          required("model", &C::model, text(), "Name of the model."),
          required("options", &C::options, text_map(), "The model's options that are not defaults, by name."),
          group<C>("optimizer", optimizer(), "How the parameters were updated."),
          required("data", &C::data, text(), "Name of the data source."),
          required("samples", &C::samples, integer(0, kMany), "Samples seen so far: the position in the data."),
          required("microbatches", &C::microbatches, integer(1, 1 << 20), "Microbatches in one step."),
          required("microbatch_samples", &C::microbatch_samples, integer(1, kMany), "Samples in one microbatch."),
          group<C>("loss_scale",
                   {
                       required("scale", &C::loss_scale, finite(), "Loss scale of the next step."),
                       required("steps", &C::loss_scale_steps, integer(0, kMany),
                                "Steps without an overflow since the scale last changed."),
                   },
                   "For a run in float16.")
              .only_if([](const C& of) { return of.loss_scale.has_value(); }),
          optional("plateau", &C::plateau, plateau(), "For a learning-rate schedule that follows the validation loss."),
          optional("finite", &C::finite, boolean(),
                   "Whether no parameter, buffer or optimizer state is infinite or not a number; true if absent.")
              .always(),
          required("plan_hash", &C::plan_hash, text(),
                   "Shows whether two checkpoints were written under the same plan; any plan can load them."),
          files(),
          derived<C, std::vector<WrittenTensor>>(
              "tensors", written_tensors, take_tensors, list(written_tensor()),
              "All tensors: parameters and buffers under their names, and optimizer.first/NAME (momentum or first "
              "moment), optimizer.second/NAME, third, steps, product and average next to them.")
              .only_if([](const C& of) { return !of.tensors.empty(); }),
          required("manifest_crc32", &C::manifest_crc32, crc(),
                   "CRC-32 of this document, as this program writes it, with 00000000 here."),
          provenance_field(&C::provenance),
      });
  return document;
}

}  // namespace

CheckpointManifest parse_checkpoint(const std::string& text, const std::string& file) {
  return checkpoint_document().parse(text, file);
}
std::string checkpoint_json(const CheckpointManifest& manifest) { return checkpoint_document().text(manifest); }
DocumentSchema checkpoint_schema() { return checkpoint_document().schema(); }

std::string without_checksum(std::string text, std::uint32_t crc32) {
  const std::string written = "\"manifest_crc32\": \"" + crc_text(crc32) + '"';
  const std::size_t at = text.rfind(written);
  if (at != text.npos) text.replace(at, written.size(), "\"manifest_crc32\": \"" + crc_text(0) + '"');
  return text;
}

std::string entry_name(const std::string& tensor, const std::vector<std::int64_t>& shape, const TensorSlice& part) {
  return part == whole_slice(shape) ? tensor : tensor + slice_text(part);
}

std::string entry_text(const std::string& tensor, const std::vector<std::int64_t>& shape, const TensorSlice& part) {
  const Json out{{"tensor", tensor}, {"shape", shape}, {"begin", part.begin}};
  // The header's writer refuses names that are not UTF-8.
  return out.dump(-1, ' ', false, Json::error_handler_t::replace);
}

void add_tensors(CheckpointManifest& manifest, const std::string& file, const SafetensorsHeader& header,
                 const std::string& path) {
  for (const auto& [entry, value] : header.tensors) {
    std::string name = entry;
    SavedTensor tensor{value.dtype, value.shape, {}};
    TensorSlice part = whole_slice(value.shape);
    if (const auto text = header.metadata.find(entry); text != header.metadata.end()) {
      const std::string place = path + ": metadata of \"" + entry + '"';
      const Json json = parse_document(text->second, place);
      Fields fields(Cursor(json, place));
      name = fields.required("tensor").text();
      tensor.shape = read_indices(fields.required("shape"), value.shape);
      part.begin = read_indices(fields.required("begin"), value.shape);
      fields.done();
    }
    SavedTensor& of_all = manifest.tensors.try_emplace(name, tensor).first->second;
    if (of_all.dtype != tensor.dtype || of_all.shape != tensor.shape)
      throw FormatError(path + ": tensor \"" + name + "\" has another dtype or shape than in another file");
    of_all.pieces.push_back({file, part});
  }
}

}  // namespace stagecraft::format
