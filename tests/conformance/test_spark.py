"""Spark writes the batches of the definition, byte for byte: two workers, one of them killed, any frame."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import beam_job
import numpy as np
import pyarrow as pa
import pyspark
import pytest
from beam_job import KEY
from failing import FailsOnce, kill_executor
from pyspark.errors import PythonException
from pyspark.sql import DataFrame, SparkSession
from reference import part_paths
from test_engines import N, criteo_like, expected_parts, made_parts, specs

from truebatch import Key, TruncatedPoisson, schedule
from truebatch.batching import Job
from truebatch.batching.engine import Task
from truebatch.batching.spark import SparkEngine, batches_of
from truebatch.data import TableSource
from truebatch.errors import InvalidArgument, InvalidData

SPARK_CLASS = Path(pyspark.__file__).parent / "bin" / "spark-class"
SUPPORT = str(Path(beam_job.__file__).parent)
# For processes that live for seconds: compile once, collect with one thread.
JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
LOOPBACK = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.extraJavaOptions": JAVA,
    "spark.executor.extraJavaOptions": JAVA,
    "spark.executor.memory": "512m",
    "spark.shuffle.io.maxRetries": "1",
    "spark.shuffle.io.retryWait": "100ms",
    "spark.task.maxFailures": "2",
    "spark.ui.enabled": "false",
}

pytestmark = pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning")


@dataclass(frozen=True)
class Cluster:
    url: str
    home: Path

    def lost_executors(self) -> int:
        return sum(log.read_text().count("exitStatus 137") for log in self.home.glob("worker*.log"))


@contextlib.contextmanager
def started(name: str, log: Path, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """One of Spark's daemons, and what it started, until the end."""
    environment = os.environ | {
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": SUPPORT,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_JAVA_OPTS": JAVA,
        "SPARK_DAEMON_MEMORY": "256m",
        "OMP_NUM_THREADS": "1",
    }
    command = [
        str(SPARK_CLASS),
        f"org.apache.spark.deploy.{name}",
        "--host",
        "127.0.0.1",
        "--webui-port",
        "0",
    ]
    with log.open("wb") as output:
        daemon = subprocess.Popen(
            [*command, *arguments], env=environment, stdout=output, stderr=output, start_new_session=True
        )
        try:
            yield daemon
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(daemon.pid, signal.SIGTERM)
            try:
                daemon.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(daemon.pid, signal.SIGKILL)
                daemon.wait()


def wait_for(log: Path, words: str) -> None:
    deadline = time.monotonic() + 60
    while words not in log.read_text():
        assert time.monotonic() < deadline, log.read_text()[-2000:]
        time.sleep(0.1)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory) -> Iterator[Cluster]:
    """A standalone master with two workers of one core each, on loopback."""
    home = tmp_path_factory.mktemp("spark")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    url = f"spark://127.0.0.1:{port}"
    with contextlib.ExitStack() as stack:
        stack.enter_context(started("master.Master", home / "master.log", "--port", str(port)))
        wait_for(home / "master.log", "I have been elected leader")
        for i in range(2):
            means = ["--cores", "1", "--memory", "600m", "--work-dir", str(home / f"work{i}")]
            stack.enter_context(started("worker.Worker", home / f"worker{i}.log", *means, url))
        for i in range(2):
            wait_for(home / f"worker{i}.log", "Successfully registered with master")
        yield Cluster(url, home)


@pytest.fixture(scope="module")
def session(cluster) -> Iterator[SparkSession]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        patch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
        builder = SparkSession.builder.master(cluster.url).appName("tests")
        for name, value in LOOPBACK.items():
            builder = builder.config(name, value)
        found = builder.getOrCreate()
        found.sparkContext.setLogLevel("ERROR")
        yield found
        found.stop()


def test_a_session_of_ones_own_is_started_and_ended(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    table = beam_job.named()
    job = beam_job.job_of(table)
    made = made_parts(SparkEngine("local[2]", LOOPBACK), job, table, tmp_path, memory=1, parts=[0, 2])
    whole = expected_parts(job, table)
    assert made == [whole[0], whole[2]]
    assert SparkSession.getActiveSession() is None


def test_two_workers_give_the_batches_of_the_definition(session, cluster, tmp_path) -> None:
    table = criteo_like(N)
    job = Job(spec=next(specs(N)), schema=table.schema, record_bytes=2**16, part_bytes=2**18)
    assert made_parts(
        SparkEngine(cluster.url), job, table, tmp_path, workers=2, memory=2**20
    ) == expected_parts(job, table)
    hosts = session.sparkContext._jsc.sc().statusTracker().getExecutorInfos()
    assert len(hosts) == 3  # the driver, and an executor of each worker
    assert SparkSession.getActiveSession() is not None  # one that ran already is left running


def task_of(table: pa.Table, job: Job, directory: Path, source=None) -> Task:
    parts = range(job.shape.num_parts)
    return Task(
        job=job, source=source or TableSource(table), key=KEY, directory=directory, parts=parts, memory=1
    )


def test_an_executor_that_is_killed_while_it_reads_changes_no_byte(session, cluster, tmp_path) -> None:
    table = beam_job.named()
    job = beam_job.job_of(table)
    lost = cluster.lost_executors()
    task = task_of(table, job, tmp_path, FailsOnce(table, tmp_path / "failed", 1024, kill_executor))
    assert sorted(found.part for found in SparkEngine(cluster.url).run(task)) == list(task.parts)
    assert [path.read_bytes() for path in part_paths(tmp_path)] == expected_parts(job, table)
    assert cluster.lost_executors() > lost


def kill_an_executor(cluster: Cluster) -> None:
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            command = (process / "cmdline").read_bytes().decode(errors="replace")
            if "CoarseGrainedExecutorBackend" in command and str(cluster.home) in os.readlink(
                process / "cwd"
            ):
                os.kill(int(process.name), signal.SIGKILL)
                return
    raise AssertionError("no executor runs")


def test_an_executor_that_is_killed_while_it_writes_changes_no_byte(session, cluster, tmp_path) -> None:
    """With it goes what the other stage made for those who have not fetched it: that is made again."""
    table = beam_job.named()
    spec = TruncatedPoisson(num_examples=len(table), batch_size=50, num_steps=60, max_batch_size=60)
    job = Job(spec=spec, schema=table.schema, record_bytes=1, part_bytes=1)
    task = task_of(table, job, tmp_path)
    lost, seen = cluster.lost_executors(), []

    def kill_after_the_first_part() -> None:
        while not part_paths(tmp_path):
            time.sleep(0.005)
        kill_an_executor(cluster)
        seen.append(len(part_paths(tmp_path)))

    killer = threading.Thread(target=kill_after_the_first_part)
    killer.start()
    assert sorted(found.part for found in SparkEngine(cluster.url).run(task)) == list(task.parts)
    killer.join()
    assert 0 < seen[0] < job.shape.num_parts
    assert [path.read_bytes() for path in part_paths(tmp_path)] == expected_parts(job, table)
    assert cluster.lost_executors() > lost


def test_another_master_than_that_of_the_session_is_refused(session, tmp_path) -> None:
    table = beam_job.named()
    task = task_of(table, beam_job.job_of(table), tmp_path)
    with pytest.raises(InvalidArgument, match="one Spark session at a time"):
        list(SparkEngine("local[3]").run(task))
    assert session.sparkContext.master.startswith("spark://")


def numbered(session: SparkSession, table: pa.Table, ids) -> DataFrame:
    return session.createDataFrame(table.append_column("row", pa.array(ids, pa.int64())))


@pytest.mark.parametrize("order", ["in order", "runs in any order", "sorted again"])
def test_a_frame_becomes_a_frame_of_batches(session, order) -> None:
    table = beam_job.named(600)
    spec = beam_job.job_of(table).spec
    ids = np.arange(600)
    if order == "runs in any order":
        ids = np.random.default_rng(0).permutation(ids.reshape(20, 30)).reshape(-1)
    frame = numbered(session, table.take(pa.array(ids)), ids)
    if order == "sorted again":
        frame = frame.repartition(3, "x").repartitionByRange(2, "row").sortWithinPartitions("row")
    made = batches_of(frame, spec, KEY, part_bytes=2**14)
    assert made.columns == ["step", "slot", "x", "name", "weight"]
    found = made.toArrow().sort_by([("step", "ascending"), ("slot", "ascending")])
    T, B, drawn = spec.num_steps, spec.max_batch_size, schedule(spec, KEY)
    assert found["step"].to_pylist() == [t for t in range(T) for _ in range(B)]
    assert found["slot"].to_pylist() == list(range(B)) * T
    for t in range(T):
        batch, members = found.slice(t * B, B), drawn.members(t)
        assert batch["weight"].to_pylist() == [1.0] * len(members) + [0.0] * (B - len(members))
        real = batch.slice(0, len(members)).select(["x", "name"])
        assert real.to_pylist() == table.take(pa.array(members)).to_pylist()
        assert set(batch.slice(len(members))["x"].to_pylist()) <= {0.0}
        assert set(batch.slice(len(members))["name"].to_pylist()) <= {""}


def test_scattered_row_numbers_are_refused_with_a_way_out(session) -> None:
    table = beam_job.named(600)
    scattered = numbered(session, table, range(600)).repartition(3, "x")
    with pytest.raises(PythonException, match="sortWithinPartitions"):
        batches_of(scattered, beam_job.job_of(table).spec, KEY).collect()


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        ("a row is missing", "IncompletePart"),
        ("a row comes twice", "IncompletePart"),
        ("a row has no number", "got a null"),
        ("a row is beyond the end", "rows must satisfy"),
    ],
)
def test_wrong_row_numbers_make_the_job_fail(session, fault, error) -> None:
    table = beam_job.named(600)
    ids = np.arange(600).tolist()
    if fault == "a row is missing":
        table, ids = table.slice(1), ids[1:]
    elif fault == "a row comes twice":
        table, ids = pa.concat_tables([table, table.slice(7, 1)]), [*ids, 7]
    else:
        ids[300] = None if fault == "a row has no number" else 600
    spec = TruncatedPoisson(num_examples=600, batch_size=300, num_steps=12, max_batch_size=600)
    frame = numbered(session, table, ids)
    with pytest.raises(PythonException, match=error):
        batches_of(frame, spec, KEY).collect()


def test_a_frame_without_row_numbers_or_with_a_column_of_ours_is_refused(session) -> None:
    table = beam_job.named(40)
    spec = beam_job.job_of(table).spec
    frame = session.createDataFrame(table)
    with pytest.raises(InvalidData, match="row numbers in column 'row'"):
        batches_of(frame, spec, KEY)
    with pytest.raises(InvalidData, match="none named step or slot"):
        batches_of(frame.withColumnRenamed("name", "slot"), spec, KEY, row_id="x")


def test_the_key_is_in_no_plan(session, capfd) -> None:
    key, table = Key.from_bytes(bytes(range(100, 132))), beam_job.named(40)
    frame = numbered(session, table, range(40))
    batches_of(frame, beam_job.job_of(table).spec, key).explain(extended=True)
    said = capfd.readouterr().out
    assert "MapInArrow" in said
    assert not any(spelling in said for spelling in beam_job.spellings(key))


def test_without_spark_the_message_says_how_to_get_it() -> None:
    code = (
        "import sys; sys.modules['pyspark.sql'] = None\n"
        "from truebatch.errors import MissingExtra\n"
        "try:\n    import truebatch.batching.spark\n"
        "except MissingExtra as error:\n    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install 'truebatch[spark]'" in done.stdout
