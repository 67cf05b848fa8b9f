"""One process of a distributed training, watched: prints what each run found, a line each.

Usage: distributed_runs.py DDP|FSDP RANK N_PROCESSES FILE
"""

from __future__ import annotations

import faulthandler
import json
import os
import sys

import torch
from torch import Tensor, nn

from nbinspect import NonFiniteError, nanwatch

FAULTS = ("none", "forward", "rank 0", "backward")


def sharded(model: nn.Module) -> nn.Module:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    return fully_shard(model, mesh=init_device_mesh("cpu", (torch.distributed.get_world_size(),)))


def made(kind: str) -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    return nn.parallel.DistributedDataParallel(model) if kind == "DDP" else sharded(model)


def train(model: nn.Module, fault: str, rank: int) -> list[float]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for i in range(3):
        torch.manual_seed(10 * i + rank)
        optimizer.zero_grad()
        out = model(torch.randn(4, 4))
        loss = out.square().mean()
        if i == 1 and (fault == "forward" or (fault, rank) == ("rank 0", 0)):
            loss = (out / (out - out)).mean()  # <- forward
        elif i == 1 and fault == "backward":
            loss = (out - out).sqrt().mean()  # <- backward
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses + [part(one).sum().item() for one in model.parameters()]


def part(tensor: Tensor) -> Tensor:
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def watched(kind: str, fault: str, rank: int, *, light: bool, stop: bool) -> dict[str, object]:
    model, numbers, message = made(kind), [], ""
    with nanwatch(light=light, stop=False) if not stop else nanwatch(light=light) as watch:
        try:
            numbers = train(model, fault, rank)
        except NonFiniteError as error:
            message = str(error)
    found = [
        (f.op, f.phase, f.reaches, f.where and f.where.text, f.why) for f in watch.report.findings
    ]
    return {
        "run": [fault, light, stop], "found": found, "numbers": repr(numbers), "message": message,
        "notes": watch.report.notes,
    }  # fmt: skip


def main(kind: str, rank: int, n_processes: int, file: str) -> None:
    faulthandler.dump_traceback_later(240, exit=True)
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", rank=rank, world_size=n_processes, init_method=f"file://{file}"
    )
    for fault in FAULTS:
        print(
            json.dumps({"run": [fault, "plain"], "numbers": repr(train(made(kind), fault, rank))})
        )
        for light in (False, True):
            for stop in (False, True):
                print(json.dumps(watched(kind, fault, rank, light=light, stop=stop)), flush=True)
    torch.distributed.barrier()
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
