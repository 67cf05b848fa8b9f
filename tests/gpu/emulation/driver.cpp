// The CUDA driver's virtual memory without a device, for `expandable_segments:True`.
//
// A piece of physical memory is a file in memory; mapping it maps the file.

#include <cuda.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>

#undef cuMemGetAddressRange
#undef cuStreamWriteValue32

extern "C" {

bool emulated_cuda_use(int device, int64_t size);
void emulated_cuda_map(void* address, size_t size, int device);
void emulated_cuda_unmap(void* address);
bool emulated_cuda_opened(int device);

struct Piece {
  int file, device;
  size_t size;
};

static Piece* piece_of(CUmemGenericAllocationHandle handle) {
  return reinterpret_cast<Piece*>(handle);
}

CUresult cuInit(unsigned) {
  return CUDA_SUCCESS;
}
CUresult cuGetErrorString(CUresult error, const char** out) {
  *out = error == CUDA_ERROR_OUT_OF_MEMORY ? "out of memory" : "an error of the emulated driver";
  return CUDA_SUCCESS;
}
CUresult cuDeviceGet(CUdevice* out, int ordinal) {
  *out = ordinal;
  return CUDA_SUCCESS;
}
CUresult cuDeviceGetAttribute(int* out, CUdevice_attribute, CUdevice) {
  *out = 0;
  return CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned* flags, int* active) {
  *flags = 0;
  *active = emulated_cuda_opened(device);
  return CUDA_SUCCESS;
}
CUresult cuCtxGetCurrent(CUcontext* out) {
  *out = reinterpret_cast<CUcontext>(1);
  return CUDA_SUCCESS;
}
CUresult cuCtxSetCurrent(CUcontext) {
  return CUDA_SUCCESS;
}
CUresult cuMemAddressReserve(CUdeviceptr* out, size_t size, size_t, CUdeviceptr, unsigned long long) {
  auto* address =
      mmap(nullptr, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  *out = reinterpret_cast<CUdeviceptr>(address);
  return address == MAP_FAILED ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}
CUresult cuMemAddressFree(CUdeviceptr address, size_t size) {
  munmap(reinterpret_cast<void*>(address), size);
  return CUDA_SUCCESS;
}
CUresult cuMemGetAllocationGranularity(
    size_t* out, const CUmemAllocationProp*, CUmemAllocationGranularity_flags) {
  *out = size_t{2} << 20;
  return CUDA_SUCCESS;
}
CUresult cuMemCreate(
    CUmemGenericAllocationHandle* out, size_t size, const CUmemAllocationProp* want,
    unsigned long long) {
  auto device = want->location.id;
  if (!emulated_cuda_use(device, size)) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  auto file = memfd_create("emulated device", 0);
  if (file < 0 || ftruncate(file, size) != 0) {
    emulated_cuda_use(device, -int64_t(size));
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  *out = reinterpret_cast<CUmemGenericAllocationHandle>(new Piece{file, device, size});
  return CUDA_SUCCESS;
}
CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  auto* piece = piece_of(handle);
  emulated_cuda_use(piece->device, -int64_t(piece->size));
  close(piece->file);
  delete piece;
  return CUDA_SUCCESS;
}
CUresult cuMemMap(
    CUdeviceptr at, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
    unsigned long long) {
  auto* address = reinterpret_cast<void*>(at);
  auto* piece = piece_of(handle);
  mmap(address, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, piece->file, offset);
  emulated_cuda_map(address, size, piece->device);
  return CUDA_SUCCESS;
}
CUresult cuMemUnmap(CUdeviceptr at, size_t size) {
  auto* address = reinterpret_cast<void*>(at);
  emulated_cuda_unmap(address);
  mmap(
      address, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  return CUDA_SUCCESS;
}
CUresult cuMemSetAccess(CUdeviceptr, size_t, const CUmemAccessDesc*, size_t) {
  return CUDA_SUCCESS;
}
}
