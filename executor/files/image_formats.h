#pragma once

#include <string>

#include "executor/files/image_file.h"

namespace stagecraft::files {

// The parts of parse_image. They return the image in `bytes`, or throw std::runtime_error with what is wrong.

[[nodiscard]] Image parse_jpeg(const std::string& bytes);
[[nodiscard]] Image parse_png(const std::string& bytes);

/// Space for an image of this size; throws as parse_image does if it is too large.
[[nodiscard]] Image empty_image(std::uint32_t width, std::uint32_t height);

}  // namespace stagecraft::files
