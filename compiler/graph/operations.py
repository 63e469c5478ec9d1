"""All operations of the graph: importing this module fills the table of their records."""

from __future__ import annotations

from ugpu.compiler.graph import call, region
from ugpu.compiler.graph.along import reduce as reduce
from ugpu.compiler.graph.along import scan as scan
from ugpu.compiler.graph.along import select as select
from ugpu.compiler.graph.along import sort as sort
from ugpu.compiler.graph.along import sort_values as sort_values
from ugpu.compiler.graph.attention import attention_gradients as attention_gradients
from ugpu.compiler.graph.elements import HOST as HOST
from ugpu.compiler.graph.elements import bitcast as bitcast
from ugpu.compiler.graph.elements import cast as cast
from ugpu.compiler.graph.elements import contiguous as contiguous
from ugpu.compiler.graph.elements import elementwise as elementwise
from ugpu.compiler.graph.elements import full as full
from ugpu.compiler.graph.elements import in_host_memory as in_host_memory
from ugpu.compiler.graph.elements import instead as instead
from ugpu.compiler.graph.elements import iota as iota
from ugpu.compiler.graph.elements import number as number
from ugpu.compiler.graph.fourier import Signals as Signals
from ugpu.compiler.graph.fourier import fourier as fourier
from ugpu.compiler.graph.movement import cat as cat
from ugpu.compiler.graph.movement import detached as detached
from ugpu.compiler.graph.movement import expand as expand
from ugpu.compiler.graph.movement import flip as flip
from ugpu.compiler.graph.movement import pad as pad
from ugpu.compiler.graph.movement import permute as permute
from ugpu.compiler.graph.movement import reshape as reshape
from ugpu.compiler.graph.movement import shrink as shrink
from ugpu.compiler.graph.movement import stride as stride
from ugpu.compiler.graph.node import KINDS as KINDS
from ugpu.compiler.graph.region import gather as gather

FAMILIES = (call, region)
MOVEMENT = frozenset(name for name, kind in KINDS.items() if kind.moves)
ONE_TO_ONE = frozenset(name for name, kind in KINDS.items() if kind.once)
WRITES = frozenset(name for name, kind in KINDS.items() if kind.writes)
