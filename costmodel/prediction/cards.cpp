#include "costmodel/prediction/cards.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <set>
#include <stdexcept>

#include "costmodel/errors.h"
#include "costmodel/text/table.h"

namespace stagecraft {
namespace {

/// A card in the units of datasheets: TFLOP/s, GB/s and GB; 0: absent.
struct CardRow {
  const char* name;
  const char* short_name;
  double float32, tf32, float16, bfloat16, bandwidth, memory;
  const char* source;
};

// Public pages that repeat the vendor's figures; the datasheets themselves were not at hand.
// Datasheets since Ampere print many tensor-core rates with sparsity, twice what dense tensors reach: those are halved.
constexpr const char* kV100 = "io-tech.fi, June 2017 (PCIe); grokipedia.opelly.me (SXM2)";
constexpr const char* kRtx2080Ti = "gpu.spicedreamphone.com/ru/gpu/nvidia/geforce-rtx-2080-ti";
constexpr const char* kTitanRtx = "tomshardware.com/news/nvidia-titan-rtx-specs-pricing,38184.html";
constexpr const char* kT4 = "geektopia.es, September 2018; sysrqmts.com/en/gpus/nvidia/tesla/t4";
constexpr const char* kA100 = "glennklockwood.com/garden/processors/A100; thundercompute.com";
constexpr const char* kRtx3090 = "holynerdvana.blogspot.com, GeForce RTX 3090 specifications";
constexpr const char* kRtx4090 = "waredb.com/processor/nvidia-geforce-rtx-4090";
constexpr const char* kL4 = "fpsbench.com, store.sourcecode.com, grokipedia.com/page/NVIDIA_L4_vs_L40S; halved";
constexpr const char* kL40S = "mullet.se, product 355414";
constexpr const char* kH100 = "archive-lib.hpctech.co.jp/gpuproduct/nvidia-h100.html; halved";
constexpr const char* kH200 = "itkb.uw.cz, H200 vs B300; anandtech.com/show/21136; H100's rates";
constexpr const char* kGH200 = "nishikiout.net, August 2023 (memory); H100's rates";

// 7.7 TB/s as for one GPU; 64 TB/s of a DGX B200 would be 8.
constexpr const char* kB200 = "verda.com/blog/gb300-nvl72-architecture; glennklockwood.com/garden/processors/B200";
// As other pages quote it, of a superchip with two GPUs.
constexpr const char* kGB200 = "nvidia.com/en-us/data-center/gb200-nvl72; halved";

constexpr CardRow kRows[] = {
    {"Tesla V100-SXM2-16GB", "V100-SXM2-16GB", 15.7, 0, 125, 0, 900, 16, kV100},
    {"Tesla V100-SXM2-32GB", "V100-SXM2-32GB", 15.7, 0, 125, 0, 900, 32, kV100},
    {"Tesla V100-PCIE-16GB", "V100-PCIe-16GB", 14, 0, 112, 0, 900, 16, kV100},
    {"NVIDIA GeForce RTX 2080 Ti", "RTX-2080-Ti", 13.45, 0, 0, 0, 616, 11, kRtx2080Ti},
    {"NVIDIA TITAN RTX", "Titan-RTX", 16.3, 0, 130, 0, 672, 24, kTitanRtx},
    {"Tesla T4", "T4", 8.1, 0, 65, 0, 320, 16, kT4},
    {"NVIDIA A100-SXM4-40GB", "A100-SXM-40GB", 19.5, 156, 312, 312, 1555, 40, kA100},
    {"NVIDIA A100-PCIE-40GB", "A100-PCIe-40GB", 19.5, 156, 312, 312, 1555, 40, kA100},
    {"NVIDIA A100-SXM4-80GB", "A100-SXM-80GB", 19.5, 156, 312, 312, 2039, 80, kA100},
    {"NVIDIA A100 80GB PCIe", "A100-PCIe-80GB", 19.5, 156, 312, 312, 1935, 80, kA100},
    {"NVIDIA GeForce RTX 3090", "RTX-3090", 35.6, 0, 0, 0, 936, 24, kRtx3090},
    {"NVIDIA GeForce RTX 4090", "RTX-4090", 82.6, 82.6, 165.2, 165.2, 1008, 24, kRtx4090},
    {"NVIDIA L4", "L4", 30.3, 60, 121, 121, 300, 24, kL4},
    {"NVIDIA L40S", "L40S", 91.6, 183, 362.05, 362.05, 864, 48, kL40S},
    {"NVIDIA H100 PCIe", "H100-PCIe-80GB", 51, 378, 756.5, 756.5, 2000, 80, kH100},
    {"NVIDIA H100 80GB HBM3", "H100-SXM-80GB", 67, 494.5, 989.5, 989.5, 3350, 80, kH100},
    {"NVIDIA H200", "H200-SXM-141GB", 67, 494.5, 989.5, 989.5, 4800, 141, kH200},
    {"NVIDIA GH200 480GB", "GH200-96GB", 67, 494.5, 989.5, 989.5, 4000, 96, kGH200},
    {"NVIDIA B200", "B200-SXM-180GB", 75, 1100, 2250, 2250, 7700, 180, kB200},
    {"NVIDIA GB200", "GB200-186GB", 80, 1250, 2500, 2500, 8000, 186, kGB200},
};

std::optional<FlopsPerSecond> rate(double tera) {
  if (tera == 0) return std::nullopt;
  return FlopsPerSecond(tera * 1e12);
}

Card card_of(const CardRow& row) {
  return {row.name,
          row.short_name,
          FlopsPerSecond(row.float32 * 1e12),
          rate(row.tf32),
          rate(row.float16),
          rate(row.bfloat16),
          BytesPerSecond(row.bandwidth * 1e9),
          Bytes(static_cast<std::int64_t>(row.memory * 1e9)),
          row.source};
}

std::string lower(std::string text) {
  std::ranges::transform(text, text.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

/// Letters and digits that belong together, without the vendor's brands.
std::set<std::string> words_of(const std::string& text) {
  std::set<std::string> out;
  std::string word;
  for (const char c : lower(text) + " ") {
    if (std::isalnum(static_cast<unsigned char>(c)) != 0) {
      word += c;
    } else if (!word.empty()) {
      out.insert(word);
      word.clear();
    }
  }
  for (const char* brand : {"nvidia", "tesla", "geforce"}) out.erase(brand);
  return out;
}

/// The dtype of tensors, as a graph names it; empty: float32.
std::string dtype_name(const std::string& dtype) { return dtype.empty() ? "float32" : dtype; }

/// The rate for a dtype; absent if it is not in the table.
std::optional<FlopsPerSecond> rate_of(const Card& card, const std::string& dtype, bool allow_tf32) {
  const std::string name = dtype_name(dtype);
  if (name == "float32") return allow_tf32 && card.tf32 ? card.tf32 : card.float32;
  if (name == "float16") return card.float16;
  return name == "bfloat16" ? card.bfloat16 : std::nullopt;
}

/// The card with this name or short name, else those whose two names together have all words of `name`.
std::vector<const Card*> cards_called(const std::string& name) {
  // Every prediction asks for a peak.
  static const std::vector<std::set<std::string>> words_of_cards = [] {
    std::vector<std::set<std::string>> out;
    for (const Card& card : cards()) out.push_back(words_of(card.name + " " + card.short_name));
    return out;
  }();
  const std::string wanted = lower(name);
  const std::set<std::string> words = words_of(name);
  std::vector<const Card*> found;
  for (std::size_t i = 0; i < cards().size(); ++i) {
    const Card& card = cards()[i];
    if (wanted == lower(card.name) || wanted == lower(card.short_name)) return {&card};
    if (!words.empty() && std::ranges::includes(words_of_cards[i], words)) found.push_back(&card);
  }
  return found;
}

std::string tera_text(const std::optional<FlopsPerSecond>& rate) {
  return rate ? fmt::format("{:g}", rate->value / 1e12) : "-";
}

}  // namespace

const std::vector<Card>& cards() {
  static const std::vector<Card> all = [] {
    std::vector<Card> out;
    for (const CardRow& row : kRows) out.push_back(card_of(row));
    return out;
  }();
  return all;
}

const Card& find_card(const std::string& name) {
  const std::vector<const Card*> found = cards_called(name);
  if (found.size() == 1) return *found.front();
  std::vector<std::string> known;
  if (found.empty()) {
    for (const Card& card : cards()) known.push_back(card.short_name);
    throw InputError(ErrorKind::UnknownName, unknown_name("card", name, known));
  }
  std::string candidates;
  for (const Card* card : found) candidates += (candidates.empty() ? "" : ", ") + card->short_name;
  throw std::invalid_argument("card \"" + name + "\" may be any of " + candidates);
}

FlopsPerSecond peak_rate(const Card& card, const std::string& dtype, bool allow_tf32) {
  const std::vector<std::string> known{"float32", "float16", "bfloat16"};
  if (std::ranges::find(known, dtype_name(dtype)) == known.end())
    throw InputError(ErrorKind::UnknownName, unknown_name("dtype", dtype, known));
  if (const auto rate = rate_of(card, dtype, allow_tf32)) return *rate;
  throw std::invalid_argument("the peak rate of " + card.name + " for " + dtype + " is not in the table of cards");
}

std::optional<Peak> known_peak(const std::string& name, const std::string& dtype, bool allow_tf32) {
  std::set<double> rates;
  for (const Card* card : cards_called(name)) {
    const auto rate = rate_of(*card, dtype, allow_tf32);
    if (!rate) return std::nullopt;
    rates.insert(rate->value);
  }
  if (rates.size() != 1) return std::nullopt;
  const std::string type = dtype_name(dtype);
  const std::string math = type == "float32" && allow_tf32 ? "tf32" : type;
  return Peak{FlopsPerSecond(*rates.begin()), name + " (" + math + ")"};
}

bool uses_tensor_cores(const Card& card, const std::string& dtype, bool allow_tf32) {
  return dtype == "float16" || dtype == "bfloat16" || (allow_tf32 && card.tf32.has_value());
}

std::string cards_text() {
  std::vector<std::vector<std::string>> rows;
  for (const Card& card : cards()) {
    rows.push_back({card.short_name, card.name, tera_text(card.float32), tera_text(card.tf32), tera_text(card.float16),
                    tera_text(card.bfloat16), fmt::format("{:g}", card.bandwidth.value / 1e9),
                    fmt::format("{:g}", static_cast<double>(card.memory.value) / 1e9), card.source});
  }
  return table_text({{.title = "card", .left = true},
                     {.title = "name", .left = true},
                     {.title = "float32"},
                     {.title = "tf32"},
                     {.title = "float16"},
                     {.title = "bfloat16"},
                     {.title = "GB/s"},
                     {.title = "GB"},
                     {.title = "source", .left = true}},
                    rows, 250) +
         "rates in TFLOP/s, dense; -: not confirmed, or the card has none (tf32: as float32)\n";
}

}  // namespace stagecraft
