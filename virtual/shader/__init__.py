"""Code shared by the virtual shader cores; a core adds its decoder and instruction semantics.

text, native     LLVM IR as text: bodies of vectors and masks of any number of lanes; functions
                 written as Python
jit, library     IR to native code, kept on disk; the functions that kernels share
versions         a translated kernel in a version that compiles fast, then in one that runs fast
memory, table    the TLBs of native code: the page-table walker's interface, and filling of rows
tlb              native code for TLB look-ups
lanes            loads and stores of the lanes of a wave, PASS lanes at a time
atomics          atomic operations of lanes
math             exp2, log2, sine, cosine, tanh of lanes
context          the start of the memory that Python and native code share
waves, crew      the native loop over groups and waves; host threads that share the groups
worker, launches one thread's TLBs and callbacks; translated kernels and their durations
stack            stack size of native code
"""

from __future__ import annotations

from pathlib import Path

#: the sources that all translators share, for the keys of compiled code (hcq.objects.jit.key_of)
PACKAGE = Path(__file__).parent
