#pragma once

#include <memory>
#include <string>

#include "executor/intake/export/stage_graphs.h"
#include "executor/intake/pt2/pt2_archive.h"

namespace stagecraft::intake {

/// Writes stages of an archive as separate archives for torch.export.load.
class StageArchives {
 public:
  /// Both must outlive this; `graph` is pt2_graph(archive) and `loss` one of its values. Reads the archive's program
  /// again. Throws FormatError as its reader does.
  StageArchives(const Pt2Archive& archive, const OperatorGraph& graph, int loss);
  ~StageArchives();

  /// The program of `stage` as torch.export's JSON. It takes `received`, then `inputs`, and returns a tuple of
  /// `outputs`; nodes, values, parameters and buffers keep their names. New nodes copy values that are written in place
  /// and compute the numbers of `sizes`.
  [[nodiscard]] std::string program(const StageGraph& stage) const;

  /// Writes the archive: the program, the bytes of its tensors as in the whole archive, and export-model's notes about
  /// the stage's inputs and loss. It has no sample inputs. Throws FormatError for damaged bytes, and with `path` and
  /// the system's reason if it cannot be written.
  void write(const StageGraph& stage, const std::string& path) const;

 private:
  [[nodiscard]] std::string notes(const StageGraph& stage) const;

  struct Documents;
  const Pt2Archive& archive_;
  const OperatorGraph& graph_;
  int loss_;
  std::unique_ptr<const Documents> documents_;
};

}  // namespace stagecraft::intake
