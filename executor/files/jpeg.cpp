#include <fmt/format.h>

#include <array>
#include <csetjmp>
#include <cstdio>
#include <stdexcept>

// libjpeg's headers need <cstdio> before them.
#include <jpeglib.h>
// and its message codes need jpeglib.h.
#include <jerror.h>

#include "costmodel/index.h"
#include "executor/files/image_file.h"

namespace stagecraft::files {
namespace {

/// A decoder whose errors return false from its functions. Those contain setjmp: no object with a destructor lives in
/// them, so that longjmp skips none.
class JpegDecoder {
 public:
  explicit JpegDecoder(const std::string& bytes) : bytes_(bytes) {
    info_.err = jpeg_std_error(&errors_);
    info_.client_data = this;
    errors_.error_exit = &JpegDecoder::leave;
    errors_.emit_message = &JpegDecoder::note;
    errors_.output_message = [](j_common_ptr) {};
  }
  ~JpegDecoder() { jpeg_destroy_decompress(&info_); }
  JpegDecoder(const JpegDecoder&) = delete;
  JpegDecoder& operator=(const JpegDecoder&) = delete;

  bool read_header() {
    if (setjmp(back_)) return false;
    jpeg_create_decompress(&info_);
    jpeg_mem_src(&info_, reinterpret_cast<const unsigned char*>(bytes_.data()), bytes_.size());
    jpeg_read_header(&info_, TRUE);
    return true;
  }

  bool begin(J_COLOR_SPACE colours) {
    if (setjmp(back_)) return false;
    info_.out_color_space = colours;
    jpeg_start_decompress(&info_);
    return true;
  }

  bool read_row(std::uint8_t* row) {
    if (setjmp(back_)) return false;
    return jpeg_read_scanlines(&info_, &row, 1) == 1;
  }

  [[nodiscard]] const jpeg_decompress_struct& info() const { return info_; }
  [[nodiscard]] std::string error() const { return message_.data(); }

 private:
  [[noreturn]] static void leave(j_common_ptr info) {
    auto& self = *static_cast<JpegDecoder*>(info->client_data);
    info->err->format_message(info, self.message_.data());
    longjmp(self.back_, 1);
  }

  /// Warnings that pixels are missing or wrong count as errors; libjpeg would fill in grey.
  static void note(j_common_ptr info, int level) {
    if (level >= 0) return;
    switch (info->err->msg_code) {
      case JWRN_JPEG_EOF:
      case JWRN_HIT_MARKER:
      case JWRN_HUFF_BAD_CODE:
      case JWRN_ARITH_BAD_CODE:
      case JWRN_MUST_RESYNC:
        leave(info);
      default:
        break;
    }
  }

  const std::string& bytes_;
  jpeg_decompress_struct info_{};
  jpeg_error_mgr errors_{};
  std::array<char, JMSG_LENGTH_MAX> message_{};
  std::jmp_buf back_{};
};

/// a * b / 255, rounded: Pillow's MULDIV255.
int scaled(int a, int b) {
  const int product = a * b + 128;
  return ((product >> 8) + product) >> 8;
}

/// One row of CMYK with 255 for no ink, as Adobe's programs write it, to RGB as Pillow's cmyk2rgb does.
void cmyk_to_rgb(const std::vector<std::uint8_t>& row, std::uint8_t* to) {
  for (std::size_t i = 0; i + 3 < row.size(); i += 4) {
    const int light = row[i + 3];  // 255 - black
    for (std::size_t c = 0; c < 3; ++c) *to++ = static_cast<std::uint8_t>(light - scaled(255 - row[i + c], light));
  }
}

}  // namespace

Image parse_jpeg(const std::string& bytes) {
  JpegDecoder decoder(bytes);
  const auto check = [&](bool done) {
    if (!done) throw std::runtime_error(decoder.error());
  };
  check(decoder.read_header());
  const int components = decoder.info().num_components;
  if (components != 1 && components != 3 && components != 4)
    throw std::runtime_error(fmt::format("{} colour components, must be 1, 3 or 4", components));
  Image image = empty_image(decoder.info().image_width, decoder.info().image_height);
  check(decoder.begin(components == 4 ? JCS_CMYK : JCS_RGB));
  std::vector<std::uint8_t> four(components == 4 ? std::size_t{4} * decoder.info().output_width : 0);
  for (int y = 0; y < image.height; ++y) {
    std::uint8_t* row = image.pixels.data() + 3 * to_index(image.width) * to_index(y);
    check(decoder.read_row(four.empty() ? row : four.data()));
    if (!four.empty()) cmyk_to_rgb(four, row);
  }
  return image;
}

}  // namespace stagecraft::files
