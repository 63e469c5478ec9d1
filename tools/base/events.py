"""Events of the daemon's cards, with fields: one catalogue for all outlets.

An event is a record of `logging` whose `event` attribute holds its kind and fields. A plain log
shows the event's text and remedy. The journal (tools.service.daemon.outlets.journal), the page and
OpenTelemetry (tools.service.daemon.outlets.feed) carry the fields. `python -m
ugpu.tools.base.events` prints the catalogue for journalctl -x, which is
tools/service/daemon/system/ugpud.catalog.

Source: systemd.journal-fields(7); systemd's "Message catalogs".
"""

from __future__ import annotations

import logging
import sys
from dataclasses import dataclass

from ugpu.hcq.errors import UgpuError

MANUAL = "docs/daemon.md"
# The attribute of a log record that carries an Event.
ATTRIBUTE = "event"


@dataclass(frozen=True)
class Kind:
    """A kind of event. message_id: 128 bits, never changed, never reused for another kind. remedy:
    default for events without one of their own."""

    name: str
    message_id: str
    level: int
    meaning: str
    remedy: str = ""


_INFO, _WARNING, _ERROR, _CRITICAL = (
    logging.INFO,
    logging.WARNING,
    logging.ERROR,
    logging.CRITICAL,
)
READY = Kind(
    "card.ready", "b425a9a0838d4bffad034b1b68c2c34a", _INFO, "A card was opened and can be leased."
)
BOOT_FAILED = Kind(
    "card.boot_failed", "5b85d69624de47c3b46494d1d47c02cc", _ERROR, "A card could not be opened.",
    "ugpu doctor names what is in the way",
)  # fmt: skip
MISSING = Kind(
    "card.missing", "69f77c703dfa4affa048d60849a442d6", _ERROR,
    "A card that is expected is not on the bus: it left, or was not there when ugpud started.",
    "ugpu doctor shows its slot; seat the card, check its power cables",
)  # fmt: skip
FAILED = Kind(
    "card.failed", "2c0a7a1659f74cc3832c861d7b78cb3d", _ERROR,
    "A card failed during a lease or the check after it; it is recovered.",
    "ugpu crash ls has its bundles; ugpu lease ls follows the recovery",
)  # fmt: skip
ROUND_FAILED = Kind(
    "card.recovery_round_failed", "296d76deb89d4a539c2d048777e900ea", _WARNING,
    "One round of a card's recovery did not help; the next one goes further.",
)  # fmt: skip
RECOVERED = Kind(
    "card.recovered", "42ae23cebcb1411aa7118709479a8ad0", _WARNING,
    "A card that had failed passed its self-test and is leased again.",
)  # fmt: skip
QUARANTINED = Kind(
    "card.quarantined", "07d699498459432fba641d96128b3b6b", _ERROR,
    "A card is not leased any more: its recovery failed, or an admin ordered it.",
    "see to the card, then ugpu lease recover DEVICE",
)  # fmt: skip
REBOOT = Kind(
    "machine.reboot", "2f50b5fbebb541bc8f669fc6b1437722", _CRITICAL,
    "The machine is rebooted, since a card cannot be recovered otherwise.",
)  # fmt: skip
LEASE_ENDED = Kind(
    "lease.ended", "90aacb3b00ca4615a515da6d2598ad4f", _INFO,
    "ugpud ended a lease: its time was up, its card failed, or an admin ended it.",
)  # fmt: skip
LEASE_FAULT = Kind(
    "lease.fault", "402ebc9dbba5ed7e281f9c433a55f3fc", _WARNING,
    "The work of a lease failed on its card; the holder was told, and nothing more of it runs "
    "until the holder resets.",
)  # fmt: skip
LEASE_RESET = Kind(
    "lease.reset", "2c0e759daf5b87b35c11deacef7ddf06", _INFO,
    "The holder of a lease had its device reset; work under way was lost.",
)  # fmt: skip
NOT_CLEANED = Kind(
    "card.not_cleaned", "51481ab38af74560a9f0674ec540c420", _WARNING,
    "Kernels of the next lease can find what those of the last one left in a card's units.",
)  # fmt: skip
HISTORY_LOST = Kind(
    "history.lost", "bdf65497f3684fb58c965467d86e4beb", _ERROR, "History cannot be written.",
    "make room on the disk, or move the file",
)  # fmt: skip
LINK_DEGRADED = Kind(
    "card.link_degraded", "9aaabef4890a42efb8e7319c94e9bc8a", _WARNING,
    "The PCIe link of a card at work is narrower or slower than it was at work before.",
    "seat the card and its cable; ugpu doctor shows every link on the way",
)  # fmt: skip
LINK_RESTORED = Kind(
    "card.link_restored", "a4bf44c7530d464eac2f9cf8e81ad02e", _INFO,
    "The PCIe link of a card is as wide and fast again as it was.",
)  # fmt: skip
ECC_UNCORRECTED = Kind(
    "card.ecc_uncorrected", "e40cc60f708f4b7fa97b5f7946cf402f", _ERROR,
    "ECC found errors of memory that it could not correct: results may be wrong.",
    "reset the card; replace it if it happens again",
)  # fmt: skip
ECC_TREND = Kind(
    "card.ecc_trend", "d106c86fb8f746b18c649dfefcb776e8", _WARNING,
    "ECC corrects more errors of memory than it did before.",
    "plan to replace the card; check its temperatures",
)  # fmt: skip
EXPORT_LOST = Kind(
    "export.lost", "f7735f986862499b8a237615f970de17", _WARNING,
    "The OpenTelemetry collector takes nothing; ugpud goes on without it.",
    "see to the collector, and to endpoint in [otlp]",
)  # fmt: skip
EXPORT_BACK = Kind(
    "export.back", "d0f9e85482bc46519184057ba4e0d1eb", _INFO,
    "The OpenTelemetry collector takes metrics and events again.",
)  # fmt: skip
JOURNAL_LOST = Kind(
    "journal.lost", "a1bb1a32fdde40d4b7472ea7bfc61679", _WARNING,
    "journald did not take entries in time; they are lost.",
)  # fmt: skip
KINDS = tuple(kind for kind in list(globals().values()) if isinstance(kind, Kind))
# Kinds that describe a lasting state; `ugpu_card_trouble` is 1 while it lasts.
TROUBLES = (MISSING, LINK_DEGRADED, ECC_UNCORRECTED, ECC_TREND)


@dataclass(frozen=True)
class Event:
    """The event of a log record. fields: lower snake case; remedy: empty if there is none."""

    kind: Kind
    text: str
    remedy: str
    fields: dict[str, str]


def tell(log: logging.Logger, kind: Kind, text: str, /, **fields: object) -> None:
    """Log an event. fields: facts such as device, reason, lease. `error` becomes its class, its
    text and its remedy. Fields that are None or empty are omitted."""
    if not log.isEnabledFor(kind.level):
        return
    error = fields.pop("error", None)
    remedy = str(fields.pop("remedy", "") or kind.remedy)
    told = {name: str(value) for name, value in fields.items() if value not in (None, "")}
    if isinstance(error, BaseException):
        told["class"] = type(error).__name__
        told.setdefault("reason", str(error))
        if isinstance(error, UgpuError) and error.facts.get("remedy"):
            remedy = str(error.facts["remedy"])
    shown = f"{text}; remedy: {remedy}" if remedy and remedy not in text else text
    event = Event(kind, text, remedy, told)
    log.log(kind.level, "%s", shown, extra={ATTRIBUTE: event}, stacklevel=2)


def event_of(record: logging.LogRecord) -> Event | None:
    """Return the event of a log record; None for a plain line."""
    event = getattr(record, ATTRIBUTE, None)
    return event if isinstance(event, Event) else None


def catalogue() -> str:
    """Return all kinds in the format of systemd's message catalogs."""
    parts = ["# Events of ugpud, for journalctl -x; made by python -m ugpu.tools.base.events."]
    for kind in KINDS:
        remedy = "\n\nRemedy: @UGPU_REMEDY@" if kind.remedy else ""
        parts.append(
            f"-- {kind.message_id}\n"
            f"Subject: {kind.name}: @UGPU_DEVICE@\n"
            "Defined-By: ugpud\n"
            f"\n{kind.meaning}\n\n@MESSAGE@{remedy}"
        )
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    sys.stdout.write(catalogue())
