"""Who gets which device, in which order, and until when."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from ugpu.hcq.errors import AccessDenied, BadArgument, DeviceBusy, DeviceNotFound, NotSupported
from ugpu.hcq.remote.request import LeaseRequest, byte_count
from ugpu.tools.service.daemon.clients.leases import Card, Lease, Policy, State, Table, Waiter
from ugpu.tools.service.daemon.clients.tokens import Rights

ADMIN, USER = Rights("root", "admin"), Rights("anna", "use")


class Desk:
    """A table with two cards, time that stands still, and what its clients were told."""

    def __init__(self, policy: Policy | None = None) -> None:
        self.time = 100.0
        self.cards = [Card("one", ("gfx1100",), 8 << 30), Card("two", ("gfx1200",), 16 << 30)]
        self.table = Table(self.cards, policy or Policy(), lambda: self.time)
        for card in self.cards:
            card.shares, card.alone = 0, "it has one"
            self.table.changed(card, State.READY)
        self.given: dict[str, Lease] = {}
        self.ended: dict[str, str] = {}

    def ask(self, who: str, rights: Rights = USER, **wanted: Any) -> Waiter:
        return self.table.ask(
            LeaseRequest(**wanted),
            rights,
            who,
            lambda lease: self.given.__setitem__(who, lease),
            self.end(who),
        )

    def end(self, who: str) -> Callable[[str], None]:
        def end(reason: str) -> None:
            self.ended[who] = reason
            if who in self.given:
                self.table.release(self.given[who])

        return end


def test_a_device_that_fits_is_given() -> None:
    desk = Desk()
    desk.ask("a", device="gfx12*")
    assert desk.given["a"].card.name == "two" and desk.cards[1].state is State.LEASED
    desk.ask("b", memory=byte_count("8G"))
    assert desk.given["b"].card.name == "one"
    with pytest.raises(DeviceBusy, match="one: leased to b; two: leased to a"):
        desk.ask("c")
    desk.table.release(desk.given["a"])
    desk.table.release(desk.given["a"])
    assert desk.cards[1].state is State.READY
    desk.ask("c")
    assert desk.given["c"].card.name == "two"


@pytest.mark.parametrize(
    ("rights", "wanted", "error", "text"),
    [
        (USER, {"device": "gfx9*"}, DeviceNotFound, "this ugpud has: one, two"),
        (USER, {"memory": 1 << 40}, DeviceNotFound, "largest="),
        (USER, {"kind": "shared"}, NotSupported, "as 'shared': it has one; lease it exclusively"),
        (USER, {"kind": "transport"}, NotSupported, "handed out"),
        (Rights("x", "observe"), {}, AccessDenied, "requires the role 'use'"),
        (Rights("x", "use", "two"), {"device": "one"}, AccessDenied, "do not include one"),
        (USER, {"kind": "half"}, BadArgument, "kind must be one of exclusive"),
        (USER, {"priority": 10}, BadArgument, "priority must be from 0 to 9"),
        (USER, {"wait_s": float("inf")}, BadArgument, "finite"),
        (USER, {"memory": "8X"}, BadArgument, "such as"),
        (USER, {"device": ""}, BadArgument, "pattern"),
    ],
)
def test_what_never_can_be(rights: Rights, wanted: Any, error: type, text: str) -> None:
    with pytest.raises(error, match=text):
        Desk().ask("a", rights, **wanted)


def test_waiters_are_served_by_priority_then_in_order() -> None:
    desk = Desk()
    desk.ask("holder", device="one")
    for who, priority in (("low", 1), ("first", 5), ("second", 5), ("high", 9)):
        desk.ask(who, device="one", priority=priority, wait_s=60)
    desk.ask("other", device="two", wait_s=60)
    assert "other" in desk.given, "a waiter does not hold up those behind it"
    assert [desk.table.position(w) for w in desk.table.waiters] == [4, 2, 3, 1]
    order = []
    for _ in range(4):
        held = desk.cards[0].leases[0]
        desk.table.release(held)
        order.append(desk.cards[0].leases[0].holder)
    assert order == ["high", "first", "second", "low"]


def test_time_limits_and_extension() -> None:
    desk = Desk(Policy(usual_s=100, longest_s=500))
    desk.ask("a", device="one")
    desk.ask("b", device="two", limit_s=1000)
    desk.ask("late", device="one", wait_s=10)
    assert desk.table.next_deadline() == 110
    desk.time = 110
    (late,) = desk.table.tick()
    assert late.holder == "late" and "free" in str(desk.table.busy(late))
    assert desk.table.extend(desk.given["a"], 1e6) == 500
    desk.time = 609
    assert desk.table.tick() == [] and desk.ended == {"b": "the lease's time limit is over (509 s)"}
    desk.time = 611
    desk.table.tick()
    assert set(desk.ended) == {"a", "b"} and desk.table.next_deadline() is None


def test_a_quarantined_device_ends_its_leases() -> None:
    desk = Desk()
    desk.ask("a", device="one")
    desk.table.changed(desk.cards[0], State.QUARANTINED, "copies are wrong")
    assert desk.ended["a"] == "one is quarantined: copies are wrong"
    with pytest.raises(DeviceBusy, match="one: quarantined \\(copies are wrong\\)"):
        desk.ask("b", device="one")
    desk.ask("b", device="one", wait_s=5)
    desk.table.changed(desk.cards[0], State.READY)
    assert desk.given["b"].card.name == "one"


def test_observers_are_in_nobodys_way() -> None:
    desk = Desk()
    desk.ask("watcher", Rights("w", "observe"), device="one", kind="observer")
    desk.ask("a", device="one")
    desk.ask("second", kind="observer", device="one")
    assert set(desk.given) == {"watcher", "a", "second"}
    desk.table.release(desk.given["a"])
    assert desk.cards[0].state is State.READY


def test_devices_with_address_spaces_are_shared() -> None:
    desk = Desk()
    desk.cards[0].shares = 2
    desk.ask("a", kind="shared", device="one", memory=6 << 30)
    with pytest.raises(DeviceBusy):
        desk.ask("b", kind="shared", device="one", memory=3 << 30)
    desk.ask("b", kind="shared", device="one", memory=2 << 30)
    for wanted in ({"kind": "shared"}, {"kind": "exclusive"}):
        with pytest.raises(DeviceBusy):
            desk.ask("c", device="one", **wanted)
    desk.table.release(desk.given["a"])
    assert desk.cards[0].state is State.LEASED
    desk.table.release(desk.given["b"])
    assert desk.cards[0].state is State.READY


def test_who_names_no_memory_gets_an_equal_part() -> None:
    desk = Desk()
    desk.cards[0].shares = 4
    for who in "abcd":
        desk.ask(who, kind="shared", device="one")
        assert desk.given[who].memory == 2 << 30
    assert desk.cards[0].quota_left == 0


def test_who_wants_a_device_alone_is_not_kept_from_it_by_later_ones_who_share() -> None:
    desk = Desk()
    desk.cards[0].shares = 4
    desk.ask("a", kind="shared", device="one")
    desk.ask("alone", device="one", wait_s=60)
    desk.ask("later", kind="shared", device="one", wait_s=60)
    desk.ask("urgent", kind="shared", device="one", priority=9)
    assert set(desk.given) == {"a", "urgent"}
    for who in ("a", "urgent"):
        desk.table.release(desk.given[who])
    assert set(desk.given) == {"a", "urgent", "alone"}
    desk.table.release(desk.given["alone"])
    assert "later" in desk.given


def test_a_shared_device_that_is_recovered_ends_its_leases_and_comes_back_leased() -> None:
    desk = Desk()
    desk.cards[0].shares = 2
    told: list[str] = []
    lease: list[Lease] = []
    desk.table.ask(LeaseRequest("one", "shared"), USER, "a", lease.append, told.append)
    desk.table.changed(desk.cards[0], State.RECOVERING, "copies are wrong")
    assert told == ["one is recovering: copies are wrong"]
    desk.table.changed(desk.cards[0], State.READY)
    assert desk.cards[0].state is State.LEASED, "its holder has not cleaned up yet"
    with pytest.raises(DeviceBusy):
        desk.ask("b", device="one")
    desk.table.release(lease[0])
    assert desk.cards[0].state is State.READY


def test_a_request_for_the_whole_device_preempts_all_who_share_it() -> None:
    desk = Desk(Policy(preempt=True))
    desk.cards[0].shares = 3
    for who, priority in (("low", 2), ("middle", 5)):
        desk.ask(who, kind="shared", device="one", priority=priority)
    desk.ask("same", device="one", priority=5, wait_s=5)
    assert not desk.ended
    desk.ask("high", device="one", priority=6, wait_s=5)
    assert set(desk.ended) == {"low", "middle"} and "high" in desk.given
    desk.table.release(desk.given["high"])


def test_a_request_to_share_preempts_one_of_a_full_device() -> None:
    desk = Desk(Policy(preempt=True))
    desk.cards[0].shares = 2
    for who, priority in (("low", 2), ("middle", 5)):
        desk.ask(who, kind="shared", device="one", priority=priority)
    desk.ask("high", kind="shared", device="one", priority=6, wait_s=5)
    assert set(desk.ended) == {"low"} and "high" in desk.given


def test_a_higher_priority_preempts_where_the_policy_says_so() -> None:
    for preempt in (False, True):
        desk = Desk(Policy(preempt=preempt))
        desk.ask("low", device="one", priority=2)
        desk.ask("high", device="one", priority=8, wait_s=5)
        assert ("high" in desk.given) is preempt
        assert desk.ended.get("low", "").startswith("preempted") is preempt


def test_a_request_that_does_not_wait_ends_no_lease() -> None:
    desk = Desk(Policy(preempt=True))
    desk.ask("low", device="one", priority=2)
    with pytest.raises(DeviceBusy):
        desk.ask("high", device="one", priority=8)
    assert not desk.ended and not desk.table.waiters


def test_others_leases_are_an_admins() -> None:
    desk = Desk()
    desk.ask("a", device="one")
    number = desk.given["a"].number
    with pytest.raises(AccessDenied, match="holder=a"):
        desk.table.find(number, USER)
    assert desk.table.find(number, ADMIN) is desk.given["a"]
    with pytest.raises(BadArgument, match="lease 99 does not exist"):
        desk.table.find(99, ADMIN)


def test_waiters_have_a_limit() -> None:
    desk = Desk(Policy(waiters=2))
    desk.ask("holder", device="one")
    desk.ask("a", device="one", wait_s=5)
    waiter = desk.ask("b", device="one", wait_s=5)
    with pytest.raises(DeviceBusy, match="too many requests are waiting"):
        desk.ask("c", device="one", wait_s=5)
    desk.table.leave(waiter)
    desk.table.leave(waiter)
    desk.ask("c", device="one", wait_s=5)


class AnyOrder(RuleBasedStateMachine):
    """Whatever happens in whatever order: a device has one holder, or several that share it, and
    nobody waits for a free one."""

    def __init__(self) -> None:
        super().__init__()
        self.desk = Desk(Policy(usual_s=50, preempt=True))
        self.desk.cards[0].shares = 3
        self.count = 0

    @rule(
        device=st.sampled_from(["one", "two", "*"]),
        priority=st.integers(0, 9),
        wait=st.sampled_from([0.0, 30.0]),
        kind=st.sampled_from(["exclusive", "observer", "shared"]),
    )
    def ask(self, device: str, priority: int, wait: float, kind: str) -> None:
        self.count += 1
        with contextlib.suppress(DeviceBusy, NotSupported):
            self.desk.ask(str(self.count), device=device, priority=priority, wait_s=wait, kind=kind)

    @rule(number=st.integers(0, 10))
    def release(self, number: int) -> None:
        held = list(self.desk.table.leases.values())
        if held:
            self.desk.table.release(held[number % len(held)])

    @rule(seconds=st.sampled_from([5.0, 40.0]))
    def wait(self, seconds: float) -> None:
        self.desk.time += seconds
        self.desk.table.tick()

    @rule(which=st.integers(0, 1), state=st.sampled_from([State.QUARANTINED, State.READY]))
    def change(self, which: int, state: State) -> None:
        card = self.desk.cards[which]
        if state is State.QUARANTINED or card.state is State.QUARANTINED:
            self.desk.table.changed(card, state, "planted")

    @invariant()
    def one_holder(self) -> None:
        table = self.desk.table
        for card in self.desk.cards:
            holders = [lease for lease in card.leases if lease.holds]
            assert bool(holders) == (card.state is State.LEASED)
            if any(lease.request.kind != "shared" for lease in holders):
                assert len(holders) == 1
            assert len(holders) <= max(1, card.shares) and card.quota_left >= 0
            assert all(table.leases[lease.number] is lease for lease in card.leases)
        free = [card for card in self.desk.cards if card.state is State.READY]
        for waiter in table.waiters:
            shared = waiter.request.kind == "shared"
            assert not any(
                card.matches(waiter.request.device) for card in free if card.shares or not shared
            )


AnyOrder.TestCase.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
TestAnyOrder = AnyOrder.TestCase


def test_a_lease_whose_device_takes_a_while_to_be_clean_is_ended_once() -> None:
    """The time is up; until the device is clean there is nothing further to do."""
    desk = Desk()
    told: list[str] = []
    request = LeaseRequest(limit_s=1.0)
    desk.table.ask(request, USER, "a", lambda lease: None, told.append)
    desk.time += 2
    for _ in range(3):
        desk.table.tick()
        assert desk.table.next_deadline() is None
    desk.table.changed(desk.cards[0], State.QUARANTINED, "planted")
    assert told == ["the lease's time limit is over (2 s)"]
