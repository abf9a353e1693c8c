#include <gtest/gtest.h>

#include <cctype>
#include <cstdlib>
#include <iostream>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "tests/fuzz/readers.h"

namespace stagecraft::testing {
namespace {

using Random = std::mt19937_64;

std::size_t below(Random& random, std::size_t n) { return n == 0 ? 0 : static_cast<std::size_t>(random() % n); }

const std::vector<std::string> kNumbers = {"-1",
                                           "-0",
                                           "0",
                                           "1",
                                           "2",
                                           "0.5",
                                           "-0.0",
                                           "4.",
                                           "1e3",
                                           "1e-400",
                                           "1e308",
                                           "1e999",
                                           "NaN",
                                           "inf",
                                           "007",
                                           "1e17",
                                           "9007199254740993",
                                           "1152921504606846976",
                                           "1152921504606846977",
                                           "9223372036854775807",
                                           "9223372036854775808",
                                           "18446744073709551616",
                                           "123456789012345678901234567890",
                                           "4.000000000000000000000000000000000"};

const std::vector<std::string> kPieces = {"null",
                                          "true",
                                          "[]",
                                          "{}",
                                          "[",
                                          "]",
                                          "{",
                                          "}",
                                          ",",
                                          ":",
                                          "\"",
                                          "\"a\"",
                                          "\"\"",
                                          "\\",
                                          "\\u0000",
                                          "\\ud800",
                                          " -- ",
                                          "\t",
                                          "\n",
                                          "\r\n",
                                          "\r",
                                          "[4; 8]",
                                          "; ",
                                          ", ",
                                          "=",
                                          "stage_id=1",
                                          "Input",
                                          "\xFF",
                                          "\xC3\xA9",
                                          "\xED\xA0\x80",
                                          "\xEF\xBB\xBF",
                                          std::string(1, '\0'),
                                          std::string(70, '['),
                                          "a",
                                          "b",
                                          "0"};

/// The position and length of the first number in `text` at or after `from`.
std::pair<std::size_t, std::size_t> number_at(const std::string& text, std::size_t from) {
  const std::size_t begin = text.find_first_of("0123456789", from);
  if (begin == text.npos) return {0, 0};
  std::size_t end = begin;
  while (end < text.size() && (std::isdigit(static_cast<unsigned char>(text[end])) || text[end] == '.')) ++end;
  return {begin, end - begin};
}

void mutate(std::string& text, Random& random) {
  const std::size_t at = below(random, text.size() + 1);
  const std::size_t length = std::min(below(random, 40), text.size() - at);
  switch (below(random, 9)) {
    case 0: {
      const auto [begin, n] = number_at(text, at);
      text.replace(begin, n, kNumbers[below(random, kNumbers.size())]);
      break;
    }
    case 1: {
      const auto [begin, n] = number_at(text, at);
      text.replace(begin, n, std::to_string(random() >> below(random, 64)));
      break;
    }
    case 2:
      text.insert(at, kPieces[below(random, kPieces.size())]);
      break;
    case 3:
      text.replace(at, length, kPieces[below(random, kPieces.size())]);
      break;
    case 4:
      text.erase(at, length);
      break;
    case 5:
      text.insert(below(random, text.size() + 1), text.substr(at, length));
      break;
    case 6: {  // repeats or removes a line
      const std::size_t end = std::min(text.find('\n', at), text.size());
      const std::size_t begin = at == 0 ? 0 : text.rfind('\n', at - 1) + 1;
      const std::string line = text.substr(begin, end - begin + 1);
      if (random() % 2 == 0)
        text.erase(begin, line.size());
      else
        text.insert(begin, line);
      break;
    }
    case 7:
      if (at < text.size()) text[at] = static_cast<char>(random());
      break;
    default:
      if (random() % 8 == 0) text.resize(at);
  }
}

class Reader : public ::testing::TestWithParam<FuzzedReader> {};

TEST_P(Reader, TakesAMutatedDocumentWholeOrThrowsFormatError) {
  const char* const wanted = std::getenv("STAGECRAFT_FUZZ_SEED");
  const std::uint64_t seed = wanted != nullptr ? std::strtoull(wanted, nullptr, 10) : 20260101;
  const char* const rounds_wanted = std::getenv("STAGECRAFT_FUZZ_ROUNDS");
  const std::uint64_t rounds = rounds_wanted != nullptr ? std::strtoull(rounds_wanted, nullptr, 10) : 4000;
  std::cout << "STAGECRAFT_FUZZ_SEED=" << seed << " STAGECRAFT_FUZZ_ROUNDS=" << rounds << "\n";
  const FuzzedReader& reader = GetParam();
  ASSERT_FALSE(reader.seeds.empty());
  for (const std::string& document : reader.seeds) ASSERT_TRUE(reader.check(document));
  Random random(seed);
  std::uint64_t taken = 0;
  for (std::uint64_t round = 0; round < rounds; ++round) {
    std::string text = reader.seeds[below(random, reader.seeds.size())];
    for (std::size_t n = 1 + below(random, 3); n > 0; --n) mutate(text, random);
    try {
      if (reader.check(text)) ++taken;
    } catch (const std::exception& e) { FAIL() << "round " << round << ": " << e.what() << "\n" << text; }
  }
  std::cout << "taken: " << taken << "\n";
  EXPECT_GT(taken, rounds / 100) << "the mutations leave too little that a reader takes";
  EXPECT_LT(taken, rounds);
}

INSTANTIATE_TEST_SUITE_P(Fuzz, Reader, ::testing::ValuesIn(fuzzed_readers()),
                         [](const auto& tested) { return tested.param.name; });

}  // namespace
}  // namespace stagecraft::testing
