#pragma once

#include <cstddef>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "costmodel/units.h"

namespace stagecraft::report {

/// A finished picture. `name` is the file's name without the suffix, and the prefix of its ids.
struct Picture {
  std::string name;
  std::string title;
  std::string caption;  ///< one or two plain sentences; text, not markup
  std::string inner;    ///< the <svg> element without its style sheet
  bool zooms = false;   ///< the page's script widens its time axis
};

/// The style sheet of all pictures: light, and dark on screens that prefer it.
[[nodiscard]] std::string picture_style();
/// The picture as a separate file.
[[nodiscard]] std::string picture_file(const Picture& picture);

/// What a filled area means. Each has a colour of Okabe and Ito's palette and, except for the plain ones, a hatch.
enum class Fill {
  Forward,
  Backward,
  WeightGradient,
  Reduce,
  Update,
  Wait,
  Compute,
  Transfer,
  Bubble,
  First,
  Second,
  Third,
  Fourth
};

/// Colour of a stage's layers, always light enough for black text; repeats after eight.
[[nodiscard]] std::string stage_colour(int stage);
/// Colour of a curve or mark among several: Okabe and Ito's that stand out on light and dark paper; repeats after six.
[[nodiscard]] const char* series_colour(std::size_t i);
/// Series with the same colour and the same shape of marks are at least this far apart.
constexpr std::size_t kDistinctSeries = 12;
/// Colour of a value among ordered ones, from 0 for the least to 1 for the most: from blue to orange, ever lighter, so
/// that the order shows with any colour vision, and in print.
[[nodiscard]] std::string ramp_colour(double share);

/// Marks reach no further than this from their middle.
constexpr double kMarkRadius = 5.5;

/// A scale: round ticks in a unit that suits the largest value.
struct Axis {
  double begin = 0;           ///< in base units; the first tick
  double end = 1;             ///< in base units; the last tick
  double factor = 1;          ///< base units of one unit
  std::string unit;           ///< "ms", "MiB"
  std::vector<double> ticks;  ///< in base units, ascending
  /// "0.5": the number of units
  [[nodiscard]] std::string label(double value) const;
  /// 0 at `begin`, 1 at `end`.
  [[nodiscard]] double share(double value) const { return (value - begin) / (end - begin); }
};
/// Axis from 0 to at least `most`, with about `count` ticks. Up to 1 if there is nothing to show or a number is not
/// finite.
[[nodiscard]] Axis time_axis(Seconds most, int count);
[[nodiscard]] Axis bytes_axis(Bytes most, int count);
/// Likewise, of plain numbers.
[[nodiscard]] Axis number_axis(double most, int count);
/// Likewise for values from `least` on: where all are close to each other (`least` is above half of `most`), the axis
/// begins just below them.
[[nodiscard]] Axis bytes_axis(Bytes least, Bytes most, int count);
[[nodiscard]] Axis number_axis(double least, double most, int count);

/// Estimated width of text in a font of that size: wide enough for common sans-serif fonts.
[[nodiscard]] double text_width(std::string_view text, double size);
/// `text`, its middle replaced by "…" if it is wider than `width`.
[[nodiscard]] std::string fitted(const std::string& text, double width, double size);

/// Builds the elements of a picture. Coordinates are pixels; all text arguments are plain text, not markup.
class Drawing {
 public:
  Drawing(std::string name, std::string title) : name_(std::move(name)), title_(std::move(title)) {}
  /// `more` are attributes. `tooltip` may be empty.
  void rect(double x, double y, double width, double height, const std::string& paint, const std::string& tooltip = "",
            const std::string& more = "");
  void line(double x1, double y1, double x2, double y2, const std::string& style);
  void path(const std::string& points, const std::string& style, const std::string& tooltip = "");
  /// The mark of series `number`, in its colour, or another one, and one of four shapes; `light`: its outline alone.
  void mark(std::size_t number, double x, double y, const std::string& tooltip, bool light = false,
            const std::string& colour = "");
  void text(double x, double y, const std::string& anchor, const std::string& words, const std::string& style = "ink",
            double size = 11, const std::string& more = "");
  void open(const std::string& attributes) { body_ += "<g " + attributes + ">\n"; }
  void close() { body_ += "</g>\n"; }
  /// Clips elements that refer to "NAME-clip" to a rectangle.
  void clip(double x, double y, double width, double height);
  /// The attribute that paints an area.
  [[nodiscard]] std::string fill(Fill fill);
  /// Coloured squares with words, from `x` on, in lines of at most `width`; returns the height.
  double legend(double x, double y, double width, const std::vector<std::pair<std::string, std::string>>& entries);
  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] Picture finish(double width, double height, const std::string& caption) const;

 private:
  std::string name_, title_, body_, clip_;
  std::set<Fill> used_;
};

}  // namespace stagecraft::report
