// The CUDA runtime without a device: torch's CUDA build runs on it where there is no GPU.
//
// "Device" memory is the host's, mapped when it is touched. A copy is a copy and done at once, so
// each stream is always idle. Allocation ends at a capacity and refuses as a device would. A kernel
// cannot run: its launch is an error with the kernel's name, so that nothing is silently wrong
// (`kernels.cpp` gives torch's operations the CPU's kernels instead). What is not here refuses too;
// the build makes a refusal of each entry that torch wants and this file lacks.

#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>

namespace {

constexpr int kDevices = 2;
constexpr size_t kPage = size_t{2} << 20; // a device maps its memory in pages of this size

struct Block {
  int device; // -1: page-locked memory of the host
  size_t size;
};

struct State {
  std::mutex lock;
  std::map<uintptr_t, Block> blocks;
  size_t used[kDevices] = {};
  bool opened[kDevices] = {}; // has a context, which costs memory on a real device
  size_t pool_used[kDevices] = {}, pool_peak[kDevices] = {};
  std::unordered_map<const void*, std::string> kernels;
};

State& state() {
  static auto* one = new State; // outlives whatever ends with the process
  return *one;
}

thread_local int current = 0;
thread_local cudaError_t last = cudaSuccess;

cudaError_t done(cudaError_t what) {
  if (what != cudaSuccess) {
    last = what;
  }
  return what;
}

size_t from_environment(const char* name, size_t otherwise) {
  const char* text = std::getenv(name);
  return text ? std::strtoull(text, nullptr, 10) : otherwise;
}

size_t capacity() {
  return from_environment("EMULATED_CUDA_BYTES", size_t{8} << 30);
}

// Memory that other processes hold, as the environment says.
size_t others() {
  return from_environment("EMULATED_CUDA_OTHERS", 0);
}

size_t pages(size_t size) {
  return (size + kPage - 1) / kPage * kPage;
}

void* map_pages(size_t size) {
  void* address = mmap(
      nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return address == MAP_FAILED ? nullptr : address;
}

cudaError_t take(void** out, size_t asked, int device) {
  *out = nullptr;
  if (asked == 0) {
    return cudaSuccess;
  }
  auto size = pages(asked);
  std::lock_guard<std::mutex> guard(state().lock);
  if (device >= 0 && state().used[device] + size + others() > capacity()) {
    return done(cudaErrorMemoryAllocation);
  }
  *out = map_pages(size);
  if (!*out) {
    return done(cudaErrorMemoryAllocation);
  }
  state().blocks[reinterpret_cast<uintptr_t>(*out)] = {device, size};
  if (device >= 0) {
    state().opened[device] = true;
    state().used[device] += size;
  }
  return cudaSuccess;
}

cudaError_t give_back(void* address) {
  if (!address) {
    return cudaSuccess;
  }
  std::lock_guard<std::mutex> guard(state().lock);
  auto found = state().blocks.find(reinterpret_cast<uintptr_t>(address));
  if (found == state().blocks.end()) {
    return done(cudaErrorInvalidValue);
  }
  if (found->second.device >= 0) {
    state().used[found->second.device] -= found->second.size;
  }
  munmap(address, found->second.size);
  state().blocks.erase(found);
  return cudaSuccess;
}

// The block an address lies in; null for memory that is only the host's.
const Block* block_of(const void* address) {
  auto at = reinterpret_cast<uintptr_t>(address);
  auto found = state().blocks.upper_bound(at);
  if (found == state().blocks.begin()) {
    return nullptr;
  }
  --found;
  return at < found->first + found->second.size ? &found->second : nullptr;
}

cudaError_t refuse(const void* kernel) {
  std::lock_guard<std::mutex> guard(state().lock);
  auto found = state().kernels.find(kernel);
  std::fprintf(
      stderr, "emulated CUDA: no device to run %s\n",
      found == state().kernels.end() ? "this kernel" : found->second.c_str());
  return done(cudaErrorNotSupported);
}

// torch asks for devices once it is loaded, and before it uses one: the time for `kernels.cpp`.
void start_kernels() {
  static std::once_flag once;
  std::call_once(once, [] {
    void* library = dlopen("libemulatedkernels.so", RTLD_NOW);
    if (!library) {
      std::fprintf(stderr, "emulated CUDA: %s\n", dlerror());
      return;
    }
    reinterpret_cast<void (*)()>(dlsym(library, "emulation_start"))();
  });
}

using Clock = std::chrono::steady_clock;

struct Event {
  Clock::time_point at = Clock::now();
};

template <typename Handle>
Handle handle() {
  static std::mutex lock;
  static uintptr_t next = 0x1000;
  std::lock_guard<std::mutex> guard(lock);
  next += 0x10;
  return reinterpret_cast<Handle>(next);
}

} // namespace

extern "C" {

// ---- What a compiled kernel registers and launches -----------------------------------------

void** __cudaRegisterFatBinary(void*) {
  static void* none = nullptr;
  return &none;
}
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
char __cudaInitModule(void**) {
  return 1;
}
void __cudaRegisterVar(void**, char*, char*, const char*, int, size_t, int, int) {}
void __cudaRegisterFunction(
    void**, const char* host, char*, const char* name, int, void*, void*, void*, void*, int*) {
  std::lock_guard<std::mutex> guard(state().lock);
  state().kernels[host] = name;
}

struct Launch {
  dim3 grid, block;
  size_t shared;
  void* stream;
};
thread_local Launch pushed;

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, void* stream) {
  pushed = {grid, block, shared, stream};
  return 0;
}
cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared, void* stream) {
  *grid = pushed.grid;
  *block = pushed.block;
  *shared = pushed.shared;
  *static_cast<void**>(stream) = pushed.stream;
  return cudaSuccess;
}
cudaError_t __cudaGetKernel(cudaKernel_t* out, const void* host) {
  *out = reinterpret_cast<cudaKernel_t>(const_cast<void*>(host));
  return cudaSuccess;
}
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3, dim3, void**, size_t, cudaStream_t) {
  return refuse(kernel);
}
cudaError_t cudaLaunchKernel(const void* kernel, dim3, dim3, void**, size_t, cudaStream_t) {
  return refuse(kernel);
}
cudaError_t cudaLaunchCooperativeKernel(
    const void* kernel, dim3, dim3, void**, size_t, cudaStream_t) {
  return refuse(kernel);
}
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t*, const void* kernel, void**) {
  return refuse(kernel);
}
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* out, const void*) {
  std::memset(out, 0, sizeof *out);
  out->maxThreadsPerBlock = 1024;
  out->ptxVersion = out->binaryVersion = 90;
  return cudaSuccess;
}
cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int) {
  return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* out, const void*, int, size_t) {
  *out = 1;
  return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
    int* out, const void*, int, size_t, unsigned) {
  *out = 1;
  return cudaSuccess;
}

// ---- Devices -------------------------------------------------------------------------------

cudaError_t cudaDriverGetVersion(int* out) {
  *out = CUDART_VERSION;
  return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* out) {
  *out = CUDART_VERSION;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceCount(int* out) {
  start_kernels();
  *out = kDevices;
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* out) {
  *out = current;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device >= kDevices) {
    return done(cudaErrorInvalidDevice);
  }
  current = device;
  state().opened[device] = true;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* out, int device) {
  if (device < 0 || device >= kDevices) {
    return done(cudaErrorInvalidDevice);
  }
  std::memset(out, 0, sizeof *out);
  std::snprintf(out->name, sizeof out->name, "Emulated device");
  std::memset(out->uuid.bytes, device + 1, sizeof out->uuid.bytes);
  out->totalGlobalMem = capacity();
  out->major = 9;
  out->warpSize = 32;
  out->multiProcessorCount = 4;
  out->maxThreadsPerBlock = 1024;
  out->maxThreadsPerMultiProcessor = 2048;
  out->maxThreadsDim[0] = out->maxThreadsDim[1] = out->maxThreadsDim[2] = 1024;
  out->maxGridSize[0] = out->maxGridSize[1] = out->maxGridSize[2] = 65535;
  out->sharedMemPerBlock = out->sharedMemPerBlockOptin = 48 << 10;
  out->sharedMemPerMultiprocessor = 100 << 10;
  out->regsPerBlock = out->regsPerMultiprocessor = 64 << 10;
  out->l2CacheSize = 4 << 20;
  out->unifiedAddressing = 1;
  out->pciBusID = device + 1;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* out, cudaDeviceAttr what, int) {
  switch (what) {
    case cudaDevAttrComputeCapabilityMajor:
      *out = 9;
      break;
    case cudaDevAttrWarpSize:
      *out = 32;
      break;
    case cudaDevAttrMaxThreadsPerBlock:
      *out = 1024;
      break;
    case cudaDevAttrMemoryPoolsSupported:
      *out = 1;
      break;
    default:
      *out = 0;
  }
  return cudaSuccess;
}
cudaError_t cudaDeviceGetPCIBusId(char* out, int size, int device) {
  std::snprintf(out, size, "0000:%02d:00.0", device + 1);
  return cudaSuccess;
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() {
  return cudaSuccess;
}
cudaError_t cudaDeviceCanAccessPeer(int* out, int, int) {
  *out = 1;
  return cudaSuccess;
}
cudaError_t cudaDeviceEnablePeerAccess(int, unsigned) {
  return cudaSuccess;
}
cudaError_t cudaGetLastError() {
  return std::exchange(last, cudaSuccess);
}
cudaError_t cudaPeekAtLastError() {
  return last;
}
const char* cudaGetErrorName(cudaError_t error) {
  return error == cudaErrorMemoryAllocation ? "cudaErrorMemoryAllocation" : "cudaError";
}
const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "no error";
    case cudaErrorMemoryAllocation:
      return "out of memory";
    case cudaErrorInvalidDevice:
      return "invalid device ordinal";
    case cudaErrorNotSupported:
      return "operation not supported: the device is emulated";
    default:
      return "an error of the emulated device";
  }
}
cudaError_t cudaProfilerStart() {
  return cudaSuccess;
}
cudaError_t cudaProfilerStop() {
  return cudaSuccess;
}

// ---- Memory --------------------------------------------------------------------------------

cudaError_t cudaMalloc(void** out, size_t size) {
  return take(out, size, current);
}
cudaError_t cudaFree(void* address) {
  return give_back(address);
}
cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  std::lock_guard<std::mutex> guard(state().lock);
  *total = capacity();
  *free = capacity() - state().used[current] - others();
  return cudaSuccess;
}
cudaError_t cudaHostAlloc(void** out, size_t size, unsigned) {
  return take(out, size, -1);
}
cudaError_t cudaFreeHost(void* address) {
  return give_back(address);
}
cudaError_t cudaHostRegister(void* address, size_t size, unsigned) {
  std::lock_guard<std::mutex> guard(state().lock);
  state().blocks[reinterpret_cast<uintptr_t>(address)] = {-1, size};
  return cudaSuccess;
}
cudaError_t cudaHostUnregister(void* address) {
  std::lock_guard<std::mutex> guard(state().lock);
  state().blocks.erase(reinterpret_cast<uintptr_t>(address));
  return cudaSuccess;
}
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* out, const void* address) {
  std::lock_guard<std::mutex> guard(state().lock);
  const auto* block = block_of(address);
  std::memset(out, 0, sizeof *out);
  out->device = block ? std::max(block->device, 0) : -2;
  out->type = !block ? cudaMemoryTypeUnregistered
      : block->device < 0 ? cudaMemoryTypeHost
                          : cudaMemoryTypeDevice;
  out->hostPointer = out->devicePointer = block ? const_cast<void*>(address) : nullptr;
  return cudaSuccess;
}
cudaError_t cudaMemcpy(void* to, const void* from, size_t size, cudaMemcpyKind) {
  std::memmove(to, from, size);
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t size, cudaMemcpyKind, cudaStream_t) {
  std::memmove(to, from, size);
  return cudaSuccess;
}
cudaError_t cudaMemcpyPeerAsync(void* to, int, const void* from, int, size_t size, cudaStream_t) {
  std::memmove(to, from, size);
  return cudaSuccess;
}
cudaError_t cudaMemset(void* at, int value, size_t size) {
  std::memset(at, value, size);
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* at, int value, size_t size, cudaStream_t) {
  std::memset(at, value, size);
  return cudaSuccess;
}

// The driver's own pool, for `backend:cudaMallocAsync`.
cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t* out, int device) {
  *out = reinterpret_cast<cudaMemPool_t>(uintptr_t(device) + 1);
  return cudaSuccess;
}
cudaError_t cudaMallocAsync(void** out, size_t size, cudaStream_t) {
  auto error = take(out, size, current);
  if (error == cudaSuccess) {
    std::lock_guard<std::mutex> guard(state().lock);
    auto& used = state().pool_used[current];
    used += pages(size);
    state().pool_peak[current] = std::max(state().pool_peak[current], used);
  }
  return error;
}
cudaError_t cudaFreeAsync(void* address, cudaStream_t) {
  {
    std::lock_guard<std::mutex> guard(state().lock);
    if (const auto* block = block_of(address)) {
      state().pool_used[block->device] -= block->size;
    }
  }
  return give_back(address);
}
cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t pool, cudaMemPoolAttr what, void* out) {
  auto device = int(reinterpret_cast<uintptr_t>(pool) - 1);
  std::lock_guard<std::mutex> guard(state().lock);
  bool peak = what == cudaMemPoolAttrReservedMemHigh || what == cudaMemPoolAttrUsedMemHigh;
  *static_cast<uint64_t*>(out) = peak ? state().pool_peak[device] : state().pool_used[device];
  return cudaSuccess;
}
cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t, cudaMemPoolAttr, void*) {
  return cudaSuccess;
}
cudaError_t cudaMemPoolTrimTo(cudaMemPool_t, size_t) {
  return cudaSuccess;
}
cudaError_t cudaMemPoolSetAccess(cudaMemPool_t, const cudaMemAccessDesc*, size_t) {
  return cudaSuccess;
}

// ---- Streams and events: all work is done when it is given ---------------------------------

cudaError_t cudaStreamCreate(cudaStream_t* out) {
  *out = handle<cudaStream_t>();
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* out, unsigned) {
  return cudaStreamCreate(out);
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* out, unsigned, int) {
  return cudaStreamCreate(out);
}
cudaError_t cudaStreamDestroy(cudaStream_t) {
  return cudaSuccess;
}
cudaError_t cudaStreamQuery(cudaStream_t) {
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t) {
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned) {
  return cudaSuccess;
}
cudaError_t cudaStreamGetPriority(cudaStream_t, int* out) {
  *out = 0;
  return cudaSuccess;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus* out) {
  *out = cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
cudaError_t cudaStreamGetCaptureInfo(
    cudaStream_t, cudaStreamCaptureStatus* out, unsigned long long*, cudaGraph_t*,
    const cudaGraphNode_t**, const cudaGraphEdgeData**, size_t*) {
  *out = cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode*) {
  return cudaSuccess;
}
cudaError_t cudaStreamAddCallback(
    cudaStream_t stream, cudaStreamCallback_t call, void* data, unsigned) {
  call(stream, cudaSuccess, data);
  return cudaSuccess;
}
cudaError_t cudaLaunchHostFunc(cudaStream_t, cudaHostFn_t call, void* data) {
  call(data);
  return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* out, unsigned) {
  *out = reinterpret_cast<cudaEvent_t>(new Event);
  return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t* out) {
  return cudaEventCreateWithFlags(out, 0);
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete reinterpret_cast<Event*>(event);
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t) {
  reinterpret_cast<Event*>(event)->at = Clock::now();
  return cudaSuccess;
}
cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned) {
  return cudaEventRecord(event, stream);
}
cudaError_t cudaEventQuery(cudaEvent_t) {
  return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t) {
  return cudaSuccess;
}
cudaError_t cudaEventElapsedTime(float* out, cudaEvent_t from, cudaEvent_t to) {
  auto passed = reinterpret_cast<Event*>(to)->at - reinterpret_cast<Event*>(from)->at;
  *out = std::chrono::duration<float, std::milli>(passed).count();
  return cudaSuccess;
}

// ---- For `driver.cpp` and `nvml.cpp` -------------------------------------------------------

cudaError_t cudaGetDriverEntryPointByVersion(
    const char* name, void** out, unsigned, unsigned long long,
    cudaDriverEntryPointQueryResult* found) {
  static void* driver = dlopen("libcuda.so.1", RTLD_LAZY);
  *out = driver ? dlsym(driver, name) : nullptr;
  *found = *out ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  return cudaSuccess;
}

// Takes memory of a device, or gives it back (negative); says whether there is so much.
bool emulated_cuda_use(int device, int64_t size) {
  std::lock_guard<std::mutex> guard(state().lock);
  if (size > 0 && state().used[device] + size + others() > capacity()) {
    return false;
  }
  state().used[device] += size;
  return true;
}

void emulated_cuda_map(void* address, size_t size, int device) {
  std::lock_guard<std::mutex> guard(state().lock);
  state().blocks[reinterpret_cast<uintptr_t>(address)] = {device, size};
}

void emulated_cuda_unmap(void* address) {
  std::lock_guard<std::mutex> guard(state().lock);
  state().blocks.erase(reinterpret_cast<uintptr_t>(address));
}

bool emulated_cuda_opened(int device) {
  return state().opened[device];
}

void emulated_cuda_memory(int device, size_t* total, size_t* used, size_t* by_others) {
  std::lock_guard<std::mutex> guard(state().lock);
  *total = capacity();
  *used = state().used[device];
  *by_others = others();
}
}
