#include "profiler/memory/measured_memory.h"

#include <gtest/gtest.h>

namespace stagecraft::profiler {
namespace {

/// Three layers, the last of which returns a loss of 4 bytes.
std::vector<Layer> three_layers() {
  std::vector<Layer> out(3);
  out[0].outputs = {{Bytes(1000), {250}, "float32", true}};
  out[1].outputs = {{Bytes(1000), {250}, "float32", true}};
  out[2].outputs = {{Bytes(4), {}, "float32", true}};
  return out;
}

void expect_saved(const std::vector<Layer>& layers, const std::vector<std::int64_t>& bytes) {
  ASSERT_EQ(layers.size(), bytes.size());
  for (std::size_t i = 0; i < bytes.size(); ++i) EXPECT_EQ(layers[i].saved_bytes, Bytes(bytes[i])) << i;
}

TEST(FillLayerBytes, CountsLossAndItsGradientBesideEarlierBackwards) {
  std::vector<Layer> layers = three_layers();
  // Layer 0: 100 + 90 + the loss and its gradient, 8. Layer 1: 100 + 50 + 30 + 8. Layer 2: 100 + 50 + 10 + 20.
  EXPECT_EQ(fill_layer_bytes(layers, {100, 50, 10}, {90, 30, 20}), Bytes(198));
  expect_saved(layers, {100, 50, 10});
  EXPECT_EQ(layers[0].workspace_bytes, Bytes(90));
  EXPECT_EQ(layers[1].workspace_bytes, Bytes(30));
  EXPECT_EQ(layers[2].workspace_bytes, Bytes(20));
  // The last layer's own backward already includes both: 100 + 50 + 10 + 39.
  EXPECT_EQ(fill_layer_bytes(layers, {100, 50, 10}, {90, 30, 39}), Bytes(199));
}

TEST(FillLayerBytes, TakesWhatALayerReleasesOffTheLayersAfterIt) {
  std::vector<Layer> layers = three_layers();
  // Layer 1 releases 30, so only 20 of layer 2's 50 add to what layer 0 left.
  EXPECT_EQ(fill_layer_bytes(layers, {100, -30, 50}, {0, 0, 0}), Bytes(120));
  expect_saved(layers, {100, 0, 20});
  // The rest of the release carries over to the next layer: -30 + 20 + 15 = 5.
  (void)fill_layer_bytes(layers, {-30, 20, 15}, {0, 0, 0});
  expect_saved(layers, {0, 0, 5});
}

TEST(FillLayerBytes, HasNoNegativeWorkspace) {
  std::vector<Layer> layers = three_layers();
  (void)fill_layer_bytes(layers, {1, 1, 1}, {-5, 0, 0});
  EXPECT_EQ(layers[0].workspace_bytes, Bytes(0));
}

}  // namespace
}  // namespace stagecraft::profiler
