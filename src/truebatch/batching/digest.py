"""The digest of a part file: one that can be computed while its buffers are filled side by side."""

import hashlib
from collections.abc import Iterable, Iterator

import pyarrow as pa

from truebatch.errors import DamagedBatches

# A tree of SHA-256, the fastest of Python's hashes where the processor has instructions for it.
NAME = "sha256-buffers"


def digest_of(data: pa.Buffer) -> str:
    """The digest of a whole part file, in hexadecimal.

    SHA-256 over the SHA-256 of what is outside of buffers, followed by the SHA-256 of each buffer of each
    record batch, in the order of the file. Empty buffers are left out.
    """
    outside, inside = hashlib.sha256(), []
    position = 0
    for start, stop in _buffers(data):
        outside.update(memoryview(data)[position:start])
        inside.append(hashlib.sha256(memoryview(data)[start:stop]).digest())
        position = stop
    outside.update(memoryview(data)[position:])
    return combine(outside.digest(), inside)


def combine(outside: bytes, inside: Iterable[bytes]) -> str:
    """The digest of a file from the digests of its parts."""
    whole = hashlib.sha256(outside)
    for leaf in inside:
        whole.update(leaf)
    return whole.hexdigest()


def _buffers(data: pa.Buffer) -> Iterator[tuple[int, int]]:
    """Where each buffer of each record batch begins and ends."""
    try:
        reader = pa.ipc.open_file(pa.BufferReader(data))
        for i in range(reader.num_record_batches):
            for column in reader.get_batch(i).columns:
                for buffer in column.buffers():
                    if buffer is not None and buffer.size:
                        start = buffer.address - data.address
                        yield start, start + buffer.size
    except (pa.ArrowException, OSError) as error:
        raise DamagedBatches(
            f"a part file must be a whole Arrow IPC file; got {error}.",
            hint="make the batches anew in another directory, with the same key.",
        ) from None
