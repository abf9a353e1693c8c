#include "costmodel/format/throughput_json.h"

#include <cstdint>

namespace stagecraft::format {

void put_rates(Json& out, const WorkRates& rates) {
  if (rates.tokens_per_s) out["tokens_per_s"] = *rates.tokens_per_s;
  if (rates.flops_per_s) out["flops_per_s"] = rates.flops_per_s->value;
  if (rates.peak_share) out["peak_share"] = *rates.peak_share;
  if (!rates.peak_of.empty()) out["peak_of"] = rates.peak_of;
}

WorkRates take_rates(Fields& fields) {
  WorkRates out;
  if (const auto v = fields.optional("tokens_per_s")) out.tokens_per_s = v->not_negative();
  if (const auto v = fields.optional("flops_per_s")) out.flops_per_s = FlopsPerSecond(v->not_negative());
  if (const auto v = fields.optional("peak_share")) out.peak_share = v->not_negative();
  if (const auto v = fields.optional("peak_of")) out.peak_of = v->text();
  return out;
}

Json sample_work_json(const SampleWork& work) {
  Json out = Json::object();
  if (work.tokens) out["tokens"] = *work.tokens;
  if (work.flops) out["flops"] = work.flops->value;
  if (work.peak) out["peak_flops_per_s"] = work.peak->value;
  if (!work.peak_of.empty()) out["peak_of"] = work.peak_of;
  return out;
}

SampleWork read_sample_work(const Cursor& at) {
  Fields fields(at);
  SampleWork out;
  if (const auto v = fields.optional("tokens")) out.tokens = v->integer(1, std::int64_t{1} << 53);
  if (const auto v = fields.optional("flops")) out.flops = Flops(v->positive());
  if (const auto v = fields.optional("peak_flops_per_s")) out.peak = FlopsPerSecond(v->positive());
  if (const auto v = fields.optional("peak_of")) out.peak_of = v->text();
  fields.done();
  return out;
}

}  // namespace stagecraft::format
