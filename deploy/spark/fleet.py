#!/usr/bin/env python3
"""Apache Spark over a fleet's store: the ready-made queries, SQL, and the analysis of windows that have no results.

    spark-submit fleet.py --store STORE query thieves vm=db1 from=2026-01-01T00:00:00Z to=2026-03-01T00:00:00Z
    spark-submit fleet.py --store STORE sql "SELECT state, sum(ns) AS ns FROM vcpu_time GROUP BY state"
    spark-submit fleet.py --store STORE analyze

STORE is what the server's configuration says: a folder that all workers see, or s3://BUCKET/PREFIX.
"""

import argparse
import datetime
import decimal
import json
import os
import pathlib
import re
import subprocess
import sys

from pyspark.sql import SparkSession

TABLES = ["vcpu_time", "cpu_time", "exits", "hosts", "vms", "health"]
QUERIES = pathlib.Path(os.environ.get("VMSCOPE_QUERIES", pathlib.Path(__file__).parents[2] / "crates/query/queries"))


def server(arguments, *words):
    """What vmscope-server says, and what it lacks, line by line."""
    command = [arguments.server, *words, "--store", arguments.store]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(done.stderr.strip())
    return done.stdout.splitlines(), done.stderr.splitlines()


def value(of):
    """As the server's JSON has it: whole numbers, and times in UTC."""
    if isinstance(of, decimal.Decimal):
        return int(of) if of == int(of) else float(of)
    if isinstance(of, datetime.datetime):
        digits = "auto" if of.microsecond % 1000 else "milliseconds" if of.microsecond else "seconds"
        return of.astimezone(datetime.timezone.utc).replace(tzinfo=None).isoformat(timespec=digits) + "Z"
    return str(of)


def instant(text):
    return datetime.datetime.fromisoformat(text.replace("Z", "+00:00"))


def views(spark, arguments, text, scope):
    """Each table that the text names as a view of exactly the objects that hold its rows, so that nothing counts twice. Says
    what is missing."""
    base = arguments.store.replace("s3://", "s3a://", 1).rstrip("/")
    partial = set()
    for table in filter(lambda table: re.search(rf"\b{table}\b", text), TABLES):
        names, lacks = server(arguments, "objects", table, *scope)
        partial.update(line.removeprefix("vmscope-server: ") for line in lacks)
        if names:
            # Objects of earlier versions lack columns.
            reader = spark.read.option("mergeSchema", "true")
            reader.parquet(*(f"{base}/{name}" for name in names)).createOrReplaceTempView(table)
    return partial


def answer(spark, arguments):
    parameters = dict(word.split("=", 1) for word in arguments.parameters)
    is_ready_made = arguments.command == "query"
    text = (QUERIES / f"{arguments.text}.sql").read_text() if is_ready_made else arguments.text
    # Both sides of a comparison are read.
    ends = {"from": min, "to": max}
    both = {name: [parameters[n] for n in (name, f"other_{name}") if n in parameters] for name in ends}
    scope = [word for name, end in ends.items() if both[name] for word in (f"--{name}", end(both[name], key=instant))]
    if "host" in parameters and "other_host" not in parameters:
        scope += ["--host", parameters["host"]]
    partial = views(spark, arguments, text, scope)
    if not is_ready_made:
        frame = spark.sql(text)
    else:
        # As the server does: no host is all hosts, and of a comparison the other side is the same unless it is given.
        values = {"host": "", **parameters}
        values |= {f"other_{name}": value for name, value in values.items() if f"other_{name}" not in values}
        is_instant = lambda name: name.rsplit("_", 1)[-1] in ("from", "to")
        values = {name: instant(value) if is_instant(name) else value for name, value in values.items()}
        frame = spark.sql(text, {name: value for name, value in values.items() if f":{name}" in text})
    for row in frame.collect():
        print(json.dumps(row.asDict(), default=value))
    for reason in sorted(partial):
        print(f"partial answer: {reason}", file=sys.stderr)


def analyze(spark, arguments):
    """Shares the windows without results out. A task that runs twice is harmless: each object is made once."""
    names, _ = server(arguments, "left")
    command = [arguments.server, "analyze", "--store", arguments.store]

    def work(batches):
        import pyarrow

        for batch in batches:
            for window in batch.column(0).to_pylist():
                done = subprocess.run([*command, window], stdout=subprocess.PIPE, text=True, check=True)
                yield pyarrow.RecordBatch.from_pydict({"result": done.stdout.splitlines()})

    if names:
        windows = spark.createDataFrame([(name,) for name in names], "window string")
        windows = windows.repartition(min(len(names), 4 * spark.sparkContext.defaultParallelism))
        results = [row.result.split(" ", 2)[1] for row in windows.mapInArrow(work, "result string").collect()]
    else:
        results = []
    print(json.dumps({what.rstrip(":"): results.count(what) for what in sorted(set(results))}))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", required=True)
    parser.add_argument("--server", default="vmscope-server", help="the program, on every worker")
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("query", "sql"):
        command = commands.add_parser(name)
        command.add_argument("text")
        command.add_argument("parameters", nargs="*", metavar="NAME=VALUE")
    commands.add_parser("analyze")
    arguments = parser.parse_args()
    session = SparkSession.builder.appName("vmscope").config("spark.sql.session.timeZone", "UTC").config("spark.ui.enabled", "false")
    spark = session.getOrCreate()
    try:
        (analyze if arguments.command == "analyze" else answer)(spark, arguments)
    finally:
        spark.stop()


if __name__ == "__main__":
    sys.exit(main())
