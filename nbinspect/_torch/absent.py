"""What stands in for a function that this torch has not got."""

from __future__ import annotations


def nothing(*_: object) -> None:
    """Stand in for a function that this torch does not have."""


def never(*_: object) -> bool:
    """Stand in for one that counts or tells."""
    return False
