"""How large a batch is and how batches are laid out in files: a function of schema and spec alone."""

from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa

from truebatch.data import Layout
from truebatch.errors import InvalidData, InvalidSpec
from truebatch.specs import BallsAndBins, Poisson, Sampler, TruncatedPoisson

WEIGHT = "weight"
WEIGHT_BYTES = 4

# Room that a value of no fixed width is taken to need. Its true width is in the data, so it may not be asked.
_VARIABLE_BYTES = 32


def batch_rows(spec: Sampler) -> int:
    """The number of rows, real and padding, of every batch: public, whatever was drawn.

    >>> batch_rows(TruncatedPoisson(num_examples=9, batch_size=2, num_steps=3, max_batch_size=4))
    4
    """
    if isinstance(spec, TruncatedPoisson):
        return spec.max_batch_size
    if isinstance(spec, Poisson | BallsAndBins):
        kind = type(spec).__name__
        raise InvalidSpec(
            f"batches of one shape need a sampler with a largest batch; got {kind}, which has none "
            f"below num_examples={spec.num_examples}.",
            hint="use TruncatedPoisson with a max_batch_size, and account for TruncatedPoisson.",
        )
    return spec.batch_size


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The layout of all batches of one run.

    Batch t is rows (t mod k) B to (t mod k) B + B - 1 of a record batch, k = `steps_per_record`, and part
    file p holds steps p m to p m + m - 1, m = `steps_per_part`, a multiple of k; the last of each may hold
    fewer.

    Guarantees:
      - A function of spec and schema: not of rows, memberships, memory, engine or number of workers.
    """

    source_schema: pa.Schema
    rows: int
    num_steps: int
    record_bytes: int
    part_bytes: int

    @classmethod
    def of(cls, spec: Sampler, schema: pa.Schema, *, record_bytes: int, part_bytes: int) -> "Shape":
        """The shape of the batches of `spec` over rows of `schema`.

        A record batch of Arrow costs some kilobytes of its own and tens of microseconds to open, so batches
        smaller than `record_bytes` share one. `part_bytes` is what one worker assembles at a time.
        """
        if WEIGHT in schema.names:
            raise InvalidData(
                f"the column {WEIGHT!r} is added to every batch, so a source must not have one; "
                f"got columns {', '.join(schema.names)}.",
                hint="rename the source's column.",
            )
        bare = pa.schema([pa.field(field.name, field.type, nullable=field.nullable) for field in schema])
        return cls(
            source_schema=bare,
            rows=batch_rows(spec),
            num_steps=spec.num_steps,
            record_bytes=record_bytes,
            part_bytes=part_bytes,
        )

    @cached_property
    def layout(self) -> Layout:
        """Where the fixed-width columns of the source stand in a packed row."""
        return Layout.of(self.source_schema)

    @cached_property
    def schema(self) -> pa.Schema:
        """The columns of a batch: the source's, then the weight."""
        return self.source_schema.append(pa.field(WEIGHT, pa.float32(), nullable=False))

    @property
    def batch_bytes(self) -> int:
        """Bytes of a batch, values of no fixed width taken at a nominal width."""
        return self.rows * (self.layout.width + WEIGHT_BYTES + _VARIABLE_BYTES * len(self.layout.variable))

    @property
    def steps_per_record(self) -> int:
        """k: how many batches share a record batch."""
        return max(1, min(self.num_steps, self.record_bytes // self.batch_bytes))

    @property
    def steps_per_part(self) -> int:
        """How many batches a part file holds."""
        k = self.steps_per_record
        return k * max(1, self.part_bytes // (k * self.batch_bytes))

    @property
    def num_parts(self) -> int:
        """How many part files there are."""
        return -(-self.num_steps // self.steps_per_part)

    def part_steps(self, part: int) -> range:
        """The steps of one part file."""
        first = part * self.steps_per_part
        return range(first, min(first + self.steps_per_part, self.num_steps))

    def records(self, steps: range) -> list[range]:
        """The steps of each record batch of a part file that holds `steps`."""
        k = self.steps_per_record
        return [steps[i : i + k] for i in range(0, len(steps), k)]


def part_name(part: int) -> str:
    """The file name of one part.

    >>> part_name(7)
    'part-00007.arrow'
    """
    return f"part-{part:05d}.arrow"
