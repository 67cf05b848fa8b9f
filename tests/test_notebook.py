"""Whose code is it: the user's, or a library's?"""

from __future__ import annotations

import json
import sys

import pytest
import torch

from nbinspect import notebook


@pytest.mark.parametrize(
    ("file", "is_users"),
    [
        ("/home/me/project/train.py", True),
        ("/home/me/site-packages-notes/train.py", True),
        ("<stdin>", True),
        ("", False),
        ("<frozen importlib._bootstrap>", False),
        ("/opt/another-environment/lib/python3.12/site-packages/timm/models.py", False),
        ("/usr/local/lib/python3.12/dist-packages/torch/nn/functional.py", False),
        (torch.__file__, False),
        (json.__file__, False),
        (notebook.__file__, False),
        (__file__, True),
    ],
)
def test_whose_code_it_is(file: str, is_users: bool) -> None:
    assert notebook.is_users_file(file) == is_users


def test_an_environment_added_by_hand_is_a_librarys(tmp_path, monkeypatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    assert notebook.is_users_file(str(tmp_path / "mine.py"))
    assert not notebook.is_users_file(str(tmp_path / "site-packages" / "theirs.py"))
    assert str(tmp_path) in sys.path
