#include "executor/files/image_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <random>

// libjpeg's header needs <cstdio> before it.
#include <jpeglib.h>

#include "costmodel/errors.h"
#include "costmodel/format/files/files.h"
#include "costmodel/index.h"
#include "tests/support/files/mutated.h"
#include "tests/support/files/png_bytes.h"
#include "tests/support/places.h"

namespace stagecraft::files {
namespace {

using stagecraft::testing::png_bytes;
using stagecraft::testing::png_chunk;
using stagecraft::testing::png_number;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using ::testing::ThrowsMessage;
using std::string_literals::operator""s;

using Pixels = std::vector<std::uint8_t>;

/// A JPEG of one colour, whose values in libjpeg's `space` are `colour`.
std::string jpeg_bytes(int width, int height, J_COLOR_SPACE space, std::vector<std::uint8_t> colour, int quality) {
  jpeg_compress_struct info{};
  jpeg_error_mgr errors{};
  info.err = jpeg_std_error(&errors);
  jpeg_create_compress(&info);
  unsigned char* data = nullptr;
  unsigned long bytes = 0;
  jpeg_mem_dest(&info, &data, &bytes);
  info.image_width = static_cast<unsigned>(width);
  info.image_height = static_cast<unsigned>(height);
  info.input_components = to_int(colour.size());
  info.in_color_space = space;
  jpeg_set_defaults(&info);
  jpeg_set_quality(&info, quality, TRUE);
  jpeg_start_compress(&info, TRUE);
  Pixels row;
  for (int x = 0; x < width; ++x) row.insert(row.end(), colour.begin(), colour.end());
  for (int y = 0; y < height; ++y) {
    std::uint8_t* line = row.data();
    jpeg_write_scanlines(&info, &line, 1);
  }
  jpeg_finish_compress(&info);
  jpeg_destroy_compress(&info);
  std::string out(reinterpret_cast<char*>(data), bytes);
  std::free(data);
  return out;
}

void expect_near(const Image& image, int width, int height, const std::array<int, 3>& colour, int tolerance) {
  ASSERT_EQ(image.width, width);
  ASSERT_EQ(image.height, height);
  ASSERT_EQ(image.pixels.size(), to_index(3 * width * height));
  for (std::size_t i = 0; i < image.pixels.size(); ++i)
    ASSERT_NEAR(image.pixels[i], colour[i % 3], tolerance) << "byte " << i;
}

TEST(ParseImage, ReadsEveryValueOfAPng) {
  const std::string values = "\x00\x01\x02\x10\x20\x30\xff\xfe\xfd\x80\x7f\x40"s;
  EXPECT_EQ(parse_image(png_bytes(2, 2, 2, values), "x.png"),
            (Image{.width = 2, .height = 2, .pixels = {0, 1, 2, 16, 32, 48, 255, 254, 253, 128, 127, 64}}));
}

TEST(ParseImage, ConvertsThePngsThatAreNotRgb) {
  const auto pixels = [](int type, const std::string& values, int bits = 8) {
    return parse_image(png_bytes(2, 1, type, values, bits), "x.png").pixels;
  };
  EXPECT_EQ(pixels(0, "\x07\xc8"s), (Pixels{7, 7, 7, 200, 200, 200}));
  EXPECT_EQ(pixels(4, "\x07\x00\xc8\xff"s), (Pixels{7, 7, 7, 200, 200, 200}));
  EXPECT_EQ(pixels(6, "\x01\x02\x03\x00\x04\x05\x06\xff"s), (Pixels{1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(pixels(0, "\x40"s, 1), (Pixels{0, 0, 0, 255, 255, 255}));
  // Two bits, 1 and 2 of 0..3: 85 and 170 of 0..255.
  EXPECT_EQ(pixels(0, "\x60"s, 2), (Pixels{85, 85, 85, 170, 170, 170}));
  // The high bytes of 16 bits.
  EXPECT_EQ(pixels(2, "\x01\xff\x02\xff\x03\xff\x04\x00\x05\x00\x06\x00"s, 16), (Pixels{1, 2, 3, 4, 5, 6}));
}

TEST(ParseImage, IgnoresGammaAndTransparentColours) {
  std::string bytes = png_bytes(1, 1, 2, "\x0a\x14\x1e"s);
  const std::size_t data = bytes.find("IDAT") - 4;
  bytes.insert(data, png_chunk("gAMA", png_number(100'000)) + png_chunk("tRNS", "\0\x0a\0\x14\0\x1e"s));
  EXPECT_EQ(parse_image(bytes, "x.png").pixels, (Pixels{10, 20, 30}));
}

// At quality 90 the constant part of a block is rounded to steps of 3 (16 and 17 times 20 %), an eighth of which is one
// of the mean: 3 / 2 / 8 = 0.19. Rounding to whole numbers adds 0.5 before and after. Blue has the largest
// factor, 1.772 of a colour difference: 0.7 + 1.772 * 0.7 + 0.5 = 2.5.
TEST(ParseImage, ReadsAJpegWithinItsQuality) {
  expect_near(parse_image(jpeg_bytes(19, 11, JCS_RGB, {200, 30, 90}, 90), "x.jpg"), 19, 11, {200, 30, 90}, 3);
  expect_near(parse_image(jpeg_bytes(5, 40, JCS_GRAYSCALE, {77}, 90), "x.jpg"), 5, 40, {77, 77, 77}, 1);
}

// Adobe's programs write CMYK inverted, 255 for no ink: red 250 * 220 / 255 = 215.7, green 128 * 220 / 255 = 110.4,
// blue 40 * 220 / 255 = 34.5. At quality 100 nothing but rounding is lost.
TEST(ParseImage, ReadsCmykAsAdobeWritesIt) {
  expect_near(parse_image(jpeg_bytes(9, 9, JCS_CMYK, {250, 128, 40, 220}, 100), "x.jpg"), 9, 9, {216, 110, 35}, 2);
}

TEST(ParseImage, SaysWhatItFound) {
  const auto expect = [](const std::string& bytes, const std::string& text) {
    EXPECT_THAT([&] { (void)parse_image(bytes, "a/b.jpg"); }, ThrowsMessage<FormatError>("a/b.jpg: " + text));
  };
  expect("", "empty, must be a JPEG or PNG image");
  expect("GIF89a...", "a GIF image, must be a JPEG or PNG image");
  expect("RIFF\x10\0\0\0WEBPVP8 "s, "a WebP image, must be a JPEG or PNG image");
  expect("<html>", "begins with 3c 68 74 6d, must be a JPEG or PNG image");
  expect(png_bytes(1, 1, 0, "\x01\x02"s, 16), "PNG image: 16-bit grey values, must be 8-bit");
  const std::string whole = png_bytes(2, 1, 0, "\x01\x02"s);
  expect(whole.substr(0, whole.size() - 20), "PNG image: ends too early");
  const std::string jpeg = jpeg_bytes(64, 64, JCS_RGB, {1, 2, 3}, 90);
  expect(jpeg.substr(0, jpeg.size() / 2), "JPEG image: Premature end of JPEG file");
}

TEST(ParseImage, RefusesAnImageThatWouldFillTheMemory) {
  std::string bytes = png_bytes(1, 1, 0, "\x01"s);
  const std::string header = png_number(100'000) + png_number(100'000) + "\x08\0\0\0\0"s;
  bytes.replace(8, 25, png_chunk("IHDR", header));
  EXPECT_THAT(
      [&] { (void)parse_image(bytes, "x.png"); },
      ThrowsMessage<FormatError>("x.png: PNG image: 100000 x 100000 pixels, must be at least 1 and at most 178956970"));
}

/// The images in tests/golden/images, which Pillow wrote.
std::vector<std::string> images_by_pillow() {
  std::vector<std::string> out;
  for (const auto& entry :
       std::filesystem::recursive_directory_iterator(source_folder() + "/tests/golden/images/classes"))
    if (entry.is_regular_file() && entry.path().extension() != ".txt") out.push_back(entry.path().string());
  std::ranges::sort(out);
  return out;
}

TEST(ParseImage, RefusesATruncatedImage) {
  ASSERT_EQ(images_by_pillow().size(), 14U);
  for (const std::string& path : images_by_pillow()) {
    const std::string whole = format::read_text(path);
    EXPECT_NO_THROW((void)parse_image(whole, path));
    // A JPEG without its last marker has all pixels, and its last byte may be padding.
    const std::size_t most = whole.size() - (path.ends_with(".png") ? 1 : 4);
    for (std::size_t bytes = 0; bytes <= most; bytes += bytes < 40 || most - bytes < 40 ? 1 : 7)
      EXPECT_THAT([&] { (void)parse_image(whole.substr(0, bytes), path); },
                  ThrowsMessage<FormatError>(StartsWith(path + ": ")))
          << bytes << " of " << whole.size() << " bytes";
  }
}

TEST(ParseImage, ReadsOrRefusesADamagedImage) {
  std::mt19937_64 random(7);
  int refused = 0;
  for (const std::string& path : images_by_pillow()) {
    const std::string whole = format::read_text(path);
    for (int i = 0; i < 300; ++i) {
      const std::string bytes = stagecraft::testing::mutated(whole, random, "x");
      try {
        const Image image = parse_image(bytes, path);
        EXPECT_EQ(image.pixels.size(), std::size_t{3} * to_index(image.width) * to_index(image.height));
      } catch (const FormatError& e) {
        EXPECT_THAT(e.what(), StartsWith(path + ": ")) << "seed 7, case " << i;
        ++refused;
      }
    }
  }
  EXPECT_GT(refused, 14 * 300 / 2);
}

}  // namespace
}  // namespace stagecraft::files
