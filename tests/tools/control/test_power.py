"""`ugpu power`, and the power limit in ugpud's configuration."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.service.daemon import Running, settings_text
from ugpu.hcq.device.device import Device
from ugpu.hcq.errors import BadArgument, ChipError, NotSupported
from ugpu.tools import cli
from ugpu.tools.control.power import parse_watts
from ugpu.tools.service.daemon.cards.owned import Owned
from ugpu.tools.service.daemon.clients.handout import chip_of
from ugpu.tools.service.daemon.config import DeviceSettings, parse
from ugpu.virtual.amd.chip import Chip

NAME = "virtual:navi31"


@pytest.mark.parametrize(
    ("limit", "watts"), [((), 339), (("--limit", "310W"), 310), (("--limit", "default"), 339)]
)
def test_the_verb_shows_and_sets(
    limit: tuple[str, ...], watts: float, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["power", NAME, *limit, "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown == {"device": NAME, "watts": watts, "least": 305, "most": 339, "usual": 339}


@pytest.mark.parametrize(
    ("words", "said"),
    [((NAME, "--limit", "100W"), "305 to 339 W"), ((NAME, "--limit", "lots"), "such as 100W"),
     (("cpu",), "reports no power limit"), (("cpu", "--limit", "9"), "cannot be set")],
)  # fmt: skip
def test_the_verb_says_what_is_wrong(
    words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["power", *words]) in (1, 2)
    assert said in capsys.readouterr().err


@given(st.text("0123456789.wWe -", max_size=9))
def test_text_is_watts_or_refused(text: str) -> None:
    try:
        watts = parse_watts(text)
    except BadArgument:
        return
    assert 0 < watts < 100_000 and float(text.rstrip("wW ")) == watts


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A ugpud with a limited card in a process of its own."""
    folder = tmp_path_factory.mktemp("p")
    made = Running(parse(settings_text(folder, [NAME]) + "power_limit_w = 310\n"))
    yield made
    made.close()


def test_a_lease_sees_the_limit_and_cannot_change_it(running: Running) -> None:
    with running.lease(NAME) as gpu:
        assert gpu.power_limit_w == 310
        with pytest.raises(NotSupported, match="cannot be set"):
            gpu.power_limit_w = 339


@pytest.mark.parametrize("broken", [False, True])
def test_ugpud_restores_the_limit_of_a_card_that_it_closes(
    broken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    owned = Owned(DeviceSettings(NAME, power_limit_w=310), NAME)
    chip = chip_of(NAME, {})
    assert isinstance(chip, Chip)
    monkeypatch.setattr(owned, "_chip", chip)
    limits = []

    def check(device: Device) -> None:
        limits.append(device.power_limit_w)
        if broken:
            raise ChipError("the copy is wrong")

    monkeypatch.setattr(owned, "_check", check)
    try:
        if broken:
            with pytest.raises(ChipError, match="the copy is wrong"):
                owned.boot()
        else:
            owned.boot()
            assert owned.device is not None
            owned.device.close()
        assert limits == [310]
        assert chip.smu.metrics.power_limit == 339
        assert chip.violations == []
    finally:
        chip.close()


def test_ugpud_does_not_open_a_card_with_a_limit_that_its_board_refuses() -> None:
    owned = Owned(DeviceSettings(NAME, power_limit_w=100), NAME)
    with pytest.raises(BadArgument, match="305 to 339 W"):
        owned.boot()
    assert owned.device is None
    owned.close()


@pytest.mark.parametrize("value", ["0", "-1", '"100W"', "true", "inf", "nan"])
def test_a_limit_that_is_none_is_an_error_of_the_file(value: str, tmp_path: Path) -> None:
    with pytest.raises(BadArgument, match="power_limit_w: expected a positive number of watts"):
        parse(settings_text(tmp_path, [NAME]) + f"power_limit_w = {value}\n")
