"""Beam writes the batches of the definition, byte for byte, and its transforms keep their promises."""

import base64
import bz2
import dataclasses
import itertools
import logging
import pickle
import subprocess
import sys
import threading

import apache_beam as beam
import numpy as np
import pyarrow as pa
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.portability.api import beam_runner_api_pb2
from apache_beam.transforms.display import DisplayData
from beam_job import KEY, job_of, named, spellings
from failing import FailsOnce
from hypothesis import given, settings
from hypothesis import strategies as st
from random_tables import tables
from test_engines import N, criteo_like, expected_parts, made_parts, specs

from truebatch import Deterministic, Key, TruncatedPoisson, schedule
from truebatch.batching import Job, engine, part_name, shipped
from truebatch.batching.beam import BeamEngine, MakeBatches
from truebatch.batching.engine import Task
from truebatch.data import TableSource
from truebatch.errors import EngineFailed, IncompletePart, InvalidArgument, InvalidData, OutputRefused

PROCESSES = ("--direct_running_mode=multi_processing", "--direct_num_workers=2")
THREADS = ("--direct_running_mode=multi_threading", "--direct_num_workers=3")


@pytest.mark.parametrize("spec", list(specs(N)), ids=lambda s: s.name)
def test_every_sampler_gives_the_batches_of_the_definition(spec, tmp_path) -> None:
    table = criteo_like(N)
    job = Job(spec=spec, schema=table.schema, record_bytes=2**16, part_bytes=2**18)
    assert made_parts(BeamEngine(), job, table, tmp_path, workers=2, memory=2**20) == expected_parts(
        job, table
    )


@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_any_rows_any_means_the_same_bytes(tmp_path_factory, data) -> None:
    table = data.draw(tables(rows=st.integers(3, 60), least=1))
    n, sizes = len(table), st.integers(1, 3000)
    b = data.draw(st.integers(1, n))
    spec = TruncatedPoisson(
        num_examples=n,
        batch_size=b,
        num_steps=data.draw(st.integers(1, 12)),
        max_batch_size=b + data.draw(st.integers(0, 5)),
    )
    job = Job(spec=spec, schema=table.schema, record_bytes=data.draw(sizes), part_bytes=data.draw(sizes))
    directory = tmp_path_factory.mktemp("batches")
    assert made_parts(BeamEngine(), job, table, directory) == expected_parts(job, table)


@pytest.mark.parametrize(
    ("how", "memory"),
    [(THREADS, 1), (THREADS, 2**30), (PROCESSES, 1)],
    ids=["threads, many pieces", "threads, one piece", "processes"],
)
def test_workers_and_pieces_change_no_byte(how, memory, tmp_path) -> None:
    table = named()
    job = job_of(table)
    assert job.shape.num_parts > 3
    made = made_parts(BeamEngine(how), job, table, tmp_path, memory=memory, workers=2)
    assert made == expected_parts(job, table)


def test_some_of_the_parts_alone_and_none_at_all(tmp_path) -> None:
    table = named()
    job = job_of(table)
    whole = expected_parts(job, table)
    assert made_parts(BeamEngine(), job, table, tmp_path, parts=[1, 3]) == [whole[1], whole[3]]
    assert made_parts(BeamEngine(), job, table, tmp_path, parts=[]) == []
    assert not (tmp_path / part_name(0)).exists()


def test_a_part_that_no_row_joins_is_written(tmp_path) -> None:
    table = named(40)
    spec = TruncatedPoisson(num_examples=40, batch_size=1, num_steps=200, max_batch_size=1)
    job = Job(spec=spec, schema=table.schema, record_bytes=1, part_bytes=1)
    assert job.shape.num_parts == 200
    assert (schedule(spec, KEY).sizes() == 0).sum() > 50
    assert made_parts(BeamEngine(), job, table, tmp_path) == expected_parts(job, table)


def test_large_blocks_travel_in_slices(tmp_path, monkeypatch) -> None:
    table = named()
    job = job_of(table)
    drawn, piece = shipped.Drawn.of(job, KEY), pieces_of(table)[0][1]
    whole = [block for _, block in shipped.blocks_of(drawn, piece, 0)]
    monkeypatch.setattr(shipped, "_BLOCK_BYTES", 1000)
    slices = [block for _, block in shipped.blocks_of(drawn, piece, 0)]
    assert len(slices) > 3 * len(whole)
    assert max(map(len, slices)) < 3000 < max(map(len, whole))
    assert made_parts(BeamEngine(), job, table, tmp_path) == expected_parts(job, table)


def test_notes_of_an_earlier_run_are_not_believed(tmp_path) -> None:
    table = named()
    job = job_of(table)
    (tmp_path / engine.WORK / "written").mkdir(parents=True)
    for part in range(job.shape.num_parts):
        note = tmp_path / engine.WORK / "written" / f"{part}.json"
        note.write_text(f'{{"part": {part}, "num_bytes": 1, "digest": "of another run"}}')
    task = Task(
        job=job,
        source=TableSource(table),
        key=KEY,
        directory=tmp_path,
        parts=range(job.shape.num_parts),
    )
    shipped.place_for(task)
    assert not list((tmp_path / engine.WORK / "written").iterdir())
    assert made_parts(BeamEngine(), job, table, tmp_path) == expected_parts(job, table)


RETRIES = ("--runner=BundleBasedDirectRunner",)


def test_a_read_that_fails_is_done_again_with_the_same_coins(tmp_path) -> None:
    table = named()
    job = job_of(table)
    source = FailsOnce(table, tmp_path / "failed", 1024)
    task = Task(
        job=job, source=source, key=KEY, directory=tmp_path, parts=range(job.shape.num_parts), memory=1
    )
    assert len(list(BeamEngine(RETRIES).run(task))) == job.shape.num_parts
    assert (tmp_path / "failed").exists()
    made = [(tmp_path / part_name(part)).read_bytes() for part in task.parts]
    assert made == expected_parts(job, table)


def test_a_part_that_breaks_off_is_written_again_and_leaves_nothing_behind(tmp_path, monkeypatch) -> None:
    table = named()
    job = job_of(table)
    broken = []

    def breaks_once(sink, schema, records) -> None:
        if not broken:
            broken.append(sink.write(b"half a file"))
            raise OSError("the worker is gone")
        write_part(sink, schema, records)

    write_part = engine.write_part
    monkeypatch.setattr(engine, "write_part", breaks_once)
    assert made_parts(BeamEngine(RETRIES), job, table, tmp_path) == expected_parts(job, table)
    assert broken
    assert [path.name for path in (tmp_path / engine.WORK).iterdir()] == ["written"]


class CarriesAGenerator(beam.DoFn):
    """What a coin must not be: drawn from a generator that travels with the transform."""

    def __init__(self, num_steps: int) -> None:
        self._rng, self._num_steps = np.random.default_rng(0), num_steps

    def process(self, row: int):
        yield row, tuple(np.flatnonzero(self._rng.random(self._num_steps) < 0.2).tolist())


COLLECTED: list[tuple[int, object]] = []


def collect(pair: tuple[int, object]) -> None:
    COLLECTED.append(pair)


def collected() -> dict[int, object]:
    found = dict(COLLECTED)
    assert len(found) == len(COLLECTED)
    COLLECTED.clear()
    return found


def test_a_generator_inside_a_transform_repeats_its_coins_and_a_schedule_does_not() -> None:
    """At q = 0.2 and T = 60 two of 400 rows have the same list with a probability below 1e-6."""
    n, T = 400, 60
    with beam.Pipeline("FnApiRunner", options=PipelineOptions(list(THREADS))) as pipeline:
        rows = pipeline | beam.Create(range(n)) | beam.Reshuffle()
        _ = rows | beam.ParDo(CarriesAGenerator(T)) | beam.Map(collect)
    theirs = collected()
    assert len(theirs) == n
    assert len(set(theirs.values())) < n
    spec = TruncatedPoisson(num_examples=n, batch_size=n // 5, num_steps=T, max_batch_size=n)
    placed = schedule(spec, KEY).placements(0, n)
    assert len({tuple(placed.step[placed.row == row].tolist()) for row in range(n)}) == n


def pieces_of(table: pa.Table, *cuts: int) -> list[tuple[int, pa.RecordBatch]]:
    whole = table.combine_chunks().to_batches()[0]
    edges = [0, *cuts, len(table)]
    return [(low, whole.slice(low, high - low)) for low, high in itertools.pairwise(edges)]


def batches_by_transform(job: Job, pieces) -> dict[int, pa.RecordBatch]:
    with beam.Pipeline("FnApiRunner") as pipeline:
        _ = pipeline | beam.Create(pieces) | MakeBatches(job=job, key=KEY) | beam.Map(collect)
    return collected()


def test_a_pipeline_of_ones_own_gets_every_batch_once() -> None:
    table = named()
    job = job_of(table)
    found = batches_by_transform(job, pieces_of(table, 1, 1700, 2048))
    assert sorted(found) == list(range(job.spec.num_steps))
    drawn = schedule(job.spec, KEY)
    for step, record in found.items():
        members = drawn.members(step)
        assert record.num_rows == job.spec.max_batch_size
        assert record["weight"].to_pylist() == [1.0] * len(members) + [0.0] * (record.num_rows - len(members))
        real = pa.table(record.drop_columns("weight").slice(0, len(members)))
        assert real.equals(table.take(pa.array(members)))


def test_batches_travel_without_the_rows_they_were_cut_from() -> None:
    table = named()
    job = dataclasses.replace(job_of(table), record_bytes=2**20, part_bytes=2**20)
    assert job.shape.steps_per_record > 20
    found = batches_by_transform(job, pieces_of(table))
    largest = max(len(pickle.dumps(record)) for record in found.values())
    assert largest < 2 * job.shape.batch_bytes


def test_a_part_none_of_whose_rows_came_is_not_lost_in_silence() -> None:
    """Batch 0 is the first piece and batch 1 the second, so that what comes is whole."""
    table = named(40)
    spec = Deterministic(num_examples=40, batch_size=20, num_steps=2)
    job = Job(spec=spec, schema=table.schema, record_bytes=1, part_bytes=1)
    pieces = pieces_of(table, 20)
    assert sorted(batches_by_transform(job, pieces)) == [0, 1]
    for one in pieces:
        with pytest.raises(IncompletePart):
            batches_by_transform(job, [one])
        COLLECTED.clear()


@pytest.mark.parametrize("fault", ["rows that never came", "rows that came twice", "rows beyond the end"])
def test_wrong_row_numbers_make_a_pipeline_fail(fault) -> None:
    table = named()
    pieces = pieces_of(table, 1000, 1100)
    if fault == "rows that never came":
        del pieces[1]
    elif fault == "rows that came twice":
        pieces.append(pieces[1])
    else:
        pieces.append((len(table), pieces[1][1]))
    with pytest.raises((IncompletePart, InvalidArgument)):
        batches_by_transform(job_of(table), pieces)
    COLLECTED.clear()


def test_rows_of_another_schema_are_refused() -> None:
    table = named()
    other = table.rename_columns(["y", "name"])
    with pytest.raises(InvalidData, match="rows must have the columns"):
        batches_by_transform(job_of(table), pieces_of(other))
    COLLECTED.clear()


def pickled_in(transform) -> bytes:
    """What a pipeline holds of the function of a step."""
    if transform.spec.urn != "beam:transform:pardo:v1":
        return b""
    found: bytes = beam_runner_api_pb2.ParDoPayload.FromString(transform.spec.payload).do_fn.payload
    return found


def pickled(payload: bytes) -> bytes:
    return bz2.decompress(base64.b64decode(payload)) if payload else b""


def test_the_key_is_in_no_log_label_option_or_display_data(tmp_path, caplog, capfd) -> None:
    table, key = named(), Key.from_bytes(bytes(range(100, 132)))
    parts = range(job_of(table).shape.num_parts)
    task = Task(job=job_of(table), source=TableSource(table), key=key, directory=tmp_path, parts=parts)
    with caplog.at_level(logging.DEBUG):
        assert len(list(BeamEngine(THREADS).run(task))) == len(parts)
        place = shipped.place_for(task)
        pipeline = BeamEngine(THREADS).pipeline(task, place)
    seen: list[str] = [caplog.text, *capfd.readouterr(), repr(shipped.Drawn.of(task.job, key))]
    seen.append(str(pipeline.options.get_all_options()))

    class Visitor(beam.pipeline.PipelineVisitor):
        def visit_transform(self, node) -> None:
            seen.extend([node.full_label, repr(node.transform)])
            if node.transform is not None:
                seen.append(str(DisplayData.create_from(node.transform).items))

        enter_composite_transform = visit_transform

    pipeline.visit(Visitor())
    transforms = pipeline.to_runner_api().components.transforms.values()
    seen.append(" ".join(transform.unique_name for transform in transforms))
    assert "By part" in seen[-1]
    # Beam compresses what it pickles: the key's bytes would not be seen in a log of that, but that would.
    shipped_as = [payload for payload in map(pickled_in, transforms) if b"key_bytes" in pickled(payload)]
    assert len(shipped_as) == 2
    for text in seen:
        assert not any(spelling in text for spelling in spellings(key))
        assert not any(payload[-200:-140].decode() in text for payload in shipped_as)


def test_spellings_of_a_key_are_found_where_one_is_printed() -> None:
    key = Key.from_bytes(bytes(range(100, 132)))
    drawn = shipped.Drawn.of(job_of(named()), key)
    assert any(spelling in str(vars(drawn)) for spelling in spellings(key))


def test_counters_count_rows_read_and_bytes_written_and_no_batch_sizes(tmp_path) -> None:
    table = named()
    job = job_of(table)
    parts = range(job.shape.num_parts)
    task = Task(job=job, source=TableSource(table), key=KEY, directory=tmp_path, parts=parts)
    result = BeamEngine().pipeline(task, shipped.place_for(task)).run()
    result.wait_until_finish()
    counted = {c.key.metric.name: c.committed for c in result.metrics().query()["counters"]}
    size = sum((tmp_path / part_name(part)).stat().st_size for part in parts)
    assert counted == {"rows_read": len(table), "bytes_written": size}


DATAFLOW = (
    "--runner=DataflowRunner",
    "--project=some-project",
    "--region=europe-west1",
    "--temp_location=gs://some-bucket/temp",
    "--staging_location=gs://some-bucket/staging",
)


def test_a_pipeline_for_dataflow_is_built(tmp_path) -> None:
    table = named()
    task = Task(job=job_of(table), source=TableSource(table), key=KEY, directory=tmp_path, parts=[0, 1])
    built = BeamEngine(DATAFLOW).pipeline(task, shipped.place_for(task)).to_runner_api()
    names = {transform.unique_name for transform in built.components.transforms.values()}
    assert {"Rows/Read", "Split", "By part", "Write"} <= names


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (DATAFLOW[:1], "Missing required option: project"),
        (DATAFLOW[:3], "Missing GCS path option: temp_location"),
        (["--runner=Nonsense"], "Unexpected pipeline runner: Nonsense"),
        (["--direct_num_wrokers=2"], "direct_num_wrokers"),
        (["--direct_num_workers=two"], "invalid int value: 'two'"),
    ],
)
def test_options_that_a_runner_does_not_take_are_refused(options, why, tmp_path) -> None:
    table = named()
    task = Task(job=job_of(table), source=TableSource(table), key=KEY, directory=tmp_path, parts=[0])
    with pytest.raises(InvalidArgument) as caught:
        list(BeamEngine(options).run(task))
    assert why in str(caught.value)
    assert "Hint: spell them as Beam does" in str(caught.value)


def test_parts_that_workers_put_elsewhere_are_missed(tmp_path) -> None:
    table = named()
    task = Task(job=job_of(table), source=TableSource(table), key=KEY, directory=tmp_path, parts=[0])
    place = shipped.place_for(task)
    with pytest.raises(OutputRefused, match="file system that all machines share"):
        list(shipped.arrivals(task, place, lambda: None, lambda: None))


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (
            "Job 7 failed: Traceback\n  File x\ntruebatch.errors.SourceChanged: rows are gone\nHint: y",
            "rows are gone",
        ),
        ("\nJob 7 was lost.\n  at some.Class", "it failed: Job 7 was lost."),
        ("", "did not say why"),
    ],
)
def test_a_cluster_that_gives_up_is_quoted_in_one_line(said, reason, tmp_path) -> None:
    table = named()
    task = Task(job=job_of(table), source=TableSource(table), key=KEY, directory=tmp_path, parts=[0])

    def finish() -> None:
        raise RuntimeError(said)

    with pytest.raises(EngineFailed) as caught:
        list(shipped.arrivals(task, shipped.place_for(task), finish, lambda: None))
    assert reason in caught.value.message
    assert "\n" not in caught.value.message
    assert str(caught.value.__cause__) == said


def test_whoever_stops_listening_cancels_the_work(tmp_path) -> None:
    table = named()
    task = Task(job=job_of(table), source=TableSource(table), key=KEY, directory=tmp_path, parts=[0, 1])
    place, over = shipped.place_for(task), threading.Event()
    (place.written / "0.json").write_text('{"part": 0, "num_bytes": 1, "digest": "x"}')
    parts = shipped.arrivals(task, place, over.wait, over.set)
    assert next(parts).part == 0
    parts.close()
    assert over.is_set()


def test_without_beam_the_message_says_how_to_get_it() -> None:
    code = (
        "import sys; sys.modules['apache_beam'] = None\n"
        "from truebatch.errors import MissingExtra\n"
        "try:\n    import truebatch.batching.beam\n"
        "except MissingExtra as error:\n    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install 'truebatch[beam]'" in done.stdout
