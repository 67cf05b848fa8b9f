"""Which operations torch's own modules make, so that none is given to a module that has no such."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from nbinspect.heapgraph.objects import own_dict


class Operations(NamedTuple):
    """What a module's forward can make.

    Attributes:
        words: names of nodes as `word` gives them.
        is_one: it makes one node a call.
    """

    words: frozenset[str]
    is_one: bool


ONE = {
    "AdaptiveAvgPool2d": "AdaptiveAvgPool2D Mean",
    "AdaptiveAvgPool3d": "AdaptiveAvgPool3D Mean",
    "AdaptiveMaxPool2d": "AdaptiveMaxPool2D",
    "AdaptiveMaxPool3d": "AdaptiveMaxPool3D",
    "AvgPool2d": "AvgPool2D",
    "AvgPool3d": "AvgPool3D",
    "CELU": "Celu Elu",
    "ChannelShuffle": "ChannelShuffle",
    "Dropout": "Mul Dropout",
    "Dropout2d": "Mul FeatureDropout",
    "ELU": "Elu",
    "FractionalMaxPool2d": "FractionalMaxPool2D",
    "FractionalMaxPool3d": "FractionalMaxPool3D",
    "GELU": "Gelu",
    "GLU": "Glu",
    "Hardshrink": "Hardshrink",
    "Hardsigmoid": "Hardsigmoid",
    "Hardswish": "Hardswish",
    "Hardtanh": "Hardtanh",
    "LayerNorm": "LayerNorm",
    "LeakyReLU": "LeakyRelu",
    "LogSigmoid": "LogSigmoid",
    "LogSoftmax": "LogSoftmax",
    "MaxPool2d": "MaxPool2DWithIndices MaxPool2D",
    "MaxPool3d": "MaxPool3DWithIndices MaxPool3D",
    "Mish": "Mish",
    "PixelShuffle": "PixelShuffle",
    "PixelUnshuffle": "PixelUnshuffle",
    "RReLU": "RreluWithNoise LeakyRelu",
    "ReLU": "Relu",
    "SELU": "Elu Selu",
    "SiLU": "Silu",
    "Sigmoid": "Sigmoid",
    "Softmax": "Softmax",
    "Softmax2d": "Softmax",
    "Softplus": "Softplus",
    "Softshrink": "Softshrink",
    "Tanh": "Tanh",
    "Threshold": "Threshold",
    "Unflatten": "View",
    "_BatchNorm": "BatchNorm BatchNormImplIndex",
    "_ConstantPadNd": "ConstantPadNd",
    "_ReflectionPadNd": "ReflectionPad1D ReflectionPad2D ReflectionPad3D",
    "_ReplicationPadNd": "ReplicationPad1D ReplicationPad2D ReplicationPad3D",
}
_CONV = (
    "Convolution ConstantPadNd CopySlices Slice Squeeze Unsqueeze ReflectionPad1D ReflectionPad2D "
    "ReflectionPad3D ReplicationPad1D ReplicationPad2D ReplicationPad3D"
)
_LP = "Abs AvgPool2D AvgPool3D Mul Pow Relu Sign Squeeze Unsqueeze"
SEVERAL = {
    "AdaptiveAvgPool1d": "AdaptiveAvgPool2D AsStrided Mean Squeeze Unsqueeze",
    "AdaptiveMaxPool1d": "AdaptiveMaxPool2D Squeeze Unsqueeze",
    "AlphaDropout": "Add Mul",
    "AvgPool1d": "AvgPool2D Squeeze Unsqueeze",
    "Conv1d": _CONV,
    "Conv2d": _CONV,
    "Conv3d": _CONV,
    "ConvTranspose1d": "Convolution Squeeze Unsqueeze",
    "ConvTranspose2d": "Convolution Squeeze Unsqueeze",
    "ConvTranspose3d": "Convolution Squeeze Unsqueeze",
    "Dropout1d": "Mul FeatureDropout Squeeze Unsqueeze",
    "Dropout3d": "Mul FeatureDropout Squeeze Unsqueeze",
    "FeatureAlphaDropout": "Add Mul",
    "Flatten": "Clone UnsafeView View ReshapeAlias",
    "Fold": "Col2Im Squeeze Unsqueeze",
    "GroupNorm": "Clone GroupNorm",
    "Identity": "",
    "LPPool1d": _LP,
    "LPPool2d": _LP,
    "LPPool3d": _LP,
    "Linear": "Add Addmm Clone Mm Squeeze T UnsafeView Unsqueeze View ReshapeAlias",
    "LocalResponseNorm": (
        "Add AvgPool2D AvgPool3D ConstantPadNd Div Mul Pow Squeeze Unsqueeze View UnsafeView Clone"
    ),
    "MaxPool1d": "MaxPool2DWithIndices MaxPool1DWithIndices MaxPool2D Squeeze Unsqueeze",
    "PReLU": "PreluKernel View",
    "RMSNorm": "Add Clone Mean Mul Pow Rsqrt RmsNorm FusedRmsNorm",
    "Softmin": "Neg Softmax",
    "Softsign": "Abs Add Div",
    "Tanhshrink": "Sub Tanh",
    "Unfold": "Im2Col Squeeze Unsqueeze",
    "Upsample": (
        "AdaptiveAvgPool2D AdaptiveAvgPool3D Mean Squeeze Unsqueeze UpsampleBicubic2D "
        "UpsampleBilinear2D UpsampleLinear1D UpsampleNearest1D UpsampleNearest2D UpsampleNearest3D "
        "UpsampleNearestExact1D UpsampleNearestExact2D UpsampleNearestExact3D UpsampleTrilinear3D"
    ),
    "_CircularPadNd": "CopySlices Slice",
    "_InstanceNorm": "Clone BatchNorm BatchNormImplIndex Repeat Squeeze Unsqueeze View UnsafeView",
}
"""By the class whose forward it is; `ONE` of what makes one node, whichever of these it is."""
BACKENDS = re.compile(r"^(Native|Cudnn|Miopen|Mkldnn|Mps|Slow|Thnn)(?=[A-Z])")
LAST = frozenset({"ReshapeAlias", "Squeeze", "UnsafeView", "View"})
"""What follows the operation that takes a module's last parameter."""
OPENING = "Unsqueeze"  # what it is put before is rarely in the middle of a module
CAST = "ToCopy"  # autocast puts it before what takes it, whatever that is


def word(name: str) -> str:
    """Give what a node's name says of the operation: ``BatchNorm`` of CudnnBatchNormBackward0."""
    return BACKENDS.sub("", re.sub(r"Backward\d*$", "", name))


def operations_of(module: Any) -> Operations | None:
    """Give what a module's forward can make, None where it is not one that is known here."""
    if "forward" in (own_dict(module) or {}):
        return None
    kind = next((one for one in type(module).__mro__ if "forward" in vars(one)), None)
    if kind is None or not kind.__module__.startswith("torch.nn.modules."):
        return None
    for table in (ONE, SEVERAL):
        words = table.get(kind.__name__)
        if words is None:
            continue
        if (own_dict(module) or {}).get("inplace"):  # in a view, it makes the view anew
            return Operations(frozenset([*words.split(), "CopySlices", "AsStrided"]), is_one=False)
        return Operations(frozenset(words.split()), table is ONE)
    return None
