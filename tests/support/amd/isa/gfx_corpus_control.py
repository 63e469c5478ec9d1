"""Kernels of the corpus with control flow, scalar arithmetic, calls and paired operations."""

from __future__ import annotations

from collections.abc import Callable

Kernel = Callable[..., str]


def control(kernel: Kernel) -> dict[str, str]:
    found = {}
    loop = """  br label %loop
loop:
  %j = phi i32 [ 0, %0 ], [ %j1, %loop ]
  %s = phi {kind} [ %x, %0 ], [ %s1, %loop ]
  {step}
  %j1 = add i32 %j, 1
  %c = icmp ult i32 %j1, {limit}
  br i1 %c, label %loop, label %done
done:
  %r = bitcast {kind} %s1 to {kind}"""
    found["uniform loop"] = kernel(
        loop.format(kind="i32", limit="%n", step="%s0 = mul i32 %s, 3\n  %s1 = add i32 %s0, %j"),
        inputs="i32",
        result="i32",
    )
    found["divergent loop"] = kernel(
        loop.format(kind="i32", limit="%i", step="%s0 = mul i32 %s, 3\n  %s1 = xor i32 %s0, %j"),
        inputs="i32",
        result="i32",
    )
    found["float loop"] = kernel(
        loop.format(
            kind="float",
            limit="%n",
            step="%s1 = call float @llvm.fma.f32(float %s, float %y, float 0.5)",
        ),
        "declare float @llvm.fma.f32(float, float, float)",
    )
    found["branches"] = kernel(
        """  %c = icmp slt i32 %x, %y
  br i1 %c, label %one, label %two
one:
  %p = mul i32 %x, 7
  %d = icmp ugt i32 %p, 100
  br i1 %d, label %three, label %four
two:
  %q = sub i32 %y, 5
  br label %four
three:
  %e = udiv i32 %p, 3
  br label %four
four:
  %r = phi i32 [ %p, %one ], [ %q, %two ], [ %e, %three ]""",
        inputs="i32",
        result="i32",
    )
    uniform = []
    for number, operation in enumerate(
        ("add", "sub", "mul", "and", "or", "xor", "shl", "lshr", "ashr", "udiv", "srem")
    ):
        uniform.append(
            f"  %u{number + 1} = {operation} i32 %u{number}, %m\n"
            f"  %v{number + 1} = {operation} i64 %v{number}, %w"
        )
    found["scalar arithmetic"] = (
        kernel(
            """  %m = load i32, ptr addrspace(1) %a, !invariant.load !0
  %w = load i64, ptr addrspace(1) %b, !invariant.load !0
  %u0 = add i32 %n, 3
  %v0 = zext i32 %m to i64
"""
            + "\n".join(uniform)
            + """
  %t = trunc i64 %v11 to i32
  %k = call i32 @llvm.ctpop.i32(i32 %u11)
  %l = call i64 @llvm.ctlz.i64(i64 %v11, i1 false)
  %l1 = trunc i64 %l to i32
  %l2 = call i32 @llvm.cttz.i32(i32 %u11, i1 false)
  %f = call i32 @llvm.fshl.i32(i32 %u11, i32 %m, i32 %n)
  %mn = call i32 @llvm.smin.i32(i32 %f, i32 %m)
  %ab = call i32 @llvm.abs.i32(i32 %mn, i1 false)
  %br = call i32 @llvm.bitreverse.i32(i32 %ab)
  %cc = icmp sgt i32 %br, %m
  %se = select i1 %cc, i32 %k, i32 %l2
  %c2 = icmp ult i64 %v11, %w
  %s2 = select i1 %c2, i32 %se, i32 %l1
  %z = add i32 %t, %s2
  %z1 = add i32 %u11, %x
  %r = xor i32 %z, %z1""",
            "declare i32 @llvm.ctpop.i32(i32)\ndeclare i64 @llvm.ctlz.i64(i64, i1)\n"
            "declare i32 @llvm.cttz.i32(i32, i1)\ndeclare i32 @llvm.fshl.i32(i32, i32, i32)\n"
            "declare i32 @llvm.smin.i32(i32, i32)\ndeclare i32 @llvm.abs.i32(i32, i1)\n"
            "declare i32 @llvm.bitreverse.i32(i32)\n",
            inputs="i32",
            result="i32",
        )
        + "!0 = !{}\n"
    )
    found["call"] = kernel(
        "  %r = call i32 @helper(i32 %x, i32 %y)",
        "define internal i32 @helper(i32 %u, i32 %v) noinline {\n  %w = mul i32 %u, %v\n"
        "  %z = udiv i32 %w, 7\n  ret i32 %z\n}\n",
        inputs="i32",
        result="i32",
    )
    found["dual"] = kernel(
        "\n".join(
            f"  %m{k} = fmul <4 x float> %{'x' if k == 0 else f'a{k - 1}'}, %y\n"
            f"  %a{k} = fadd <4 x float> %m{k}, <float 1.0, float {k}.5, float 3.0, float -0.5>"
            for k in range(4)
        )
        + "\n  %r = fsub <4 x float> %a3, %x",
        inputs="<4 x float>",
        result="<4 x float>",
    )
    found["mix"] = kernel(
        """  %e = fpext half %x to float
  %f = fpext half %y to float
  %g = call float @llvm.fma.f32(float %e, float %f, float 3.5)
  %h = call float @llvm.fma.f32(float %g, float %f, float %e)
  %k = fptrunc float %h to half
  %m = fneg half %y
  %o = call half @llvm.fabs.f16(half %k)
  %r = call half @llvm.fma.f16(half %o, half %m, half %x)""",
        "declare float @llvm.fma.f32(float, float, float)\n"
        "declare half @llvm.fma.f16(half, half, half)\ndeclare half @llvm.fabs.f16(half)\n",
        inputs="half",
        result="half",
    )
    found["modifiers"] = kernel(
        """  %e = fneg float %x
  %f = call float @llvm.fabs.f32(float %y)
  %g = fsub float %e, %f
  %h = call float @llvm.fabs.f32(float %g)
  %j = fneg float %h
  %k = fmul float %j, 4.0
  %l = call float @llvm.maxnum.f32(float %k, float 0.0)
  %m = call float @llvm.minnum.f32(float %l, float 1.0)
  %o = fmul float %m, %g
  %p = fmul float %o, 0.5
  %r = fadd float %p, 0x3FC45F3060000000""",
        "declare float @llvm.fabs.f32(float)\ndeclare float @llvm.maxnum.f32(float, float)\n"
        "declare float @llvm.minnum.f32(float, float)\n",
    ).replace(
        "#0 = {",
        '#0 = { "amdgpu-ieee"="false" "amdgpu-dx10-clamp"="true" "no-signed-zeros-fp-math"="true"',
    )
    found["dispatch"] = kernel(
        """  %g = call i32 @llvm.amdgcn.workgroup.id.x()
  %h = call i32 @llvm.amdgcn.workgroup.id.y()
  %t = call i32 @llvm.amdgcn.workitem.id.y()
  %w = call i32 @llvm.amdgcn.groupstaticsize()
  %r0 = add i32 %g, %h
  %r1 = add i32 %r0, %t
  %r3 = add i32 %r1, %w
  call void @llvm.amdgcn.s.sleep(i32 2)
  call void @llvm.amdgcn.s.setprio(i16 3)
  %r = add i32 %r3, %x""",
        "declare i32 @llvm.amdgcn.workgroup.id.x()\ndeclare i32 @llvm.amdgcn.workgroup.id.y()\n"
        "declare i32 @llvm.amdgcn.workitem.id.y()\n"
        "declare void @llvm.amdgcn.s.sleep(i32)\ndeclare void @llvm.amdgcn.s.setprio(i16)\n"
        "declare i32 @llvm.amdgcn.groupstaticsize()\n",
        inputs="i32",
        result="i32",
    )
    found["hardware register"] = kernel(
        "  %s = call i32 @llvm.amdgcn.s.getreg(i32 63494)\n  %r = add i32 %s, %x",
        "declare i32 @llvm.amdgcn.s.getreg(i32)\n",
        inputs="i32",
        result="i32",
    )
    vector = """  %v0 = insertelement <8 x i32> poison, i32 %x, i32 0
  %v1 = insertelement <8 x i32> %v0, i32 %y, i32 1
  %v2 = insertelement <8 x i32> %v1, i32 %i, i32 2
  %v3 = shufflevector <8 x i32> %v2, <8 x i32> %v2,
      <8 x i32> <i32 0, i32 1, i32 2, i32 1, i32 0, i32 2, i32 0, i32 1>
"""
    for index, place in (("uniform", "%n"), ("divergent", "%x")):
        found[f"{index} vector index"] = kernel(
            vector
            + f"""  %k = and i32 {place}, 7
  %e = extractelement <8 x i32> %v3, i32 %k
  %w = insertelement <8 x i32> %v3, i32 77, i32 %k
  %f = extractelement <8 x i32> %w, i32 3
  %g = mul i32 %e, 3
  %r = sub i32 %g, %f""",
            inputs="i32",
            result="i32",
        )
    found["fence"] = kernel(
        '  fence syncscope("agent") seq_cst\n'
        '  %v = load atomic i32, ptr addrspace(1) %pb syncscope("agent") acquire, align 4\n'
        '  store atomic i32 %v, ptr addrspace(1) %po syncscope("agent") release, align 4\n'
        "  %r = add i32 %v, %x",
        inputs="i32",
        result="i32",
    )
    return found
