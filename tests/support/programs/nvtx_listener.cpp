#include <nvtx3/nvToolsExt.h>

#include <cstdio>
#include <cstdlib>
#include <forward_list>
#include <mutex>
#include <string>

// An NVTX tool: loaded through NVTX_INJECTION64_PATH, it writes the ranges of every domain to the file
// STAGECRAFT_TEST_RANGES, one line per event: "THREAD push DOMAIN NUMBER NAME" and "THREAD pop DOMAIN".

namespace {

std::mutex mutex;
std::FILE* out = nullptr;
int threads = 0;

/// The number of this thread; threads are numbered in the order of their first range.
int own_number() {
  thread_local const int number = threads++;
  return number;
}

/// A copy of the text that lives as long as the process.
const char* kept(const char* text) {
  static auto* const texts = new std::forward_list<std::string>;
  const std::lock_guard lock(mutex);
  return texts->emplace_front(text).c_str();
}

const char* text_of(const void* handle) { return static_cast<const char*>(handle); }

nvtxDomainHandle_t create_domain(const char* name) {
  return reinterpret_cast<nvtxDomainHandle_t>(const_cast<char*>(kept(name)));
}
nvtxStringHandle_t register_string(nvtxDomainHandle_t, const char* text) {
  return reinterpret_cast<nvtxStringHandle_t>(const_cast<char*>(kept(text)));
}
int push(nvtxDomainHandle_t domain, const nvtxEventAttributes_t* attributes) {
  const std::lock_guard lock(mutex);
  const bool registered = attributes->messageType == NVTX_MESSAGE_TYPE_REGISTERED;
  std::fprintf(out, "%d push %s %lld %s\n", own_number(), text_of(domain),
               static_cast<long long>(attributes->payload.llValue),
               registered ? text_of(attributes->message.registered) : "not registered");
  std::fflush(out);
  return 0;
}
int pop(nvtxDomainHandle_t domain) {
  const std::lock_guard lock(mutex);
  std::fprintf(out, "%d pop %s\n", own_number(), text_of(domain));
  std::fflush(out);
  return 0;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) int InitializeInjectionNvtx2(NvtxGetExportTableFunc_t table_of) {
  const char* path = std::getenv("STAGECRAFT_TEST_RANGES");
  if (!path) return 0;
  if (!out) out = std::fopen(path, "w");
  const auto* callbacks = static_cast<const NvtxExportTableCallbacks*>(table_of(NVTX_ETID_CALLBACKS));
  NvtxFunctionTable functions = nullptr;
  unsigned int count = 0;
  if (!out || !callbacks || !callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE2, &functions, &count)) return 0;
  *functions[NVTX_CBID_CORE2_DomainCreateA] = reinterpret_cast<NvtxFunctionPointer>(create_domain);
  *functions[NVTX_CBID_CORE2_DomainRegisterStringA] = reinterpret_cast<NvtxFunctionPointer>(register_string);
  *functions[NVTX_CBID_CORE2_DomainRangePushEx] = reinterpret_cast<NvtxFunctionPointer>(push);
  *functions[NVTX_CBID_CORE2_DomainRangePop] = reinterpret_cast<NvtxFunctionPointer>(pop);
  return 1;
}
