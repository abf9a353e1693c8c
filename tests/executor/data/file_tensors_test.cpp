#include "executor/data/file_tensors.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/tensor.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "costmodel/errors.h"
#include "executor/files/safetensors.h"
#include "tests/support/run_command.h"

namespace stagecraft::data {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

at::Tensor bytes_of(const at::Tensor& values) { return values.unsqueeze(-1).contiguous().view(at::kByte); }

TEST(ValuesOutside, GivesThePartWithTheFirstOne) {
  // The limits are [least, end).
  const at::Tensor values = at::tensor({3, 9, 4, 5}, at::TensorOptions().dtype(at::kInt));
  EXPECT_FALSE(values_outside(bytes_of(values), at::kInt, 3, 10));
  const auto too_large = values_outside(bytes_of(values), at::kInt, 3, 9);
  ASSERT_TRUE(too_large);
  EXPECT_EQ(too_large->first, 0);
  EXPECT_TRUE(too_large->second.equal(values.to(at::kLong)));
  EXPECT_TRUE(values_outside(bytes_of(values), at::kInt, 4, 10)) << "3 is too small";
  EXPECT_FALSE(values_outside(bytes_of(values.narrow(0, 0, 0)), at::kInt, 0, 1)) << "there are none";
}

TEST(ValuesOutside, LooksAtAMillionAtATime) {
  // Two parts of 2^20 values and one of three, the last of which is too large.
  constexpr std::int64_t million = std::int64_t{1} << 20;
  const at::Tensor values = at::arange(2 * million + 3, at::TensorOptions().dtype(at::kLong));
  const auto found = values_outside(bytes_of(values), at::kLong, 0, 2 * million + 2);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->first, 2 * million);
  EXPECT_TRUE(found->second.equal(at::arange(2 * million, 2 * million + 3, at::TensorOptions().dtype(at::kLong))));
}

TEST(ValuesOutside, ReadsBytesWithoutASign) {
  const at::Tensor values = at::tensor({200, 255}, at::TensorOptions().dtype(at::kByte));
  EXPECT_FALSE(values_outside(bytes_of(values), at::kByte, 200, 256));
  EXPECT_TRUE(values_outside(bytes_of(values), at::kByte, 0, 255));
}

class FileTensors : public ::testing::Test {
 protected:
  [[nodiscard]] std::string path(const std::string& name) const { return (folder_.path() / name).string(); }
  /// Writes a vector of int32 as a .npy file of version 1.
  void write_npy(const std::string& name, const std::vector<std::int32_t>& values) const {
    const std::string text =
        "{'descr': '<i4', 'fortran_order': False, 'shape': (" + std::to_string(values.size()) + ",)}\n";
    std::string out("\x93NUMPY\x01\x00", 8);
    out += static_cast<char>(text.size());
    out += '\0';
    out += text + std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(values[0]));
    std::ofstream(path(name), std::ios::binary) << out;
  }
  static std::int32_t first_of(const FileTensor& tensor) {
    return tensor.bytes(tensor.shape).narrow(0, 0, 1).clone().view(at::kInt).item<std::int32_t>();
  }

  testing::CommandFolder folder_;
  std::vector<model::ModelInput> inputs_{{.name = "x", .dtype = "int32", .shape = {}},
                                         {.name = "y", .dtype = "int32", .shape = {}}};
};

TEST_F(FileTensors, AreThoseOfTheInputsInTheirOrder) {
  write_npy("x.npy", {1, 2, 3});
  write_npy("y.npy", {4, 5});
  inputs_[1].batch_axis = std::nullopt;
  const files::NamedTensors tensors{{"x", at::tensor({1, 2, 3}, at::TensorOptions().dtype(at::kInt))},
                                    {"y", at::tensor({4, 5}, at::TensorOptions().dtype(at::kInt))}};
  files::write_safetensors(path("both.safetensors"), tensors);
  for (const std::string& where :
       {folder_.path().string(), "y=" + path("y.npy") + ",x=" + path("x.npy"), path("both.safetensors")}) {
    const std::vector<FileTensor> found = open_tensors("tensors", where, inputs_);
    ASSERT_EQ(found.size(), 2U) << where;
    EXPECT_THAT(found[0].shape, ElementsAre(3)) << where;
    EXPECT_THAT(found[1].shape, ElementsAre(2)) << where;
    EXPECT_EQ(first_of(found[0]), 1) << where;
    EXPECT_EQ(first_of(found[1]), 4) << where;
    EXPECT_EQ(found[0].sample_axis, 0) << where;
    EXPECT_EQ(found[1].sample_axis, std::nullopt) << where << ": the same for all samples";
  }
}

TEST_F(FileTensors, StayMappedAfterTheFileIsRemoved) {
  write_npy("x.npy", {7, 8});
  const FileTensor tensor = open_npy(path("x.npy"));
  std::filesystem::remove(path("x.npy"));
  EXPECT_EQ(tensor.dtype, at::kInt);
  EXPECT_THAT(tensor.bytes({2}).sizes(), ElementsAre(2, 4)) << "with an axis of the bytes of a value";
  EXPECT_EQ(first_of(tensor), 7);
}

TEST_F(FileTensors, ComeFromAFileWhoseNameLooksLikeAList) {
  files::write_safetensors(path("a=b"), {{"x", at::tensor({5}, at::TensorOptions().dtype(at::kInt))}});
  EXPECT_EQ(first_of(open_tensors("tensors", path("a=b"), {inputs_[0]}).front()), 5);
  EXPECT_THAT(tensor_files("tensors", path("a=b")), ElementsAre(path("a=b")));
}

TEST_F(FileTensors, NameTheirFiles) {
  write_npy("y.npy", {1});
  write_npy("x.npy", {1});
  std::ofstream(path("notes.txt")) << "not an array";
  EXPECT_THAT(tensor_files("tensors", folder_.path().string()), ElementsAre(path("x.npy"), path("y.npy")));
  EXPECT_THAT(tensor_files("tensors", "y=b.npy,x=a.npy"), ElementsAre("a.npy", "b.npy")) << "by name of the input";
  EXPECT_THAT(tensor_files("tensors", "d.safetensors"), ElementsAre("d.safetensors"));
}

TEST_F(FileTensors, RefuseAListThatNamesAnInputTwiceOrNotAtAll) {
  write_npy("x.npy", {1});
  EXPECT_THAT([&] { (void)open_tensors("tensors", "x=a.npy,x=b.npy", inputs_); },
              ThrowsMessage<std::invalid_argument>("data source tensors: \"x\" appears twice"));
  EXPECT_THAT([&] { (void)open_tensors("tensors", "x=" + path("x.npy"), inputs_); },
              ThrowsMessage<InputError>(HasSubstr("data source tensors: no file for input \"y\"; listed are x")));
  for (const char* word : {"=a.npy", "x=", "x"})
    EXPECT_THAT([&] { (void)open_tensors("tensors", std::string("z=c.npy,") + word, inputs_); },
                ThrowsMessage<std::invalid_argument>(HasSubstr(std::string("found \"") + word + "\"")));
}

TEST_F(FileTensors, RefuseAnEmptyAndAMissingFile) {
  std::ofstream(path("empty.npy")).close();
  EXPECT_THAT([&] { (void)open_npy(path("empty.npy")); }, ThrowsMessage<FormatError>(HasSubstr("empty.npy: is empty")));
  EXPECT_THAT([&] { (void)open_npy(path("missing.npy")); },
              ThrowsMessage<FormatError>(HasSubstr("missing.npy: cannot read: No such file or directory")));
}

}  // namespace
}  // namespace stagecraft::data
