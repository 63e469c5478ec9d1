"""Textures, samplers and images of a launch: descriptors, their limits, and the packets that load
them. Kernels load texels from images and store them there; Mesa's name for images is IBO.

Sources: Mesa 25.0.7 src/freedreno/registers/adreno/a6xx.xml (A6XX_TEX_CONST, A6XX_TEX_SAMP),
src/freedreno/fdl/fd6_view.c (linear images, buffers; storage_descriptor), src/gallium/drivers/
freedreno/a6xx fd6_texture.cc and fd6_emit.cc, src/freedreno/computerator/a6xx.cc (packets),
src/freedreno/vulkan/tu_device.cc, src/freedreno/ir3/ir3_descriptor.h (limits).
"""

from __future__ import annotations

from collections.abc import Sequence

from ugpu.hcq.errors import BadArgument, BadCodeObject
from ugpu.hcq.objects.ir3_object import Ir3Kernel, Ir3Sampler, Ir3Texture
from ugpu.hcq.work.command import Launch
from ugpu.hcq.work.command_buffer import Reference, Relocation, Symbol
from ugpu.qcom.packets.pm4 import Stream, Tables, halves

MOST_TEXELS = 1 << 27  # of a buffer: maxTexelBufferElements
LARGEST_SIDE = 1 << 14  # of an image, texels: maxImageDimension2D
MOST_TEXTURES = 128  # numbers that an instruction can name (src/freedreno/isa/ir3-cat5.xml)
MOST_SAMPLERS = 16
MOST_IMAGES = 32  # IR3_BINDLESS_IMAGE_COUNT
ALIGN = 64  # bytes: of an image's address and pitch, and of a buffer's base
_DESCRIPTOR, _SAMPLER = 16, 4  # words
_MOST_LOADED = 16  # per packet, as in tinygrad's driver; the others are read when they are used
_WIDTH_BITS = 15  # bits of a buffer's number of texels in WIDTH; the others are in HEIGHT
_BORDER = [0] * 32  # words of a border colour: zeros
_WRAPS = {
    "repeat": "A6XX_TEX_REPEAT", "edge": "A6XX_TEX_CLAMP_TO_EDGE",
    "mirror": "A6XX_TEX_MIRROR_REPEAT", "border": "A6XX_TEX_CLAMP_TO_BORDER",
}  # fmt: skip
# SP_TP_MODE_CNTL.UNK3 as turnip and freedreno write it (0xa0 of the whole register).
_TP_MODE = 0x28


def check(kernel: Ir3Kernel, tables: Tables) -> None:
    """Raise BadCodeObject where the GPU cannot have a kernel's textures, samplers and images."""
    for what, count, most in (
        ("textures", len(kernel.textures), MOST_TEXTURES),
        ("samplers", len(kernel.samplers), MOST_SAMPLERS),
        ("images", len(kernel.images), MOST_IMAGES),
    ):
        if count > most:
            raise BadCodeObject(f"{kernel.name} uses {count} {what}, expected at most {most}")
    for what, textures in (("texture", kernel.textures), ("image", kernel.images)):
        for number, texture in enumerate(textures):
            _check(f"{what} {number} of {kernel.name}", texture, tables)


def _check(name: str, texture: Ir3Texture, tables: Tables) -> None:
    if _format(texture) not in tables.codes:
        raise BadCodeObject(f"{name}: texels of this type are not supported", texture=texture)
    if texture.height:
        if max(texture.width, texture.height) > LARGEST_SIDE:
            raise BadCodeObject(
                f"{name} has {texture.width} x {texture.height} texels, expected at most "
                f"{LARGEST_SIDE} along a side"
            )
        if texture.pitch % ALIGN:
            raise BadCodeObject(
                f"{name}: expected a pitch that is a multiple of {ALIGN} bytes, got {texture.pitch}"
            )
    elif texture.width > MOST_TEXELS:
        raise BadCodeObject(
            f"{name} has {texture.width} texels, expected at most {MOST_TEXELS} of a buffer"
        )


def _format(texture: Ir3Texture) -> str:
    sides = "_".join([str(texture.bits)] * texture.components)
    return f"FMT6_{sides}_{texture.kind.upper()}"


def static(stream: Stream, kernel: Ir3Kernel) -> None:
    """Write the registers that are the same for all launches of a kernel."""
    if kernel.textures:
        codes = stream.tables.codes
        stream.write("SP_TP_MODE_CNTL", ISAMMODE=codes.ISAMMODE_GL, UNK3=_TP_MODE)
        stream.write("SP_CS_TEX_COUNT", len(kernel.textures))
    stream.write("SP_CS_IBO_COUNT", len(kernel.images))


def bind(stream: Stream, launch: Launch, kernel: Ir3Kernel) -> None:
    """Append the descriptors of a launch and the packets that load them. BadArgument for an address
    that a texture or image cannot have, or a buffer that is too short."""
    codes = stream.tables.codes
    if kernel.images:
        block = _described(stream, launch, kernel, kernel.images, "image")
        count = min(len(kernel.images), _MOST_LOADED)
        _load(stream, codes.ST6_IBO, codes.SB6_CS_SHADER, count, block)
        stream.write_address("SP_CS_IBO", block)
    if not kernel.textures:
        return
    block = _described(stream, launch, kernel, kernel.textures, "texture")
    count = min(len(kernel.textures), _MOST_LOADED)
    _load(stream, codes.ST6_CONSTANTS, codes.SB6_CS_TEX, count, block)
    stream.write_address("SP_CS_TEX_CONST", block)
    if kernel.samplers:
        words = [word for sampler in kernel.samplers for word in _sampler(stream.tables, sampler)]
        block = stream.place(stream.data(words))
        _load(stream, codes.ST6_SHADER, codes.SB6_CS_TEX, len(kernel.samplers), block)
        stream.write_address("SP_CS_TEX_SAMP", block)
        stream.write_address("SP_TP_BORDER_COLOR_BASE_ADDR", stream.place(stream.data(_BORDER)))


def _described(
    stream: Stream,
    launch: Launch,
    kernel: Ir3Kernel,
    textures: Sequence[Ir3Texture],
    what: str,
) -> Symbol:
    """Place the descriptors of a launch's textures or images in the stream's data."""
    words: list[int] = []
    relocations: list[Relocation] = []
    for number, texture in enumerate(textures):
        symbol = _address(launch, kernel, texture)
        _check_place(symbol, texture, f"{what} {number} of {kernel.name}")
        stream.aligned.append((symbol, _align(texture)))
        relocations += _relocations(stream.tables, texture, len(words), symbol)
        words += _words(stream.tables, texture, stored=what == "image")
    return stream.place(stream.data(words, relocations=relocations))


def _load(stream: Stream, kind: int, block: int, count: int, place: Symbol) -> None:
    codes = stream.tables.codes
    head = stream.tables.packet_word(
        "CP_LOAD_STATE6_0",
        STATE_TYPE=kind,
        STATE_SRC=codes.SS6_INDIRECT,
        STATE_BLOCK=block,
        NUM_UNIT=count,
    )
    stream.packet("CP_LOAD_STATE6_FRAG", head, *halves(place))


def _address(launch: Launch, kernel: Ir3Kernel, texture: Ir3Texture) -> Symbol:
    offset = kernel.parameters[texture.parameter].offset
    for reference in launch.references:
        if reference.offset == offset and reference.width == 8:
            return reference.symbol
    _whole(launch.references, offset)
    return Symbol.constant(int.from_bytes(launch.kernarg[offset : offset + 8], "little"))


def _whole(references: Sequence[Reference], offset: int) -> None:
    for reference in references:
        if reference.offset < offset + 8 and offset < reference.offset + reference.width:
            raise BadArgument(
                "expected a texture's address as one value of 8 bytes", reference=reference
            )


def _check_place(symbol: Symbol, texture: Ir3Texture, name: str) -> None:
    """Raise BadArgument where memory whose address is already known cannot be the texture."""
    if symbol.kind not in ("buffer", "constant"):
        return
    address = symbol.addend
    if symbol.buffer is not None:
        address += int(symbol.buffer.address)
        left = symbol.buffer.size - symbol.addend
        if left < texture.size:
            raise BadArgument(
                f"{name} needs {texture.size} bytes, the buffer has {left} from this address on",
                buffer=symbol.buffer,
            )
    align = _align(texture)
    if address % align:
        raise BadArgument(
            f"{name}: expected an address that is a multiple of {align}, got {address:#x}"
        )


def _align(texture: Ir3Texture) -> int:
    """Return the alignment of a texture's address in bytes."""
    return ALIGN if texture.height else texture.texel


def _words(tables: Tables, texture: Ir3Texture, *, stored: bool = False) -> list[int]:
    """Return the words of a descriptor with address 0. stored: for an image, which has no
    substitutes for components that its format lacks."""
    codes, packets = tables.codes, tables.packets
    places = ("X", "Y", "Z", "W")
    swizzle = {
        f"SWIZ_{place}": codes[f"A6XX_TEX_{place}"] if stored or number < texture.components
        else codes["A6XX_TEX_ONE" if place == "W" else "A6XX_TEX_ZERO"]
        for number, place in enumerate(places)
    }  # fmt: skip
    descriptor = [0] * _DESCRIPTOR
    descriptor[0] = packets["A6XX_TEX_CONST_0"].encode(
        TILE_MODE=codes.TILE6_LINEAR, FMT=codes[_format(texture)], **swizzle
    )
    if texture.height:
        descriptor[1] = packets["A6XX_TEX_CONST_1"].encode(
            WIDTH=texture.width, HEIGHT=texture.height
        )
        descriptor[2] = packets["A6XX_TEX_CONST_2"].encode(
            PITCH=texture.pitch, TYPE=codes.A6XX_TEX_2D
        )
        return descriptor
    low = texture.width & (1 << _WIDTH_BITS) - 1
    descriptor[1] = packets["A6XX_TEX_CONST_1"].encode(
        WIDTH=low, HEIGHT=texture.width >> _WIDTH_BITS
    )
    descriptor[2] = packets["A6XX_TEX_CONST_2"].encode(
        STRUCTSIZETEXELS=1, TYPE=codes.A6XX_TEX_BUFFER
    )
    return descriptor


def _relocations(
    tables: Tables, texture: Ir3Texture, first: int, symbol: Symbol
) -> list[Relocation]:
    """Return the relocations that insert the address: the base and, for a buffer, the index of the
    texture's first texel after it. A replay may substitute another buffer with another
    alignment."""
    low = ALIGN.bit_length() - 1
    relocations = [
        Relocation(first + 4, symbol, shift=low, lsb=low, width=32 - low),
        Relocation(first + 5, symbol, shift=32),
    ]
    if not texture.height:
        field = tables.packets["A6XX_TEX_CONST_2"].encode(STARTOFFSETTEXELS=1)
        shift, place = texture.texel.bit_length() - 1, field.bit_length() - 1
        relocations.append(Relocation(first + 2, symbol, shift=shift, lsb=place, width=low - shift))
    return relocations


def _sampler(tables: Tables, sampler: Ir3Sampler) -> list[int]:
    codes, packets = tables.codes, tables.packets
    near = codes["A6XX_TEX_LINEAR" if sampler.linear else "A6XX_TEX_NEAREST"]
    wrap = codes[_WRAPS[sampler.wrap]]
    first = packets["A6XX_TEX_SAMP_0"].encode(
        XY_MAG=near, XY_MIN=near, WRAP_S=wrap, WRAP_T=wrap, WRAP_R=wrap
    )
    second = packets["A6XX_TEX_SAMP_1"].encode(UNNORM_COORDS=int(not sampler.normal))
    return [first, second, *[0] * (_SAMPLER - 2)]
