"""Kernels of the corpus that use atomics, LDS, scratch, flat and buffer memory."""

from __future__ import annotations

from collections.abc import Callable

Kernel = Callable[..., str]


def atomics(kernel: Kernel) -> dict[str, str]:
    found = {}
    spaces = {"global": "ptr addrspace(1) %po", "flat": "ptr %pf", "lds": "ptr addrspace(3) %pl"}
    for space, pointer in spaces.items():
        lds = "@lds = internal addrspace(3) global [256 x i64] poison\n"
        head = """  %pf = addrspacecast ptr addrspace(1) %po to ptr
  %pl = getelementptr i64, ptr addrspace(3) @lds, i32 %i
"""
        for operation in (
            "add", "sub", "xchg", "and", "or", "xor", "max", "min", "umax", "umin", "uinc_wrap",
            "udec_wrap", "fadd", "fmax", "fmin",
        ):  # fmt: skip
            for kind in ("float",) if operation[0] == "f" else ("i32", "i64"):
                if operation[0] == "f" and space != "lds" and operation != "fadd":
                    continue
                for used in (True, False):
                    body = head
                    if space == "lds":
                        body += f"  store {kind} %y, {pointer}\n"
                    body += (
                        f'  %q = atomicrmw {operation} {pointer}, {kind} %x syncscope("agent")'
                        " monotonic, !amdgpu.no.fine.grained.memory !0, !noalias.addrspace !1"
                        ", !amdgpu.ignore.denormal.mode !0\n"
                    )
                    if space == "lds" and not used:
                        body += f"  %r = load volatile {kind}, {pointer}"
                    elif used:
                        body += f"  %r = add i32 0, 0\n  %w = getelementptr {kind}, "
                        body += (
                            f"ptr addrspace(1) %a, i32 %i\n  store {kind} %q, ptr addrspace(1) %w"
                        )
                    else:
                        body += "  %r = add i32 0, 0"
                    result = kind if space == "lds" and not used else "i32"
                    text = kernel(body, lds, inputs=kind, result=result)
                    if result == "i32" and "%r = add" in body:
                        text = text.replace("  store i32 %r, ptr addrspace(1) %po\n", "")
                        text = text.replace(
                            "inbounds i32, ptr addrspace(1) %out",
                            f"inbounds {kind}, ptr addrspace(1) %out",
                        )
                    found[f"atomic {space} {operation} {kind} {used}"] = (
                        text + "!0 = !{}\n!1 = !{i32 5, i32 6}\n"
                    )
        for kind in ("i32", "i64"):
            body = (
                head
                + (f"  store {kind} %y, {pointer}\n" if space == "lds" else "")
                + f"""  %q = cmpxchg {pointer}, {kind} %x, {kind} %y syncscope("agent") \
monotonic monotonic, !noalias.addrspace !1
  %r = extractvalue {{ {kind}, i1 }} %q, 0"""
            )
            found[f"atomic {space} cmpxchg {kind}"] = (
                kernel(body, lds, inputs=kind, result=kind) + "!0 = !{}\n!1 = !{i32 5, i32 6}\n"
            )
    return found


def memory(kernel: Kernel) -> dict[str, str]:
    lds = "@lds = internal addrspace(3) global [1024 x i32] poison, align 16\n"
    barrier = "declare void @llvm.amdgcn.s.barrier()\n"
    found = {}
    for kind in ("i8", "i16", "i32", "i64", "<2 x i64>", "<4 x i32>", "<3 x i32>"):
        found[f"lds {kind}"] = kernel(
            f"""  %p = getelementptr {kind}, ptr addrspace(3) @lds, i32 %i
  store {kind} %x, ptr addrspace(3) %p
  call void @llvm.amdgcn.s.barrier()
  %o = xor i32 %i, 1
  %q = getelementptr {kind}, ptr addrspace(3) @lds, i32 %o
  %r = load {kind}, ptr addrspace(3) %q""",
            lds + barrier,
            inputs=kind,
            result=kind,
        )
    for kind in ("<4 x float>", "<2 x i64>", "<3 x i32>", "<2 x float>", "i8", "i16", "half"):
        found[f"copy {kind}"] = kernel(
            f"  %r = bitcast {kind} %x to {kind}", "", inputs=kind, result=kind
        )
        found[f"flat {kind}"] = kernel(
            f"""  %f = addrspacecast ptr addrspace(1) %pa to ptr
  %g = getelementptr {kind}, ptr %f, i32 5
  %r = load volatile {kind}, ptr %g
  %h = addrspacecast ptr addrspace(1) %po to ptr
  store volatile {kind} %r, ptr %h""",
            "",
            inputs=kind,
            result=kind,
        )
    found["lds pair"] = kernel(
        """  %p = getelementptr i32, ptr addrspace(3) @lds, i32 %i
  store i32 %x, ptr addrspace(3) %p
  %p2 = getelementptr i32, ptr addrspace(3) %p, i32 64
  store i32 %y, ptr addrspace(3) %p2
  call void @llvm.amdgcn.s.barrier()
  %j = xor i32 %i, 1
  %q = getelementptr i32, ptr addrspace(3) @lds, i32 %j
  %v = load i32, ptr addrspace(3) %q
  %q2 = getelementptr i32, ptr addrspace(3) %q, i32 64
  %w = load i32, ptr addrspace(3) %q2
  %r = sub i32 %v, %w""",
        lds + barrier,
        inputs="i32",
        result="i32",
    )
    found["scratch"] = kernel(
        """  %s = alloca [16 x i32], addrspace(5)
  %k = and i32 %x, 15
  %p = getelementptr i32, ptr addrspace(5) %s, i32 %k
  store volatile i32 %y, ptr addrspace(5) %p
  %p8 = getelementptr i8, ptr addrspace(5) %p, i32 1
  store volatile i8 7, ptr addrspace(5) %p8
  %m = and i32 %y, 15
  %q = getelementptr i32, ptr addrspace(5) %s, i32 %m
  store volatile i64 77, ptr addrspace(5) %q
  %v = load volatile i32, ptr addrspace(5) %p
  %u = load volatile i16, ptr addrspace(5) %p8
  %t = sext i16 %u to i32
  %r = add i32 %v, %t""",
        "",
        inputs="i32",
        result="i32",
    )
    found["table"] = kernel(
        """  %k = and i32 %x, 7
  %p = getelementptr i32, ptr addrspace(4) @table, i32 %k
  %r = load i32, ptr addrspace(4) %p""",
        "@table = internal addrspace(4) constant [8 x i32] "
        "[i32 3, i32 1, i32 4, i32 1, i32 5, i32 9, i32 2, i32 6]",
        inputs="i32",
        result="i32",
    )
    found["uniform loads"] = (
        kernel(
            """  %p = getelementptr i32, ptr addrspace(1) %a, i32 %n
  %u = load <8 x i32>, ptr addrspace(1) %p, !invariant.load !0
  %v = load <8 x i32>, ptr addrspace(1) %b, align 64, !invariant.load !0
  %w = add <8 x i32> %u, %v
  %w1 = extractelement <8 x i32> %w, i32 3
  %w2 = extractelement <8 x i32> %w, i32 6
  %w3 = mul i32 %w1, %w2
  %r = add i32 %w3, %x""",
            "",
            inputs="i32",
            result="i32",
        )
        + "!0 = !{}\n"
    )
    for kind in ("i32", "<4 x i32>", "i8", "i16", "<3 x i32>", "<2 x i32>"):
        name = {"i32": "i32", "<4 x i32>": "v4i32", "i8": "i8", "i16": "i16", "<3 x i32>": "v3i32",
                "<2 x i32>": "v2i32"}[kind]  # fmt: skip
        found[f"buffer {kind}"] = kernel(
            f"""  %rs = call ptr addrspace(8) @llvm.amdgcn.make.buffer.rsrc.p8.p1(
    ptr addrspace(1) %a, i16 0, i64 4096, i32 822243328)
  %ro = call ptr addrspace(8) @llvm.amdgcn.make.buffer.rsrc.p8.p1(
    ptr addrspace(1) %out, i16 0, i64 4096, i32 822243328)
  %o = shl i32 %i, 4
  %r = call {kind} @llvm.amdgcn.raw.ptr.buffer.load.{name}(
    ptr addrspace(8) %rs, i32 %o, i32 %n, i32 0)
  call void @llvm.amdgcn.raw.ptr.buffer.store.{name}(
    {kind} %r, ptr addrspace(8) %ro, i32 %o, i32 0, i32 1)""",
            "declare ptr addrspace(8) @llvm.amdgcn.make.buffer.rsrc.p8.p1("
            "ptr addrspace(1), i16, i64, i32)\n"
            f"declare {kind} @llvm.amdgcn.raw.ptr.buffer.load.{name}"
            "(ptr addrspace(8), i32, i32, i32)\n"
            f"declare void @llvm.amdgcn.raw.ptr.buffer.store.{name}"
            f"({kind}, ptr addrspace(8), i32, i32, i32)\n",
            inputs="i32",
            result=kind,
        )
    return found
