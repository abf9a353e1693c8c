#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <arrow/array.h>
#include <arrow/extension_type.h>
#include <arrow/io/file.h>
#include <arrow/ipc/reader.h>
#include <arrow/table.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <parquet/arrow/reader.h>
#include <parquet/exception.h>
#include <parquet/file_reader.h>
#include <parquet/schema.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "costmodel/errors.h"
#include "costmodel/index.h"
#include "executor/files/columns.h"

namespace stagecraft::files {
namespace {

constexpr std::int64_t kMagicBytes = 6;

[[noreturn]] void refuse(const std::string& file, const std::string& what) {
  throw FormatError(ErrorKind::DamagedData, fmt::format("{}: {}", file, what));
}

/// What `result` holds. Throws FormatError with Arrow's reason if it holds none.
template <typename T>
T value_of(arrow::Result<T> result, const std::string& file) {
  if (!result.ok()) refuse(file, "is damaged: " + result.status().message());
  return std::move(result).ValueUnsafe();
}

void check(const arrow::Status& status, const std::string& file) {
  if (!status.ok()) refuse(file, "is damaged: " + status.message());
}

/// Some columns of a file, or none but the schema.
struct FileColumns {
  std::shared_ptr<arrow::Schema> schema;
  std::vector<std::shared_ptr<arrow::ChunkedArray>> columns;  ///< as asked for
};

void check_names(const arrow::Schema& schema, const std::vector<std::string>& names, const std::string& file) {
  for (const std::string& name : names) {
    const auto count = schema.GetAllFieldIndices(name).size();
    if (count == 1) continue;
    throw FormatError(ErrorKind::DataMismatch,
                      count > 1 ? fmt::format("{}: has {} columns \"{}\", must have one", file, count, name)
                                : fmt::format("{}: found no column \"{}\"; there are {}", file, name,
                                              fmt::join(schema.field_names(), ", ")));
  }
}

FileColumns from_table(const arrow::Table& table, const std::vector<std::string>& names) {
  FileColumns out{table.schema(), {}};
  for (const std::string& name : names) out.columns.push_back(table.GetColumnByName(name));
  return out;
}

FileColumns read_parquet(const std::shared_ptr<arrow::io::RandomAccessFile>& bytes,
                         const std::vector<std::string>& names, const std::string& file) {
  try {
    const auto reader = value_of(parquet::arrow::OpenFile(bytes, arrow::default_memory_pool()), file);
    FileColumns out;
    check(reader->GetSchema(&out.schema), file);
    check_names(*out.schema, names, file);
    if (names.empty()) return out;
    std::vector<int> leaves;  // a list's numbers are a leaf below the column
    const parquet::SchemaDescriptor& schema = *reader->parquet_reader()->metadata()->schema();
    for (int i = 0; i < schema.num_columns(); ++i) {
      if (std::ranges::find(names, schema.Column(i)->path()->ToDotVector().front()) != names.end()) leaves.push_back(i);
    }
    return from_table(*value_of(reader->ReadTable(leaves), file), names);
  } catch (const parquet::ParquetException& e) { refuse(file, std::string("is damaged: ") + e.what()); }
}

/// Options to read these columns only.
arrow::ipc::IpcReadOptions only(const arrow::Schema& schema, const std::vector<std::string>& names) {
  arrow::ipc::IpcReadOptions out = arrow::ipc::IpcReadOptions::Defaults();
  out.ensure_alignment = arrow::ipc::Alignment::kDataTypeSpecificAlignment;
  for (const std::string& name : names) out.included_fields.push_back(schema.GetFieldIndex(name));
  return out;
}

/// By arrow::ipc::RecordBatchFileReader or RecordBatchStreamReader.
template <typename Reader>
FileColumns read_arrow(const std::shared_ptr<arrow::io::RandomAccessFile>& bytes, const std::vector<std::string>& names,
                       const std::string& file) {
  const auto schema = value_of(Reader::Open(bytes), file)->schema();
  check_names(*schema, names, file);
  if (names.empty()) return {schema, {}};
  check(bytes->Seek(0), file);  // a stream has read on
  return from_table(*value_of(value_of(Reader::Open(bytes, only(*schema, names)), file)->ToTable(), file), names);
}

FileColumns read_file(const std::string& file, const std::vector<std::string>& names) {
  auto mapped = arrow::io::MemoryMappedFile::Open(file, arrow::io::FileMode::READ);
  if (!mapped.ok())
    throw FormatError(ErrorKind::CannotRead, fmt::format("{}: cannot read: {}", file, mapped.status().message()));
  const std::shared_ptr<arrow::io::RandomAccessFile> bytes = std::move(mapped).ValueUnsafe();
  const std::string magic = value_of(bytes->ReadAt(0, kMagicBytes), file)->ToString();
  if (magic.starts_with("PAR1")) return read_parquet(bytes, names, file);
  if (magic.starts_with("ARROW1")) return read_arrow<arrow::ipc::RecordBatchFileReader>(bytes, names, file);
  if (magic.starts_with("FEA1")) refuse(file, "is a Feather file of version 1; write it as version 2");
  if (!magic.starts_with("\xFF\xFF\xFF\xFF"))
    refuse(file, "is neither Parquet nor Arrow: begins with neither PAR1, ARROW1 nor a stream's marker");
  return read_arrow<arrow::ipc::RecordBatchStreamReader>(bytes, names, file);
}

/// Collects the numbers of a column, file after file.
class Collector {
 public:
  Collector(std::string name, std::string file) : name_(std::move(name)), first_file_(std::move(file)) {}

  void add(const arrow::ChunkedArray& column, const std::string& file) {
    file_ = &file;
    first_row_ = 0;
    for (const std::shared_ptr<arrow::Array>& chunk : column.chunks()) {
      check(chunk->ValidateFull(), place());
      const std::shared_ptr<arrow::Array> leaf = numbers(chunk, 0);
      at::Tensor tensor = as_tensor(*leaf);
      const std::string name = leaf->type()->ToString();
      if (parts_.empty()) {
        type_ = tensor.scalar_type();
        type_name_ = name;
      }
      if (tensor.scalar_type() != type_) {
        throw FormatError(ErrorKind::DataMismatch,
                          fmt::format("{}: found {}, expected {} as in {}", place(), name, type_name_, first_file_));
      }
      parts_.push_back(std::move(tensor));
      rows_ += chunk->length();
      first_row_ += chunk->length();
    }
  }

  NumberColumn column() && {
    NumberColumn out{.values = {}, .rows = rows_, .shape = {}, .uneven = uneven_};
    if (parts_.empty()) parts_.push_back(at::empty({0}, at::TensorOptions().dtype(type_)));
    out.values = parts_.size() == 1 ? parts_.front() : at::cat(parts_);
    for (const std::optional<std::int64_t>& length : lengths_) out.shape.push_back(length.value_or(0));
    return out;
  }

 private:
  [[nodiscard]] std::string place() const { return fmt::format("{}: column \"{}\"", *file_, name_); }

  /// All lists at this depth have to be of one length; the rows of the outermost are counted.
  void note(std::size_t depth, std::int64_t row, std::int64_t length) {
    if (!lengths_[depth]) lengths_[depth] = length;
    if (*lengths_[depth] == length || !uneven_.empty()) return;
    const std::string where = depth == 0 ? fmt::format("row {}: ", first_row_ + row) : "";
    uneven_ =
        fmt::format("{}: {}found a list of {}, others before it have {}", place(), where, length, *lengths_[depth]);
  }

  /// What the lists in `array` hold, without the lists.
  std::shared_ptr<arrow::Array> numbers(std::shared_ptr<arrow::Array> array, std::size_t depth) {
    if (array->type_id() == arrow::Type::EXTENSION) array = static_cast<const arrow::ExtensionArray&>(*array).storage();
    if (array->null_count() > 0) refuse_null(*array, depth);
    switch (array->type_id()) {
      case arrow::Type::LIST:
        return inner(static_cast<const arrow::ListArray&>(*array), depth);
      case arrow::Type::LARGE_LIST:
        return inner(static_cast<const arrow::LargeListArray&>(*array), depth);
      case arrow::Type::FIXED_SIZE_LIST:
        return inner(static_cast<const arrow::FixedSizeListArray&>(*array), depth);
      default:
        return array;
    }
  }

  template <typename Lists>
  std::shared_ptr<arrow::Array> inner(const Lists& lists, std::size_t depth) {
    if (lengths_.size() <= depth) lengths_.resize(depth + 1);
    for (std::int64_t i = 0; i < lists.length(); ++i) note(depth, i, lists.value_length(i));
    return numbers(value_of(lists.Flatten(), place()), depth + 1);
  }

  [[noreturn]] void refuse_null(const arrow::Array& array, std::size_t depth) const {
    std::int64_t at = 0;
    while (!array.IsNull(at)) ++at;
    throw FormatError(ErrorKind::DataMismatch,
                      depth == 0 ? fmt::format("{}: row {} is null, must be a value", place(), first_row_ + at)
                                 : fmt::format("{}: a list holds null, must hold values", place()));
  }

  /// `count` values of an array's buffer, which the tensor keeps alive.
  static at::Tensor mapped(const arrow::Array& array, at::ScalarType type) {
    if (array.length() == 0) return at::empty({0}, at::TensorOptions().dtype(type));
    const std::shared_ptr<arrow::Buffer> buffer = array.data()->buffers[1];
    const std::int64_t begin = array.offset() * static_cast<std::int64_t>(c10::elementSize(type));
    // Nobody writes to it: from_blob only takes no const.
    void* const data =
        const_cast<std::uint8_t*>(buffer->data() + begin);  // NOLINT(cppcoreguidelines-pro-type-const-cast)
    return at::from_blob(data, {array.length()}, [buffer](void*) {}, at::TensorOptions().dtype(type));
  }

  /// The numbers of `array` in a wider signed type: LibTorch computes little with unsigned ones.
  template <typename From, typename To>
  at::Tensor widened(const arrow::Array& array, at::ScalarType type) const {
    at::Tensor out = at::empty({array.length()}, at::TensorOptions().dtype(type));
    To* const to = out.mutable_data_ptr<To>();
    const auto& from = static_cast<const arrow::NumericArray<From>&>(array);
    for (std::int64_t i = 0; i < array.length(); ++i) {
      if constexpr (sizeof(To) == sizeof(typename From::c_type)) {
        if (from.Value(i) > static_cast<typename From::c_type>(std::numeric_limits<To>::max()))
          throw FormatError(ErrorKind::DataMismatch, fmt::format("{}: found {}, must be at most {}", place(),
                                                                 from.Value(i), std::numeric_limits<To>::max()));
      }
      to[i] = static_cast<To>(from.Value(i));
    }
    return out;
  }

  at::Tensor as_tensor(const arrow::Array& array) const {
    switch (array.type_id()) {
      case arrow::Type::INT8:
        return mapped(array, at::kChar);
      case arrow::Type::UINT8:
        return mapped(array, at::kByte);
      case arrow::Type::INT16:
        return mapped(array, at::kShort);
      case arrow::Type::UINT16:
        return widened<arrow::UInt16Type, std::int32_t>(array, at::kInt);
      case arrow::Type::INT32:
        return mapped(array, at::kInt);
      case arrow::Type::UINT32:
        return widened<arrow::UInt32Type, std::int64_t>(array, at::kLong);
      case arrow::Type::INT64:
        return mapped(array, at::kLong);
      case arrow::Type::UINT64:
        return widened<arrow::UInt64Type, std::int64_t>(array, at::kLong);
      case arrow::Type::HALF_FLOAT:
        return mapped(array, at::kHalf);
      case arrow::Type::FLOAT:
        return mapped(array, at::kFloat);
      case arrow::Type::DOUBLE:
        return mapped(array, at::kDouble);
      case arrow::Type::BOOL: {
        at::Tensor out = at::empty({array.length()}, at::TensorOptions().dtype(at::kBool));
        const auto& from = static_cast<const arrow::BooleanArray&>(array);
        bool* const to = out.mutable_data_ptr<bool>();
        for (std::int64_t i = 0; i < array.length(); ++i) to[i] = from.Value(i);
        return out;
      }
      default:
        throw FormatError(ErrorKind::DataMismatch, fmt::format("{}: found {}, expected numbers or lists of numbers",
                                                               place(), array.type()->ToString()));
    }
  }

  std::string name_;
  std::string first_file_;
  const std::string* file_ = nullptr;  ///< that add() reads
  std::int64_t first_row_ = 0;         ///< of the chunk, in its file
  std::int64_t rows_ = 0;
  at::ScalarType type_ = at::kFloat;
  std::string type_name_;  ///< Arrow's
  std::vector<at::Tensor> parts_;
  std::vector<std::optional<std::int64_t>> lengths_;  ///< of the lists at each depth
  std::string uneven_;
};

class ArrowReader final : public ColumnReader {
 public:
  std::vector<std::string> names(const std::string& file) const override {
    return read_file(file, {}).schema->field_names();
  }

  std::vector<NumberColumn> read(const std::vector<std::string>& files,
                                 const std::vector<std::string>& names) const override {
    std::vector<Collector> collectors;
    for (const std::string& name : names) collectors.emplace_back(name, files.front());
    for (const std::string& file : files) {
      const FileColumns found = read_file(file, names);
      for (std::size_t i = 0; i < names.size(); ++i) collectors[i].add(*found.columns[i], file);
    }
    std::vector<NumberColumn> out;
    for (Collector& collector : collectors) out.push_back(std::move(collector).column());
    return out;
  }
};

}  // namespace
}  // namespace stagecraft::files

extern "C" __attribute__((visibility("default"))) const stagecraft::files::ColumnReader*
stagecraft_find_column_reader() {
  static const stagecraft::files::ArrowReader reader;
  return &reader;
}
