"""Members of archives (zip and tar): where their bytes lie in the file."""

from __future__ import annotations

import struct
import tarfile
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass

from ugpu.compiler.files.entry import NAMES
from ugpu.compiler.files.source import Source
from ugpu.hcq.errors import NotSupported

_LOCAL = 30  # bytes of a member's local header in a zip file


@dataclass(frozen=True)
class Member:
    """size: bytes of the content. start: its place in the file. packed: None if it is stored as it
    is, else the number of its compressed bytes, which are there."""

    name: str
    start: int
    size: int
    packed: int | None = None


def zip_members(source: Source) -> Mapping[str, Member]:
    """Return the members of a zip file by name. BadFile if it is invalid or encrypted."""
    try:
        with source.stream() as stream, zipfile.ZipFile(stream) as archive:
            listed = archive.infolist()
    except (zipfile.BadZipFile, NotImplementedError, ValueError, OSError, struct.error) as error:
        source.refuse(f"invalid zip archive: {error}")
    if len(listed) > NAMES:
        source.refuse(f"expected at most {NAMES} members, got {len(listed)}")
    members: dict[str, Member] = {}
    for info in listed:
        if not info.filename:  # `is_dir` reads its last character
            source.refuse("a member has no name")
        if info.is_dir():
            continue
        if info.filename in members:
            source.refuse(f"member {info.filename!r} occurs twice")
        if info.flag_bits & 1:
            source.refuse(f"member {info.filename!r} is encrypted")
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise NotSupported(f"{source.path.name}: compression {info.compress_type} of a member")
        what = f"member {info.filename!r}"
        local = source.read(info.header_offset, _LOCAL, what)
        if local[:4] != b"PK\3\4":
            source.refuse(f"{what} has no local header")
        names, extra = struct.unpack_from("<HH", local, 26)
        stored = info.compress_type == zipfile.ZIP_STORED
        member = Member(
            info.filename,
            info.header_offset + _LOCAL + names + extra,
            info.file_size,
            None if stored else info.compress_size,
        )
        if member.start + (member.packed or (member.size if stored else 0)) > source.size:
            source.refuse(f"{what} does not fit the file, which has {source.size} bytes")
        members[info.filename] = member
    return members


def content(source: Source, member: Member, size: int | None = None) -> bytes:
    """Return a member's content, or its first `size` bytes. BadFile if it is shorter."""
    wanted = member.size if size is None else min(size, member.size)
    what = f"member {member.name!r}"
    if member.packed is None:
        return source.read(member.start, wanted, what)
    packed = source.read(member.start, member.packed, what)
    try:
        data = zlib.decompressobj(-zlib.MAX_WBITS).decompress(packed, wanted) if wanted else b""
    except zlib.error as error:
        source.refuse(f"{what} is damaged: {error}")
    if len(data) != wanted:
        source.refuse(f"{what}: expected {wanted} bytes, got {len(data)}")
    return data


def tar_members(source: Source) -> Mapping[str, Member]:
    """Return the regular files of a tar file by name; the last of equal names counts."""
    members: dict[str, Member] = {}
    try:
        with source.stream() as stream, tarfile.open(fileobj=stream, mode="r:") as archive:
            for count, info in enumerate(archive):
                if count >= NAMES:
                    source.refuse(f"expected at most {NAMES} members")
                if info.issparse():
                    raise NotSupported(f"{source.path.name}: {info.name!r} is a sparse file")
                if info.isreg():
                    members[info.name] = Member(info.name, info.offset_data, info.size)
                if info.offset_data + info.size > source.size:
                    source.refuse(
                        f"member {info.name!r} does not fit the file, which has {source.size} bytes"
                    )
    except (tarfile.TarError, ValueError, OSError, RecursionError) as error:
        source.refuse(f"invalid tar archive: {error}")
    return members
