"""A code object that a linker made: its source, and what `ld.lld -shared --build-id=none -s` made
of it, the one of the package ziglang 0.17.1 (`python -m ziglang ld.lld`)."""

from __future__ import annotations

import base64
import zlib

from tests.support.kernels import compile_ir

# A table reached through the global offset table (R_AMDGPU_ABS64), one of addresses of its own
# (R_AMDGPU_RELATIVE64), local memory of open size, and a pointer that may be null.
SOURCE = """
target triple = "amdgcn-amd-amdhsa"
@shown = addrspace(4) constant [4 x i32] [i32 1000, i32 2000, i32 3000, i32 4000]
@inner = internal addrspace(4) constant [4 x i32] [i32 10, i32 20, i32 30, i32 40]
@pointers = internal addrspace(4) constant [2 x ptr addrspace(4)] [
  ptr addrspace(4) @inner,
  ptr addrspace(4) getelementptr (i8, ptr addrspace(4) @inner, i64 4)]
@shared = external addrspace(3) global [0 x i32], align 16
declare i32 @llvm.amdgcn.workitem.id.x()
declare void @llvm.amdgcn.s.barrier()
define amdgpu_kernel void @linked(ptr addrspace(1) %out, ptr addrspace(1) %marks, i32 %index)
    #0 !kernel_arg_type !0 {
  %thread = call i32 @llvm.amdgcn.workitem.id.x()
  %mine = getelementptr i32, ptr addrspace(3) @shared, i32 %thread
  store i32 %thread, ptr addrspace(3) %mine
  call void @llvm.amdgcn.s.barrier()
  %mirror = sub i32 1023, %thread
  %theirs = getelementptr i32, ptr addrspace(3) @shared, i32 %mirror
  %far = load i32, ptr addrspace(3) %theirs
  %wide = zext i32 %index to i64
  %shown.at = getelementptr i32, ptr addrspace(4) @shown, i64 %wide
  %a = load i32, ptr addrspace(4) %shown.at
  %odd = and i64 %wide, 1
  %pointer.at = getelementptr ptr addrspace(4), ptr addrspace(4) @pointers, i64 %odd
  %pointer = load ptr addrspace(4), ptr addrspace(4) %pointer.at
  %b = load i32, ptr addrspace(4) %pointer
  %ab = add i32 %a, %b
  %sum = add i32 %ab, %far
  %number = zext i32 %thread to i64
  %out.at = getelementptr i32, ptr addrspace(1) %out, i64 %number
  store i32 %sum, ptr addrspace(1) %out.at
  %wanted = icmp ne ptr addrspace(1) %marks, null
  br i1 %wanted, label %mark, label %done
mark:
  %mark.at = getelementptr i32, ptr addrspace(1) %marks, i64 %number
  store i32 1, ptr addrspace(1) %mark.at
  br label %done
done:
  ret void
}
attributes #0 = { "amdgpu-no-implicitarg-ptr" "amdgpu-no-queue-ptr" "amdgpu-no-dispatch-id"
  "amdgpu-no-dispatch-ptr" "amdgpu-flat-work-group-size"="1,1024" }
!0 = !{!"uint*", !"uint*", !"uint"}
"""

# Compressed by zlib.
_LINKED = """
c-rk(O>Epm6n^%4H=9I|Z5l-20J+gt$|$K2N)Zx4DkMUSRFHCM53aMG-I(>-D~~rn9Lgqb(;yBsaN`03(gIcggg|
K#NyUi^5(k8G=%E*+9*a~^kt&uq_RQ8EvMH6gAQ;L1Ja7EIH-2yC&GVZt7GKgeZQOvkW#9&AaIcLEywwxq3z2LL@
^~*mALOuaB;Hf;nwG}AkZVG(Qya>q5skI=vizY-$RAB(Q%_@3k5e_f#rWPdekWdUD)w}tcUtJ3-kZitkVg4^ul*d
_#sk=sK7SSUa`52Ikp7h4t>B7+()Zkr3}r(+wyzwVI5Y)t{DM`pXP8B*H1Md)R^M48R#0K@Engs(Z3mPwlhv&fJy
UW0Y0F(Bo>ikC`;G7{@ylgKLs%osd4uLZC*eY!ntXVz;dtS`b7a<X8`P{io_#*nHm4iqG7Wa*UaMI_l}YyegR`F$
JUBq-B~KydF%mqVaGoU1r_&2&)Vo3|f#0Z`j8<yY3(c}KPi>Ry!&i}`&_nG(%XKPV{>#6}`RfDgq-M>VW!DPLIX|
chS{(V_fOwi`T*s?Y`)g7UoLMWR+ZjDaSfw7ACBNZ?`O9&K)g9N3MR1m|h1#_5ein0)s{I9NFv?7O0Zlk1lZ95P`
YnEIn<jHP?j&h0k~wRZmIGhRe&`ChH|cudmoQ*{VAgz_YUjnW3GtI@coln<k~fSn91jc+SIYCFqa!17ea+H<IllL
<rgvP|d|&iu^6mZoV`87};;T28+OF`hkYCHD^N^Of9>;4SQYq-XfBnd8Z}`jM!hu_l^viveQMQpfCy3n&Y{sASpz
Y)K{(eZN5i!3NMLr<p<NIXZ-QL#UZ38mz?%E-zM)!+1-rtS>6A9oZ8vX&@xZVr!VIM$`;CceDJ@6lB6H6O<OK(1h
KFPE)OI*|f{h3xK3iNGUBzG3UxQ)F#O*px+3a2)gbQo!Z@iM^EThRi7Z#J8t7rXAhwP`FZpSat%wS{6$&*{xf7jj
N4Z{%9J=3qbO+g4X(!&o%l?nW--xN#z*Mf~|iw8!mm9$h@6xGmFQ>Ze@ZF!W|&6X5mhd?9Awqs>KKKNk1-3c7@2A
N+s)Yp!&YWzC^%x}KO6D9Q;K6!?3q<tOu$tQ}Uw{_a)Y7ql=Y9(t7VU;l{tZW`%2p^)8q8x?s544xe-77q^X-%m!
#7y$A7kOIL22ah5k6|X^NEH(q;&gEeMB%rRvJNV?=R%ihU>3oRe_{;}U9KFm>EoAY-NG0&iIu;C$R{;_iE`*<5c(
gjTMvVa}`89rK0%0>~CbXvik#wPn7`1bChdL`+m#OjXO{mE@Nj#c}la`3Tj1Q)0_zhz&^<|tS?op<dSL{C~xOFA2
5><Ue!6%ioO0FY`gWH{ziT0G>(v@{Cak9hwCGV)<l;iT8mv~gMH?H&#B>n|b{|{Zte?x~4cwUHPebBD!yVG?Dbnt
&s*p~Y3|B3GOe?(T%m%LMoeOW(@_iS%Z?H?90sXr<7Cx!lccIWsx+sKmoaG&@e6S9#G`nx;mOFWgBd$Ju7`m6V`|
0lo-Rw4
"""


def relocatable() -> bytes:
    """The source, compiled and not linked."""
    return compile_ir(SOURCE, "amdgcn-amd-amdhsa", "gfx1100")


def linked() -> bytes:
    """The linked object (ET_DYN)."""
    return zlib.decompress(base64.b85decode(_LINKED.replace("\n", "")))
