#pragma once

#include <map>
#include <string>
#include <vector>

namespace stagecraft {

/// A built-in model with options that make it small.
struct Small {
  std::string name;
  std::map<std::string, std::string> set;
};

/// Every built-in model, each at a size that takes well under a second. A new model needs an entry, which the suite of
/// layer sources requires.
inline std::vector<Small> small_models() {
  return {
      {"mlp", {{"width", "8"}}},
      {"convnet", {{"channels", "4"}}},
      {"alexnet", {{"image", "63"}, {"width", "16"}}},
      {"vgg16", {{"image", "32"}, {"channels", "4"}, {"width", "16"}, {"classes", "10"}}},
      {"resnet18", {{"image", "32"}, {"channels", "4"}, {"classes", "10"}}},
      {"resnet50", {{"image", "32"}, {"channels", "4"}, {"classes", "10"}}},
      {"gnmt",
       {{"layers", "4"}, {"hidden", "8"}, {"vocabulary", "16"}, {"source_sequence", "3"}, {"target_sequence", "4"}}},
      {"transformer",
       {{"layers", "2"},
        {"width", "16"},
        {"heads", "2"},
        {"vocabulary", "16"},
        {"feedforward", "8"},
        {"sequence", "4"}}},
      {"gpt", {{"layers", "2"}, {"width", "16"}, {"heads", "2"}, {"vocabulary", "16"}, {"sequence", "4"}}}};
}

}  // namespace stagecraft
