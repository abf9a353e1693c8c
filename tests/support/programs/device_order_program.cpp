// device_order_program STEP...: takes the steps one after the other, in a process that has done nothing else. Prints
// "usable", or the reason, for `load`; CUDA's number of queues for `queues`; the error of `open`, if any.
#include <ATen/ops/conv1d.h>
#include <ATen/ops/ones.h>

#include <cstdlib>
#include <iostream>
#include <string>

#include "costmodel/errors.h"
#include "executor/device/device.h"

namespace {

void take(const std::string& step) {
  using namespace stagecraft;
  if (step == "convolve") (void)at::conv1d(at::ones({1, 1, 3}), at::ones({1, 1, 3}));
  if (step == "backward") {
    const at::Tensor x = at::ones({2}).set_requires_grad(true);
    x.mul(x).sum().backward();
  }
  if (step == "add") (void)at::ones({2}).add(1);
  if (step == "prepare") device::prepare_device("cuda");
  if (step == "prepare-cpu") device::prepare_device("cpu");
  if (step == "load") std::cout << device::load_cuda_libraries().value_or("usable") << "\n";
  if (step == "queues") {
    const char* const queues = std::getenv("CUDA_DEVICE_MAX_CONNECTIONS");
    std::cout << (queues ? queues : "unset") << "\n";
  }
  // No machine has so many: the error tells how many GPUs LibTorch sees.
  if (step == "open") {
    try {
      (void)device::open_device("cuda:99");
    } catch (const DeviceError& error) { std::cout << error.what() << "\n"; }
  }
}

}  // namespace

int main(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) take(argv[i]);
  std::cout.flush();
  std::_Exit(0);  // the CUDA libraries' own ends take a driver for granted
}
