"""A model's equal layers are one row where there are many; the record still has each."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import nbinspect
from nbinspect.blocks import Table
from nbinspect.equal_layers import any_layer, any_module


def tables(report) -> dict[str, Table]:
    return {block.title: block for block in report.view() if isinstance(block, Table)}


def of_towers(snapshot: nbinspect.MemorySnapshot) -> nbinspect.MemorySnapshot:
    """Leave out what other tests of this process have left."""
    device = snapshot.device("cpu")
    own = tuple(one for one in device.holdings if "variable tower" in one.owner)
    total = sum(one.size_bytes for one in own)
    return replace(snapshot, devices=(replace(device, holdings=own, tracked_bytes=total),))


def named(owner: str) -> str:
    """Leave out which test's variable it is."""
    return owner.rpartition("variable ")[2]


class Tower(nn.Module):
    def __init__(self, n: int, last: int) -> None:
        super().__init__()
        widths = [8] * (n - 1) + [last]
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(w, w), nn.ReLU()) for w in widths)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x) if x.shape[-1] == block[0].in_features else x
        return x


def test_equal_layers_are_one_row_and_others_stay_apart():
    tower = Tower(n=13, last=4)
    snapshot = of_towers(nbinspect.gpumem())
    table = tables(snapshot)["Largest holders on cpu"]
    rows = {named(row[1]): row for row in table.rows}
    assert rows["tower.blocks.*.*.weight"][2:4] == (12 * 8 * 8 * 4, 12)
    assert rows["tower.blocks.12.0.weight"][2:4] == (4 * 4 * 4, 1)
    owners = [named(one.owner) for one in snapshot.device("cpu").holdings]
    assert {f"tower.blocks.{n}.0.weight" for n in range(13)} <= set(owners)
    assert len(tower.blocks) == 13


def test_rows_and_the_rest_add_up_to_all_that_is_held():
    towers = [Tower(n=n, last=n) for n in (5, 6, 7)]
    snapshot = of_towers(nbinspect.gpumem())
    table = tables(snapshot)["Largest holders on cpu"]
    shown = sum(row[2] for row in table.rows)
    assert shown + (table.more_bytes or 0) == snapshot.device("cpu").tracked_bytes
    sizes = [row[2] for row in table.rows]
    assert sizes == sorted(sizes, reverse=True)
    assert len(towers) == 3


def test_where_there_is_room_each_layer_has_its_row():
    tower = Tower(n=4, last=8)
    table = tables(of_towers(nbinspect.gpumem(top=50)))["Largest holders on cpu"]
    assert {f"tower.blocks.{n}.0.bias" for n in range(4)} <= {named(row[1]) for row in table.rows}
    assert len(tower.blocks) == 4


def test_equal_modules_of_a_watched_cell_are_one_row():
    tower = Tower(n=13, last=8)
    with nbinspect.memwatch() as watch:
        tower(torch.ones(2, 8))
    table = tables(watch.report)["Modules whose forward allocated, without their children"]
    assert [row[:3] for row in table.rows] == [
        ("tower.blocks.*.0", "Linear x13", 13 * 64),
        ("tower.blocks.*.1", "ReLU x13", 13 * 64),
    ]
    assert len(watch.report.modules) == 26


def test_a_change_of_many_layers_is_short():
    before = nbinspect.gpumem()
    tower = Tower(n=40, last=8)
    diff = before.diff(nbinspect.gpumem())
    assert len(diff.changes) == 80
    (table,) = tables(diff).values()
    assert [(named(row[1]), *row[2:]) for row in table.rows] == [
        ("tower.blocks.*.*.weight", 0, 40 * 256, 40 * 256),
        ("tower.blocks.*.*.bias", 0, 40 * 32, 40 * 32),
    ]
    assert len(tower.blocks) == 40


@pytest.mark.parametrize(
    ("name", "open_name"),
    [
        ("net.blocks.3.up.weight", "net.blocks.*.up.weight"),
        ("net.3.1.weight", "net.*.*.weight"),
        ("net.layer3.weight", "net.layer3.weight"),
        ("optimizer.state[net.0.weight]['exp_avg']", "optimizer.state[net.*.weight]['exp_avg']"),
        ("losses[0..99]", "losses[0..99]"),
        ("net.heads.0", "net.heads.0"),
        ("v0.12.x", "v0.*.x"),
    ],
)
def test_only_numbers_of_layers_are_left_open(name, open_name):
    assert any_layer(name) == open_name


@given(st.text())
def test_leaving_open_twice_changes_nothing_more(name):
    assert any_layer(any_layer(name)) == any_layer(name)


def test_the_parts_of_a_flat_container_stay_apart():
    flat = {"net": "Sequential", "net.0": "Linear", "net.1": "ReLU", "net.2": "Linear"}
    assert [any_module(one, flat) for one in flat] == list(flat)
    equal = {"net": "ModuleList", "net.0": "Block", "net.1": "Block"}
    assert [any_module(one, equal) for one in equal] == ["net", "net.*", "net.*"]
