"""Small files of tensors in each format, and the tensors that they hold."""

from __future__ import annotations

import base64
import io
import json
import struct
import tarfile
import zlib

import numpy as np

# {"w": torch.arange(6.).reshape(2, 3), "n": [1, (2, "x")]}, written by PyTorch 2.13 in its format,
# and in the one before PyTorch 1.6
_CHECKPOINT = (
    "c-p0uPmhy87{&+aLPhPL_0V+>doWQkYPYnMQjK;)He5JZ*O)Y$7{b!AOJvIqOuK4g(!|)ro9n@&@mu%-`~b$Ii8l"
    "|%i+%+MSXrQMUDpZ21eoW2f4n>|U7g7Rkk5meQ38v=^sH@r3|IRmHmkdj98E2N&D5CC&kzuL6cOwp%EB&DRE-g~9"
    "iKNmxHYn!zJcM;cRgcV=MgOkJ&tVl$xd?s5fe#x&2de9FS^O2To|y17J3X>t=$n~brvJ;t`2lsXQn8xGdeXzr(Rl"
    "?>p0NDwmbCsJ6<1pu)l6wm`D7T4Rji#GaKk^7;T6O4^UCiDV+|lAEVL~mEow`)w%rV3qLM>AUA{AJ+dSfpu{DqK6"
    "Jeu6B}db`6RifN}0+WZ-_zm_dmZp50I$2*_T1<F#AFM4AZd(!yP!pn%X!CfGh<7ojvrOCMoE-0A<jL0k)oC=mzE1"
    ")SD-I@q^*m7&|avcya6Nd6r~h=Q0$)?UXB5YnpoFKLDbrlMXqpk%P<$neWyDqROjp`%C1((p;h<xEd41X1IJ@qy`"
    "^k`t){i|L^r*0rf)zgfH(y&n6CdY6ku{?7pT}|FITgvsG8bcDpHxN>h@hMy)Q_8nW1~OH!k)C`zj-)mkk%pu7mzw"
    "*|r>gp^bO8*?Tbs5C>K{f}hT$p)yTl;<dLRLf<9Bu%`W3bLOJGSfNPI7uUxQ*jn)FxvoGdD1n7l>7}1GTzN<lRhY"
    ">v;qUNF3XCOpJyc{ew`5i**IODWv~6V8FM{Wa+&ob6|G7xT8S=v#IezJ^aopDBMleskM{loT8Lt8"
)
_LEGACY = (
    "c-n1GJx>Bb5WO!zS3xZ8EYF4@DuhZ3L$mP<n{CMD+}psK%`LOHhaU;aRYd&_7MA`se}ajHa}W~?Cp(kOo3}IX72Y"
    "dR-*3aO{kxB=y;k9!fBIM#;DoH{IL^#ytGQOuT$oJi6kH^*I!=_dR*6WYiHuY5o*6;VKF&mx$tRJ4zkncQ6$G=XH"
    "Wn(>V?K5=wNRx23(6fjoj{ESdH#FTMf4tAZnfdlR+L+*G7=ean@g2MR-~CW(Y!;z3qw{bmm@Qt2=Lcm$WZCn-mF0"
    "a0c#+qf86c$+9#d%QRlGRhRR9@pXI2ddSRh<O&#h{e+e7Zr|uFqUpQJ;f?IT)kxP>ZBa$=8Edg>cf-MW%BdD*$rq"
    "CF}PDov}SN0FkT*9s>4UNJ1@4Oqgs?OgiPO%K|VHTM0gC7sZY(4"
)
W = np.arange(6, dtype=np.float32).reshape(2, 3)


def _packed(text: str) -> bytes:
    return zlib.decompress(base64.b85decode(text))


def safetensors() -> bytes:
    """Tensors w, and h of float16, after each other."""
    header = json.dumps(
        {
            "__metadata__": {"made": "by hand"},
            "w": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
            "h": {"dtype": "F16", "shape": [2], "data_offsets": [24, 28]},
        }
    ).encode()
    data = W.tobytes() + np.array([1.5, -2], "<f2").tobytes()
    return len(header).to_bytes(8, "little") + header + data


def _text(text: str) -> bytes:
    return len(text).to_bytes(8, "little") + text.encode()


def gguf() -> bytes:
    """Tensors w, and q: 32 elements of Q8_0, -16 to 15 times 0.5; keys of several types."""
    keys = [
        _text("general.architecture") + struct.pack("<I", 8) + _text("none"),
        _text("words") + struct.pack("<IIQ", 9, 8, 2) + _text("a") + _text("b"),
        _text("numbers") + struct.pack("<IIQ3i", 9, 5, 3, 1, 2, 3),
        _text("real") + struct.pack("<If", 6, 0.5),
    ]
    block = np.float16(0.5).tobytes() + np.arange(-16, 16, dtype=np.int8).tobytes()
    described = _text("w") + struct.pack("<IQQIQ", 2, 3, 2, 0, 0)
    described += _text("q") + struct.pack("<IQIQ", 1, 32, 8, 32)
    head = b"GGUF" + struct.pack("<IQQ", 3, 2, len(keys)) + b"".join(keys) + described
    return head + bytes(-len(head) % 32) + W.tobytes() + bytes(8) + block


def npy() -> bytes:
    """The array w."""
    file = io.BytesIO()
    np.save(file, W)
    return file.getvalue()


def npz() -> bytes:
    """The arrays w and n, compressed."""
    file = io.BytesIO()
    np.savez_compressed(file, w=W, n=np.arange(3))
    return file.getvalue()


def tar() -> bytes:
    """The array w in w.npy, and a text."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        for name, data in (("w.npy", npy()), ("text", b"hello")):
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return file.getvalue()


def checkpoint() -> bytes:
    """{"w": w, "n": [1, (2, "x")]} as PyTorch writes it."""
    return _packed(_CHECKPOINT)


def legacy() -> bytes:
    """The same as PyTorch wrote it before version 1.6."""
    return _packed(_LEGACY)


ALL = {
    "safetensors": safetensors, "gguf": gguf, "npy": npy, "npz": npz, "tar": tar,
    "checkpoint": checkpoint, "legacy": legacy,
}  # fmt: skip
