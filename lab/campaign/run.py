"""Runs one case: plant, meet, name, recover, look for damage and for what was left behind."""

from __future__ import annotations

import contextlib
import gc
import os
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from lab.campaign.kind import Case, Kind, Recovery, Result
from lab.campaign.stands.stand import Stand
from tests.support.collector import apart
from ugpu.hcq.errors import DeviceHang, UgpuError

#: seconds from the start of a stage to its error; a wait that passes every limit takes longer
LIMIT_S = 20.0


class Failed(Exception):
    """A check failed. args: its name, and what was wrong."""


def counts() -> dict[str, int]:
    """Descriptors, mappings of files and threads of this process."""
    gc.collect()
    mappings = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    return {
        "descriptors": len(os.listdir("/proc/self/fd")),
        "mappings": sum(len(line.split(None, 5)) == 6 for line in mappings),
        "threads": threading.active_count(),
    }


def run(case: Case, kind: Kind, make: Callable[[], Stand], *, leaks: bool = True) -> Result:
    """Run a case; what leaves something behind is run again, since a leak repeats and what is
    loaded for the first time does not. leaks: whether to look for that: not beside other cases,
    which `apart` would keep from the collector too."""
    result = Result(case)
    start = time.monotonic()
    with apart() if leaks else contextlib.nullcontext():
        _run_and_count(case, kind, make, result, leaks)
    result.seconds = time.monotonic() - start
    return result


def _run_and_count(
    case: Case, kind: Kind, make: Callable[[], Stand], result: Result, leaks: bool
) -> None:
    try:
        for last in (False, False, True):
            before = counts()
            _run(case, kind, make, result)
            if not leaks:
                break
            after = _settled(before)
            more = {
                name: after[name] - before[name] for name in after if after[name] > before[name]
            }
            if not more:
                break
            if last:
                raise Failed("leaked", str(more))
    except Failed as failed:
        result.failed[failed.args[0]] = failed.args[1]


def _settled(before: dict[str, int]) -> dict[str, int]:
    """Count once threads that end by themselves have ended."""
    end = time.monotonic() + 5.0
    while True:
        now = counts()
        if all(now[name] <= before[name] for name in now) or time.monotonic() > end:
            return now
        if now["threads"] <= before["threads"]:
            return now
        time.sleep(0.002)


def _run(case: Case, kind: Kind, make: Callable[[], Stand], result: Result) -> None:
    stand = make()
    stand.variant = case.variant
    try:
        try:
            if case.stage in stand.boot_stages:
                _while_opening(case, kind, stand, result)
            else:
                _while_open(case, kind, stand, result)
        finally:
            stand.close()
        if left := stand.left():
            raise Failed("leaked", left)
        bad = [text for text in stand.objections() if not any(o in text for o in kind.objections)]
        if bad:
            raise Failed("objections", "; ".join(bad[:3]))
    except Failed:
        raise
    except Exception as error:
        raise Failed("crash", _short(error)) from error
    finally:
        stand.stop()


def _short(error: BaseException) -> str:
    """An unexpected exception with its place."""
    frames = traceback.extract_tb(error.__traceback__)[-3:]
    places = " < ".join(f"{Path(f.filename).name}:{f.lineno}" for f in reversed(frames))
    return f"{type(error).__name__}: {str(error)[:300]} ({places})"


def _meet(
    act: Callable[[], object], result: Result, wanted: type[BaseException] | None
) -> BaseException | None:
    """The error that `act` raises; only ours may, or `wanted`, and soon."""
    start = time.monotonic()
    error: BaseException | None = None
    expected = UgpuError if wanted is None else wanted
    try:
        act()
    except (UgpuError, expected) as raised:
        error = raised
        result.error = f"{type(raised).__name__}: {str(raised)[:400]}"
    except Exception as other:
        raise Failed("detected", _short(other)) from other
    taken = time.monotonic() - start
    if taken > LIMIT_S:
        raise Failed("detected", f"took {taken:.1f} s")
    return error


def _name(kind: Kind, stage: str, error: BaseException | None, stand: Stand) -> None:
    """Check class, facts, state and remedy."""
    wanted = kind.expected(stage)
    if wanted is None:
        if error is not None:
            raise Failed("named", f"expected no error, got {type(error).__name__}: {error}")
        if not kind.struck(stand):
            raise Failed("detected", "the fault has not struck")
        return
    if error is None and kind.may_cope:
        return
    if error is None:
        raise Failed("detected", f"expected {wanted.__name__}, got no error")
    if type(error) is not wanted:
        raise Failed("named", f"expected {wanted.__name__}, got {type(error).__name__}: {error}")
    facts = error.facts if isinstance(error, UgpuError) else {}
    for name, value in kind.facts.items():
        if facts.get(name) != value:
            raise Failed("named", f"fact {name}: expected {value!r}, got {facts.get(name)!r}")
    remedies = [str(facts.get("remedy", "")), str(error)]
    if kind.state:
        found = stand.states()
        if kind.state not in found:
            raise Failed("named", f"expected the state {kind.state!r}, found {sorted(found)}")
        remedies.append(found[kind.state])
    if kind.remedy and not any(kind.remedy in text for text in remedies):
        raise Failed("remedy", f"expected {kind.remedy!r}, got {remedies!r}")


def _while_opening(case: Case, kind: Kind, stand: Stand, result: Result) -> None:
    error = _meet(
        lambda: stand.open(case.stage, lambda: kind.plant(stand)), result, kind.expected(case.stage)
    )
    _name(kind, case.stage, error, stand)
    kind.cure(stand)
    if error is not None:
        if left := stand.left():
            raise Failed("leaked", f"after the failure: {left}")
        _recovered(stand.open)
    _works(stand)


def _while_open(case: Case, kind: Kind, stand: Stand, result: Result) -> None:
    stand.open()
    stand.prepare()
    used = stand.memory_used()
    provoke = kind.provoke

    def act() -> None:
        if provoke is not None:
            kind.plant(stand)
            provoke(stand)
        else:
            stand.do(case.stage, lambda: kind.plant(stand))

    stand.limit(short=kind.expected(case.stage) is DeviceHang)
    error = _meet(act, result, kind.expected(case.stage))
    _name(kind, case.stage, error, stand)
    kind.cure(stand)  # ORDER: before anything of the driver runs, at whose lines it may be planted
    stand.limit(short=False)
    if case.stage == "close":
        stand.close()
        _recovered(stand.open)
        _works(stand)
        return
    cut_off = case.stage == "reset" and kind.recovery is Recovery.GO_ON
    if (kind.recovery is Recovery.RESET or cut_off) and error is not None:
        _recovered(stand.reset)
    elif kind.recovery is Recovery.REOPEN and error is not None:
        stand.close()
        _recovered(stand.open)
        _works(stand)
        return
    _works(stand)
    if kind.lost:
        if not stand.memory_lost:
            raise Failed("intact", "the content of DEVICE memory is lost, and nothing says so")
    elif (wrong := stand.intact()) and not (cut_off and stand.memory_lost):
        if not stand.memory_lost:
            raise Failed("intact", wrong)
        raise Failed("intact", f"{wrong} (the recovery lost DEVICE memory)")
    grown = stand.memory_used() - used
    if grown > 0:
        raise Failed("leaked", f"{grown} bytes of the device's memory")


def _recovered(act: Callable[[], object]) -> None:
    try:
        act()
    except UgpuError as error:
        raise Failed("recovered", _short(error)) from error


def _works(stand: Stand) -> None:
    try:
        stand.work()
    except (UgpuError, AssertionError) as error:
        raise Failed("recovered", f"work after it: {_short(error)}") from error
