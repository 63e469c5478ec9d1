"""Read the resource manager's interface of one driver release: all parameters that programs pass.

Structures and constants come from one translation unit that includes every chosen header. The block
of each control is read from the resource manager's generated dispatch tables. The block of each
class, and the parents below which it may be created, are read from the list of resources.
"""

from __future__ import annotations

import re
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from ugpu.tools.clang2py.cheaders import Header, HeaderError, Reader, Row
from ugpu.tools.clang2py.crosscheck import crosscheck, gcc
from ugpu.tools.clang2py.nvidia.catalogue import (
    ALL_CLASSES,
    CLASS_HEADERS,
    ESCAPES,
    FIRST_HEADERS,
    GENERATED,
    INCLUDES,
    LAST_HEADERS,
    LEFT_OUT_CONSTANTS,
    LEFT_OUT_CONTROLS,
    LEFT_OUT_STRUCTS,
    RESOURCES,
    SDK,
)

_ENTRY = re.compile(r"RS_ENTRY\((.*?)\n\)", re.S)
_METHOD = re.compile(
    r"/\*flags=\*/\s*(0x[0-9a-f]+)u.*?/\*methodId=\*/\s*(0x[0-9a-f]+)u,"
    r"\s*/\*paramSize=\*/\s*(?:sizeof\((\w+)\)|0)",
    re.S,
)
_TAKES = re.compile(r"RS_(\w+)(?:\((\w+)\))?")
_CLASS = re.compile(r"^#define\s+(\w+)\s+\((0x[0-9a-f]+)\)", re.M)


@dataclass
class Interface:
    """The interface of one release; each dictionary becomes one part of a table."""

    header: Header
    #: class name -> (number, parameter block or "-", how, internal class, internal parents)
    classes: dict[str, tuple[int, str, str, str, str]] = field(default_factory=dict)
    #: control number -> parameter block or "-"
    controls: dict[int, str] = field(default_factory=dict)
    #: name -> (number, parameter block, node)
    ioctls: dict[str, tuple[int, str, str]] = field(default_factory=dict)
    #: the files that were read, relative to the tree
    inputs: list[str] = field(default_factory=list)


def chosen_headers(tree: Path) -> list[str]:
    """Return the headers to include, relative to one of the include folders."""
    sdk = tree / SDK
    controls = []
    for path in sorted((sdk / "ctrl").rglob("*.h")):
        name = path.relative_to(sdk).as_posix()
        if not any(name.startswith(f"ctrl/{left_out}") for left_out in LEFT_OUT_CONTROLS):
            controls.append(name)
    classes = [f"class/{name}.h" for name in CLASS_HEADERS if (sdk / f"class/{name}.h").exists()]
    names = [*FIRST_HEADERS, "alloc/alloc_channel.h", *classes, *controls, *LAST_HEADERS]
    return [name for name in names if any((tree / include / name).exists() for include in INCLUDES)]


def _read_header(tree: Path) -> Header:
    include = [tree / folder for folder in INCLUDES]
    with tempfile.TemporaryDirectory() as name:
        everything = Path(name) / "everything.h"
        lines = [f"#include <{header}>" for header in chosen_headers(tree)]
        everything.write_text("\n".join(lines) + "\n", encoding="ascii")
        header = Reader(everything, include=include, below=tree).read()
        for name in [name for name in header.rows if name.startswith(LEFT_OUT_STRUCTS)]:
            del header.rows[name]
        for name in [name for name in header.constants if LEFT_OUT_CONSTANTS.search(name)]:
            del header.constants[name]
        header.aliases = {a: name for a, name in header.aliases.items() if name in header.rows}
        compiler = gcc()
        if compiler:
            crosscheck(compiler, everything, header.rows, include=include)
    return header


def _classes(tree: Path) -> dict[str, tuple[int, str, str, str, str]]:
    listed = _CLASS.findall((tree / ALL_CLASSES).read_text(encoding="utf-8"))
    numbers = {name: int(value, 16) for name, value in listed}
    classes = {name: (number, "-", "-", "-", "-") for name, number in numbers.items()}
    for entry in _ENTRY.findall((tree / RESOURCES).read_text(encoding="utf-8")):
        parts = dict(re.findall(r"/\* (\w[\w ]*\w) +\*/ ([^/]*)", entry))
        name = parts["External Class"].strip().rstrip(",")
        internal = parts["Internal Class"].strip().rstrip(",")
        taken = _TAKES.match(parts["Alloc Param Info"])
        if taken is None:
            raise HeaderError(f"{RESOURCES}: {name} takes {parts['Alloc Param Info']}")
        how, block = taken.groups()
        parents = ",".join(re.findall(r"classId\((\w+)\)", parts["Parents"]))
        if not parents:
            parents = parts["Parents"].strip().rstrip(",").removeprefix("RS_")
        if name in numbers:
            classes[name] = (numbers[name], block or "-", how, internal, parents.replace(" ", ""))
    return classes


def _controls(tree: Path) -> tuple[dict[int, str], list[str]]:
    controls: dict[int, str] = {}
    read = []
    for path in sorted((tree / GENERATED).glob("g_*_nvoc.c")):
        matches = _METHOD.findall(path.read_text(encoding="utf-8"))
        if matches:
            read.append(path.relative_to(tree).as_posix())
        for _flags, number, block in matches:
            earlier = controls.setdefault(int(number, 16), block or "-")
            if earlier != (block or "-"):
                raise HeaderError(f"{path.name}: {number} takes {earlier} and {block}")
    return controls, read


def read_interface(tree: Path) -> Interface:
    """Read one release; HeaderError if the compilers or the sources contradict each other."""
    header = _read_header(tree)
    interface = Interface(header)
    interface.classes = _classes(tree)
    interface.controls, dispatch = _controls(tree)
    header.rows["NvHandle"] = Row("NvHandle", 4, (("handle", "u32", 0, 0, 0),))
    for name, (number, *_) in interface.classes.items():
        header.constants.setdefault(name, (number, ""))
    for name, block in ESCAPES.items():
        if name in header.constants and block in {**header.rows, **header.aliases}:
            interface.ioctls[name] = (header.constants[name][0], block, "rm")
    for block in {**header.rows, **header.aliases}:
        name = block.removesuffix("_PARAMS")
        if name.startswith("UVM_") and name != block and name in header.constants:
            interface.ioctls[name] = (header.constants[name][0], block, "uvm")
    interface.inputs = [_place(tree, name) for name in chosen_headers(tree)]
    interface.inputs += [ALL_CLASSES, RESOURCES, *dispatch]
    return interface


def _place(tree: Path, name: str) -> str:
    return next(f"{include}/{name}" for include in INCLUDES if (tree / include / name).exists())
