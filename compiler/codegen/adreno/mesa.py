"""Mesa's ir3 compiler and disassembler, in the library of the PyPI package tinymesa.

The version is pinned: this file contains offsets of those fields of Mesa's structs that it reads or
sets, as Mesa 25.2.7 lays them out on a 64-bit machine (src/freedreno/ir3/ir3_shader.h,
ir3_compiler.h; src/compiler/nir/nir.h). Opening the library checks them: a small kernel is
read, printed and compiled, and each field must have the value that this kernel gives it.

Mesa ends the process on code that it cannot compile: code other than ours is compiled in a child
process (compiler.codegen.process.children). Not thread-safe; callers take turns.

The package's build of Mesa validates NIR before and after each pass, in 40% of the time of a
compilation, and ir3 after each of its own passes, in 25% of the rest. The small kernel is compiled
with validation; later ones only if the environment has Mesa's variable NIR_DEBUG, which may be
empty: the tests set it.
"""

from __future__ import annotations

import ctypes
import importlib.util
import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from importlib import metadata
from pathlib import Path

from ugpu.compiler.codegen.adreno.nir import Builder, Intrinsic, Tables
from ugpu.compiler.codegen.adreno.slots import redirect
from ugpu.compiler.codegen.adreno.version import MESA
from ugpu.hcq.errors import CompileError, MissingDependency
from ugpu.hcq.state.config import config

INSTALL = "pip install 'ugpu[adreno]'"
# enum nir_intrinsic_index_flag (nir_intrinsics_indices.h): those that we use
_INDICES = {
    0: "base", 1: "write_mask", 4: "range_base", 5: "range", 11: "reduction_op",
    12: "cluster_size", 14: "image_dim", 17: "access", 20: "align_mul", 21: "align_offset",
    23: "src_type", 24: "dest_type", 37: "memory_semantics", 38: "memory_modes",
    39: "memory_scope", 40: "execution_scope",
    52: "atomic_op", 55: "num_components", 56: "num_array_elems", 57: "bit_size", 58: "divergent",
    59: "legacy_fabs", 60: "legacy_fneg", 61: "legacy_fsat",
}  # fmt: skip
_OPERATION_SIZE, _INTRINSIC_SIZE = 56, 112  # struct nir_op_info, nir_intrinsic_info
_POINTER = ctypes.c_void_p
# struct ir3_compiler_options, ir3_shader_options, ir3_shader_key, ir3_shader_variant
_COMPILER_OPTIONS = struct.Struct("<?? 2x ii ???? ? 7x Q")
_SHADER_OPTIONS_SIZE, _KEY_SIZE, _VARIANT_SIZE = 228, 80, 2040
_SINGLE_ONLY, _SINGLE_OR_DOUBLE = 0, 1  # enum ir3_wavesize_option
_PUSH_PER_STAGE = 1  # enum ir3_push_consts_type
_ALLOCATIONS = 12  # struct ir3_const_allocations: {offset, size, ...} each, then the end of all
_CONST_STATE_ALLOCATIONS = 44
_DRIVER_PARAMS = 3  # enum ir3_const_alloc_type
_NO_VALIDATION = 1 << 2  # NIR_DEBUG_NOVALIDATE (src/compiler/nir/nir.h), in `nir_debug`
# Functions that return nothing and change nothing: they end the process if ir3 is invalid.
_VALIDATORS = ("ir3_validate", "ir3_ra_validate")
_VARIANT = {
    "bin": ("<Q", 192), "const_state": ("<Q", 200), "immediate_count": ("<I", 212),
    "immediates": ("<Q", 216), "size": ("<I", 224), "instructions": ("<H", 234),
    "max_reg": ("<b", 248), "max_half_reg": ("<b", 249), "double_threadsize": ("<?", 254),
    "constant_data_size": ("<I", 560), "branchstack": ("<I", 564), "constlen": ("<I", 576),
    "pvtmem_size": ("<I", 580), "pvtmem_per_wave": ("<?", 584), "early_preamble": ("<?", 587),
    "shared_size": ("<I", 588), "need_driver_params": ("<?", 1236), "mergedregs": ("<?", 1243),
    "local_size": ("<H", 1466), "has_barrier": ("<?", 1473),
    "local_invocation_id": ("<I", 1492), "work_group_id": ("<I", 1496),
}  # fmt: skip


@dataclass(frozen=True)
class Binary:
    """Code of one kernel and the data needed to launch it.

    full_registers, half_registers: as in the instructions, in vec4; a negative count is none.
    constants: size of the constant file, in vec4. immediates: the words at vec4 `immediates_at`.
    private_size: bytes per thread. The register numbers are of the group's and the thread's three
    numbers, register * 4 + component; 0xfc is none. driver_params: vec4 of the driver's
    parameters, or None.
    """

    code: bytes
    instructions: int
    full_registers: int
    half_registers: int
    constants: int
    immediates: tuple[int, ...]
    immediates_at: int
    local_size: int
    private_size: int
    private_per_wave: bool
    branch_stack: int
    double_wave: bool
    merged_registers: bool
    early_preamble: bool
    barrier: bool
    group_register: int
    thread_register: int
    driver_params: int | None


class Mesa:
    """The opened library."""

    def __init__(self, path: Path) -> None:
        try:
            self._library = ctypes.CDLL(str(path))
        except OSError as error:
            raise CompileError(f"cannot load Mesa's compiler: {error}", path=path) from None
        self._libc = ctypes.CDLL(None)
        self._functions: dict[str, Callable[..., int]] = {}
        self._function("glsl_type_singleton_init_or_ref", None)()
        self.tables = self._tables()

    def _function(self, name: str, result: object, *arguments: object) -> Callable[..., int]:
        known = self._functions.get(name)
        if known is None:
            function = getattr(self._library, name)
            function.restype, function.argtypes = result, arguments
            known = self._functions[name] = function
        return known

    def debug_flags(self) -> ctypes.c_uint32:
        """Return NIR's debugging flags, which Mesa sets from NIR_DEBUG with its first shader."""
        return ctypes.c_uint32.in_dll(self._library, "nir_debug")

    def stop_validation(self) -> None:
        """Turn off validation of NIR and, if the library's calls can be redirected, of ir3."""
        self.debug_flags().value |= _NO_VALIDATION
        nothing = ctypes.cast(self._libc.labs, _POINTER).value  # a function without side effects
        assert nothing is not None
        for name in _VALIDATORS:
            redirect(self._library, name, nothing)

    def _tables(self) -> Tables:
        def rows(symbol: str, size: int, end: str) -> list[tuple[str, bytes]]:
            start = ctypes.addressof(ctypes.c_char.in_dll(self._library, symbol))
            found: list[tuple[str, bytes]] = []
            while not found or found[-1][0] != end:
                row = ctypes.string_at(start + size * len(found), size)
                name = ctypes.string_at(struct.unpack_from("<Q", row)[0]).decode()
                found.append((name, row))
            return found

        operations = {
            name: (number, row[8])
            for number, (name, row) in enumerate(rows("nir_op_infos", _OPERATION_SIZE, "vec8"))
        }
        intrinsics = {
            name: Intrinsic(
                number,
                tuple(_INDICES.get(index, f"index{index}") for index in row[25 : 25 + row[24]]),
                bool(row[20]),
            )
            for number, (name, row) in enumerate(
                rows("nir_intrinsic_infos", _INTRINSIC_SIZE, "xfb_counter_sub_gfx11_amd")
            )
        }
        return Tables(operations, intrinsics)

    def text(self, write: Callable[[int], object]) -> str:
        """Return the text that a function writes to a C stream."""
        self._libc.open_memstream.restype = _POINTER
        self._libc.fclose.argtypes = [_POINTER]
        start, size = _POINTER(), ctypes.c_size_t()
        stream = self._libc.open_memstream(ctypes.byref(start), ctypes.byref(size))
        write(stream)
        self._libc.fclose(stream)
        found = ctypes.string_at(start.value or 0, size.value).decode(errors="replace")
        self._libc.free(start)
        return found

    def disassembly(self, code: bytes, gpu: int) -> str:
        """Return the instructions as text, one a line, by Mesa's disassembler. gpu: 630, 740 ..."""
        options = bytearray(80)  # struct isa_decode_options: gpu_id, show_errors, max_errors
        struct.pack_into("<I?3xI", options, 0, gpu, False, 1 << 30)
        keep = ctypes.create_string_buffer(bytes(options), len(options))
        words = ctypes.create_string_buffer(code, len(code))
        function = self._function(
            "ir3_isa_disasm", None, _POINTER, ctypes.c_int, _POINTER, _POINTER
        )
        return self.text(lambda stream: function(words, len(code), stream, keep))


class Compiler:
    """The compiler for one GPU. chip_id: as its kernel driver reports it."""

    def __init__(self, mesa: Mesa, chip_id: int) -> None:
        self.mesa = mesa
        # struct fd_dev_id: {u32 gpu_id, u64 chip_id}
        self._device = ctypes.create_string_buffer(struct.pack("<IxxxxQ", 0, chip_id))
        function = mesa._function
        facts = function("fd_dev_info_raw", _POINTER, _POINTER)(self._device)
        if not facts:
            raise CompileError("Mesa does not support this GPU", chip_id=hex(chip_id))
        options = _COMPILER_OPTIONS.pack(False, True, 0, 0, True, False, *[False] * 3, 0)
        self._options = ctypes.create_string_buffer(options, len(options))
        create = function("ir3_compiler_create", _POINTER, *[_POINTER] * 4)
        self._compiler = create(None, self._device, facts, self._options)
        get = function("ir3_get_compiler_options", _POINTER, _POINTER)
        self._nir_options = get(self._compiler)

    def read(self, blob: bytes) -> int:
        """Deserialise; return the shader, which the caller compiles or frees."""
        data = ctypes.create_string_buffer(blob, len(blob))
        reader = ctypes.create_string_buffer(32)  # struct blob_reader: data, end, current, overrun
        begin = self.mesa._function("blob_reader_init", None, _POINTER, _POINTER, ctypes.c_size_t)
        begin(reader, data, len(blob))
        read = self.mesa._function("nir_deserialize", _POINTER, _POINTER, _POINTER, _POINTER)
        shader = read(None, self._nir_options, reader)
        current, overrun = struct.unpack_from("<Q?", reader.raw, 16)
        if overrun or current != ctypes.addressof(data) + len(blob):
            raise CompileError("Mesa has not read the whole shader", version=MESA)
        return shader

    def listing(self, shader: int) -> str:
        """Return a shader that `read` returned, as Mesa prints it."""
        show = self.mesa._function("nir_print_shader", None, _POINTER, _POINTER)
        return self.mesa.text(lambda stream: show(shader, stream))

    def compile(self, blob: bytes, parameters: int, single_wave: bool = False) -> Binary:
        """Compile a serialised shader whose parameters are the first `parameters` dwords of the
        constant file. single_wave: for waves of 64 threads, never of 128."""
        function = self.mesa._function
        shader = self.read(blob)
        function("nir_lower_reg_intrinsics_to_ssa", ctypes.c_bool, _POINTER)(shader)
        robust = ctypes.create_string_buffer(4)  # struct ir3_shader_nir_options: no modes
        finalize = function("ir3_finalize_nir", None, _POINTER, _POINTER, _POINTER)
        finalize(self._compiler, robust, shader)
        options = bytearray(_SHADER_OPTIONS_SIZE)
        vec4 = -(-parameters // 4)
        wave = _SINGLE_ONLY if single_wave else _SINGLE_OR_DOUBLE
        sizes = (wave, wave, _PUSH_PER_STAGE, 0, parameters, 0, vec4)
        struct.pack_into("<7I", options, 0, *sizes)
        struct.pack_into("<II", options, 20 + _ALLOCATIONS * 16, vec4, 0)
        keep = ctypes.create_string_buffer(bytes(options), len(options))
        from_nir = function("ir3_shader_from_nir", _POINTER, *[_POINTER] * 4)
        program = from_nir(self._compiler, shader, keep, None)
        key, created = ctypes.create_string_buffer(_KEY_SIZE), ctypes.c_bool()
        get = function(
            "ir3_shader_get_variant", _POINTER, _POINTER, _POINTER, ctypes.c_bool, ctypes.c_bool,
            _POINTER,
        )  # fmt: skip
        variant = get(program, key, False, False, ctypes.byref(created))
        if not variant:
            raise CompileError("Mesa's ir3 compiler failed")
        try:
            return _binary(ctypes.string_at(variant, _VARIANT_SIZE))
        finally:
            function("ir3_shader_destroy", None, _POINTER)(program)


def _binary(variant: bytes) -> Binary:
    def get(name: str) -> int:
        form, offset = _VARIANT[name]
        value: int = struct.unpack_from(form, variant, offset)[0]
        return value

    if get("constant_data_size"):
        raise CompileError("constant data in a kernel for Adreno is not supported")
    count = get("immediate_count")
    words = ctypes.string_at(get("immediates"), 4 * count) if count else b""
    state = ctypes.string_at(get("const_state") + _CONST_STATE_ALLOCATIONS, _ALLOCATIONS * 16 + 4)
    (end,) = struct.unpack_from("<I", state, _ALLOCATIONS * 16)
    (params,) = struct.unpack_from("<I", state, _DRIVER_PARAMS * 16)
    return Binary(
        code=ctypes.string_at(get("bin"), get("size")),
        instructions=get("instructions"),
        full_registers=get("max_reg") + 1,
        half_registers=get("max_half_reg") + 1,
        constants=get("constlen"),
        immediates=struct.unpack(f"<{count}I", words),
        immediates_at=end,
        local_size=get("shared_size"),
        private_size=get("pvtmem_size"),
        private_per_wave=bool(get("pvtmem_per_wave")),
        branch_stack=get("branchstack"),
        double_wave=bool(get("double_threadsize")),
        merged_registers=bool(get("mergedregs")),
        early_preamble=bool(get("early_preamble")),
        barrier=bool(get("has_barrier")),
        group_register=get("work_group_id"),
        thread_register=get("local_invocation_id"),
        driver_params=params if get("need_driver_params") else None,
    )


def _canary(tables: Tables) -> bytes:
    """A kernel of 77 threads and 1,236 bytes of local memory that stores 0x12345678 + c0.x."""
    build = Builder(tables)
    zero = build.constant(32, 0)
    low = build.intrinsic("load_const_ir3", [zero], 1, 32, base=0)
    number = build.alu("iadd", 32, low, build.constant(32, 0x12345678))
    build.begin_if(build.alu("ult", 1, number, low))
    build.intrinsic("barrier", execution_scope=4, memory_scope=4, memory_semantics=3,
                    memory_modes=1 << 19)  # fmt: skip
    build.begin_else()
    build.end_if()
    build.intrinsic("store_shared", [number, zero], write_mask=1, align_mul=4)
    return build.serialise(77, 1236)


_PRINTED = (
    "workgroup_size: 77, 1, 1", "iadd! %1, %2 (0x12345678)", "ult! %3, %1", "if %4 {",
    "shared_size: 1236", "@load_const_ir3", "(base=0)",
    "@store_shared", "wrmask=x", "align_mul=4", "execution_scope=WORKGROUP",
    "ACQ|REL",
    "mem_modes=shared",
)  # fmt: skip


def check(mesa: Mesa, compiler: Compiler) -> None:
    """Compare the library's result for a small kernel with the known one; CompileError."""
    blob = _canary(mesa.tables)
    shader = compiler.read(blob)
    listing = compiler.listing(shader)
    missing = [words for words in _PRINTED if words not in listing]
    binary = compiler.compile(blob, 1)
    found = (
        binary.local_size, binary.barrier, binary.constants, len(binary.code) % 128,
        binary.merged_registers, binary.private_size, binary.group_register,
        binary.full_registers, struct.pack("<I", 0x12345678) in binary.code,
    )  # fmt: skip
    if missing or found != (1236, True, 4, 0, True, 0, 0xFC, 1, True):
        raise CompileError(
            "this build of Mesa has a different struct layout than the pinned version",
            expected=MESA, missing=missing, found=found,
        )  # fmt: skip


@lru_cache(maxsize=1)
def library() -> Mesa:
    """Return the library of the installed package."""
    found = importlib.util.find_spec("tinymesa")
    if found is None or found.origin is None:
        raise MissingDependency(
            "compiling for Adreno requires the package tinymesa, of the extra ugpu[adreno]",
            install=INSTALL,
        )
    version = metadata.version("tinymesa")
    if version != MESA:
        raise MissingDependency(
            f"compiling for Adreno requires tinymesa {MESA}, of the extra ugpu[adreno]",
            found=version,
            install=INSTALL,
        )
    return Mesa(Path(found.origin).parent / "libtinymesa.so")


@lru_cache(maxsize=8)
def compiler_for(chip_id: int) -> Compiler:
    """Return the checked compiler for a GPU."""
    mesa = library()
    compiler = Compiler(mesa, chip_id)
    check(mesa, compiler)
    if not config().validate_nir:
        mesa.stop_validation()
    return compiler
