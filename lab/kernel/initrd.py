"""The guest's first file system: busybox, kernel modules and a first program, as a cpio archive.

Needs neither root, cpio nor depmod: dependencies are read from the `depends=` and `softdep=`
strings that every module carries in its .modinfo section. Also unpacks the kernel out of its
bzImage, since QEMU boots the ELF file itself (PVH), which saves the emulated decompression.
"""

from __future__ import annotations

import gzip
import lzma
import re
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path

# Modules that carry the guest's root; loaded by the first program, in this order.
ROOT_MODULES = ("virtio_pci", "9pnet_virtio", "9p", "overlay")
FIRST_WORDS = "lab: first program after"
EXCHANGE = "/mnt/lab"  # where the guest sees the folder it shares with us, writable

_INIT = f"""#!/bin/busybox sh
/bin/busybox mkdir -p /proc /sys /dev /lower /mnt
/bin/busybox --install -s /bin
export PATH=/bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
echo "{FIRST_WORDS} $(cat /proc/uptime)"
for module in $(cat /modules.order); do insmod /modules/$module.ko || echo "lab: no $module"; done
fail() {{ echo "lab: $1"; echo o > /proc/sysrq-trigger; sleep 60; }}
options=trans=virtio,version=9p2000.L,msize=1048576
mount -t 9p -o $options,cache=loose,ro root /lower || fail "the root share does not mount"
mount -t tmpfs upper /mnt
mkdir -p /mnt/upper /mnt/work /mnt/root
mount -t overlay -o lowerdir=/lower,upperdir=/mnt/upper,workdir=/mnt/work o /mnt/root \\
    || fail "the overlay does not mount"
root=/mnt/root
mount -t tmpfs run $root/run
mount --move /proc $root/proc
mount --move /sys $root/sys
mount --move /dev $root/dev
mkdir -p $root/dev/pts $root/dev/shm
mount -t devpts devpts $root/dev/pts
mount -t tmpfs shm $root/dev/shm
mkdir -p $root{EXCHANGE}
mount -t 9p -o $options,cache=none exchange $root{EXCHANGE} || fail "the exchange does not mount"
ifconfig lo 127.0.0.1 up
exec switch_root $root /bin/sh {EXCHANGE}/start.sh
"""

_DIRECTORY, _FILE, _PROGRAM, _DEVICE = 0o040755, 0o100644, 0o100755, 0o020600


class Modules:
    """The modules of an unpacked kernel, each with what it needs loaded before it."""

    def __init__(self, folder: Path | None) -> None:
        """Those below `folder`; None for a kernel without modules."""
        self._paths: dict[str, Path] = {}
        for path in folder.rglob("*.ko*") if folder is not None else ():
            self._paths[_plain(path.name.split(".ko")[0])] = path

    def in_order(self, names: Iterable[str]) -> dict[str, bytes]:
        """Module images by name, dependencies first; KeyError for an unknown name.

        A name that is not there because the kernel has it built in is left out when it is only a
        dependency; those asked for by name are the caller's to know.
        """
        images: dict[str, bytes] = {}
        for name in names:
            self._visit(_plain(name), images, wanted=name not in ROOT_MODULES)
        return images

    def needed_by(self, image: bytes) -> dict[str, bytes]:
        """What a module from elsewhere needs loaded before it, in order."""
        images: dict[str, bytes] = {}
        for name in dependencies(image):
            self._visit(name, images, wanted=False)
        return images

    def _visit(self, name: str, images: dict[str, bytes], *, wanted: bool) -> None:
        if name in images:
            return
        if name not in self._paths:
            if wanted:
                raise KeyError(f"the kernel has no module {name}")
            return
        image = _unpacked(self._paths[name])
        for needed in dependencies(image):
            self._visit(needed, images, wanted=False)
        images[name] = image


def dependencies(image: bytes) -> list[str]:
    """What a module names in `depends=` and `softdep=pre:`."""
    found: list[str] = []
    for text in re.findall(rb"\0depends=([^\0]*)\0", image):
        found += [_plain(name) for name in text.decode().split(",") if name]
    for text in re.findall(rb"\0softdep=pre: ([^\0]*)\0", image):
        found += [_plain(name) for name in re.split(r"[ ,]+", text.decode()) if name]
    return found


def archive(busybox: bytes, modules: dict[str, bytes]) -> bytes:
    """The initramfs (newc cpio, Linux Documentation/driver-api/early-userspace)."""
    entries: list[tuple[str, int, bytes, tuple[int, int]]] = [
        (name, _DIRECTORY, b"", (0, 0)) for name in ("bin", "modules", "dev", "proc", "sys")
    ]
    entries.append(("dev/console", _DEVICE, b"", (5, 1)))
    entries.append(("bin/busybox", _PROGRAM, busybox, (0, 0)))
    entries.append(("init", _PROGRAM, _INIT.encode(), (0, 0)))
    entries.append(("modules.order", _FILE, "\n".join(modules).encode() + b"\n", (0, 0)))
    for name, image in modules.items():
        entries.append((f"modules/{name}.ko", _FILE, image, (0, 0)))
    entries.append(("TRAILER!!!", 0, b"", (0, 0)))
    out = bytearray()
    for number, (path, mode, data, device) in enumerate(entries, 1):
        title = path.encode() + b"\0"
        words = (number, mode, 0, 0, 1, 0, len(data), 0, 0, *device, len(title), 0)
        out += b"070701" + b"".join(b"%08X" % word for word in words) + title
        out += b"\0" * (-len(out) % 4)
        out += data
        out += b"\0" * (-len(out) % 4)
    return bytes(out)


def extract_kernel(image: bytes, unpack_zstd: Callable[[bytes], bytes]) -> bytes:
    """The ELF kernel inside a bzImage; ValueError when none of its packings is known."""
    for magic, unpack in (
        (b"\x28\xb5\x2f\xfd", unpack_zstd),
        (b"\xfd7zXZ\0", lambda data: lzma.LZMADecompressor(lzma.FORMAT_XZ).decompress(data)),
        (b"\x1f\x8b\x08", lambda data: zlib.decompressobj(31).decompress(data)),
    ):
        place = image.find(magic)
        while place > 0:
            kernel = _attempt(unpack, image[place:])
            if kernel.startswith(b"\x7fELF"):
                return kernel
            place = image.find(magic, place + 1)
    raise ValueError("no packed ELF kernel in the image")


def _attempt(unpack: Callable[[bytes], bytes], data: bytes) -> bytes:
    try:
        return unpack(data)
    except (lzma.LZMAError, zlib.error, ValueError):
        return b""  # the magic number stood there by chance


def _plain(name: str) -> str:
    return name.strip().replace("-", "_")


def _unpacked(path: Path) -> bytes:
    data = path.read_bytes()
    if path.suffix == ".xz":
        return lzma.decompress(data)
    return gzip.decompress(data) if path.suffix == ".gz" else data
