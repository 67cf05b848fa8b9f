// NVML without a device: what `cudart.cpp` counts, this process as the only one besides "others".

#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>

extern "C" {

void emulated_cuda_memory(int device, size_t* total, size_t* used, size_t* by_others);

using Device = uintptr_t; // 1 + its index
constexpr int kNotFound = 6, kTooSmall = 7, kNotSupported = 3;
constexpr int kDevices = 2;

struct Memory {
  unsigned long long total, free, used;
};
struct Process {
  unsigned pid;
  unsigned long long used;
  unsigned instance, compute_instance;
};

int nvmlInit_v2() {
  return 0;
}
int nvmlInitWithFlags(unsigned) {
  return 0;
}
int nvmlShutdown() {
  return 0;
}
const char* nvmlErrorString(int) {
  return "an error of the emulated NVML";
}
int nvmlDeviceGetCount_v2(unsigned* out) {
  *out = kDevices;
  return 0;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, Device* out) {
  *out = index + 1;
  return index < kDevices ? 0 : kNotFound;
}
int nvmlDeviceGetHandleByPciBusId_v2(const char* bus, Device* out) {
  unsigned domain = 0, at = 0;
  std::sscanf(bus, "%x:%x", &domain, &at);
  *out = at;
  return at >= 1 && at <= kDevices ? 0 : kNotFound;
}
int nvmlDeviceGetUUID(Device device, char* out, unsigned size) {
  auto one = unsigned(device);
  std::snprintf(
      out, size, "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", one,
      one, one, one, one, one, one, one, one, one, one, one, one, one, one, one);
  return 0;
}
int nvmlDeviceGetHandleByUUID(const char* uuid, Device* out) {
  for (Device device = 1; device <= kDevices; device++) {
    char name[64];
    nvmlDeviceGetUUID(device, name, sizeof name);
    if (std::strcmp(name, uuid) == 0) {
      *out = device;
      return 0;
    }
  }
  return kNotFound;
}
int nvmlDeviceGetMemoryInfo(Device device, Memory* out) {
  size_t total, used, by_others;
  emulated_cuda_memory(int(device) - 1, &total, &used, &by_others);
  *out = {total, total - used - by_others, used + by_others};
  return 0;
}
int nvmlDeviceGetComputeRunningProcesses_v3(Device device, unsigned* count, Process* out) {
  size_t total, used, by_others;
  emulated_cuda_memory(int(device) - 1, &total, &used, &by_others);
  unsigned wanted = by_others ? 2 : 1;
  auto room = *count;
  *count = wanted;
  if (room < wanted) {
    return kTooSmall;
  }
  out[0] = {unsigned(getpid()), used, ~0u, ~0u};
  if (by_others) {
    out[1] = {1, by_others, ~0u, ~0u};
  }
  return 0;
}
// The record without the numbers of instances, which torch asks for.
int nvmlDeviceGetComputeRunningProcesses(Device device, unsigned* count, void* out) {
  Process found[2];
  auto room = *count;
  *count = 2;
  nvmlDeviceGetComputeRunningProcesses_v3(device, count, found);
  if (room < *count) {
    return kTooSmall;
  }
  struct Plain {
    unsigned pid;
    unsigned long long used;
  };
  for (unsigned at = 0; at < *count; at++) {
    static_cast<Plain*>(out)[at] = {found[at].pid, found[at].used};
  }
  return 0;
}
int nvmlDeviceGetGpuFabricInfoV(Device, void*) {
  return kNotSupported;
}
int nvmlDeviceGetNvLinkRemoteDeviceType(Device, unsigned, void*) {
  return kNotSupported;
}
int nvmlDeviceGetNvLinkRemotePciInfo_v2(Device, unsigned, void*) {
  return kNotSupported;
}
int nvmlSystemGetCudaDriverVersion_v2(int* out) {
  *out = 13000;
  return 0;
}
}
