#include "executor/intake/torchscript/torchscript_graph.h"

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/zeros_like.h>
#include <caffe2/serialize/inline_container.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <random>
#include <set>
#include <sstream>
#include <stdexcept>

#include "costmodel/errors.h"
#include "costmodel/index.h"
#include "executor/files/safetensors.h"
#include "executor/intake/layer_sources.h"
#include "executor/run/binding/check.h"
#include "tests/support/places.h"
#include "tests/support/refused.h"

namespace stagecraft::intake {
namespace {

using stagecraft::testing::refused;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(ParseModelInput, ReadsTypeAndShapeOfOneSample) {
  const model::ModelInput image = parse_model_input("x", "float32[3,224,224]");
  EXPECT_EQ(image.name, "x");
  EXPECT_EQ(image.dtype, "float32");
  EXPECT_THAT(image.shape, ElementsAre(3, 224, 224));
  EXPECT_EQ(image.batch_axis, 0);
  EXPECT_THAT(parse_model_input("y", "int64[]").shape, IsEmpty());
}

TEST(ParseModelInput, ReadsTheBatchAxis) {
  EXPECT_EQ(parse_model_input("x", "float32[3,5]:batch_axis=1").batch_axis, 1);
  EXPECT_EQ(parse_model_input("x", "float32[3,5]:batch_axis=2").batch_axis, 2) << "behind the last";
  EXPECT_EQ(parse_model_input("x", "bool[4]:batch_axis=none").batch_axis, std::nullopt);
}

TEST(ParseModelInput, QuotesAnInvalidInput) {
  for (const auto& [text, found] :
       std::vector<std::pair<std::string, std::string>>{{"", "sizes"},
                                                        {"float32", "sizes"},
                                                        {"]float32[", "sizes"},
                                                        {"float[3]", "\"float\""},
                                                        {"float32[3,]", "comma"},
                                                        {"float32[,3]", "\"\""},
                                                        {"float32[0]", "\"0\""},
                                                        {"float32[-3]", "\"-3\""},
                                                        {"float32[3x]", "\"3x\""},
                                                        {"float32[2147483649]", "\"2147483649\""},
                                                        {"float32[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]", "sizes"},
                                                        {"float32[3]x", "\"x\""},
                                                        {"float32[3]:batch_axis=", "batch axis"},
                                                        {"float32[3]:batch_axis=2", "batch axis \"2\""},
                                                        {"float32[3]:batch_axis=-1", "batch axis \"-1\""}}) {
    EXPECT_THAT(
        refused([&, text = text] { return parse_model_input("tokens", text); }),
        AllOf(HasSubstr("\"tokens\""), HasSubstr('"' + text + '"'), HasSubstr(found), HasSubstr("float32[3,224,224]")))
        << text;
  }
}

using ::testing::Not;

const std::string kGolden = source_folder() + "/tests/golden/torchscript/";
const std::map<std::string, std::string> kImage{
    {"input.x", "float32[3,8,8]"}, {"input.target", "int64[]"}, {"range.target", "0..4"}};
const std::map<std::string, std::string> kVector{{"input.x", "float32[8]"}, {"input.target", "int64[]"}};

std::vector<std::string> layer_names(const model::Model& model) {
  std::vector<std::string> out;
  for (const model::LayerSpec& layer : model.layers) out.push_back(layer.name);
  return out;
}

/// Plain SGD over the layers of a model: as a whole, or with every layer separated from the others like a stage.
class Trainer {
 public:
  Trainer(const model::Model& model, bool cut) : model_(model), cut_(cut) {
    for (const model::LayerSpec& layer : model.layers) {
      for (const model::ParameterSpec& spec : layer.parameters) {
        if (!tensors.contains(spec.name))
          tensors[spec.name] = model::initial_value(spec, 0).requires_grad_(spec.trainable);
      }
    }
  }

  at::Tensor microbatch(const std::vector<at::Tensor>& inputs, std::int64_t step, int number) {
    std::vector<std::vector<at::Tensor>> given(model_.layers.size()), given_grads(model_.layers.size());
    std::vector<std::vector<std::pair<model::ValueRef, at::Tensor>>> received(model_.layers.size());
    // A value's or parameter's gradients from several layers are added from the last layer on, like autograd, before
    // they are added to those of other microbatches.
    std::vector<std::vector<std::pair<std::string, at::Tensor>>> leaves(model_.layers.size());
    std::map<std::string, at::Tensor> sums;
    for (std::size_t l = 0; l < model_.layers.size(); ++l) {
      const model::LayerSpec& layer = model_.layers[l];
      std::vector<at::Tensor> arguments, parameters, buffers;
      for (const model::ValueRef& ref : layer.inputs) {
        if (ref.layer < 0) {
          arguments.push_back(inputs.at(to_index(ref.input)));
          continue;
        }
        at::Tensor value = given[to_index(ref.layer)][to_index(ref.output)];
        if (cut_) {
          value = value.detach().requires_grad_(value.requires_grad());
          received[l].emplace_back(ref, value);
        }
        arguments.push_back(value);
      }
      for (const model::ParameterSpec& spec : layer.parameters) {
        at::Tensor tensor = tensors[spec.name];
        if (cut_ && spec.trainable) leaves[l].emplace_back(spec.name, tensor = tensor.detach().requires_grad_());
        (spec.trainable ? parameters : buffers).push_back(tensor);
      }
      given[l] = layer.forward({.inputs = arguments,
                                .parameters = parameters,
                                .buffers = buffers,
                                .training = true,
                                .seed = 7,
                                .step = step,
                                .microbatch = number});
      given_grads[l].resize(given[l].size());
    }
    given_grads.back()[0] = at::ones_like(given.back()[0]);
    for (std::size_t l = cut_ ? model_.layers.size() : 1; l-- > 0;) {
      const std::size_t from = cut_ ? l : model_.layers.size() - 1;
      std::vector<at::Tensor> roots, grads;
      for (std::size_t o = 0; o < given[from].size(); ++o) {
        if (!given_grads[from][o].defined() || !given[from][o].requires_grad()) continue;
        roots.push_back(given[from][o]);
        grads.push_back(given_grads[from][o]);
      }
      if (!roots.empty()) torch::autograd::backward(roots, grads);
      for (const auto& [ref, value] : received[from]) {
        if (!value.grad().defined()) continue;
        at::Tensor& grad = given_grads[to_index(ref.layer)][to_index(ref.output)];
        grad = grad.defined() ? grad.add(value.grad()) : value.grad();
      }
    }
    for (auto layer = leaves.rbegin(); layer != leaves.rend(); ++layer) {
      for (const auto& [name, tensor] : *layer) {
        if (!tensor.grad().defined()) continue;
        at::Tensor& sum = sums[name];
        sum = sum.defined() ? sum.add(tensor.grad()) : tensor.grad();
      }
    }
    for (const auto& [name, sum] : sums) {
      at::Tensor& grad = tensors[name].mutable_grad();
      grad = grad.defined() ? grad.add(sum) : sum;
    }
    return given.back()[0].detach();
  }

  void update(double learning_rate, int microbatches) {
    const at::NoGradGuard no_grad;
    for (auto& [name, tensor] : tensors) {
      if (!tensor.requires_grad() || !tensor.grad().defined()) continue;
      at::Tensor grad = tensor.mutable_grad();
      grad.div_(microbatches);
      tensor.add_(grad, -learning_rate);
      tensor.mutable_grad() = at::Tensor();
    }
  }

  std::map<std::string, at::Tensor> tensors;

 private:
  const model::Model& model_;
  bool cut_;
};

/// All results of a training, by name.
using Trained = std::map<std::string, at::Tensor>;

/// Trains `model` like the record, on the record's data.
Trained trained(const model::Model& model, const files::SafetensorsFile& record, bool cut) {
  Trained out;
  Trainer trainer(model, cut);
  const at::Tensor losses = record.read("loss");
  at::Tensor computed = at::zeros_like(losses);
  for (std::int64_t step = 0; step < losses.size(0); ++step) {
    for (std::int64_t m = 0; m < losses.size(1); ++m) {
      std::vector<at::Tensor> inputs;
      for (const model::ModelInput& input : model.inputs)
        inputs.push_back(record.read(input.name).narrow(0, (step * losses.size(1) + m) * 2, 2).clone());
      computed[step][m] = trainer.microbatch(inputs, step, to_int(m));
    }
    for (const auto& [key, tensor] : trainer.tensors) {
      if (tensor.grad().defined()) out["gradient." + std::to_string(step) + "/" + key] = tensor.grad().clone();
    }
    trainer.update(0.1, to_int(losses.size(1)));
  }
  out["loss"] = computed;
  std::set<std::string> constants;
  for (const model::LayerSpec& layer : model.layers) {
    for (const model::ParameterSpec& spec : layer.parameters) {
      if (spec.constant) constants.insert(spec.name);
    }
  }
  for (const auto& [key, tensor] : trainer.tensors) {
    if (!constants.contains(key)) out[(tensor.requires_grad() ? "parameter/" : "buffer/") + key] = tensor.detach();
  }
  return out;
}

/// Trains like the record, as a whole and with every layer separated. Separation changes no bit; the record was made on
/// another processor and agrees within rounding (train_as_python.* makes records on this machine and compares bits).
void expect_as_python(const std::string& name, const std::map<std::string, std::string>& settings) {
  const model::Model model = build_model(kGolden + name + ".pt", settings);
  const files::SafetensorsFile record(kGolden + name + ".safetensors");
  const Trained whole = trained(model, record, false);
  const Trained cut = trained(model, record, true);
  EXPECT_GE(whole.size(), 3U * 8);
  ASSERT_EQ(whole.size(), cut.size());
  std::map<std::string, std::vector<run::ComparedTensor>> compared;  // by kind of tensor
  for (const auto& [key, tensor] : whole) {
    EXPECT_TRUE(at::equal(tensor, cut.at(key))) << key << " of the cut model";
    const std::size_t slash = std::min(key.find('/'), key.size() - 1);
    compared[key.substr(0, slash)].push_back({key, 0, tensor, record.read(key)});
  }
  run::Check check;
  check.tolerance = run::kOtherKernelsTolerance;
  check.other_kernels = true;
  for (const auto& [what, tensors] : compared) run::compare_tensors(tensors, check);
  EXPECT_TRUE(run::is_close(check)) << run::check_text(check);
}

TEST(TorchScript, TrainsATracedModelAsPythonDoes) {
  at::set_num_threads(1);  // like the record
  expect_as_python("cnn_traced", kImage);
}

TEST(TorchScript, TrainsAScriptedModelWithControlFlowAsPythonDoes) {
  at::set_num_threads(1);
  expect_as_python("control_flow_scripted", kVector);
}

TEST(TorchScript, MakesLayersOfModules) {
  EXPECT_THAT(layer_names(build_model(kGolden + "cnn_traced.pt", kImage)),
              ElementsAre("model.stem", "model.blocks.0", "model.blocks.1", "model.head"));
  EXPECT_THAT(layer_names(build_model(kGolden + "control_flow_scripted.pt", kVector)),
              ElementsAre("model.first", "model.gates.0", "model.gates.1", "model.gates.2", "model.norm", "model.drop",
                          "model.head"));
}

TEST(TorchScript, KnowsHowStatisticsMove) {
  const model::Model model = build_model(kGolden + "cnn_traced.pt", kImage);
  std::map<std::string, std::optional<double>> decays;
  for (const model::ParameterSpec& spec : model.layers.at(1).parameters) {
    EXPECT_FALSE(spec.written) << spec.name;
    if (!spec.trainable && !spec.constant) decays[spec.name] = spec.decay;
  }
  // A momentum of 0.1 keeps 0.9 of the old value; the count keeps all of it.
  EXPECT_THAT(decays, ::testing::UnorderedElementsAre(::testing::Pair("model.blocks.0.norm.running_mean", 1 - 0.1),
                                                      ::testing::Pair("model.blocks.0.norm.running_var", 1 - 0.1),
                                                      ::testing::Pair("model.blocks.0.norm.num_batches_tracked", 1.0)));
}

TEST(TorchScript, FindsTheClassesOfATarget) {
  // The head of the model gives 4 scores.
  const model::Model model = build_model(kGolden + "control_flow_scripted.pt", kVector);
  EXPECT_EQ(model.inputs.at(1).name, "target");
  EXPECT_EQ(model.inputs.at(1).classes, 4);
}

template <class F>
std::string message_of(F&& call) {
  try {
    call();
  } catch (const std::exception& e) { return e.what(); }
  return "no exception";
}

TEST(TorchScript, RefusesARangeBeyondTheClasses) {
  std::map<std::string, std::string> settings = kImage;
  settings["range.target"] = "0..5";
  EXPECT_THAT(message_of([&] { (void)build_model(kGolden + "cnn_traced.pt", settings); }),
              HasSubstr("has 4 classes; found range 0..5 of input \"target\", expected one that ends at 4 or before "
                        "(upper end excluded)"));
}

TEST(TorchScript, AsksForInputsThatTheFileDoesNotTell) {
  EXPECT_THAT(message_of([] { (void)build_model(kGolden + "cnn_traced.pt", {{"input.x", "float32[3,8,8]"}}); }),
              HasSubstr("input \"target\" is not described in the file; forward takes x, target"));
  auto settings = kImage;
  settings["input.y"] = "float32[1]";
  EXPECT_THAT(message_of([&] { (void)build_model(kGolden + "cnn_traced.pt", settings); }),
              HasSubstr("unknown input \"y\""));
  settings = kImage;
  settings["input.x"] = "float32[3,8";
  EXPECT_THAT(message_of([&] { (void)build_model(kGolden + "cnn_traced.pt", settings); }),
              HasSubstr("input \"x\" is \"float32[3,8\": found no sizes, expected TYPE[SIZES]"));
  // The head takes 4 by 4, an 8 by 8 image after pooling, but not 8 by 8.
  settings["input.x"] = "float32[3,16,16]";
  EXPECT_THAT(message_of([&] { (void)build_model(kGolden + "cnn_traced.pt", settings); }),
              HasSubstr("fails on 2 samples: mat1 and mat2 shapes cannot be multiplied"));
}

TEST(TorchScript, SaysWhatAStateDictIs) {
  EXPECT_THAT(
      message_of([] { (void)build_model(source_folder() + "/tests/golden/torch/weights.pt", {}); }),
      HasSubstr("contains tensors but no model, as written by torch.save(model.state_dict()); pass it as --weights"));
}

/// An archive whose only code is `code`.
std::string archive_with(const std::string& code) {
  const std::string path = ::testing::TempDir() + "stagecraft_script.pt";
  caffe2::serialize::PyTorchStreamWriter writer(path);
  writer.writeRecord("data.pkl", "\x80\x02N.", 4);
  writer.writeRecord("constants.pkl", "\x80\x02).", 4);
  writer.writeRecord("code/__torch__.py", code.data(), code.size(), /*compress=*/true);
  writer.writeEndOfFile();
  return path;
}

TEST(TorchScript, RefusesCodeThatWouldRunOrReachFurther) {
  const auto refusal = [](const std::string& code) {
    const std::string path = archive_with(code);
    return message_of([&] { (void)build_model(path, {}); });
  };
  EXPECT_THAT(refusal("class A(Module):\n  def __setstate__(self, state: int) -> NoneType:\n    return None\n"),
              HasSubstr("code/__torch__.py\": defines __setstate__, which would run while the file is loaded"));
  EXPECT_THAT(refusal("  x = ops.torchvision.nms(boxes)\n"),
              HasSubstr("uses operators of \"torchvision\", which is a Python library"));
  EXPECT_THAT(refusal("  x : __torch__.torch.classes.dnnl.Thing\n"), HasSubstr("uses a class of a C++ library"));
  EXPECT_THAT(refusal("  torch.save(x, \"/etc/passwd\")\n"),
              HasSubstr("calls torch.save, which reads or writes files"));
  EXPECT_THAT(refusal("nonsense"), HasSubstr("LibTorch cannot load this TorchScript file: "));
  EXPECT_THAT(refusal("nonsense"), Not(HasSubstr("\n")));
}

TEST(TorchScript, SurvivesDamage) {
  std::ifstream in(kGolden + "control_flow_scripted.pt", std::ios::binary);
  std::stringstream text;
  text << in.rdbuf();
  const std::string whole = text.str();
  const std::string path = ::testing::TempDir() + "stagecraft_damaged.pt";
  std::mt19937 random(1);  // the same damage each time
  int refused = 0;
  for (int round = 0; round < 200; ++round) {
    std::string damaged = whole;
    for (int flips = 0; flips <= round % 3; ++flips)
      damaged[random() % damaged.size()] ^= static_cast<char>(1 << random() % 8);
    if (round % 10 == 9) damaged.resize(random() % damaged.size());
    std::ofstream(path, std::ios::binary) << damaged;
    try {
      (void)build_model(path, kVector);
    } catch (const FormatError&) { ++refused; }
  }
  // Only a change in the padding of records may go unnoticed.
  EXPECT_GT(refused, 60);
}

}  // namespace

}  // namespace stagecraft::intake
