#include "executor/files/torch_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "costmodel/errors.h"
#include "tests/executor/files/pickle_text.h"
#include "tests/support/files/mutated.h"

namespace stagecraft::files {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

TEST(StateDict, IsReadInEveryProtocolAndUnderItsUsualKeys) {
  const std::string value = tensor("0", 6, 1, {2, 2}, {2, 1});
  const std::map<std::string, PickledTensor> expected{{"w", {"0", at::kFloat, 6, 1, {2, 2}, {2, 1}}}};
  EXPECT_EQ(parse_state_dict(dict("w", value), "f"), expected);
  const std::string inner = "}" + short_text("w") + value + "s";
  EXPECT_EQ(parse_state_dict(dict("state_dict", inner), "f"), expected);
  EXPECT_EQ(parse_state_dict(dict("model", inner), "f"), expected);
  // What a module's get_extra_state returns is not a weight.
  const std::string extra = short_text("fc._extra_state") + "K\x03s";
  EXPECT_EQ(parse_state_dict(dict("model", inner + extra), "f"), expected);
  // Protocol 4: a frame, a class by the names on the stack, values memoized in order.
  const std::string framed = "\x80\x04\x95" + std::string(8, '\0') + short_text("collections") + "\x94" +
                             short_text("OrderedDict") + "\x94\x93\x94)R(" + short_text("w") + value + "u.";
  EXPECT_EQ(parse_state_dict(framed, "f"), expected);
}

TEST(StateDict, RefusesClassesAndFunctionsOfItsOwnAndNamesThem) {
  // What pickle.dumps writes for an object whose __reduce__ returns (os.system, ("echo hacked",)).
  const std::string hostile =
      "\x80\x02"
      "cposix\nsystem\n" +
      short_text("echo hacked") + "\x85R.";
  EXPECT_THAT(
      [&] { (void)parse_state_dict(hostile, "bad.pt"); },
      ThrowsMessage<FormatError>("bad.pt: byte 2 of the pickle: class or function \"posix.system\" is not needed by a "
                                 "state dict of tensors and is not executed; save only the state dict"));
  for (const std::string name : {"builtins\neval\n", "torch\nload\n", "__torch__.net\nNet\n", "torch._utils\n_f\n"}) {
    EXPECT_THAT([&] { (void)parse_state_dict(dict("w", "c" + name + ")R"), "f"); },
                ThrowsMessage<FormatError>(HasSubstr("is not executed")))
        << name;
  }
}

TEST(StateDict, NamesWhatIsWrong) {
  using namespace std::string_literals;
  const std::vector<std::pair<std::string, std::string>> cases{
      {"", "the pickle ends too early"},
      {"\x80\x02}", "the pickle ends too early"},
      {"\x80\x01}.", "found pickle protocol 1, expected 2 to 5"},
      {"\x80\x02i.", "found opcode 0x69, which state dicts do not use"},
      {"\x80\x02s.", "the stack is empty"},
      {"\x80\x02t.", "the stack is empty"},
      {"\x80\x02h\x07.", "value 7 is not in the memo"},
      {"\x80\x02K\x07.", "found an integer, expected a state dict"},
      {"\x80\x02}K\x01K\x02s.", "found an integer as a name"},
      {"\x80\x02}(K\x01u.", "found a key without a value"},
      {dict("w", "K\x01"), "\"w\": found an integer, expected a tensor"},
      {dict("w", tensor("0", 6, 0, {2, 4}, {4, 1})), "does not lie within its storage of 6 values"},
      {dict("w", tensor("0", 6, 3, {2, 2}, {2, 1})), "does not lie within its storage of 6 values"},
      {dict("w", tensor("0", 6, 0, {1000000, 1000000}, {0, 0})), "does not lie within its storage of 6 values"},
      {dict("w", tensor("0", 6, -1, {1}, {1})), "does not lie within its storage of 6 values"},
      {dict("w", tensor("0", 6, 0, {2}, {-1})), "found -1 in a shape or strides, must be at least 0"},
      {dict("w", tensor("0", 6, 0, {2}, {1, 1})), "found 1 sizes and 2 strides"},
      {dict("w", tensor("0", 6, 0, std::vector<int>(65, 1), std::vector<int>(65, 1))),
       "found 65 axes, expected at most"},
      {dict("w", tensor("0", 6, 0, {2}, {1}, "ComplexFloatStorage")), "\"torch.ComplexFloatStorage\""},
  };
  for (const auto& [pickle, message] : cases) {
    EXPECT_THAT([&] { (void)parse_state_dict(pickle, "f.pt"); }, ThrowsMessage<FormatError>(HasSubstr(message)));
  }
}

TEST(StateDict, MutatedGivesErrorsAndNeverAnythingElse) {
  constexpr std::uint64_t kSeed = 6;
  std::mt19937_64 random(kSeed);
  const std::string whole = "\x80\x02}q\x01(" + short_text("a") + tensor("0", 6, 1, {2, 2}, {2, 1}) + "q\x02" +
                            short_text("b") + "ctorch._utils\n_rebuild_parameter\n(h\x02\x88}tR" + short_text("c") +
                            tensor("1", 9, 0, {3, 3}, {1, 3}) + "u.";
  ASSERT_EQ(parse_state_dict(whole, "f").size(), 3U);
  int refused = 0;
  for (int round = 0; round < 100000; ++round) {
    const std::string text = testing::mutated(whole, random, ".");
    try {
      for (const auto& [name, tensor] : parse_state_dict(text, "f")) {
        std::int64_t last = tensor.offset;
        for (std::size_t i = 0; i < tensor.shape.size(); ++i) last += (tensor.shape[i] - 1) * tensor.strides[i];
        const bool empty = std::ranges::find(tensor.shape, 0) != tensor.shape.end();
        EXPECT_TRUE(empty || last < tensor.storage_values) << "seed " << kSeed << " round " << round;
      }
    } catch (const FormatError&) { ++refused; }
  }
  EXPECT_GT(refused, 50000) << "seed " << kSeed;
}

}  // namespace
}  // namespace stagecraft::files
