"""The note that our loader puts before a kernel's machine code, and that names its PTX.

Machine code is opaque to a model of the chip, so a program in memory carries the PTX it was made
from. The 256 bytes before a kernel's first instruction are ours to use (kernels start at multiples
of 256); hardware never reads them. All numbers little endian:

    offset  size
    0       8     magic "UGPUNOTE"
    8       4     version, 1
    12      4     where the entry's parameters start in constant bank 0, in bytes
    16      4     size of the parameters in bytes
    20      4     length of the entry's name in bytes, at most 216
    24      8     GPU address of the PTX text (UTF-8, not terminated)
    32      8     length of the PTX text in bytes; 0: no PTX was there when the program was loaded
    40      216   the entry's name, UTF-8, zero-padded
"""

from __future__ import annotations

NOTE_SIZE = 256
NOTE_MAGIC = b"UGPUNOTE"
NOTE_VERSION = 1
NOTE_FORMAT = "<8sIIIIQQ"  # struct format of the fields before the name
NOTE_NAME_OFFSET = 40
NOTE_NAME_LIMIT = NOTE_SIZE - NOTE_NAME_OFFSET
