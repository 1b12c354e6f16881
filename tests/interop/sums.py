"""Sums over result tables, by DuckDB and by pandas: `sums.py FOLDER` prints a JSON list of rows for each."""

import glob
import json
import sys

import duckdb
import pandas

KEYS = ["vm", "state", "process"]


def by_duckdb(folder):
    keys = ", ".join(KEYS)
    sql = f"""SELECT {keys}, CAST(sum(ns) AS UBIGINT), CAST(sum(samples) AS UBIGINT), count(*)
              FROM '{folder}/**/*.parquet' GROUP BY {keys}"""
    return duckdb.sql(sql).fetchall()


def by_pandas(folder):
    files = glob.glob(f"{folder}/**/*.parquet", recursive=True)
    columns = KEYS + ["ns", "samples"]
    sums = []
    for file in files:
        table = pandas.read_parquet(file, columns=columns, partitioning=None)
        grouped = table.groupby(KEYS, dropna=False)
        sums.append(grouped.agg(ns=("ns", "sum"), samples=("samples", "sum"), rows=("ns", "size")))
    whole = pandas.concat(sums).groupby(level=KEYS, dropna=False).sum().reset_index()
    whole = whole.astype(object).where(whole.notna(), None)
    return whole.values.tolist()


def ordered(rows):
    return sorted(([*row[:3], *map(int, row[3:])] for row in rows), key=lambda row: [str(cell) for cell in row])


folder = sys.argv[1]
print(json.dumps({"duckdb": ordered(by_duckdb(folder)), "pandas": ordered(by_pandas(folder))}))
