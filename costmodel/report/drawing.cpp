#include "costmodel/report/drawing.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <utility>

#include "costmodel/format/escaping.h"
#include "costmodel/index.h"

namespace stagecraft::report {
namespace {

using format::markup_text;

enum class Hatch { None, Falling, Rising, Upright, Dots };

struct Paint {
  const char* name;
  const char* colour;
  Hatch hatch = Hatch::None;
};

/// In the order of Fill. Okabe and Ito's palette: safe for colour-blind readers.
constexpr std::array<Paint, 13> kPaints{{{"forward", "#56b4e9"},
                                         {"backward", "#e69f00", Hatch::Rising},
                                         {"weight-gradient", "#f0e442", Hatch::Upright},
                                         {"reduce", "#cc79a7", Hatch::Falling},
                                         {"update", "#2bb58b", Hatch::Dots},
                                         {"wait", "none", Hatch::Falling},
                                         {"compute", "#56b4e9"},
                                         {"transfer", "#d55e00", Hatch::Rising},
                                         {"bubble", "none", Hatch::Falling},
                                         {"first", "#56b4e9"},
                                         {"second", "#e69f00", Hatch::Rising},
                                         {"third", "#2bb58b", Hatch::Dots},
                                         {"fourth", "#cc79a7", Hatch::Falling}}};

/// Axes of values that differ by less than this share begin at 0: a close-up would exaggerate the difference.
constexpr double kNarrowest = 5e-3;

// The "light" scheme of Paul Tol's colour-blind safe schemes, made for black text.
constexpr std::array<const char*, 8> kStages{"#77aadd", "#ee8866", "#eedd88", "#44bb99",
                                             "#ffaabb", "#99ddff", "#bbcc33", "#aaaa00"};

std::string hatch_marks(Hatch hatch) {
  switch (hatch) {
    case Hatch::None:
      return "";
    case Hatch::Falling:
      return R"(<path class="hatch" d="M-1,-1 L7,7 M-1,5 L1,7 M5,-1 L7,1"/>)";
    case Hatch::Rising:
      return R"(<path class="hatch" d="M-1,7 L7,-1 M-1,1 L1,-1 M5,7 L7,5"/>)";
    case Hatch::Upright:
      return R"(<path class="hatch" d="M3,0 L3,6"/>)";
    case Hatch::Dots:
      return R"(<circle class="dot" cx="3" cy="3" r="0.9"/>)";
  }
  return "";
}

std::size_t characters(std::string_view text) {
  return to_index(std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

/// The smallest of 1, 2 and 5 times powers of ten that is at least `rough`.
double round_step(double rough) {
  const double power = std::pow(10, std::floor(std::log10(rough)));
  for (const double digit : {1.0, 2.0, 5.0}) {
    if (digit * power >= rough * (1 - 1e-9)) return digit * power;
  }
  return 10 * power;
}

using AxisUnits = std::vector<std::pair<double, const char*>>;
const AxisUnits kByteUnits{{1, "B"}, {0x1p10, "KiB"}, {0x1p20, "MiB"}, {0x1p30, "GiB"}, {0x1p40, "TiB"}};

/// From 0 if `least` is no more than half of `most`.
Axis make_axis(double least, double most, int count, const AxisUnits& units) {
  Axis out;
  out.factor = units.front().first;
  out.unit = units.front().second;
  if (!(most > 0) || !std::isfinite(most)) most = out.factor;
  for (const auto& [factor, name] : units) {
    if (most < factor) break;
    out.factor = factor;
    out.unit = name;
  }
  const bool near = least > most / 2 && most - least > most * kNarrowest;
  const double step = round_step((near ? most - least : most) / out.factor / count);
  const auto first = near ? static_cast<std::int64_t>(std::floor(least / out.factor / step * (1 + 1e-12))) : 0;
  for (std::int64_t i = first;; ++i) {
    out.ticks.push_back(static_cast<double>(i) * step * out.factor);
    if (i > first && out.ticks.back() >= most * (1 - 1e-9)) break;
  }
  out.begin = out.ticks.front();
  out.end = out.ticks.back();
  return out;
}

}  // namespace

std::string picture_style() {
  return R"(svg.sc{font-family:system-ui,"Segoe UI","Helvetica Neue",Arial,sans-serif;font-variant-numeric:tabular-nums}
.sc .paper{fill:#fff}.sc .ink{fill:#1b1d21}.sc .soft{fill:#565b63}.sc .strong{fill:#1b1d21;font-weight:600}
.sc .dark{fill:#111}.sc .grid{stroke:#dfe2e6}.sc .axis{stroke:#7a8089;fill:none}.sc .band{fill:#f4f5f7}
.sc .edge{stroke:#565b63;fill:none}.sc .cross{stroke:#1b1d21;fill:none;stroke-width:1.8}.sc .tip{fill:#1b1d21}
.sc .limit{stroke:#d55e00;stroke-width:1.6;stroke-dasharray:6 3}.sc .limittext{fill:#b04c00}
.sc .box{stroke:#565b63;stroke-width:.8}.sc .bar{stroke:#33373d;stroke-width:.5}.sc .plain{fill:#e3e6ea}
.sc .hatch{stroke:#111;stroke-opacity:.42;stroke-width:1;fill:none}.sc .dot{fill:#111;fill-opacity:.5}
.sc .cut{stroke:#565b63;stroke-width:1.2;stroke-dasharray:4 3}
.sc .under{fill:#eceef1}.sc .whisker{stroke:#1b1d21;stroke-width:1.2;fill:none}
@media screen and (prefers-color-scheme:dark){
.sc .paper{fill:#15181d}.sc .ink,.sc .strong,.sc .tip{fill:#e9ebee}.sc .soft{fill:#a9b0ba}.sc .grid{stroke:#2c313a}
.sc .axis,.sc .edge,.sc .box,.sc .cut{stroke:#8b939e}.sc .band{fill:#1c2027}.sc .cross{stroke:#e9ebee}.sc .limit{stroke:#ff8a3c}
.sc .limittext{fill:#ff9d5c}.sc .bar{stroke:#0c0e11}.sc .whisker{stroke:#fff}.sc .under{fill:#59616c}.sc .plain{fill:#b9bfc8}}
)";
}

std::string picture_file(const Picture& picture) {
  std::string out = picture.inner;
  const std::size_t at = out.find("<title>");
  return out.insert(at, "<style>\n" + picture_style() + "</style>\n");
}

std::string stage_colour(int stage) { return kStages.at(to_index(stage) % kStages.size()); }

std::string Axis::label(double value) const { return fmt::format("{:.6g}", value / factor); }

Axis time_axis(Seconds most, int count) {
  return make_axis(0, most.value, count, {{1e-9, "ns"}, {1e-6, "µs"}, {1e-3, "ms"}, {1, "s"}});
}

Axis bytes_axis(Bytes most, int count) { return bytes_axis(Bytes(0), most, count); }
Axis bytes_axis(Bytes least, Bytes most, int count) {
  return make_axis(static_cast<double>(least.value), static_cast<double>(most.value), count, kByteUnits);
}

Axis number_axis(double most, int count) { return number_axis(0, most, count); }
Axis number_axis(double least, double most, int count) { return make_axis(least, most, count, {{1.0, ""}}); }

const char* series_colour(std::size_t i) {
  constexpr std::array<const char*, 6> colours{"#0f7fc0", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"};
  return colours.at(i % colours.size());
}

std::string ramp_colour(double share) {
  constexpr std::array<double, 3> least{0x00, 0x5f, 0xa8};
  constexpr std::array<double, 3> most{0xf0, 0xa8, 0x10};
  const auto part = [&](std::size_t i) { return std::lround(least.at(i) + share * (most.at(i) - least.at(i))); };
  return fmt::format("#{:02x}{:02x}{:02x}", part(0), part(1), part(2));
}

double text_width(std::string_view text, double size) { return 0.58 * size * static_cast<double>(characters(text)); }

std::string fitted(const std::string& text, double width, double size) {
  std::string clean = format::valid_utf8(text);
  const auto room = static_cast<std::size_t>(std::max(1.0, std::floor(width / (0.58 * size) + 1e-9)));
  if (characters(clean) <= room) return clean;
  std::vector<std::string> letters;
  for (const char c : clean) {
    if ((c & 0xC0) != 0x80) letters.emplace_back();
    letters.back() += c;
  }
  const std::size_t tail = (room - 1) / 2;
  std::string out;
  for (std::size_t i = 0; i + 1 + tail < room; ++i) out += letters[i];
  out += "…";
  for (std::size_t i = letters.size() - tail; i < letters.size(); ++i) out += letters[i];
  return out;
}

void Drawing::rect(double x, double y, double width, double height, const std::string& paint,
                   const std::string& tooltip, const std::string& more) {
  body_ += fmt::format("<rect x=\"{:.2f}\" y=\"{:.2f}\" width=\"{:.2f}\" height=\"{:.2f}\" {}{}{}", x, y,
                       std::max(0.0, width), std::max(0.0, height), paint, more.empty() ? "" : " ", more);
  body_ += tooltip.empty() ? "/>\n" : "><title>" + markup_text(tooltip) + "</title></rect>\n";
}

void Drawing::line(double x1, double y1, double x2, double y2, const std::string& style) {
  body_ += fmt::format("<line x1=\"{:.2f}\" y1=\"{:.2f}\" x2=\"{:.2f}\" y2=\"{:.2f}\" class=\"{}\"/>\n", x1, y1, x2, y2,
                       style);
}

void Drawing::path(const std::string& points, const std::string& style, const std::string& tooltip) {
  body_ += "<path d=\"" + points + "\" " + style;
  body_ += tooltip.empty() ? "/>\n" : "><title>" + markup_text(tooltip) + "</title></path>\n";
}

void Drawing::text(double x, double y, const std::string& anchor, const std::string& words, const std::string& style,
                   double size, const std::string& more) {
  body_ += fmt::format(R"(<text x="{:.2f}" y="{:.2f}" text-anchor="{}" font-size="{}" class="{}"{}{}>{}</text>)", x, y,
                       anchor, size, style, more.empty() ? "" : " ", more, markup_text(words)) +
           "\n";
}

void Drawing::mark(std::size_t number, double x, double y, const std::string& tooltip, bool light,
                   const std::string& colour) {
  const std::string style = fmt::format("fill=\"{0}\" fill-opacity=\"{1}\" stroke=\"{0}\"{2}",
                                        colour.empty() ? series_colour(number) : colour, light ? "0" : "0.85",
                                        light ? " stroke-opacity=\"0.55\"" : "");
  constexpr double r = 4.2;
  switch (number % 4) {
    case 0:
      return path(fmt::format("M{0:.2f},{1:.2f} a{2},{2} 0 1 0 {3},0 a{2},{2} 0 1 0 -{3},0 Z", x - r, y, r, 2 * r),
                  style, tooltip);
    case 1:
      return path(fmt::format("M{:.2f},{:.2f} h{} v{} h-{} Z", x - r, y - r, 2 * r, 2 * r, 2 * r), style, tooltip);
    case 2:
      return path(fmt::format("M{:.2f},{:.2f} l{},{} h-{} Z", x, y - 1.2 * r, 1.2 * r, 2 * r, 2.4 * r), style, tooltip);
    default:
      return path(fmt::format("M{0:.2f},{1:.2f} l{2},{2} l-{2},{2} l-{2},-{2} Z", x, y - 1.3 * r, 1.3 * r), style,
                  tooltip);
  }
}

void Drawing::clip(double x, double y, double width, double height) {
  clip_ =
      fmt::format(R"(<clipPath id="{}-clip"><rect x="{:.2f}" y="{:.2f}" width="{:.2f}" height="{:.2f}"/></clipPath>)",
                  name_, x, y, width, height);
}

std::string Drawing::fill(Fill fill) {
  const Paint& paint = kPaints.at(static_cast<std::size_t>(fill));
  if (paint.hatch == Hatch::None) return fmt::format("fill=\"{}\"", paint.colour);
  used_.insert(fill);
  return fmt::format("fill=\"url(#{}-{})\"", name_, paint.name);
}

double Drawing::legend(double x, double y, double width,
                       const std::vector<std::pair<std::string, std::string>>& entries) {
  double at = x;
  double line = 0;
  for (const auto& [paint, words] : entries) {
    const double needed = 18 + text_width(words, 11) + 16;
    if (at > x && at + needed > x + width) {
      at = x;
      line += 18;
    }
    rect(at, y + line, 12, 12, paint, "", "stroke=\"#777\" stroke-width=\"0.6\"");
    text(at + 18, y + line + 10, "start", words);
    at += needed;
  }
  return line + 18;
}

Picture Drawing::finish(double width, double height, const std::string& caption) const {
  std::string out = fmt::format(
      R"(<svg xmlns="http://www.w3.org/2000/svg" class="sc" id="{0}" role="img" width="{1:.0f}" height="{2:.0f}" viewBox="0 0 {1:.0f} {2:.0f}">)",
      name_, width, height);
  out += "\n<title>" + markup_text(title_) + "</title>\n<desc>" + markup_text(caption) + "</desc>\n<defs>" + clip_;
  for (const Fill fill : used_) {
    const Paint& paint = kPaints.at(static_cast<std::size_t>(fill));
    const bool plain = std::string_view(paint.colour) == "none";
    out += fmt::format(
        R"(<pattern id="{}-{}" width="6" height="6" patternUnits="userSpaceOnUse"><rect width="6" height="6" {}/>{}</pattern>)",
        name_, paint.name, plain ? "class=\"under\"" : fmt::format("fill=\"{}\"", paint.colour),
        hatch_marks(paint.hatch));
  }
  out += fmt::format("</defs>\n<rect class=\"paper\" width=\"{:.0f}\" height=\"{:.0f}\"/>\n", width, height);
  return {name_, title_, caption, out + body_ + "</svg>\n", false};
}

}  // namespace stagecraft::report
