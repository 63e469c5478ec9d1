"""`ugpu crash`: the bundles of evidence of failures: list, show, compare, export."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ugpu.hcq.disk import bundle
from ugpu.hcq.disk.bundle import Bundle
from ugpu.hcq.errors import BadArgument, UsageError
from ugpu.hcq.transport.recorded.state import last_stage
from ugpu.tools.base.bundles import find, folder
from ugpu.tools.base.console import Output, human_size
from ugpu.tools.base.device_files import Moment, kept
from ugpu.tools.inspect.registers import command
from ugpu.tools.inspect.registers.sources import REGISTERS


def ls(out: Output) -> int:
    """List the bundles, the newest first."""
    rows: list[tuple[object, ...]] = []
    results: list[dict[str, object]] = []
    for number, path in enumerate(bundle.bundles(folder())[::-1], 1):
        try:
            manifest: Any = bundle.read(path).manifest
        except BadArgument as error:
            rows.append((number, "", "", "", str(error)))
            results.append({"path": str(path), "error": str(error)})
            continue
        failed = manifest["error"]
        size = path.stat().st_size
        rows.append((number, manifest["when"], manifest["device"], failed["class"],
                     human_size(size), failed["message"]))  # fmt: skip
        results.append({"path": str(path), "when": manifest["when"], "size": size,
                        "device": manifest["device"], "error": failed["class"],
                        "message": failed["message"]})  # fmt: skip
    if rows:
        out.table(("", "when", "device", "error", "size", "message"), rows)
    else:
        out.say(f"no bundles in {folder()}")
    out.result(results)
    return 0


def show(name: str, parts: list[str], out: Output) -> int:
    """Show the failure and the bundle's parts; for named parts, their content."""
    evidence = bundle.read(find(name))
    for part in parts:
        if part not in evidence.parts:
            raise BadArgument(f"{evidence.path.name} has no {part}: {_missing(evidence, part)}")
        out.say(_text(part, evidence.parts[part]))
    if not parts:
        _overview(evidence, out)
    out.result(
        {part: _text(part, evidence.parts[part]) for part in parts}
        if parts
        else dict(evidence.manifest)
    )
    return 0


def _missing(evidence: Bundle, part: str) -> str:
    missing: Any = evidence.manifest["missing"]
    return str(missing.get(part) or f"it has {', '.join(evidence.parts)}")


def _text(part: str, content: bytes) -> str:
    if part.endswith(".bin"):
        lines = [content[start : start + 32] for start in range(0, len(content), 32)]
        return "\n".join(f"{32 * at:06x}  {line.hex(' ', 4)}" for at, line in enumerate(lines))
    return content.decode("utf-8", "replace")


def _overview(evidence: Bundle, out: Output) -> None:
    manifest: Any = evidence.manifest
    failed = manifest["error"]
    out.say(f"{failed['class']}: {failed['message']}", style="bold")
    out.say(f"{manifest['device']}, {manifest['when']}")
    out.say(", ".join(f"{name} {text}" for name, text in manifest["versions"].items()))
    out.table(
        ("fact", "value"), [(name, _number(value)) for name, value in failed["facts"].items()]
    )
    out.say()
    out.table(
        ("part", "size"), [(name, human_size(len(data))) for name, data in evidence.parts.items()]
    )
    if manifest["missing"]:
        out.say()
        out.table(("not there", "why"), list(manifest["missing"].items()))
    out.say()
    out.say(f"ugpu crash show {evidence.path} PART      ugpu reg read {evidence.path} 'gc.*'")


def _number(value: object) -> object:
    return f"{value:#x}" if isinstance(value, int) and abs(value) > 999 else value


def diff(left: str, right: str, out: Output) -> int:
    """Compare two bundles, or a bundle with a recording of a successful boot: the failure, then the
    registers, the first that differs first. Exit code 1 if registers differ."""
    first = find(left)
    if not _is_recording(right):
        both = [bundle.read(path) for path in (first, find(right))]
        rows = [(name, *values) for name, values in _differences(*map(_facts, both)).items()]
        out.table(("fact", both[0].path.name[:24], both[1].path.name[:24]), rows)
        out.say()
        if any(REGISTERS not in evidence.parts for evidence in both):
            lacking = next(evidence for evidence in both if REGISTERS not in evidence.parts)
            out.say(f"no registers to compare: {_missing(lacking, REGISTERS)}")
            out.result({"facts": {name: list(values) for name, *values in rows}})
            return 1 if rows else 0
        right = str(both[1].path)
    return command.diff(str(first), _booted(right), [], out)


def _booted(name: str) -> str:
    """Return the moment to compare with: of a recording whose moment is not given, the end of its
    boot. Afterwards come its work, and a close that turns the units off."""
    moment = kept(name)
    stage = last_stage(moment.recording) if isinstance(moment, Moment) and "@" not in name else ""
    return f"{name}@{stage}" if stage else name


def _is_recording(name: str) -> bool:
    path = Path(name.partition("@")[0])
    return path.is_file() and not path.name.endswith(bundle.SUFFIX)


def _facts(evidence: Bundle) -> Mapping[str, object]:
    manifest: Any = evidence.manifest
    failed = manifest["error"]
    return {"device": manifest["device"], "error": failed["class"], **manifest["versions"],
            **failed["facts"]}  # fmt: skip


def _differences(
    left: Mapping[str, object], right: Mapping[str, object]
) -> dict[str, tuple[object, object]]:
    names = dict.fromkeys([*left, *right])
    return {
        name: (_number(left.get(name, "")), _number(right.get(name, "")))
        for name in names
        if left.get(name) != right.get(name) and name != "bundle"
    }


def export(name: str, where: str, out: Output) -> int:
    """Copy a bundle to a new file, or unpack it into a new folder if `where` ends with /."""
    evidence, target = bundle.read(find(name)), Path(where)
    if not where.endswith(os.sep):
        if target.exists():
            raise UsageError(f"{target} exists")
        shutil.copyfile(evidence.path, target)
    else:
        target.mkdir()
        (target / bundle.MANIFEST).write_text(json.dumps(evidence.manifest, indent=1), "utf-8")
        for part, content in evidence.parts.items():
            if part != Path(part).name or part in (".", ".."):
                raise BadArgument(f"{evidence.path} has a part named {part!r}")
            (target / part).write_bytes(content)
    out.say(f"{evidence.path} -> {target}")
    out.result({"path": str(evidence.path), "target": str(target)})
    return 0
