"""What the kernels call of Triton exists there: a machine without it would never notice."""

import re
from pathlib import Path

import derts

# a new name is added, checked in Triton's reference, with the kernel that needs it
TRITON = """
arange atomic_add bfloat16 constexpr cumsum debug_barrier dot float32 float64 full int32 int64 join
load max maximum min minimum num_programs permute program_id reshape sqrt_rn static_range store sum
trans uint8 where zeros
"""


def test_the_kernels_use_names_that_triton_has() -> None:
    texts = [file.read_text(encoding="utf-8") for file in Path(derts.__file__).parent.rglob("*.py")]
    used = {name for text in texts for name in re.findall(r"\btl\.(\w+)", text)}
    assert "program_id" in used
    assert used <= set(TRITON.split())
