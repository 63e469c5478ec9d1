"""The opcodes of the scalar encodings of gfx1100: facts, one line each.

A line reads: opcode, name, type of the destination ("-" for none), types of the sources. SOPP and
SOPK have a 16-bit immediate, and SOPK one scalar register that is source, destination or both.
Source of the numbers and names: RDNA3 ISA document, opcode tables; LLVM's gfx1100 disassembler.
"""

from __future__ import annotations

SOP2 = """
0 s_add_u32 b32 b32 b32
1 s_sub_u32 b32 b32 b32
2 s_add_i32 b32 b32 b32
3 s_sub_i32 b32 b32 b32
4 s_addc_u32 b32 b32 b32
5 s_subb_u32 b32 b32 b32
6 s_absdiff_i32 b32 b32 b32
8 s_lshl_b32 b32 b32 b32
9 s_lshl_b64 b64 b64 b32
10 s_lshr_b32 b32 b32 b32
11 s_lshr_b64 b64 b64 b32
12 s_ashr_i32 b32 b32 b32
13 s_ashr_i64 b64 b64 b32
14 s_lshl1_add_u32 b32 b32 b32
15 s_lshl2_add_u32 b32 b32 b32
16 s_lshl3_add_u32 b32 b32 b32
17 s_lshl4_add_u32 b32 b32 b32
18 s_min_i32 b32 b32 b32
19 s_min_u32 b32 b32 b32
20 s_max_i32 b32 b32 b32
21 s_max_u32 b32 b32 b32
22 s_and_b32 b32 b32 b32
23 s_and_b64 b64 b64 b64
24 s_or_b32 b32 b32 b32
25 s_or_b64 b64 b64 b64
26 s_xor_b32 b32 b32 b32
27 s_xor_b64 b64 b64 b64
28 s_nand_b32 b32 b32 b32
29 s_nand_b64 b64 b64 b64
30 s_nor_b32 b32 b32 b32
31 s_nor_b64 b64 b64 b64
32 s_xnor_b32 b32 b32 b32
33 s_xnor_b64 b64 b64 b64
34 s_and_not1_b32 b32 b32 b32
35 s_and_not1_b64 b64 b64 b64
36 s_or_not1_b32 b32 b32 b32
37 s_or_not1_b64 b64 b64 b64
38 s_bfe_u32 b32 b32 b32
39 s_bfe_i32 b32 b32 b32
40 s_bfe_u64 b64 b64 b32
41 s_bfe_i64 b64 b64 b32
42 s_bfm_b32 b32 b32 b32
43 s_bfm_b64 b64 b32 b32
44 s_mul_i32 b32 b32 b32
45 s_mul_hi_u32 b32 b32 b32
46 s_mul_hi_i32 b32 b32 b32
48 s_cselect_b32 b32 b32 b32
49 s_cselect_b64 b64 b64 b64
50 s_pack_ll_b32_b16 b32 b32 b32
51 s_pack_lh_b32_b16 b32 b32 b32
52 s_pack_hh_b32_b16 b32 b32 b32
53 s_pack_hl_b32_b16 b32 b32 b32
"""

SOP1 = """
0 s_mov_b32 b32 b32
1 s_mov_b64 b64 b64
2 s_cmov_b32 b32 b32
3 s_cmov_b64 b64 b64
4 s_brev_b32 b32 b32
5 s_brev_b64 b64 b64
8 s_ctz_i32_b32 b32 b32
9 s_ctz_i32_b64 b32 b64
10 s_clz_i32_u32 b32 b32
11 s_clz_i32_u64 b32 b64
12 s_cls_i32 b32 b32
13 s_cls_i32_i64 b32 b64
14 s_sext_i32_i8 b32 b32
15 s_sext_i32_i16 b32 b32
16 s_bitset0_b32 b32 b32
17 s_bitset0_b64 b64 b32
18 s_bitset1_b32 b32 b32
19 s_bitset1_b64 b64 b32
20 s_bitreplicate_b64_b32 b64 b32
21 s_abs_i32 b32 b32
22 s_bcnt0_i32_b32 b32 b32
23 s_bcnt0_i32_b64 b32 b64
24 s_bcnt1_i32_b32 b32 b32
25 s_bcnt1_i32_b64 b32 b64
26 s_quadmask_b32 b32 b32
27 s_quadmask_b64 b64 b64
28 s_wqm_b32 b32 b32
29 s_wqm_b64 b64 b64
30 s_not_b32 b32 b32
31 s_not_b64 b64 b64
32 s_and_saveexec_b32 b32 b32
33 s_and_saveexec_b64 b64 b64
34 s_or_saveexec_b32 b32 b32
35 s_or_saveexec_b64 b64 b64
36 s_xor_saveexec_b32 b32 b32
37 s_xor_saveexec_b64 b64 b64
38 s_nand_saveexec_b32 b32 b32
39 s_nand_saveexec_b64 b64 b64
40 s_nor_saveexec_b32 b32 b32
41 s_nor_saveexec_b64 b64 b64
42 s_xnor_saveexec_b32 b32 b32
43 s_xnor_saveexec_b64 b64 b64
44 s_and_not0_saveexec_b32 b32 b32
45 s_and_not0_saveexec_b64 b64 b64
46 s_or_not0_saveexec_b32 b32 b32
47 s_or_not0_saveexec_b64 b64 b64
48 s_and_not1_saveexec_b32 b32 b32
49 s_and_not1_saveexec_b64 b64 b64
50 s_or_not1_saveexec_b32 b32 b32
51 s_or_not1_saveexec_b64 b64 b64
52 s_and_not0_wrexec_b32 b32 b32
53 s_and_not0_wrexec_b64 b64 b64
54 s_and_not1_wrexec_b32 b32 b32
55 s_and_not1_wrexec_b64 b64 b64
64 s_movrels_b32 b32 b32
65 s_movrels_b64 b64 b64
66 s_movreld_b32 b32 b32
67 s_movreld_b64 b64 b64
68 s_movrelsd_2_b32 b32 b32
71 s_getpc_b64 b64
72 s_setpc_b64 - b64
73 s_swappc_b64 b64 b64
74 s_rfe_b64 - b64
76 s_sendmsg_rtn_b32 b32 message
77 s_sendmsg_rtn_b64 b64 message
"""

SOPC = """
0 s_cmp_eq_i32 - b32 b32
1 s_cmp_lg_i32 - b32 b32
2 s_cmp_gt_i32 - b32 b32
3 s_cmp_ge_i32 - b32 b32
4 s_cmp_lt_i32 - b32 b32
5 s_cmp_le_i32 - b32 b32
6 s_cmp_eq_u32 - b32 b32
7 s_cmp_lg_u32 - b32 b32
8 s_cmp_gt_u32 - b32 b32
9 s_cmp_ge_u32 - b32 b32
10 s_cmp_lt_u32 - b32 b32
11 s_cmp_le_u32 - b32 b32
12 s_bitcmp0_b32 - b32 b32
13 s_bitcmp1_b32 - b32 b32
14 s_bitcmp0_b64 - b64 b32
15 s_bitcmp1_b64 - b64 b32
16 s_cmp_eq_u64 - b64 b64
17 s_cmp_lg_u64 - b64 b64
"""

SOPP = """
0 s_nop
1 s_setkill
2 s_sethalt
3 s_sleep
4 s_set_inst_prefetch_distance
5 s_clause
7 s_delay_alu
8 s_waitcnt_depctr
9 s_waitcnt
10 s_wait_idle
11 s_wait_event
16 s_trap
17 s_round_mode
18 s_denorm_mode
31 s_code_end
32 s_branch
33 s_cbranch_scc0
34 s_cbranch_scc1
35 s_cbranch_vccz
36 s_cbranch_vccnz
37 s_cbranch_execz
38 s_cbranch_execnz
39 s_cbranch_cdbgsys
40 s_cbranch_cdbguser
41 s_cbranch_cdbgsys_or_user
42 s_cbranch_cdbgsys_and_user
48 s_endpgm
49 s_endpgm_saved
52 s_wakeup
53 s_setprio
54 s_sendmsg
55 s_sendmsghalt
56 s_incperflevel
57 s_decperflevel
58 s_ttracedata
59 s_ttracedata_imm
60 s_icache_inv
61 s_barrier
"""

SOPK = """
0 s_movk_i32
1 s_version
2 s_cmovk_i32
3 s_cmpk_eq_i32
4 s_cmpk_lg_i32
5 s_cmpk_gt_i32
6 s_cmpk_ge_i32
7 s_cmpk_lt_i32
8 s_cmpk_le_i32
9 s_cmpk_eq_u32
10 s_cmpk_lg_u32
11 s_cmpk_gt_u32
12 s_cmpk_ge_u32
13 s_cmpk_lt_u32
14 s_cmpk_le_u32
15 s_addk_i32
16 s_mulk_i32
17 s_getreg_b32
18 s_setreg_b32
19 s_setreg_imm32_b32
20 s_call_b64
22 s_subvector_loop_begin
23 s_subvector_loop_end
24 s_waitcnt_vscnt
25 s_waitcnt_vmcnt
26 s_waitcnt_expcnt
27 s_waitcnt_lgkmcnt
"""
