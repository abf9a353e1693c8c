#include "costmodel/interchange/tensorboard.h"

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <protozero/pbf_reader.hpp>

namespace stagecraft::interchange {
namespace {

/// CRC-32C bit by bit, from its polynomial.
std::uint32_t slow_crc(const std::string& bytes) {
  std::uint32_t crc = 0xFFFFFFFF;
  for (const char character : bytes) {
    for (int bit = 0; bit < 8; ++bit) {
      const bool one = ((crc ^ (static_cast<unsigned char>(character) >> bit)) & 1) != 0;
      crc >>= 1;
      if (one) crc ^= 0x82F63B78;
    }
  }
  return ~crc;
}

/// The number in the bytes [begin, begin + count), least significant first.
std::uint64_t number_at(const std::string& bytes, std::size_t begin, std::size_t count) {
  std::uint64_t out = 0;
  for (std::size_t i = count; i-- > 0;) out = (out << 8) | static_cast<unsigned char>(bytes.at(begin + i));
  return out;
}

struct Read {
  double wall_time = 0;
  std::int64_t step = 0;
  std::string version;
  int session = 0;
  std::map<std::string, float> scalars;
};

/// The only record of `bytes`, with its frame checked.
Read read(const std::string& bytes) {
  const auto masked = [](std::uint32_t crc) {
    return static_cast<std::uint32_t>((crc >> 15 | crc << 17) + 0xA282EAD8);
  };
  const auto length = static_cast<std::size_t>(number_at(bytes, 0, 8));
  EXPECT_EQ(bytes.size(), 8 + 4 + length + 4);
  EXPECT_EQ(number_at(bytes, 8, 4), masked(slow_crc(bytes.substr(0, 8))));
  const std::string event = bytes.substr(12, length);
  EXPECT_EQ(number_at(bytes, 12 + length, 4), masked(slow_crc(event)));
  Read out;
  for (protozero::pbf_reader fields(event); fields.next();) {
    if (fields.tag() == 1) {
      out.wall_time = fields.get_double();
    } else if (fields.tag() == 2) {
      out.step = fields.get_int64();
    } else if (fields.tag() == 3) {
      out.version = fields.get_string();
    } else if (fields.tag() == 5) {
      for (protozero::pbf_reader summary = fields.get_message(); summary.next(1);) {
        std::string tag;
        float number = 0;
        for (protozero::pbf_reader value = summary.get_message(); value.next();) {
          if (value.tag() == 1) {
            tag = value.get_string();
          } else {
            EXPECT_EQ(value.tag(), 2U);
            number = value.get_float();
          }
        }
        out.scalars[tag] = number;
      }
    } else {
      EXPECT_EQ(fields.tag(), 7U);
      protozero::pbf_reader session = fields.get_message();
      EXPECT_TRUE(session.next(1));
      out.session = session.get_enum();
    }
  }
  return out;
}

TEST(Crc32c, IsThatOfTheStandards) {
  // RFC 3720, appendix B.4: 32 bytes of zeros, of ones, and ascending. The last is the usual check of the polynomial.
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8A9136AAU);
  EXPECT_EQ(crc32c(std::string(32, '\xFF')), 0x62A8AB43U);
  std::string ascending;
  for (char byte = 0; byte < 32; ++byte) ascending += byte;
  EXPECT_EQ(crc32c(ascending), 0x46DD794EU);
  EXPECT_EQ(crc32c("123456789"), 0xE3069283U);
  EXPECT_EQ(slow_crc("123456789"), 0xE3069283U);
}

TEST(TensorBoard, WritesTheVersionFirst) {
  const Read found = read(tensorboard_header(1.5));
  EXPECT_EQ(found.wall_time, 1.5);
  EXPECT_EQ(found.version, "brain.Event:2");
  EXPECT_TRUE(found.scalars.empty());
}

TEST(TensorBoard, WritesNumbersOfAStep) {
  const Read found = read(tensorboard_record(2.25, std::int64_t{1} << 40, {{"train/loss", 0.1}, {"a", -3e30}}));
  EXPECT_EQ(found.wall_time, 2.25);
  EXPECT_EQ(found.step, std::int64_t{1} << 40);
  EXPECT_EQ(found.scalars, (std::map<std::string, float>{{"a", -3e30F}, {"train/loss", 0.1F}}));
}

TEST(TensorBoard, SaysFromWhichStepOnAnEarlierFileIsObsolete) {
  const Read found = read(tensorboard_restart(3, 6));
  EXPECT_EQ(found.session, 1);
  EXPECT_EQ(found.step, 7);
}

}  // namespace
}  // namespace stagecraft::interchange
