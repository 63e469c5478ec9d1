"""An example of each instruction of the PTX ISA, in the order of its chapters.

Source: PTX ISA 9.1, "Instruction Set" and "Special Registers". Lines that begin with "!" are what
the virtual multiprocessors refuse by name; docs/virtual-sm.md says why. Control flow is left out:
bra, brx, call, ret, exit, trap and brkpt have tests of their own.
"""

from __future__ import annotations

VERSION = "9.1"
# Registers: %p of predicates, %h 16 bits, %r 32, %rd 64, %q 128, %b 8, %f and %d floats. %rd0 is an
# address in global memory, %r60 and %r61 those of `sh` and `mb` in shared memory, %rd10 generic.
VARIABLES = """.shared .align 128 .b8 sh[1024];
.shared .align 8 .b64 mb;
.global .align 16 .b8 gl[64];
.const .align 16 .b8 cs[64];
"""
START = """.reg .b128 %q<4>; .reg .b8 %b<4>;
mov.u32 %r60, sh; mov.u32 %r61, mb; cvta.shared.u64 %rd10, sh;
"""

EXAMPLES = {
    "sm_90": """
add.u16x2 %r1, %r2, %r3
sub.sat.s32 %r1, %r2, %r3
mul.wide.u16 %r1, %h2, %h3
mad.hi.sat.s32 %r1, %r2, %r3, %r4
mul24.hi.u32 %r1, %r2, %r3
mad24.hi.sat.s32 %r1, %r2, %r3, %r4
sad.u64 %rd1, %rd2, %rd3, %rd4
div.s16 %h1, %h2, %h3
rem.u64 %rd1, %rd2, %rd3
abs.s64 %rd1, %rd2
neg.s16 %h1, %h2
min.relu.s16x2 %r1, %r2, %r3
max.relu.s32 %r1, %r2, %r3
popc.b64 %r1, %rd2
clz.b32 %r1, %r2
bfind.shiftamt.s64 %r1, %rd2
fns.b32 %r1, %r2, %r3, %r4
brev.b64 %rd1, %rd2
bfe.s64 %rd1, %rd2, %r3, %r4
bfi.b32 %r1, %r2, %r3, %r4, %r5
szext.clamp.s32 %r1, %r2, %r3
bmsk.wrap.b32 %r1, %r2, %r3
dp4a.u32.s32 %r1, %r2, %r3, %r4
dp2a.hi.s32.u32 %r1, %r2, %r3, %r4
add.cc.u64 %rd1, %rd2, %rd3; addc.cc.u64 %rd1, %rd2, %rd3; addc.u32 %r1, %r2, %r3
sub.cc.s32 %r1, %r2, %r3; subc.cc.s32 %r1, %r2, %r3
mad.lo.cc.u32 %r1, %r2, %r3, %r4; madc.hi.cc.u64 %rd1, %rd2, %rd3, %rd4
testp.subnormal.f64 %p1, %d1
testp.notanumber.f32 %p1, %f1
copysign.f64 %d1, %d2, %d3
add.rm.ftz.sat.f32 %f1, %f2, %f3
sub.rp.f64 %d1, %d2, %d3
mul.rz.ftz.f32 %f1, %f2, %f3
mul.rm.f64 %d1, %d2, %d3
fma.rp.sat.f32 %f1, %f2, %f3, %f4
fma.rz.f64 %d1, %d2, %d3, %d4
mad.rn.f32 %f1, %f2, %f3, %f4
mad.rm.f64 %d1, %d2, %d3, %d4
div.approx.ftz.f32 %f1, %f2, %f3
div.full.f32 %f1, %f2, %f3
div.rp.f64 %d1, %d2, %d3
abs.ftz.f32 %f1, %f2
neg.f64 %d1, %d2
min.ftz.NaN.xorsign.abs.f32 %f1, %f2, %f3
max.xorsign.abs.f32 %f1, %f2, %f3
min.f64 %d1, %d2, %d3
rcp.approx.ftz.f32 %f1, %f2
rcp.rm.f64 %d1, %d2
rcp.approx.ftz.f64 %d1, %d2
sqrt.approx.f32 %f1, %f2
sqrt.rz.f64 %d1, %d2
rsqrt.approx.f64 %d1, %d2
rsqrt.approx.ftz.f64 %d1, %d2
rsqrt.approx.ftz.f32 %f1, %f2
sin.approx.f32 %f1, %f2
cos.approx.ftz.f32 %f1, %f2
lg2.approx.f32 %f1, %f2
ex2.approx.ftz.f32 %f1, %f2
tanh.approx.f32 %f1, %f2
add.rn.ftz.sat.f16 %h1, %h2, %h3
add.rn.bf16x2 %r1, %r2, %r3
sub.ftz.f16x2 %r1, %r2, %r3
sub.bf16 %h1, %h2, %h3
mul.sat.f16x2 %r1, %r2, %r3
mul.bf16x2 %r1, %r2, %r3
fma.rn.ftz.relu.f16x2 %r1, %r2, %r3, %r4
! fma.rn.oob.f16 %h1, %h2, %h3, %h4
! fma.rn.oob.relu.bf16x2 %r1, %r2, %r3, %r4
neg.ftz.f16x2 %r1, %r2
neg.bf16x2 %r1, %r2
abs.bf16 %h1, %h2
abs.ftz.f16 %h1, %h2
min.ftz.NaN.xorsign.abs.f16x2 %r1, %r2, %r3
max.NaN.xorsign.abs.bf16 %h1, %h2, %h3
min.bf16x2 %r1, %r2, %r3
tanh.approx.f16x2 %r1, %r2
tanh.approx.bf16 %h1, %h2
ex2.approx.f16 %h1, %h2
ex2.approx.ftz.bf16x2 %r1, %r2
set.lt.and.ftz.u32.f32 %r1, %f1, %f2, !%p1
set.ge.f32.f64 %f1, %d1, %d2
set.lt.s32.u64 %r1, %rd1, %rd2
set.eq.f32.s16 %f1, %h1, %h2
set.hi.xor.u32.u16 %r1, %h1, %h2, %p2
set.gtu.bf16x2.bf16x2 %r1, %r2, %r3
set.nan.u16.f16 %h1, %h2, %h3
set.lt.ftz.and.f16.f16 %h1, %h2, %h3, %p1
setp.num.or.f32 %p1|%p2, %f1, %f2, %p3
setp.lo.u16 %p1, %h1, %h2
setp.eq.b64 %p1, %rd1, %rd2
setp.equ.xor.f64 %p1, %d1, %d2, %p3
setp.lt.ftz.f16x2 %p1|%p2, %r1, %r2
selp.f64 %d1, %d2, %d3, %p1
selp.b16 %h1, %h2, %h3, %p1
slct.ftz.f64.f32 %d1, %d2, %d3, %f1
slct.u16.s32 %h1, %h2, %h3, %r1
and.pred %p1, %p2, %p3
xor.b16 %h1, %h2, %h3
or.b64 %rd1, %rd2, %rd3
not.pred %p1, %p2
cnot.b16 %h1, %h2
lop3.b32 %r1, %r2, %r3, %r4, 0x1B
lop3.or.b32 %r1|%p1, %r2, %r3, %r4, 0x1B, %p2
shf.l.clamp.b32 %r1, %r2, %r3, %r4
shf.r.wrap.b32 %r1, %r2, %r3, %r4
shl.b64 %rd1, %rd2, %r1
shr.s16 %h1, %h2, %r1
mov.b32 %r1, {%h1, %h2}
mov.b64 {%r1, %r2}, %rd1
mov.b128 %q1, {%rd2, %rd3}
mov.u64 %rd1, gl+4
mov.pred %p1, %p2
mov.u32 %r1, %laneid
shfl.sync.up.b32 %r1|%p1, %r2, 1, 0, -1
prmt.b32.rc16 %r1, %r2, %r3, %r4
ld.const.f64 %d1, [cs]
ld.global.ca.L2::128B.v4.u8 {%h1, %h2, %h3, %h4}, [%rd0]
ld.weak.global.L1::evict_last.v2.f64 {%d1, %d2}, [%rd0]
ld.volatile.shared.v2.b16 {%h1, %h2}, [sh]
ld.relaxed.cluster.shared::cluster.u32 %r1, [%r60]
ld.acquire.sys.global.s16 %h1, [%rd0]
ld.mmio.relaxed.sys.global.u32 %r1, [%rd0]
ld.global.nc.L1::no_allocate.L2::cache_hint.v4.f32 {%f1, %f2, %f3, %f4}, [%rd0], %rd9
ldu.global.v2.u32 {%r1, %r2}, [%rd0]
ld.global.b128 %q1, [%rd0]
ld.shared::cta.s8 %r1, [sh+3]
ld.param::entry.u64 %rd1, [p0]
ld.u32 %r1, [%rd0]
st.global.wt.v2.b32 [%rd0], {%r1, %r2}
st.relaxed.gpu.global.L1::no_allocate.f32 [%rd0], %f1
st.release.cta.shared::cta.u16 [sh], %h1
st.volatile.global.f64 [%rd0], %d1
st.mmio.relaxed.sys.global.u32 [%rd0], %r1
st.global.L2::cache_hint.b128 [%rd0], %q1, %rd9
prefetch.global.L2 [%rd0]
prefetch.global.L2::evict_last [%rd0]
prefetchu.L1 [%rd0]
prefetch.param.tensormap [p1]
applypriority.global.L2::evict_normal [%rd0], 128
discard.global.L2 [%rd0], 128
createpolicy.range.global.L2::evict_last.L2::evict_first.b64 %rd9, [%rd0], 64, 128
createpolicy.fractional.L2::evict_first.b64 %rd9, 0.5
createpolicy.cvt.L2.b64 %rd9, %rd8
isspacep.shared::cluster %p1, %rd0
isspacep.param::entry %p1, %rd0
isspacep.const %p1, %rd0
cvta.shared.u64 %rd1, %rd2
cvta.to.const.u64 %rd1, %rd2
cvta.param.u64 %rd1, p0
cvta.global.u64 %rd1, gl+4
cvt.rn.relu.f16x2.f32 %r1, %f1, %f2
cvt.rz.bf16x2.f32 %r1, %f1, %f2
cvt.rn.relu.bf16.f32 %h1, %f1
cvt.rz.f16.f32 %h1, %f1
cvt.rna.tf32.f32 %r1, %f1
cvt.rn.tf32.f32 %r1, %f1
cvt.rz.relu.tf32.f32 %r1, %f1
cvt.rn.satfinite.relu.e4m3x2.f32 %h1, %f1, %f2
cvt.rn.satfinite.e5m2x2.f16x2 %h1, %r1
cvt.rn.relu.f16x2.e4m3x2 %r1, %h1
cvt.rni.ftz.f32.f32 %f1, %f2
cvt.rpi.u8.f64 %r1, %d1
cvt.sat.s8.u64 %r1, %rd1
cvt.rm.f32.s64 %f1, %rd1
cvt.rn.f16.u64 %h1, %rd1
cvt.rzi.s32.bf16 %r1, %h1
cvt.rn.bf16.s32 %h1, %r1
cvt.f32.bf16 %f1, %h1
cvt.rn.bf16.f16 %h1, %h2
cvt.rn.f16.bf16 %h1, %h2
cvt.rn.bf16.f64 %h1, %d1
cvt.sat.f32.f32 %f1, %f2
cvt.rmi.sat.f16.f16 %h1, %h2
cvt.rn.sat.f16.f32 %h1, %f1
cvt.pack.sat.u16.s32 %r1, %r2, %r3
cvt.pack.sat.s8.s32.b32 %r1, %r2, %r3, %r4
cvt.pack.sat.u4.s32.b32 %r1, %r2, %r3, %r4
cvt.pack.sat.s2.s32.b32 %r1, %r2, %r3, %r4
mapa.shared::cluster.u32 %r1, sh, 0
mapa.u64 %rd1, %rd10, 0
getctarank.shared::cluster.u32 %r1, %r60
getctarank.u64 %r1, %rd10
cp.async.ca.shared.global.L2::64B [sh], [%rd0], 8, 4
cp.async.cg.shared::cta.global.L2::cache_hint [sh], [%rd0], 16, %rd9
cp.async.ca.shared.global [sh], [%rd0], 4, %p1
cp.async.commit_group
cp.async.wait_group 0
cp.async.wait_all
cp.async.mbarrier.arrive.noinc.shared.b64 [mb]
cp.async.bulk.prefetch.L2.global [%rd0], 64
cp.async.bulk.commit_group
cp.async.bulk.wait_group.read 0
cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [sh], [%rd0], 16, [mb]
cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%r60], [sh], 16, [mb]
cp.async.bulk.global.shared::cta.bulk_group [%rd0], [sh], 16
cp.reduce.async.bulk.global.shared::cta.bulk_group.add.noftz.f16 [%rd0], [sh], 16
cp.reduce.async.bulk.global.shared::cta.bulk_group.min.bf16 [%rd0], [sh], 16
cp.reduce.async.bulk.global.shared::cta.bulk_group.max.f16 [%rd0], [sh], 16
cp.reduce.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes.inc.u32 [%r60], \
[sh], 16, [mb]
! cp.async.bulk.tensor.1d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [sh], [%rd0, \
{%r1}], [mb]
! cp.async.bulk.prefetch.tensor.1d.L2.global.tile [%rd0, {%r1}]
! cp.reduce.async.bulk.tensor.1d.global.shared::cta.add.tile.bulk_group [%rd0, {%r1}], [sh]
! multimem.ld_reduce.relaxed.sys.global.add.u32 %r1, [%rd0]
! multimem.st.relaxed.sys.global.u32 [%rd0], %r1
! multimem.red.relaxed.sys.global.add.f32 [%rd0], %f1
! tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned [%rd0], \
[sh], 128
! tex.1d.v4.f32.s32 {%f1, %f2, %f3, %f4}, [%rd0, {%r1}]
! tld4.r.2d.v4.f32.f32 {%f1, %f2, %f3, %f4}, [%rd0, {%f1, %f2}]
! txq.width.b32 %r1, [%rd0]
! suld.b.1d.b32.trap %r1, [%rd0, {%r1}]
! sust.b.1d.b32.trap [%rd0, {%r1}], %r2
! sured.b.add.1d.u32.trap [%rd0, {%r1}], %r2
! suq.width.b32 %r1, [%rd0]
bar.sync 0
bar.arrive 1, 64
bar.red.popc.u32 %r1, 0, %p1
barrier.cta.red.and.aligned.pred %p1, 0, !%p2
barrier.sync 0, 32
bar.warp.sync -1
barrier.cluster.arrive.relaxed.aligned; barrier.cluster.wait.acquire.aligned
membar.gl
membar.proxy.alias
fence.sc.cluster
fence.acq_rel.sys
fence.mbarrier_init.release.cluster
fence.proxy.async.shared::cta
fence.proxy.alias
fence.proxy.tensormap::generic.release.gpu
fence.proxy.tensormap::generic.acquire.sys [%rd0], 128
atom.relaxed.gpu.global.L2::cache_hint.add.u64 %rd1, [%rd0], %rd2, %rd9
atom.acq_rel.cta.shared::cta.cas.b16 %h1, [sh], %h2, %h3
atom.global.cas.b128 %q1, [%rd0], %q2, %q3
atom.shared.exch.b128 %q1, [sh], %q2
atom.global.add.noftz.f16 %h1, [%rd0], %h2
atom.global.add.noftz.bf16x2 %r1, [%rd0], %r2
atom.global.max.s64 %rd1, [%rd0], %rd2
atom.shared.dec.u32 %r1, [sh], %r2
atom.global.add.f64 %d1, [%rd0], %d2
atom.global.v4.f32.add {%f1, %f2, %f3, %f4}, [%rd0], {%f1, %f2, %f3, %f4}
atom.global.v2.f32.add {%f1, %f2}, [%rd0], {%f1, %f2}
atom.global.add.noftz.v4.f16x2 {%r1, %r2, %r3, %r4}, [%rd0], {%r1, %r2, %r3, %r4}
atom.global.min.noftz.v8.f16 {%h1, %h2, %h3, %h4, %h5, %h6, %h7, %h8}, [%rd0], {%h1, %h2, %h3, \
%h4, %h5, %h6, %h7, %h8}
atom.global.max.noftz.v2.bf16x2 {%r1, %r2}, [%rd0], {%r1, %r2}
atom.global.v2.bf16.add.noftz {%h1, %h2}, [%rd0], {%h1, %h2}
red.release.gpu.global.or.b32 [%rd0], %r1
red.relaxed.sys.global.add.noftz.bf16 [%rd0], %h1
red.global.v4.f32.add [%rd0], {%f1, %f2, %f3, %f4}
red.global.min.noftz.v4.bf16x2 [%rd0], {%r1, %r2, %r3, %r4}
red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.xor.b32 [%r60], %r2, [%r61]
st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.b64 [%r60], {%rd1, %rd2}, [%r61]
vote.sync.uni.pred %p1, !%p2, -1
vote.sync.ballot.b32 %r1, %p1, -1
match.all.sync.b64 %r1|%p1, %rd1, -1
match.any.sync.b32 %r1, %r2, -1
activemask.b32 %r1
redux.sync.xor.b32 %r1, %r2, -1
redux.sync.min.s32 %r1, %r2, -1
griddepcontrol.wait
griddepcontrol.launch_dependents
elect.sync %r1|%p1, -1
mbarrier.init.shared::cta.b64 [mb], 4
mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [mb], 4
mbarrier.complete_tx.relaxed.cluster.shared::cluster.b64 [mb], 4
mbarrier.arrive.release.cta.shared::cta.b64 %rd1, [mb], 1
mbarrier.arrive.expect_tx.shared.b64 %rd1, [mb], 0
mbarrier.arrive.noComplete.shared.b64 %rd1, [mb], 1
mbarrier.arrive_drop.shared.b64 %rd1, [mb]
mbarrier.arrive_drop.noComplete.release.cta.shared::cta.b64 %rd1, [mb], 1
mbarrier.arrive_drop.expect_tx.shared.b64 %rd1, [mb], 0
mbarrier.test_wait.parity.acquire.cta.shared::cta.b64 %p1, [mb], 0
mbarrier.try_wait.shared.b64 %p1, [mb], %rd1, 10
mbarrier.pending_count.b64 %r1, %rd1
mbarrier.inval.shared.b64 [mb]
wmma.load.a.sync.aligned.row.m8n8k4.shared.f64 {%d1}, [sh]
! wmma.mma.sync.aligned.row.col.m8n8k4.rz.f64.f64.f64.f64 {%d1, %d2}, {%d3}, {%d4}, {%d5, %d6}
! wmma.mma.sync.aligned.row.col.m8n8k4.rp.f64.f64.f64.f64 {%d1, %d2}, {%d3}, {%d4}, {%d5, %d6}
wmma.store.d.sync.aligned.col.m8n8k32.shared.s32 [sh], {%r1, %r2}
mma.sync.aligned.m16n8k16.row.col.f64.f64.f64.f64 {%d1, %d2, %d3, %d4}, {%d1, %d2, %d3, %d4, \
%d5, %d6, %d7, %d8}, {%d1, %d2, %d3, %d4}, {%d1, %d2, %d3, %d4}
mma.sync.aligned.m8n8k32.row.col.satfinite.s32.s4.u4.s32 {%r1, %r2}, {%r3}, {%r4}, {%r5, %r6}
mma.sync.aligned.m8n8k128.row.col.s32.b1.b1.s32.xor.popc {%r1, %r2}, {%r3}, {%r4}, {%r5, %r6}
mma.sync.aligned.m8n8k4.row.col.f32.f16.f16.f32 {%f1,%f2,%f3,%f4,%f5,%f6,%f7,%f8}, {%r1, %r2}, \
{%r3, %r4}, {%f1,%f2,%f3,%f4,%f5,%f6,%f7,%f8}
mma.sp.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%f1,%f2,%f3,%f4}, {%r1,%r2}, {%r3,%r4}, \
{%f1,%f2,%f3,%f4}, %r5, 1
ldmatrix.sync.aligned.m8n8.x1.trans.shared::cta.b16 {%r1}, [sh]
stmatrix.sync.aligned.m8n8.x2.shared.b16 [sh], {%r1, %r2}
movmatrix.sync.aligned.m8n8.trans.b16 %r1, %r2
vadd.s32.u32.s32.sat.min %r1, %r2.b0, %r3.h1, %r4
vshl.u32.u32.u32.clamp %r1.h0, %r2, %r3, %r4
vmad.s32.s32.u32.sat.shr7 %r1, -%r2, %r3.h0, %r4
vset.s32.u32.lt.add %r1, %r2, %r3, %r4
vavrg4.u32.u32.u32.sat %r1.b20, %r2.b7654, %r3, %r4
vset2.s32.u32.ne.add %r1, %r2, %r3, %r4
nanosleep.u32 1
pmevent 7
pmevent.mask 3
mov.u32 %r1, %clock
mov.u64 %rd1, %clock64
mov.u64 %rd1, %globaltimer
! mov.u32 %r1, %pm0
! mov.u64 %rd1, %pm0_64
mov.u32 %r1, %gridid
mov.u32 %r1, %smid
mov.u32 %r1, %nwarpid
mov.u32 %r1, %lanemask_gt
mov.u32 %r1, %dynamic_smem_size
mov.u32 %r1, %total_smem_size
mov.u32 %r1, %aggr_smem_size
! mov.u32 %r1, %reserved_smem_offset_begin
mov.u64 %rd1, %current_graph_exec
mov.pred %p1, %is_explicit_cluster
""",
    "sm_90a": """
setmaxnreg.dec.sync.aligned.u32 40
! tensormap.replace.tile.global_address.shared::cta.b1024.b64 [sh], %rd1
wgmma.fence.sync.aligned
wgmma.commit_group.sync.aligned
wgmma.wait_group.sync.aligned 0
wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%f1, %f2, %f3, %f4}, %rd1, %rd2, %p1, 1, 1, \
0, 0
! wgmma.mma_async.sync.aligned.m64n8k256.s32.b1.b1.and.popc {%r1, %r2, %r3, %r4}, %rd1, %rd2, %p1
! wgmma.mma_async.sync.aligned.m64n8k32.s32.u8.u8.satfinite {%r1, %r2, %r3, %r4}, %rd1, %rd2, %p1
! wgmma.mma_async.sp.sync.aligned.m64n8k32.f32.f16.f16 {%f1, %f2, %f3, %f4}, %rd1, %rd2, %r5, 0, \
%p1, 1, 1, 0, 0
cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [sh], \
[%rd0], 16, [mb], %h1
""",
    "sm_100": """
add.rn.ftz.f32x2 %rd1, %rd2, %rd3
fma.rz.f32x2 %rd1, %rd2, %rd3, %rd4
mul.rn.f32x2 %rd1, %rd2, %rd3
sub.rn.f32x2 %rd1, %rd2, %rd3
add.rn.sat.f32.f16 %f1, %h1, %f2
sub.rz.f32.bf16 %f1, %h1, %f2
fma.rp.f32.bf16 %f1, %h1, %h2, %f2
min.f32 %f1, %f2, %f3, %f4
max.ftz.NaN.abs.f32 %f1, %f2, %f3, %f4
! st.bulk.weak.shared::cta [%r60], %rd1, 0
ld.global.L2::evict_first.v8.f32 {%f1, %f2, %f3, %f4, %f5, %f6, %f7, %f8}, [%rd0]
ld.global.v4.u64 {%rd1, %rd2, %rd3, %rd4}, [%rd0]
st.async.release.gpu.global.u32 [%rd0], %r1
st.async.mmio.release.sys.global.u32 [%rd0], %r1
red.async.release.gpu.global.add.u32 [%rd0], %r1
! cp.async.bulk.global.shared::cta.bulk_group.cp_mask [%rd0], [sh], 16, %h1
cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [sh], [%rd0], 16, [mb]
! clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes.b128 [sh], [mb]
! clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 %p1, %q1
! clusterlaunchcontrol.query_cancel.get_first_ctaid::x.b32.b128 %r1, %q1
fence.acquire.sync_restrict::shared::cluster.cluster
fence.proxy.async::generic.release.sync_restrict::shared::cta.cluster
mbarrier.arrive.relaxed.cta.shared::cta.b64 %rd1, [mb], 1
mbarrier.try_wait.parity.relaxed.cluster.shared::cta.b64 %p1, [mb], 0
""",
    "sm_100a": """
! cvt.rs.f16x2.f32 %r1, %f1, %f2, %r2
! cvt.rs.relu.satfinite.bf16x2.f32 %r1, %f1, %f2, %r2
! cvt.rs.satfinite.e4m3x4.f32 %r1, {%f1, %f2, %f3, %f4}, %r2
! cvt.rs.satfinite.e2m1x4.f32 %h1, {%f1, %f2, %f3, %f4}, %r2
! tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [sh], 32
! tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned
redux.sync.min.abs.NaN.f32 %f1, %f2, -1
""",
    "sm_120a": """
cvt.rn.satfinite.relu.e2m1x2.f32 %b1, %f1, %f2
cvt.rn.f16x2.e2m1x2 %r1, %b1
cvt.rn.satfinite.e3m2x2.f32 %h1, %f1, %f2
cvt.rn.satfinite.e2m3x2.f32 %h1, %f1, %f2
cvt.rn.relu.f16x2.e3m2x2 %r1, %h1
cvt.rn.f16x2.e2m3x2 %r1, %h1
cvt.rz.satfinite.ue8m0x2.f32 %h1, %f1, %f2
cvt.rp.ue8m0x2.bf16x2 %h1, %r1
cvt.rn.bf16x2.ue8m0x2 %r1, %h1
cvt.rn.satfinite.tf32.f32 %r1, %f1
cvt.rna.satfinite.tf32.f32 %r1, %f1
cvt.rn.satfinite.f16.f32 %h1, %f1
cvt.rn.satfinite.bf16x2.f32 %r1, %f1, %f2
ldmatrix.sync.aligned.m8n16.x1.shared.b8x16.b6x16_p32 {%r1}, [sh]
ldmatrix.sync.aligned.m8n16.x2.shared.b8x16.b4x16_p64 {%r1, %r2}, [sh]
! ldmatrix.sync.aligned.m16n16.x1.trans.shared.b8 {%r1, %r2}, [sh]
! ldmatrix.sync.aligned.m16n16.x2.trans.shared.b8x16.b4x16_p64 {%r1, %r2, %r3, %r4}, [sh]
! stmatrix.sync.aligned.m16n8.x1.trans.shared.b8 [sh], {%r1}
! stmatrix.sync.aligned.m16n8.x4.trans.shared.b8 [sh], {%r1, %r2, %r3, %r4}
mma.sync.aligned.m16n8k32.row.col.kind::mxf8f6f4.block_scale.f32.e4m3.e5m2.f32.ue8m0 \
{%f1,%f2,%f3,%f4}, {%r1,%r2,%r3,%r4}, {%r1,%r2}, {%f1,%f2,%f3,%f4}, %r5, {0, 1}, %r6, {2, 3}
mma.sync.aligned.m16n8k16.row.col.f16.e4m3.e5m2.f16 {%r1,%r2}, {%r3,%r4}, {%r5}, {%r6,%r7}
mma.sync.aligned.m16n8k16.row.col.f32.e4m3.e5m2.f32 {%f1,%f2,%f3,%f4}, {%r3,%r4}, {%r5}, \
{%f1,%f2,%f3,%f4}
setmaxnreg.inc.sync.aligned.u32 64
""",
}
