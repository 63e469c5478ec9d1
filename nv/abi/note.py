"""The note that our loader writes before a kernel's machine code, with the address of its PTX.

Machine code is opaque to a model of the chip, so a program in memory contains the PTX that it was
assembled from. The 256 bytes before a kernel's first instruction are free for our use (kernels
start at multiples of 256); hardware never reads them. All numbers little endian:

    offset  size
    0       8     magic "UGPUNOTE"
    8       4     version, 3
    12      4     where the entry's parameters start in constant bank 0, in bytes
    16      4     size of the parameters in bytes
    20      4     length of the entry's name in bytes
    24      8     GPU address of the PTX text (UTF-8, not terminated)
    32      8     length of the PTX text in bytes; 0: the program was loaded without PTX
    40      8     GPU address of the table of variables
    48      8     length of the table in bytes
    56      8     GPU address of the entry's name (UTF-8, not terminated)
    64      192   zero

The table contains the addresses of the module's variables of `.global` and `.const`, and the values
of pointers to its functions. Its entries are contiguous: 8 bytes GPU address, 4 bytes length of the
name, then the name in UTF-8.
"""

from __future__ import annotations

NOTE_SIZE = 256
NOTE_MAGIC = b"UGPUNOTE"
NOTE_VERSION = 3
NOTE_FORMAT = "<8sIIIIQQQQQ"
VARIABLE_FORMAT = "<QI"  # struct format of an entry of the table before the name
