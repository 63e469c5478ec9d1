"""The screen of `ugpu top`, made with Textual: a table of devices, plots of the selected one."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import ClassVar, Protocol

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Grid, Horizontal, Vertical
from textual.widgets import DataTable, Footer, HelpPanel, Label, Sparkline, Static

from ugpu.tools.base.console import count
from ugpu.tools.base.readings import Reading
from ugpu.tools.service.top.fleet import Card
from ugpu.tools.service.top.table import COLUMNS, cells, remarks

INTERVALS_S = (0.25, 0.5, 1.0, 2.0, 5.0)
PLOTS = (
    ("usage_ratio", "gfx"), ("power_watts", None), ("temperature_celsius", None),
    ("clock_hertz", "gfx"), ("memory_used_bytes", None), ("usage_ratio", "memory"),
)  # fmt: skip
_UNITS = {"usage_ratio": "ratio", "power_watts": "W", "temperature_celsius": "°C",
          "clock_hertz": "Hz", "memory_used_bytes": "B"}  # fmt: skip
# Sort orders of the table: column and key.
SORTS: tuple[tuple[str, Callable[[Card], tuple[object, ...]]], ...] = (
    ("device", lambda card: (card.device, card.number)),
    ("busy", lambda card: (-_value(card, "usage_ratio"), card.label)),
    ("memory", lambda card: (-_value(card, "memory_used_bytes"), card.label)),
    ("power", lambda card: (-_value(card, "power_watts"), card.label)),
    ("temp", lambda card: (-_value(card, "temperature_celsius"), card.label)),
)
_STYLES = {"ok": "green", "failed": "bold red", "no answer": "bold yellow", "not open": "dim"}


def _value(card: Card, name: str) -> float:
    values = [s.value for s in card.last.samples if s.name == name] if card.last else []
    return max(values, default=-1.0)


class Source(Protocol):
    """A source of devices (tools.service.top.fleet.Fleet). `look` never blocks."""

    interval_s: float

    def look(self) -> Sequence[Card]: ...


class Plot(Vertical):
    """The history of one sensor, with its last and its largest value."""

    def __init__(self, name: str, label: str | None) -> None:
        super().__init__(id=f"plot-{name}-{label or 'first'}".replace("_", "-"))
        self.sensor, self.which = name, label
        # RACE: they are updated before `compose` has mounted them.
        self.heading = Label("")
        self.line = Sparkline([], summary_function=max)

    def compose(self) -> ComposeResult:
        yield self.heading
        yield self.line

    def show(self, card: Card | None) -> None:
        """Plot the history of a device's sensor; nothing if it has no such sensor."""
        history = card.history if card is not None else {}
        key = next((k for k in history if k[0] == self.sensor and self.which in (None, k[1])), None)
        self.display = key is not None
        if key is None:
            return
        values = list(history[key])
        last, high = (
            Reading(*key, _UNITS[self.sensor], value) for value in (values[-1], max(values))
        )
        self.heading.update(f"{last.words}  {last}  (max {high})")
        self.line.data = values


class Top(App[None]):
    """See the module's docstring. Tests pass a source of their own."""

    TITLE = "ugpu top"
    CSS = """
    #title { height: 1; background: $primary; color: $text; padding: 0 1; }
    #devices { height: auto; max-height: 50%; }
    #plots { grid-size: 3; grid-rows: 4; height: auto; padding: 1 1 0 1; }
    Plot { height: 4; padding: 0 1 1 0; }
    Sparkline { height: 2; }
    #remarks { padding: 0 1; height: auto; }
    """
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit", "Quit"),
        Binding("p", "pause", "Pause"),
        Binding("s", "sort", "Sort"),
        Binding("plus,equals_sign", "faster", "Faster", key_display="+"),
        Binding("minus", "slower", "Slower", key_display="-"),
        Binding("r", "refresh_now", "Refresh"),
        Binding("question_mark,h", "help", "Help", key_display="?"),
    ]

    def __init__(self, source: Source) -> None:
        super().__init__()
        self.source = source
        self.paused = False
        self.sorted_by = 0
        self.cards: list[Card] = []

    def compose(self) -> ComposeResult:
        yield Label("", id="title")
        yield DataTable(id="devices", cursor_type="row", zebra_stripes=True)
        with Grid(id="plots"):
            for name, label in PLOTS:
                yield Plot(name, label)
        with Horizontal(id="below"):
            yield Static("", id="remarks")
        yield Footer()

    def on_mount(self) -> None:
        table = self.query_one(DataTable)
        for column in COLUMNS:
            table.add_column(column, key=column)
        self._timer = self.set_interval(self.source.interval_s, self.tick)
        self.tick()

    def tick(self) -> None:
        """Show the present data."""
        if not self.paused:
            self.show(self.source.look())

    def show(self, cards: Sequence[Card]) -> None:
        """Show these devices; the selected one stays selected."""
        table = self.query_one(DataTable)
        before = self.selected
        self.cards = sorted(cards, key=SORTS[self.sorted_by][1])
        table.clear()
        for number, card in enumerate(self.cards):
            row = list(cells(card))
            style = _STYLES.get(card.state, "")
            table.add_row(row[0], Text(row[1], style), *row[2:], key=str(number))
        if before is not None:
            for number, card in enumerate(self.cards):
                if (card.device, card.path) == (before.device, before.path):
                    table.move_cursor(row=number)
                    break
        self._show_selected()

    @property
    def selected(self) -> Card | None:
        """The device under the cursor."""
        row = self.query_one(DataTable).cursor_row
        return self.cards[row] if 0 <= row < len(self.cards) else None

    def on_data_table_row_highlighted(self) -> None:
        self._show_selected()

    def _show_selected(self) -> None:
        card = self.selected
        devices = count(len(self.cards), "device")
        order = SORTS[self.sorted_by][0]
        title = [f"ugpu top  {devices}", f"every {self.source.interval_s:g} s", f"by {order}"]
        if self.paused:
            title.append("paused")
        self.query_one("#title", Label).update("  |  ".join(title))
        for plot in self.query(Plot):
            plot.show(card)
        lines = remarks(card) if card is not None else ["no device is open"]
        if card is not None and card.last is not None:
            last = card.last
            since = time.strftime("%H:%M:%S", time.gmtime(last.open_s))
            lines = [f"{card.label}  {last.target}  open for {since}  {last.launches} kernels",
                     *lines]  # fmt: skip
        elif card is not None and not lines:
            lines = [f"{card.device} is open in no process; `ugpu info` opens it"]
        self.query_one("#remarks", Static).update(Text("\n".join(lines)))

    # ---- keys --------------------------------------------------------------------------------

    def action_pause(self) -> None:
        self.paused = not self.paused
        self._show_selected()

    def action_sort(self) -> None:
        self.sorted_by = (self.sorted_by + 1) % len(SORTS)
        self.show(self.cards)

    def action_refresh_now(self) -> None:
        self.show(self.source.look())

    def action_faster(self) -> None:
        self._every(max((s for s in INTERVALS_S if s < self.source.interval_s), default=None))

    def action_slower(self) -> None:
        self._every(min((s for s in INTERVALS_S if s > self.source.interval_s), default=None))

    def _every(self, interval_s: float | None) -> None:
        if interval_s is None:
            return
        self.source.interval_s = interval_s
        self._timer.stop()
        self._timer = self.set_interval(interval_s, self.tick)
        self._show_selected()

    def action_help(self) -> None:
        """Show all keys, or hide them."""
        if self.screen.query(HelpPanel):
            self.action_hide_help_panel()
        else:
            self.action_show_help_panel()
