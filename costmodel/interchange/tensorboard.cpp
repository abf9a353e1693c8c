#include "costmodel/interchange/tensorboard.h"

#include <array>
#include <protozero/pbf_builder.hpp>

namespace stagecraft::interchange {
namespace {

// Field numbers of event.proto and summary.proto.
enum class Event : protozero::pbf_tag_type { WallTime = 1, Step = 2, FileVersion = 3, Summary = 5, SessionLog = 7 };
enum class SessionLog : protozero::pbf_tag_type { Status = 1 };
enum class Summary : protozero::pbf_tag_type { Value = 1 };
enum class Value : protozero::pbf_tag_type { Tag = 1, SimpleValue = 2 };

/// SessionLog.SessionStatus.START.
constexpr std::int32_t kStart = 1;

constexpr std::array<std::uint32_t, 256> crc_table() {
  constexpr std::uint32_t kReversedPolynomial = 0x82F63B78;
  std::array<std::uint32_t, 256> out{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? kReversedPolynomial : 0);
    out[byte] = crc;
  }
  return out;
}

/// The least significant byte first.
template <class T>
std::string little_endian(T value) {
  std::string out;
  for (std::size_t i = 0; i < sizeof value; ++i) out += static_cast<char>((value >> (8 * i)) & 0xFF);
  return out;
}

/// TFRecord rotates checksums and adds a constant, so that a checksum of data that hold checksums stays useful.
std::string checksum(std::string_view bytes) {
  const std::uint32_t crc = crc32c(bytes);
  return little_endian(((crc >> 15) | (crc << 17)) + 0xA282EAD8U);
}

std::string record(const std::string& event) {
  const std::string length = little_endian(static_cast<std::uint64_t>(event.size()));
  return length + checksum(length) + event + checksum(event);
}

}  // namespace

std::uint32_t crc32c(std::string_view bytes) {
  static constexpr std::array<std::uint32_t, 256> kTable = crc_table();
  std::uint32_t crc = 0xFFFFFFFF;
  for (const char character : bytes) crc = (crc >> 8) ^ kTable[(crc ^ static_cast<unsigned char>(character)) & 0xFF];
  return crc ^ 0xFFFFFFFF;
}

std::string tensorboard_header(double wall_time) {
  std::string event;
  protozero::pbf_builder<Event> builder(event);
  builder.add_double(Event::WallTime, wall_time);
  builder.add_string(Event::FileVersion, "brain.Event:2");
  return record(event);
}

std::string tensorboard_restart(double wall_time, std::int64_t step) {
  std::string event;
  {
    protozero::pbf_builder<Event> builder(event);
    builder.add_double(Event::WallTime, wall_time);
    builder.add_int64(Event::Step, step + 1);
    protozero::pbf_builder<SessionLog> session(builder, Event::SessionLog);
    session.add_enum(SessionLog::Status, kStart);
  }
  return record(event);
}

std::string tensorboard_record(double wall_time, std::int64_t step, const std::vector<TensorBoardScalar>& scalars) {
  std::string event;
  {
    protozero::pbf_builder<Event> builder(event);
    builder.add_double(Event::WallTime, wall_time);
    builder.add_int64(Event::Step, step);
    protozero::pbf_builder<Summary> summary(builder, Event::Summary);
    for (const TensorBoardScalar& scalar : scalars) {
      protozero::pbf_builder<Value> value(summary, Summary::Value);
      value.add_string(Value::Tag, scalar.tag);
      value.add_float(Value::SimpleValue, static_cast<float>(scalar.value));
    }
  }
  return record(event);
}

}  // namespace stagecraft::interchange
