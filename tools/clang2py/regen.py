"""Generate every table from a kernel tree, in memory, then write the files that differ."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from ugpu.tools.clang2py.catalogue import AMD_LICENCE, PLAN, HeaderTable, Plan, RegisterTable
from ugpu.tools.clang2py.cheaders import Header, HeaderError, Reader
from ugpu.tools.clang2py.crosscheck import crosscheck, gcc
from ugpu.tools.clang2py.emit import constant_text, heading, register_text, structure_text
from ugpu.tools.clang2py.manifest import NAME, Manifest, digest, generated_files
from ugpu.tools.clang2py.packets import read_packets
from ugpu.tools.clang2py.registers import read_registers
from ugpu.tools.clang2py.sources import KernelTree
from ugpu.tools.clang2py.typed import header_stub, package_stub, register_stub

Outputs = dict[str, str]  # file name -> text, for one folder


def _sources(tree: KernelTree, paths: Iterable[str]) -> list[tuple[str, str]]:
    return [(path, digest((tree.folder / path).read_bytes())) for path in paths]


def register_table(tree: KernelTree, table: RegisterTable) -> Outputs:
    """Generate one table of registers and its stub."""
    texts = [(tree.folder / path).read_text(encoding="utf-8") for path in table.inputs]
    registers = read_registers(texts[0], texts[1], prefix=table.prefix, source=table.source)
    top = heading(
        _sources(tree, table.inputs), "NAME offset segment [FIELD:lsb:width ...]", AMD_LICENCE
    )
    return {
        f"{table.name}.txt": top + register_text(registers),
        f"{table.name}.pyi": register_stub(registers),
    }


def read_header(folder: Path, table: HeaderTable) -> Header:
    """Read one C header; HeaderError if a structure does not have its required size.

    If gcc is installed, it must agree with libclang on every size, offset and bit.
    """
    path = folder / table.header
    include = [folder / table.include_folder] if table.include_folder else []
    header = Reader(
        path,
        before=table.before,
        include=include,
        names_only=table.names_only,
        word_bits=table.word_bits,
    ).read()
    for name in table.leave_out:
        del header.rows[name]
    compiler = gcc()
    if compiler and header.rows:
        crosscheck(compiler, path, header.rows, before=table.before, include=include)
    if table.packets:
        header.rows |= read_packets(path.read_text(encoding="utf-8"), header.constants)
    for name, size in table.sizes:
        if header.rows[name].size != size:
            actual = header.rows[name].size
            raise HeaderError(f"{table.header}: expected {name} to have {size} bytes, got {actual}")
    return header


def header_table(tree: KernelTree, table: HeaderTable) -> tuple[Outputs, bool]:
    """Generate the tables and the stub of one C header; return also whether it has structures."""
    header = read_header(tree.folder, table)
    sources = _sources(tree, table.inputs)
    remark = "NAME value [enumeration]; NAME() lsb width"
    if header.left_out:
        remark += f"\n# Left out, as they are not integers: {' '.join(header.left_out)}"
    names = constant_text(header.constants, header.placements)
    outputs = {f"{table.name}.constants.txt": heading(sources, remark, table.licence) + names}
    if header.rows:
        remark = "NAME size [FIELD:type:offset[:bit:width] ...]"
        rows = structure_text(header.rows, header.aliases)
        outputs[f"{table.name}.structs.txt"] = heading(sources, remark, table.licence) + rows
    if table.completed:
        stub = header_stub(header.rows, header.aliases, header.constants)
        outputs[f"{table.name}.pyi"] = stub
    return outputs, bool(header.rows)


def generate(tree: KernelTree, plan: Plan = PLAN) -> dict[str, Outputs]:
    """Generate everything: folder -> file name -> text."""
    folders: dict[str, Outputs] = {folder: {} for folder in plan.folders}
    structured: dict[str, dict[str, bool]] = {folder: {} for folder in plan.folders}
    first = plan.folders[0]
    for register in plan.registers:
        folders[first] |= register_table(tree, register)
    for header in plan.headers:
        outputs, has_structures = header_table(tree, header)
        folders[header.folder] |= outputs
        if header.completed:
            structured[header.folder][header.name] = has_structures
    for folder, outputs in folders.items():
        registers = [table.name for table in plan.registers] if folder == first else []
        package = "ugpu." + folder.replace("/", ".")
        outputs["__init__.pyi"] = package_stub(package, registers, structured[folder])
    return folders


def _manifest(
    tree: KernelTree, paths: Iterable[str], outputs: Mapping[str, str], earlier: Manifest
) -> Manifest:
    inputs = dict(_sources(tree, paths))
    digests = {name: digest(text.encode("ascii")) for name, text in outputs.items()}
    # The same headers in a newer package are not a change.
    package = earlier.package if inputs == earlier.inputs else tree.origin
    return Manifest(package, inputs, digests)


def write_folder(place: Path, outputs: Outputs, manifest: Manifest) -> list[Path]:
    """Make a folder contain exactly these files; return those that were changed, added or
    removed."""
    changed = []
    place.mkdir(parents=True, exist_ok=True)
    for name in generated_files(place):
        if name not in outputs:
            (place / name).unlink()
            changed.append(place / name)
    for name, text in sorted({**outputs, NAME: manifest.text()}.items()):
        path = place / name
        if not path.exists() or path.read_text(encoding="ascii") != text:
            path.write_text(text, encoding="ascii")
            changed.append(path)
    return changed


def write(tree: KernelTree, root: Path, plan: Plan = PLAN) -> list[Path]:
    """Generate everything below `root`; return the files that changed, were added or removed."""
    changed = []
    for folder, outputs in generate(tree, plan).items():
        place = root / folder
        manifest = _manifest(tree, plan.inputs(folder), outputs, Manifest.read(place))
        changed += write_folder(place, outputs, manifest)
    return changed
