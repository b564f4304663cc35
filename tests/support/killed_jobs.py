"""Jobs that are killed again and again at random moments of their work, in processes forked from one that is
ready: moments fall inside the work, and not into imports.

python killed_jobs.py KILLS SEED OUT COMMAND...

Prints JSON: how long the job takes, and the directories in which it came to its end.
"""

import contextlib
import json
import os
import signal
import sys
import time
from pathlib import Path

import numpy as np

import truebatch.batching.make as room
from truebatch.cli import main


def forked(line: list[str]) -> int:
    """The command in a process of its own; its number."""
    child = os.fork()
    if child:
        return child
    code = 70
    with contextlib.suppress(BaseException):
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1)
        code = main(line)
    os._exit(code)


def ended(child: int) -> int:
    """How it ended: below 0 by a signal."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def run(kills: int, seed: int, out: Path, line: list[str]) -> dict[str, object]:
    """Kill the job so many times, each at a moment drawn from its whole length, then let it end."""
    rng = np.random.default_rng(seed)
    began = time.monotonic()
    assert ended(forked([*line, "--out", str(out.with_name("whole"))])) == 0
    length = time.monotonic() - began
    killed, whole, seen = 0, [], set()
    while killed < kills:
        child = forked([*line, "--out", str(out)])
        time.sleep(float(rng.uniform(0, length)))
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
        code = ended(child)
        assert code in (0, -signal.SIGKILL), code
        if code == 0:  # it was faster: that one is whole, and another begins
            whole.append(str(out.rename(out.with_name(f"out-{len(whole)}"))))
        else:
            killed += 1
            seen.add(stage(out))
    if out.exists() or not whole:
        assert ended(forked([*line, "--out", str(out)])) == 0
        whole.append(str(out))
    return {"seconds": length, "killed": killed, "whole": whole, "stages": sorted(seen)}


def stage(out: Path) -> str:
    """How far the job had come when it was killed, by what stands in its directory."""
    names = {path.name for path in out.rglob("*")} if out.exists() else set()
    for name in ("run.json", "manifest.json", "curves.csv", "checkpoints", "pass.json", "rows", "job.json"):
        if name in names:
            return name
    return "begun" if names else "nothing"


if __name__ == "__main__":
    room.RECORD_BYTES, room.PART_BYTES = 10_000, 40_000  # several files, even of so little
    print(json.dumps(run(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), sys.argv[4:])))
