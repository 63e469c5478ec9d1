"""The processor's features: what a setting excludes is used by no generated code."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import Mock

import pytest

from tests import changed, masks
from ugpu.hcq.state import host
from ugpu.hcq.state.config import Config, from_environment

ROOT = Path(__file__).resolve().parents[3]
SAPPHIRE_RAPIDS = dict.fromkeys(
    ("avx2", "fma", "f16c", "avx512f", "avx512vl", "avx512bf16", "avx512fp16", "amx-tile"), True
)
ZEN_4 = SAPPHIRE_RAPIDS | {"avx512fp16": False, "amx-tile": False}
HASWELL = {name: not name.startswith(("avx512", "amx")) for name in SAPPHIRE_RAPIDS}


def test_excluded_features_are_off_and_others_stay() -> None:
    everything = host.features(())
    assert not any(name.startswith("avx10") for name in everything)
    left = host.features(("avx512", "amx"))
    assert left.keys() == everything.keys()
    for name, present in left.items():
        assert present == (everything[name] and not name.startswith(("avx512", "amx")))


def test_the_string_names_each_feature_with_its_sign() -> None:
    assert host.feature_string({"fma": True, "avx512f": False}) == "-avx512f,+fma"


def test_the_setting_is_a_list_of_beginnings() -> None:
    found = from_environment({"UGPU_HOST_WITHOUT": "avx512, amx,"})
    assert found.host_without == ("avx512", "amx")
    assert Config().host_without == ()


@pytest.mark.parametrize(
    ("processor", "runs"),
    [
        (SAPPHIRE_RAPIDS, list(masks.MASKS)),
        (ZEN_4, ["AVX2 only", "AVX-512 without FP16 and BF16"]),
        (HASWELL, []),
    ],
)
def test_masks_that_change_a_processor_are_run_once_each(
    processor: dict[str, bool], runs: list[str]
) -> None:
    found = masks.to_run(processor)
    assert list(found) == list(masks.MASKS)
    assert [mask for mask, reason in found.items() if not reason] == runs


def test_the_tests_to_run_are_there() -> None:
    assert all((ROOT / name).exists() for name in masks.TESTS)


def test_masks_take_turns() -> None:
    able = masks.to_run(ZEN_4)
    turns = [masks.in_turn(able, number) for number in range(3)]
    runs = [[mask for mask, reason in turn.items() if not reason] for turn in turns]
    assert runs == [["AVX2 only"], ["AVX-512 without FP16 and BF16"], ["AVX2 only"]]
    assert masks.in_turn(masks.to_run(HASWELL), 1) == masks.to_run(HASWELL)


def test_only_the_mask_whose_turn_it_is_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = []

    def run(command: list[str], env: dict[str, str], check: bool) -> Mock:
        runs.append(env["UGPU_HOST_WITHOUT"])
        return Mock(returncode=3)

    monkeypatch.setattr(masks, "features", lambda without: ZEN_4)
    monkeypatch.setattr(masks.subprocess, "run", run)
    monkeypatch.setenv(changed.NUMBER, "1")
    assert masks.main(["--turn", "tests/a.py"]) == 3
    assert runs == ["avx512fp16,avx512bf16,amx"]
