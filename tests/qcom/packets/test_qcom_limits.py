"""What the driver writes for kernels and copies at the edges of fields, grids and buffers; expected
values by hand from Mesa's sources (tu_shader.cc, tu6_emit_cs_config; ir3_shader_branchstack_hw)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.support.adreno.adreno_streams import Decoder
from tests.support.corpus.workloads import Places
from ugpu import hcq
from ugpu.hcq.device.device import Device
from ugpu.hcq.errors import BadArgument, BadCodeObject
from ugpu.hcq.objects.ir3_object import NO_REGISTER, Ir3Kernel, Ir3Parameter, Ir3Texture
from ugpu.hcq.rings.ring import RingQueue
from ugpu.hcq.work.command import Copy, Fill, Launch, Wait
from ugpu.hcq.work.command_buffer import Symbol
from ugpu.qcom import chips
from ugpu.qcom.kernels import SPAN, THREADS
from ugpu.qcom.packets import textures
from ugpu.qcom.packets.dispatch import NO_PRIVATE_MEMORY, prepare
from ugpu.qcom.packets.dispatch import constants as load_parameters
from ugpu.qcom.packets.encode import LONGEST_IB, MOST_GROUPS, Encoder
from ugpu.qcom.packets.pm4 import Stream, Tables
from ugpu.qcom.work.programs import check

ARENA_SIZE = RingQueue.arena_size

UNIT = 128  # bytes of code
CODE, IMAGE = 0x1_2345_6000, 0x7000_0000


def kernel(chip: str, **changes: Any) -> Ir3Kernel:
    facts = chips.facts(chip)
    fields: dict[str, Any] = {
        "name": "k", "chip_id": facts.chip_ids[0], "generation": facts.generation, "threads": 64,
        "parameters": (), "instructions": 16, "full_registers": 4, "half_registers": 2,
        "merged_registers": True, "constants": 8, "immediates": (), "immediates_at": 8,
        "local_size": 0, "private_size": 0, "private_per_wave": False, "branch_stack": 0,
        "double_wave": False, "early_preamble": False, "barrier": False,
        "group_register": NO_REGISTER, "thread_register": NO_REGISTER, "code": bytes(UNIT),
    }  # fmt: skip
    return Ir3Kernel(**(fields | changes))


def written(chip: str, **changes: Any) -> str:
    """The packets that all launches of a kernel share."""
    facts = chips.facts(chip)
    made = prepare(
        kernel(chip, **changes), CODE, NO_PRIVATE_MEMORY, facts, Tables.of(facts.generation)
    )
    decoder = Decoder(facts.generation, Places())
    return "\n".join(decoder.text(made.words, None))


@pytest.mark.parametrize("chip", ["a630", "a740"])
@pytest.mark.parametrize(("constants", "expected"), [(4, 1), (8, 2), (9, 3), (12, 3), (13, 4)])
def test_constants_are_counted_in_fours_and_rounded_up(
    chip: str, constants: int, expected: int
) -> None:
    assert f"CONSTLEN:{expected:#x} " in written(chip, constants=constants, immediates_at=constants)


@pytest.mark.parametrize(("depth", "expected"), [(1, 1), (2, 1), (3, 2), (5, 3)])
def test_the_stack_of_branches_is_counted_in_pairs(depth: int, expected: int) -> None:
    assert f"BRANCHSTACK:{expected:#x}" in written("a740", branch_stack=depth)


@pytest.mark.parametrize(
    ("size", "expected"), [(0, 1), (1024, 1), (2048, 1), (2049, 2), (3072, 2), (3073, 3)]
)
def test_local_memory_is_told_as_kibibytes_less_one(size: int, expected: int) -> None:
    assert f"SHARED_SIZE:{expected:#x}" in written("a740", local_size=size)


@pytest.mark.parametrize(("constants", "mode"), [(128, 0), (129, 1), (192, 1), (193, 2), (257, 3)])
def test_the_mode_of_the_constant_file(constants: int, mode: int) -> None:
    text = written("a740", constants=constants, immediates_at=constants)
    found = re.search(r"SP_CS_CTRL_REG1=\S+ \(([^)]*)\)", text)
    assert found is not None
    assert (f"CONSTANTRAMMODE:{mode:#x}" in found[1]) == bool(mode)


def test_no_more_code_is_prefetched_than_the_cache_holds() -> None:
    cache = chips.facts("a630").instruction_cache
    for units in (cache - 1, cache, cache + 1):
        text = written("a630", code=bytes(UNIT * units))
        assert f"SP_CS_INSTRLEN={units:#x}" in text
        assert f"NUM_UNIT:{min(units, cache):#x}" in text


def test_parameters_that_no_instruction_reads_are_not_loaded() -> None:
    stream = Stream(Tables.of(7))
    load_parameters(stream, kernel("a740", constants=1), bytes(range(48)), ())
    text = "\n".join(Decoder(7, Places()).text(stream.words, None))
    assert "NUM_UNIT:0x1," in text and text.endswith("0xf0e0d0c")


@pytest.mark.parametrize(("count", "loaded"), [(1, 1), (2, 2), (16, 16), (17, 16)])
def test_descriptors_of_textures_that_a_packet_loads(count: int, loaded: int) -> None:
    made = kernel(
        "a740",
        parameters=(Ir3Parameter("p", 0, 8, True),),
        textures=(Ir3Texture(0, "uint", 32, 1, 16),) * count,
    )
    stream = Stream(Tables.of(7))
    unused: Any = None  # its kernel, whose textures are given apart
    launch = Launch(unused, (1, 1, 1), (64, 1, 1), (0x1000).to_bytes(8, "little"))
    textures.bind(stream, launch, made)
    assert f"NUM_UNIT:{loaded:#x}" in "\n".join(Decoder(7, Places()).text(stream.words, None))


def test_a_buffer_of_many_texels_has_its_number_in_two_fields() -> None:
    found = textures._words(Tables.of(7), Ir3Texture(0, "uint", 32, 1, 0x1_5555))
    assert found[1] == 0x5555 | 2 << 15


def test_a_buffer_that_lacks_the_last_byte_of_a_texture(device: Device) -> None:
    texture = Ir3Texture(0, "uint", 32, 1, 64)
    with device.alloc(256) as whole, device.alloc(512) as larger:
        textures._check_place(Symbol.of(whole), texture, "texture 0")
        with pytest.raises(BadArgument, match="needs 256 bytes, the buffer has 252"):
            textures._check_place(Symbol.of(whole, 4), texture, "texture 0")
        part = larger[:255]
        with pytest.raises(BadArgument, match="needs 256 bytes, the buffer has 255"):
            textures._check_place(Symbol.of(part), texture, "texture 0")


def test_a_grid_of_no_groups_is_no_launch(device: Device) -> None:
    own = encoder_of(device).own["fill"]
    launch = Launch(own, (0, 1, 1), (THREADS, 1, 1), bytes(own.kernarg_size))
    _, (lines,) = encoded(device, launch)
    assert not [line for line in lines if line.startswith("CP_EXEC_CS")]
    with pytest.raises(BadArgument, match=r"fewer than 2\^32"):
        encoder_of(device).encode([replace(launch, grid=(2**32 // THREADS, 1, 1))])


@pytest.fixture(scope="module", params=["a630", "a740"])
def device(request: pytest.FixtureRequest) -> Iterator[Device]:
    with hcq.open(f"virtual:{request.param}") as opened:
        yield opened


@pytest.mark.parametrize("per_wave", [False, True])
def test_private_memory_is_for_all_threads_and_grows(device: Device, per_wave: bool) -> None:
    """Units of 512 bytes, powers of two; whole pages for each processor (tu_setup_pvtmem)."""
    driver: Any = device.driver
    chip, fibers = driver.facts.name, driver.facts.fibers
    sizes = {1: 512, 512: 512, 513: 1024, 1500: 2048, 700: 2048}
    for asked, per_thread in sizes.items():
        found = driver.programs._private_for(
            kernel(chip, private_size=asked, private_per_wave=per_wave)
        )
        assert found.per_thread == per_thread and found.per_wave is per_wave
        assert found.per_processor == -(-per_thread * fibers // 4096) * 4096
        block = next(each for each in driver.programs._blocks if each.address == found.address)
        assert block.size >= found.per_processor * driver.facts.shader_processors


def test_code_that_a_gpu_cannot_run_is_refused_at_the_limit() -> None:
    facts = chips.facts("a630")
    check(kernel("a630", local_size=facts.local_memory, constants=facts.constants), facts)
    with pytest.raises(BadCodeObject, match="more bytes of local memory"):
        check(kernel("a630", local_size=facts.local_memory + 1), facts)
    with pytest.raises(BadCodeObject, match="more vec4 of constants"):
        check(kernel("a630", constants=facts.constants + 1), facts)
    newer, older = chips.facts("a660"), chips.facts("a630")
    assert newer.step > older.step
    check(kernel("a630"), newer)
    with pytest.raises(BadCodeObject, match="newer GPU"):
        check(kernel("a660"), older)


@given(
    st.integers(0, 1 << 24),
    st.integers(0, ARENA_SIZE),
    st.integers(1, ARENA_SIZE // 2),
)
@example(ARENA_SIZE - 512, 256, 512)  # beyond the arena's end by what images are aligned to
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_images_in_the_arena_are_whole_and_apart(
    arena: Any, tail: int, used: int, size: int
) -> None:
    """Positions rise for ever; what lies between tail and head is in use."""
    tail -= tail % 256
    arena.tail, arena.head = tail, tail + used - used % 256
    found = arena.find(size)
    whole = -(-size // 256) * 256
    if found is not None:
        assert found >= arena.head and found % 256 == 0
        assert found % ARENA_SIZE + size <= ARENA_SIZE, "in one piece"
        assert found + whole <= tail + ARENA_SIZE, "apart from what is in use"
    else:
        rest = -arena.head % ARENA_SIZE
        assert used - used % 256 + rest + whole > ARENA_SIZE


@pytest.fixture
def arena(device: Device) -> Iterator[Any]:
    queue: Any = device.queue().hardware
    arena = queue.arena
    before = arena.head, arena.tail
    yield arena
    arena.head, arena.tail = before


def test_the_arena_is_used_again_and_again(device: Device) -> None:
    queue: Any = device.queue().hardware
    with device.alloc(64) as buffer:
        words = len(encoder_of(device).encode(
            [Fill(Symbol.of(buffer), 1, 64)] * 1000).words)  # fmt: skip
        turns = 3 * ARENA_SIZE // (4 * words)
        assert turns > 3 and 4 * words < ARENA_SIZE // 2
        for number in range(turns):
            with device.queue() as filling:
                for _ in range(1000):
                    filling.fill(buffer, number)
            device.synchronize()
            assert queue.room(words)
        assert (buffer.numpy(np.uint32) == turns - 1).all()


def encoder_of(device: Device) -> Encoder:
    driver: Any = device.driver
    encoder: Encoder = driver.encoder
    return encoder


def encoded(device: Device, *commands: Any) -> tuple[Any, list[list[str]]]:
    """The image of commands, and the packets of each segment."""
    driver: Any = device.driver
    image = driver.encoder.encode(commands)
    bases = {"constant": 0, "image": IMAGE}
    values = np.array([bases[symbol.kind] for symbol in image.symbols], np.uint64)
    words = image.words.copy()
    image.patch(words, values)
    decoder = Decoder(driver.facts.generation, Places())
    return image, [
        [line for first, count in segment.ranges
         for line in decoder.text(words[first : first + count].tolist(), None)]
        for segment in image.segments
    ]  # fmt: skip


def test_a_copy_larger_than_a_grid_goes_on_where_it_stopped(device: Device) -> None:
    rest = 1000
    size = MOST_GROUPS * SPAN + rest
    to, source = 0x10_0000_0000, 0x20_0000_0000
    _, (lines,) = encoded(device, Copy(Symbol.constant(to), Symbol.constant(source), size))
    grids = [line for line in lines if line.startswith("CP_EXEC_CS")]
    assert [int(line.split(", ")[1], 16) for line in grids] == [MOST_GROUPS, -(-rest // SPAN)]
    blocks = [line.split(", ")[3:8] for line in lines
              if "STATE_TYPE:0x1" in line and "DST_OFF" not in line]  # fmt: skip
    found = [[int(word, 16) for word in block] for block in blocks]
    done = MOST_GROUPS * SPAN
    assert [(a | b << 32, c | d << 32, e) for a, b, c, d, e in found] == [
        (to, source, done), (to + done, source + done, rest),
    ]  # fmt: skip


def test_no_indirect_buffer_is_longer_than_a_packet_counts(device: Device) -> None:
    fills = [Fill(Symbol.constant(0x1000 * n), n, 64) for n in range(1, 9000)]
    image = encoder_of(device).encode(fills)
    (segment,) = image.segments
    assert len(segment.ranges) > 1
    assert all(0 < count < LONGEST_IB for _, count in segment.ranges)
    ends = [first + count for first, count in segment.ranges]
    assert [first for first, _ in segment.ranges] == [0, *ends[:-1]]


def test_what_a_wait_cuts_off_has_reached_memory(device: Device) -> None:
    """What follows may be another submission, of another queue."""
    fill = Fill(Symbol.constant(0x1000), 1, 64)
    wait = Wait(device.queue().timeline, Symbol.constant(1))
    image, (first, second) = encoded(device, fill, wait, fill)
    assert [len(segment.waits) for segment in image.segments] == [0, 1]
    (point,) = image.segments[1].waits
    words = image.words.copy()
    image.patch(words, np.zeros(len(image.symbols), np.uint64))
    assert point.timeline is wait.timeline and words[point.word : point.word + 2].tolist() == [1, 0]
    launch = next(n for n, line in enumerate(first) if line.startswith("CP_EXEC_CS"))
    after = "\n".join(first[launch + 1 :])
    assert "CP_WAIT_FOR_IDLE" in after and "EVENT_WRITE" in after
    assert any(line.startswith("CP_EXEC_CS") for line in second)
