#include "executor/intake/pt2/pt2_archive.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <random>

#include "costmodel/errors.h"
#include "executor/intake/pt2/pt2_graph.h"
#include "tests/support/files/pt2_text.h"
#include "tests/support/places.h"
#include "tests/support/run_command.h"

namespace stagecraft::intake {
namespace {

using testing::archive_parts;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::replaced;
using ::testing::SizeIs;
using ::testing::ThrowsMessage;
using testing::zip_text;
using testing::ZipPart;

const std::string kNet = source_folder() + "/tests/golden/pt2/net.pt2";
const std::string kTied = source_folder() + "/tests/golden/pt2/tied.pt2";
constexpr const char* kWeights = "data/weights/model_weights_config.json";

class Pt2Archives : public ::testing::Test {
 protected:
  [[nodiscard]] std::string path() const { return (folder_.path() / "a.pt2").string(); }
  [[nodiscard]] Pt2Archive read(const std::vector<ZipPart>& parts) const {
    testing::write_bytes(path(), zip_text(parts));
    return read_pt2_archive(path());
  }
  void expect_refused(const std::vector<ZipPart>& parts, const std::string& message) const {
    EXPECT_THAT([&] { (void)read(parts); }, ThrowsMessage<FormatError>(HasSubstr(path() + ": " + message)));
  }
  /// The small archive with `from` replaced by `to` in record `name`.
  static std::vector<ZipPart> with(const std::string& name, const std::string& from, const std::string& to) {
    std::vector<ZipPart> parts = archive_parts();
    for (ZipPart& part : parts) {
      if (part.name == "net/" + name) part.bytes = replaced(part.bytes, from, to);
    }
    return parts;
  }
  static std::vector<ZipPart> without(const std::string& name) {
    std::vector<ZipPart> parts = archive_parts();
    std::erase_if(parts, [&](const ZipPart& part) { return part.name == "net/" + name; });
    return parts;
  }
  static std::vector<ZipPart> with_part(const ZipPart& part) {
    std::vector<ZipPart> parts = archive_parts();
    parts.push_back(part);
    return parts;
  }
  testing::CommandFolder folder_;
};

TEST_F(Pt2Archives, GiveProgramTensorsAndNotes) {
  const Pt2Archive archive = read(archive_parts());
  EXPECT_EQ(archive.root, "net");
  EXPECT_EQ(archive.model, "model");
  EXPECT_THAT(archive.program.graph.nodes, SizeIs(5));
  EXPECT_EQ(archive.tensors,
            (std::map<std::string, StoredTensor>{
                {"h.fc.weight", {"net/data/weights/weight_0", c10::kFloat, {2, 3}, {3, 1}, 0, true, true}},
                {"h.n", {"net/data/weights/weight_1", c10::kLong, {}, {}, 0, false, false}}}));
  ASSERT_TRUE(archive.notes.has_value());
  EXPECT_EQ(archive.notes->batch_symbol, "s77");
  ASSERT_THAT(archive.notes->inputs, SizeIs(1));
  EXPECT_EQ(archive.notes->inputs[0].batch_axis, 0);
  EXPECT_EQ(archive.notes->inputs[0].range, std::nullopt);
  EXPECT_EQ(archive.notes->samples, std::pair(std::int64_t{1}, std::int64_t{64}));
  EXPECT_EQ(archive.notes->loss_output, 0);
  EXPECT_THAT(archive.notes->tied, ElementsAre(ElementsAre("h.fc.weight", "h.n")));
  EXPECT_EQ(read(without("extra/stagecraft.json")).notes, std::nullopt);
  EXPECT_TRUE(archive.notes->training);
  EXPECT_FALSE(
      read(with("extra/stagecraft.json", R"("version": 1)", R"("version": 2, "training": false)")).notes->training);
}

TEST_F(Pt2Archives, AreReadAsPyTorchWritesThem) {
  const Pt2Archive archive = read_pt2_archive(kNet);
  EXPECT_EQ(archive.root, "net");
  const ProgramGraph& graph = archive.program.graph;
  std::vector<std::string> targets;
  for (const ProgramNode& node : graph.nodes) targets.push_back(node.target.substr(node.target.rfind("ops.") + 4));
  EXPECT_THAT(targets,
              ElementsAre("aten.sym_size.int", "aten.conv2d.default", "aten.add_.Tensor", "aten.batch_norm.default",
                          "aten.relu.default", "aten.flatten.using_ints", "aten.mul.Tensor", "aten.linear.default",
                          "aten.mul.Tensor", "aten.cross_entropy_loss.default", "aten.lift_fresh_copy.default",
                          "aten.detach_.default", "aten.mul.Tensor"));
  EXPECT_EQ(graph.nodes[1].modules.back().path, "conv");
  EXPECT_THAT(archive.tensors, SizeIs(11));
  EXPECT_EQ(archive.tensors.at("fc.weight").sizes, (std::vector<std::int64_t>{3, 144}));
  EXPECT_EQ(archive.tensors.at("scale").record, "net/data/constants/tensor_1");
  EXPECT_EQ(archive.program.ranges.at("s17"), std::pair(std::int64_t{1}, std::int64_t{64}));
  EXPECT_EQ(archive.notes->inputs[1].range, std::pair(std::int64_t{0}, std::int64_t{3}));
  // [1, 2], the constant in the model.
  const StoredTensor& constant = archive.tensors.at("lifted_tensor_0");
  const auto bytes = archive.zip->map(*archive.zip->find(constant.record), true);
  std::array<float, 2> values{};
  ASSERT_EQ(bytes->bytes().size(), sizeof values);
  std::memcpy(values.data(), bytes->bytes().data(), sizeof values);
  EXPECT_THAT(values, ElementsAre(1.0F, 2.0F));
}

TEST_F(Pt2Archives, TellWhichTensorsAreOne) {
  const Pt2Archive archive = read_pt2_archive(kTied);
  EXPECT_EQ(archive.tensors.at("head.weight"), archive.tensors.at("embedding.weight"));
  EXPECT_NE(archive.tensors.at("lstm.weight_ih_l0"), archive.tensors.at("lstm.weight_hh_l0"));
}

TEST_F(Pt2Archives, RefuseOtherContainers) {
  expect_refused(with("archive_format", "pt2", "pt3"), "archive_format: found \"pt3\", expected \"pt2\"");
  expect_refused(with("archive_version", "0", "1"), "archive_version: found \"1\", expected \"0\"");
  expect_refused(with("byteorder", "little", "big"), "byteorder: found \"big\", expected \"little\"");
  expect_refused(with("byteorder", "little", std::string(65, 'x')), "record \"net/byteorder\": found 65 bytes");
  expect_refused(without("archive_format"), "archive_format: is missing, expected an archive of torch.export.save");
  expect_refused(with_part({"other/file", ""}),
                 "found the folders \"net\" and \"other\", expected one for all records");
  expect_refused(with_part({"file", ""}), "record \"file\": is not in a folder");
  expect_refused({}, "is not a complete ZIP archive");
  expect_refused(without("models/model.json"), "found no models/*.json, expected one model: saving it may have failed");
  expect_refused(with_part({"net/models/second.json", "{}"}), "found 2 models, expected one: model, second");
}

TEST_F(Pt2Archives, RefuseDamageNamingTheRecord) {
  std::vector<ZipPart> parts = archive_parts();
  parts[4].crc = 1;
  expect_refused(parts, "record \"net/models/model.json\": found CRC ");
  parts = archive_parts();
  parts[0].method = 8;
  expect_refused(parts, "record \"net/data/weights/weight_0\": is compressed");
}

TEST_F(Pt2Archives, RefusePayloadsThatAreNoPlainTensors) {
  const std::string where = std::string(kWeights) + ": /config/h.fc.weight";
  expect_refused(with(kWeights, R"("use_pickle": false)", R"("use_pickle": true)"),
                 where + "/use_pickle: found a pickled payload, expected the plain bytes of a tensor");
  for (const char* name : {"../weight_0", "a/b", "", ".", "..", "weight 0", "w\\u00e9"}) {
    expect_refused(with(kWeights, R"("path_name": "weight_0")", std::string(R"("path_name": ")") + name + "\""),
                   where + "/path_name: found a payload \"");
  }
  expect_refused(with(kWeights, R"("path_name": "weight_0")", R"("path_name": "weight_9")"),
                 where + "/path_name: the archive has no record \"net/data/weights/weight_9\"");
  expect_refused(with(kWeights, R"("layout": 7)", R"("layout": 2)"),
                 where + "/tensor_meta/layout: found code 2, expected a strided layout");
  expect_refused(with(kWeights, R"("is_param": true, )", R"("is_param": true, "more": 1, )"),
                 where + ": unknown key \"more\"");
  expect_refused(
      with(kWeights, R"("sizes": [{"as_int": 2})", R"-("sizes": [{"as_expr": {"expr_str": "Symbol('s77')"}})-"),
      where + "/tensor_meta: found s77, expected a number of at least 0");
}

TEST_F(Pt2Archives, RefuseTensorsThatDoNotLieInTheirRecord) {
  const std::string where = std::string(kWeights) + ": /config/h.fc.weight: ";
  const std::string beyond = where + "the tensor exceeds the 24 bytes of record \"net/data/weights/weight_0\"";
  expect_refused(with(kWeights, R"("storage_offset": {"as_int": 0})", R"("storage_offset": {"as_int": 1})"), beyond);
  expect_refused(with(kWeights, R"("strides": [{"as_int": 3})", R"("strides": [{"as_int": 4})"), beyond);
  // 2^62 strides of 2^62 values overflow 64 bits to 0.
  expect_refused(with(kWeights, R"("sizes": [{"as_int": 2}, {"as_int": 3}])",
                      R"("sizes": [{"as_int": 4611686018427387905}, {"as_int": 1}])"),
                 beyond);
  expect_refused(with(kWeights, R"("strides": [{"as_int": 3})", R"("strides": [{"as_int": 9223372036854775807})"),
                 beyond);
  std::vector<ZipPart> parts = archive_parts();
  parts[0].bytes = "";
  expect_refused(parts, where + "the tensor exceeds the 0 bytes of record \"net/data/weights/weight_0\"");
}

// As torch.export.save writes parameters on the meta device: all share one empty record.
TEST_F(Pt2Archives, HaveShapesWithoutValues) {
  std::vector<ZipPart> parts = archive_parts();
  std::erase_if(parts, [](const ZipPart& part) { return part.name.starts_with("net/data/weights/weight_"); });
  parts.push_back({"net/data/weights/weight_0", ""});
  for (ZipPart& part : parts) {
    if (part.name != std::string("net/") + kWeights) continue;
    part.bytes = replaced(part.bytes, "weight_1", "weight_0");
    for (int tensor = 0; tensor < 2; ++tensor)
      part.bytes = replaced(part.bytes, R"("type": "cpu")", R"("type": "meta")");
  }
  const Pt2Archive archive = read(parts);
  for (const auto& [name, tensor] : archive.tensors) {
    EXPECT_FALSE(tensor.has_values) << name;
    EXPECT_EQ(tensor.record, archive.tensors.at("h.fc.weight").record);  // the notes call them tied
  }
  EXPECT_THAT([&] { (void)load_tensor(*archive.zip, archive.tensors.at("h.n")); },
              ThrowsMessage<InputError>(HasSubstr("a.pt2: has shapes but no weights")));
  std::erase_if(parts, [](const ZipPart& part) { return part.name == "net/extra/stagecraft.json"; });
  const Pt2Archive untied = read(parts);
  EXPECT_NE(untied.tensors.at("h.n").record, untied.tensors.at("h.fc.weight").record);
}

TEST_F(Pt2Archives, RefuseTensorsUnlikeTheProgram) {
  const std::string where = std::string(kWeights) + ": \"h.fc.weight\": ";
  expect_refused(with(kWeights, "h.fc.weight", "h.fc.bias"), where + "is missing, but the program reads it");
  expect_refused(without(kWeights), where + "is missing, but the program reads it");
  expect_refused(with(kWeights, R"("dtype": 7)", R"("dtype": 4)"), where + "found Int, expected Float");
  expect_refused(with(kWeights, R"("sizes": [{"as_int": 2})", R"("sizes": [{"as_int": 1})"),
                 where + "found sizes [1, 3], expected [2, 3]");
  expect_refused(
      with(kWeights, R"("strides": [{"as_int": 3}, {"as_int": 1}])", R"("strides": [{"as_int": 1}, {"as_int": 2}])"),
      where + "found strides [1, 2], expected [3, 1]");
  expect_refused(with(kWeights, R"("is_param": true)", R"("is_param": false)"), where + "is_param is false");
  const std::string constants = "data/constants/model_constants_config.json";
  expect_refused(with(constants, R"({})",
                      R"({"h.n": {"path_name": "tensor_0", "is_param": false, "use_pickle": false,
"tensor_meta": )" + testing::tensor_meta(R"([{"as_int": 0}])", R"([{"as_int": 1}])") +
                          "}}"),
                 constants + ": /config/h.n/path_name: the archive has no record \"net/data/constants/tensor_0\"");
}

TEST_F(Pt2Archives, RefuseNotesThatDoNotFit) {
  const std::string name = "extra/stagecraft.json";
  const auto refuse = [&](const std::string& from, const std::string& to, const std::string& message) {
    expect_refused(with(name, from, to), name + ": " + message);
  };
  refuse("stagecraft.pt2", "stagecraft.graph", "/format: found \"stagecraft.graph\", expected \"stagecraft.pt2\"");
  refuse(R"("version": 1)", R"("version": 4)", "/version: found version 4, this program reads version 1 to 3");
  refuse(R"("version": 1)", R"("version": 2, "training": 0)", "/training: found 0, expected true or false");
  refuse(R"("model")", R"("author")", "/: unknown key \"author\"");
  refuse(R"("batch_symbol": "s77")", R"("batch_symbol": "s1")", "/batch_symbol: the program has no symbol \"s1\"");
  refuse(R"("name": "x")", R"("name": "y")", "/inputs/0/name: unknown input \"y\", known are x");
  refuse(R"("batch_axis": 0)", R"("batch_axis": 2)", "/inputs/0/batch_axis: found 2, expected an integer from 0 to 1");
  refuse(R"("range": null)", R"("range": [3, 3])", "/inputs/0/range: found [3,3], expected a range that is not empty");
  refuse(R"("range": null)", R"("range": [3])", "/inputs/0/range: found [3], expected [from, to], to excluded");
  refuse(R"("least": 1)", R"("least": 0)", "/samples/least: found 0, expected an integer from 1");
  refuse(R"("least": 1)", R"("least": 65)", "/samples/most: found 64, expected an integer from 65");
  refuse(R"("loss_output": 0)", R"("loss_output": 3)", "/loss_output: found 3, expected an integer from 0 to 2");
  refuse(R"("loss_output": 0)", R"("loss_kind": "mean")", "/loss_kind: unknown kind \"mean\", known are sum, across");
  refuse(R"("loss_output": 0)", R"("loss_weight": {"count": "absent"})",
         "/loss_weight/count: the program has no value \"absent\"");
  refuse(R"("loss_output": 0)", R"("output_keys": ["scores"])",
         "/output_keys: found 1 keys, the program has 3 outputs");
  refuse(R"("h.n"]])", R"("h.m"]])", "/tied/0/1: unknown tensor \"h.m\", known are h.fc.weight, h.n");
}

TEST_F(Pt2Archives, MutatedGiveErrorsAndNeverAnythingElse) {
  constexpr std::uint64_t kSeed = 13;
  std::mt19937_64 random(kSeed);
  int refused = 0;
  for (int round = 0; round < 800; ++round) {
    std::vector<ZipPart> parts = archive_parts();
    for (std::uint64_t i = 0; i <= random() % 2; ++i) {
      // The program has a separate test.
      std::string& bytes = parts[std::vector<std::size_t>{2, 2, 2, 3, 5, 5, 6}[random() % 7]].bytes;
      const std::size_t at = random() % bytes.size();
      if (random() % 2 == 0) {
        bytes[at] = static_cast<char>(random());
      } else {
        bytes.replace(at, 1, std::to_string(random()));
      }
    }
    try {
      const Pt2Archive archive = read(parts);
      for (const auto& [name, tensor] : archive.tensors) {
        std::int64_t last = tensor.storage_offset;
        for (std::size_t i = 0; i < tensor.sizes.size(); ++i) last += (tensor.sizes[i] - 1) * tensor.strides[i];
        const auto values = archive.zip->find(tensor.record)->bytes / c10::elementSize(tensor.dtype);
        const bool empty = std::ranges::find(tensor.sizes, 0) != tensor.sizes.end();
        EXPECT_TRUE(empty || last < static_cast<std::int64_t>(values)) << "seed " << kSeed << " round " << round;
      }
    } catch (const FormatError&) { ++refused; }
  }
  EXPECT_GT(refused, 400) << "seed " << kSeed;
}

}  // namespace
}  // namespace stagecraft::intake
