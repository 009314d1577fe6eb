"""A hint to the processor to load a row of a table before it is needed."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

AHEAD = 24
"""Rows between a hint and the use of the row: more than the misses that a processor serves at a time."""


@intrinsic
def prefetch(typing_context: Any, array: Any, position: Any) -> Any:
    """Load the cache line with element `position` of a contiguous array. It reads nothing, so any position is allowed."""
    signature = types.void(array, types.int64)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        pointer, word = ir.IntType(8).as_pointer(), ir.IntType(32)
        hint = builder.module.declare_intrinsic(
            "llvm.prefetch", [pointer], ir.FunctionType(ir.VoidType(), [pointer, word, word, word])
        )
        at = builder.bitcast(builder.gep(data, [arguments[1]]), pointer)
        builder.call(hint, [at, ir.Constant(word, 0), ir.Constant(word, 3), ir.Constant(word, 1)])  # read, keep, data
        return context.get_dummy_value()

    return signature, generate
