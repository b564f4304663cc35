"""Three million flights of 2001 as a table that `truebatch study` takes.

    npm pack vega-datasets@3.2.1 && tar xf vega-datasets-3.2.1.tgz package/data/flights-3m.parquet
    python scripts/lay_out_flights_3m.py package/data/flights-3m.parquet flights_3m.parquet

The file has date (actual departure, to the minute), delay, distance, origin and destination, by date; the
data are of the US Bureau of Transportation Statistics. The label is an arrival more than 15 minutes late.
"""

import sys

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq


def laid_out(flights: pa.Table) -> pa.Table:
    """Label, two numbers and seven categories."""
    date = flights["date"]
    hour, weekday = pc.hour(date).cast(pa.string()), pc.day_of_week(date).cast(pa.string())
    origin, destination = (flights[name].cast(pa.string()) for name in ("origin", "destination"))
    return pa.table(
        {
            "label": pc.greater(flights["delay"], 15).cast(pa.int8()),
            "distance": flights["distance"].cast(pa.int32()),
            "minute": pc.add(pc.multiply(pc.hour(date), 60), pc.minute(date)).cast(pa.int32()),
            "origin": origin,
            "destination": destination,
            "route": pc.binary_join_element_wise(origin, destination, "-"),
            "hour": hour,
            "weekday": weekday,
            "origin_hour": pc.binary_join_element_wise(origin, hour, "-"),
            "destination_hour": pc.binary_join_element_wise(destination, hour, "-"),
        }
    )


if __name__ == "__main__":
    source, target = sys.argv[1:]
    pq.write_table(laid_out(pq.read_table(source)), target)
