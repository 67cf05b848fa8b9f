"""In which dtype autocast runs an operation, as torch's own registrations say.

Autocast decides above autograd, where an operation still has its public name; a dispatch mode sees
what it was broken up into. So the names are brought back here: ``_log_softmax`` to ``log_softmax``.
"""

from __future__ import annotations

import functools
from typing import Literal

from nbinspect import _torch

Policy = Literal["half", "float32", "inputs"]
"""Runs in float16, in float32, or in whatever its inputs come in."""

# What matrix products and convolutions are called, publicly and inside. Autocast has them in its
# list for lower precision on every device.
_HALF = """
mm bmm addmm baddbmm addbmm addmv mv addr linear matmul linalg_vecdot linalg_multi_dot chain_matmul
einsum convolution _convolution conv1d conv2d conv3d conv_tbc conv_transpose1d conv_transpose2d
conv_transpose3d cudnn_convolution cudnn_convolution_transpose mkldnn_convolution _mps_convolution
_addmm_activation prelu _prelu_kernel scaled_dot_product_attention
_scaled_dot_product_flash_attention _scaled_dot_product_flash_attention_for_cpu
_scaled_dot_product_efficient_attention _scaled_dot_product_cudnn_attention
_scaled_dot_product_fused_attention_overrideable _native_multi_head_attention
_thnn_fused_lstm_cell _thnn_fused_gru_cell lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell
mkldnn_rnn_layer _cudnn_rnn miopen_rnn
"""
# Those that take the widest of their inputs, as most operations do by themselves.
_WIDEST = """
addcdiv addcmul atan2 bilinear cross dot vdot grid_sampler grid_sampler_2d grid_sampler_3d index_put
scatter_add tensordot cat stack index_copy
"""
_WIDEST_ON_CPU = "cat stack index_copy"  # grid samplers are kept in float32 there
HALF = frozenset(_HALF.split())
WIDEST = {
    "cpu": frozenset(_WIDEST_ON_CPU.split()),
    "cuda": frozenset(_WIDEST.split()),
}
_PUBLIC = {
    "_softmax": "softmax",
    "_log_softmax": "log_softmax",
    "native_layer_norm": "layer_norm",
    "native_group_norm": "group_norm",
    "_fused_rms_norm": "rms_norm",
    "nll_loss_forward": "nll_loss",
    "nll_loss2d_forward": "nll_loss2d",
    "multilabel_margin_loss_forward": "multilabel_margin_loss",
    "_cdist_forward": "cdist",
    "_pdist_forward": "pdist",
    "_ctc_loss": "ctc_loss",
    "_cudnn_ctc_loss": "ctc_loss",
    "_fft_r2c": "fft_rfft",
    "_fft_c2c": "fft_fft",
    "_linalg_svd": "linalg_svd",
    "_linalg_eigh": "linalg_eigh",
    "_linalg_solve_ex": "linalg_solve",
    "_trilinear": "bilinear",
    "cross_entropy": "cross_entropy_loss",  # from its function in torch.nn.functional
    "pad": "",  # that function is no operation that autocast knows
}


@functools.lru_cache(maxsize=4096)
def policy(name: str, device: str) -> Policy:
    """Say in which dtype autocast to float16 runs an operation.

    Args:
        name: its name without namespace and overload, as a dispatch mode or
            `torch.nn.functional` has it.
        device: the type of device, e.g. ``cpu``, whose list counts.

    Source: the kernels that torch has registered for autocast, `HALF` and `WIDEST`; tests hold
    them against what autocast does on the CPU.
    """
    name = name.removesuffix("_") if not name.startswith("__") else name
    name = _PUBLIC.get(name, name)
    if name in HALF:
        return "half"
    widest = WIDEST.get(device, WIDEST["cuda"])
    if name in widest or name not in _torch.autocast_operations(device):
        return "inputs"
    return "float32"
