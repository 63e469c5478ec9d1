"""The opcodes of the vector ALU encodings of gfx1100: facts, one line each.

A line reads: opcode, name, type of the destination ("-" for none), types of the sources (see
`operands.Type`; "literal" is the constant word of fmamk and fmaak, "mask" a lane mask).
VOP3 repeats VOPC at 0, VOP2 at 256 and VOP1 at 384; its own opcodes begin at 512.
Source of the numbers and names: RDNA3 ISA document, opcode tables; LLVM's gfx1100 disassembler.
"""

from __future__ import annotations

VOP1 = """
0 v_nop -
1 v_mov_b32 b32 b32
2 v_readfirstlane_b32 b32 b32
3 v_cvt_i32_f64 b32 f64
4 v_cvt_f64_i32 f64 b32
5 v_cvt_f32_i32 f32 b32
6 v_cvt_f32_u32 f32 b32
7 v_cvt_u32_f32 b32 f32
8 v_cvt_i32_f32 b32 f32
10 v_cvt_f16_f32 f16 f32
11 v_cvt_f32_f16 f32 f16
12 v_cvt_nearest_i32_f32 b32 f32
13 v_cvt_floor_i32_f32 b32 f32
14 v_cvt_off_f32_i4 f32 b32
15 v_cvt_f32_f64 f32 f64
16 v_cvt_f64_f32 f64 f32
17 v_cvt_f32_ubyte0 f32 b32
18 v_cvt_f32_ubyte1 f32 b32
19 v_cvt_f32_ubyte2 f32 b32
20 v_cvt_f32_ubyte3 f32 b32
21 v_cvt_u32_f64 b32 f64
22 v_cvt_f64_u32 f64 b32
23 v_trunc_f64 f64 f64
24 v_ceil_f64 f64 f64
25 v_rndne_f64 f64 f64
26 v_floor_f64 f64 f64
27 v_pipeflush -
28 v_mov_b16 b16 b16
32 v_fract_f32 f32 f32
33 v_trunc_f32 f32 f32
34 v_ceil_f32 f32 f32
35 v_rndne_f32 f32 f32
36 v_floor_f32 f32 f32
37 v_exp_f32 f32 f32
39 v_log_f32 f32 f32
42 v_rcp_f32 f32 f32
43 v_rcp_iflag_f32 f32 f32
46 v_rsq_f32 f32 f32
47 v_rcp_f64 f64 f64
49 v_rsq_f64 f64 f64
51 v_sqrt_f32 f32 f32
52 v_sqrt_f64 f64 f64
53 v_sin_f32 f32 f32
54 v_cos_f32 f32 f32
55 v_not_b32 b32 b32
56 v_bfrev_b32 b32 b32
57 v_clz_i32_u32 b32 b32
58 v_ctz_i32_b32 b32 b32
59 v_cls_i32 b32 b32
60 v_frexp_exp_i32_f64 b32 f64
61 v_frexp_mant_f64 f64 f64
62 v_fract_f64 f64 f64
63 v_frexp_exp_i32_f32 b32 f32
64 v_frexp_mant_f32 f32 f32
66 v_movreld_b32 b32 b32
67 v_movrels_b32 b32 b32
68 v_movrelsd_b32 b32 b32
72 v_movrelsd_2_b32 b32 b32
80 v_cvt_f16_u16 f16 b16
81 v_cvt_f16_i16 f16 b16
82 v_cvt_u16_f16 b16 f16
83 v_cvt_i16_f16 b16 f16
84 v_rcp_f16 f16 f16
85 v_sqrt_f16 f16 f16
86 v_rsq_f16 f16 f16
87 v_log_f16 f16 f16
88 v_exp_f16 f16 f16
89 v_frexp_mant_f16 f16 f16
90 v_frexp_exp_i16_f16 b16 f16
91 v_floor_f16 f16 f16
92 v_ceil_f16 f16 f16
93 v_trunc_f16 f16 f16
94 v_rndne_f16 f16 f16
95 v_fract_f16 f16 f16
96 v_sin_f16 f16 f16
97 v_cos_f16 f16 f16
98 v_sat_pk_u8_i16 b16 pk_b16
99 v_cvt_norm_i16_f16 b16 f16
100 v_cvt_norm_u16_f16 b16 f16
101 v_swap_b32 b32 b32
103 v_permlane64_b32 b32 b32
104 v_swaprel_b32 b32 b32
105 v_not_b16 b16 b16
106 v_cvt_i32_i16 b32 b16
107 v_cvt_u32_u16 b32 b16
"""

VOP2 = """
1 v_cndmask_b32 b32 b32 b32 mask
2 v_dot2acc_f32_f16 f32 pk_f16 pk_f16
3 v_add_f32 f32 f32 f32
4 v_sub_f32 f32 f32 f32
5 v_subrev_f32 f32 f32 f32
6 v_fmac_dx9_zero_f32 f32 f32 f32
7 v_mul_dx9_zero_f32 f32 f32 f32
8 v_mul_f32 f32 f32 f32
9 v_mul_i32_i24 b32 b32 b32
10 v_mul_hi_i32_i24 b32 b32 b32
11 v_mul_u32_u24 b32 b32 b32
12 v_mul_hi_u32_u24 b32 b32 b32
15 v_min_f32 f32 f32 f32
16 v_max_f32 f32 f32 f32
17 v_min_i32 b32 b32 b32
18 v_max_i32 b32 b32 b32
19 v_min_u32 b32 b32 b32
20 v_max_u32 b32 b32 b32
24 v_lshlrev_b32 b32 b32 b32
25 v_lshrrev_b32 b32 b32 b32
26 v_ashrrev_i32 b32 b32 b32
27 v_and_b32 b32 b32 b32
28 v_or_b32 b32 b32 b32
29 v_xor_b32 b32 b32 b32
30 v_xnor_b32 b32 b32 b32
32 v_add_co_ci_u32 b32 b32 b32 mask
33 v_sub_co_ci_u32 b32 b32 b32 mask
34 v_subrev_co_ci_u32 b32 b32 b32 mask
37 v_add_nc_u32 b32 b32 b32
38 v_sub_nc_u32 b32 b32 b32
39 v_subrev_nc_u32 b32 b32 b32
43 v_fmac_f32 f32 f32 f32
44 v_fmamk_f32 f32 f32 literal f32
45 v_fmaak_f32 f32 f32 f32 literal
47 v_cvt_pk_rtz_f16_f32 pk_f16 f32 f32
50 v_add_f16 f16 f16 f16
51 v_sub_f16 f16 f16 f16
52 v_subrev_f16 f16 f16 f16
53 v_mul_f16 f16 f16 f16
54 v_fmac_f16 f16 f16 f16
55 v_fmamk_f16 f16 f16 literal f16
56 v_fmaak_f16 f16 f16 f16 literal
57 v_max_f16 f16 f16 f16
58 v_min_f16 f16 f16 f16
59 v_ldexp_f16 f16 f16 b16
60 v_pk_fmac_f16 pk_f16 pk_f16 pk_f16
"""

VOP3 = """
521 v_fma_dx9_zero_f32 f32 f32 f32 f32
522 v_mad_i32_i24 b32 b32 b32 b32
523 v_mad_u32_u24 b32 b32 b32 b32
524 v_cubeid_f32 f32 f32 f32 f32
525 v_cubesc_f32 f32 f32 f32 f32
526 v_cubetc_f32 f32 f32 f32 f32
527 v_cubema_f32 f32 f32 f32 f32
528 v_bfe_u32 b32 b32 b32 b32
529 v_bfe_i32 b32 b32 b32 b32
530 v_bfi_b32 b32 b32 b32 b32
531 v_fma_f32 f32 f32 f32 f32
532 v_fma_f64 f64 f64 f64 f64
533 v_lerp_u8 b32 b32 b32 b32
534 v_alignbit_b32 b32 b32 b32 b16
535 v_alignbyte_b32 b32 b32 b32 b16
536 v_mullit_f32 f32 f32 f32 f32
537 v_min3_f32 f32 f32 f32 f32
538 v_min3_i32 b32 b32 b32 b32
539 v_min3_u32 b32 b32 b32 b32
540 v_max3_f32 f32 f32 f32 f32
541 v_max3_i32 b32 b32 b32 b32
542 v_max3_u32 b32 b32 b32 b32
543 v_med3_f32 f32 f32 f32 f32
544 v_med3_i32 b32 b32 b32 b32
545 v_med3_u32 b32 b32 b32 b32
546 v_sad_u8 b32 b32 b32 b32
547 v_sad_hi_u8 b32 b32 b32 b32
548 v_sad_u16 b32 b32 b32 b32
549 v_sad_u32 b32 b32 b32 b32
550 v_cvt_pk_u8_f32 b32 f32 b32 b32
551 v_div_fixup_f32 f32 f32 f32 f32
552 v_div_fixup_f64 f64 f64 f64 f64
567 v_div_fmas_f32 f32 f32 f32 f32
568 v_div_fmas_f64 f64 f64 f64 f64
569 v_msad_u8 b32 b32 b32 b32
570 v_qsad_pk_u16_u8 b64 b64 b32 b64
571 v_mqsad_pk_u16_u8 b64 b64 b32 b64
573 v_mqsad_u32_u8 b128 b64 b32 b128
576 v_xor3_b32 b32 b32 b32 b32
577 v_mad_u16 b16 b16 b16 b16
580 v_perm_b32 b32 b32 b32 b32
581 v_xad_u32 b32 b32 b32 b32
582 v_lshl_add_u32 b32 b32 b32 b32
583 v_add_lshl_u32 b32 b32 b32 b32
584 v_fma_f16 f16 f16 f16 f16
585 v_min3_f16 f16 f16 f16 f16
586 v_min3_i16 b16 b16 b16 b16
587 v_min3_u16 b16 b16 b16 b16
588 v_max3_f16 f16 f16 f16 f16
589 v_max3_i16 b16 b16 b16 b16
590 v_max3_u16 b16 b16 b16 b16
591 v_med3_f16 f16 f16 f16 f16
592 v_med3_i16 b16 b16 b16 b16
593 v_med3_u16 b16 b16 b16 b16
595 v_mad_i16 b16 b16 b16 b16
596 v_div_fixup_f16 f16 f16 f16 f16
597 v_add3_u32 b32 b32 b32 b32
598 v_lshl_or_b32 b32 b32 b32 b32
599 v_and_or_b32 b32 b32 b32 b32
600 v_or3_b32 b32 b32 b32 b32
601 v_mad_u32_u16 b32 b16 b16 b32
602 v_mad_i32_i16 b32 b16 b16 b32
603 v_permlane16_b32 b32 b32 b32 b32
604 v_permlanex16_b32 b32 b32 b32 b32
605 v_cndmask_b16 b16 b16 b16 mask
606 v_maxmin_f32 f32 f32 f32 f32
607 v_minmax_f32 f32 f32 f32 f32
608 v_maxmin_f16 f16 f16 f16 f16
609 v_minmax_f16 f16 f16 f16 f16
610 v_maxmin_u32 b32 b32 b32 b32
611 v_minmax_u32 b32 b32 b32 b32
612 v_maxmin_i32 b32 b32 b32 b32
613 v_minmax_i32 b32 b32 b32 b32
614 v_dot2_f16_f16 f16 pk_f16 pk_f16 f16
615 v_dot2_bf16_bf16 bf16 pk_bf16 pk_bf16 bf16
764 v_div_scale_f32 f32 f32 f32 f32
765 v_div_scale_f64 f64 f64 f64 f64
766 v_mad_u64_u32 b64 b32 b32 b64
767 v_mad_i64_i32 b64 b32 b32 b64
768 v_add_co_u32 b32 b32 b32
769 v_sub_co_u32 b32 b32 b32
770 v_subrev_co_u32 b32 b32 b32
771 v_add_nc_u16 b16 b16 b16
772 v_sub_nc_u16 b16 b16 b16
773 v_mul_lo_u16 b16 b16 b16
774 v_cvt_pk_i16_f32 pk_b16 f32 f32
775 v_cvt_pk_u16_f32 pk_b16 f32 f32
777 v_max_u16 b16 b16 b16
778 v_max_i16 b16 b16 b16
779 v_min_u16 b16 b16 b16
780 v_min_i16 b16 b16 b16
781 v_add_nc_i16 b16 b16 b16
782 v_sub_nc_i16 b16 b16 b16
785 v_pack_b32_f16 b32 f16 f16
786 v_cvt_pk_norm_i16_f16 pk_b16 f16 f16
787 v_cvt_pk_norm_u16_f16 pk_b16 f16 f16
796 v_ldexp_f32 f32 f32 b32
797 v_bfm_b32 b32 b32 b32
798 v_bcnt_u32_b32 b32 b32 b32
799 v_mbcnt_lo_u32_b32 b32 b32 b32
800 v_mbcnt_hi_u32_b32 b32 b32 b32
801 v_cvt_pk_norm_i16_f32 pk_b16 f32 f32
802 v_cvt_pk_norm_u16_f32 pk_b16 f32 f32
803 v_cvt_pk_u16_u32 pk_b16 b32 b32
804 v_cvt_pk_i16_i32 pk_b16 b32 b32
805 v_sub_nc_i32 b32 b32 b32
806 v_add_nc_i32 b32 b32 b32
807 v_add_f64 f64 f64 f64
808 v_mul_f64 f64 f64 f64
809 v_min_f64 f64 f64 f64
810 v_max_f64 f64 f64 f64
811 v_ldexp_f64 f64 f64 b32
812 v_mul_lo_u32 b32 b32 b32
813 v_mul_hi_u32 b32 b32 b32
814 v_mul_hi_i32 b32 b32 b32
815 v_trig_preop_f64 f64 f64 b32
824 v_lshlrev_b16 b16 b16 b16
825 v_lshrrev_b16 b16 b16 b16
826 v_ashrrev_i16 b16 b16 b16
828 v_lshlrev_b64 b64 b32 b64
829 v_lshrrev_b64 b64 b32 b64
830 v_ashrrev_i64 b64 b32 b64
864 v_readlane_b32 b32 b32 b32
865 v_writelane_b32 b32 b32 b32
866 v_and_b16 b16 b16 b16
867 v_or_b16 b16 b16 b16
868 v_xor_b16 b16 b16 b16
"""

VOP3P = """
0 v_pk_mad_i16 pk_b16 pk_b16 pk_b16 pk_b16
1 v_pk_mul_lo_u16 pk_b16 pk_b16 pk_b16
2 v_pk_add_i16 pk_b16 pk_b16 pk_b16
3 v_pk_sub_i16 pk_b16 pk_b16 pk_b16
4 v_pk_lshlrev_b16 pk_b16 pk_b16 pk_b16
5 v_pk_lshrrev_b16 pk_b16 pk_b16 pk_b16
6 v_pk_ashrrev_i16 pk_b16 pk_b16 pk_b16
7 v_pk_max_i16 pk_b16 pk_b16 pk_b16
8 v_pk_min_i16 pk_b16 pk_b16 pk_b16
9 v_pk_mad_u16 pk_b16 pk_b16 pk_b16 pk_b16
10 v_pk_add_u16 pk_b16 pk_b16 pk_b16
11 v_pk_sub_u16 pk_b16 pk_b16 pk_b16
12 v_pk_max_u16 pk_b16 pk_b16 pk_b16
13 v_pk_min_u16 pk_b16 pk_b16 pk_b16
14 v_pk_fma_f16 pk_f16 pk_f16 pk_f16 pk_f16
15 v_pk_add_f16 pk_f16 pk_f16 pk_f16
16 v_pk_mul_f16 pk_f16 pk_f16 pk_f16
17 v_pk_min_f16 pk_f16 pk_f16 pk_f16
18 v_pk_max_f16 pk_f16 pk_f16 pk_f16
19 v_dot2_f32_f16 f32 pk_f16 pk_f16 f32
22 v_dot4_i32_iu8 b32 b32 b32 b32
23 v_dot4_u32_u8 b32 b32 b32 b32
24 v_dot8_i32_iu4 b32 b32 b32 b32
25 v_dot8_u32_u4 b32 b32 b32 b32
26 v_dot2_f32_bf16 f32 pk_bf16 pk_bf16 f32
32 v_fma_mix_f32 f32 f32 f32 f32
33 v_fma_mixlo_f16 f16 f32 f32 f32
34 v_fma_mixhi_f16 f16 f32 f32 f32
64 v_wmma_f32_16x16x16_f16 b256 b256 b256 b256
65 v_wmma_f32_16x16x16_bf16 b256 b256 b256 b256
66 v_wmma_f16_16x16x16_f16 b256 b256 b256 b256
67 v_wmma_bf16_16x16x16_bf16 b256 b256 b256 b256
68 v_wmma_i32_16x16x16_iu8 b256 b128 b128 b256
69 v_wmma_i32_16x16x16_iu4 b256 b64 b64 b256
"""

# X halves use opcodes 0..12 only.
VOPD = """
0 v_dual_fmac_f32 f32 f32 f32
1 v_dual_fmaak_f32 f32 f32 f32 literal
2 v_dual_fmamk_f32 f32 f32 literal f32
3 v_dual_mul_f32 f32 f32 f32
4 v_dual_add_f32 f32 f32 f32
5 v_dual_sub_f32 f32 f32 f32
6 v_dual_subrev_f32 f32 f32 f32
7 v_dual_mul_dx9_zero_f32 f32 f32 f32
8 v_dual_mov_b32 b32 b32
9 v_dual_cndmask_b32 b32 b32 b32
10 v_dual_max_f32 f32 f32 f32
11 v_dual_min_f32 f32 f32 f32
12 v_dual_dot2acc_f32_f16 f32 pk_f16 pk_f16
16 v_dual_add_nc_u32 b32 b32 b32
17 v_dual_lshlrev_b32 b32 b32 b32
18 v_dual_and_b32 b32 b32 b32
"""

VINTERP = """
0 v_interp_p10_f32 f32 f32 f32 f32
1 v_interp_p2_f32 f32 f32 f32 f32
2 v_interp_p10_f16_f32 f32 f16 f32 f16
3 v_interp_p2_f16_f32 f16 f16 f32 f32
4 v_interp_p10_rtz_f16_f32 f32 f16 f32 f16
5 v_interp_p2_rtz_f16_f32 f16 f16 f32 f32
"""

# VOPC: base opcode, operand type, suffix, conditions in order from the base ("." for none).
# v_cmpx is the same plus 128.
VOPC = """
0 f16 f16 f lt eq le gt lg ge o u nge nlg ngt nle neq nlt t
16 f32 f32 f lt eq le gt lg ge o u nge nlg ngt nle neq nlt t
32 f64 f64 f lt eq le gt lg ge o u nge nlg ngt nle neq nlt t
48 b16 i16 . lt eq le gt ne ge
56 b16 u16 . lt eq le gt ne ge
64 b32 i32 f lt eq le gt ne ge t
72 b32 u32 f lt eq le gt ne ge t
80 b64 i64 f lt eq le gt ne ge t
88 b64 u64 f lt eq le gt ne ge t
125 f16 f16 class
126 f32 f32 class
127 f64 f64 class
"""
