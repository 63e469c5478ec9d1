"""`ugpu lease`: the devices of a ugpud, their holders, and a lease from the command line."""

from __future__ import annotations

import argparse

from ugpu.tools.base.console import Output
from ugpu.tools.verbs.verb import register


def _lease(parser: argparse.ArgumentParser) -> None:
    what = parser.add_subparsers(dest="what", required=True, metavar="VERB")
    ls = what.add_parser("ls", help="list devices, leases and waiting requests")
    take = what.add_parser("take", help="lease a device until Ctrl-C")
    release = what.add_parser("release", help="end a lease of another holder (admins)")
    recover = what.add_parser("recover", help="try again to recover a quarantined device (admins)")
    quarantine = what.add_parser("quarantine", help="take a device out of use (admins)")
    for each in (ls, take, release, quarantine, recover):
        each.add_argument("--daemon", metavar="WHERE", help="a socket, or tls://HOST[:PORT]")
        each.add_argument("--json", action="store_true", help=argparse.SUPPRESS)
    take.add_argument("device", nargs="?", default="*", help='a pattern, such as "gfx11*"')
    take.add_argument(
        "--transport",
        action="store_true",
        help=("lease a vfio-user socket without a driver, for QEMU"),
    )
    take.add_argument(
        "--kind", choices=["exclusive", "shared", "observer"], default="exclusive",
        help="shared: share the device with other shared leases; observer: only get notified when "
        "the device is removed",
    )  # fmt: skip
    take.add_argument("--memory", default="0", metavar="SIZE", help="required memory, such as 8G")
    take.add_argument(
        "--wait", type=float, default=0.0, metavar="S", help="time limit in the queue"
    )
    take.add_argument("--limit", type=float, default=0.0, metavar="S", help="duration of the lease")
    take.add_argument("--priority", type=int, default=5, metavar="N", help="0 to 9, 9 is first")
    quarantine.add_argument("device", help='a pattern, such as "gfx11*"')
    quarantine.add_argument("reason", nargs="*", help="shown by `ugpu lease ls`")
    recover.add_argument("device", help='a pattern, such as "gfx11*"')
    release.add_argument("lease", type=int, help="lease number, from `ugpu lease ls`")


@register("hand over", "lease devices of a ugpud: ls, take, release, quarantine, recover", _lease)
def lease(arguments: argparse.Namespace, out: Output) -> int:
    # Loads the client, which other verbs do not need.
    from ugpu.tools.control import lease

    return lease.run(arguments, out)
