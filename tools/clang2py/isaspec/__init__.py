"""Tables of an instruction set from Mesa's isaspec files.

    python -m ugpu.tools.clang2py.isaspec <mesa>/src/freedreno/isa/ir3.xml
    tools/clang2py/isaspec/ir3_25_2.xml \\
        --revision 25.0.7 --out qcom/regs/ir3.txt

The second file contains what Mesa 25.2 decodes differently.
"""
