#include "costmodel/format/results/steps_json.h"

#include <fmt/format.h>

#include <set>

#include "costmodel/fnv.h"
#include "costmodel/format/description.h"

namespace stagecraft::format {
namespace {

Notation<StartedTraining> started_training() {
  return object<StartedTraining>(
             {
                 required("hash", &StartedTraining::hash, text(), "Hash of everything that makes it another training."),
                 required("length", &StartedTraining::length, integer(1, kMany), "Steps or epochs."),
             },
             "The training that the step began, which it may continue.")
      .named("training");
}

Notation<StepRecord> step_record() {
  return object<StepRecord>(
             {
                 required("name", &StepRecord::name, text(), "Name of the step, which no other step has."),
                 required("command", &StepRecord::command, text(), "Its command, without what changes no result."),
                 required("version", &StepRecord::version, text(), "Version of the tools."),
                 required("ended", &StepRecord::ended, boolean(), "False: it began, and failed or was interrupted."),
                 required("inputs", &StepRecord::inputs, text_map(),
                          "Hash of each file that it read; of files of data, their bytes and time of change."),
                 required("outputs", &StepRecord::outputs, text_map(), "Hash of each file that it wrote."),
                 optional("training", &StepRecord::training, started_training()),
             },
             "A step: what it was done with, and what it left.")
      .named("step");
}

struct Steps {
  std::vector<StepRecord> steps;
};

const Document<Steps>& steps_document() {
  static const Document<Steps> document(
      {.name = "steps",
       .version = 1,
       .title = "Steps",
       .help = "What stagecraft auto has done of a project, so that it resumes where it stopped."},
      {required("steps", &Steps::steps, list(step_record()),
                "The steps that were done, in the order of their last time.")},
      [](const Cursor& root, Steps& read) {
        std::set<std::string> names;
        for (const StepRecord& step : read.steps) {
          if (!names.insert(step.name).second) root.fail("step \"" + step.name + "\" appears twice");
        }
      });
  return document;
}

}  // namespace

std::string text_hash(const std::string& text) { return fmt::format("{:016x}", fnv1a(text)); }

std::string steps_json(const std::vector<StepRecord>& steps) { return steps_document().text({steps}); }
std::vector<StepRecord> parse_steps(const std::string& text, const std::string& file) {
  return steps_document().parse(text, file).steps;
}
DocumentSchema steps_schema() { return steps_document().schema(); }

}  // namespace stagecraft::format
