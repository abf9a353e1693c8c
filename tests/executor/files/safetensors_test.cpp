#include "executor/files/safetensors.h"

#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <c10/core/ScalarType.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <fstream>
#include <random>

#include "costmodel/errors.h"
#include "costmodel/format/files/files.h"
#include "costmodel/format/safetensors_header.h"
#include "tests/support/refused.h"
#include "tests/support/run_command.h"

namespace stagecraft::files {
namespace {

using stagecraft::testing::refused;
using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(SafetensorsDtypes, EveryAllowedNameHasATypeAndRoundTrips) {
  for (const std::string& word : format::safetensors_dtypes())
    EXPECT_EQ(safetensors_word(safetensors_type(word)), word);
}

TEST(SafetensorsDtypes, WordsSayTheWidth) {
  // F32, I64, BF16, ...: the number is the width in bits.
  for (const std::string& word : format::safetensors_dtypes()) {
    const std::size_t digit = word.find_first_of("0123456789");
    if (digit == std::string::npos) continue;  // BOOL
    EXPECT_EQ(c10::elementSize(safetensors_type(word)) * 8, std::stoul(word.substr(digit))) << word;
  }
  EXPECT_EQ(safetensors_type("F16"), at::kHalf);
  EXPECT_EQ(safetensors_type("BF16"), at::kBFloat16);
  EXPECT_EQ(safetensors_type("U8"), at::kByte);
  EXPECT_EQ(safetensors_type("I8"), at::kChar);
}

TEST(SafetensorsDtypes, OtherTypesHaveNoWord) {
  EXPECT_EQ(safetensors_word(at::kComplexDouble), std::nullopt);
  EXPECT_EQ(safetensors_word(at::kQInt8), std::nullopt);
}

TEST(SafetensorsDtypes, UnknownWordListsTheKnown) {
  EXPECT_THAT(refused([] { return safetensors_type("f32"); }), AllOf(HasSubstr("\"f32\""), HasSubstr("F32")));
}

using ::testing::ThrowsMessage;

class Safetensors : public ::testing::Test {
 protected:
  [[nodiscard]] std::string path(const std::string& name) const { return (folder_.path() / name).string(); }
  testing::CommandFolder folder_;
};

/// A file with a = [1, -2] as F32, built by hand from the format's description: 53 bytes of JSON and 3 spaces; 1 is
/// 0x3f800000 and -2 is 0xc0000000.
std::string file_by_hand() {
  using namespace std::string_literals;
  return "\x38\0\0\0\0\0\0\0"s + R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}  )" +
         "\0\0\x80\x3f\0\0\0\xc0"s;
}

TEST_F(Safetensors, AreTheBytesThatTheFormatDescribes) {
  ASSERT_EQ(file_by_hand().size(), 8U + 56U + 8U);
  write_safetensors(path("a"), {{"a", at::tensor({1.0F, -2.0F})}});
  EXPECT_EQ(folder_.read("a"), file_by_hand());
  folder_.write("b", file_by_hand());
  const SafetensorsFile file(path("b"));
  EXPECT_TRUE(at::equal(file.read("a"), at::tensor({1.0F, -2.0F})));
}

TEST_F(Safetensors, RoundTripInEveryDtype) {
  NamedTensors tensors;
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kHalf, at::kBFloat16, at::kLong, at::kInt, at::kShort,
                                     at::kChar, at::kByte, at::kBool}) {
    tensors[c10::toString(dtype)] = at::full({3, 1}, 1, at::TensorOptions().dtype(dtype));
    tensors[std::string("no ") + c10::toString(dtype)] = at::full({0, 2}, 1, at::TensorOptions().dtype(dtype));
    tensors[std::string("scalar ") + c10::toString(dtype)] = at::full({}, 1, at::TensorOptions().dtype(dtype));
  }
  tensors["turned"] = at::tensor({1.0F, 2.0F, 3.0F, 4.0F}).view({2, 2}).t();
  const FileDigest digest = write_safetensors(path("all"), tensors, {{"format", "pt"}});
  EXPECT_EQ(digest, file_digest(path("all")));
  const SafetensorsFile file(path("all"));
  EXPECT_EQ(file.header().metadata.at("format"), "pt");
  EXPECT_EQ(file.header().tensors.size(), tensors.size());
  for (const auto& [name, tensor] : tensors) {
    const at::Tensor found = file.read(name);
    EXPECT_EQ(found.scalar_type(), tensor.scalar_type()) << name;
    EXPECT_EQ(found.sizes(), tensor.sizes()) << name;
    EXPECT_TRUE(at::equal(found, tensor)) << name;
    // Larger values first, so that each offset is a multiple of the element's bytes.
    EXPECT_EQ(file.header().tensors.at(name).begin.value % tensor.element_size(), 0) << name;
  }
}

TEST_F(Safetensors, HaveTheChecksumOfZlib) {
  folder_.write("check", "123456789");
  // The standard check value of CRC-32.
  EXPECT_EQ(file_digest(path("check")), (FileDigest{9_B, 0xcbf43926}));
}

TEST_F(Safetensors, NameFileFoundAndWanted) {
  const std::string good = file_by_hand();
  std::string endless = good;
  endless[7] = '\x40';
  for (const auto& [text, message] : std::vector<std::pair<std::string, std::string>>{
           {"", "found 0 bytes, expected a safetensors file of at least 8"},
           {good.substr(0, 7), "found 7 bytes, expected a safetensors file of at least 8"},
           {good.substr(0, 40), "found a header of 56 bytes, expected at most 32"},
           {endless, "found a header of 4611686018427387960 bytes, expected at most 64"},
           {good.substr(0, good.size() - 1), "found 7 bytes after the header, expected 8"},
           {good + "x", "found 9 bytes after the header, expected 8"}}) {
    folder_.write("bad", text);
    EXPECT_THAT([&] { (void)SafetensorsFile(path("bad")); },
                ThrowsMessage<FormatError>(HasSubstr(path("bad") + ": " + message)));
  }
  folder_.write("good", good);
  EXPECT_THAT([&] { (void)SafetensorsFile(path("good")).read("b"); },
              ThrowsMessage<FormatError>(path("good") + ": unknown tensor \"b\", known are a"));
  EXPECT_THAT([&] { (void)SafetensorsFile(path("none")); },
              ThrowsMessage<FormatError>(path("none") + ": cannot read: No such file or directory"));
  EXPECT_THAT([&] { (void)SafetensorsFile(folder_.path().string()); }, ThrowsMessage<FormatError>(HasSubstr(": ")));
}

TEST_F(Safetensors, DetectATruncatedFile) {
  folder_.write("a", file_by_hand());
  const SafetensorsFile file(path("a"));
  std::filesystem::resize_file(path("a"), 68);
  EXPECT_THAT([&] { (void)file.read("a"); },
              ThrowsMessage<FormatError>(path("a") + ": tensor \"a\": the file was truncated"));
}

TEST_F(Safetensors, AreNeverReadOutsideTheirFileWhateverItHolds) {
  write_safetensors(path("seed"), {{"a", at::tensor({1.0F, -2.0F})}, {"b", at::tensor({1, 2, 3})}});
  const std::string seed = folder_.read("seed");
  std::mt19937_64 random(7);
  int taken = 0;
  constexpr int kRounds = 2000;
  for (int round = 0; round < kRounds; ++round) {
    std::string text = seed;
    for (std::size_t i = 0, changes = 1 + random() % 3; i < changes; ++i)
      text[random() % text.size()] = static_cast<char>(random());
    if (random() % 4 == 0) text.resize(random() % text.size());
    std::ofstream(path("changed"), std::ios::binary) << text;
    try {
      const SafetensorsFile file(path("changed"));
      for (const auto& [name, entry] : file.header().tensors)
        EXPECT_EQ(static_cast<std::int64_t>(file.read(name).nbytes()), (entry.end - entry.begin).value);
      ++taken;
    } catch (const FormatError&) {}
  }
  EXPECT_GT(taken, kRounds / 100);
  EXPECT_LT(taken, kRounds);
}

TEST_F(Safetensors, MayBeInAnyOfSeveralFiles) {
  write_safetensors(path("one"), {{"a", at::tensor({1.0F})}});
  write_safetensors(path("two"), {{"b", at::tensor({2.0F})}});
  const TensorFiles files({path("one"), path("two")});
  EXPECT_THAT(files.names(), ::testing::ElementsAre("a", "b"));
  EXPECT_EQ(files.path_of("b"), path("two"));
  EXPECT_TRUE(at::equal(files.read("b"), at::tensor({2.0F})));
  EXPECT_THAT([&] { (void)files.read("c"); },
              ThrowsMessage<FormatError>(HasSubstr("unknown tensor \"c\", known are a, b")));
  write_safetensors(path("three"), {{"a", at::tensor({1.0F})}});
  EXPECT_THAT([&] { (void)TensorFiles({path("one"), path("three")}); },
              ThrowsMessage<FormatError>(path("three") + ": tensor \"a\" is also in " + path("one")));
}

TEST_F(Safetensors, LeaveTheOldFileWhenTheDiskIsFull) {
  folder_.write("a", file_by_hand());
  // A limit on the file's length simulates a full disk: write fails half way.
  std::signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  rlimit small = before;
  small.rlim_cur = 4096;
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  EXPECT_THAT([&] { write_safetensors(path("a"), {{"a", at::full({4096}, 1.0)}}); },
              ThrowsMessage<FormatError>(path("a") + ": cannot write: File too large"));
  setrlimit(RLIMIT_FSIZE, &before);
  EXPECT_EQ(folder_.read("a"), file_by_hand());
  EXPECT_THAT([&] { write_safetensors(path("nowhere/a"), {}); },
              ThrowsMessage<FormatError>(path("nowhere/a") + ": cannot write: No such file or directory"));
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder_.path()))
    files += entry.path().filename().string().starts_with("a") ? 1 : 0;
  EXPECT_EQ(files, 1) << "nothing is left beside it";
}

}  // namespace

}  // namespace stagecraft::files
