"""Several threads at once: shader cores translate while the driver invalidates and frees."""

from __future__ import annotations

import ctypes
import random
import threading

from tests.support.amd.navi31_bench import bench
from ugpu.hcq.state.clock import Clock
from ugpu.virtual.shader.memory import READ_TAG, WRITE_TAG, Access, tlb_set

TABLE, VA, VMID = 0x60_0000, 0x4000_0000, 2
PAGES = 256


def test_translations_never_lead_out_of_the_process() -> None:
    """Host memory behind stale rows may go at any time; accesses must still hit memory of ours."""
    with bench() as card:
        card.enable()
        with card.chip.lock:
            card.chip.autoload()
        card.open_hub("gc")
        for name, value in (
            ("PAGE_TABLE_BASE", TABLE | 1),
            ("PAGE_TABLE_START", VA >> 12),
            ("PAGE_TABLE_END", (VA >> 12) + PAGES - 1),
        ):
            card.write(card.hub("gc", name) + 2 * VMID, value)
            card.write(card.hub("gc", name) + 2 * VMID + 1, 0)
        card.write(card.hub("gc", "CONTEXT0_CNTL") + VMID, 1)
        card.vram.write(TABLE, bytes(8 * PAGES))
        card.flush_hdp()
        memory = card.chip.gc.shader_memory(VMID)
        stop = threading.Event()
        errors: list[BaseException] = []
        done = [0, 0]

        def shader(number: int) -> None:
            source = random.Random(number)
            table = memory.new_tlb()
            try:
                while not stop.is_set():
                    page = (VA >> 12) + source.randrange(PAGES)
                    write = source.random() < 0.5
                    row = table[tlb_set(page)]
                    if row[WRITE_TAG if write else READ_TAG] == page:
                        delta = int(row[2])
                        host = (page << 12) + delta & (1 << 64) - 1
                    else:
                        access = Access.WRITE if write else Access.READ
                        host = memory.refill(table, page << 12, access)
                    # A real core is here without any lock when the driver frees the memory.
                    if write:
                        ctypes.memset(host, 0x5A, 4096)
                    else:
                        ctypes.string_at(host, 4096)
                    done[number] += 1
            except BaseException as error:
                errors.append(error)

        workers = [threading.Thread(target=shader, args=(number,)) for number in range(2)]
        for worker in workers:
            worker.start()
        source = random.Random(9)
        lent = []
        for _ in range(150):
            memory_block = card.transport.allocate_dma(4096 * source.randrange(1, 8))
            lent.append(memory_block)
            for segment in memory_block.segments:
                for offset in range(0, segment.size, 4096):
                    entry = segment.address + offset | 0x63
                    card.vram.write64(TABLE + 8 * source.randrange(PAGES), entry)
            card.flush_hdp()
            if source.random() < 0.5:
                card.invalidate("gc", VMID)
            if len(lent) > 4:
                lent.pop(source.randrange(len(lent))).close()
        stop.set()
        for worker in workers:
            worker.join()
        assert errors == []
        assert min(done) > 0
        # What is lent anew is clean, whatever a late shader wrote before the invalidation.
        for kept in lent:
            kept.close()
        card.invalidate("gc", VMID)
        fresh = card.transport.allocate_dma(4096)
        assert bytes(fresh.view) == bytes(4096)


def test_a_reset_while_firmware_works_leaves_a_clean_chip() -> None:
    with bench(manual_time=False) as card:
        for wait in (0.0, 0.0005, 0.001, 0.002, 0.004, 0.006):
            card.chip.power_cycle()
            threading.Event().wait(wait)
            card.transport.config_write(4, 6, 2)
            card.write(card.psp(35), 0x80000)
            card.chip.power_cycle()
            card.transport.config_write(4, 6, 2)
            Clock().wait_until(
                lambda: card.read(card.psp(35)) == 0x80000000,
                unit="PSP",
                waiting_for="boot loader",
                limit_s=10.0,
            )
            assert card.read(card.psp(81)) == 0
