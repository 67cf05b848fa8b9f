"""The picture that outlives the live bars."""

from __future__ import annotations

import pytest

from nbinspect.blocks import Bar, Segment
from nbinspect.widgets.still import LivePicture

MIB = 2**20


def picture(error: str = "", open_s: float = 90.0) -> LivePicture:
    cuda = Bar("cuda:0", (), None, "driver lost")
    cpu = Bar("cpu", (Segment("this process", 512 * MIB, "PROCESS"),), 2048 * MIB, "the limit")
    return LivePicture((cuda, cpu), (("cpu", 600 * MIB),), "14:03:22", open_s, error)


def test_it_says_when_what_of_how_much_and_how_high_it_went():
    text = " ".join(picture().text().split())
    assert text.startswith("Memory at 14:03:22")
    assert "cpu: 512 MiB of 2.00 GiB, the limit" in text
    assert "Highest reading in 2 min: cpu 600 MiB." in text


def test_a_device_without_a_reading_is_its_reason_and_never_0():
    text = picture().text()
    assert "cuda:0: driver lost" in text
    assert "0 B" not in text


def test_a_lost_reading_is_said_first():
    first = picture("RuntimeError: <b>gone</b>").text().splitlines()[0]
    assert first == "No memory reading at 14:03:22: RuntimeError: <b>gone</b>"
    assert "<b>gone" not in picture("RuntimeError: <b>gone</b>").html()


@pytest.mark.parametrize(
    ("open_s", "words"), [(3.4, "in 3 s:"), (150, "in 2 min:"), (7500, "in 2 h 5 min:")]
)
def test_it_says_how_long_it_watched(open_s, words):
    assert words in picture(open_s=open_s).text()


def test_it_goes_through_json_and_draws_a_png():
    assert LivePicture.from_dict(picture().to_dict()) == picture()
    assert picture().png().startswith(b"\x89PNG")
