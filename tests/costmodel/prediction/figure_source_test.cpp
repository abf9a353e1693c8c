#include "costmodel/prediction/figure_source.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>

namespace stagecraft {
namespace {

TEST(FigureSource, ReadsBackItsNames) {
  for (const FigureSource source : {FigureSource::Measured, FigureSource::Fitted, FigureSource::Analytic,
                                    FigureSource::Extrapolated, FigureSource::Assumed, FigureSource::Calibrated})
    EXPECT_EQ(figure_source(to_string(source)), source);
  EXPECT_THAT([] { (void)figure_source("guessed"); },
              ::testing::ThrowsMessage<std::invalid_argument>(::testing::HasSubstr(
                  "unknown source \"guessed\", known are measured, fitted, analytic, extrapolated, "
                  "assumed, calibrated")));
}

}  // namespace
}  // namespace stagecraft
