#pragma once

#include <exception>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace stagecraft {

/// Kinds of errors. Errors with the same remedy share a kind. error_catalogue() has each one's code and explanation.
enum class ErrorKind {
  // The command line.
  WrongUsage,
  UnknownOption,
  MissingOption,
  OptionConflict,
  WrongValue,
  UnknownCommand,
  NothingBuilt,
  // Files.
  CannotRead,
  CannotWrite,
  WouldOverwrite,
  DamagedFile,
  OtherDocument,
  // What a document says.
  BadDocument,
  NotJson,
  MissingKey,
  UnknownKey,
  BadProject,
  // Graphs, topologies and plans.
  BadInput,
  UnknownName,
  UntrustedProfile,
  OtherDevice,
  NoTimes,
  OtherModel,
  ScheduleMismatch,
  NoCountedWork,
  UntrustedLinks,
  // No answer.
  NoPlan,
  DoesNotFit,
  Unprovable,
  TooSlow,
  // Models.
  NotAModel,
  UnsupportedModel,
  WrongMicrobatch,
  // Data.
  DataMismatch,
  DamagedData,
  // Checkpoints and weights.
  NoCheckpoint,
  DamagedCheckpoint,
  OtherCheckpoint,
  CheckpointExists,
  // The machine.
  MachineFailure,
  NoGpu,
  NotInBuild,
  OutOfMemory,
  MissingProgram,
  // Ranks.
  CannotConnect,
  PeerLost,
  DeadlineMissed,
  RanksDiffer,
  WrongRankCount,
  NonfiniteValue,
  // Anything else.
  Unexpected,
};

/// The part of an exception that says what kind of error it is.
class HasErrorKind {
 public:
  explicit HasErrorKind(ErrorKind kind) : kind_(kind) {}
  [[nodiscard]] ErrorKind kind() const { return kind_; }

 private:
  ErrorKind kind_;
};

/// The content of a file is wrong. The message reads "FILE: POINTER: what was found, what was expected".
class FormatError : public std::runtime_error, public HasErrorKind {
 public:
  explicit FormatError(const std::string& text) : FormatError(ErrorKind::BadDocument, text) {}
  FormatError(ErrorKind kind, const std::string& text) : std::runtime_error(text), HasErrorKind(kind) {}
};

/// The machine failed: a driver, a device or one of their libraries. The message names the call, its result and a
/// remedy.
class DeviceError : public std::runtime_error, public HasErrorKind {
 public:
  explicit DeviceError(const std::string& text) : DeviceError(ErrorKind::MachineFailure, text) {}
  DeviceError(ErrorKind kind, const std::string& text) : std::runtime_error(text), HasErrorKind(kind) {}
};

/// An input is wrong in a way that has its own remedy; a plain std::invalid_argument is ErrorKind::BadInput.
class InputError : public std::invalid_argument, public HasErrorKind {
 public:
  InputError(ErrorKind kind, const std::string& text) : std::invalid_argument(text), HasErrorKind(kind) {}
};

/// There is no answer, for example because no plan fits in memory. A return value; only tools throw it, as
/// NoAnswerError.
struct Infeasible {
  std::string reason;
  ErrorKind kind = ErrorKind::NoPlan;
  friend bool operator==(const Infeasible&, const Infeasible&) = default;
};

/// Ends a tool that has no answer.
class NoAnswerError : public std::runtime_error, public HasErrorKind {
 public:
  /// The message is `before` and the reason.
  NoAnswerError(const std::string& before, const Infeasible& infeasible)
      : std::runtime_error(before + infeasible.reason), HasErrorKind(infeasible.kind) {}
};

/// The kind of any exception: its own if it is a HasErrorKind; BadInput for any other std::invalid_argument,
/// OutOfMemory for std::bad_alloc, else Unexpected.
[[nodiscard]] ErrorKind kind_of(const std::exception& error);

/// The known name of which `name` is probably a misspelling: the one with the fewest edits (a character added, dropped,
/// replaced, or swapped with the next), the first if several tie. Nothing if it takes more than one edit and more than
/// a third of its characters.
[[nodiscard]] std::optional<std::string> nearest_name(const std::string& name, const std::vector<std::string>& known);

/// The text `unknown WHAT "NAME", known are A, B, C` for a name that is not in a table, with `did you mean A?` before
/// the known names if it looks like a misspelling of one.
[[nodiscard]] std::string unknown_name(std::string_view what, std::string_view name,
                                       const std::vector<std::string>& known);

/// The words in a sentence: "a", "a or b", "a, b or c", with `conjunction` before the last; "" if there are none.
[[nodiscard]] std::string joined_words(const std::vector<std::string>& words, const std::string& conjunction);

/// What people read about a kind of error.
struct ErrorEntry {
  ErrorKind kind = ErrorKind::Unexpected;
  std::string code;    ///< "SC2101"; never reused for another kind, even after this one is removed
  std::string title;   ///< what happened, in a few words
  std::string cause;   ///< when it happens, in sentences
  std::string remedy;  ///< what to do, in sentences; commands as typed
};

/// Codes that begin with the same two digits.
struct ErrorArea {
  std::string title;
  std::vector<ErrorEntry> entries;  ///< by code
};

/// All kinds, each once.
[[nodiscard]] const std::vector<ErrorArea>& error_catalogue();

/// The entry of a kind.
[[nodiscard]] const ErrorEntry& error_entry(ErrorKind kind);

/// The entry of a code. Throws InputError listing the codes.
[[nodiscard]] const ErrorEntry& error_entry(std::string_view code);

/// `text` with the code of `kind` in brackets at the end of its first line: "plan.json: is empty [SC1202]".
[[nodiscard]] std::string with_code(const std::string& text, ErrorKind kind);

/// The message of an exception as programs print it: what(), with_code.
[[nodiscard]] std::string message_of(const std::exception& error);

/// A line for each code and its title, under the titles of the areas.
[[nodiscard]] std::string catalogue_text();

/// Code, title, cause and remedy of one kind, in lines that fit a terminal.
[[nodiscard]] std::string entry_text(const ErrorEntry& entry);

/// The catalogue as the page docs/errors.md.
[[nodiscard]] std::string catalogue_markdown();

}  // namespace stagecraft
