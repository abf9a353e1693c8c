#include "costmodel/report/drawing.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

namespace stagecraft::report {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(Axis, HasRoundTicksInTheLargestUnitThatIsNotTooLarge) {
  const Axis times = time_axis(0.0123_s, 5);  // 12.3 ms, in 5 parts 2.46 each: 5, as 2 is too small
  EXPECT_EQ(times.unit, "ms");
  std::vector<std::string> labels;
  for (const double tick : times.ticks) labels.push_back(times.label(tick));
  EXPECT_THAT(labels, ElementsAre("0", "5", "10", "15"));
  // 4200 B are 4.1 KiB, in 3 parts 1.37 KiB each: 2, as 1 is too small.
  const Axis bytes = bytes_axis(Bytes(4200), 3);
  EXPECT_EQ(bytes.unit, "KiB");
  EXPECT_THAT(bytes.ticks, ElementsAre(0, 2048, 4096, 6144));
  EXPECT_EQ(bytes.end, 6144);
  EXPECT_EQ(bytes.label(512), "0.5");
  EXPECT_EQ(time_axis(1_s, 2).unit, "s");
  EXPECT_EQ(time_axis(0.999_s, 2).unit, "ms");
  EXPECT_THAT(number_axis(40, 4).ticks, ElementsAre(0, 10, 20, 30, 40));  // a tick at the most is the last one
  EXPECT_EQ(number_axis(40, 4).unit, "");
  // 3 in 4 parts are 0.75 each: ticks of 1 from the last one below 97.5 on.
  EXPECT_THAT(number_axis(97.5, 100.5, 4).ticks, ElementsAre(97, 98, 99, 100, 101));
  EXPECT_EQ(number_axis(97.5, 100.5, 4).share(98), 0.25);
  EXPECT_THAT(number_axis(20, 40, 4).ticks, ElementsAre(0, 10, 20, 30, 40));        // not above half of it
  EXPECT_EQ(number_axis(100, 100.4, 4).begin, 0);                                   // nearly equal
  EXPECT_EQ(number_axis(100, 100, 4).begin, 0);                                     // no range
  EXPECT_THAT(bytes_axis(3072_B, 4096_B, 2).ticks, ElementsAre(3072, 3584, 4096));  // 3, 3.5 and 4 KiB
}

TEST(Axis, IsOneUnitLongWithNothingToShow) {
  for (const double nothing :
       {0.0, -1.0, std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()}) {
    EXPECT_EQ(number_axis(nothing, 2).end, 1) << nothing;
    EXPECT_EQ(time_axis(Seconds(nothing), 2).unit, "ns") << nothing;
  }
}

TEST(Fitted, KeepsBothEndsOfWhatIsTooWide) {
  const double letter = text_width("x", 10);
  EXPECT_EQ(text_width("äöü", 10), 3 * letter);  // characters, not bytes
  EXPECT_EQ(fitted("abcdef", 6 * letter, 10), "abcdef");
  EXPECT_EQ(fitted("abcdef", 5 * letter, 10), "ab…ef");
  EXPECT_EQ(fitted("äbcdéf", 4 * letter, 10), "äb…f");
  EXPECT_EQ(fitted("abcdef", 0, 10), "…");
}

TEST(Colours, RepeatAfterEightStagesAndSixSeries) {
  EXPECT_EQ(stage_colour(8), stage_colour(0));
  EXPECT_NE(stage_colour(7), stage_colour(0));
  EXPECT_STREQ(series_colour(6), series_colour(0));
  EXPECT_STRNE(series_colour(5), series_colour(0));
}

TEST(Drawing, IsAnSvgWithWhatWasDrawnInOrder) {
  Drawing drawing("one", "a < b");
  drawing.open("id=\"group\"");
  drawing.rect(1, 2, 3, -4, drawing.fill(Fill::Forward), "wide & flat");
  drawing.text(5, 6, "end", "<words>");
  drawing.close();
  const Picture picture = drawing.finish(100, 50, "says \"this\"");
  EXPECT_EQ(picture.name, "one");
  EXPECT_EQ(picture.title, "a < b");
  EXPECT_FALSE(picture.zooms);
  EXPECT_THAT(picture.inner, HasSubstr(R"(id="one" role="img" width="100" height="50" viewBox="0 0 100 50">)"));
  EXPECT_THAT(picture.inner, HasSubstr("<title>a &lt; b</title>\n<desc>says &quot;this&quot;</desc>\n"));
  // A width below zero is none.
  EXPECT_THAT(picture.inner,
              HasSubstr("<g id=\"group\">\n<rect x=\"1.00\" y=\"2.00\" width=\"3.00\" height=\"0.00\" "
                        "fill=\"#56b4e9\"><title>wide &amp; flat</title></rect>\n<text x=\"5.00\" y=\"6.00\" "
                        "text-anchor=\"end\" font-size=\"11\" class=\"ink\">&lt;words&gt;</text>\n</g>\n</svg>\n"));
}

TEST(Drawing, DefinesEachHatchThatItUsesOnceUnderItsName) {
  Drawing drawing("one", "");
  EXPECT_EQ(drawing.fill(Fill::Backward), "fill=\"url(#one-backward)\"");
  (void)drawing.fill(Fill::Backward);
  (void)drawing.fill(Fill::Compute);  // has no hatch
  const std::string inner = drawing.finish(10, 10, "").inner;
  EXPECT_THAT(inner, HasSubstr("<pattern id=\"one-backward\""));
  EXPECT_EQ(inner.find("<pattern"), inner.rfind("<pattern"));
  EXPECT_THAT(inner, HasSubstr("fill=\"#e69f00\""));
}

TEST(Drawing, StartsALineOfTheLegendWhereAnEntryDoesNotFit) {
  const std::string paint = "fill=\"red\"";
  const double entry = 18 + text_width("four", 11) + 16;  // the square, the words, the gap
  EXPECT_EQ(Drawing("one", "").legend(0, 0, 2 * entry, {{paint, "four"}, {paint, "more"}}), 18);
  Drawing drawing("one", "");
  EXPECT_EQ(drawing.legend(10, 20, 2 * entry - 1, {{paint, "four"}, {paint, "more"}}), 36);
  const std::string inner = drawing.finish(10, 10, "").inner;
  EXPECT_THAT(inner, HasSubstr("<rect x=\"10.00\" y=\"20.00\""));
  EXPECT_THAT(inner, HasSubstr("<rect x=\"10.00\" y=\"38.00\""));
}

TEST(PictureFile, HasTheStyleSheetThatAPageHasOnce) {
  const Picture picture = Drawing("one", "two").finish(10, 10, "");
  EXPECT_THAT(picture.inner, Not(HasSubstr("<style>")));
  EXPECT_THAT(picture_file(picture), HasSubstr("<style>\n" + picture_style() + "</style>\n<title>two</title>"));
}

}  // namespace
}  // namespace stagecraft::report
