"""Checked parameters of a dispatch, derived from its registers for the launcher.

Source: LLVM AMDGPUUsage, "compute_pgm_rsrc1/2/3 for GFX11" and "Initial kernel execution state".
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from ugpu.virtual.amd.isa.runtime import layout
from ugpu.virtual.amd.shader import Dispatch

MOST_THREADS = 1024
LDS_GRANULE = 512
MOST_LDS = 65536
VGPR_GRANULES = {32: 8, 64: 4}  # by lanes per wave
MXCSR_DEFAULT = 0x1F80  # all exceptions masked, round to nearest even, denormals kept
_FLUSH_RESULTS = 0x8000
_FLUSH_SOURCES = 0x0040
# Bits of Launch.modes: results for which the output modifier OMOD takes effect, of f32, and of f16
# and f64; IEEE mode; APART, which the translator adds (translator.modes). From the shifts on: what
# f32 and f64 flush, the opposite of their denormal fields (see `denormal_control`).
OMOD_F32, OMOD_OTHERS, IEEE, APART = 1, 2, 4, 8
SINGLES, DOUBLES = 4, 6
SATURATES = 1 << 8  # MODE.FP16_OVFL, or that the program may set it (translator.saturation)


class BadDispatch(Exception):
    """The SPI cannot launch the dispatch that the registers describe."""


def _bits(value: int, low: int, count: int) -> int:
    return value >> low & ((1 << count) - 1)


@dataclass(frozen=True)
class Launch:
    """A checked dispatch.

    vgprs: allocation per wave. lds_bytes: allocation per workgroup. lanes: lanes per wave, 32 or
    64. full: every wave has a thread for each lane.
    slots: scalar register of each workgroup id, of the group information, and of the wave's number.
    modes: what code
    depends on of MODE, see OMOD_F32 and the bits behind it.
    """

    vgprs: int
    lds_bytes: int
    lanes: int
    waves: int
    total_groups: int
    full: bool
    slots: tuple[int, int, int, int, int]
    mxcsr: int
    modes: int
    scalars: NDArray[np.uint32]
    ids: NDArray[np.uint32]
    execs: NDArray[np.uint64]
    scratch: bool

    @classmethod
    def of(cls, dispatch: Dispatch, *, gfx12: bool = False) -> Launch:
        """Check a dispatch. Raises BadDispatch with the reason.

        gfx12: there is no IEEE mode, and workgroup ids are in trap handler temporaries.
        """
        threads = _check_shape(dispatch)
        lanes = 32 if dispatch.wave32 else 64
        waves = -(-threads // lanes)
        lds = _bits(dispatch.rsrc2, 15, 9) * LDS_GRANULE
        if lds > MOST_LDS:
            raise BadDispatch(f"{lds} bytes of LDS; a workgroup has at most {MOST_LDS}")
        scratch = bool(dispatch.rsrc2 & 1)
        if scratch:
            _check_scratch(dispatch, waves)
        scalars, slots = _scalars(dispatch)
        ieee, saturates = bool(_bits(dispatch.rsrc1, 23, 1)), _bits(dispatch.rsrc1, 26, 1)
        scalars[layout.SGPR_NULL] = saturates
        if gfx12:
            slots, ieee = _gfx12_slots(dispatch), False
        gx, gy, gz = dispatch.groups
        return cls(
            vgprs=min(256, (_bits(dispatch.rsrc1, 0, 6) + 1) * VGPR_GRANULES[lanes]),
            lds_bytes=lds,
            lanes=lanes,
            waves=waves,
            total_groups=gx * gy * gz,
            full=threads % lanes == 0,
            slots=slots,
            mxcsr=_float_mode(_bits(dispatch.rsrc1, 12, 8)),
            modes=_modes(_bits(dispatch.rsrc1, 16, 4), ieee=ieee) | saturates * SATURATES,
            scalars=scalars,
            ids=_thread_ids(*dispatch.threads[:2], waves * lanes, _bits(dispatch.rsrc2, 11, 2)),
            execs=_exec_masks(threads, waves, lanes),
            scratch=scratch,
        )


def _check_shape(dispatch: Dispatch) -> int:
    x, y, z = dispatch.threads
    if min(x, y, z) < 1:
        raise BadDispatch(f"workgroup of {x}x{y}x{z} threads: every dimension is at least 1")
    threads = x * y * z
    if threads > MOST_THREADS:
        raise BadDispatch(f"workgroup of {x}x{y}x{z} = {threads} threads; at most {MOST_THREADS}")
    if min(dispatch.groups) < 0:
        raise BadDispatch(f"grid of {dispatch.groups} workgroups")
    if dispatch.code_address & 0xFF:
        raise BadDispatch(f"code address {dispatch.code_address:#x} is not a multiple of 256")
    return threads


def _check_scratch(dispatch: Dispatch, waves: int) -> None:
    if dispatch.scratch_wave_size <= 0:
        raise BadDispatch("SCRATCH_EN is set but TMPRING_SIZE.WAVESIZE is 0")
    if dispatch.scratch_waves < waves:
        raise BadDispatch(
            f"scratch for {dispatch.scratch_waves} waves; one workgroup has {waves} waves"
        )


def denormal_control(denormals: int) -> int:
    """Return the host's floating-point control for the denormal setting of one type.

    denormals: bit 0 keeps denormal sources, bit 1 denormal results (LLVM AMDGPUUsage, "Floating
    Point Denorm Mode Enumeration Values").
    """
    results = 0 if denormals & 2 else _FLUSH_RESULTS
    return MXCSR_DEFAULT | results | (0 if denormals & 1 else _FLUSH_SOURCES)


def output_modifiers(denormals: int, *, ieee: bool) -> int:
    """Return OMOD_F32 and OMOD_OTHERS for MODE's four denormal bits: f32, then f16 and f64.

    OMOD of gfx11 is ignored in IEEE mode, and for types whose denormal results are kept (RDNA3 ISA
    document, "Output modifiers").
    """
    if ieee:
        return 0
    return (0 if denormals & 2 else OMOD_F32) | (0 if denormals & 8 else OMOD_OTHERS)


def _modes(denormals: int, *, ieee: bool) -> int:
    flushed = ~denormals & 0xF
    fields = (flushed & 3) << SINGLES | flushed >> 2 << DOUBLES
    return output_modifiers(denormals, ieee=ieee) | fields | (IEEE if ieee else 0)


def _float_mode(mode: int) -> int:
    """Return the host's floating-point control for FLOAT_MODE, as it is outside operations of f64.

    Rounding other than to nearest even is refused. f16 always keeps denormals.
    """
    if mode & 0xF:
        raise BadDispatch(f"FLOAT_MODE {mode:#x}: rounding other than to nearest even")
    return denormal_control(mode >> 4 & 3)


def _scalars(dispatch: Dispatch) -> tuple[NDArray[np.uint32], tuple[int, int, int, int, int]]:
    """Return the initial scalar registers, and Launch.slots of gfx11."""
    count = _bits(dispatch.rsrc2, 1, 5)
    data = list(dispatch.user_data)
    if count > len(data):
        raise BadDispatch(f"{count} user SGPRs; COMPUTE_USER_DATA holds {len(data)}")
    scalars = np.zeros(128, np.uint32)
    scalars[:count] = data[:count]
    slots = []
    number = count
    for enabled in (_bits(dispatch.rsrc2, 7 + k, 1) for k in range(4)):
        slots.append(number if enabled else layout.STATE_DEAD_SLOT)
        number += enabled
    return scalars, (slots[0], slots[1], slots[2], slots[3], layout.STATE_DEAD_SLOT)


def _gfx12_slots(dispatch: Dispatch) -> tuple[int, int, int, int, int]:
    """Return Launch.slots of gfx12; the group information as on gfx11, if enabled."""
    info = _bits(dispatch.rsrc2, 1, 5) if _bits(dispatch.rsrc2, 10, 1) else layout.STATE_DEAD_SLOT
    groups = layout.SGPR_GROUP_X, layout.SGPR_GROUP_YZ, layout.SGPR_GROUP_Z
    return *groups, info, layout.SGPR_WAVE


@lru_cache(maxsize=256)
def _thread_ids(x: int, y: int, count: int, components: int) -> NDArray[np.uint32]:
    """Return v0 of every lane of all waves: x | y << 10 | z << 20 (enabled components only)."""
    linear = np.arange(count, dtype=np.uint32)
    packed = linear % np.uint32(x)
    if components >= 1:
        packed |= (linear // np.uint32(x)) % np.uint32(y) << np.uint32(10)
    if components >= 2:
        packed |= linear // np.uint32(x * y) << np.uint32(20)
    return packed


@lru_cache(maxsize=256)
def _exec_masks(threads: int, waves: int, lanes: int) -> NDArray[np.uint64]:
    masks = np.full(waves, (1 << lanes) - 1, np.uint64)
    rest = threads % lanes
    if rest:
        masks[-1] = (1 << rest) - 1
    return masks
