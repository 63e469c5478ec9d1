"""A log that never makes its callers wait: a thread writes the records.

A terminal that is stopped, a full pipe or a slow disk delays only that thread. While records come
faster than they are written, they are counted and dropped.
"""

from __future__ import annotations

import logging
import logging.handlers
import queue
import threading

from ugpu.hcq.state import threads

MOST = 10_000  # records that wait
LAST_S = 2.0  # TIMEOUT: for the last records, at the end; our choice


class Later(logging.handlers.QueueHandler):
    """Passes records to `target` in a thread. `close` writes those that wait, within LAST_S."""

    def __init__(self, target: logging.Handler) -> None:
        self._records: queue.Queue[logging.LogRecord | None] = queue.Queue(MOST)
        super().__init__(self._records)
        self.lost = 0
        self._target = target
        self._thread = threading.Thread(target=self._run, name="ugpud log", daemon=True)
        threads.start(self._thread)

    def prepare(self, record: logging.LogRecord) -> logging.LogRecord:
        """See QueueHandler. The text is made now, since arguments may change."""
        record.message = record.getMessage()
        record.msg, record.args = record.message, None
        return record

    def enqueue(self, record: logging.LogRecord) -> None:
        """See QueueHandler. Never waits."""
        try:
            self._records.put_nowait(record)
        except queue.Full:
            self.lost += 1

    def close(self) -> None:
        try:
            self._records.put(None, timeout=LAST_S)
            self._thread.join(LAST_S)
        except queue.Full:
            self.lost += 1
        super().close()

    def _run(self) -> None:
        while (record := self._records.get()) is not None:
            lost, self.lost = self.lost, 0
            if lost:
                self._target.handle(_loss(record, lost))
            self._target.handle(record)


def _loss(record: logging.LogRecord, count: int) -> logging.LogRecord:
    text = f"{count} records of the log were dropped: they came faster than they could be written"
    return logging.LogRecord(record.name, logging.WARNING, __file__, 0, text, None, None)
