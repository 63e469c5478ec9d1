"""The import rules of the design, checked on every import in the tree.

Run as `python -m ugpu.tools.house.layers`; tests/test_layers.py runs the same check. Imports inside
functions, and imports for type checkers only, count too. The registry in hcq loads drivers by name
at run time, and imports none.

Packages are imported as `ugpu.hcq`, `ugpu.am` and so on (ADR 0007); the names of the folders alone
are refused. A module imports only modules on lower floors of its package. No folder holds more than
15 files of its own, nor does one of the tests, of `lab` and of the examples. Imports form no
circle, whether they run at load time, later or never, and every imported module exists. Parts that
drive units do not ask what lies between host and card.
"""

from __future__ import annotations

import ast
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

PACKAGES = ("am", "compiler", "hcq", "nv", "qcom", "tools", "ugpu", "usbgpu", "virtual")
VENDORS = ("am", "nv", "qcom")
# The packages that each package may import, apart from itself.
MAY_IMPORT: Mapping[str, Sequence[str]] = {
    "hcq": (),
    "am": ("hcq",),
    "nv": ("hcq",),
    "qcom": ("hcq",),
    "usbgpu": ("hcq",),
    "compiler": ("hcq",),
    "virtual": ("hcq", "am", "nv", "qcom", "usbgpu"),
    "ugpu": ("compiler", "hcq"),
    "tools": PACKAGES,
}
# What a model may import of a driver's package: generated tables, the kernel driver's interface,
# facts of chips and generations, and the interface of USB devices.
FACTS: Mapping[str, Sequence[str]] = {
    "am": ("regs", "chips"),
    "nv": ("abi", "chips"),
    "qcom": ("regs", "chips"),
    "usbgpu": ("link.usb",),
}
# The folders that may import a kit of hcq: of the one for cards without a kernel driver,
# the bare-metal drivers; of am what drives a chip, not its facts, which models read too.
KITS: Mapping[str, Sequence[str]] = {
    "hcq.bare": (
        "hcq.bare",
        "am.chip", "am.packets", "am.units", "am.boot", "am.work", "am.failure", "am.generations",
        "am.device", "am.offline",
        "nv.gsp",
        "nv.device.bare",
        "nv.offline",
    ),
}  # fmt: skip
# Folders and modules of a package, lowest floor first. Entries of one floor do not import each
# other; the package's __init__ is above all floors.
FLOORS: Mapping[str, Sequence[Sequence[str]]] = {
    "hcq": (
        ("errors",),
        ("near", "outfile"),
        ("state",),
        ("disk",),
        ("registers",),
        ("uapi",),
        ("objects",),
        ("paging",),
        ("transport",),
        ("work",),
        ("copies",),
        ("device",),
        ("rings",),
        ("cpu", "null", "remote"),
        ("find",),
        ("bare",),
    ),
    "hcq.transport": (
        ("system", "view", "bulk", "node"),
        ("window", "interrupts", "base", "late"),
        ("endpoint", "life", "dma"),
        ("system_node", "pci"),
        ("vfio", "recorded", "vfio_user"),
        ("attach",),
    ),
    "am": (
        ("regs",),
        ("chips",),
        ("chip",),
        ("packets",),
        ("units",),
        ("boot",),
        ("work",),
        ("failure",),
        ("generations",),
        ("device",),
        ("offline",),
    ),
    "nv": (
        ("abi", "regs"),
        ("chips",),
        ("rm",),
        ("gsp",),
        ("code",),
        ("packets",),
        ("work",),
        ("failure",),
        ("device",),
        ("offline",),
    ),
    "nv.gsp": (("images", "chip"), ("layout",), ("rpc",), ("boot",), ("rm",)),
    "qcom": (
        ("regs",),
        ("chips",),
        ("kernels",),
        ("kernel_driver",),
        ("packets",),
        ("work",),
        ("failure",),
        ("device",),
        ("offline",),
    ),
    "usbgpu": (("link",), ("bridge",), ("firmware",), ("thunderbolt",), ("attach",)),
    "virtual": (
        ("faults", "shader", "bus", "node"),
        ("serve",),
        ("amd", "nvidia", "adreno", "usb"),
    ),
    "tools": (
        ("base",),
        ("control",),
        ("inspect",),
        ("debug", "compile", "models"),
        ("ci",),
        ("service",),
        ("verbs",),
        ("cli",),
        ("house", "clang2py", "instructions"),
    ),
    "compiler": (
        ("float8",),
        ("dtype",),
        ("expression",),
        ("pattern",),
        ("graph",),
        ("schedule", "kernel"),
        ("plan", "codegen"),
        ("runtime",),
        ("methods", "search"),
        ("gradients",),
        ("random",),
        ("values",),
        ("tensor",),
        ("complex", "sharding"),
        ("front",),
        ("files", "nn", "numeric"),
        ("optim",),
        ("onnx", "language", "torch", "array_api"),
    ),
    "compiler.kernel": (
        ("ir", "choices", "matrix_units"),
        ("text", "verify", "shared"),
        ("host", "gpu"),
        ("attention", "nvidia", "scatter"),
        ("lower",),
    ),
    "compiler.codegen": (
        ("lines", "located"),
        ("instructions",),
        ("values",),
        ("shell",),
        ("gpu", "host"),
        ("nvptx",),
        ("adreno",),
        ("process", "emit"),
    ),
}
# Folders whose modules do not ask how the host reaches the card, and the one that decides it for
# them (ADR 0008): the bus and programs of accesses know what an access costs.
UNASKED: Mapping[str, Sequence[str]] = {
    "am.units": (),
    "am.boot": ("am.boot.reach",),
    "am.failure": (),
    "am.work": ("am.work.bridge_memory",),
}
FILES = 15  # of one folder, apart from those in OPENERS
OPENERS = ("__init__.py", "__main__.py", "conftest.py")
OTHERS = (
    "examples",
    "lab",
    "tests",
)  # not packages of the product, as small all the same
# Heavy modules that no path from `import ugpu.hcq` may load at import time.
OPTIONAL = ("llvmlite", "rich", "textual", "elftools", "msgpack", "sklearn", "zstandard", "clang")


@dataclass(frozen=True)
class Import:
    """One import statement: the imported module, and its place. whole: `import a.b`, which gives
    access to all of a."""

    file: Path
    line: int
    module: str
    whole: bool = False


def imports_of(file: Path, root: Path) -> Iterator[Import]:
    """Yield every import of a file, at any place; `from a import b` gives a and a.b, `from ugpu
    import b` only ugpu.b."""
    where = file.relative_to(root)
    tree = ast.parse(file.read_text(encoding="utf-8"), str(file))
    stack: list[ast.AST] = [tree]
    while stack:
        node = stack.pop()
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(where, node.lineno, alias.name, True)
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                module = "." * node.level + (node.module or "")
                yield Import(where, node.lineno, module)
            elif node.module is not None:
                if node.module != "ugpu":
                    yield Import(where, node.lineno, node.module)
                for alias in node.names:
                    module = f"{node.module}.{alias.name}"
                    yield Import(where, node.lineno, module)
        elif isinstance(node, ast.stmt | ast.mod | ast.excepthandler | ast.match_case):
            stack.extend(reversed(list(ast.iter_child_nodes(node))))


def _within(module: str, package: str) -> bool:
    return module == package or module.startswith(package + ".")


def _above(item: Import, module: str) -> str | None:
    """Return how an import of `module`, a name below ugpu, breaks the floors, or None."""
    home, target = item.file.with_suffix("").parts, module.split(".")
    for package, floors in FLOORS.items():
        parts = package.split(".")
        depth = len(parts)
        if list(home[:depth]) != parts or target[:depth] != parts or home[depth] == "__init__":
            continue
        level = {name: floor for floor, names in enumerate(floors) for name in names}
        if home[depth] not in level:
            return f"{package}.{home[depth]} is on no floor; add it to FLOORS"
        if len(target) == depth:
            if item.whole:
                return f"imports the whole of {package}; name the module"
            continue
        mine, other = home[depth], target[depth]
        if other not in level:
            return f"{package}.{other} is on no floor of {package}"
        if mine != other and level[other] >= level[mine]:
            return f"{package}.{other} is not below {package}.{mine}"
    return None


def fault_of(item: Import) -> str | None:
    """Return the fault of an import, or None."""
    home = item.file.parts[0]
    if item.module.startswith("."):
        return "relative import; write the absolute name"
    top, _, module = item.module.partition(".")
    if top in ("tests", "lab"):
        return f"the product imports {top}"
    if top in PACKAGES and top != "ugpu":
        return f"write ugpu.{item.module}; the folder's own name is not a package"
    if top != "ugpu":
        return None
    target = module.split(".")[0]
    target = target if target in PACKAGES else "ugpu"
    if target == home == "ugpu":
        return None
    if target != home and target not in MAY_IMPORT[home]:
        return f"{home} may not import {target}"
    if home == "virtual" and target in FACTS:
        shared = any(_within(module, f"{target}.{facts}") for facts in FACTS[target])
        if module != target and not shared:
            return f"a model may import only {', '.join(FACTS[target])} of {target}"
    for kit, users in KITS.items():
        importer = ".".join(item.file.with_suffix("").parts)
        if _within(module, kit) and not any(_within(importer, user) for user in users):
            return f"{kit} is for {', '.join(users[1:])}"
    return _above(item, module)


def _module(file: Path) -> str:
    parts = file.with_suffix("").parts
    parts = parts[:-1] if parts[-1] == "__init__" else parts
    return ".".join(parts if parts[0] == "ugpu" else ("ugpu", *parts))


def asked(file: Path, root: Path) -> Iterator[str]:
    """Yield one line for each question of a file in UNASKED: a transport's traits, and what its
    accesses cost on the bus."""
    where = file.relative_to(root)
    home = ".".join(where.with_suffix("").parts)
    folders = [folder for folder in UNASKED if _within(home, folder)]
    if not folders or any(home in UNASKED[folder] for folder in folders):
        return
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"), str(file))):
        if not isinstance(node, ast.Attribute):
            continue
        owner = getattr(node.value, "attr", getattr(node.value, "id", ""))
        if node.attr == "traits" or (owner == "bus" and node.attr in ("messages", "runs")):
            yield (
                f"{where}:{node.lineno}: asks for {owner}.{node.attr}: units do not know how the "
                "host reaches them; give the question to the bus or to a program of accesses"
            )


def crowded(files: Sequence[Path]) -> Iterator[str]:
    """Yield one line for each folder with too many files of its own."""
    counts = Counter(file.parent for file in files if file.name not in OPENERS)
    for folder, count in sorted(counts.items()):
        if count > FILES:
            yield f"{folder}: {count} files, at most {FILES} in one folder"


def sources(root: Path) -> list[Path]:
    """Return the files of all packages; the links inside `ugpu` are not followed."""
    return sorted(file for package in PACKAGES for file in (root / package).rglob("*.py"))


def check(root: Path) -> list[str]:
    """Return one line per broken rule."""
    files = sources(root)
    modules = {_module(file.relative_to(root)) for file in files}
    modules |= {parent for name in modules for parent in _parents(name)}
    others = [file for folder in OTHERS for file in (root / folder).rglob("*.py")]
    faults = list(crowded([file.relative_to(root) for file in (*files, *others)]))
    loads: dict[str, set[str]] = {}
    for file in files:
        faults += asked(file, root)
        home = _module(file.relative_to(root))
        for item in imports_of(file, root):
            fault = fault_of(item)
            if fault is not None:
                faults.append(f"{item.file}:{item.line}: imports {item.module}: {fault}")
                continue
            module = item.module
            there = {module} if item.whole else {module, module.rpartition(".")[0]}
            if module.startswith("ugpu.") and not there & modules:
                faults.append(f"{item.file}:{item.line}: imports {module}: there is no such module")
            if module in modules and not _within(home, module):
                loads.setdefault(home, set()).add(module)
    try:
        TopologicalSorter(loads).prepare()
    except CycleError as circle:
        faults.append(f"modules import each other: {' <- '.join(circle.args[1])}")
    return faults


def _parents(module: str) -> Iterator[str]:
    while "." in module:
        module = module.rpartition(".")[0]
        yield module


def main() -> int:
    faults = check(Path.cwd())
    for fault in faults:
        print(fault)
    print(f"layers: {len(faults)} broken rules" if faults else "layers: kept")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
