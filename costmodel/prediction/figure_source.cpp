#include "costmodel/prediction/figure_source.h"

#include <utility>
#include <vector>

#include "costmodel/errors.h"
#include "costmodel/text/table.h"

namespace stagecraft {
namespace {

const std::vector<std::pair<FigureSource, const char*>>& source_names() {
  static const std::vector<std::pair<FigureSource, const char*>> names{
      {FigureSource::Measured, "measured"}, {FigureSource::Fitted, "fitted"},
      {FigureSource::Analytic, "analytic"}, {FigureSource::Extrapolated, "extrapolated"},
      {FigureSource::Assumed, "assumed"},   {FigureSource::Calibrated, "calibrated"}};
  return names;
}

}  // namespace

const char* to_string(FigureSource source) {
  for (const auto& [value, name] : source_names()) {
    if (value == source) return name;
  }
  return "";
}

FigureSource figure_source(const std::string& word) {
  std::vector<std::string> known;
  for (const auto& [value, name] : source_names()) {
    if (name == word) return value;
    known.emplace_back(name);
  }
  throw InputError(ErrorKind::UnknownName, unknown_name("source", word, known));
}

}  // namespace stagecraft
