"""Compile LLVM IR to native code in this process, with an optional cache of objects on disk."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path

import llvmlite.binding as llvm

from ugpu.hcq.disk.cache import DiskCache
from ugpu.hcq.disk.objects import kept
from ugpu.hcq.objects.elf import undefined_names
from ugpu.hcq.state import host as processor

NO_PASSES = -1  # plain code generation
LIMITED = 0  # promote registers to values, then plain code generation: compiles fast
FULL = 2  # for the runtime functions, compiled once

LLVM_LOCK = _LOCK = threading.RLock()  # around all code generation of this process
Offer = Callable[[Sequence[str], bool], Sequence[int]]
_OFFERED: dict[str, Offer] = {}


@cache
def host() -> tuple[str, str]:
    """Return the CPU name and feature string to generate code for.

    512-bit vectors are requested, whatever the CPU model prefers.
    """
    features = processor.features()
    text = processor.feature_string(features)
    if features.get("avx512f"):
        text += ",-prefer-256-bit"
    return processor.cpu_name(), text


def on_x86() -> bool:
    """Return whether the host is x86-64."""
    return str(llvm.get_default_triple()).startswith("x86_64")


@cache
def _machine(optimise: int) -> llvm.TargetMachine:
    """Return the shared target machine for compiling at one level."""
    return _new_machine(optimise)


def _new_machine(optimise: int) -> llvm.TargetMachine:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    cpu, features = host()
    target = llvm.Target.from_default_triple()
    return target.create_target_machine(cpu=cpu, features=features, opt=optimise, jit=True)


def _combine(whether: bool) -> None:
    """Have LLVM combine the operations from which it selects instructions, or not: for vectors that
    takes a quarter of the time of level 0. Its fast selection, which is for that level, takes
    longer: it has few operations of vectors, and the slow one handles each other by itself. Both
    are options of the whole process, which are read for every function: what has LLVM generate
    code holds `LLVM_LOCK`."""
    llvm.set_option("", f"-combiner-disabled={str(not whether).lower()}")
    llvm.set_option("", "-fast-isel=false")


def compile_object(ir: str, passes: int, optimise: int) -> bytes:
    """Compile IR to a relocatable object of the host.

    passes: NO_PASSES, LIMITED or FULL. optimise: code generation level 0..3.
    """
    make = partial(_compile, ir, passes, optimise)
    return kept(make, Path(__file__), llvm_version(), *host(), passes, optimise, ir)


def llvm_version() -> str:
    """Return the version of LLVM in this process."""
    return ".".join(map(str, llvm.llvm_version_info))


def _compile(ir: str, passes: int, optimise: int) -> bytes:
    with _LOCK:
        machine = _machine(optimise)
        module = llvm.parse_assembly(ir)
        module.triple = machine.triple
        module.data_layout = str(machine.target_data)
        options = llvm.create_pipeline_tuning_options(speed_level=2)
        builder = llvm.create_pass_builder(machine, options)
        if passes == FULL:
            builder.getModulePassManager().run(module, builder)
        elif passes == LIMITED:
            manager = llvm.create_new_function_pass_manager()
            manager.add_sroa_pass()
            manager.add_simplify_cfg_pass()
            for function in module.functions:
                if not function.is_declaration:
                    manager.run(function, builder)
        _combine(optimise > 0)
        try:
            return bytes(machine.emit_object(module))
        finally:
            _combine(True)  # for what is compiled next, by other modules too


class Loaded:
    """Native code in executable memory; must be kept as long as its functions may run.

    quick: what it calls may be first versions, for code that has a second one itself.
    """

    def __init__(self, image: bytes, *, quick: bool = False) -> None:
        with _LOCK:
            called: dict[Offer, list[str]] = {}
            for name in undefined_names(image):
                if name in _OFFERED:
                    called.setdefault(_OFFERED[name], []).append(name)
            places = [(names, make(names, quick)) for make, names in called.items()]
            for names, addresses in places:
                for name, address in zip(names, addresses, strict=True):
                    publish(name, address)
            empty = llvm.parse_assembly("")
            # The engine owns its target machine and frees it at the end.
            self._engine = llvm.create_mcjit_compiler(empty, _new_machine(0))
            self._engine.add_object_file(llvm.ObjectFileRef.from_data(image))
            self._engine.finalize_object()

    def address(self, name: str) -> int:
        """Return the address of a function."""
        with _LOCK:
            return int(self._engine.get_function_address(name))


def publish(name: str, address: int) -> None:
    """Let objects that are loaded later refer to the function at `address` by name."""
    with _LOCK:
        llvm.add_symbol(name, address)


def offer(names: Iterable[str], make: Offer) -> None:
    """Publish functions whenever an object that calls them is loaded. make: returns the addresses
    of those that it is given, and whether they may be first versions'; called under the lock of
    `linking`. A later offer of a name counts from then on."""
    with _LOCK:
        _OFFERED.update(dict.fromkeys(names, make))


@contextmanager
def linking() -> Iterator[None]:
    """Exclude other threads from loading code in the block; may be nested."""
    with _LOCK:
        yield


class ObjectCache(DiskCache):
    """Native code by the content that it was made from; see DiskCache."""

    def made(self, key: str, make: Callable[[], bytes]) -> bytes:
        """Return the stored object, or else the result of `make`, which is then stored."""
        image = self.get(key)
        if image is None:
            image = kept(make, Path(__file__), key)
            self.put(key, image)
        return image


@cache
def sources_of(*packages: Path) -> bytes:
    """Hash the sources that determine the code that a translator generates; see `source_files`."""
    digest = hashlib.sha256()
    for path in source_files(*packages):
        digest.update(path.read_bytes())
    return digest.digest()


def source_files(*packages: Path) -> list[Path]:
    """Return the files that determine the code that a translator generates: those of its packages,
    and this one."""
    files = (path for package in packages for path in package.rglob("*.py"))
    return sorted([*files, Path(__file__)])


def key_of(packages: tuple[Path, ...], *parts: bytes | str | int) -> str:
    """Hash parts, the sources of the translator's packages, LLVM's version and the host CPU into a
    cache key."""
    digest = hashlib.sha256()
    cpu, features = host()
    for part in (*parts, sources_of(*packages), cpu, features, llvm_version()):
        data = part if isinstance(part, bytes) else str(part).encode()
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.hexdigest()
