#include "executor/intake/graph/calls/operator_facts.h"

#include <ATen/core/jit_type.h>

#include <algorithm>
#include <array>
#include <set>

#include "costmodel/errors.h"
#include "costmodel/index.h"

namespace stagecraft::intake {
namespace {

void collect_sets(const c10::AliasInfo* info, std::set<c10::Symbol>& out) {
  if (!info) return;
  out.insert(info->beforeSets().begin(), info->beforeSets().end());
  for (const c10::AliasInfo& inner : info->containedTypes()) collect_sets(&inner, out);
}

bool writes(const c10::AliasInfo* info) {
  if (!info) return false;
  if (info->isWrite()) return true;
  return std::ranges::any_of(info->containedTypes(), [](const c10::AliasInfo& inner) { return writes(&inner); });
}

bool to_wildcard(const c10::AliasInfo* info) { return info && info->isWildcardAfter(); }

/// Operators that may return their arguments although their schemas do not say so, besides those with the tag
/// maybe_aliasing_or_mutating.
bool may_give_argument(const std::string& name) {
  static constexpr std::array kNames{"aten::broadcast_tensors",
                                     "aten::meshgrid",
                                     "aten::einsum",
                                     "aten::type_as",
                                     "aten::sum_to_size",
                                     "aten::align_as",
                                     "aten::align_tensors",
                                     "aten::pad",
                                     "aten::chain_matmul",
                                     "aten::linalg_multi_dot",
                                     "aten::matrix_power",
                                     "aten::linalg_matrix_power",
                                     "aten::atleast_1d",
                                     "aten::atleast_2d",
                                     "aten::atleast_3d",
                                     "aten::tensordot",
                                     "aten::chalf",
                                     "aten::to_dense",
                                     "aten::combinations",
                                     "aten::diag",
                                     "aten::float_power",
                                     "aten::data",
                                     "aten::unflatten_dense_tensors"};
  return std::ranges::find(kNames, name) != kNames.end() || name.starts_with("aten::_cast_");
}

/// Operators that are too expensive to compute again in several stages.
bool is_heavy(const std::string& name) {
  static constexpr std::array kParts{"conv",
                                     "linear",
                                     "matmul",
                                     "::mm",
                                     "bmm",
                                     "addmm",
                                     "einsum",
                                     "lstm",
                                     "gru",
                                     "rnn",
                                     "scaled_dot_product",
                                     "embedding",
                                     "_norm",
                                     "cdist",
                                     "upsample",
                                     "svd",
                                     "eig",
                                     "fft",
                                     "multi_head",
                                     "bilinear"};
  return std::ranges::any_of(kParts, [&](const char* part) { return name.find(part) != std::string::npos; });
}

/// The arguments by the schema's names.
class Arguments {
 public:
  Arguments(const c10::FunctionSchema& schema, const std::vector<CallArgument>& given)
      : schema_(schema), given_(given) {}

  [[nodiscard]] const CallArgument* find(const char* name) const {
    const auto it = std::ranges::find(schema_.arguments(), name, &c10::Argument::name);
    const auto at = to_index(it - schema_.arguments().begin());
    return at < given_.size() ? &given_[at] : nullptr;
  }
  [[nodiscard]] bool is(const char* name, bool wanted) const {
    const CallArgument* const found = find(name);
    return found && found->constant && found->constant->isBool() && found->constant->toBool() == wanted;
  }
  [[nodiscard]] double number(const char* name, double otherwise) const {
    const CallArgument* const found = find(name);
    if (!found || !found->constant) return otherwise;
    if (found->constant->isDouble()) return found->constant->toDouble();
    if (found->constant->isInt()) return static_cast<double>(found->constant->toInt());
    return otherwise;
  }
  [[nodiscard]] int value(const char* name) const {
    const CallArgument* const found = find(name);
    return found ? found->value : -1;
  }

 private:
  const c10::FunctionSchema& schema_;
  const std::vector<CallArgument>& given_;
};

bool draws(const c10::OperatorHandle* op, const Arguments& arguments) {
  if (!op || !op->hasTag(at::Tag::nondeterministic_seeded)) return false;
  if (arguments.is("train", false) || arguments.is("training", false)) return false;
  for (const char* name : {"p", "dropout", "dropout_p"}) {
    if (arguments.find(name) && arguments.number(name, 1) == 0) return false;
  }
  return true;
}

}  // namespace

NodeFacts operator_facts(const c10::FunctionSchema& schema, const c10::OperatorHandle* op,
                         const std::vector<CallArgument>& arguments, const std::vector<std::vector<int>>& results,
                         const std::string& place) {
  NodeFacts out;
  const Arguments named(schema, arguments);
  const bool unannotated = (op && op->hasTag(at::Tag::maybe_aliasing_or_mutating)) || may_give_argument(schema.name());
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    if (writes(schema.arguments()[i].alias_info()))
      out.writes.insert(out.writes.end(), arguments[i].tensors.begin(), arguments[i].tensors.end());
  }
  for (std::size_t r = 0; r < std::min(results.size(), schema.returns().size()); ++r) {
    std::set<c10::Symbol> sets;
    collect_sets(schema.returns()[r].alias_info(), sets);
    for (std::size_t i = 0; i < arguments.size(); ++i) {
      std::set<c10::Symbol> theirs;
      collect_sets(schema.arguments()[i].alias_info(), theirs);
      const bool shared = std::ranges::any_of(sets, [&](const c10::Symbol& s) { return theirs.contains(s); }) ||
                          (!sets.empty() && to_wildcard(schema.arguments()[i].alias_info())) ||
                          sets.contains(c10::AliasInfo::wildcardSet());
      if (!shared && !unannotated) continue;
      // batch_norm has the tag because of its statistics; its result is new.
      if (unannotated && !shared && schema.name().find("batch_norm") != std::string::npos) continue;
      for (const int result : results[r]) {
        for (const int read : arguments[i].tensors) out.aliases.emplace_back(result, read);
      }
    }
  }

  const bool normalises = schema.name() == "aten::batch_norm" || schema.name() == "aten::native_batch_norm" ||
                          schema.name() == "aten::instance_norm";
  if (normalises && named.is(schema.name() == "aten::instance_norm" ? "use_input_stats" : "training", true)) {
    for (const char* statistic : {"running_mean", "running_var"}) {
      const int value = named.value(statistic);
      if (value < 0) continue;
      out.writes.push_back(value);
      out.decays.emplace_back(value, 1 - named.number("momentum", 0.1));
    }
  } else if (schema.name() == "aten::add_" && out.writes.size() == 1) {
    if (named.value("other") != out.writes.front()) out.decays.emplace_back(out.writes.front(), 1);
  } else if (schema.name() == "aten::mul_" && out.writes.size() == 1 && named.value("other") < 0) {
    out.decays.emplace_back(out.writes.front(), named.number("other", 1));
  }
  if ((schema.name() == "aten::embedding" || schema.name() == "aten::embedding_bag") && named.is("sparse", true))
    throw FormatError(ErrorKind::UnsupportedModel,
                      place + ": the embedding has sparse gradients, which stages cannot add; set sparse=False");
  out.random = draws(op, named);
  out.repeatable = !out.random && !is_heavy(schema.name());
  return out;
}

}  // namespace stagecraft::intake
