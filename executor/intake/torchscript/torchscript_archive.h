#pragma once

#include <ATen/core/ivalue.h>

#include <string>

#include "executor/files/zip_archive.h"

namespace stagecraft {

/// Whether `archive` has the records of a model that torch.jit.save wrote: code/, data.pkl and constants.pkl under one
/// folder.
[[nodiscard]] bool is_torchscript_archive(const ZipArchive& archive);

/// The module in `archive`, its tensors on the CPU. Nothing of it runs: before LibTorch's reader sees the file the CRC
/// of every record is compared, sizes are bounded, and its code is searched for what would run while it is loaded or
/// reach further than tensors. Throws FormatError, with file and record, for a damaged or oversized record, for code
/// that defines __setstate__, uses classes of C++ libraries, operators that read or write files, or operators of a
/// namespace other than PyTorch's own (named), and with the first line of LibTorch's reason for what it cannot load.
[[nodiscard]] c10::intrusive_ptr<c10::ivalue::Object> load_torchscript(const ZipArchive& archive);

/// The first line that is not empty.
[[nodiscard]] std::string first_line(const std::string& text);

}  // namespace stagecraft
