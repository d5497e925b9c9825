"""Float32 matrix products in which every number is one fixed sum; compiled for this processor on first use.

A vendor's library chooses the order of a sum by the shape of the product and by the processor, so a row's
result depends on how many rows are computed with it. Here every number of C = A · B is

    c = block_0 + block_1 + …,    block_i = fma(a_n, b_n, … fma(a_1, b_1, fma(a_0, b_0, 0)))

over consecutive blocks of `BLOCK` places, whatever the number of rows and threads and the width of the
processor's vectors. It is the same alone and among others, and on every machine with a fused multiply-add.
Only which numbers are computed side by side varies.

llvmlite rather than C because its wheel brings the compiler along: nothing is built when Toolwright is
installed, and the code fits the processor it runs on.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import platform
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

DIGEST_BYTES = hashlib.sha256().digest_size


def compiled_once(made_from: str, compile: Callable[[], bytes]) -> bytes:
    """Return what `compile` returns, from an earlier process of this user if one compiled the same source."""
    try:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "toolwright"
        file = folder / f"{hashlib.sha256(made_from.encode()).hexdigest()}.o"
    except RuntimeError:  # the user has no home
        return compile()
    if (kept := _read(file)) is not None:
        return kept
    code = compile()
    with contextlib.suppress(OSError):  # a folder that cannot be written to costs time, nothing else
        folder.mkdir(parents=True, mode=0o700, exist_ok=True)
        partial = file.with_suffix(f".{os.getpid()}")
        partial.write_bytes(hashlib.sha256(code).digest() + code)
        os.replace(partial, file)
    return code


def _read(file: Path) -> bytes | None:
    """The code, if the file is whole and this user's own."""
    try:
        if file.stat().st_uid != os.getuid():
            return None
        content = file.read_bytes()
    except OSError:
        return None
    digest, code = content[:DIGEST_BYTES], content[DIGEST_BYTES:]
    return code if hashlib.sha256(code).digest() == digest else None


BLOCK = 256  # places of a sum; this much of a panel of B stays in the nearest cache
CHUNK = 128  # rows of A that meet all columns before the next rows do: they stay in the second cache

# What `run` is given: 64-bit integers in this order. Strides count floats.
FIELDS = (
    "a", "b", "c", "rows", "columns", "inner", "batch",
    "a_row", "b_place", "b_panel", "c_row", "a_batch", "b_batch", "c_batch", "add", "jobs",
)  # fmt: skip


class Vectors(NamedTuple):
    """The part of C that is computed in registers: `rows` × (`across` vectors of `width` floats)."""

    width: int
    across: int
    rows: int
    fused: bool  # whether the processor has a multiply-add that rounds once

    @property
    def columns(self) -> int:
        """Columns of a panel of B."""
        return self.width * self.across


def vectors_of(machine: str, features: dict[str, bool]) -> Vectors:
    """Choose as many sums as the registers hold beside the factors."""
    if machine in ("aarch64", "arm64"):
        return Vectors(width=4, across=4, rows=6, fused=True)
    if features.get("avx512f"):
        return Vectors(width=16, across=2, rows=8, fused=True)
    if features.get("avx2") and features.get("fma"):
        return Vectors(width=8, across=2, rows=6, fused=True)
    return Vectors(width=4, across=2, rows=4, fused=False)


class Kernel(NamedTuple):
    """The compiled code. `run` takes the address of the fields and the number of threads."""

    vectors: Vectors
    run: Callable[[Any, int], None]
    owner: tuple[Any, ...]  # keeps the code in memory


@cache
def kernel() -> Kernel | None:
    """The kernel for this processor; None where llvmlite is not installed or does not load."""
    try:
        import llvmlite.binding as llvm
    except (ImportError, OSError):
        return None
    features = dict(llvm.get_host_cpu_features())
    return compiled(vectors_of(platform.machine(), features), features)


def compiled(vectors: Vectors, features: dict[str, bool]) -> Kernel:
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    listed = ",".join(("+" if there else "-") + name for name, there in features.items())
    cpu = llvm.get_host_cpu_name()
    machine = llvm.Target.from_default_triple().create_target_machine(
        cpu=cpu, features=listed, opt=3, codemodel="jitdefault"
    )
    threads = _openmp()
    for name, address in threads.items():
        llvm.add_symbol(name, address)
    writer = Path(__file__).read_text(encoding="utf-8")
    made_from = f"{writer} {vectors} {bool(threads)} {machine.triple} {cpu} {listed} {llvm.llvm_version_info}"
    code = compiled_once(
        made_from, lambda: machine.emit_object(llvm.parse_assembly(assembly(vectors, bool(threads))))
    )
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
    engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    run = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)(engine.get_function_address("product"))
    return Kernel(vectors, run, (engine, machine))


def _openmp() -> dict[str, int]:
    """The functions that start torch's own threads; threads of another library would compete with them.

    Empty where torch brings none: products then take one thread, and are the same."""
    import torch

    home = Path(torch.__file__).parent
    for path in (*home.glob("lib/lib*omp*.so*"), *home.parent.glob("torch.libs/lib*omp*.so*")):
        library = ctypes.CDLL(str(path))
        names = ("GOMP_parallel", "omp_get_thread_num", "omp_get_num_threads")
        if all(hasattr(library, name) for name in names):
            return {name: ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0 for name in names}
    return {}


def assembly(vectors: Vectors, threaded: bool) -> str:
    """The kernel in LLVM's assembly language."""
    return str(_Writer(vectors).module(threaded))


class _Writer:
    """Writes the kernel's functions from the innermost out: a tile of C in registers, the jobs that a product
    is cut into, and the threads that share them."""

    def __init__(self, vectors: Vectors) -> None:
        from llvmlite import ir

        self.ir, self.v = ir, vectors
        self.out = ir.Module()
        self.int, self.bit, self.float, self.pointer = (
            ir.IntType(64),
            ir.IntType(1),
            ir.FloatType(),
            ir.PointerType(),
        )
        self.vector = ir.VectorType(self.float, vectors.width)
        self.mask = ir.VectorType(self.bit, vectors.width)

    def module(self, threaded: bool) -> Any:
        tiles = {
            (rows, masked): self.tile(rows, masked)
            for rows in range(1, self.v.rows + 1)
            for masked in (False, True)
        }
        self.product(self.jobs(tiles), threaded)
        return self.out

    def function(self, name: str, arguments: list[Any]) -> tuple[Any, Any]:
        made = self.ir.Function(self.out, self.ir.FunctionType(self.ir.VoidType(), arguments), name)
        made.linkage = "internal"
        return made, self.ir.IRBuilder(made.append_basic_block())

    def number(self, value: int) -> Any:
        return self.ir.Constant(self.int, value)

    def at(self, b: Any, pointer: Any, offset: Any) -> Any:
        return b.gep(pointer, [offset], source_etype=self.float)

    def least(self, b: Any, one: Any, other: Any) -> Any:
        return b.select(b.icmp_unsigned("<", one, other), one, other)

    @contextmanager
    def each(self, b: Any, start: Any, end: Any, step: int) -> Iterator[Any]:
        """A loop from start below end, which runs at least once."""
        before, body, after = b.block, b.append_basic_block(), b.append_basic_block()
        b.branch(body)
        b.position_at_end(body)
        index = b.phi(self.int)
        index.add_incoming(start, before)
        yield index
        following = b.add(index, self.number(step))
        index.add_incoming(following, b.block)
        b.cbranch(b.icmp_unsigned("<", following, end), body, after)
        b.position_at_end(after)

    def tile(self, rows: int, masked: bool) -> Any:
        """`rows` × one panel of C over at most `BLOCK` places of the sum, written or added to what is there.

        `masked`: only the first `columns` of the panel exist."""
        v, cells = self.v, [(row, part) for row in range(rows) for part in range(self.v.across)]
        kind = f"tile_{rows}_masked" if masked else f"tile_{rows}"
        made, b = self.function(kind, [self.pointer, self.int] * 3 + [self.int, self.int, self.bit])
        a, a_row, matrix, b_place, c, c_row, inner, columns, add = made.args
        masks = self.masks(b, columns) if masked else [None] * v.across
        a_rows = [self.at(b, a, b.mul(a_row, self.number(row))) for row in range(rows)]
        entry, body, done = b.block, b.append_basic_block(), b.append_basic_block()
        b.branch(body)
        b.position_at_end(body)
        place, here = b.phi(self.int), b.phi(self.pointer)
        sums = {cell: b.phi(self.vector) for cell in cells}
        factors = [
            self.load(b, self.at(b, here, self.number(i * v.width)), masks[i]) for i in range(v.across)
        ]
        fresh = {}
        for row in range(rows):
            number = b.load(self.at(b, a_rows[row], place), typ=self.float)
            wide = self.splat(b, number, self.vector)
            for part in range(v.across):
                if v.fused:
                    fresh[row, part] = b.call(self.fma(), [wide, factors[part], sums[row, part]])
                else:
                    fresh[row, part] = b.fadd(sums[row, part], b.fmul(wide, factors[part]))
        following, below = b.add(place, self.number(1)), self.at(b, here, b_place)
        for phi, first, later in (
            (place, self.number(0), following),
            (here, matrix, below),
            *((sums[cell], self.ir.Constant(self.vector, None), fresh[cell]) for cell in cells),
        ):
            phi.add_incoming(first, entry)
            phi.add_incoming(later, body)
        b.cbranch(b.icmp_unsigned("<", following, inner), body, done)
        b.position_at_end(done)
        with b.if_else(add) as (added, written):
            for branch, adds in ((added, True), (written, False)):
                with branch:
                    for row, part in cells:
                        offset = b.add(b.mul(c_row, self.number(row)), self.number(part * v.width))
                        target, total = self.at(b, c, offset), fresh[row, part]
                        if adds:
                            total = b.fadd(self.load(b, target, masks[part]), total)
                        self.store(b, total, target, masks[part])
        b.ret_void()
        return made

    def masks(self, b: Any, columns: Any) -> list[Any]:
        """A mask for each vector of the panel: which of its columns exist."""
        numbers = self.ir.VectorType(self.int, self.v.width)
        wide, lanes = self.splat(b, columns, numbers), range(self.v.width)
        return [
            b.icmp_unsigned(
                "<", self.ir.Constant(numbers, [part * self.v.width + lane for lane in lanes]), wide
            )
            for part in range(self.v.across)
        ]

    def splat(self, b: Any, value: Any, kind: Any) -> Any:
        nothing = self.ir.Constant(kind, self.ir.Undefined)
        single = b.insert_element(nothing, value, self.ir.Constant(self.ir.IntType(32), 0))
        zeros = self.ir.Constant(self.ir.VectorType(self.ir.IntType(32), self.v.width), None)
        return b.shuffle_vector(single, nothing, zeros)

    def load(self, b: Any, pointer: Any, mask: Any) -> Any:
        if mask is None:
            return b.load(pointer, align=4, typ=self.vector)
        kind = self.ir.FunctionType(self.vector, [self.pointer, self.ir.IntType(32), self.mask, self.vector])
        call = self.intrinsic(f"llvm.masked.load.v{self.v.width}f32.p0", kind)
        aligned = self.ir.Constant(self.ir.IntType(32), 4)
        return b.call(call, [pointer, aligned, mask, self.ir.Constant(self.vector, None)])

    def store(self, b: Any, value: Any, pointer: Any, mask: Any) -> None:
        if mask is None:
            b.store(value, pointer, align=4)
            return
        kind = self.ir.FunctionType(
            self.ir.VoidType(), [self.vector, self.pointer, self.ir.IntType(32), self.mask]
        )
        call = self.intrinsic(f"llvm.masked.store.v{self.v.width}f32.p0", kind)
        b.call(call, [value, pointer, self.ir.Constant(self.ir.IntType(32), 4), mask])

    def fma(self) -> Any:
        kind = self.ir.FunctionType(self.vector, [self.vector] * 3)
        return self.intrinsic(f"llvm.fma.v{self.v.width}f32", kind)

    def intrinsic(self, name: str, kind: Any) -> Any:
        known = self.out.globals.get(name)
        return known if known is not None else self.ir.Function(self.out, kind, name)

    def fields(self, b: Any, pointer: Any) -> dict[str, Any]:
        return {
            name: b.load(
                b.gep(pointer, [self.number(place)], source_etype=self.int),
                typ=self.pointer if name in ("a", "b", "c") else self.int,
            )
            for place, name in enumerate(FIELDS)
        }

    def jobs(self, tiles: dict[tuple[int, bool], Any]) -> Any:
        """Jobs from `first` below `last`. A job is one panel of columns by `CHUNK` rows of one matrix of the
        batch; panels come first, then chunks, then matrices."""
        made, b = self.function("jobs", [self.pointer, self.int, self.int])
        pointer, first, last = made.args
        f, wide = self.fields(b, pointer), self.number(self.v.columns)
        panels = b.udiv(b.add(f["columns"], self.number(self.v.columns - 1)), wide)
        chunks = b.udiv(b.add(f["rows"], self.number(CHUNK - 1)), self.number(CHUNK))
        with b.if_then(b.icmp_unsigned("<", first, last)), self.each(b, first, last, 1) as job:
            panel, rest = b.urem(job, panels), b.udiv(job, panels)
            chunk, matrix = b.urem(rest, chunks), b.udiv(rest, chunks)
            row_start = b.mul(chunk, self.number(CHUNK))
            row_end = self.least(b, b.add(row_start, self.number(CHUNK)), f["rows"])
            column = b.mul(panel, wide)
            columns = self.least(b, b.sub(f["columns"], column), wide)
            a = self.at(b, f["a"], b.mul(matrix, f["a_batch"]))
            here = self.at(b, f["b"], b.add(b.mul(matrix, f["b_batch"]), b.mul(panel, f["b_panel"])))
            c = self.at(b, f["c"], b.add(b.mul(matrix, f["c_batch"]), column))
            with self.each(b, self.number(0), f["inner"], BLOCK) as place:
                inner = self.least(b, b.sub(f["inner"], place), self.number(BLOCK))
                add = b.or_(
                    b.icmp_unsigned("!=", place, self.number(0)),
                    b.icmp_unsigned("!=", f["add"], self.number(0)),
                )
                block = self.at(b, here, b.mul(place, f["b_place"]))
                with self.each(b, row_start, row_end, self.v.rows) as row:
                    count = self.least(b, b.sub(row_end, row), self.number(self.v.rows))
                    numbers = (
                        self.at(b, a, b.add(b.mul(row, f["a_row"]), place)), f["a_row"], block, f["b_place"],
                        self.at(b, c, b.mul(row, f["c_row"])), f["c_row"], inner, columns, add,
                    )  # fmt: skip
                    self.choose(b, tiles, count, b.icmp_unsigned("<", columns, wide), numbers)
        b.ret_void()
        return made

    def choose(self, b: Any, tiles: dict[tuple[int, bool], Any], count: Any, masked: Any, args: Any) -> None:
        """Call the tile for so many rows."""
        after = b.append_basic_block()
        kind = b.select(masked, self.number(self.v.rows), self.number(0))
        switch = b.switch(b.add(count, kind), after)
        for (rows, is_masked), tile in tiles.items():
            block = b.append_basic_block()
            switch.add_case(self.number(rows + self.v.rows * is_masked), block)
            b.position_at_end(block)
            b.call(tile, args)
            b.branch(after)
        b.position_at_end(after)

    def product(self, jobs: Any, threaded: bool) -> None:
        """Run all jobs, by one thread or several. This is what callers use."""
        made, b = self.function("product", [self.pointer, self.int])
        made.linkage = ""
        pointer, threads = made.args
        if threaded:
            with b.if_then(b.icmp_unsigned(">", threads, self.number(1))):
                small = self.ir.IntType(32)
                kind = self.ir.FunctionType(self.ir.VoidType(), [self.pointer, self.pointer, small, small])
                start = self.ir.Function(self.out, kind, "GOMP_parallel")
                b.call(
                    start, [self.share(jobs), pointer, b.trunc(threads, small), self.ir.Constant(small, 0)]
                )
                b.ret_void()
        b.call(jobs, [pointer, self.number(0), self.fields(b, pointer)["jobs"]])
        b.ret_void()

    def share(self, jobs: Any) -> Any:
        """Do one thread's part of the jobs."""
        made, b = self.function("share", [self.pointer])
        kind = self.ir.FunctionType(self.ir.IntType(32), [])
        mine, all_of_them = (
            b.zext(b.call(self.ir.Function(self.out, kind, name), []), self.int)
            for name in ("omp_get_thread_num", "omp_get_num_threads")
        )
        count = self.fields(b, made.args[0])["jobs"]
        bounds = [b.udiv(b.mul(count, number), all_of_them) for number in (mine, b.add(mine, self.number(1)))]
        b.call(jobs, [made.args[0], *bounds])
        b.ret_void()
        return made
