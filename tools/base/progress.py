"""Progress of work that takes longer than a second: the current step, and the time so far."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ugpu.hcq.state import trace
from ugpu.tools.base.console import Output


@contextmanager
def shown(out: Output, title: str) -> Iterator[None]:
    """On a terminal, show `title`, the current step and the elapsed time until the block ends.

    Steps are the events of `hcq.state.trace`: boot stages, compiled kernels, kernels under search,
    resets, closing. Prints nothing with --json or if stdout is not a terminal. The line is erased
    at the end; lines printed meanwhile appear above it.
    """
    with out.activity(title) as tell:
        steps = _Steps(title)

        def on_event(event: trace.Event) -> None:
            text = steps.text(event)
            if text is not None:
                tell(text)

        with trace.subscribe(on_event):
            yield


class _Steps:
    """Convert events into the text of the line. compiled: kernels so far."""

    def __init__(self, title: str) -> None:
        self.title = title
        self.compiled = 0

    def text(self, event: trace.Event) -> str | None:
        """Return the new text; None if the event does not change it."""
        facts = event.arguments
        if event.name == "compiler.kernel" and event.phase == "end":
            self.compiled += 1
            return f"{self.title}: compiled {self.compiled} ({facts.get('kernel', 'kernel')})"
        if event.phase == "end":
            return self.title if event.depth == 0 else None
        match event.name:
            case "open":
                return f"{self.title}: open {facts['device']}"
            case "boot":
                return f"{self.title}: boot, {facts['stage']}"
            case "compiler.kernel":
                return f"{self.title}: compile a kernel for {facts['device']}"
            case "tuning":
                tried = f", candidate {facts['tried']}" if facts["tried"] else ""
                return f"{self.title}: {facts['kernel']}{tried}"
            case "reset" | "close":
                return f"{self.title}: {event.name} {facts['device']}"
        return None
