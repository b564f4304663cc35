"""Every engine and every plan writes the batches of the definition, byte for byte."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_tables import FIXED, array, tables
from reference import reference_parts

from truebatch import (
    Deterministic,
    DynamicShuffle,
    FixedSizeSampling,
    Key,
    PersistentShuffle,
    TruncatedPoisson,
    schedule,
)
from truebatch.batching import Job, digest_of, in_place, part_name
from truebatch.batching.engine import Task
from truebatch.batching.gather import GatherEngine
from truebatch.batching.local import LocalEngine
from truebatch.data import TableSource

KEY = Key.for_tests(11)
ENGINES = {"local": LocalEngine(), "gather": GatherEngine()}


def expected_parts(job: Job, table: pa.Table) -> list[bytes]:
    shape = job.shape
    return reference_parts(
        table,
        schedule(job.spec, KEY),
        rows=shape.rows,
        steps_per_record=shape.steps_per_record,
        steps_per_part=shape.steps_per_part,
    )


def made_parts(engine, job: Job, table: pa.Table, directory, **means) -> list[bytes]:
    parts = means.pop("parts", range(job.shape.num_parts))
    task = Task(job=job, source=TableSource(table), key=KEY, directory=directory, parts=parts, **means)
    found = list(engine.run(task))
    assert sorted(f.part for f in found) == list(parts)
    data = [(directory / part_name(part)).read_bytes() for part in parts]
    for f in found:
        whole = (directory / part_name(f.part)).read_bytes()
        assert (f.num_bytes, f.digest) == (len(whole), digest_of(pa.py_buffer(whole)))
    return data


def criteo_like(n: int, seed: int = 0) -> pa.Table:
    rng = np.random.default_rng(seed)
    fields = [pa.field("label", pa.int8(), nullable=False)]
    for name, k in (("i", 13), ("c", 26)):
        kind = pa.list_(pa.field("item", pa.int32(), nullable=False), k)
        fields.append(pa.field(name, kind, nullable=False))
    schema = pa.schema(fields)
    columns = [pa.array(rng.integers(0, 2, n).astype(np.int8))]
    for field in fields[1:]:
        items = pa.array(rng.integers(0, 2**31, n * field.type.list_size).astype(np.int32))
        columns.append(pa.FixedSizeListArray.from_arrays(items, type=field.type))
    return pa.table(columns, schema=schema)


def specs(n: int):
    yield TruncatedPoisson(num_examples=n, batch_size=n // 20, num_steps=43, max_batch_size=n // 20 + 9)
    yield TruncatedPoisson(num_examples=n, batch_size=1, num_steps=60, max_batch_size=2)
    yield Deterministic(num_examples=n, batch_size=n // 20, num_steps=40)
    yield PersistentShuffle(num_examples=n, batch_size=n // 20, num_steps=40)
    yield DynamicShuffle(num_examples=n, batch_size=n // 20, num_steps=40)
    yield FixedSizeSampling(num_examples=n, batch_size=n // 20, num_steps=25)


N = 6000


@pytest.mark.parametrize("spec", list(specs(N)), ids=lambda s: s.name)
@pytest.mark.parametrize("engine", ENGINES)
def test_every_sampler_gives_the_batches_of_the_definition(engine, spec, tmp_path) -> None:
    table = criteo_like(N)
    job = Job(spec=spec, schema=table.schema, record_bytes=2**16, part_bytes=2**18)
    assert made_parts(ENGINES[engine], job, table, tmp_path, workers=2, memory=2**20) == expected_parts(
        job, table
    )


def test_rows_with_places_of_their_own_are_written_in_place_and_others_are_not() -> None:
    table, spec = criteo_like(N), next(specs(N))
    assert in_place.suits(Job(spec=spec, schema=table.schema), 2**20)
    named = table.append_column("name", pa.array(["x"] * N))
    assert not in_place.suits(Job(spec=spec, schema=named.schema), 2**20)
    maybe = pa.schema([pa.field("label", pa.int8())])
    assert not in_place.suits(Job(spec=spec, schema=maybe), 2**20)


@pytest.mark.parametrize("engine", ENGINES)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_any_rows_any_means_the_same_bytes(engine, tmp_path_factory, data) -> None:
    table = data.draw(tables(rows=st.integers(3, 60), least=1))
    n = len(table)
    b = data.draw(st.integers(1, n))
    spec = TruncatedPoisson(
        num_examples=n,
        batch_size=b,
        num_steps=data.draw(st.integers(1, 12)),
        max_batch_size=b + data.draw(st.integers(0, 5)),
    )
    sizes = st.integers(1, 3000)
    job = Job(spec=spec, schema=table.schema, record_bytes=data.draw(sizes), part_bytes=data.draw(sizes))
    means = {"memory": data.draw(st.integers(1, 10**6)), "workers": data.draw(st.integers(1, 4))}
    directory = tmp_path_factory.mktemp("batches")
    assert made_parts(ENGINES[engine], job, table, directory, **means) == expected_parts(job, table)


@pytest.mark.parametrize("engine", ENGINES)
def test_some_of_the_parts_alone_have_the_same_bytes(engine, tmp_path) -> None:
    table, spec = criteo_like(N), next(specs(N))
    job = Job(spec=spec, schema=table.schema, record_bytes=2**16, part_bytes=2**17)
    whole = expected_parts(job, table)
    assert len(whole) > 6
    assert made_parts(ENGINES[engine], job, table, tmp_path, parts=[1, 4, 5]) == [whole[p] for p in (1, 4, 5)]


@pytest.mark.parametrize("kind", FIXED, ids=str)
def test_every_plain_type_is_written_in_place_as_arrow_writes_it(kind, tmp_path) -> None:
    rng = np.random.default_rng(1)
    schema = pa.schema([pa.field("x", kind, nullable=False), pa.field("y", pa.int8(), nullable=False)])
    table = pa.table([array(kind, rng, 500, nulls=False), array(pa.int8(), rng, 500, nulls=False)], schema)
    # One batch a record batch, whose digest is made on the way, and several, whose file is read again.
    for place, record_bytes in (("one", 1), ("several", 9000)):
        spec = TruncatedPoisson(num_examples=500, batch_size=20, num_steps=9, max_batch_size=120)
        job = Job(spec=spec, schema=schema, record_bytes=record_bytes, part_bytes=2500)
        (tmp_path / place).mkdir()
        assert made_parts(LocalEngine(), job, table, tmp_path / place) == expected_parts(job, table)
