#pragma once

#include <ATen/core/ivalue.h>

#include <string>

#include "executor/files/zip_archive.h"

namespace stagecraft::intake {

/// Whether `archive` has the records of a model that torch.jit.save wrote: code/, data.pkl and constants.pkl under one
/// folder.
[[nodiscard]] bool is_torchscript_archive(const files::ZipArchive& archive);

/// The module in `archive`, its tensors on the CPU. No code runs: before LibTorch's reader sees the file, the CRC of
/// every record is checked, sizes are bounded, and its code is searched for anything that would run during loading or
/// access more than tensors. Throws FormatError, with file and record, for a damaged or oversized record, for code that
/// defines __setstate__, uses classes of C++ libraries, operators that read or write files, or operators of a namespace
/// other than PyTorch's own (named), and, with the first line of LibTorch's reason, if LibTorch cannot load it.
[[nodiscard]] c10::intrusive_ptr<c10::ivalue::Object> load_torchscript(const files::ZipArchive& archive);

/// The first line that is not empty.
[[nodiscard]] std::string first_line(const std::string& text);

}  // namespace stagecraft::intake
