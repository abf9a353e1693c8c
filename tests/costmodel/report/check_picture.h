#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <pugixml.hpp>
#include <set>
#include <string>
#include <vector>

#include "costmodel/report/drawing.h"

namespace stagecraft::report {

inline pugi::xml_document parsed(const std::string& text) {
  pugi::xml_document out;
  const auto result = out.load_string(text.c_str());
  EXPECT_TRUE(result) << result.description() << " at "
                      << text.substr(static_cast<std::size_t>(std::max<std::ptrdiff_t>(result.offset, 40) - 40), 80);
  return out;
}

struct LabelBox {
  double left, top, right, bottom;
  std::string words;
};

/// Every id once, every label inside the picture, no two labels over each other, by estimated widths.
inline void check_picture(const Picture& picture) {
  SCOPED_TRACE(picture.name);
  const pugi::xml_document document = parsed(picture_file(picture));
  const pugi::xml_node svg = document.child("svg");
  const double width = svg.attribute("width").as_double();
  const double height = svg.attribute("height").as_double();
  std::set<std::string> ids;
  for (const auto& node : svg.select_nodes("//*[@id]")) {
    const std::string id = node.node().attribute("id").value();
    EXPECT_TRUE(ids.insert(id).second) << id;
    EXPECT_THAT(id, ::testing::StartsWith(picture.name));
  }
  std::vector<LabelBox> boxes;
  for (const auto& node : svg.select_nodes("//text")) {
    const pugi::xml_node t = node.node();
    const double x = t.attribute("x").as_double();
    const double y = t.attribute("y").as_double();
    const double size = t.attribute("font-size").as_double();
    const std::string words = t.child_value();
    const double wide = text_width(words, size);
    const std::string anchor = t.attribute("text-anchor").value();
    const double left = anchor == "end" ? x - wide : anchor == "middle" ? x - wide / 2 : x;
    LabelBox box{left, y - 0.75 * size, left + wide, y + 0.2 * size, words};
    if (t.attribute("transform")) {
      const double below = anchor == "end" ? wide : wide / 2;
      box = {x - 0.75 * size, y + below - wide, x + 0.2 * size, y + below, words};
    }
    EXPECT_GE(box.left, -0.01) << words;
    EXPECT_LE(box.right, width + 0.01) << words;
    EXPECT_GE(box.top, -0.01) << words;
    EXPECT_LE(box.bottom, height + 0.01) << words;
    for (const LabelBox& other : boxes) {
      const bool apart =
          box.right <= other.left || other.right <= box.left || box.bottom <= other.top || other.bottom <= box.top;
      EXPECT_TRUE(apart) << "\"" << words << "\" over \"" << other.words << "\"";
    }
    boxes.push_back(box);
  }
  EXPECT_FALSE(boxes.empty());
  for (const auto& node : svg.select_nodes("//rect")) {
    EXPECT_TRUE(std::isfinite(node.node().attribute("x").as_double()));
    EXPECT_GE(node.node().attribute("width").as_double(), 0);
  }
}

}  // namespace stagecraft::report
