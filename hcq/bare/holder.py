"""BareHolder: a driver of a card that this process runs alone, or shares with other holders."""

from __future__ import annotations

import logging
from abc import abstractmethod
from typing import Any

from ugpu.hcq.bare.card import BareCard
from ugpu.hcq.bare.space import AddressSpace, Mapping
from ugpu.hcq.device.driver import Driver
from ugpu.hcq.errors import DeviceLost, LinkError, UgpuError
from ugpu.hcq.state.ladder import Attempt, Level
from ugpu.hcq.state.memory import Placement, VirtAddr
from ugpu.hcq.transport.base import Transport
from ugpu.hcq.transport.life import absence_of
from ugpu.hcq.work.buffer import Buffer

log = logging.getLogger(__name__)

# A card that was unplugged sends no interrupt: each waiter must poll. Our choice: half of the 100
# ms within which every waiter notices it.
LONGEST_SLEEP_S = 0.05
SHARED_SLEEP_S = 0.002  # where other holders wait for interrupts too


class BareHolder(Driver):
    """One holder of a card; the first one starts it, those after it are tenants.

    memory: its address space, the firmware's where it has none of its own. vram_lost: the last
    reset lost the content of DEVICE memory. spoiled: a reset by another holder lost it.
    reset_report: rungs that the last reset tried. unfinished: the harshest rung of a reset that did
    not end. failures: of the whole card, not reported yet.
    """

    card: BareCard[Any]
    transport: Transport  # the card's
    memory: AddressSpace

    def __init__(self, name: str, card: BareCard[Any]) -> None:
        """Does not open the holder yet: a subclass ends its own constructor with `open`."""
        super().__init__(name, card.lock)
        self.card = card
        self.transport, self.clock = card.transport, card.transport.clock
        self.memory = card.memory
        self.vram_lost = False
        self.spoiled = False
        self.reset_report: list[Attempt] = []
        self.unfinished: Level | None = None
        self.failures: list[UgpuError] = []

    # ---- what the vendor does ----------------------------------------------------------------

    @property
    @abstractmethod
    def index(self) -> int:
        """The index of its seat: 0 for the first holder."""

    @property
    @abstractmethod
    def divides_memory(self) -> bool:
        """Return whether the holder gets page tables of its own."""

    @abstractmethod
    def bring_up(self) -> None:
        """Make the holder's queues and all else on a card that runs."""

    @abstractmethod
    def stop_queues(self, clean: bool) -> tuple[bool, bool]:
        """Switch the queues off. clean: nothing has failed. Returns whether they are off the
        hardware, and whether the card may stay as it is."""

    @abstractmethod
    def close_queues(self) -> None:
        """Release what the queues have on the host; works in any state."""

    @abstractmethod
    def make_tenant(self, name: str) -> BareHolder:
        """Return another holder of the card, opened. The lock is held."""

    @abstractmethod
    def rewrite(self) -> None:
        """Write what the driver has in VRAM again: the card was reset, and booted."""

    @abstractmethod
    def flush_tlb(self) -> None:
        """Flush the TLBs after changes for this holder's work; clears `memory.stale`."""

    # ---- life --------------------------------------------------------------------------------

    def open(self, *, force_cold: bool = False) -> None:
        """Join the card, which the first holder starts; force_cold: from scratch. If it fails, the
        holder is closed."""
        card = self.card
        try:
            card.holders.append(self)
            if self.divides_memory:
                self.memory = card.memory.sibling(self)
                if self.is_tenant:
                    self.memory.own()  # the first holder's is written when the card starts
                card.open_context(self)
            if not self.is_tenant:
                card.start(force_cold=force_cold)
            self.bring_up()
        except BaseException as error:
            if isinstance(error, UgpuError):
                self.core.keeper.keep(error, self.evidence)
            if self.is_tenant:
                self.shutdown()
            else:
                self.abandon(at_rest=False)
            raise
        self.core.opened()

    @property
    def is_tenant(self) -> bool:
        """Return whether the driver shares a card that another holder has started."""
        return self.index > 0

    @property
    def has_own_memory(self) -> bool:
        """Return whether its page tables are its own, and not those of the card's firmware."""
        return self.memory is not self.card.memory

    @property
    def warm(self) -> bool:
        """Return whether the driver attached to a running card."""
        return self.card.warm

    @property
    def alone(self) -> bool:
        """Return whether no other holder has work on the card."""
        return self.card.is_alone(self)

    def open_tenant(self, name: str) -> BareHolder:
        """See Driver. The card is shared; everything else is the tenant's own."""
        card = self.card
        with card.lock:
            self.check_second()
            self.core.check_usable()
            before = [*card.holders]
            try:
                return self.make_tenant(name)
            except BaseException:  # even one raised after the constructor
                for holder in card.holders[len(before) :]:
                    holder.core.close()
                raise

    def shutdown(self) -> None:
        """See Driver."""
        at_rest = False
        try:
            at_rest = self._stop_hardware()
        except (LinkError, UgpuError) as error:
            log.warning("%s: while shutting down: %s", self.name, error)
        except BaseException:  # a Ctrl-C: where others hold the card, this is called again
            if self.card.holders == [self]:
                self.abandon(at_rest)
            raise
        self.abandon(at_rest)

    def _stop_hardware(self) -> bool:
        """Switch the queues off and, with the last holder, make this process's memory unreachable.
        Returns whether the queues are off."""
        clean, alone = self.core.failure is None, self.alone
        if self.card.chip.lost():
            if clean:
                raise DeviceLost("the card does not respond", **absence_of(self.transport))
            return False
        off, clean = self.stop_queues(clean)
        if self.card.holders == [self]:
            self.card.stop(clean=clean and alone)
        return off

    def abandon(self, at_rest: bool) -> None:
        """Release host resources; works in any state. at_rest: the queues are off."""
        card = self.card
        self.close_queues()
        if card.holders in ([], [self]):
            card.close()
        else:
            card.leave(self, at_rest)
        if self in card.holders:
            card.holders.remove(self)

    def free_memory_of_holder(self) -> None:
        """Return all memory to the card; the hardware no longer accesses it. Can be repeated."""
        if self.has_own_memory:
            self.memory.close()
        elif not self.is_tenant:  # a tenant's was not made
            self.memory.clear(keep=self.card.firmware_mapping)
        self.card.memory.heap.free_all(self)

    # ---- memory ------------------------------------------------------------------------------

    def map(self, size: int, placement: Placement, *, code: bool = False) -> Mapping:
        """Allocate and map `size` bytes for the driver's own use; the caller owns them."""
        return self.memory.allocate(size, placement, code=code)

    def unmap(self, mapping: Mapping) -> None:
        """Unmap and free; the TLBs are flushed before another user gets the memory."""
        self.memory.unmap(mapping)
        failure = self.core.failure
        if failure is None or not (self.alone or isinstance(failure, LinkError)):
            self.flush_tlb()
        self.memory.release(mapping)

    def wrap(self, mapping: Mapping) -> Buffer:
        """Return a buffer over a mapping."""
        view = mapping.view if mapping.placement is Placement.HOST else None
        return Buffer(
            self.core, mapping.address, mapping.size, mapping.placement, view, handle=mapping
        )

    def allocate_memory(self, size: int, placement: Placement) -> Buffer:
        """See Driver."""
        mapping = None
        try:
            mapping = self.map(size, placement)
            mapping.clear_behind(size)
            view = mapping.view[:size] if placement is Placement.HOST else None
            address = VirtAddr(mapping.address)
            return Buffer(self.core, address, size, placement, view, handle=mapping)
        except BaseException:
            if mapping is not None:
                self.unmap(mapping)
            raise

    def free_memory(self, buffer: Buffer) -> None:
        """See Driver."""
        mapping = buffer.handle
        assert isinstance(mapping, Mapping)
        buffer.view = buffer.remote = None
        self.forget(mapping)
        self.unmap(mapping)

    def forget(self, mapping: Mapping) -> None:
        """Note that no program's code lies in a mapping any more, before it is freed."""

    # ---- waits -------------------------------------------------------------------------------

    @property
    def announces(self) -> bool:
        """See Driver."""
        return self.transport.interrupts is not None and len(self.card.holders) == 1

    def pause(self, limit_s: float) -> None:
        """See Driver."""
        interrupts = self.transport.interrupts
        if interrupts is None:
            self.clock.sleep(min(limit_s, 1e-4))
        else:
            # RACE: a thread that waits for another holder's work may take the interrupt in between.
            longest = LONGEST_SLEEP_S if len(self.card.holders) == 1 else SHARED_SLEEP_S
            interrupts.wait(min(limit_s, longest))
