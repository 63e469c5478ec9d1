"""The opcodes of the memory encodings of gfx1100: facts, one line each.

Sizes are in 32-bit registers, "-" for none.
Source of the numbers and names: RDNA3 ISA document, opcode tables; LLVM's gfx1100 disassembler.
"""

from __future__ import annotations

# opcode, name, registers loaded, registers of the base
SMEM = """
0 s_load_b32 1 2
1 s_load_b64 2 2
2 s_load_b128 4 2
3 s_load_b256 8 2
4 s_load_b512 16 2
8 s_buffer_load_b32 1 4
9 s_buffer_load_b64 2 4
10 s_buffer_load_b128 4 4
11 s_buffer_load_b256 8 4
12 s_buffer_load_b512 16 4
32 s_gl1_inv - -
33 s_dcache_inv - -
"""

# opcode, name, a if there is an address, destination, first data, second data
DS = """
0 ds_add_u32 a - 1 -
1 ds_sub_u32 a - 1 -
2 ds_rsub_u32 a - 1 -
3 ds_inc_u32 a - 1 -
4 ds_dec_u32 a - 1 -
5 ds_min_i32 a - 1 -
6 ds_max_i32 a - 1 -
7 ds_min_u32 a - 1 -
8 ds_max_u32 a - 1 -
9 ds_and_b32 a - 1 -
10 ds_or_b32 a - 1 -
11 ds_xor_b32 a - 1 -
12 ds_mskor_b32 a - 1 1
13 ds_store_b32 a - 1 -
14 ds_store_2addr_b32 a - 1 1
15 ds_store_2addr_stride64_b32 a - 1 1
16 ds_cmpstore_b32 a - 1 1
17 ds_cmpstore_f32 a - 1 1
18 ds_min_f32 a - 1 -
19 ds_max_f32 a - 1 -
20 ds_nop - - - -
21 ds_add_f32 a - 1 -
30 ds_store_b8 a - 1 -
31 ds_store_b16 a - 1 -
32 ds_add_rtn_u32 a 1 1 -
33 ds_sub_rtn_u32 a 1 1 -
34 ds_rsub_rtn_u32 a 1 1 -
35 ds_inc_rtn_u32 a 1 1 -
36 ds_dec_rtn_u32 a 1 1 -
37 ds_min_rtn_i32 a 1 1 -
38 ds_max_rtn_i32 a 1 1 -
39 ds_min_rtn_u32 a 1 1 -
40 ds_max_rtn_u32 a 1 1 -
41 ds_and_rtn_b32 a 1 1 -
42 ds_or_rtn_b32 a 1 1 -
43 ds_xor_rtn_b32 a 1 1 -
44 ds_mskor_rtn_b32 a 1 1 1
45 ds_storexchg_rtn_b32 a 1 1 -
46 ds_storexchg_2addr_rtn_b32 a 2 1 1
47 ds_storexchg_2addr_stride64_rtn_b32 a 2 1 1
48 ds_cmpstore_rtn_b32 a 1 1 1
49 ds_cmpstore_rtn_f32 a 1 1 1
50 ds_min_rtn_f32 a 1 1 -
51 ds_max_rtn_f32 a 1 1 -
52 ds_wrap_rtn_b32 a 1 1 1
53 ds_swizzle_b32 a 1 - -
54 ds_load_b32 a 1 - -
55 ds_load_2addr_b32 a 2 - -
56 ds_load_2addr_stride64_b32 a 2 - -
57 ds_load_i8 a 1 - -
58 ds_load_u8 a 1 - -
59 ds_load_i16 a 1 - -
60 ds_load_u16 a 1 - -
61 ds_consume - 1 - -
62 ds_append - 1 - -
64 ds_add_u64 a - 2 -
65 ds_sub_u64 a - 2 -
66 ds_rsub_u64 a - 2 -
67 ds_inc_u64 a - 2 -
68 ds_dec_u64 a - 2 -
69 ds_min_i64 a - 2 -
70 ds_max_i64 a - 2 -
71 ds_min_u64 a - 2 -
72 ds_max_u64 a - 2 -
73 ds_and_b64 a - 2 -
74 ds_or_b64 a - 2 -
75 ds_xor_b64 a - 2 -
76 ds_mskor_b64 a - 2 2
77 ds_store_b64 a - 2 -
78 ds_store_2addr_b64 a - 2 2
79 ds_store_2addr_stride64_b64 a - 2 2
80 ds_cmpstore_b64 a - 2 2
81 ds_cmpstore_f64 a - 2 2
82 ds_min_f64 a - 2 -
83 ds_max_f64 a - 2 -
96 ds_add_rtn_u64 a 2 2 -
97 ds_sub_rtn_u64 a 2 2 -
98 ds_rsub_rtn_u64 a 2 2 -
99 ds_inc_rtn_u64 a 2 2 -
100 ds_dec_rtn_u64 a 2 2 -
101 ds_min_rtn_i64 a 2 2 -
102 ds_max_rtn_i64 a 2 2 -
103 ds_min_rtn_u64 a 2 2 -
104 ds_max_rtn_u64 a 2 2 -
105 ds_and_rtn_b64 a 2 2 -
106 ds_or_rtn_b64 a 2 2 -
107 ds_xor_rtn_b64 a 2 2 -
108 ds_mskor_rtn_b64 a 2 2 2
109 ds_storexchg_rtn_b64 a 2 2 -
110 ds_storexchg_2addr_rtn_b64 a 4 2 2
111 ds_storexchg_2addr_stride64_rtn_b64 a 4 2 2
112 ds_cmpstore_rtn_b64 a 2 2 2
113 ds_cmpstore_rtn_f64 a 2 2 2
114 ds_min_rtn_f64 a 2 2 -
115 ds_max_rtn_f64 a 2 2 -
118 ds_load_b64 a 2 - -
119 ds_load_2addr_b64 a 4 - -
120 ds_load_2addr_stride64_b64 a 4 - -
121 ds_add_rtn_f32 a 1 1 -
126 ds_condxchg32_rtn_b64 a 2 2 -
160 ds_store_b8_d16_hi a - 1 -
161 ds_store_b16_d16_hi a - 1 -
162 ds_load_u8_d16 a 1 - -
163 ds_load_u8_d16_hi a 1 - -
164 ds_load_i8_d16 a 1 - -
165 ds_load_i8_d16_hi a 1 - -
166 ds_load_u16_d16 a 1 - -
167 ds_load_u16_d16_hi a 1 - -
173 ds_bvh_stack_rtn_b32 a 1 1 4
176 ds_store_addtid_b32 - - 1 -
177 ds_load_addtid_b32 - 1 - -
178 ds_permute_b32 a 1 1 -
179 ds_bpermute_b32 a 1 1 -
222 ds_store_b96 a - 3 -
223 ds_store_b128 a - 4 -
254 ds_load_b96 a 3 - -
255 ds_load_b128 a 4 - -
"""

# opcode, name without its segment, segments (f flat, g global, s scratch), destination, data.
# Atomics return their destination only if GLC is set.
FLAT = """
16 load_u8 fgs 1 -
17 load_i8 fgs 1 -
18 load_u16 fgs 1 -
19 load_i16 fgs 1 -
20 load_b32 fgs 1 -
21 load_b64 fgs 2 -
22 load_b96 fgs 3 -
23 load_b128 fgs 4 -
24 store_b8 fgs - 1
25 store_b16 fgs - 1
26 store_b32 fgs - 1
27 store_b64 fgs - 2
28 store_b96 fgs - 3
29 store_b128 fgs - 4
30 load_d16_u8 fgs 1 -
31 load_d16_i8 fgs 1 -
32 load_d16_b16 fgs 1 -
33 load_d16_hi_u8 fgs 1 -
34 load_d16_hi_i8 fgs 1 -
35 load_d16_hi_b16 fgs 1 -
36 store_d16_hi_b8 fgs - 1
37 store_d16_hi_b16 fgs - 1
40 load_addtid_b32 g 1 -
41 store_addtid_b32 g - 1
51 atomic_swap_b32 fg 1 1
52 atomic_cmpswap_b32 fg 1 2
53 atomic_add_u32 fg 1 1
54 atomic_sub_u32 fg 1 1
55 atomic_csub_u32 g 1 1
56 atomic_min_i32 fg 1 1
57 atomic_min_u32 fg 1 1
58 atomic_max_i32 fg 1 1
59 atomic_max_u32 fg 1 1
60 atomic_and_b32 fg 1 1
61 atomic_or_b32 fg 1 1
62 atomic_xor_b32 fg 1 1
63 atomic_inc_u32 fg 1 1
64 atomic_dec_u32 fg 1 1
65 atomic_swap_b64 fg 2 2
66 atomic_cmpswap_b64 fg 2 4
67 atomic_add_u64 fg 2 2
68 atomic_sub_u64 fg 2 2
69 atomic_min_i64 fg 2 2
70 atomic_min_u64 fg 2 2
71 atomic_max_i64 fg 2 2
72 atomic_max_u64 fg 2 2
73 atomic_and_b64 fg 2 2
74 atomic_or_b64 fg 2 2
75 atomic_xor_b64 fg 2 2
76 atomic_inc_u64 fg 2 2
77 atomic_dec_u64 fg 2 2
80 atomic_cmpswap_f32 fg 1 2
81 atomic_min_f32 fg 1 1
82 atomic_max_f32 fg 1 1
86 atomic_add_f32 fg 1 1
"""

# opcode, name, data (loaded or stored)
MUBUF = """
0 buffer_load_format_x 1
1 buffer_load_format_xy 2
2 buffer_load_format_xyz 3
3 buffer_load_format_xyzw 4
4 buffer_store_format_x 1
5 buffer_store_format_xy 2
6 buffer_store_format_xyz 3
7 buffer_store_format_xyzw 4
8 buffer_load_d16_format_x 1
9 buffer_load_d16_format_xy 1
10 buffer_load_d16_format_xyz 2
11 buffer_load_d16_format_xyzw 2
12 buffer_store_d16_format_x 1
13 buffer_store_d16_format_xy 1
14 buffer_store_d16_format_xyz 2
15 buffer_store_d16_format_xyzw 2
16 buffer_load_u8 1
17 buffer_load_i8 1
18 buffer_load_u16 1
19 buffer_load_i16 1
20 buffer_load_b32 1
21 buffer_load_b64 2
22 buffer_load_b96 3
23 buffer_load_b128 4
24 buffer_store_b8 1
25 buffer_store_b16 1
26 buffer_store_b32 1
27 buffer_store_b64 2
28 buffer_store_b96 3
29 buffer_store_b128 4
30 buffer_load_d16_u8 1
31 buffer_load_d16_i8 1
32 buffer_load_d16_b16 1
33 buffer_load_d16_hi_u8 1
34 buffer_load_d16_hi_i8 1
35 buffer_load_d16_hi_b16 1
36 buffer_store_d16_hi_b8 1
37 buffer_store_d16_hi_b16 1
38 buffer_load_d16_hi_format_x 1
39 buffer_store_d16_hi_format_x 1
43 buffer_gl0_inv -
44 buffer_gl1_inv -
45 buffer_load_lds_u8 -
46 buffer_load_lds_i8 -
47 buffer_load_lds_u16 -
48 buffer_load_lds_i16 -
49 buffer_load_lds_b32 -
50 buffer_load_lds_format_x -
51 buffer_atomic_swap_b32 1
52 buffer_atomic_cmpswap_b32 2
53 buffer_atomic_add_u32 1
54 buffer_atomic_sub_u32 1
55 buffer_atomic_csub_u32 1
56 buffer_atomic_min_i32 1
57 buffer_atomic_min_u32 1
58 buffer_atomic_max_i32 1
59 buffer_atomic_max_u32 1
60 buffer_atomic_and_b32 1
61 buffer_atomic_or_b32 1
62 buffer_atomic_xor_b32 1
63 buffer_atomic_inc_u32 1
64 buffer_atomic_dec_u32 1
65 buffer_atomic_swap_b64 2
66 buffer_atomic_cmpswap_b64 4
67 buffer_atomic_add_u64 2
68 buffer_atomic_sub_u64 2
69 buffer_atomic_min_i64 2
70 buffer_atomic_min_u64 2
71 buffer_atomic_max_i64 2
72 buffer_atomic_max_u64 2
73 buffer_atomic_and_b64 2
74 buffer_atomic_or_b64 2
75 buffer_atomic_xor_b64 2
76 buffer_atomic_inc_u64 2
77 buffer_atomic_dec_u64 2
80 buffer_atomic_cmpswap_f32 2
81 buffer_atomic_min_f32 1
82 buffer_atomic_max_f32 1
86 buffer_atomic_add_f32 1
"""

MTBUF = """
0 tbuffer_load_format_x 1
1 tbuffer_load_format_xy 2
2 tbuffer_load_format_xyz 3
3 tbuffer_load_format_xyzw 4
4 tbuffer_store_format_x 1
5 tbuffer_store_format_xy 2
6 tbuffer_store_format_xyz 3
7 tbuffer_store_format_xyzw 4
8 tbuffer_load_d16_format_x 1
9 tbuffer_load_d16_format_xy 1
10 tbuffer_load_d16_format_xyz 2
11 tbuffer_load_d16_format_xyzw 2
12 tbuffer_store_d16_format_x 1
13 tbuffer_store_d16_format_xy 1
14 tbuffer_store_d16_format_xyz 2
15 tbuffer_store_d16_format_xyzw 2
"""
