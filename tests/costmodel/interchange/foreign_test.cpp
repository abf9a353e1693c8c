#include "costmodel/interchange/foreign.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <stdexcept>

#include "costmodel/format/files/files.h"
#include "costmodel/format/files/outputs.h"
#include "tests/support/places.h"

namespace stagecraft::interchange {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

const std::string kGolden = source_folder() + "/tests/golden/";

/// An example file of `format`.
SourceFile example(const std::string& format) {
  static const std::map<std::string, std::string> paths{
      {"dnn-partitioning", source_folder() + "/tests/data/dnn-partitioning/bert24_inference.json"},
      {"nccl-tests", kGolden + "nccl/all_reduce_perf.txt"},
      {"nccl-topology", kGolden + "nccl/topology.xml"},
      {"pipedream", kGolden + "pipedream/vgg16.txt"},
      {"piper", source_folder() + "/tests/data/piper/two_layers.json"}};
  return {format::read_text(paths.at(format)), paths.at(format)};
}

TEST(ForeignFormats, AreSortedByName) {
  std::vector<std::string> names;
  for (const ForeignFormat& format : foreign_formats()) {
    names.push_back(format.name);
    EXPECT_EQ(&find_format(foreign_formats(), format.name), &format);
    EXPECT_FALSE(format.what.empty());
  }
  EXPECT_TRUE(std::ranges::is_sorted(names));
}

TEST(ForeignFormats, ReadTheirFilesAndNoOthers) {
  for (const ForeignFormat& format : foreign_formats()) {
    const auto read = format.read({example(format.name)});
    EXPECT_EQ(std::holds_alternative<Graph>(read), format.what.ends_with(": a graph")) << format.name;
    if (format.name == "dnn-partitioning" || format.name == "piper") { EXPECT_TRUE(format.read_units); }
    for (const ForeignFormat& other : foreign_formats()) {
      if (other.name == format.name) continue;
      EXPECT_THROW((void)format.read({example(other.name)}), std::runtime_error) << format.name << " " << other.name;
    }
  }
}

TEST(ForeignFormats, GiveBackWhatTheyCanWrite) {
  int written = 0;
  for (const ForeignFormat& format : foreign_formats()) {
    if (!format.write) continue;
    ++written;
    const Graph graph = std::get<Graph>(format.read({example(format.name)}));
    const std::string text = format.write(graph);
    EXPECT_NE(format::text_kind(text), "") << format.name << ": outputs.cpp does not know how it begins";
    EXPECT_EQ(std::get<Graph>(format.read({{text, "again"}})).layers, graph.layers) << format.name;
    EXPECT_EQ(format.write(std::get<Graph>(format.read({{text, "again"}}))), text) << format.name;
  }
  EXPECT_GE(written, 1);
}

TEST(ForeignFormats, OfOneFileRefuseSeveralAndNone) {
  for (const char* name : {"nccl-topology", "pipedream"}) {
    const ForeignFormat& format = find_format(foreign_formats(), name);
    EXPECT_THAT([&] { (void)format.read({example(name), example(name)}); },
                ThrowsMessage<std::invalid_argument>(HasSubstr("2 files")));
    EXPECT_THAT([&] { (void)format.read({}); }, ThrowsMessage<std::invalid_argument>(HasSubstr("0 files")));
  }
}

TEST(FindFormat, ListsTheKnownNamesForAnotherOne) {
  const std::vector<ForeignFormat> formats{{"wheat", "a grain", {}, {}}, {"rye", "another", {}, {}}};
  EXPECT_EQ(find_format(formats, "rye").what, "another");
  EXPECT_THAT([&] { (void)find_format(formats, "oats"); },
              ThrowsMessage<std::invalid_argument>(AllOf(HasSubstr("\"oats\""), HasSubstr("wheat, rye"))));
}

TEST(FormatList, NamesEachWithWhatItIs) {
  EXPECT_EQ(format_list({{"wheat", "a grain", {}, {}}, {"rye", "another", {}, {}}}), "wheat (a grain), rye (another)");
  EXPECT_EQ(format_list({}), "");
}

}  // namespace
}  // namespace stagecraft::interchange
