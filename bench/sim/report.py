"""The one table."""

from bench.sim.rows import Row


def print_table(rows: list[Row]) -> None:
    """Rows E1 to E8: ours, the target, met or not; the baselines below each."""
    for row in rows:
        met = {True: "met", False: "NOT MET", None: "shown"}[row.met]
        print(f"{row.experiment:3} {row.what}")
        print(f"      {'ours':6} {row.ours:40} target {row.target:28} {met}")
        for name, value in row.baselines.items():
            print(f"      {name:6} {value}")
