#include "costmodel/interchange/pictures/scatter_picture.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <vector>

#include "costmodel/format/escaping.h"
#include "costmodel/index.h"
#include "costmodel/text/units_text.h"

namespace stagecraft::interchange {
namespace {

// Okabe and Ito's colours without yellow, which is too light for white paper, and grey: safe for colour-blind readers.
constexpr std::array<const char*, 8> kColours{"#0072b2", "#d55e00", "#009e73", "#cc79a7",
                                              "#56b4e9", "#e69f00", "#000000", "#777777"};
constexpr double kLeft = 80;
constexpr double kTop = 30;
constexpr double kSize = 480;  // of the square
constexpr double kRadius = 5;
constexpr double kLegend = 180;
constexpr double kBottom = 60;
constexpr double kMargin = 1.25;  // room around the outermost times, as a factor
constexpr std::size_t kLongestName = 28;

/// A marker of shape `number`, filled with its colour.
std::string marker(std::size_t number, double x, double y, const std::string& title) {
  const double r = kRadius;
  const char* colour = kColours.at(number % kColours.size());
  const std::string end = fmt::format(" fill=\"{}\" fill-opacity=\"0.75\" stroke=\"{}\">{}</", colour, colour, title);
  const auto polygon = [&](std::initializer_list<std::pair<double, double>> corners) {
    std::string points;
    for (const auto& [dx, dy] : corners) points += fmt::format("{:.2f},{:.2f} ", x + dx, y + dy);
    points.pop_back();
    return fmt::format("<polygon points=\"{}\"{}polygon>\n", points, end);
  };
  switch (number % kColours.size()) {
    case 0:
      return fmt::format("<circle cx=\"{:.2f}\" cy=\"{:.2f}\" r=\"{}\"{}circle>\n", x, y, r, end);
    case 1:
      return polygon({{-r, -r}, {r, -r}, {r, r}, {-r, r}});
    case 2:
      return polygon({{0, -1.2 * r}, {1.2 * r, r}, {-1.2 * r, r}});
    case 3:
      return polygon({{0, -1.4 * r}, {1.4 * r, 0}, {0, 1.4 * r}, {-1.4 * r, 0}});
    case 4:
      return polygon({{-1.2 * r, -r}, {1.2 * r, -r}, {0, 1.2 * r}});
    case 5:
      return polygon({{-r / 3, -r},
                      {r / 3, -r},
                      {r / 3, -r / 3},
                      {r, -r / 3},
                      {r, r / 3},
                      {r / 3, r / 3},
                      {r / 3, r},
                      {-r / 3, r},
                      {-r / 3, r / 3},
                      {-r, r / 3},
                      {-r, -r / 3},
                      {-r / 3, -r / 3}});
    case 6:
      return polygon({{-r, -r}, {r, -r}, {-r, r}, {r, r}});
    default:
      return polygon({{-r / 2, -r}, {r / 2, -r}, {r, 0}, {r / 2, r}, {-r / 2, r}, {-r, 0}});
  }
}

/// A logarithmic scale from `low` to `high` on both axes.
struct ScatterScale {
  double low = 1;
  double high = 1;
  double part(double seconds) const { return std::log(seconds / low) / std::log(high / low); }
  double x(Seconds time) const { return kLeft + kSize * part(time.value); }
  double y(Seconds time) const { return kTop + kSize * (1 - part(time.value)); }
};

ScatterScale scale_of(const std::vector<ValidatedRun>& runs) {
  double low = std::numeric_limits<double>::infinity();
  double high = 0;
  const auto take = [&](Seconds time) {
    if (!(time > Seconds(0)) || !std::isfinite(time.value)) throw std::invalid_argument("a time is not above 0");
    low = std::min(low, time.value);
    high = std::max(high, time.value);
  };
  for (const ValidatedRun& run : runs) {
    take(run.times.predicted);
    take(run.times.measured);
  }
  return {low / kMargin, high * kMargin};
}

/// 1, 2 and 5 times the powers of ten inside the scale.
std::vector<double> ticks(const ScatterScale& scale) {
  std::vector<double> out;
  const int first = static_cast<int>(std::floor(std::log10(scale.low)));
  const int last = static_cast<int>(std::ceil(std::log10(scale.high)));
  const bool many = last - first > 4;
  for (int power = first; power <= last; ++power) {
    for (const double digit : {1.0, 2.0, 5.0}) {
      const double value = digit * std::pow(10.0, power);
      if (value >= scale.low && value <= scale.high && (digit == 1 || !many)) out.push_back(value);
    }
  }
  return out;
}

std::string line(double x1, double y1, double x2, double y2, const std::string& style) {
  return fmt::format("<line x1=\"{:.2f}\" y1=\"{:.2f}\" x2=\"{:.2f}\" y2=\"{:.2f}\" {}/>\n", x1, y1, x2, y2, style);
}

/// `words` are markup.
std::string text(double x, double y, const std::string& anchor, const std::string& words,
                 const std::string& more = "") {
  return fmt::format("<text x=\"{:.2f}\" y=\"{:.2f}\" text-anchor=\"{}\"{}>{}</text>\n", x, y, anchor, more, words);
}

std::string axes(const ScatterScale& scale) {
  std::string out;
  for (const double value : ticks(scale)) {
    const Seconds time(value);
    const std::string grid = "stroke=\"#dddddd\"";
    out += line(scale.x(time), kTop, scale.x(time), kTop + kSize, grid);
    out += line(kLeft, scale.y(time), kLeft + kSize, scale.y(time), grid);
    out += text(scale.x(time), kTop + kSize + 18, "middle", format_seconds(time));
    out += text(kLeft - 8, scale.y(time) + 4, "end", format_seconds(time));
  }
  // The band of 10 %: predicted / measured from 0.9 to 1.1.
  const double x0 = kLeft;
  const double x1 = kLeft + kSize;
  const auto y = [&](double seconds) { return kTop + kSize * (1 - scale.part(seconds)); };
  out += fmt::format(
      "<polygon clip-path=\"url(#square)\" points=\"{:.2f},{:.2f} {:.2f},{:.2f} {:.2f},{:.2f} {:.2f},{:.2f}\" "
      "fill=\"#999999\" fill-opacity=\"0.2\"/>\n",
      x0, y(scale.low / 1.1), x1, y(scale.high / 1.1), x1, y(scale.high / 0.9), x0, y(scale.low / 0.9));
  out += line(x0, kTop + kSize, x1, kTop, "stroke=\"#555555\"");
  out += fmt::format("<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" fill=\"none\" stroke=\"#555555\"/>\n", kLeft,
                     kTop, kSize, kSize);
  out += text(kLeft + kSize / 2, kTop + kSize + 44, "middle", "predicted step");
  out += text(18, kTop + kSize / 2, "middle", "measured step",
              fmt::format(" transform=\"rotate(-90 18 {:.2f})\"", kTop + kSize / 2));
  return out;
}

}  // namespace

std::string scatter_picture(const Validation& validation) {
  if (validation.runs.empty()) throw std::invalid_argument("no runs to draw");
  const ScatterScale scale = scale_of(validation.runs);
  std::vector<std::string> models;
  for (const ValidatedRun& run : validation.runs) {
    if (std::find(models.begin(), models.end(), run.model) == models.end()) models.push_back(run.model);
  }
  std::string out = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" viewBox=\"0 0 {0} {1}\" "
      "font-family=\"sans-serif\" font-size=\"12\">\n<title>Predicted and measured step times</title>\n"
      "<defs><clipPath id=\"square\"><rect x=\"{2}\" y=\"{3}\" width=\"{4}\" height=\"{4}\"/></clipPath></defs>\n"
      "<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n",
      kLeft + kSize + kLegend, std::max(kTop + kSize + kBottom, kTop + 22.0 * static_cast<double>(models.size() + 2)),
      kLeft, kTop, kSize);
  out += axes(scale);
  for (const ValidatedRun& run : validation.runs) {
    const auto model = static_cast<std::size_t>(std::find(models.begin(), models.end(), run.model) - models.begin());
    const double y = scale.y(run.times.measured);
    if (run.times.low && run.times.high && *run.times.low > Seconds(0)) {
      out += line(scale.x(*run.times.low), y, scale.x(*run.times.high), y,
                  fmt::format("stroke=\"{}\" clip-path=\"url(#square)\"", kColours.at(model % kColours.size())));
    }
    const std::string title = fmt::format("<title>{}: predicted {}, measured {}</title>", format::markup_text(run.name),
                                          format_seconds(run.times.predicted), format_seconds(run.times.measured));
    out += marker(model, scale.x(run.times.predicted), y, title);
  }
  const double x = kLeft + kSize + 20;
  for (std::size_t i = 0; i < models.size(); ++i) {
    const double y = kTop + 10 + 22 * static_cast<double>(i);
    out += marker(i, x, y, "");
    out += text(x + 14, y + 4, "start", format::markup_text(models[i], kLongestName));
  }
  out += text(x - 6, kTop + 14 + 22 * static_cast<double>(models.size()), "start", "grey: within 10 %");
  return out + "</svg>\n";
}

}  // namespace stagecraft::interchange
