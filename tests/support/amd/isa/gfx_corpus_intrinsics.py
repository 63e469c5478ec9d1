"""Kernels of the corpus around AMDGPU's own intrinsics, matrix operations included."""

from __future__ import annotations

from collections.abc import Callable

Kernel = Callable[..., str]


def calls(kernel: Kernel) -> dict[str, str]:
    """Return one kernel for each intrinsic: result type, name, arguments with their types."""
    table = """
i32 amdgcn.update.dpp.i32 i32 %x, i32 %y, i32 27, i32 15, i32 15, i1 false
i32 amdgcn.update.dpp.i32 i32 %x, i32 %y, i32 273, i32 10, i32 5, i1 false
i32 amdgcn.update.dpp.i32 i32 %x, i32 %y, i32 257, i32 15, i32 15, i1 true
i32 amdgcn.update.dpp.i32 i32 %x, i32 %y, i32 289, i32 15, i32 3, i1 true
i32 amdgcn.update.dpp.i32 i32 %x, i32 %y, i32 320, i32 15, i32 15, i1 true
i32 amdgcn.update.dpp.i32 i32 %x, i32 %y, i32 321, i32 3, i32 15, i1 true
i32 amdgcn.update.dpp.i32 i32 %x, i32 %y, i32 339, i32 15, i32 15, i1 true
i32 amdgcn.update.dpp.i32 i32 %x, i32 %y, i32 357, i32 15, i32 15, i1 true
i32 amdgcn.mov.dpp8.i32 i32 %x, i32 1234567
i32 amdgcn.permlane16.i32 i32 %x, i32 %y, i32 1985229328, i32 -19088744, i1 false, i1 false
i32 amdgcn.permlanex16.i32 i32 %x, i32 %y, i32 1985229328, i32 -19088744, i1 true, i1 true
i32 amdgcn.permlane64 i32 %x
i32 amdgcn.readlane.i32 i32 %x, i32 7
i32 amdgcn.readfirstlane.i32 i32 %x
i32 amdgcn.writelane.i32 i32 %n, i32 3, i32 %y
i32 amdgcn.ds.swizzle i32 %x, i32 3103
i32 amdgcn.ds.swizzle i32 %x, i32 32795
i32 amdgcn.ds.bpermute i32 %x, i32 %y
i32 amdgcn.ds.permute i32 %x, i32 %y
i32 amdgcn.mbcnt.lo i32 -1, i32 %x
i32 amdgcn.mbcnt.hi i32 %x, i32 %y
i32 amdgcn.sudot4 i1 true, i32 %x, i1 false, i32 %y, i32 %n, i1 false
i32 amdgcn.sudot4 i1 true, i32 %x, i1 true, i32 %y, i32 %n, i1 true
i32 amdgcn.sudot8 i1 true, i32 %x, i1 true, i32 %y, i32 %n, i1 false
i32 amdgcn.udot4 i32 %x, i32 %y, i32 %n, i1 false
i32 amdgcn.udot8 i32 %x, i32 %y, i32 %n, i1 true
i32 amdgcn.sad.u8 i32 %x, i32 %y, i32 %n
i32 amdgcn.msad.u8 i32 %x, i32 %y, i32 %n
i32 amdgcn.sad.hi.u8 i32 %x, i32 %y, i32 %n
i32 amdgcn.sad.u16 i32 %x, i32 %y, i32 %n
i32 amdgcn.lerp i32 %x, i32 %y, i32 %n
i32 amdgcn.ubfe.i32 i32 %x, i32 %y, i32 %n
i32 amdgcn.sbfe.i32 i32 %x, i32 %y, i32 7
i32 amdgcn.perm i32 %x, i32 %y, i32 %n
i32 amdgcn.alignbyte i32 %x, i32 %y, i32 %n
i32 amdgcn.mul.u24 i32 %x, i32 %y
i32 amdgcn.mulhi.u24 i32 %x, i32 %y
i32 amdgcn.mul.i24 i32 %x, i32 %y
i32 amdgcn.mulhi.i24 i32 %x, i32 %y
i32 amdgcn.sffbh.i32 i32 %x
float amdgcn.fdot2 <2 x half> %hx, <2 x half> %hy, float %fx, i1 false
half amdgcn.fdot2.f16.f16 <2 x half> %hx, <2 x half> %hy, half %h
bfloat amdgcn.fdot2.bf16.bf16 <2 x bfloat> %gx, <2 x bfloat> %gy, bfloat %g
float amdgcn.fdot2.f32.bf16 <2 x bfloat> %gx, <2 x bfloat> %gy, float %fx, i1 false
<2 x half> amdgcn.cvt.pkrtz float %fx, float %fy
<2 x i16> amdgcn.cvt.pknorm.i16 float %fx, float %fy
<2 x i16> amdgcn.cvt.pknorm.u16 float %fx, float %fy
<2 x i16> amdgcn.cvt.pk.i16 i32 %x, i32 %y
<2 x i16> amdgcn.cvt.pk.u16 i32 %x, i32 %y
i32 amdgcn.cvt.pk.u8.f32 float %fx, i32 2, i32 %y
float amdgcn.fmed3.f32 float %fx, float %fy, float 1.5
half amdgcn.fmed3.f16 half %h, half %k, half 2.0
float amdgcn.fract.f32 float %fx
double amdgcn.fract.f64 double %dx
half amdgcn.fract.f16 half %h
float amdgcn.rcp.f32 float %fx
half amdgcn.rcp.f16 half %h
double amdgcn.rcp.f64 double %dx
float amdgcn.rsq.f32 float %fx
half amdgcn.rsq.f16 half %h
double amdgcn.rsq.f64 double %dx
float amdgcn.exp2.f32 float %fx
float amdgcn.log.f32 float %fx
float amdgcn.sqrt.f32 float %fx
half amdgcn.sqrt.f16 half %h
double amdgcn.sqrt.f64 double %dx
float amdgcn.sin.f32 float %fx
float amdgcn.cos.f32 float %fx
float ldexp.f32.i32 float %fx, i32 %y
double ldexp.f64.i32 double %dx, i32 %y
half ldexp.f16.i32 half %h, i32 %y
float amdgcn.frexp.mant.f32 float %fx
double amdgcn.frexp.mant.f64 double %dx
half amdgcn.frexp.mant.f16 half %h
i32 amdgcn.frexp.exp.i32.f32 float %fx
i32 amdgcn.frexp.exp.i32.f64 double %dx
i16 amdgcn.frexp.exp.i16.f16 half %h
float amdgcn.div.fixup.f32 float %fx, float %fy, float 3.0
float amdgcn.div.fmas.f32 float %fx, float %fy, float 3.0, i1 true
double amdgcn.trig.preop.f64 double %dx, i32 %y
float amdgcn.cubeid float %fx, float %fy, float 2.0
float amdgcn.cubesc float %fx, float %fy, float 2.0
float amdgcn.cubetc float %fx, float %fy, float 2.0
float amdgcn.cubema float %fx, float %fy, float 2.0
float amdgcn.fmul.legacy float %fx, float %fy
float amdgcn.fma.legacy float %fx, float %fy, float %fx
i1 amdgcn.class.f32 float %fx, i32 %y
i1 amdgcn.class.f64 double %dx, i32 %y
i1 amdgcn.class.f16 half %h, i32 %y
i32 amdgcn.ballot.i32 i1 %c
i1 amdgcn.inverse.ballot.i32 i32 %n
i32 amdgcn.icmp.i32.i32 i32 %x, i32 %y, i32 40
i32 amdgcn.wave.reduce.umax.i32 i32 %x, i32 0
i64 amdgcn.mqsad.pk.u16.u8 i64 %lx, i32 %y, i64 %lx
i64 amdgcn.qsad.pk.u16.u8 i64 %lx, i32 %y, i64 %lx
i32 amdgcn.s.bitreplicate i32 %n
"""
    found = {}
    for line in table.strip().splitlines():
        result, name, arguments = line.split(" ", 2)
        if result.startswith("<"):
            kind, name, arguments = (
                line.split("> ", 1)[0] + ">",
                *line.split("> ", 1)[1].split(" ", 1),
            )
            result = kind
        shapes = ", ".join(part.rsplit(" ", 1)[0] for part in arguments.split(", "))
        if name.endswith("bitreplicate"):
            result = "i64"
        body = f"""
  %fx = bitcast i32 %x to float
  %fy = bitcast i32 %y to float
  %hx = bitcast i32 %x to <2 x half>
  %hy = bitcast i32 %y to <2 x half>
  %gx = bitcast i32 %x to <2 x bfloat>
  %gy = bitcast i32 %y to <2 x bfloat>
  %h = extractelement <2 x half> %hx, i32 0
  %k = extractelement <2 x half> %hy, i32 1
  %g = extractelement <2 x bfloat> %gx, i32 1
  %zx = zext i32 %x to i64
  %zy = zext i32 %y to i64
  %sy = shl i64 %zy, 32
  %lx = or i64 %zx, %sy
  %dx = bitcast i64 %lx to double
  %c = icmp slt i32 %x, %y
  %q = call {result} @llvm.{name}({arguments})
"""
        body += (
            "  %r = zext i1 %q to i32"
            if result == "i1"
            else f"  %r = bitcast {result} %q to {result}"
        )
        stored = "i32" if result == "i1" else result
        found[f"{name} {arguments}"] = kernel(
            body, f"declare {result} @llvm.{name}({shapes})", inputs="i32", result=stored
        )
    return found


def matrices(kernel: Kernel, lanes: int = 32) -> dict[str, str]:
    """Kernels of one matrix instruction each, in waves of 32 or 64 lanes."""
    found = {}
    for name, ab, cd, flags in (
        ("f32.16x16x16.f16.v8f32.v16f16", "<16 x half>", "<8 x float>", ""),
        ("f32.16x16x16.bf16.v8f32.v16i16", "<16 x i16>", "<8 x float>", ""),
        ("f16.16x16x16.f16.v16f16.v16f16", "<16 x half>", "<16 x half>", ", i1 false"),
        ("f16.16x16x16.f16.v16f16.v16f16", "<16 x half>", "<16 x half>", ", i1 true"),
        ("bf16.16x16x16.bf16.v16i16.v16i16", "<16 x i16>", "<16 x i16>", ", i1 false"),
        ("i32.16x16x16.iu8.v8i32.v4i32", "<4 x i32>", "<8 x i32>", "signed"),
        ("i32.16x16x16.iu4.v8i32.v2i32", "<2 x i32>", "<8 x i32>", "signed"),
    ):
        base = name.split(".v")[0]
        if lanes == 64:  # a lane holds half as many elements of C and D
            count = int(cd[1:].split()[0])
            cd = cd.replace(f"<{count} ", f"<{count // 2} ")
            stem, sums, factors = name.rsplit(".", 2)
            name = ".".join((stem, sums.replace(f"v{count}", f"v{count // 2}"), factors))
        if flags == "signed":
            arguments = f"i1 true, {ab} %ma, i1 false, {ab} %mb, {cd} %c, i1 true"
            shapes = f"i1, {ab}, i1, {ab}, {cd}, i1"
        else:
            arguments = f"{ab} %ma, {ab} %mb, {cd} %c{flags}"
            shapes = f"{ab}, {ab}, {cd}" + (", i1" if flags else "")
        for accumulator in ("zeroinitializer", "loaded"):
            # Both halves of the wave hold the same A and B, as the instructions demand.
            body = f"""  %half = and i32 %i, 15
  %qa = getelementptr {ab}, ptr addrspace(1) %a, i32 %half
  %qb = getelementptr {ab}, ptr addrspace(1) %b, i32 %half
  %ma = load {ab}, ptr addrspace(1) %qa
  %mb = load {ab}, ptr addrspace(1) %qb
  %pc = getelementptr {cd}, ptr addrspace(1) %out, i32 %i
"""
            loaded = f"  %c = load {cd}, ptr addrspace(1) %pc\n"
            call = f"  %r = call {cd} @llvm.amdgcn.wmma.{name}({arguments})"
            if accumulator == "loaded":
                body += loaded + call
            else:
                body += call.replace("%c", accumulator)
            found[f"wmma {base}{flags} {accumulator}"] = kernel(
                body,
                f"declare {cd} @llvm.amdgcn.wmma.{name}({shapes})",
                inputs=ab,
                result=cd,
            )
    return found
