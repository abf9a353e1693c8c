#include <ATen/ops/empty.h>
#include <fmt/format.h>
#include <zlib.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <limits>
#include <stdexcept>

#include "costmodel/errors.h"
#include "costmodel/index.h"
#include "executor/data/data_source.h"

namespace stagecraft::data {
namespace {

constexpr const char* kDirectory = "/usr/share/datasets/fashion-mnist";

constexpr std::int64_t kSide = 28;
constexpr std::int64_t kPixels = kSide * kSide;
constexpr std::int64_t kClasses = 10;
constexpr std::uint32_t kImagesMagic = 0x803;  // unsigned bytes, three axes
constexpr std::uint32_t kLabelsMagic = 0x801;
constexpr std::uint64_t kMostDeflateGives = 1032;  // bytes out of one byte in; zlib's technical details
// Mean and standard deviation of the training set's pixels in 0..1.
constexpr float kMean = 0.2860F;
constexpr float kDeviation = 0.3530F;

/// A gzip file read from front to back.
class GzipFile {
 public:
  explicit GzipFile(std::string path) : path_(std::move(path)), file_(gzopen(path_.c_str(), "rb")) {
    if (!file_) throw FormatError(ErrorKind::CannotRead, path_ + ": cannot be opened: " + std::strerror(errno));
  }
  ~GzipFile() { gzclose_r(file_); }
  GzipFile(const GzipFile&) = delete;
  GzipFile& operator=(const GzipFile&) = delete;

  /// Fills `out`; `what` names this part of the file.
  void read(std::span<unsigned char> out, const char* what) {
    std::size_t done = 0;
    while (done < out.size()) {
      const auto most = static_cast<unsigned>(std::min<std::size_t>(out.size() - done, 1 << 20));
      const int got = gzread(file_, out.data() + done, most);
      if (got < 0)
        throw FormatError(ErrorKind::DamagedData,
                          fmt::format("{}: damaged at byte {} of its {}: {}", path_, done, what, error()));
      if (got == 0)
        throw FormatError(ErrorKind::DamagedData, fmt::format("{}: ends after {} bytes of its {}, must have {}", path_,
                                                              done, what, out.size()));
      done += to_index(got);
    }
  }

  std::uint32_t number(const char* what) {
    std::array<unsigned char, 4> bytes{};
    read(bytes, what);
    return std::uint32_t{bytes[0]} << 24 | std::uint32_t{bytes[1]} << 16 | std::uint32_t{bytes[2]} << 8 | bytes[3];
  }

  void expect_end() {
    unsigned char byte = 0;
    const int got = gzread(file_, &byte, 1);
    if (got < 0) throw FormatError(ErrorKind::DamagedData, fmt::format("{}: damaged at its end: {}", path_, error()));
    if (got > 0) throw FormatError(ErrorKind::DamagedData, path_ + ": has more values than its header says");
  }

 private:
  std::string error() const {
    int code = 0;
    return gzerror(file_, &code);
  }

  std::string path_;
  gzFile file_;
};

/// The values after an IDX header (yann.lecun.com/exdb/mnist) of `magic` whose items hold `axes` values.
std::vector<unsigned char> read_idx(const std::string& path, std::uint32_t magic, std::span<const std::int64_t> axes) {
  GzipFile file(path);
  const std::uint32_t found = file.number("header");
  if (found != magic)
    throw FormatError(ErrorKind::DamagedData, fmt::format("{}: magic number {:#x}, must be {:#x}", path, found, magic));
  const std::uint64_t count = file.number("header");
  std::uint64_t values = count;
  for (const std::int64_t axis : axes) {
    const std::uint32_t extent = file.number("header");
    if (extent != axis)
      throw FormatError(ErrorKind::DamagedData,
                        fmt::format("{}: items have {} rows or columns, must have {}", path, extent, axis));
    values *= extent;
  }
  const std::uint64_t packed = std::filesystem::file_size(path);
  if (count == 0 || values > kMostDeflateGives * packed)
    throw FormatError(
        ErrorKind::DamagedData,
        fmt::format("{}: its header counts {} items, must be at least 1 and no more than fit in {} packed bytes", path,
                    count, packed));
  std::vector<unsigned char> out(values);
  file.read(out, "values");
  file.expect_end();
  return out;
}

class FashionMnist : public DataSource {
 public:
  FashionMnist(std::vector<unsigned char> images, std::vector<unsigned char> labels, std::vector<std::int64_t> shape,
               std::optional<std::uint64_t> seed)
      : images_(std::move(images)), labels_(std::move(labels)), shape_(std::move(shape)), seed_(seed) {}

  std::vector<at::Tensor> batch(std::int64_t step, int microbatch, int microbatches, std::int64_t samples,
                                std::span<const int> inputs) const override {
    const auto first = static_cast<std::uint64_t>((step * microbatches + microbatch) * samples);
    std::vector<std::size_t> chosen;
    for (std::uint64_t i = first; i < first + static_cast<std::uint64_t>(samples); ++i)
      chosen.push_back(seed_ ? shuffled(i, labels_.size(), *seed_) : i % labels_.size());
    std::vector<at::Tensor> out;
    for (const int input : inputs) out.push_back(input == 0 ? images(chosen) : labels(chosen));
    return out;
  }

  std::optional<std::int64_t> samples() const override { return static_cast<std::int64_t>(labels_.size()); }

 private:
  at::Tensor images(const std::vector<std::size_t>& chosen) const {
    std::vector<std::int64_t> shape{static_cast<std::int64_t>(chosen.size())};
    shape.insert(shape.end(), shape_.begin(), shape_.end());
    at::Tensor out = at::empty(shape, at::TensorOptions().dtype(at::kFloat));
    float* to = out.mutable_data_ptr<float>();
    for (const std::size_t sample : chosen)
      for (std::size_t pixel = 0; pixel < kPixels; ++pixel)
        *to++ = (static_cast<float>(images_[sample * kPixels + pixel]) / 255 - kMean) / kDeviation;
    return out;
  }

  at::Tensor labels(const std::vector<std::size_t>& chosen) const {
    at::Tensor out = at::empty({static_cast<std::int64_t>(chosen.size())}, at::TensorOptions().dtype(at::kLong));
    std::int64_t* to = out.mutable_data_ptr<std::int64_t>();
    for (const std::size_t sample : chosen) *to++ = labels_[sample];
    return out;
  }

  std::vector<unsigned char> images_;
  std::vector<unsigned char> labels_;
  std::vector<std::int64_t> shape_;  ///< of one image
  std::optional<std::uint64_t> seed_;
};

/// The files of images and labels in the directory `named`, or where Debian's package has them.
std::vector<std::string> files_in(const std::string& named, bool test) {
  const std::string part = (named.empty() ? kDirectory : named) + (test ? "/t10k" : "/train");
  return {part + "-images-idx3-ubyte.gz", part + "-labels-idx1-ubyte.gz"};
}

/// The images of Fashion-MNIST from `directory`, the 60,000 for training or the 10,000 for tests; shuffled every epoch
/// if there is a `seed`.
std::unique_ptr<DataSource> fashion_mnist_source(const std::string& named, bool test, const model::Model& model,
                                                 std::optional<std::uint64_t> seed) {
  const std::string directory = named.empty() ? kDirectory : named;
  const std::vector<model::ModelInput>& inputs = model.inputs;
  const std::vector<std::int64_t> image{1, kSide, kSide};
  const std::vector<std::int64_t> flat{kPixels};
  const bool fits = inputs.size() == 2 && inputs[0].dtype == "float32" &&
                    (inputs[0].shape == image || inputs[0].shape == flat) && inputs[1].dtype == "int64" &&
                    inputs[1].shape.empty();
  if (!fits)
    throw InputError(ErrorKind::DataMismatch, fmt::format("data source fashion-mnist gives image float32[1, 28, 28] or "
                                                          "float32[784], target int64[]; model {} needs {}",
                                                          model.name, describe_inputs(model)));
  if (inputs[1].classes < kClasses)
    throw InputError(ErrorKind::DataMismatch,
                     fmt::format("data source fashion-mnist has {0} classes, model {1} has {2}: set classes={0}",
                                 kClasses, model.name, inputs[1].classes));
  if (!std::filesystem::is_directory(directory))
    throw FormatError(ErrorKind::DamagedData,
                      directory +
                          ": no such directory; install Debian's package dataset-fashion-mnist or give a directory as "
                          "fashion-mnist:DIR");
  const std::vector<std::string> paths = files_in(named, test);
  const std::string& images_path = paths[0];
  const std::string& labels_path = paths[1];
  std::vector<unsigned char> images = read_idx(images_path, kImagesMagic, std::array{kSide, kSide});
  std::vector<unsigned char> labels = read_idx(labels_path, kLabelsMagic, {});
  if (images.size() != labels.size() * kPixels)
    throw FormatError(ErrorKind::DamagedData, fmt::format("{}: {} labels, but \"{}\" has {} images", labels_path,
                                                          labels.size(), images_path, images.size() / kPixels));
  for (std::size_t i = 0; i < labels.size(); ++i)
    if (labels[i] >= kClasses)
      throw FormatError(ErrorKind::DamagedData,
                        fmt::format("{}: label {} is {}, must be 0 to {}", labels_path, i, labels[i], kClasses - 1));
  return std::make_unique<FashionMnist>(std::move(images), std::move(labels), inputs[0].shape, seed);
}

}  // namespace

DataSourceKind fashion_mnist_data() {
  return {.name = "fashion-mnist",
          .argument = "DIR",
          .needed = "",
          .help = "60000 training images, from Debian's package dataset-fashion-mnist or DIR",
          .open = [](const std::string& directory, const model::Model& model, std::uint64_t,
                     std::optional<std::uint64_t> seed) { return fashion_mnist_source(directory, false, model, seed); },
          .files = [](const std::string& directory) { return files_in(directory, false); }};
}

DataSourceKind fashion_mnist_test_data() {
  return {.name = "fashion-mnist-test",
          .argument = "DIR",
          .needed = "",
          .help = "the 10000 test images, for evaluation",
          .open = [](const std::string& directory, const model::Model& model, std::uint64_t,
                     std::optional<std::uint64_t> seed) { return fashion_mnist_source(directory, true, model, seed); },
          .files = [](const std::string& directory) { return files_in(directory, true); }};
}

}  // namespace stagecraft::data
