"""The two pure functions: any cut of the rows, any order and repetition of blocks, one result."""

import itertools
import pickle

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_tables import FIXED, array, tables

from truebatch import DynamicShuffle, Key, Poisson, TruncatedPoisson, schedule
from truebatch.batching import Job, batch_rows, block_from_bytes, block_to_bytes, digest_of, part_bytes, split
from truebatch.batching.arrow_files import Skeleton, has_fixed_places
from truebatch.errors import DamagedBatches, IncompletePart, InvalidArgument, InvalidData, InvalidSpec

KEY = Key.for_tests(3)


def job_for(table: pa.Table, **spec) -> Job:
    defaults = {"num_examples": len(table), "batch_size": 3, "num_steps": 7, "max_batch_size": 5}
    return Job(
        spec=TruncatedPoisson(**(defaults | spec)), schema=table.schema, record_bytes=400, part_bytes=900
    )


def blocks_of(job: Job, table: pa.Table, cuts=()) -> dict[int, list[pa.RecordBatch]]:
    s, found = schedule(job.spec, KEY), {part: [] for part in range(job.shape.num_parts)}
    whole = table.combine_chunks().to_batches()[0]
    for low, high in itertools.pairwise(sorted({0, len(table), *cuts})):
        for part, block in split(job, s, whole.slice(low, high - low), low):
            found[part].append(block)
    return found


def parts_of(job: Job, blocks: dict[int, list[pa.RecordBatch]]) -> list[bytes]:
    s = schedule(job.spec, KEY)
    return [part_bytes(job, s, part, held).to_pybytes() for part, held in blocks.items()]


@settings(max_examples=60, deadline=None)
@given(tables(rows=st.integers(3, 60), least=1), st.data())
def test_cuts_order_and_repetition_of_blocks_change_no_byte(table, data) -> None:
    job = job_for(table)
    expected = parts_of(job, blocks_of(job, table))
    cuts = data.draw(st.lists(st.integers(0, len(table)), max_size=5))
    blocks = blocks_of(job, table, cuts)
    for held in blocks.values():
        again = data.draw(st.lists(st.sampled_from(held), max_size=3)) if held else []
        held[:] = data.draw(st.permutations(held + again))
    assert parts_of(job, blocks) == expected


def test_blocks_travel_as_bytes() -> None:
    table = pa.table({"x": list(range(40)), "s": [str(i) for i in range(40)]})
    job = job_for(table)
    blocks = blocks_of(job, table)
    shipped = pickle.loads(pickle.dumps(job))
    travelled = {
        part: [block_from_bytes(shipped, block_to_bytes(block)) for block in held]
        for part, held in blocks.items()
    }
    assert parts_of(shipped, travelled) == parts_of(job, blocks)


def test_a_job_that_was_shipped_lays_out_the_same_files() -> None:
    kind = pa.list_(pa.field("item", pa.int32(), nullable=False), 2)
    schema = pa.schema([pa.field("x", kind, nullable=False), pa.field("s", pa.string())])
    job = Job(spec=job_for(pa.table({"x": [1, 2, 3]})).spec, schema=schema, record_bytes=7, part_bytes=99)
    shipped = pickle.loads(pickle.dumps(job))
    assert (shipped.spec, shipped.record_bytes, shipped.part_bytes) == (job.spec, 7, 99)
    assert shipped.schema.field("x").type.value_field.nullable is False
    assert shipped.shape.schema.serialize() == job.shape.schema.serialize()


@pytest.mark.parametrize("loss", ["a block", "a row", "a foreign row"])
def test_a_part_that_is_not_whole_raises_and_says_no_number(loss) -> None:
    table = pa.table({"x": list(range(40))})
    job = job_for(table)
    blocks = blocks_of(job, table, cuts=(20,))
    held = blocks[0]
    if loss == "a block":
        held.pop()
    elif loss == "a row":
        held[-1] = held[-1].slice(1)
    else:
        limit = len(job.shape.part_steps(0)) * job.shape.rows
        held.append(held[0].slice(0, 1).set_column(0, held[0].schema.field(0), pa.array([limit])))
    with pytest.raises(IncompletePart) as caught:
        parts_of(job, blocks)
    assert "part 0" in str(caught.value)
    assert sum(ch.isdigit() for ch in str(caught.value)) == 1


def test_a_row_in_a_padding_slot_raises() -> None:
    table = pa.table({"x": list(range(40))})
    job = job_for(table, max_batch_size=20)
    blocks = blocks_of(job, table)
    spare = int(schedule(job.spec, KEY).sizes(0, 1)[0])
    first = blocks[0][0]
    blocks[0].append(first.slice(0, 1).set_column(0, first.schema.field(0), pa.array([spare])))
    with pytest.raises(IncompletePart):
        parts_of(job, blocks)


def test_batches_have_the_largest_size_or_are_refused() -> None:
    assert batch_rows(DynamicShuffle(num_examples=9, batch_size=3, num_steps=3)) == 3
    with pytest.raises(InvalidSpec, match="use TruncatedPoisson"):
        batch_rows(Poisson(num_examples=9, batch_size=3, num_steps=3))


def test_a_column_named_weight_is_refused() -> None:
    with pytest.raises(InvalidData, match="rename"):
        job_for(pa.table({"weight": [1, 2, 3]})).shape  # noqa: B018


def test_another_schedule_is_refused() -> None:
    table = pa.table({"x": list(range(40))})
    job, other = job_for(table), schedule(job_for(table, num_steps=8).spec, KEY)
    with pytest.raises(InvalidArgument, match="same spec"):
        part_bytes(job, other, 0, [])


def fixed_table(seed: int) -> pa.Table:
    """One column of every type with places of its own, alone and as a list, in rows without nulls."""
    rng = np.random.default_rng(seed)
    kinds = [kind for kind in FIXED if has_fixed_places(pa.schema([("x", kind)]))]
    kinds += [pa.list_(pa.field("item", kind, nullable=seed % 2 == 0), 3) for kind in kinds]
    arrays = [array(kind, rng, 50, nulls=False) for kind in kinds]
    return pa.table(arrays, names=[f"x{i}" for i in range(len(kinds))])


@pytest.mark.parametrize("seed", range(4))
def test_skeletons_with_values_written_into_them_are_the_files(seed) -> None:
    """Offsets computed beforehand against the file that pyarrow writes."""
    table = fixed_table(seed)
    job = Job(spec=job_for(table).spec, schema=table.schema, record_bytes=6000, part_bytes=13_000)
    assert job.shape.num_parts > 1 < job.shape.steps_per_record
    s, shape = schedule(job.spec, KEY), job.shape
    for part, expected in enumerate(parts_of(job, blocks_of(job, table))):
        steps = shape.part_steps(part)
        skeleton = Skeleton.of(shape, len(steps))
        made = bytearray(skeleton.size)
        for offset, data in skeleton.pieces:
            made[offset : offset + len(data)] = data
        for t in steps:
            batch = table.take(pa.array(s.members(t))).combine_chunks().to_batches()
            columns = [*batch[0].columns, pa.array(np.ones(batch[0].num_rows, "<f4"))] if batch else []
            for segment, column in zip(skeleton.segments(t - steps.start), columns, strict=bool(batch)):
                data = column.flatten() if pa.types.is_fixed_size_list(column.type) else column
                values = data.buffers()[1].to_pybytes()[: len(column) * segment.width]
                made[segment.offset : segment.offset + len(values)] = values
        assert bytes(made) == expected
        assert b"".join(skeleton.outside()) == outside(expected)


def outside(data: bytes) -> bytes:
    """A file without the buffers of its record batches, by pyarrow alone."""
    held = pa.py_buffer(data)
    reader = pa.ipc.open_file(pa.BufferReader(held))
    keep = np.ones(len(data), np.bool_)
    for i in range(reader.num_record_batches):
        for column in reader.get_batch(i).columns:
            for buffer in column.buffers():
                if buffer is not None:
                    start = buffer.address - held.address
                    keep[start : start + buffer.size] = False
    return np.frombuffer(data, np.uint8)[keep].tobytes()


@pytest.mark.parametrize(
    ("kind", "fixed"),
    [
        (pa.bool_(), False),
        (pa.string(), False),
        (pa.null(), False),
        (pa.list_(pa.int8()), False),
        (pa.struct([("a", pa.int8())]), False),
        (pa.list_(pa.list_(pa.int8(), 2), 2), False),
        (pa.month_day_nano_interval(), False),
        (pa.int8(), True),
        (pa.binary(7), True),
        (pa.list_(pa.decimal128(9, 2), 2), True),
    ],
)
def test_which_types_have_places_of_their_own(kind, fixed) -> None:
    assert has_fixed_places(pa.schema([("x", kind)])) is fixed


def test_digests_see_every_byte() -> None:
    table = pa.table({"x": list(range(40)), "s": ["ab"] * 40})
    data = parts_of(job_for(table), blocks_of(job_for(table), table))[0]
    digest = digest_of(pa.py_buffer(data))
    assert digest_of(pa.py_buffer(bytes(data))) == digest
    for place in np.random.default_rng(1).integers(0, len(data), 200):
        changed = bytearray(data)
        changed[place] ^= 1
        try:
            again = digest_of(pa.py_buffer(bytes(changed)))
        except DamagedBatches:
            continue
        assert again != digest
