#pragma once

#include "costmodel/accuracy/calibrate.h"
#include "costmodel/accuracy/compare.h"
#include "costmodel/accuracy/validate.h"
#include "costmodel/doctor/doctor.h"
#include "costmodel/format/checkpoint_manifest.h"
#include "costmodel/format/results/plan_list_json.h"
#include "costmodel/format/results/steps_json.h"
#include "costmodel/graph.h"
#include "costmodel/index.h"
#include "costmodel/plan.h"
#include "costmodel/prediction/predict.h"
#include "costmodel/timeline.h"
#include "costmodel/topology.h"

// One value of each file kind with every field set, so that its document contains every key.

namespace stagecraft {

inline Provenance full_provenance() {
  return {
      "stagecraft-profile 0.1.0", "a processor", {{"torch", "2.11.0"}}, "2026-01-02T03:04:05Z", {{"note", "any text"}}};
}

inline Yardstick full_yardstick() {
  return {"a processor",
          2,
          {{"matrix product of 192 x 192 float32", 0.25_s, 0.375_s, 0.28125_s, 0.125_s, 0.5_s, 4},
           {"copy of 4 MiB", 1_s, 1_s, 1_s, 1_s, 1_s, 4}}};
}

inline Conditions full_conditions() { return {{{1.5, 0.25, 4}, {1, 0, 2}}, full_yardstick()}; }

inline Layer full_layer(const std::string& id) {
  Layer layer;
  layer.id = id;
  layer.name = "the layer " + id;
  layer.kind = "Linear";
  layer.forward = {1.5_s, 0.25_s, 5, 0.5};
  layer.backward = {2_s, 0.5_s, 6, 0.5};
  layer.backward_parts = BackwardParts{{1.25_s, 0.25_s, 6, 0.5}, {1_s, 0.125_s, 6, 0.5}, false};
  layer.accumulation = Timing{0.5_s, 0.125_s, 4, 0.5};
  layer.update = Timing{0.125_s, 0.0625_s, 7, 0.5};
  layer.loading = Timing{0.25_s, 0.0625_s, 8, 0.5};
  layer.outputs = {{16_B, {2, 2}, "float32", true, true}, {8_B, {2}, "int32", false, false}};
  layer.parameter_bytes = 64_B;
  layer.frozen_bytes = 12_B;
  layer.written_bytes = 4_B;
  layer.replicable = false;
  layer.parameters = 16;
  layer.tied = {{"embedding.weight", 32_B}};
  layer.parameter_tensors = {{"embedding.weight", {4, 4}, "bfloat16"}, {id + ".bias", {16}, "bfloat16"}};
  layer.exchanged_buffers = {{id + ".mean", {1}, "float32"}};
  layer.saved_bytes = 24_B;
  layer.workspace_bytes = 4_B;
  layer.gradient_bytes = 64_B;
  layer.saved_for_backward_bytes = 20_B;
  layer.forward_work = Work{Flops(96), 112_B, 2};
  layer.backward_work = Work{Flops(192), 208_B, 5};
  layer.forward_share = LayerShare{15, 16, 3, Timing{1_s, 0.125_s, 9, 0.5}};
  layer.backward_share = LayerShare{20, 21, 4, {}};
  layer.update_share = LayerShare{1, 2, 1, {}};
  layer.stage = 1;
  return layer;
}

/// a -> b twice, through a's two outputs.
inline Graph full_graph() {
  Graph graph;
  graph.name = "full";
  graph.options = {{"width", "8"}};
  graph.microbatch_samples = 2;
  graph.dtype = "bfloat16";
  graph.types = {StateType::Bfloat16, StateType::Bfloat16, StateType::Bfloat16};
  graph.allow_tf32 = false;
  graph.optimizer = "adam";
  graph.optimizer_state_values = 2;
  graph.whole_batch_loss = true;
  graph.library_bytes = 40_B;
  graph.threads = 4;
  graph.iteration = Timing{9_s, 0.5_s, 8, 0.5};
  graph.device = {"a processor", DeviceKind::Processor, 4};
  graph.slowdown = {1.0, 1.5};
  graph.in_flight_slowdown = InFlightSlowdown{4, 1.25};
  ProfileQuality quality;
  quality.clock = "cupti";
  quality.trusted = false;
  quality.reasons = {"2 records were dropped"};
  quality.steps = 10;
  quality.watched_ns = 90;
  quality.data_wait_ns = 5;
  quality.unattributed_ns = 7;
  quality.watched = {9.5_s, 0.25_s, 10, 0.5};
  quality.debiased = true;
  quality.work = 16;
  quality.work_attributed = 14;
  quality.work_ns = 80;
  quality.work_attributed_ns = 72;
  quality.dropped = 2;
  quality.bad_timestamps = 1;
  quality.disagreements = 3;
  quality.host_wait_ns = 4;
  quality.kernel_wait_ns = 6;
  quality.summed_peak_bytes = 500_B;
  quality.allocator_peak_bytes = 512_B;
  graph.quality = quality;
  graph.estimate = Estimate{"another processor", "float32", "tf32", FlopsPerSecond(2e12), BytesPerSecond(3e11), 0.5_s};
  graph.layers = {full_layer("a"), full_layer("b")};
  graph.edges = {{0, 1, 0}, {0, 1, 1}};
  graph.conditions = full_conditions();
  graph.provenance = full_provenance();
  return graph;
}

inline Topology full_topology() {
  Topology topology;
  topology.name = "full";
  topology.device = {"card", 1000_B, {{{1_B, 4_s}}}, {{{1_B, 5_s}}}, DeviceKind::Gpu, 32};
  topology.levels = {{"server",
                      2,
                      {BytesPerSecond(8),
                       0.5_s,
                       {{{1_B, 1_s}, {2_B, 2_s}}, 0.125},
                       {{2, {{{1_B, 3_s}}, 0.25}}},
                       {{2, {{{1_B, 6_s}}}}},
                       {{2, {{{1_B, 7_s}}}}},
                       LinkOrigin::Measured,
                       "gloo",
                       MessageProcessing{MessageThread::Own, {{{1_B, 8_s}}}, {{{1_B, 9_s}}}},
                       {"the machine was busy"}}},
                     {"rack", 2, {BytesPerSecond(4), 1_s, {}, {}}}};
  Link& outer = topology.levels[1].link;
  outer.all_to_all[2] = {{{1_B, 10_s}}};
  outer.spans[{Collective::AllReduce, 4, 2}] = {{{1_B, 11_s}}, 0.5};
  topology.provenance = full_provenance();
  topology.conditions = full_conditions();
  topology.others = {{1, 2, {"other card", 500_B, {}, {}, DeviceKind::Processor, 8}}};
  return topology;
}

inline Plan full_plan() {
  Plan plan;
  plan.model = "full";
  plan.options = {{"width", "8"}};
  plan.microbatch_samples = 2;
  plan.microbatches = 4;
  plan.schedule = "listed";
  plan.chunks = 2;
  plan.strategy = "by hand";
  plan.dtype = "bfloat16";
  plan.types = {StateType::Bfloat16, StateType::Bfloat16, StateType::Bfloat16};
  plan.allow_tf32 = true;
  plan.optimizer = "adamw";
  plan.gradient_bucket_bytes = Bytes(1024);
  plan.sharding = StateSharding::Optimizer;
  plan.stages = {{{"a"}, {0}, true, 2}, {{"b"}, {1}, false}, {{"c"}, {0}, false}, {{"d"}, {1}, false}};
  for (int s = 0; s < 3; ++s) {
    const std::string layer(1, static_cast<char>('a' + s));
    plan.boundaries.push_back(
        {s, s + 1, {{layer, 0, 16_B, {2, 2}, "float32", true}, {layer, 1, 8_B, {2}, "int32", false}}});
  }
  plan.tied = {{"embedding.weight", {"a", "b"}}};
  for (const int s : {0, 1}) {
    plan.stages[to_index(s)].parameters = {
        {plan.stages[to_index(s)].layers.front(), {"embedding.weight", {4, 4}, "bfloat16"}}};
  }
  plan.stages[1].exchanged_buffers = {{"b", {"mean", {}, "float64"}}};
  plan.warmups = {3, 2, 1, 0};
  for (const int rank : {0, 1}) {  // all forwards, then all backwards, one of them in two halves
    plan.listed.emplace_back();
    for (const ActionKind kind : {ActionKind::Forward, ActionKind::Backward}) {
      for (const int stage : {rank, rank + 2}) {
        for (int m = 0; m < 4; ++m) plan.listed.back().push_back({kind, stage, m, -1});
      }
    }
  }
  plan.listed[0].push_back({ActionKind::WeightGradient, 0, 3, -1});
  plan.steady_state = 2_s;
  plan.iteration = 10_s;
  plan.run_iteration = 9_s;
  plan.lower_bound = 9_s;
  plan.sample_work = {1024, Flops(3e12), FlopsPerSecond(8e14), "NVIDIA H100 80GB HBM3 (bfloat16)"};
  plan.provenance = full_provenance();
  return plan;
}

inline Timeline full_timeline() {
  Timeline timeline;
  timeline.ranks = 2;
  timeline.stage_of_rank = {0, 1};
  timeline.steps = {{0, 0_s, 4_s}, {1, 4_s, 7.5_s}};
  timeline.spans = {{0, 0, {ActionKind::Forward, 0, 3, -1}, 0_s, 1_s},
                    {1, 1, {ActionKind::ReceiveActivation, 1, 3, 0}, 4.5_s, 5_s}};
  timeline.memory = {{0, 30_B, {{MemoryPart::Parameters, 10_B}, {MemoryPart::Inputs, 20_B}}}, {1, 5_B, {}}};
  return timeline;
}

inline Prediction full_prediction() {
  Prediction prediction;
  prediction.iteration = 4_s;
  prediction.samples_per_s = 1.5;
  prediction.rates = {1536, FlopsPerSecond(4.5e12), 0.125, "NVIDIA H200 (float32)"};
  prediction.bubble = 0.25;
  prediction.devices = 8;
  prediction.unused_devices = {6, 7};
  prediction.idle_devices = {3};
  StagePrediction stage;
  stage.stage = 1;
  stage.replicas = 2;
  stage.forward = 0.5_s;
  stage.backward = 1_s;
  stage.compute = 1.5_s;
  stage.update = 0.25_s;
  stage.reduce = 0.125_s;
  stage.exposed_transfer = 2_s;
  stage.bubble = 0.125_s;
  stage.in_flight = 3;
  stage.memory = {1, 7_B, {{MemoryPart::Parameters, 7_B}}};
  stage.fits = false;
  StageRanges& ranges = stage.ranges.emplace();
  ranges.forward = {0.25_s, 0.75_s, FigureSource::Measured};
  ranges.backward = {0.5_s, 1.5_s, FigureSource::Assumed};
  ranges.reduce = {0.125_s, 0.25_s, FigureSource::Extrapolated};
  ranges.memory = {6_B, 8_B, FigureSource::Analytic};
  prediction.stages = {stage};
  prediction.yardstick = full_yardstick();
  prediction.other_device = "the graph was measured elsewhere";
  prediction.backward_parts = "half of the backward is assumed";
  prediction.channel = "ucx";
  prediction.changes = {"compute=0.8x", "schedule=gpipe"};
  prediction.reckoned_microbatches = 5;
  prediction.message_processing = "messages are assumed to take no processor time";
  prediction.low = 3.5_s;
  prediction.high = 4.5_s;
  prediction.interval = "variance by source: layers 3.0 % (half-width 2.0 %), model 97.0 % (12.0 %, assumed)";
  prediction.calibration = "compute x 1.1";
  prediction.timeline = full_timeline();
  prediction.scaling = {{2, 16, 8, 5_s, 4_s, 6_s, 2.5, 0.75, 0.5, 0.875, false}};
  prediction.provenance = full_provenance();
  prediction.memory_over_time = {{1, {{0_s, 5_B}, {1_s, 7_B}}}};
  return prediction;
}

inline Measurement full_measurement() {
  Measurement measurement;
  measurement.model = "full";
  measurement.schedule = "1f1b";
  measurement.microbatches = 4;
  measurement.microbatch_samples = 2;
  measurement.losses = {2.5, 1.25};
  measurement.kept = {16, 8, 4};
  measurement.ended = false;
  measurement.timeline = full_timeline();
  measurement.channel = "gloo";
  measurement.conditions = full_conditions();
  measurement.provenance = full_provenance();
  return measurement;
}

inline Calibration full_calibration() {
  Calibration calibration;
  calibration.model = "full";
  calibration.device = "a processor";
  calibration.compute = 1.25;
  calibration.host = 0.5_s;
  calibration.links = {{"rack", 2}, {"server", 0.5}};
  calibration.memory = 1.5;
  calibration.log_half_width = 0.125;
  calibration.width_is_declared = true;
  calibration.runs = 6;
  calibration.plans = 3;
  calibration.error_before = 0.25;
  calibration.error_after = 0.0625;
  calibration.provenance = full_provenance();
  return calibration;
}

inline std::vector<format::StepRecord> full_steps() {
  return {{"profile", "profile mlp -o out/graph.json", "0.1.0", true, {}, {{"out/graph.json", "0123456789abcdef"}}},
          {"run",
           "run out/plan.json --steps 4",
           "0.1.0",
           false,
           {{"out/plan.json", "fedcba9876543210"}, {"data.npy", "16 bytes, changed at 1.000000002"}},
           {},
           format::StartedTraining{"00000000000000ff", 4}}};
}

inline Validation full_validation() {
  Validation validation;
  validation.runs = {{"measured.json", "full", "1f1b", 2, 8, {4_s, 3.5_s, 4.5_s, 5_s, 1}}};
  validation.regimes = {{"all", {2, 0.25, 0.5, 0.75, 1, -0.25}, {3, 2, 0.5, 0.125, 0.25}, {2, 0.5, 0.125}}};
  validation.noise = 0.03;
  return validation;
}

inline format::CheckpointManifest full_checkpoint() {
  format::CheckpointManifest manifest;
  manifest.step = 3;
  manifest.seed = 0xffffffffffffffff;
  manifest.model = "full";
  manifest.options = {{"width", "8"}};
  manifest.optimizer = "sgd";
  manifest.learning_rate = 0.5;
  manifest.momentum = 0.25;
  manifest.weight_decay = 0.125;
  manifest.beta1 = 0.75;
  manifest.beta2 = 0.875;
  manifest.epsilon = 0.0625;
  manifest.optimizer_settings = {{"nesterov", "true"}};
  manifest.data = "synthetic";
  manifest.samples = 24;
  manifest.microbatches = 4;
  manifest.microbatch_samples = 2;
  manifest.loss_scale = 32768;
  manifest.loss_scale_steps = 7;
  manifest.plateau = format::SavedPlateau{0.25, 2.5, 3};
  manifest.finite = false;
  manifest.plan_hash = "0123456789abcdef";
  manifest.files = {{"part-0.safetensors", 104_B, 0x00c0ffee}, {"part-1.safetensors", 0_B, 1}};
  manifest.tensors = {{"fc1.weight",
                       {"F32",
                        {4, 6},
                        {{"part-0.safetensors", {{0, 0}, {1, 6}}},
                         {"part-0.safetensors", {{1, 2}, {3, 4}}},
                         {"part-1.safetensors", {{1, 0}, {3, 2}}}}}},
                      {"optimizer.steps/fc1.weight", {"F32", {}, {{"part-1.safetensors", {}}}}}};
  manifest.manifest_crc32 = 0x01020304;
  manifest.provenance = full_provenance();
  return manifest;
}

inline Comparison full_comparison() {
  Comparison comparison;
  comparison.step = {4_s, 5_s};
  comparison.samples_per_s = Compared<double>{3, 2.5};
  comparison.rates = {{300, FlopsPerSecond(4e12), 0.5, "NVIDIA H200 (float32)"},
                      {250, FlopsPerSecond(3e12), 0.375, "NVIDIA H200 (float32)"}};
  comparison.low = 3.5_s;
  comparison.high = 4.5_s;
  comparison.spread = 0.5_s;
  comparison.steps = 3;
  comparison.skipped = 2;
  comparison.actions = {{1, ActionKind::Backward, {2_s, 2.5_s}}};
  comparison.bubbles = {{1, {0.25, 0.5}}};
  comparison.memory = {{0, {300_B, 200_B}}};
  comparison.distrust = {"other programs kept 1 processor busy"};
  comparison.drift = Drift{{{"copy of 4 MiB", 1.5}}, 1.5};
  comparison.no_drift = "only one of a drift and this is set";
  comparison.ended = false;
  return comparison;
}

inline doctor::Diagnosis full_diagnosis() {
  return {{"topology.json"},
          {{"SC101", doctor::Severity::Warning, "topology.json", "/levels/0", "is slow"},
           {"SC301", doctor::Severity::Error, "plan.json", "", "is for another cluster"}}};
}

inline format::PlanList full_plan_list() {
  format::PlanList list;
  list.model = "chain";
  list.list = "top";
  list.objective = "cost";
  list.min_samples_per_s = 0.5;
  list.price_per_device_hour = 36;
  list.schedule = "1f1b";
  list.microbatches = 4;
  list.memory_limit = 1000_B;
  list.lower_bound = 11_s;
  list.proven = 1;
  list.considered = 3;
  list.plans = {{"optimal",
                 "plans/plan-1.json",
                 {"l0", "l1"},
                 {"0,1", "2"},
                 {2, 1},
                 3,
                 1,
                 0,
                 12_s,
                 0.75,
                 400_B,
                 36_s,
                 0.36,
                 StepParts{8_s, 1_s, 1_s, 1_s, 0.5_s, 0.5_s},
                 true}};
  list.relaxations = {{"without --stages 2", 10_s, true}};
  list.settings = {{.microbatch_samples = 4,
                    .times = "measured with microbatches of 4 samples",
                    .microbatches = 2,
                    .schedule = "gpipe",
                    .recompute = true,
                    .recompute_every = 3,
                    .gradient_bucket_bytes = 1024_B,
                    .sharding = StateSharding::Optimizer,
                    .replicas = {2, 1},
                    .chunks = 1,
                    .step = 12_s,
                    .run_step = 2.5_s,
                    .memory = 400_B,
                    .lower_bound = 11_s,
                    .outcome = "best"}};
  list.skipped = {{"pipedream: finds the number of stages itself", 1}};
  return list;
}

}  // namespace stagecraft
