"""What would go with an object: a holder of a chain, or all that a garbage cycle holds."""

from __future__ import annotations

from asking import Asker

KEPT = """
layer, losses = nn.Linear(64, 64), []
for _ in range(2):
    hidden = layer(torch.ones(8, 64))
    losses.append((hidden * hidden).mean())
probe = weakref.ref(hidden)
del hidden
"""


def test_each_holder_says_what_would_go_with_it(asker: Asker) -> None:
    found = asker.ask(KEPT)
    assert found.error == ""
    loss, mean, product, saved = found.report["chains"][0]["links"]
    inside = 2 * 8 * 64 * 4  # `hidden`, and the input that its own graph saved; not the weight
    assert loss["retained_bytes"] == inside + 4
    assert mean["retained_bytes"] == product["retained_bytes"] == saved["retained_bytes"] == inside
    assert not found.alive


def test_what_others_hold_too_would_stay(asker: Asker) -> None:
    found = asker.ask(KEPT + "view, first = probe()[0].detach(), losses[0]\n")
    assert found.error == ""
    (chain,) = found.report["chains"]
    assert chain["links"][0]["retained_bytes"] == 8 * 64 * 4 + 4, "the view keeps its whole base"
    found = asker.ask("a = torch.ones(10)\nb = [a[:5], a.detach()]\nprobe = weakref.ref(b[0])")
    assert found.report["chains"][0]["links"][0]["retained_bytes"] == 0


GARBAGE = """
class Node: pass
kept = nn.Linear(8, 8)
def plant():
    one, other = Node(), Node()
    one.other, other.one = other, one
    one.own, other.own = torch.ones(100), {"k": [torch.ones(50)]}
    one.shared, other.part = kept.weight, kept.bias[:2]
    other.loss = torch.ones(64, requires_grad=True).exp().sum()
    return weakref.ref(one.own), [one.own.detach()] if SHARE else None
SHARE = False
probe, alias = plant()
"""


def test_a_collection_would_free_all_that_only_garbage_holds(asker: Asker) -> None:
    found = asker.ask(GARBAGE, mends=0)
    assert found.error == ""
    assert found.report["collectable"]
    saved = 64 * 4  # the result of `exp`, which the leaf's graph saved; and the leaf, and the sum
    assert found.report["freed_bytes"] == 400 + 200 + saved + 64 * 4 + 4
    assert "would free" in found.report["verdict"]
    assert "what else only the cycle holds" in found.report["verdict"]
    assert not found.alive


def test_what_an_alias_keeps_is_not_counted(asker: Asker) -> None:
    found = asker.ask(GARBAGE.replace("SHARE = False", "SHARE = True"), mends=0)
    assert found.error == ""
    assert found.report["freed_bytes"] == 200 + 64 * 4 + 64 * 4 + 4
