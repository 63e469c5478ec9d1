"""`ugpu reg`: registers of devices, recordings and files by one set of commands."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ugpu import hcq
from ugpu.am.chips import facts_of
from ugpu.hcq.errors import BadArgument, DeviceLost, DeviceNotFound, NotSupported, UsageError
from ugpu.hcq.find import offline as window
from ugpu.hcq.find.registry import Attachment
from ugpu.tools import cli
from ugpu.tools.base.console import Output
from ugpu.tools.inspect.registers import command
from ugpu.tools.inspect.registers.sources import open_source
from ugpu.virtual.amd.chip import Chip
from ugpu.virtual.amd.gpu import attach, build_chip
from ugpu.virtual.amd.options import ChipOptions


@pytest.fixture(scope="module")
def boot(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("recorded") / "boot.rec"
    hcq.open("virtual:navi31", record=path).close()
    return path


def answer(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, Any]:
    code = cli.main(["reg", "--json", *map(str, words)])
    return code, json.loads(capsys.readouterr().out)


def test_a_recording_has_the_last_value_of_each_register(
    boot: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, read = answer(capsys, "read", boot, "SCRATCH_REG7")
    assert code == 0
    assert [each["value"] for each in read] == [0x75470001]  # am.boot.boot.TAG, left at the end


def test_a_recording_until_a_stage(boot: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, found = answer(capsys, "diff", f"{boot}@firmware images", boot, "mp0.*C2PMSG_81")
    assert code == 1
    assert found["different"] == [
        {"register": "MP0_SMN_C2PMSG_81", "left": 0, "right": found["different"][0]["right"]}
    ]  # the secure OS says its version there once it runs
    assert found["different"][0]["right"] != 0
    with pytest.raises(BadArgument, match="no stage 'lunch'; expected one of config space"):
        command.read(f"{boot}@lunch", ["*"], Output())


@pytest.mark.parametrize(
    "words",
    [("read", "--from", None, "SCRATCH_REG7"), ("read", "SCRATCH_REG7", "--from", None)],
    ids=["before", "behind"],
)
def test_a_source_may_be_named_by_an_option(
    boot: Path, capsys: pytest.CaptureFixture[str], words: tuple[str | None, ...]
) -> None:
    code, read = answer(capsys, *(boot if word is None else word for word in words))
    assert code == 0 and [each["value"] for each in read] == [0x75470001]
    code, read = answer(capsys, "read", "MP0_SMN_C2PMSG_81", f"--from={boot}@firmware images")
    assert code == 0 and [each["value"] for each in read] == [0]


def test_an_option_without_a_source(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["waves", "--from"]) == 2
    assert "--from needs a source" in capsys.readouterr().err
    assert cli.main(["ls", "--from", "x"]) == 2  # a verb without one


def test_fields_are_read_by_name(boot: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for place in ("virtual:navi31", boot):
        assert cli.main(["reg", "read", str(place), "MP0_SMN_C2PMSG_81.CONT*"]) == 0
        shown = capsys.readouterr().out
        rows = [line.split() for line in shown.splitlines()[1:]]
        assert {tuple(row[1:]) for row in rows} == {("0x130042",)}
        assert all(row[0].endswith("MP0_SMN_C2PMSG_81.CONTENT") for row in rows)
        with pytest.raises(BadArgument, match="has no field 'NOPE', expected one of CONTENT"):
            command.read(str(place), ["MP0_SMN_C2PMSG_81.NOPE"], Output())


def test_kept_values_are_read_and_compared(
    tmp_path: Path, boot: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = tmp_path / "kept.json"
    code, read = answer(capsys, "read", "virtual:navi31", "mmhub.MMVM_L2_CNTL*", "--save", kept)
    assert code == 0
    again = answer(capsys, "read", kept, "*")
    assert again == (0, read) and read[0]["fields"]["ENABLE_L2_CACHE"] == 1
    code, same = answer(capsys, "diff", kept, "virtual:navi31", "MMVM_L2_CNTL*")
    assert (code, same["different"]) == (0, []) and same["compared"] == len(read)
    changed = json.loads(kept.read_text())
    changed["registers"]["mmhub.MMVM_L2_CNTL"] ^= 1
    kept.write_text(json.dumps(changed))
    code, found = answer(capsys, "diff", kept, "virtual:navi31", "MMVM_L2_CNTL*")
    assert code == 1
    assert [each["register"] for each in found["different"]] == ["mmhub.MMVM_L2_CNTL"]


@pytest.mark.parametrize(
    "text",
    ["{", "{}", '{"format": "ugpu registers 2"}', '{"format": "ugpu registers 1", "chip": ""}',
     '{"format": "ugpu registers 1", "chip": "", "registers": {"a": "b"}}', "[1]", "\xff"],
)  # fmt: skip
def test_a_damaged_file_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "damaged"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(BadArgument):
        command.read(str(path), ["*"], Output())


def test_writing_asks_and_says_what_it_may_do(capsys: pytest.CaptureFixture[str]) -> None:
    asked: list[str] = []

    def no(question: str) -> str:
        asked.append(question)
        return ""

    words = ["CP_HQD_PQ_CONTROL.QUEUE_SIZE=3", "gc.SCRATCH_REG0=0x12"]
    with pytest.raises(UsageError, match="nothing was written"):
        command.write("virtual:navi31", words, Output(), ask=no)
    said = capsys.readouterr().out
    assert len(asked) == 1
    assert "gc.SCRATCH_REG0: 0x00000000 -> 0x00000012" in said and "wrote" not in said
    assert "CP_HQD_PQ_CONTROL is the state of the queue" in said
    assert "SCRATCH_REG0 is" not in said
    assert command.write("virtual:navi31", words[1:], Output(), ask=lambda _: "y") == 0
    assert "wrote gc.SCRATCH_REG0 0x00000012" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["SCRATCH_REG0"], "expected REGISTER=NUMBER"),
        (["SCRATCH_REG0=-1"], "expected REGISTER=NUMBER"),
        (["SCRATCH_REG0=0x100000000"], "a register value must fit in 32 bits"),
        (["CP_HQD_ACTIVE.ACTIVE=2"], "field ACTIVE must be 0 to 0x1"),
        (["CP_HQD_ACTIVE.COLOUR=1"], "has no field COLOUR"),
        (["SCRATCH_REG*=1"], "expected 1 to 1"),
        (["MP0_SMN_C2PMSG_33=1"], "is in several blocks|expected 1 to 1"),
    ],
)
def test_a_bad_assignment_writes_nothing(words: list[str], text: str) -> None:
    with pytest.raises(BadArgument, match=text):
        command.write("virtual:navi31", ["SCRATCH_REG1=1", *words], Output(), yes=True)


def test_files_are_not_written(boot: Path) -> None:
    with pytest.raises(UsageError, match="is a file"):
        command.write(str(boot), ["SCRATCH_REG0=1"], Output(), yes=True)
    with pytest.raises(UsageError, match="is a file"):
        command.watch(str(boot), ["SCRATCH_REG0"], Output())


def test_watch_shows_changes_alone(capsys: pytest.CaptureFixture[str]) -> None:
    attachment = attach("navi31")
    chip = attachment.chip
    assert isinstance(chip, Chip)
    seen: list[float] = []

    def change(pause: float) -> None:
        seen.append(pause)
        if len(seen) == 2:
            chip.space.poke(chip.space.index("gc", "SCRATCH_REG3"), 5)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(window, "attach_virtual", lambda name: attachment)
        command.watch("virtual:navi31", ["SCRATCH_REG3"], Output(), boot=False, every_s=0.5,
                      looks=4, sleep=change)  # fmt: skip
    lines = capsys.readouterr().out.splitlines()
    assert seen == [0.5] * 3
    assert [line.split(" s  ", 1)[1] for line in lines] == [
        "gc.SCRATCH_REG3  0x00000000", "gc.SCRATCH_REG3  0x00000000 -> 0x00000005  "
        "SCRATCH_REG3 0x0 -> 0x5"]  # fmt: skip


def test_lookup_by_name_and_place(capsys: pytest.CaptureFixture[str]) -> None:
    code, found = answer(capsys, "lookup", "navi31", "gc.CP_HQD_ACTIVE", "0x378c")
    assert code == 0
    # Linux 6.12 gc_11_0_0_offset.h: regCP_HQD_ACTIVE 0x1fab in segment 0, which begins at 0x1260
    assert found[0]["offset"] == 4 * (0x1260 + 0x1FAB)
    assert found[0]["fields"] == {"ACTIVE": [0, 0], "BUSY_GATE": [1, 1]}
    assert found[1]["register"] == "nbio.RCC_DEV0_EPF0_RCC_CONFIG_MEMSIZE"
    code, found = answer(capsys, "lookup", "gh100", "gsp.MAILBOX0")
    assert code == 0 and found[0]["offset"] == 0x11_0040
    for words, text in (
        (["navi31", "0x3"], "multiple of 4"), (["navi31", "0xfffffffc"], "no register at"),
        (["navi99", "CP_STAT"], "no chip 'navi99'; did you mean"),
        (["a660", "CP_STAT"], "does not expose registers"),
    ):  # fmt: skip
        code, refused = answer(capsys, "lookup", *words)
        assert code in (1, 2) and text in refused["message"]


def test_a_window_changes_nothing() -> None:
    """The card is as it was: nothing booted, configuration space as before."""
    chip = build_chip(facts_of("navi31"), ChipOptions())
    attachment = attach("navi31", chip)
    attachment.transport.config_write(4, 0x0, 2)
    module = window.module_of_chip("navi31")
    with module.open_window(attachment) as seen:
        blocks = window.blocks_of(seen)
        assert int(blocks["gc"]["SCRATCH_REG7"].read()) == 0  # the tag of a boot
        assert int(blocks["mp0"]["MP0_SMN_C2PMSG_81"].read()) == 0  # no secure OS
    with attach("navi31", chip).transport as again:
        assert again.config_read(4, 2) == 0
    chip.close()


def test_a_card_that_leaves_meanwhile_is_named() -> None:
    attachment = attach("navi31")
    module, model = window.module_of_chip("navi31"), attachment.chip
    assert isinstance(model, Chip)
    with pytest.raises(DeviceLost), module.open_window(attachment) as chip:
        model.unplug()
        window.blocks_of(chip)["gc"]["SCRATCH_REG7"].read()
        raise DeviceLost("as a caller finds out")


@pytest.mark.parametrize(
    ("name", "kind"),
    [("cpu", DeviceNotFound), ("virtual:gh100", NotSupported), ("virtual:x", DeviceNotFound)],
)
def test_what_has_no_window(name: str, kind: type[Exception]) -> None:
    with pytest.raises(kind), window.open_window(name):
        pass


def test_a_window_closes_what_it_cannot_show(monkeypatch: pytest.MonkeyPatch) -> None:
    attachment = attach("navi31")
    closed: list[bool] = []
    monkeypatch.setattr(attachment.transport, "close", lambda: closed.append(True))
    monkeypatch.setattr(window, "attach_virtual", lambda name: attachment)
    monkeypatch.setattr(window, "pci_drivers", dict)
    with pytest.raises(DeviceNotFound), open_source("virtual:navi31", boot=False):
        pass
    assert closed == [True] and isinstance(attachment, Attachment)


def test_a_name_that_is_nearly_right(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["reg", "lookup", "navi31", "CP_STAX"]) == 2
    assert "near: CP_STAT" in capsys.readouterr().err


@pytest.mark.parametrize("looks", ["0", "-1"])
def test_polls_that_are_none(looks: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["reg", "watch", "virtual:navi31", "CP_STAT", "--looks", looks]) == 2
    assert f"expected a positive number of polls, got {looks}" in capsys.readouterr().err


def test_columns_are_named_without_folders(boot: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = boot.with_name("other.rec")
    other.write_bytes(boot.read_bytes())
    assert cli.main(["reg", "diff", f"{boot}@PSP bootloader", str(other)]) == 1
    header = capsys.readouterr().out.splitlines()[0].split("  ")
    assert [one for one in header if one][:3] == [
        "register",
        "boot.rec@PSP bootloader",
        "other.rec",
    ]
