"""A real systemd-journald for tests, in a mount namespace of its own: a program logs into it, and
journalctl reads the entries back.

    python -m tests.support.service.journald PROGRAM   # in the namespace; run by `entries`
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

NAMESPACE = "ugpu-test"
SOCKET = Path(f"/run/systemd/journal.{NAMESPACE}/socket")
ROOT = Path(__file__).resolve().parents[3]
_JOURNALD = "/lib/systemd/systemd-journald"
_INSIDE = f"""\
set -e
mount -t tmpfs tmpfs /run
mount -t tmpfs tmpfs /var/log
mount -t tmpfs tmpfs /etc/systemd
mkdir -p /run/systemd /run/log/journal /etc/systemd
printf '[Journal]\\nStorage=volatile\\n' > /etc/systemd/journald@{NAMESPACE}.conf
{_JOURNALD} {NAMESPACE} 2>/dev/null &
journald=$!
trap 'kill $journald' EXIT
"$1" -m tests.support.service.journald "$2"
kill $journald
wait $journald || true
trap - EXIT
journalctl --file "/run/log/journal/*/system.journal" --output json --output-fields="$3"
"""


def missing() -> str:
    """What keeps a journald from running here; empty: nothing."""
    for program in ("unshare", "journalctl", _JOURNALD):
        if shutil.which(program) is None:
            return f"{program} is not installed"
    if os.geteuid() != 0:
        return "a journald of one's own needs root"
    probe = "mount -t tmpfs tmpfs /run && mount -t tmpfs tmpfs /etc/systemd"
    done = subprocess.run(["unshare", "-m", "sh", "-c", probe], capture_output=True, text=True)
    return done.stderr.strip() and f"no mount namespace: {done.stderr.strip()}"


def entries(program: str, fields: str) -> list[dict[str, Any]]:
    """Run a program of Python with `path`, journald's socket; the entries that were stored, with
    these fields (as journalctl takes them)."""
    done = subprocess.run(
        ["unshare", "-m", "--propagation", "private", "sh", "-c", _INSIDE, "sh", sys.executable,
         textwrap.dedent(program), fields],
        cwd=ROOT, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def main(program: str) -> None:
    """Wait until journald listens, then run the program."""
    from tests.support.waiting import until

    until(SOCKET.exists, "journald listens")
    exec(compile(program, "program", "exec"), {"path": SOCKET})


if __name__ == "__main__":
    main(sys.argv[1])
