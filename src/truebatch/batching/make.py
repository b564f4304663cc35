"""From a source to a directory of batches: begun, resumed or found done."""

import os
from collections.abc import Callable
from pathlib import Path

from truebatch.batching import output
from truebatch.batching.assemble import Job
from truebatch.batching.engine import FILE_MODE, WORK, Engine, Progress, Task, no_progress
from truebatch.batching.gather import require_as_many
from truebatch.batching.manifest import Manifest, describe, with_files
from truebatch.batching.plan import choose_plan
from truebatch.data import Source, open_source
from truebatch.errors import SourceChanged
from truebatch.keys import Key
from truebatch.specs import Sampler

# What a part file holds at most, and what shares a record batch: a part of the layout, the same for everyone.
RECORD_BYTES, PART_BYTES = 2**20, 2**27


def make_batches(
    source: object,
    spec: Sampler,
    directory: str | os.PathLike[str],
    key: Key,
    *,
    engine: Engine | None = None,
    memory: int = 2**30,
    workers: int | None = None,
    file_mode: int = FILE_MODE,
    advance: Callable[[Progress], None] = no_progress,
) -> Manifest:
    """Write the T batches of `spec` over the rows of `source`, and return their manifest.

    Guarantees:
      - The same bytes by every engine, with any memory and any number of workers.
      - Stopped at any moment, the same call goes on and ends with the same bytes. A directory without a
        manifest is not finished.
      - A directory of other batches, or a source that changed since, is refused and left as it is.
    Public: the manifest. Secret, like the data: everything else in the directory.
    """
    rows, where = open_source(source), Path(directory)
    require_as_many(rows, spec)
    job = Job(spec=spec, schema=rows.schema, record_bytes=RECORD_BYTES, part_bytes=PART_BYTES)
    wanted = describe(job, key, rows.identity())
    with output.claimed(where):
        manifest = output.finished(where, wanted)
        if manifest is None:
            output.begin(where, wanted)
            manifest = _make(rows, job, where, key, wanted, engine, memory, workers, file_mode, advance)
        output.clear(where)
    return manifest


def _make(
    source: Source,
    job: Job,
    directory: Path,
    key: Key,
    wanted: Manifest,
    engine: Engine | None,
    memory: int,
    workers: int | None,
    file_mode: int,
    advance: Callable[[Progress], None],
) -> Manifest:
    done = output.parts_done(directory)
    task = Task(
        job=job,
        source=source,
        key=key,
        directory=directory,
        parts=[part for part in range(job.shape.num_parts) if part not in done],
        memory=memory,
        workers=workers or os.cpu_count() or 1,
        file_mode=file_mode,
        advance=advance,
    )
    with output.room_for(directory, _bytes_to_come(task)):
        if task.parts:
            for found in (engine or choose_plan(source, job).engine).run(task):
                output.note_part(directory, found)
                done[found.part] = found
        if describe(job, key, source.identity()) != wanted:
            raise SourceChanged(
                "a source must stay as it is while batches are made from it; this one changed.",
                hint=f"remove {str(directory)!r} and begin again.",
            )
        files = [(done[part].num_bytes, done[part].digest) for part in range(job.shape.num_parts)]
        manifest = with_files(wanted, files)
        output.finish(directory, manifest, file_mode)
    return manifest


def _bytes_to_come(task: Task) -> int:
    """What the missing parts take on disk, less what unfinished files hold already."""
    shape = task.job.shape
    steps = sum(len(shape.part_steps(part)) for part in task.parts)
    held = sum(path.stat().st_size for path in (task.directory / WORK).iterdir())
    return max(0, steps * shape.batch_bytes - held)
