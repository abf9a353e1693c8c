#include "profiler/fed_subject.h"

#include <utility>

#include "executor/data/prefetch.h"
#include "executor/device/device.h"
#include "profiler/subject/watch.h"

namespace stagecraft::profiler {

BatchLoader::BatchLoader(const data::DataSource& data, std::vector<int> inputs, std::int64_t samples,
                         c10::Device device)
    : data_(data), inputs_(std::move(inputs)), samples_(samples), device_(device) {}

std::vector<at::Tensor> BatchLoader::load_on_host(std::int64_t step) {
  const double start = steady_seconds();
  std::vector<at::Tensor> out = data::ready_to_upload(data_.batch(step, 0, 1, samples_, inputs_), device_);
  times_.loading.push_back(steady_seconds() - start);
  return out;
}

std::vector<at::Tensor> BatchLoader::load(std::int64_t step) {
  std::vector<at::Tensor> loaded = load_on_host(step);
  if (device_.is_cpu()) return loaded;
  std::vector<at::Tensor> out;
  for (const at::Tensor& tensor : loaded) out.push_back(tensor.to(device_, /*non_blocking=*/true));
  device::synchronize(device_);
  const double again = steady_seconds();
  for (std::size_t i = 0; i < out.size(); ++i) out[i].copy_(loaded[i], /*non_blocking=*/true);
  device::synchronize(device_);
  times_.uploading.push_back(steady_seconds() - again);
  return out;
}

LoadTimes BatchLoader::take() { return std::exchange(times_, {}); }

FedSubject::FedSubject(const model::Model& model, const data::DataSource& data, const ProfileOptions& options,
                       bool update_by_layer)
    : device(options.placement.device),
      subject(model, options.optimizer, options.seed, options.placement, update_by_layer),
      timer(device),
      loader(data, subject.program().data_inputs(), options.microbatch_samples, device),
      batch(loader.load(0)) {}

}  // namespace stagecraft::profiler
