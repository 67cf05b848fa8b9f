// The CPU's kernels for another device's tensors, over the same bytes, without a copy.
//
// Whoever includes this says what the device is: `FAR` before, its name among torch's types; and
// `far_allocator()` and `far_device()`, the one that is current.

#pragma once

#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/native/Resize.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <cstring>
#include <map>
#include <vector>

namespace {

constexpr auto kType = c10::DeviceType::FAR;
constexpr c10::DispatchKeySet kKeys(c10::DispatchKey::FAR);

c10::Allocator* far_allocator();
c10::Device far_device();

bool is_far(const at::Tensor& one) {
  return one.defined() && one.device().type() == kType;
}

// Shows tensors of a device as tensors of the CPU for one call, and takes the results back.
struct Call {
  std::map<c10::StorageImpl*, c10::Storage> shown;
  std::vector<std::pair<at::Tensor, at::Tensor>> pairs; // (the device's, the CPU's)
  c10::Device device = far_device();
  bool on_device = false, on_host = false;

  c10::Storage show(const c10::Storage& storage) {
    auto& one = shown[storage.unsafeGetStorageImpl()];
    if (!one) {
      auto* address = storage.mutable_data();
      one = c10::Storage(
          c10::Storage::use_byte_size_t(), storage.nbytes(),
          c10::DataPtr(address, address, [](void*) {}, c10::DeviceType::CPU),
          c10::GetAllocator(c10::DeviceType::CPU), /*resizable=*/true);
    }
    return one;
  }

  at::Tensor to_cpu(const at::Tensor& one) {
    if (!is_far(one)) {
      on_host = on_host || (one.defined() && one.dim() > 0);
      return one;
    }
    TORCH_CHECK(
        !on_device || one.device() == device || one.dim() == 0,
        "Expected all tensors to be on the same device, but found ", device, " and ", one.device());
    if (!on_device || one.dim() > 0) {
      device = one.device();
    }
    on_device = true;
    for (auto& [far, near] : pairs) {
      if (far.is_same(one)) {
        return near;
      }
    }
    auto near = at::detail::make_tensor<c10::TensorImpl>(
        show(one.storage()), c10::DispatchKeySet(c10::DispatchKey::CPU), one.dtype());
    auto* impl = near.unsafeGetTensorImpl();
    impl->set_sizes_and_strides(one.sizes(), one.strides(), one.storage_offset());
    if (one.unsafeGetTensorImpl()->is_wrapped_number()) {
      impl->set_wrapped_number(true);
    }
    near._set_conj(one.is_conj()); // only what knows of these bits is given a tensor with one
    near._set_neg(one.is_neg());
    pairs.emplace_back(one, near);
    return near;
  }

  at::Tensor to_far(const at::Tensor& one) {
    if (!one.defined() || one.device().type() != c10::DeviceType::CPU) {
      return one;
    }
    for (auto& [far, near] : pairs) {
      if (near.is_same(one)) {
        return far;
      }
    }
    for (auto& [far, near] : pairs) { // a view of an argument
      if (near.storage().is_alias_of(one.storage()) && one.storage().nbytes()) {
        auto view = at::detail::make_tensor<c10::TensorImpl>(
            c10::TensorImpl::VIEW, c10::Storage(far.storage()), far.key_set(), one.dtype());
        view.unsafeGetTensorImpl()->set_sizes_and_strides(
            one.sizes(), one.strides(), one.storage_offset());
        return view;
      }
    }
    c10::DeviceGuard guard(device);
    at::Tensor made = at::detail::empty_strided_generic(
        one.sizes(), one.strides(), far_allocator(), kKeys, one.scalar_type());
    Call().to_cpu(made).copy_(one);
    return made;
  }

  // An operation may have given its results another size.
  void settle() {
    for (auto& [far, near] : pairs) {
      auto was = far.storage();
      auto is = near.storage();
      if (is.mutable_data() != was.mutable_data() || is.nbytes() > was.nbytes()) {
        c10::DeviceGuard guard(far.device());
        at::native::resize_bytes_cpu(was.unsafeGetStorageImpl(), is.nbytes());
        std::memcpy(was.mutable_data(), is.mutable_data(), is.nbytes());
      }
      if (far.sizes() != near.sizes() || far.strides() != near.strides()) {
        far.unsafeGetTensorImpl()->set_sizes_and_strides(
            near.sizes(), near.strides(), near.storage_offset());
      }
    }
  }
};

bool takes_generator(const c10::Argument& argument) {
  return argument.type()->str().find("Generator") != std::string::npos;
}

c10::IValue argument_on_cpu(Call& call, const c10::IValue& value) {
  if (value.isTensor()) {
    return call.to_cpu(value.toTensor());
  }
  if (value.isTensorList()) {
    c10::List<at::Tensor> all;
    for (const at::Tensor& one : value.toTensorVector()) {
      all.push_back(call.to_cpu(one));
    }
    return all;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> all;
    for (const auto& one : value.toOptionalTensorVector()) {
      all.push_back(one ? std::optional<at::Tensor>(call.to_cpu(*one)) : std::nullopt);
    }
    return all;
  }
  if (value.isDevice() && value.toDevice().type() == kType) {
    if (value.toDevice().has_index()) {
      call.device = value.toDevice();
    }
    return c10::Device(c10::DeviceType::CPU);
  }
  return value;
}

c10::IValue result_on_far(Call& call, const c10::IValue& value) {
  if (value.isTensor()) {
    return call.to_far(value.toTensor());
  }
  if (value.isTensorList()) {
    c10::List<at::Tensor> all;
    for (const at::Tensor& one : value.toTensorVector()) {
      all.push_back(call.to_far(one));
    }
    return all;
  }
  return value;
}

// Calls an operation's kernel of the CPU with a device's arguments; `before` sees them first.
template <typename Before>
c10::Device call_on_host(const c10::OperatorHandle& op, torch::jit::Stack* stack, Before before) {
  const auto& schema = op.schema();
  auto n = schema.arguments().size();
  auto first = stack->size() - n;
  Call call;
  for (size_t at = 0; at < n; at++) {
    auto& value = (*stack)[first + at];
    value = argument_on_cpu(call, value);
  }
  TORCH_CHECK(
      !(call.on_device && call.on_host) || schema.name().find("index") != std::string::npos,
      "Expected all tensors to be on the same device, but found ", call.device, " and cpu in ",
      schema.name());
  for (size_t at = 0; at < n; at++) {
    before(call.device, schema.arguments()[at], (*stack)[first + at]);
  }
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
  call.settle();
  auto end = stack->size();
  for (auto at = end - schema.returns().size(); at < end; at++) {
    (*stack)[at] = result_on_far(call, (*stack)[at]);
  }
  return call.device;
}

std::tuple<at::Tensor, at::Tensor> dropout(
    const at::Tensor& input, double p, std::optional<bool> train) {
  if (!train.value_or(true) || p == 0) {
    return {input.clone(), at::ones_like(input, input.options().dtype(at::kBool))};
  }
  auto mask = at::empty_like(input, input.options().dtype(at::kBool)).bernoulli_(1 - p);
  return {input.mul(mask).mul_(p == 1 ? 0. : 1 / (1 - p)), mask};
}

} // namespace
