"""Work that is shared by host threads: all of it is done, and no thread is left at it."""

from __future__ import annotations

import gc
import threading

import pytest

from ugpu.virtual.shader.threads.crew import Crew, _Mate


@pytest.mark.parametrize("count", [1, 2, 4])
def test_each_worker_works_at_the_same_time(count: int) -> None:
    crew = Crew("abcd", "test-crew")
    together = threading.Barrier(count)
    threads: dict[int, str] = {}

    def work(worker: str, number: int) -> int:
        assert worker == "abcd"[number]
        together.wait(60)
        threads[number] = threading.current_thread().name
        return number * number

    for _ in range(3):
        assert crew.run(count, work) == [0, 1, 4, 9][:count]
    assert sorted(threads) == list(range(count))
    assert threads[0] == threading.current_thread().name
    assert all(threads[number].startswith("test-crew") for number in range(1, count))
    crew.close()
    crew.close()
    assert crew.run(count, lambda _, number: number) == list(range(count)), "closed, and used again"
    crew.close()
    assert not any(thread.name.startswith("test-crew") for thread in threading.enumerate())


@pytest.mark.parametrize("failing", [0, 1, 2])
def test_an_error_comes_when_all_have_ended(failing: int) -> None:
    crew = Crew(range(3), "test-crew")
    raised = threading.Event()
    ended: list[int] = []

    def work(_: int, number: int) -> None:
        if number == failing:
            raised.set()
            raise KeyError(number)
        raised.wait(60)
        ended.append(number)

    with pytest.raises(KeyError, match=str(failing)):
        crew.run(3, work)
    assert len(ended) == 2
    crew.close()


def test_an_interrupted_launch_leaves_no_thread_for_good(monkeypatch: pytest.MonkeyPatch) -> None:
    crew = Crew("abc", "test-crew")
    go_on = threading.Event()

    def interrupted(_: _Mate) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(_Mate, "wait", interrupted)
        with pytest.raises(KeyboardInterrupt):
            crew.run(3, lambda _, number: number and go_on.wait(60))
    left = [one for one in threading.enumerate() if one.name.startswith("test-crew")]
    assert len(left) == 2, "they are still at work"
    assert crew.run(2, lambda _, number: number) == [0, 1], "by another thread"
    crew.close()
    go_on.set()
    for thread in left:
        thread.join(60)
        assert not thread.is_alive()


def test_one_is_no_thread() -> None:
    crew = Crew([7], "test-crew")
    before = threading.active_count()
    assert crew.run(1, lambda worker, _: worker) == [7]
    assert threading.active_count() == before


def test_the_threads_of_a_dropped_crew_end() -> None:
    before = set(threading.enumerate())
    crew = Crew([0, 1, 2], "dropped")
    assert crew.run(3, lambda worker, number: worker + number) == [0, 2, 4]
    threads = [thread for thread in threading.enumerate() if thread not in before]
    assert len(threads) == 2
    del crew
    gc.collect()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
