#include "costmodel/errors.h"

#include <fmt/format.h>

#include <algorithm>
#include <new>
#include <sstream>

namespace stagecraft {

ErrorKind kind_of(const std::exception& error) {
  if (const auto* const with_kind = dynamic_cast<const HasErrorKind*>(&error)) return with_kind->kind();
  if (dynamic_cast<const std::invalid_argument*>(&error) != nullptr) return ErrorKind::BadInput;
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) return ErrorKind::OutOfMemory;
  return ErrorKind::Unexpected;
}

namespace {

/// As nearest_name; nothing if it takes more than `most` edits.
std::optional<std::string> nearest_within(std::size_t most, const std::string& name,
                                          const std::vector<std::string>& known) {
  std::optional<std::string> nearest;
  std::size_t fewest = most + 1;
  for (const std::string& candidate : known) {
    // Optimal string alignment: edits[i][j] for the first i characters of `name` and the first j of the candidate.
    std::vector<std::vector<std::size_t>> edits(name.size() + 1, std::vector<std::size_t>(candidate.size() + 1));
    for (std::size_t i = 0; i <= name.size(); ++i) {
      for (std::size_t j = 0; j <= candidate.size(); ++j) {
        if (i == 0 || j == 0) {
          edits[i][j] = i + j;
          continue;
        }
        const bool same = name[i - 1] == candidate[j - 1];
        edits[i][j] = std::min({edits[i - 1][j] + 1, edits[i][j - 1] + 1, edits[i - 1][j - 1] + (same ? 0 : 1)});
        if (i > 1 && j > 1 && name[i - 1] == candidate[j - 2] && name[i - 2] == candidate[j - 1]) {
          edits[i][j] = std::min(edits[i][j], edits[i - 2][j - 2] + 1);
        }
      }
    }
    if (edits.back().back() < fewest) {
      fewest = edits.back().back();
      nearest = candidate;
    }
  }
  return nearest;
}

}  // namespace

std::optional<std::string> nearest_name(const std::string& name, const std::vector<std::string>& known) {
  return nearest_within(std::max<std::size_t>(1, name.size() / 3), name, known);
}

std::string unknown_name(std::string_view what, std::string_view name, const std::vector<std::string>& known) {
  std::string out = "unknown " + std::string(what) + " \"" + std::string(name) + "\", ";
  // Among short names, one letter makes another word (tpu, cpu); what is longer than any name is no misspelling.
  if (name.size() >= 4 && name.size() <= 64) {
    const std::size_t most = name.size() < 6 ? 1 : 2;
    if (const auto nearest = nearest_within(most, std::string(name), known)) out += "did you mean " + *nearest + "? ";
  }
  out += "known are ";
  for (std::size_t i = 0; i < known.size(); ++i) out += (i ? ", " : "") + known[i];
  if (known.empty()) out += "none";
  return out;
}

std::string joined_words(const std::vector<std::string>& words, const std::string& conjunction) {
  std::string out;
  for (std::size_t i = 0; i < words.size(); ++i)
    out += (i == 0 ? "" : i + 1 < words.size() ? ", " : " " + conjunction + " ") + words[i];
  return out;
}

namespace {

using enum ErrorKind;

std::vector<ErrorArea> make_catalogue() {
  return {
      {"The command line",
       {{WrongUsage, "SC1001", "the command line is wrong", "The options and arguments cannot be read as a command.",
         "See the options of the command with `stagecraft help COMMAND`."},
        {UnknownOption, "SC1002", "unknown option or argument",
         "The command has no such option, or takes fewer arguments.",
         "See the options of the command with `stagecraft help COMMAND`. Quote values that contain spaces."},
        {MissingOption, "SC1003", "a required option or argument is missing", "The command cannot work without it.",
         "Add it; `stagecraft help COMMAND` shows an example."},
        {OptionConflict, "SC1004", "two options exclude or need each other",
         "Both were given but only one may be, or one was given without the other that it needs.",
         "Remove one of the two, or add the missing one; the message names both."},
        {WrongValue, "SC1005", "the value of an option is not allowed here",
         "It has the wrong form, is outside its range, or does not suit the other options.",
         "Use a value that the message allows. `stagecraft help COMMAND` shows the values of each option."},
        {UnknownCommand, "SC1006", "unknown command",
         "This build has no program stagecraft-COMMAND. A build without LibTorch has no `profile`, `run` or `links`.",
         "Use one of the commands that the message lists, or build the others with `scripts/setup`."},
        {NothingBuilt, "SC1007", "nothing was built yet",
         "scripts/stagecraft found no programs in build/ or in STAGECRAFT_BIN.",
         "Run `scripts/setup`, or set STAGECRAFT_BIN to the folder with the programs."}}},
      {"Files",
       {{CannotRead, "SC1101", "a file or folder cannot be read",
         "It does not exist, is not of the expected kind (file or folder), or you have no permission to read it.",
         "Check the path and its permissions; the message ends with the system's reason."},
        {CannotWrite, "SC1102", "a file or folder cannot be written",
         "The folder does not exist or is not writable, or the disk is full. Files are written under a temporary name "
         "and then renamed, so an old file is left unchanged.",
         "Create the folder, free space, or use another path; the message ends with the system's reason."},
        {WouldOverwrite, "SC1103", "a file would be overwritten",
         "The output is also an input, is the output of another option, or exists and stagecraft did not write it.",
         "Use another name, or `--force` to replace the file."},
        {DamagedFile, "SC1104", "a file is damaged",
         "It ends too early, a checksum does not match, or its own parts contradict each other.",
         "Copy or write the file again. Programs of stagecraft leave no half-written files, so it was damaged later."},
        {OtherDocument, "SC1105", "a file is not the expected document or version",
         "A plan was given in place of a graph, say, or the file comes from a newer version of stagecraft.",
         "Check the order of the arguments. Read newer files with the version that wrote them."}}},
      {"Documents",
       {{BadDocument, "SC1201", "a value in a file is wrong",
         "It has the wrong type, is outside its range, or contradicts another value. The message gives the place as "
         "a JSON pointer or a line.",
         "Correct the value there; docs/formats.md describes each document, and `stagecraft schema` prints schemas "
         "that let an editor check it."},
        {NotJson, "SC1202", "a file is not JSON",
         "It is empty, is not JSON at the line and column given, or has a key twice.",
         "Correct it there. Comments and trailing commas are not JSON."},
        {MissingKey, "SC1203", "a key is missing in a file",
         "The object at the place given lacks a key that it must have.",
         "Add the key; docs/formats.md lists the keys of each document."},
        {UnknownKey, "SC1204", "unknown key in a file",
         "It is misspelled, belongs elsewhere, or comes from a newer version. Unknown keys are errors, because a "
         "misspelled one would be ignored silently.",
         "Use one of the keys that the message lists, or remove it."},
        {BadProject, "SC1205", "a project file is wrong",
         "A key of the TOML file is unknown or has a wrong value. The message gives line and column.",
         "Correct the line. `stagecraft init` writes a file with all keys explained."}}},
      {"Graphs, topologies and plans",
       {{BadInput, "SC2001", "an input is invalid",
         "A graph, topology, plan, model or option has a value that the rest of the input rules out.",
         "The message says where, what was found and what would be right. `stagecraft doctor FILE...` finds more such "
         "mistakes."},
        {UnknownName, "SC2002", "unknown name", "No layer, level, schedule, model, card or other thing has this name.",
         "Use one of the names that the message lists."},
        {UntrustedProfile, "SC2003", "a profile cannot be trusted",
         "Its times spread too much, other programs used the processors, or its layers do not add up to the whole "
         "iteration.",
         "Profile again on a quiet machine, with a larger `--max-seconds`. To use it as it is, add "
         "`--accept-untrusted`."},
        {OtherDevice, "SC2004", "the graph was measured on another device",
         "Its times come from a kind of device that the topology does not have, such as a processor's times for a "
         "cluster of GPUs.",
         "Profile on such a device (`stagecraft profile MODEL --device cuda`), turn the times into estimates "
         "(`stagecraft estimate graph.json --device CARD -o other.json`), or accept them with "
         "`--accept-other-device`."},
        {NoTimes, "SC2005", "the graph has no times",
         "It was made with `profile --structure` or imported without times.",
         "Profile the model, or estimate its times with `stagecraft estimate`."},
        {OtherModel, "SC2006", "two files do not belong together",
         "A plan has layers that the graph lacks, or devices that the topology lacks; or a measurement is of another "
         "plan.",
         "Use the graph and topology from which the plan was made, or plan again."},
        {ScheduleMismatch, "SC2007", "the schedule cannot run this plan",
         "The numbers of stages, chunks, replicas or microbatches are not possible with it, or it needs what the plan "
         "does not have.",
         "Change the number that the message names, or choose another schedule; docs/planning.md compares them."},
        {NoCountedWork, "SC2008", "a layer's operations and bytes were not counted",
         "`stagecraft estimate` needs the work of each layer, which the graph does not contain.",
         "Make the graph with this version of `stagecraft profile --structure`, and without `--without-work`."},
        {UntrustedLinks, "SC2009", "measured links cannot be trusted",
         "Other programs used the processors while the topology's links were measured, or the times of the same "
         "message differ too much.",
         "Measure the links again on a quiet machine, with a larger `--seconds`. To use them as they are, add "
         "`--accept-untrusted`."}}},
      {"No answer",
       {{NoPlan, "SC2101", "no plan meets the constraints",
         "No division of the layers satisfies the given stages, replicas, pins and devices.",
         "Loosen a constraint; `stagecraft plan --explain` says which ones bind."},
        {DoesNotFit, "SC2102", "no plan fits in memory",
         "Even the smallest plan may need more memory than a device has.",
         "The message names the smallest changes that fit: more devices, smaller or fewer microbatches in flight, "
         "`--recompute`, a smaller dtype, or another optimizer."},
        {Unprovable, "SC2103", "a plan cannot be proved correct",
         "`stagecraft verify` found a deadlock, an action that is missing or out of order, or a send without its "
         "receive.",
         "Correct the action lists at the place given, or let `stagecraft plan` write them."},
        {TooSlow, "SC2104", "no plan is fast enough", "The fastest plan that fits is slower than `--min-throughput`.",
         "Lower `--min-throughput`, add devices, or compare schedules with `--schedule best`."}}},
      {"Models",
       {{NotAModel, "SC3001", "a file is not a model",
         "It is neither an archive of torch.export nor of TorchScript; a state dict has weights but no model.",
         "Export the module with `stagecraft export-model`, and pass weights with `--weights`."},
        {UnsupportedModel, "SC3002", "a model has a part that cannot be exported or divided into layers",
         "It has an operator that needs Python, a branch or shape that depends on data, or an aliased value that "
         "stages cannot pass on, or it computes differently when exported. The message names the place, if possible "
         "the line of your Python code.",
         "Change the module there, or export it as the message says; docs/models.md lists what is supported."},
        {WrongMicrobatch, "SC3003", "the model does not take microbatches of this size",
         "It was exported for a fixed or a limited batch size.",
         "Export it with a dynamic batch size, or use a microbatch of the size that the message names."}}},
      {"Data",
       {{DataMismatch, "SC3101", "the data does not fit the model",
         "Names, types, sizes or ranges in the data do not match the model's inputs.",
         "Change the data or the model's options as the message says; docs/data.md describes each source."},
        {DamagedData, "SC3102", "a data file is wrong or damaged",
         "It is not the kind of file that its source reads, or ends too early, or has values that are not allowed.",
         "Write or download the file again; the message names it."}}},
      {"Checkpoints and weights",
       {{NoCheckpoint, "SC3201", "no complete checkpoint",
         "The folder contains no checkpoint, or only incomplete ones.",
         "Use the folder that `run --checkpoint` wrote, or start without `--resume`."},
        {DamagedCheckpoint, "SC3202", "a checkpoint is damaged",
         "A checksum, a size or a list of tensors does not match its manifest.",
         "Use an older checkpoint of the folder: remove the damaged one and resume again."},
        {OtherCheckpoint, "SC3203", "a checkpoint or weights file belongs to another model or run",
         "Names, shapes or types of tensors differ from the model's, or the run had other options that change its "
         "course.",
         "Resume with the same model and options, or pass only its weights with `--weights`."},
        {CheckpointExists, "SC3204", "the folder has a later checkpoint already",
         "A new run would mix its checkpoints with those of an earlier one.",
         "Continue it with `--resume`, or use another folder."}}},
      {"The machine",
       {{MachineFailure, "SC4001", "a system or driver call failed",
         "The message names the call, its result and what usually helps.",
         "Do what the message says; `scripts/gpu_check` tests everything that needs a GPU."},
        {NoGpu, "SC4002", "no such GPU", "No driver or no GPU was found, or this machine has fewer GPUs.",
         "Check `nvidia-smi` and CUDA_VISIBLE_DEVICES, or use `--device cpu`."},
        {NotInBuild, "SC4003", "this build lacks a component",
         "The component (CUDA, NCCL, UCX, images, LibTorch) was left out, or its library is missing on this machine.",
         "Build with the option that the message names, install the library, or use the alternative that it names."},
        {OutOfMemory, "SC4004", "out of memory", "A tensor could not be allocated.",
         "Use smaller microbatches, `plan --recompute`, more stages or a smaller dtype; `stagecraft predict` shows "
         "what each stage needs, and `profile --structure` takes no memory for weights."},
        {MissingProgram, "SC4005", "another program could not be started", "It is not installed or not on PATH.",
         "Install it as the message says, or use the option that does not need it."}}},
      {"Ranks",
       {{CannotConnect, "SC4101", "a rank cannot join the run",
         "The host or port of the rendezvous server is wrong or blocked, belongs to another run, or has a different "
         "secret.",
         "Check host names, ports and firewalls, and that all ranks are started alike; docs/run.md has the variables."},
        {PeerLost, "SC4102", "another rank failed or disappeared",
         "This rank is fine; it ended because another one did.",
         "Read that rank's message: it is above, or in its file under `--logs`."},
        {DeadlineMissed, "SC4103", "a rank waited too long for another one",
         "No message arrived within `--timeout`: the other rank hangs, is much slower, or the network lost it. The "
         "lines below say what each rank was doing.",
         "Look at the slowest rank. Raise `--timeout` if a step really takes that long."},
        {RanksDiffer, "SC4104", "ranks were started differently",
         "Plan, options, model or devices are not the same on all ranks.",
         "Start all ranks with the same files and options; the message shows the first difference."},
        {WrongRankCount, "SC4105", "the number of ranks does not match the plan",
         "The launcher started more or fewer ranks than the plan or the command needs.",
         "Start as many as the message says, or plan for the devices that you have."},
        {NonfiniteValue, "SC4106", "a loss or gradient became infinite or NaN",
         "Training diverged, or the data contains such values.",
         "Try a lower `--learning-rate`, a `--clip-norm` or a warm-up; continue with `--on-nonfinite warn` or "
         "`skip`."}}},
      {"Anything else",
       {{Unexpected, "SC9001", "an unexpected error", "A library failed, or stagecraft has a bug.",
         "Read the message; if it does not help, report it with the command and `stagecraft --version`."}}},
  };
}

/// `text` in lines of at most 96 characters, each after two spaces.
std::string paragraph(const std::string& text) {
  constexpr std::size_t kWidth = 96;
  std::istringstream words(text);
  std::string out;
  std::string line;
  for (std::string word; words >> word;) {
    if (!line.empty() && line.size() + 1 + word.size() > kWidth) {
      out += "  " + line + "\n";
      line.clear();
    }
    line += (line.empty() ? "" : " ") + word;
  }
  return out + "  " + line + "\n";
}

}  // namespace

const std::vector<ErrorArea>& error_catalogue() {
  static const std::vector<ErrorArea> areas = make_catalogue();
  return areas;
}

const ErrorEntry& error_entry(ErrorKind kind) {
  const ErrorEntry* last = nullptr;
  for (const ErrorArea& area : error_catalogue()) {
    for (const ErrorEntry& entry : area.entries) {
      last = &entry;
      if (entry.kind == kind) return entry;
    }
  }
  return *last;  // Unexpected; a test proves that each kind has an entry
}

const ErrorEntry& error_entry(std::string_view code) {
  std::vector<std::string> known;
  for (const ErrorArea& area : error_catalogue()) {
    for (const ErrorEntry& entry : area.entries) {
      if (entry.code == code) return entry;
      known.push_back(entry.code);
    }
  }
  throw InputError(ErrorKind::UnknownName, unknown_name("error code", code, known));
}

std::string with_code(const std::string& text, ErrorKind kind) {
  const std::size_t end = std::min(text.find('\n'), text.size());
  return text.substr(0, end) + " [" + error_entry(kind).code + "]" + text.substr(end);
}

std::string message_of(const std::exception& error) { return with_code(error.what(), kind_of(error)); }

std::string catalogue_text() {
  std::string out;
  for (const ErrorArea& area : error_catalogue()) {
    out += (out.empty() ? "" : "\n") + area.title + "\n";
    for (const ErrorEntry& entry : area.entries) out += "  " + entry.code + "  " + entry.title + "\n";
  }
  return out;
}

std::string entry_text(const ErrorEntry& entry) {
  return entry.code + ": " + entry.title + "\n\n" + paragraph(entry.cause) + "\nWhat to do:\n" +
         paragraph(entry.remedy);
}

std::string catalogue_markdown() {
  std::string out =
      "# Errors\n\n"
      "Every message of a program ends its first line with a code:\n\n"
      "```text\n"
      "stagecraft-plan: graph.json: cannot read: No such file or directory [SC1101]\n"
      "```\n\n"
      "`scripts/stagecraft errors SC1101` explains it; `scripts/stagecraft errors` lists all codes. A code keeps its "
      "meaning in\nlater versions, so scripts can rely on it; in Python it is the `code` of the exception. After wrong "
      "usage (SC10xx)\na program exits with status 2, after all other errors with 1; `run` has more statuses, see "
      "[Run](run.md). Findings of\n[`doctor`](doctor.md) have codes of three digits.\n\n"
      "`scripts/stagecraft errors --markdown` prints this page.\n";
  for (const ErrorArea& area : error_catalogue()) {
    out += "\n## " + area.title + "\n\n| code | what happened | why | what to do |\n| --- | --- | --- | --- |\n";
    for (const ErrorEntry& entry : area.entries)
      out += fmt::format("| {} | {} | {} | {} |\n", entry.code, entry.title, entry.cause, entry.remedy);
  }
  return out;
}

}  // namespace stagecraft
