"""Beam on Flink and on Spark, by their job servers: the same bytes, also when a worker fails on the way."""

import subprocess
import sys
from pathlib import Path

import beam_job
import pytest
from reference import part_paths
from test_engines import expected_parts

ROOT = Path(__file__).parents[2]
# Clusters of two slots in one process, which Beam starts and stops, and workers in the one that asks.
CLUSTERS = {
    "flink": ["--runner=FlinkRunner", "--flink_version=1.19", "--flink_master=[local]", "--parallelism=2"],
    "spark": ["--runner=SparkRunner", "--spark_master_url=local[2]"],
}
RETRIES = """restart-strategy: fixed-delay
restart-strategy.fixed-delay.attempts: 3
restart-strategy.fixed-delay.delay: 100 ms
"""
NO_ROW = -1


def run(cluster: str, directory: Path, failing_row: int, *more: str) -> None:
    jar = ROOT / "build" / "job_servers" / f"{cluster}.jar"
    assert jar.exists(), "run 'make runners' first: it fetches the job servers by Maven"
    options = [*CLUSTERS[cluster], f"--{cluster}_job_server_jar={jar}", "--environment_type=LOOPBACK", *more]
    command = [sys.executable, beam_job.__file__, str(directory), str(failing_row), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr[-4000:]


def test_flink_gives_the_same_bytes_after_a_worker_failed(tmp_path) -> None:
    conf, out = tmp_path / "conf", tmp_path / "out"
    conf.mkdir()
    out.mkdir()
    (conf / "flink-conf.yaml").write_text(RETRIES)
    run("flink", out, 1024, f"--flink_conf_dir={conf}")
    assert (out / "failed").exists()
    table = beam_job.named()
    assert [path.read_bytes() for path in part_paths(out)] == expected_parts(beam_job.job_of(table), table)


@pytest.mark.slow
def test_spark_by_its_job_server_gives_the_same_bytes(tmp_path) -> None:
    run("spark", tmp_path, NO_ROW)
    table = beam_job.named()
    made = [path.read_bytes() for path in part_paths(tmp_path)]
    assert made == expected_parts(beam_job.job_of(table), table)
