"""Every operation of torch's own test database gives the same bits under the watch as without."""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import settings
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack
from torch.utils._pytree import tree_leaves, tree_map

from nbinspect import graphwatch, memwatch, nanwatch
from nbinspect.numerics.margins import HeadroomWatch

if TYPE_CHECKING:
    from torch.testing._internal.opinfo.core import OpInfo

N_SAMPLES = 2
ENOUGH = 0.95  # of the entries; the others differ from run to run without us
N_TRIES = 5  # runs without us, if a watched one differs, before it is held against us
# torch itself takes another way through their backward while any dispatch mode is active, or through
# what they are made of if the numbers are complex: all of their samples are tried.
BY_TWO_WAYS = {
    torch.float32: {
        "prod", "masked_prod", "cumprod", "masked_fill", "max_reduction_no_dim", "median",
        "min_reduction_no_dim", "nanmedian", "aminmax", "amax", "linalg_eig", "linalg_eigh",
    },
    torch.complex64: {"prod", "cumprod", "linalg_eigh", "linalg_pinv", "pinverse"},
}  # fmt: skip
# Their values are whatever was in the memory before, now the same five times and now not.
UNINITIALISED = {
    "empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided",
}  # fmt: skip
START = torch.get_rng_state()


@pytest.fixture(scope="module")
def op_db() -> list[OpInfo]:
    """Load the database: 250,000 objects, which each inspector of a test would look through."""
    from torch.testing._internal.common_methods_invocations import op_db

    settings.load_profile("nbinspect")  # torch's test tools have loaded another
    return op_db


def bits(value: Any) -> Any:
    """Give what must be the same: dtype, shape and bytes of each tensor."""
    if not isinstance(value, torch.Tensor):
        return repr(value)
    value = value.detach()
    head = (value.dtype, tuple(value.shape), value.layout)
    if value.layout is torch.sparse_coo:
        return head, bits(value._indices()), bits(value._values())
    if value.layout in {torch.sparse_csr, torch.sparse_bsr}:
        return head, bits(value.crow_indices()), bits(value.col_indices()), bits(value.values())
    if value.layout in {torch.sparse_csc, torch.sparse_bsc}:
        return head, bits(value.ccol_indices()), bits(value.row_indices()), bits(value.values())
    plain = value.resolve_conj().resolve_neg().contiguous().reshape(-1)
    return head, bytes(plain.view(torch.uint8).numpy()) if plain.numel() else b""


def copied(value: Any) -> Any:
    """Copy the tensors in arguments, each as a leaf of its own."""

    def one(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        twin = leaf.detach().clone()
        return twin.requires_grad_(leaf.requires_grad)

    return tree_map(one, value)


def outcome(call: Callable[..., Any], sample: Any, grad: float = 1.0) -> list[Any]:
    """Run an operation and its backward, and give all that came of it.

    Args:
        call: the operation.
        sample: its arguments.
        grad: the gradients that backward starts from.
    """
    given = copied((sample.input, sample.args, sample.kwargs))
    torch.set_rng_state(START)  # `manual_seed` asks every kind of device
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = list(tree_leaves(call(given[0], *given[1], **given[2])))
            roots = [one for one in found if isinstance(one, torch.Tensor) and one.requires_grad]
            leaves = [one for one in tree_leaves(given) if isinstance(one, torch.Tensor)]
            if roots:
                torch.autograd.backward(roots, [torch.full_like(one, grad) for one in roots])
            return [bits(one) for one in [*found, *leaves, *(one.grad for one in leaves)]] + [
                bits(torch.get_rng_state())
            ]
    except Exception as error:
        return [type(error), str(error)]


def dtype_of(op: OpInfo, wanted: torch.dtype) -> torch.dtype | None:
    """Give the dtype to run an entry with; for float32, another if it knows no float32."""
    known = op.supported_dtypes("cpu")
    if wanted in known or wanted is not torch.float32:
        return wanted if wanted in known else None
    others = (torch.float64, torch.complex64, torch.int64, torch.bool, *sorted(known, key=str))
    return next((one for one in others if one in known), None)


def calls(op: OpInfo) -> Iterator[Callable[..., Any]]:
    yield op
    if op.get_inplace() is not None:
        yield lambda first, *args, **kwargs: op.get_inplace()(first.clone(), *args, **kwargs)


def samples(op: OpInfo, dtype: torch.dtype, *, requires_grad: bool) -> Iterator[Any]:
    """Give an entry's samples, the same each time.

    `op.sample_inputs` would ask for the source of every running function, ten times as long as all
    the rest.
    """
    torch.set_rng_state(START)
    yield from op.sample_inputs_func(op, "cpu", dtype, requires_grad)


def check(op: OpInfo, dtype: torch.dtype, *, light: bool) -> tuple[str, list[str]]:
    """Run an entry plain and watched; say whether it ran, and what differs."""
    backward = dtype in op.supported_backward_dtypes("cpu")
    wrong = []
    n_ran = 0
    for sample in islice(samples(op, dtype, requires_grad=backward), N_SAMPLES):
        for call in calls(op):
            plain = outcome(call, sample)
            for is_light in {False, light}:
                with nanwatch(stop=False, light=is_light) as watch:
                    watched = outcome(call, sample)
                if watched == plain:
                    n_ran += 1
                elif op.name not in UNINITIALISED and not varies(call, sample, plain):
                    wrong.append(f"{op.formatted_name} {dtype} light={is_light}")
                assert not watch.report.error
                assert not _get_current_dispatch_mode_stack()
    return ("ran" if n_ran else "varies or has no sample"), wrong


def varies(call: Callable[..., Any], sample: Any, plain: list[Any]) -> bool:
    return any(outcome(call, sample) != plain for _ in range(N_TRIES))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.timeout(900)
@pytest.mark.keeps_tensors(reason="torch's database keeps samples itself")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_same_bits(op_db: list[OpInfo], dtype: torch.dtype) -> None:
    known = [(op, dtype_of(op, dtype)) for op in op_db]
    found = {
        op.formatted_name: check(op, own, light=i % 10 == 0)
        for i, (op, own) in enumerate(known)
        if own is not None
    }
    left_out = [name for name, (what, _) in found.items() if what != "ran"]
    print(f"{dtype}: {len(found)} entries, left out: {left_out}")
    assert not [one for _, wrong in found.values() for one in wrong]
    assert len(found) - len(left_out) >= ENOUGH * len(found)


# Every watch that looks at operations; they share one dispatch mode.
WATCHES = {
    "nanwatch": lambda: nanwatch(stop=False), "memwatch": memwatch, "graphwatch": graphwatch,
    "headroom": HeadroomWatch,
}  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.keeps_tensors(reason="torch's database keeps samples itself")
@pytest.mark.parametrize("watch", WATCHES)
@pytest.mark.parametrize("dtype", BY_TWO_WAYS, ids=str)
def test_same_bits_where_torch_has_two_ways(
    op_db: list[OpInfo], dtype: torch.dtype, watch: str
) -> None:
    """Also of gradients below 0 and infinite ones, and where torch refuses."""
    runs, known = [], {op.formatted_name: op for op in op_db}
    for name in BY_TWO_WAYS[dtype]:
        every = samples(known[name], dtype, requires_grad=True)
        for sample in every if watch == "nanwatch" else islice(every, N_SAMPLES):
            runs += [functools.partial(outcome, known[name], sample, g) for g in (-1.5, math.inf)]
    assert not different(runs, watch)


def different(runs: list[Callable[[], Any]], watch: str) -> list[int]:
    """Say which runs give something else under a watch, though they never vary without it."""
    plain = [run() for run in runs]
    with WATCHES[watch]():
        watched = [run() for run in runs]
    assert not _get_current_dispatch_mode_stack()
    found = [i for i, (one, other) in enumerate(zip(plain, watched, strict=True)) if one != other]
    return [i for i in found if all(runs[i]() == plain[i] for _ in range(N_TRIES))]


# Without gradients torch leaves the vectors out, unless a dispatch mode is active.
WITHOUT_VECTORS = {
    "linalg_svdvals": lambda *args, **kwargs: torch.linalg.svdvals(*args, **kwargs),
    "linalg_eigvalsh": lambda *args, **kwargs: torch.linalg.eigvalsh(*args, **kwargs),
    "linalg_cond": lambda *args, **kwargs: torch.linalg.cond(*args, **kwargs),
    "linalg_matrix_norm": lambda *args, **kwargs: torch.linalg.matrix_norm(*args, **kwargs),
    "linalg_norm": lambda *args, **kwargs: torch.linalg.norm(*args, **kwargs),
    "norm_nuc": lambda *args, **kwargs: torch.norm(*args, **kwargs),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.keeps_tensors(reason="torch's database keeps samples itself")
@pytest.mark.parametrize("watch", WATCHES)
def test_same_bits_without_vectors(op_db: list[OpInfo], watch: str) -> None:
    runs, known = [], {op.formatted_name: op for op in op_db}
    for name, call in WITHOUT_VECTORS.items():
        for dtype in (torch.float32, torch.complex64):
            every = samples(known[name], dtype, requires_grad=False)
            runs += [functools.partial(outcome, call, one) for one in islice(every, 3 * N_SAMPLES)]
    assert not different(runs, watch)


def test_a_function_that_runs_whole_is_watched_all_the_same() -> None:
    weight = torch.nn.Parameter(torch.ones(2))

    def step() -> None:
        lowest = torch.linalg.eigvalsh(torch.eye(2) * 3e38 * torch.tensor([[1.0, 1.0], [1.0, 1.0]]))
        size = torch.linalg.cond(torch.zeros(2, 2))
        (weight * size + lowest * 0).sum().backward()

    with nanwatch(stop=False) as watch:
        step()
    [found] = watch.report.findings
    assert (found.op, found.phase) == ("aten.linalg_cond", "data")
    assert "size = torch.linalg.cond" in found.where.text
