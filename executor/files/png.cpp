#include <png.h>

#include <array>
#include <csetjmp>
#include <cstring>
#include <stdexcept>

#include "executor/files/image_file.h"

namespace stagecraft::files {
namespace {

/// A decoder whose errors return false from its functions. Those contain setjmp: no object with a destructor lives in
/// them, so that longjmp skips none.
class PngDecoder {
 public:
  explicit PngDecoder(const std::string& bytes)
      : bytes_(bytes),
        png_(png_create_read_struct(PNG_LIBPNG_VER_STRING, this, &PngDecoder::leave, &PngDecoder::note)) {
    if (png_) info_ = png_create_info_struct(png_);
    if (!info_) {
      png_destroy_read_struct(&png_, nullptr, nullptr);
      throw std::runtime_error("libpng cannot be started");
    }
  }
  ~PngDecoder() { png_destroy_read_struct(&png_, &info_, nullptr); }
  PngDecoder(const PngDecoder&) = delete;
  PngDecoder& operator=(const PngDecoder&) = delete;

  bool read_header() {
    if (setjmp(png_jmpbuf(png_))) return false;
    png_set_read_fn(png_, this, &PngDecoder::give);
    png_read_info(png_, info_);
    return true;
  }

  /// Asks for 8-bit RGB: palettes and grey values expanded, alpha dropped, the high byte of 16 bits.
  bool begin() {
    if (setjmp(png_jmpbuf(png_))) return false;
    png_set_expand(png_);
    png_set_strip_16(png_);
    png_set_strip_alpha(png_);
    png_set_gray_to_rgb(png_);
    passes_ = png_set_interlace_handling(png_);
    png_read_update_info(png_, info_);
    return true;
  }

  bool read_row(std::uint8_t* row) {
    if (setjmp(png_jmpbuf(png_))) return false;
    png_read_row(png_, row, nullptr);
    return true;
  }

  /// Reads what follows the pixels, which checks their sums.
  bool end() {
    if (setjmp(png_jmpbuf(png_))) return false;
    png_read_end(png_, nullptr);
    return true;
  }

  [[nodiscard]] std::uint32_t width() const { return png_get_image_width(png_, info_); }
  [[nodiscard]] std::uint32_t height() const { return png_get_image_height(png_, info_); }
  [[nodiscard]] bool sixteen_bit_grey() const {
    return png_get_bit_depth(png_, info_) == 16 && png_get_color_type(png_, info_) == PNG_COLOR_TYPE_GRAY;
  }
  [[nodiscard]] std::size_t row_bytes() const { return png_get_rowbytes(png_, info_); }
  [[nodiscard]] int passes() const { return passes_; }
  [[nodiscard]] std::string error() const { return message_.data(); }

 private:
  [[noreturn]] static void leave(png_structp png, png_const_charp text) {
    auto& message = static_cast<PngDecoder*>(png_get_error_ptr(png))->message_;
    std::strncpy(message.data(), text, message.size() - 1);
    png_longjmp(png, 1);
  }

  static void note(png_structp /*png*/, png_const_charp /*text*/) {}

  static void give(png_structp png, png_bytep to, png_size_t count) {
    auto& self = *static_cast<PngDecoder*>(png_get_io_ptr(png));
    if (count > self.bytes_.size() - self.at_) png_error(png, "ends too early");
    std::memcpy(to, self.bytes_.data() + self.at_, count);
    self.at_ += count;
  }

  const std::string& bytes_;
  std::size_t at_ = 0;  ///< the first byte that was not read
  std::array<char, 256> message_{};
  int passes_ = 1;
  png_structp png_ = nullptr;
  png_infop info_ = nullptr;
};

}  // namespace

Image parse_png(const std::string& bytes) {
  PngDecoder decoder(bytes);
  const auto check = [&](bool done) {
    if (!done) throw std::runtime_error(decoder.error());
  };
  check(decoder.read_header());
  if (decoder.sixteen_bit_grey()) throw std::runtime_error("16-bit grey values, must be 8-bit");
  Image image = empty_image(decoder.width(), decoder.height());
  check(decoder.begin());
  const std::size_t row_bytes = std::size_t{3} * decoder.width();
  if (decoder.row_bytes() != row_bytes) throw std::runtime_error("cannot be converted to 8-bit RGB");
  for (int pass = 0; pass < decoder.passes(); ++pass)
    for (std::size_t y = 0; y < decoder.height(); ++y) check(decoder.read_row(image.pixels.data() + y * row_bytes));
  check(decoder.end());
  return image;
}

}  // namespace stagecraft::files
