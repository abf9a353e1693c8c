#include <ATen/ops/empty.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <stdexcept>

#include "costmodel/errors.h"
#include "costmodel/format/files/files.h"
#include "costmodel/index.h"
#include "costmodel/text/number.h"
#include "executor/data/data_source.h"
#include "executor/data/image_crop.h"
#include "executor/files/image_file.h"

namespace stagecraft::data {
namespace {

namespace fs = std::filesystem;

// The defaults of torchvision's RandomResizedCrop.
constexpr double kLeastArea = 0.08;
constexpr double kMostRatio = 4.0 / 3;
constexpr int kAttempts = 10;

/// What the specification says beyond the folder.
struct Options {
  std::string folder;
  std::optional<int> resize;  ///< pixels of the shorter side before the crop
  bool augment = false;
  std::vector<float> mean;  ///< per channel
  std::vector<float> deviation;
};

struct Sample {
  std::string path;
  std::int64_t label = 0;
};

/// Numbers drawn for one sample: the same on every rank.
class Draws {
 public:
  Draws(std::uint64_t seed, std::uint64_t sample) : seed_(seed), sample_(sample) {}
  /// The next number, uniform in [low, high).
  double uniform(double low, double high) { return low + (high - low) * static_cast<double>(next() >> 11) * 0x1p-53; }
  /// The next number, uniform in 0..most.
  int whole(int most) { return static_cast<int>(next() % (static_cast<std::uint64_t>(most) + 1)); }

 private:
  std::uint64_t next() { return model::mix_seed(seed_, "augment", sample_, drawn_++); }

  std::uint64_t seed_;
  std::uint64_t sample_;
  std::uint64_t drawn_ = 0;
};

/// Where torchvision's RandomResizedCrop cuts: 8 % to 100 % of the area with sides in a ratio of 3/4 to 4/3, drawn up
/// to ten times until it lies in the image, else the largest such box in the middle.
Box random_box(const files::Image& image, Draws& draws) {
  const double area = static_cast<double>(image.width) * image.height;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    const double target = area * draws.uniform(kLeastArea, 1);
    const double ratio = std::exp(draws.uniform(-std::log(kMostRatio), std::log(kMostRatio)));
    const int width = static_cast<int>(std::lround(std::sqrt(target * ratio)));
    const int height = static_cast<int>(std::lround(std::sqrt(target / ratio)));
    if (width < 1 || width > image.width || height < 1 || height > image.height) continue;
    return {.left = draws.whole(image.width - width),
            .top = draws.whole(image.height - height),
            .width = width,
            .height = height};
  }
  const int width = std::min<int>(image.width, static_cast<int>(std::lround(image.height * kMostRatio)));
  const int height = std::min<int>(image.height, static_cast<int>(std::lround(image.width * kMostRatio)));
  return {.left = (image.width - width) / 2, .top = (image.height - height) / 2, .width = width, .height = height};
}

class Images : public DataSource {
 public:
  Images(std::vector<Sample> files, Options options, std::vector<std::int64_t> shape, std::optional<std::uint64_t> seed)
      : files_(std::move(files)), options_(std::move(options)), shape_(std::move(shape)), seed_(seed) {}

  std::vector<at::Tensor> batch(std::int64_t step, int microbatch, int microbatches, std::int64_t samples,
                                std::span<const int> inputs) const override {
    const auto first = static_cast<std::uint64_t>((step * microbatches + microbatch) * samples);
    std::vector<at::Tensor> out;
    for (const int input : inputs) out.push_back(input == 0 ? images(first, samples) : labels(first, samples));
    return out;
  }

  std::optional<std::int64_t> samples() const override { return static_cast<std::int64_t>(files_.size()); }

 private:
  /// The `index`-th sample of a run.
  const Sample& sample(std::uint64_t index) const {
    return files_[seed_ ? shuffled(index, files_.size(), *seed_) : index % files_.size()];
  }

  at::Tensor images(std::uint64_t first, std::int64_t samples) const {
    const at::Tensor out = at::empty({samples, shape_[0], shape_[1], shape_[2]}, at::TensorOptions().dtype(at::kFloat));
    float* to = out.mutable_data_ptr<float>();
    for (std::uint64_t index = first; index < first + static_cast<std::uint64_t>(samples); ++index)
      to = normalised(view(index), to);
    return out;
  }

  at::Tensor labels(std::uint64_t first, std::int64_t samples) const {
    const at::Tensor out = at::empty({samples}, at::TensorOptions().dtype(at::kLong));
    std::int64_t* to = out.mutable_data_ptr<std::int64_t>();
    for (std::int64_t i = 0; i < samples; ++i) *to++ = sample(first + static_cast<std::uint64_t>(i)).label;
    return out;
  }

  /// The pixels that the model sees of the `index`-th sample of a run.
  files::Image view(std::uint64_t index) const {
    const int height = to_int(shape_[1]);
    const int width = to_int(shape_[2]);
    const std::string& path = sample(index).path;
    const files::Image image = files::parse_image(format::read_text(path), path);
    if (!options_.augment || !seed_) {
      const files::Image small = with_shorter_side(image, *options_.resize, path);
      return cropped(small, centre_box(small, width, height));
    }
    Draws draws(*seed_, index);
    files::Image out = resized(cropped(image, random_box(image, draws)), width, height);
    if (draws.whole(1) == 1) mirror(out);
    return out;
  }

  static files::Image with_shorter_side(const files::Image& image, int side, const std::string& path) {
    const std::int64_t longer = std::max(image.width, image.height);
    const std::int64_t shorter = std::min(image.width, image.height);
    // The longer side of a long thin image grows with the shorter one.
    if (side * (side * longer / shorter) > files::kMostImagePixels)
      throw FormatError(ErrorKind::DamagedData,
                        fmt::format("{}: {} x {} pixels with a shorter side of {} are more than {} pixels", path,
                                    image.width, image.height, side, files::kMostImagePixels));
    return data::with_shorter_side(image, side);
  }

  static void mirror(files::Image& image) {
    const std::size_t row = 3 * to_index(image.width);
    for (std::size_t begin = 0; begin < image.pixels.size(); begin += row)
      for (std::size_t left = begin, right = begin + row - 3; left < right; left += 3, right -= 3)
        std::swap_ranges(image.pixels.begin() + static_cast<std::ptrdiff_t>(left),
                         image.pixels.begin() + static_cast<std::ptrdiff_t>(left + 3),
                         image.pixels.begin() + static_cast<std::ptrdiff_t>(right));
  }

  /// Writes the values of `image`, channel by channel, to `to`. Returns the end.
  float* normalised(const files::Image& image, float* to) const {
    for (std::size_t channel = 0; channel < options_.mean.size(); ++channel)
      for (std::size_t i = 0; i < image.pixels.size(); i += 3) {
        const std::uint8_t* pixel = image.pixels.data() + i;
        // Pillow's grey: ITU-R 601 in 16 bits.
        const int value = options_.mean.size() == 3
                              ? pixel[channel]
                              : (pixel[0] * 19595 + pixel[1] * 38470 + pixel[2] * 7471 + 0x8000) >> 16;
        *to++ = (static_cast<float>(value) / 255 - options_.mean[channel]) / options_.deviation[channel];
      }
    return to;
  }

  std::vector<Sample> files_;
  Options options_;
  std::vector<std::int64_t> shape_;  ///< channels, height, width
  std::optional<std::uint64_t> seed_;
};

constexpr std::array kOptionNames{"resize", "augment", "mean", "std"};

[[noreturn]] void refuse(const std::string& option, const std::string& value, const std::string& wanted) {
  throw std::invalid_argument(fmt::format("data source images: option {}: \"{}\", must be {}", option, value, wanted));
}

/// One number for each channel, with slashes between.
std::vector<float> per_channel(const std::string& option, const std::string& value, std::size_t channels) {
  std::vector<float> out;
  for (std::size_t at = 0; at <= value.size();) {
    const std::size_t slash = std::min(value.find('/', at), value.size());
    const std::optional<float> one = number_in<float>(std::string_view(value).substr(at, slash - at));
    if (!one || (option == "std" && *one <= 0))
      refuse(option, value,
             fmt::format("{} {}numbers separated by slashes", channels, option == "std" ? "positive " : ""));
    out.push_back(*one);
    at = slash + 1;
  }
  if (out.size() != channels) refuse(option, value, fmt::format("{} numbers separated by slashes", channels));
  return out;
}

/// Where the folder of FOLDER[,OPTION=VALUE...] ends: a comma belongs to the folder unless a word and an equals sign
/// follow. npos: there are no options.
std::size_t folder_end(const std::string& argument) {
  const auto is_option = [&](std::size_t comma) {
    const std::size_t end = argument.find_first_not_of("abcdefghijklmnopqrstuvwxyz", comma + 1);
    return end != std::string::npos && end > comma + 1 && argument[end] == '=';
  };
  std::size_t comma = argument.find(',');
  while (comma != std::string::npos && !is_option(comma)) comma = argument.find(',', comma + 1);
  return comma;
}

/// FOLDER[,OPTION=VALUE...] for images of `channels` x `height` x `width`.
Options parse_options(const std::string& argument, std::int64_t channels, std::int64_t height, std::int64_t width) {
  std::size_t comma = folder_end(argument);
  Options out;
  out.folder = argument.substr(0, comma);
  if (channels == 3) {  // of ImageNet, as torchvision's models take them
    out.mean = {0.485F, 0.456F, 0.406F};
    out.deviation = {0.229F, 0.224F, 0.225F};
  } else {
    out.mean = {0.5F};
    out.deviation = {0.5F};
  }
  const std::int64_t side = std::max(height, width);
  while (comma != std::string::npos) {
    const std::size_t equals = argument.find('=', comma);
    const std::size_t next = argument.find(',', comma + 1);
    if (equals == std::string::npos || equals > next)
      throw std::invalid_argument(fmt::format("data source images: \"{}\" after the folder, must be OPTION=VALUE",
                                              argument.substr(comma + 1, next - comma - 1)));
    const std::string option = argument.substr(comma + 1, equals - comma - 1);
    const std::string value = argument.substr(equals + 1, next == std::string::npos ? next : next - equals - 1);
    if (option == "resize") {
      out.resize = number_in<int>(value);
      if (!out.resize || *out.resize < side || *out.resize > 16384)
        refuse(option, value, fmt::format("{}, the image's longer side in the model, to 16384 pixels", side));
    } else if (option == "augment") {
      if (value != "yes" && value != "no") refuse(option, value, "yes or no");
      out.augment = value == "yes";
    } else if (option == "mean") {
      out.mean = per_channel(option, value, to_index(channels));
    } else if (option == "std") {
      out.deviation = per_channel(option, value, to_index(channels));
    } else {
      throw InputError(
          ErrorKind::UnknownName,
          "data source images: " + unknown_name("option", option, {kOptionNames.begin(), kOptionNames.end()}));
    }
    comma = next;
  }
  if (!out.resize) out.resize = to_int(side * 8 / 7);  // 256 for 224
  return out;
}

/// The file extension in lower case.
std::string extension(const fs::path& path) {
  std::string out = path.extension().string();
  std::ranges::transform(out, out.begin(), [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
  return out;
}

/// The images under `folder`, in the order of torchvision's ImageFolder: by the folder's path, then by name.
std::vector<std::string> images_under(const fs::path& folder) {
  constexpr std::array kRead{".jpg", ".jpeg", ".png"};
  constexpr std::array kImages{".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp"};  // that ImageFolder takes as well
  std::vector<std::pair<std::string, std::string>> found;
  std::size_t others = 0;
  for (const fs::directory_entry& entry :
       fs::recursive_directory_iterator(folder, fs::directory_options::follow_directory_symlink)) {
    if (entry.is_directory()) continue;
    const std::string kind = extension(entry.path());
    if (std::ranges::find(kImages, kind) != kImages.end())
      throw FormatError(ErrorKind::DamagedData,
                        entry.path().string() + ": images must be JPEG or PNG files; convert it or move it away");
    if (std::ranges::find(kRead, kind) == kRead.end()) {
      ++others;
      continue;
    }
    found.emplace_back(entry.path().parent_path().string(), entry.path().filename().string());
  }
  if (found.empty())
    throw FormatError(ErrorKind::DamagedData,
                      fmt::format("{}: a class without images: has {} files that do not end in .jpg, .jpeg or .png",
                                  folder.string(), others));
  std::ranges::sort(found);
  std::vector<std::string> out;
  for (const auto& [parent, name] : found) out.push_back((fs::path(parent) / name).string());
  return out;
}

/// The images in the folders of `folder`, each of which is a class; `classes` in the end says how many.
std::vector<Sample> list_samples(const std::string& folder, std::int64_t& classes) {
  try {
    if (!fs::is_directory(folder)) throw FormatError(ErrorKind::CannotRead, folder + ": no such folder");
    std::vector<std::string> names;
    for (const fs::directory_entry& entry : fs::directory_iterator(folder))
      if (entry.is_directory()) names.push_back(entry.path().filename().string());
    if (names.empty())
      throw FormatError(ErrorKind::DamagedData,
                        folder + ": has no folders, must have one for each class, with the images of the class");
    std::ranges::sort(names);
    std::vector<Sample> out;
    for (const std::string& name : names) {
      for (std::string& path : images_under(fs::path(folder) / name)) out.push_back({std::move(path), classes});
      ++classes;
    }
    return out;
  } catch (const fs::filesystem_error& e) {
    throw FormatError(ErrorKind::CannotRead,
                      fmt::format("{}: cannot be read: {}", e.path1().string(), e.code().message()));
  }
}

std::unique_ptr<DataSource> images_source(const std::string& argument, const model::Model& model,
                                          std::optional<std::uint64_t> seed) {
  const std::vector<model::ModelInput>& inputs = model.inputs;
  const bool fits = inputs.size() == 2 && inputs[0].dtype == "float32" && inputs[0].shape.size() == 3 &&
                    (inputs[0].shape[0] == 1 || inputs[0].shape[0] == 3) && inputs[1].dtype == "int64" &&
                    inputs[1].shape.empty();
  if (!fits)
    throw InputError(ErrorKind::DataMismatch, fmt::format("data source images gives image float32[3, height, width] or "
                                                          "float32[1, height, width], target int64[]; model "
                                                          "{} needs {}",
                                                          model.name, describe_inputs(model)));
  const std::vector<std::int64_t>& shape = inputs[0].shape;
  Options options = parse_options(argument, shape[0], shape[1], shape[2]);
  std::int64_t classes = 0;
  std::vector<Sample> samples = list_samples(options.folder, classes);
  if (inputs[1].classes < classes)
    throw InputError(ErrorKind::DataMismatch, fmt::format("{0}: has {1} classes, model {2} has {3}: set classes={1}",
                                                          options.folder, classes, model.name, inputs[1].classes));
  return std::make_unique<Images>(std::move(samples), std::move(options), shape, seed);
}

}  // namespace

std::string why_no_images() { return ""; }

DataSourceKind images_data() {
  return {.name = "images",
          .argument = "FOLDER",
          .needed = "a folder",
          .help =
              "JPEG and PNG images in a folder per class, resized, cropped and normalised; options follow as "
              "FOLDER,resize=PIXELS,augment=yes,mean=R/G/B,std=R/G/B",
          .open = [](const std::string& argument, const model::Model& model, std::uint64_t,
                     std::optional<std::uint64_t> seed) { return images_source(argument, model, seed); },
          .files = [](const std::string& argument) { return std::vector{argument.substr(0, folder_end(argument))}; }};
}

}  // namespace stagecraft::data
