#include "costmodel/prediction/microbatch_size.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>

#include "tests/support/chains.h"

namespace stagecraft {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

/// Two layers, measured with `samples` samples: 1 s and 0.5 s a sample forward, twice that backward, each and 2 s more.
Graph measured(std::int64_t samples) {
  const auto n = static_cast<double>(samples);
  Graph out = testing::chain_graph({2 + n, 2 + 0.5 * n}, {2 + 2 * n, 2 + n}, Bytes(12 * samples), Bytes(100));
  out.microbatch_samples = samples;
  for (Layer& layer : out.layers) {
    layer.forward.spread = Seconds(0.1 * n);
    layer.forward.count = samples;
    layer.outputs[0].shape = {samples, 3};
    layer.saved_bytes = Bytes(20 * samples + 8);
    layer.update = Timing{Seconds(0.25 * n), {}, 0, {}};
    layer.forward_work = Work{Flops(6 * n), Bytes(40 * samples), samples};
  }
  out.iteration = Timing{Seconds(10 + 5 * n), {}, 0, {}};
  out.provenance.tool = "test";
  return out;
}

TEST(MicrobatchSize, IsLinearBetweenTwoProfiles) {
  const ResizedGraph out = graph_of_samples({measured(16), measured(4)}, 8);
  EXPECT_FALSE(out.extrapolated);
  EXPECT_EQ(out.origin, "interpolated between profiles with microbatches of 4 and 16 samples");
  const Graph& graph = out.graph;
  EXPECT_EQ(graph.provenance.notes.at("microbatch"), out.origin);
  EXPECT_EQ(graph.microbatch_samples, 8);
  const Layer& layer = graph.layers[1];
  EXPECT_DOUBLE_EQ(layer.forward.median.value, 6);
  EXPECT_DOUBLE_EQ(layer.backward.median.value, 10);
  EXPECT_DOUBLE_EQ(layer.forward.spread->value, 0.8);
  EXPECT_EQ(layer.forward.count, 4) << "no more than the smaller count";
  EXPECT_EQ(layer.outputs[0].bytes, Bytes(96));
  EXPECT_EQ(layer.outputs[0].shape, (std::vector<std::int64_t>{8, 3}));
  EXPECT_EQ(layer.saved_bytes, Bytes(168));
  EXPECT_EQ(layer.parameter_bytes, Bytes(100));
  EXPECT_DOUBLE_EQ(layer.forward_work->flops.value, 48);
  EXPECT_EQ(layer.forward_work->moved, Bytes(320));
  EXPECT_EQ(layer.forward_work->operators, 4) << "of the nearest, 4 and not 16";
  EXPECT_DOUBLE_EQ(layer.update->median.value, 1);
  EXPECT_DOUBLE_EQ(graph.iteration->median.value, 50);
  validate(graph);
}

TEST(MicrobatchSize, TakesTheTwoNearestOfSeveral) {
  Graph odd = measured(16);
  for (Layer& layer : odd.layers) layer.forward.median = Seconds(100);
  // From 8 on: (2 + 8) and 100 s; half of the way.
  EXPECT_DOUBLE_EQ(graph_of_samples({measured(4), odd, measured(8)}, 12).graph.layers[0].forward.median.value, 55);
  EXPECT_DOUBLE_EQ(graph_of_samples({measured(4), odd, measured(8)}, 6).graph.layers[0].forward.median.value, 8);
}

TEST(MicrobatchSize, ContinuesTheLineAndSaysSo) {
  for (const std::int64_t samples : {2, 32}) {
    const ResizedGraph out = graph_of_samples({measured(4), measured(16)}, samples);
    EXPECT_TRUE(out.extrapolated);
    EXPECT_EQ(out.origin, "extrapolated from profiles with microbatches of 4 and 16 samples");
    EXPECT_DOUBLE_EQ(out.graph.layers[0].forward.median.value, 2 + static_cast<double>(samples));
    EXPECT_FALSE(out.graph.layers[0].forward.spread);
    EXPECT_EQ(out.graph.layers[0].forward.count, 0);
    EXPECT_EQ(out.graph.layers[0].update->median, Seconds(samples == 2 ? 1 : 4));
  }
  Graph steep = measured(16);
  steep.layers[0].forward.median = Seconds(100);  // 6 s with 4 samples: -9.7 s with 2
  EXPECT_EQ(graph_of_samples({measured(4), steep}, 2).graph.layers[0].forward.median, Seconds(0));
}

TEST(MicrobatchSize, ReturnsAProfileOfThatSizeAsItIs) {
  EXPECT_EQ(graph_of_samples({measured(4), measured(16)}, 16).graph, measured(16));
  EXPECT_EQ(graph_of_samples({measured(4)}, 4).graph, measured(4));
}

TEST(MicrobatchSize, RefusesProfilesThatDoNotBelongTogether) {
  const auto refused = [](std::vector<Graph> profiles, const std::string& why) {
    EXPECT_THAT([&] { (void)graph_of_samples(std::move(profiles), 8); },
                ThrowsMessage<std::invalid_argument>(HasSubstr(why)));
  };
  refused({measured(4)}, "there is only the profile with microbatches of 4; times of 8 samples need a profile with");
  refused({measured(4), measured(4)}, "two profiles with microbatches of 4 samples");
  Graph other = measured(16);
  other.microbatch_samples.reset();
  refused({measured(4), other}, "does not give the samples");
  other = measured(16);
  other.name = "resnet";
  refused({measured(4), other}, "the profile with microbatches of 16 has a different model from the profile with");
  other = measured(16);
  other.device.name = "H200";
  refused({measured(4), other}, "a different device");
  other = measured(16);
  other.layers[1].id = "conv";
  refused({measured(4), other}, "has layer \"conv\" where the profile with microbatches of 4 has \"l1\"");
  other = measured(16);
  other.layers[1].parameter_bytes = Bytes(4);
  refused({measured(4), other}, "parameters in layer \"l1\"");
  other = measured(16);
  other.layers[0].outputs[0].shape[1] = 4;
  refused({measured(4), other}, "dimension 1 of an output of layer \"l0\" would be 3.33");
}

}  // namespace
}  // namespace stagecraft
