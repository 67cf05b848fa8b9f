// A device for the tests: torch's PrivateUse1, named "card", with memory of its own accounting.
//
// Its memory is the host's and its kernels are the CPU's, run on the same bytes without a copy. All
// that an inspector can see is a real device's: an allocator that caches and counts, several
// devices, streams, generators, backward passes in device threads, and memory that ends. It counts
// each time that somebody waits for it, so that a test can prove that nobody did.

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/autocast_mode.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <sstream>
#include <unordered_map>

#define FAR PrivateUse1
#include "over_host.h"

namespace {

constexpr int kDevices = 2;
constexpr size_t kBlock = 512;

// What makes the caller wait for the device, or gives it work.
struct Counters {
  std::atomic<int64_t> to_host{0}, scalars{0}, shapes{0}, waits{0}, from_host{0}, kernels{0};
} counters;

thread_local c10::DeviceIndex current_index = 0;

c10::Device on(c10::DeviceIndex index) {
  return c10::Device(kType, index);
}

// ---- The allocator -------------------------------------------------------------------------

std::string human(size_t bytes) {
  std::ostringstream text;
  text.precision(2);
  text << std::fixed;
  if (bytes >= (1ull << 30)) {
    text << bytes / double(1ull << 30) << " GiB";
  } else if (bytes >= (1ull << 20)) {
    text << bytes / double(1ull << 20) << " MiB";
  } else {
    text << bytes / double(1ull << 10) << " KiB";
  }
  return text.str();
}

struct Memory {
  size_t capacity = 4ull << 30;
  size_t others = 0; // held by other processes, as a test says
  c10::CachingDeviceAllocator::DeviceStats stats;
  std::multimap<size_t, void*> cached;
};

struct Block {
  c10::DeviceIndex device;
  size_t size, asked;
};

struct CardAllocator final : c10::DeviceAllocator {
  std::mutex lock;
  Memory memory[kDevices];
  std::unordered_map<void*, Block> blocks; // those in use

  static void count(c10::CachingAllocator::StatArray& stat, size_t size, bool more) {
    auto pool = size >= (1 << 20) ? c10::CachingAllocator::StatType::LARGE_POOL
                                  : c10::CachingAllocator::StatType::SMALL_POOL;
    for (auto kind : {c10::CachingAllocator::StatType::AGGREGATE, pool}) {
      auto& one = stat[static_cast<size_t>(kind)];
      more ? one.increase(size) : one.decrease(size);
    }
  }

  static void count_one(c10::CachingAllocator::StatArray& stat, bool more) {
    auto& one = stat[0];
    more ? one.increase(1) : one.decrease(1);
  }

  size_t reserved(Memory& one) {
    return one.stats.reserved_bytes[0].current;
  }

  void flush(Memory& one) {
    for (auto& [size, address] : one.cached) {
      std::free(address);
      count(one.stats.reserved_bytes, size, false);
      count_one(one.stats.segment, false);
      one.stats.num_device_free++;
    }
    one.cached.clear();
  }

  void fail(c10::DeviceIndex index, size_t asked) {
    auto& one = memory[index];
    one.stats.num_ooms++;
    auto allocated = size_t(one.stats.allocated_bytes[0].current);
    auto all = reserved(one);
    c10::reportOutOfMemoryToProfiler(asked, allocated, all, on(index));
    TORCH_CHECK_WITH(
        OutOfMemoryError, false, "CARD out of memory. Tried to allocate ", human(asked), ". GPU ",
        int(index), " has a total capacity of ", human(one.capacity), " of which ",
        human(one.capacity - all - one.others), " is free. Of the allocated memory ",
        human(allocated), " is allocated by PyTorch, and ", human(all - allocated),
        " is reserved by PyTorch but unallocated.");
  }

  c10::DataPtr allocate(size_t asked) override {
    auto index = current_index;
    if (asked == 0) {
      return {nullptr, nullptr, &release, on(index)};
    }
    std::lock_guard<std::mutex> guard(lock);
    auto& one = memory[index];
    size_t size = (asked + kBlock - 1) / kBlock * kBlock;
    void* address = nullptr;
    auto found = one.cached.lower_bound(size);
    if (found != one.cached.end() && found->first <= size + size / 4) {
      size = found->first;
      address = found->second;
      one.cached.erase(found);
    } else {
      if (reserved(one) + size + one.others > one.capacity && !one.cached.empty()) {
        one.stats.num_alloc_retries++;
        flush(one);
      }
      if (asked > one.capacity || reserved(one) + size + one.others > one.capacity) {
        fail(index, asked);
      }
      address = std::aligned_alloc(kBlock, size);
      TORCH_CHECK(address, "the host has no memory for this device");
      count(one.stats.reserved_bytes, size, true);
      count_one(one.stats.segment, true);
      one.stats.num_device_alloc++;
    }
    blocks[address] = {index, size, asked};
    note(index, address, size, asked, true);
    return {address, address, &release, on(index)};
  }

  void note(c10::DeviceIndex index, void* address, size_t size, size_t asked, bool more) {
    auto& stats = memory[index].stats;
    count(stats.allocated_bytes, size, more);
    count(stats.active_bytes, size, more);
    count(stats.requested_bytes, asked, more);
    count_one(stats.allocation, more);
    count_one(stats.active, more);
    c10::reportMemoryUsageToProfiler(
        address, more ? int64_t(size) : -int64_t(size), stats.allocated_bytes[0].current,
        stats.reserved_bytes[0].current, on(index));
  }

  static void release(void* address);

  void give_back(void* address) {
    std::lock_guard<std::mutex> guard(lock);
    auto found = blocks.find(address);
    if (found == blocks.end()) {
      return;
    }
    auto block = found->second;
    blocks.erase(found);
    note(block.device, address, block.size, block.asked, false);
    memory[block.device].cached.emplace(block.size, address);
  }

  c10::DeleterFnPtr raw_deleter() const override {
    return &release;
  }
  void copy_data(void* to, const void* from, std::size_t size) const override {
    std::memcpy(to, from, size);
  }
  bool initialized() override {
    return true;
  }
  void emptyCache(c10::MempoolId_t) override {
    std::lock_guard<std::mutex> guard(lock);
    for (auto& one : memory) {
      flush(one);
    }
  }
  void recordStream(const c10::DataPtr&, c10::Stream) override {}
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex index) override {
    std::lock_guard<std::mutex> guard(lock);
    return memory[index].stats;
  }
  template <typename Change>
  void each(c10::DeviceIndex index, Change change) {
    std::lock_guard<std::mutex> guard(lock);
    auto& s = memory[index].stats;
    for (auto* stat :
         {&s.allocation, &s.segment, &s.active, &s.allocated_bytes, &s.reserved_bytes,
          &s.active_bytes, &s.requested_bytes}) {
      for (auto& one : *stat) {
        change(one);
      }
    }
  }
  void resetAccumulatedStats(c10::DeviceIndex index) override {
    each(index, [](auto& one) { one.reset_accumulated(); });
  }
  void resetPeakStats(c10::DeviceIndex index) override {
    each(index, [](auto& one) { one.reset_peak(); });
  }
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex index) override {
    std::lock_guard<std::mutex> guard(lock);
    auto& one = memory[index];
    return {one.capacity - reserved(one) - one.others, one.capacity};
  }
};

CardAllocator& allocator() {
  static auto* one = new CardAllocator; // outlives whatever ends with the process
  return *one;
}

c10::Allocator* far_allocator() {
  return &allocator();
}

c10::Device far_device() {
  return on(current_index);
}

void CardAllocator::release(void* address) {
  if (address) {
    allocator().give_back(address);
  }
}

// Page-locked host memory, as a device that copies by itself wants it.
struct PinnedAllocator final : c10::Allocator {
  std::mutex lock;
  std::set<const void*> held;

  c10::DataPtr allocate(size_t size) override {
    void* address = std::malloc(std::max<size_t>(size, 1));
    std::lock_guard<std::mutex> guard(lock);
    held.insert(address);
    return {address, address, &release, c10::DeviceType::CPU};
  }
  static void release(void* address);
  bool holds(const void* address) {
    std::lock_guard<std::mutex> guard(lock);
    return held.count(address) != 0;
  }
  void copy_data(void* to, const void* from, std::size_t size) const override {
    std::memcpy(to, from, size);
  }
};

PinnedAllocator& pinned() {
  static auto* one = new PinnedAllocator;
  return *one;
}

void PinnedAllocator::release(void* address) {
  {
    std::lock_guard<std::mutex> guard(pinned().lock);
    pinned().held.erase(address);
  }
  std::free(address);
}

// ---- Devices, streams, generators ----------------------------------------------------------

struct CardGuard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override {
    return kType;
  }
  c10::Device exchangeDevice(c10::Device to) const override {
    auto before = getDevice();
    setDevice(to);
    return before;
  }
  c10::Device getDevice() const override {
    return on(current_index);
  }
  void setDevice(c10::Device to) const override {
    TORCH_CHECK(
        to.index() >= 0 && to.index() < kDevices, "no card ", int(to.index()), "; there are ",
        kDevices);
    current_index = to.index();
  }
  void uncheckedSetDevice(c10::Device to) const noexcept override {
    current_index = to.index();
  }
  c10::Stream getStream(c10::Device device) const override {
    return c10::Stream(c10::Stream::DEFAULT, device);
  }
  c10::Stream getDefaultStream(c10::Device device) const override {
    return getStream(device);
  }
  c10::Stream getNewStream(c10::Device device, int) const override {
    return getStream(device);
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override {
    return getStream(device);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    return getStream(stream.device());
  }
  void record(void**, const c10::Stream&, const c10::DeviceIndex, const c10::EventFlag)
      const override {}
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override {
    return true;
  }
  bool queryStream(const c10::Stream&) const override {
    return true;
  }
  void synchronizeStream(const c10::Stream&) const override {
    counters.waits++;
  }
  void synchronizeEvent(void*) const override {
    counters.waits++;
  }
  void synchronizeDevice(const c10::DeviceIndex) const override {
    counters.waits++;
  }
  c10::DeviceIndex deviceCount() const noexcept override {
    return kDevices;
  }
};

struct CardGenerator final : c10::GeneratorImpl {
  at::Generator inner;

  explicit CardGenerator(c10::DeviceIndex index, at::Generator of = at::detail::createCPUGenerator())
      : c10::GeneratorImpl(on(index), kKeys), inner(std::move(of)) {}
  void set_current_seed(uint64_t seed) override {
    inner.set_current_seed(seed);
  }
  void set_offset(uint64_t offset) override {
    inner.set_offset(offset);
  }
  uint64_t get_offset() const override {
    return inner.get_offset();
  }
  uint64_t current_seed() const override {
    return inner.current_seed();
  }
  uint64_t seed() override {
    return inner.seed();
  }
  void set_state(const c10::TensorImpl& state) override {
    inner.unsafeGetGeneratorImpl()->set_state(state);
  }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    return inner.unsafeGetGeneratorImpl()->get_state();
  }
  CardGenerator* clone_impl() const override {
    return new CardGenerator(device().index(), inner.clone());
  }
};

at::Generator& generator(c10::DeviceIndex index) {
  static auto* all = new std::vector<at::Generator>{
      at::make_generator<CardGenerator>(0), at::make_generator<CardGenerator>(1)};
  return (*all)[index < 0 ? current_index : index];
}

struct CardHooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override {
    return true;
  }
  bool isAvailable() const override {
    return true;
  }
  bool hasPrimaryContext(c10::DeviceIndex) const override {
    return true;
  }
  c10::DeviceIndex deviceCount() const override {
    return kDevices;
  }
  void setCurrentDevice(c10::DeviceIndex index) const override {
    CardGuard().setDevice(on(index));
  }
  c10::DeviceIndex getCurrentDevice() const override {
    return current_index;
  }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex index) const override {
    return CardGuard().exchangeDevice(on(index)).index();
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex index) const override {
    return index < 0 ? current_index : exchangeDevice(index);
  }
  bool isPinnedPtr(const void* address) const override {
    return pinned().holds(address);
  }
  c10::Allocator* getPinnedMemoryAllocator() const override {
    return &pinned();
  }
  c10::Device getDeviceFromPtr(void*) const override {
    return on(current_index);
  }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex index) const override {
    return generator(index);
  }
  at::Generator getNewGenerator(c10::DeviceIndex index) const override {
    return at::make_generator<CardGenerator>(index < 0 ? current_index : index);
  }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t size) const override {
    c10::DeviceGuard guard(storage.device());
    at::native::resize_bytes_cpu(storage.unsafeGetStorageImpl(), size);
  }
};

// ---- Kernels -------------------------------------------------------------------------------

// Results whose size depends on values: a device's kernel reads that size before it goes on.
const std::set<std::string> kReadsShapes{
    "aten::nonzero",  "aten::masked_select", "aten::_unique2",          "aten::unique_dim",
    "aten::bincount", "aten::equal",         "aten::unique_consecutive", "aten::repeat_interleave"};

bool chooses_by_mask(const c10::IValue& value) {
  if (!value.isOptionalTensorList()) {
    return false;
  }
  for (const auto& one : value.toOptionalTensorVector()) {
    if (one && one->defined() &&
        (one->scalar_type() == at::kBool || one->scalar_type() == at::kByte)) {
      return true;
    }
  }
  return false;
}

void fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  bool is_read = kReadsShapes.count(op.schema().name()) != 0;
  call_on_host(op, stack, [&](auto device, const auto& argument, auto& value) {
    is_read = is_read || chooses_by_mask(value);
    if (takes_generator(argument)) {
      auto used = value.isNone() ? generator(device.index()) : value.toGenerator();
      if (used.device().type() == kType) {
        value = static_cast<CardGenerator*>(used.unsafeGetGeneratorImpl())->inner;
      }
    }
  });
  counters.kernels++;
  counters.shapes += is_read;
}

at::Tensor empty(
    at::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
    std::optional<at::Device> device, std::optional<bool>,
    std::optional<at::MemoryFormat> format) {
  c10::DeviceGuard guard(device && device->has_index() ? *device : on(current_index));
  return at::detail::empty_generic(
      size, &allocator(), kKeys, c10::dtype_or_default(dtype), format);
}

at::Tensor empty_strided(
    at::IntArrayRef size, at::IntArrayRef stride, std::optional<at::ScalarType> dtype,
    std::optional<at::Layout>, std::optional<at::Device> device, std::optional<bool>) {
  c10::DeviceGuard guard(device && device->has_index() ? *device : on(current_index));
  return at::detail::empty_strided_generic(
      size, stride, &allocator(), kKeys, c10::dtype_or_default(dtype));
}

at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool) {
  counters.to_host += is_far(from) && !is_far(to);
  counters.from_host += is_far(to) && !is_far(from);
  counters.kernels++;
  Call().to_cpu(to).copy_(Call().to_cpu(from));
  return to;
}

at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  if (to.sizes() != from.sizes()) {
    to.resize_(from.sizes());
  }
  return copy_from(from, to, false);
}

at::Scalar read_scalar(const at::Tensor& one) {
  counters.scalars++;
  return at::_local_scalar_dense(Call().to_cpu(one));
}

const at::Tensor& resize(
    const at::Tensor& self, at::IntArrayRef size, std::optional<at::MemoryFormat> format) {
  c10::DeviceGuard guard(self.device());
  return at::native::resize_(self, size, format);
}

at::Tensor& set_to_nothing(at::Tensor& self) {
  c10::DeviceGuard guard(self.device());
  c10::Storage none(c10::Storage::use_byte_size_t(), 0, &allocator(), /*resizable=*/true);
  return self.set_(none, 0, {0}, {});
}

at::Tensor convolution(
    const at::Tensor& input, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
    at::IntArrayRef stride, at::IntArrayRef padding, at::IntArrayRef dilation, bool transposed,
    at::IntArrayRef output_padding, int64_t groups) {
  counters.kernels++;
  Call call;
  return call.to_far(at::convolution(
      call.to_cpu(input), call.to_cpu(weight), bias ? call.to_cpu(*bias) : at::Tensor(), stride,
      padding, dilation, transposed, output_padding, groups));
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> convolution_backward(
    const at::Tensor& gradient, const at::Tensor& input, const at::Tensor& weight,
    at::IntArrayRef stride, at::IntArrayRef padding, at::IntArrayRef dilation, bool transposed,
    at::IntArrayRef output_padding, int64_t groups, std::array<bool, 3> wanted) {
  counters.kernels++;
  Call call;
  auto [a, b, c] = at::convolution_backward(
      call.to_cpu(gradient), call.to_cpu(input), call.to_cpu(weight),
      at::IntArrayRef({weight.size(transposed ? 1 : 0) * (transposed ? groups : 1)}), stride,
      padding, dilation, transposed, output_padding, groups, wanted);
  return {call.to_far(a), call.to_far(b), call.to_far(c)};
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", empty);
  m.impl("empty_strided", empty_strided);
  m.impl("_copy_from", copy_from);
  m.impl("_copy_from_and_resize", copy_from_and_resize);
  m.impl("_local_scalar_dense", read_scalar);
  m.impl("resize_", resize);
  m.impl("view", at::native::view);
  m.impl("as_strided", at::native::as_strided_tensorimpl);
  m.impl("_reshape_alias", at::native::_reshape_alias);
  m.impl("set_", set_to_nothing);
  m.impl("set_.source_Tensor", at::native::set_tensor_);
  m.impl("set_.source_Storage", at::native::set_);
  m.impl("set_.source_Storage_storage_offset", at::native::set_storage_cpu_);
  m.impl("record_stream", [](at::Tensor&, at::Stream) {});
  m.impl("native_dropout", dropout);
  m.impl("convolution_overrideable", convolution);
  m.impl("convolution_backward_overrideable", convolution_backward);
}

// A copy resolves these bits itself.
TORCH_LIBRARY_IMPL(aten, Conjugate, m) {
  m.impl("_copy_from", torch::CppFunction::makeFallthrough());
}

TORCH_LIBRARY_IMPL(aten, Negative, m) {
  m.impl("_copy_from", torch::CppFunction::makeFallthrough());
}

TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFallthrough());
}

TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {
#define LOWER(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, lower_precision_fp)
#define WIDE(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32)
  AT_FORALL_LOWER_PRECISION_FP(LOWER)
#define WIDE_UNLESS_ASKED(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32_set_opt_dtype)
#define WIDEST(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, promote)
  AT_FORALL_FP32(WIDE)
  AT_FORALL_FP32_SET_OPT_DTYPE(WIDE_UNLESS_ASKED)
  AT_FORALL_PROMOTE(WIDEST)
}

CardGuard guard_impl;
c10::impl::DeviceGuardImplRegistrar guard_registrar(kType, &guard_impl);

} // namespace

// ---- For Python, by ctypes -----------------------------------------------------------------

extern "C" {

void card_start() {
  c10::SetAllocator(kType, &allocator());
  at::RegisterPrivateUse1HooksInterface(new CardHooks);
}

// Reads what was counted and starts again: to_host, scalars, shapes, waits, from_host, kernels.
void card_counters(int64_t* out) {
  auto all = {&counters.to_host, &counters.scalars,   &counters.shapes,
              &counters.waits,   &counters.from_host, &counters.kernels};
  for (auto* one : all) {
    *out++ = one->exchange(0);
  }
}

void card_capacity(int index, int64_t capacity, int64_t others) {
  std::lock_guard<std::mutex> guard(allocator().lock);
  allocator().memory[index].capacity = capacity;
  allocator().memory[index].others = others;
}

// Memory that a library asks the allocator for, and no tensor shows.
void* card_take(int index, int64_t size) {
  c10::DeviceGuard guard(on(index));
  return allocator().raw_allocate(size);
}

void card_give_back(void* address) {
  allocator().raw_deallocate(address);
}

int card_current() {
  return current_index;
}

void card_set_current(int index) {
  current_index = index;
}

void card_seed(int index, uint64_t seed) {
  generator(index).set_current_seed(seed);
}

int64_t card_state(int index, uint8_t* out) {
  auto state = generator(index).get_state();
  if (out) {
    std::memcpy(out, state.data_ptr(), state.numel());
  }
  return state.numel();
}

void card_set_state(int index, uint8_t* in, int64_t size) {
  auto state = at::empty({size}, at::kByte);
  std::memcpy(state.data_ptr(), in, size);
  generator(index).set_state(state);
}
}
