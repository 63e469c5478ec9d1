"""Files that stand for a device: a crash bundle, a recording, registers that `reg --save` wrote.

A source is the name of a device, or such a file, by its path or as tools.base.bundles finds it. A
recording stands for the state at one moment: FILE@STAGE at the end of a stage of the boot, `--at N`
after access number N (`ugpu trace show` numbers them), else at the end.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from zipfile import is_zipfile

from ugpu.hcq.disk import bundle
from ugpu.hcq.disk.bundle import Bundle
from ugpu.hcq.errors import BadArgument, UgpuError, UsageError
from ugpu.hcq.find import offline as window
from ugpu.hcq.find.offline import WindowModule
from ugpu.hcq.registers.value_file import RegisterFile
from ugpu.hcq.transport.recorded.format import Recording
from ugpu.hcq.transport.recorded.state import RecordedTransport
from ugpu.tools.base.bundles import file_of
from ugpu.tools.base.recorded import names_of

_FIRST = "identity "  # beginning of a recording


@dataclass(frozen=True)
class Moment:
    """A recording at one moment. at: an access number; None: the end, or that of `stage`."""

    title: str
    recording: Recording
    at: int | None = None
    stage: str = ""

    @property
    def note(self) -> str:
        """A note about the recording for people; usually ""."""
        return cut_note(self.recording)

    def transport(self) -> tuple[RecordedTransport, WindowModule]:
        """See hcq.find.offline.recorded_transport; the caller closes it."""
        names = names_of(self.recording)
        return window.recorded_transport(
            self.recording, self.title, at=self.at, stage=self.stage, name_of=names
        )

    @contextmanager
    def chip(self) -> Iterator[tuple[object, WindowModule]]:
        """Yield the driver's chip as it was then, and the module that inspects it."""
        transport, module = self.transport()
        with module.open_recorded(transport) as chip:
            yield chip, module


def kept(source: str, at: int | None = None) -> Bundle | Moment | RegisterFile | None:
    """Return the content of the file that a source names; None if it names a device. BadArgument
    for any other file, UsageError for a moment of anything but a recording."""
    name, _, stage = source.partition("@")
    path = file_of(source)
    if path is not None:
        stage = ""
    else:
        path = file_of(name)
    content = None if path is None else _read(path)
    if isinstance(content, Recording):
        return Moment(source, content, at, stage)
    if at is not None or (stage and path is not None):
        raise UsageError(f"--at N and FILE@STAGE require a recording, got {source}")
    return content


def _read(path: Path) -> Bundle | Recording | RegisterFile:
    if path.name.endswith(bundle.SUFFIX) or is_zipfile(path):
        return bundle.read(path)
    try:
        text = path.read_text("utf-8")
    except OSError as error:
        raise BadArgument(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise _unknown(path) from None
    if text.lstrip().startswith("{"):
        return RegisterFile.loads(text, str(path))
    if not text.startswith(_FIRST[: len(text)]):
        raise _unknown(path)
    return recording_of(text, path)


def cut_note(recording: Recording) -> str:
    """Return a note for a recording that was cut off; "" for a complete one."""
    if not recording.cut:
        return ""
    return f"the recording was cut off in line {recording.cut}, which is left out"


def _unknown(path: Path) -> BadArgument:
    return BadArgument(f"{path} is not a recording, a crash bundle or a register file")


def recording_of(text: str, path: Path) -> Recording:
    """Parse a recording's text; of a file that was cut off, its complete lines. BadArgument."""
    try:
        return Recording.load(text, partial=True)
    except UgpuError as error:
        raise BadArgument(f"{path}: {error.message}", **error.facts) from None
