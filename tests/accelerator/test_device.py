"""The device itself: what the tests beside this rest on."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

MIB = 1 << 20


def test_torch_has_two_devices(torch_card):
    assert torch.accelerator.current_accelerator() == torch.device("card")
    assert torch.accelerator.device_count() == 2
    assert torch.ones(1, device="card:1").device == torch.device("card:1")


def test_a_training_step_agrees_with_the_cpus_and_waits_for_nothing(torch_card):
    def train(device):
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 10)
        )
        pixels, labels = torch.randn(8, 1, 8, 8), torch.randint(0, 10, (8,))
        model, pixels, labels = model.to(device), pixels.to(device), labels.to(device)
        optimizer = torch.optim.Adam(model.parameters())
        torch_card.counted()
        for _ in range(3):
            optimizer.zero_grad()
            functional.cross_entropy(model(pixels), labels).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        return torch_card.counted(), [p.detach().cpu() for p in model.parameters()]

    waits, far = train("card")
    assert waits.reads == waits.from_host == 0
    assert waits.kernels > 200
    # Fused and unfused optimizers round otherwise.
    for a, b in zip(far, train("cpu")[1], strict=True):
        torch.testing.assert_close(a, b)


READS = {
    "item": (lambda x: x[0, 0].item(), "scalars"),
    "cpu": (lambda x: x.cpu(), "to_host"),
    "tolist": (lambda x: x.tolist(), "to_host"),
    "print": (repr, "to_host"),
    "nonzero": (torch.nonzero, "shapes"),
    "mask": (lambda x: x[x > 0], "shapes"),
    "synchronize": (lambda x: torch.accelerator.synchronize(), "waits"),
}


@pytest.mark.parametrize(("what", "counter"), READS.values(), ids=READS)
def test_what_waits_is_counted(torch_card, what, counter):
    x = torch.ones(3, 3, device="card")
    assert torch_card.counted().reads == 0
    what(x)
    assert getattr(torch_card.counted(), counter) > 0


def test_memory_is_counted_in_blocks_and_cached(torch_card):
    before = torch.accelerator.memory_stats(0)
    kept = torch.empty(1000, dtype=torch.uint8, device="card")
    during = torch.accelerator.memory_stats(0)
    key = "allocated_bytes.all.current"
    assert during[key] - before[key] == 1024
    del kept
    assert torch.accelerator.memory_allocated(0) == before[key]
    assert torch.accelerator.memory_reserved(0) >= before[key] + 1024
    free, total = torch.accelerator.get_memory_info(0)
    assert total - free == torch.accelerator.memory_reserved(0)


def test_memory_ends(torch_card):
    with torch_card.room(MIB), pytest.raises(torch.OutOfMemoryError, match="Tried to allocate 2"):
        torch.empty(2 * MIB, dtype=torch.uint8, device="card")
    assert torch.empty(2 * MIB, dtype=torch.uint8, device="card").numel()


def test_random_numbers_are_the_devices_own(torch_card):
    torch.manual_seed(7)
    state = torch_card.get_rng_state("card")
    host = torch.get_rng_state()
    first = torch.rand(4, device="card")
    assert torch.equal(torch.get_rng_state(), host)
    torch_card.set_rng_state(state, "card")
    assert torch.equal(torch.rand(4, device="card").cpu(), first.cpu())


def test_mixing_devices_is_an_error(torch_card):
    for other in ("cpu", "card:1"):
        with pytest.raises(RuntimeError, match="same device"):
            torch.ones(2, device="card:0") + torch.ones(2, device=other)
