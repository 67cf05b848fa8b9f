// torch's operations on CUDA tensors with the CPU's kernels, on the emulated device's memory.
//
// What gives memory, views and copies stays CUDA's own; so do streams, the caching allocator and
// autograd's device threads. Random numbers follow the CUDA generator's seed and offset.

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/native/Copy.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>

#include <set>

#define FAR CUDA
#include "../../accelerator/over_host.h"

namespace {

c10::Allocator* far_allocator() {
  return c10::GetAllocator(kType);
}

c10::Device far_device() {
  return c10::impl::VirtualGuardImpl(kType).getDevice();
}

// Draws as many numbers as it likes from a place that the CUDA generator names, and moves it on.
at::Generator drawn_from(const at::Generator& cuda) {
  auto* state = cuda.unsafeGetGeneratorImpl();
  auto offset = state->get_offset();
  state->set_offset(offset + 4);
  return at::detail::createCPUGenerator(state->current_seed() * 1'000'003 + offset);
}

void on_host(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  call_on_host(op, stack, [](auto device, const auto& argument, auto& value) {
    if (takes_generator(argument)) {
      auto used = value.isNone() ? at::globalContext().defaultGenerator(device)
                                 : value.toGenerator();
      value = used.device().type() == kType ? drawn_from(used) : used;
    }
  });
}

// A plain copy of bytes is the device's own; another is a kernel there.
at::Tensor& copy(at::Tensor& to, const at::Tensor& from, bool non_blocking) {
  bool is_plain = to.dtype() == from.dtype() && to.sizes() == from.sizes() &&
      to.is_contiguous() && from.is_contiguous() && to.is_conj() == from.is_conj() &&
      to.is_neg() == from.is_neg();
  if (is_plain) {
    return at::native::copy_(to, from, non_blocking);
  }
  Call().to_cpu(to).copy_(Call().to_cpu(from));
  return to;
}

// CUDA's own: memory, views, and reading a number, which is a copy and a wait.
const std::set<std::string> kKept{
    "aten::empty.memory_format", "aten::empty_strided", "aten::resize_", "aten::set_",
    "aten::set_.source_Tensor", "aten::set_.source_Storage",
    "aten::set_.source_Storage_storage_offset", "aten::view", "aten::as_strided",
    "aten::_reshape_alias", "aten::record_stream", "aten::_local_scalar_dense",
    "aten::is_pinned", "aten::_pin_memory", "aten::is_set_to", "aten::unfold",
    "aten::view_as_real", "aten::view_as_complex", "aten::_efficientzerotensor",
    "aten::resize_as_sparse_", "aten::copy_", "aten::_fused_sdp_choice"};

struct Quiet final : c10::WarningHandler {
  void process(const c10::Warning&) override {}
};

} // namespace

extern "C" void emulation_start() {
  auto& context = at::globalContext(); // what has no twin on the CPU
  context.setUserEnabledCuDNN(false);
  context.setSDPUseFlash(false);
  context.setSDPUseMemEfficient(false);
  context.setSDPUseCuDNN(false);
  static auto* library =
      new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::CUDA, __FILE__, __LINE__);
  Quiet handler; // of a warning that kernels are replaced
  c10::WarningUtils::WarningHandlerGuard quiet(&handler);
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const auto& name : dispatcher.getRegistrationsForDispatchKey(c10::DispatchKey::CUDA)) {
    auto whole = c10::toString(name);
    if (name.name.rfind("aten::", 0) == 0 && kKept.count(whole) == 0) {
      library->impl(
          whole.substr(6).c_str(), torch::CppFunction::makeFromBoxedFunction<&on_host>());
    }
  }
  library->impl("copy_", copy);
  library->impl("native_dropout", dropout);
  for (const auto* composite : {"convolution", "convolution_backward"}) {
    library->impl(composite, torch::CppFunction::makeFromBoxedFunction<&on_host>());
  }
}
