"""`ugpu doctor --write-udev`: rules that give users access to GPUs behind USB bridges and VFIO.

Source: systemd udev(7), sd-login's "uaccess" tag (only rules before 73 are effective), Linux
Documentation/driver-api/usb/power-management.rst (autosuspend: power/control).
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from ugpu.hcq import outfile
from ugpu.hcq.errors import AccessDenied, UsageError
from ugpu.hcq.transport.vfio.container import UDEV_RULE
from ugpu.tools.base.console import Output
from ugpu.usbgpu.bridge import asm24

_HEAD = "# Written by `ugpu doctor --write-udev`."
_RULES = outfile.Kind("a file of `ugpu doctor --write-udev`", re.escape(_HEAD.encode()))
DEFAULT = Path("/etc/udev/rules.d/70-ugpu.rules")
RELOAD = "sudo udevadm control --reload && sudo udevadm trigger"


def rules() -> str:
    """Return the file's text. Bridges stay awake: autosuspend leaves their link degraded."""
    lines = [_HEAD]
    lines += [
        f'SUBSYSTEM=="usb", ENV{{DEVTYPE}}=="usb_device", ATTR{{idVendor}}=="{vendor:04x}", '
        f'ATTR{{idProduct}}=="{product:04x}", MODE="0660", TAG+="uaccess", '
        'ATTR{power/control}="on"'
        for vendor, product in asm24.IDS
    ]
    return "\n".join([*lines, UDEV_RULE]) + "\n"


def write(path: Path, out: Output) -> int:
    """Write the rules; AccessDenied with the command that has the rights, UsageError for an invalid
    folder."""
    text = rules()
    partial = path.with_name(path.name + ".partial")  # udev reads only names that end in .rules
    outfile.check_file(path, _RULES)
    try:
        partial.write_text(text, encoding="ascii")
        os.replace(partial, path)
    except PermissionError as error:
        raise AccessDenied(
            f"no permission to write {path}", remedy="sudo ugpu doctor --write-udev"
        ) from error
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from error
    out.say(f"wrote {path}; now: {RELOAD}")
    out.result({"wrote": str(path), "next": RELOAD})
    return 0
