"""The GPU's only ring: one thread runs the submissions, in the order of their contexts."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence

from ugpu.hcq.state.clock import Work
from ugpu.hcq.state.threads import start, was_started
from ugpu.virtual.adreno.cp.processor import CommandProcessor
from ugpu.virtual.adreno.faults import Cause, GpuFault, PageFault, Report
from ugpu.virtual.adreno.kgsl import fault as fault_reports
from ugpu.virtual.adreno.kgsl.context import ResetStatus, Submission
from ugpu.virtual.adreno.planted import Planted
from ugpu.virtual.adreno.state import MachineState
from ugpu.virtual.shader.memory import Abort

_CAUSES = {
    Planted.HANG: Cause.HANG, Planted.OPCODE: Cause.OPCODE, Planted.PARITY: Cause.PARITY,
    Planted.PROTECTED: Cause.PROTECTED,
}  # fmt: skip
_CLOSE_LIMIT_S = 10.0  # TIMEOUT: a stopped dispatch ends at its next backward branch


class Engine:
    """Runs submissions. A bug of the model itself ends the thread and is stored in `error`.

    `changed` is notified, with the machine's lock held, whenever a timestamp retires or a context
    changes its state.
    """

    def __init__(self, machine: MachineState) -> None:
        self.machine = machine
        self.changed = threading.Condition(machine.lock)
        self.error: BaseException | None = None
        self.abort = Abort()
        self.running: Submission | None = None
        self.submissions = 0
        self._queue: list[Submission] = []
        self._thread: threading.Thread | None = None
        self._closed = False
        self._waiting = False  # whether the command processor is polling memory
        self._since = 0.0

    @property
    def work(self) -> Work:
        """See hcq.state.clock.Part. A program or a poll may never end, and does not count as
        work."""
        running = self.running
        if running is None:
            ready = [entry for entry in list(self._queue) if self._is_ready(entry)]
            return Work.ENGINES if ready else Work.NONE
        if self._waiting:
            return Work.NONE
        return self.abort.work if self.processing else Work.ENGINES

    processing = False  # whether the shader processors run a dispatch

    def queue(self, submission: Submission) -> None:
        """Queue a submission; the machine's lock is held."""
        self._queue.append(submission)
        if not was_started(self._thread):
            self._thread = threading.Thread(target=self._serve, name="virtual-adreno", daemon=True)
            start(self._thread)
        self.changed.notify_all()

    def drop(self, submissions_of: object) -> None:
        """Drop the queued submissions of a context; the machine's lock is held."""
        self._queue = [entry for entry in self._queue if entry.context is not submissions_of]

    def _is_ready(self, submission: Submission) -> bool:
        return all(sync.reached for sync in submission.syncs)

    def _next(self) -> Submission | None:
        """Return the oldest submission that neither a sync point nor an older one of its context
        blocks."""
        held = set()
        for entry in self._queue:
            if id(entry.context) not in held and self._is_ready(entry):
                return entry
            held.add(id(entry.context))
        return None

    def _serve(self) -> None:
        try:
            while True:
                with self.changed:
                    if self._thread is not threading.current_thread():
                        return  # see hcq.state.threads
                    while not self._closed and (found := self._next()) is None:
                        self.changed.wait()
                    if self._closed:
                        return
                    assert found is not None
                    self._queue.remove(found)
                    self._begin(found)
                fault = self._run(found)
                with self.changed:
                    self._end(found, fault)
        except BaseException as error:
            with self.changed:
                self.error, self.running = error, None
                self.changed.notify_all()
            raise

    def _begin(self, submission: Submission) -> None:
        self.running = submission
        self.submissions += 1
        submission.context.consumed = submission.timestamp
        self._since = self.machine.clock.now()
        submission.context.begin(submission)
        self.abort.clear()

    def _run(self, submission: Submission) -> GpuFault | None:
        for planted, cause in _CAUSES.items():
            if self.machine.take(planted):
                return GpuFault(cause, f"{cause.value} (planted)")
        if self.machine.take(Planted.STUCK):
            while self.poll_memory(math.inf):
                pass  # until its context goes
            return None
        processor = CommandProcessor(self.machine, submission.context.node.space, self)
        try:
            for address, size in submission.buffers:
                processor.run(address, size // 4)
            processor.finish()
        except GpuFault as fault:
            return fault
        finally:
            processor.close()
        return None

    def _end(self, submission: Submission, fault: GpuFault | None) -> None:
        context = submission.context
        self.running = None
        if fault is not None and not context.detached:
            self._fault(submission, fault)
        context.retire(context.queued if context.invalid else submission.timestamp)
        self.machine.bury()
        self.changed.notify_all()

    def _fault(self, submission: Submission, fault: GpuFault) -> None:
        """Reset the GPU: the context at fault becomes guilty, all others without a reset status
        innocent (_mark_context in adreno_dispatch.c)."""
        guilty = submission.context
        self._note(submission, fault)
        for context in self.machine.contexts.values():
            if context is not guilty and context.status is ResetStatus.NO_ERROR:
                context.status = ResetStatus.INNOCENT
        guilty.blame()
        if guilty.invalid:
            self.drop(guilty)

    def _note(self, submission: Submission, fault: GpuFault) -> None:
        context = submission.context
        self.machine.log.append(
            Report(fault.cause, fault.text, context.id, submission.timestamp, fault.address)
        )
        if isinstance(fault, PageFault):
            fault_reports.add(context, fault)

    # Called by the command processor

    @property
    def halts_at_page_faults(self) -> bool:
        """Return whether a page fault ends the running submission."""
        running = self.running
        return running is None or running.context.halts_at_page_faults

    def note_faults(self, faults: Sequence[PageFault]) -> None:
        """Log page faults that do not halt the GPU."""
        with self.changed:
            if self.running is not None:
                for fault in faults:
                    self._note(self.running, fault)

    def poll_memory(self, limit_s: float) -> bool:
        """Wait briefly for memory to change; False once the submission counts as hung."""
        with self.changed:
            self._waiting = True
            self.changed.wait(0.0005)
            self._waiting = False
            running = self.running
            gone = self._closed or running is None or running.context.detached
        return not gone and self.machine.clock.now() - self._since < limit_s

    def check_hang(self) -> None:
        """Stop a dispatch that has run for longer than the limit. Called by programs that wait."""
        limit = self.machine.options.hang_limit_s
        if not self.processing or self.abort.work is not Work.NONE:
            return
        if self.machine.clock.now() - self._since > limit:
            self.abort.set()

    def stop_context(self, context: object) -> None:
        """Drop a context's queue and end its dispatch, as the context is destroyed. Machine's lock
        is held."""
        self.drop(context)
        while self.running is not None and self.running.context is context and self.error is None:
            self.abort.set()
            self.changed.wait(0.05)

    def close(self) -> None:
        """Stop; idempotent."""
        with self.changed:
            self._closed = True
            self._queue = []
            self.abort.set()
            self.changed.notify_all()
        thread = self._thread
        if was_started(thread) and thread is not threading.current_thread():
            thread.join(_CLOSE_LIMIT_S)
