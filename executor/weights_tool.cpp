#include <fmt/format.h>

#include <iostream>
#include <string>

#include "costmodel/command/tool.h"
#include "costmodel/format/files/outputs.h"
#include "costmodel/text/units_text.h"
#include "executor/checkpoint/checkpoint.h"
#include "executor/files/safetensors.h"
#include "executor/intake/layer_sources.h"
#include "executor/tool_options.h"

namespace {

namespace checkpoint = stagecraft::checkpoint;

struct Options {
  std::string checkpoint;
  std::string model;
  std::string output;
  bool no_ema = false;
  bool force = false;
};

int run(const Options& o) {
  const checkpoint::FoundCheckpoint found =
      checkpoint::checkpoint_at(o.checkpoint, [](const std::string& text) { std::cerr << text + "\n"; });
  const std::string name = o.model.empty() ? found.manifest.model : o.model;
  std::vector<std::string> inputs = checkpoint::file_paths(found);
  if (stagecraft::intake::is_model_file(name)) inputs.push_back(name);
  stagecraft::format::check_outputs(inputs, {{o.output, "safetensors file"}}, o.force);
  const auto model = [&] {
    try {
      return stagecraft::intake::build_model(name, found.manifest.options);
    } catch (const stagecraft::FormatError& e) {
      if (!o.model.empty()) throw;
      throw stagecraft::FormatError(
          fmt::format("{}; the checkpoint names this model file, --model names another", e.what()));
    }
  }();
  stagecraft::files::TensorFiles files(found.path, found.manifest);
  checkpoint::check_names(files, model, checkpoint::saved_optimizer(found.manifest));
  const bool averages = !o.no_ema && checkpoint::use_averages(files);
  const stagecraft::files::NamedTensors tensors =
      checkpoint::state_dict(files, model, stagecraft::intake::tied_names(name));
  const stagecraft::files::FileDigest written =
      stagecraft::files::write_safetensors(o.output, tensors, {{"format", "pt"}});
  std::cerr << fmt::format("{}: {} tensors{}, {}, after step {} of {}\n", o.output, tensors.size(),
                           averages ? " with moving averages" : "", stagecraft::format_bytes(written.bytes),
                           found.manifest.step, found.path);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  Options o;
  return stagecraft::run_computing_tool(
      {"weights", "Writes the trained weights of a checkpoint as a state dict of the model's own module.",
       "stagecraft weights saved -o model.safetensors\n"
       "  stagecraft weights saved/step-1000 -o model.safetensors\n\n"
       "In Python: model.load_state_dict(safetensors.torch.load_file(\"model.safetensors\"))"},
      argc, argv,
      [&](CLI::App& app) {
        app.add_option("CHECKPOINT", o.checkpoint, "checkpoint folder of stagecraft run, or one of its step-N folders")
            ->required();
        app.add_option("--model", o.model, "path of the model file, if it has moved since the run")->type_name("FILE");
        app.add_option("-o,--output", o.output, "output file, in the safetensors format")
            ->type_name("FILE")
            ->required();
        app.add_flag("--no-ema", o.no_ema, "write the trained parameters although the checkpoint has moving averages");
        stagecraft::add_force_option(app, o.force);
      },
      [&] { return run(o); });
}
