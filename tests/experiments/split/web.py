"""A small web server with a database: web.py postgres|mysql DATABASE LOG

GET /page?id=ID&queries=N&how=simple|prepared|transaction: N queries, some work between them and after them.
The log has a line for each request: its id, then its times in ns: begun, (query sent, answered)..., written.
"""

import hashlib
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

kind, database, log_path = sys.argv[1:]
log = open(log_path, "w", buffering=1)
local = threading.local()

if kind == "postgres":
    import psycopg

    def connect():
        # Statements are prepared from the third time on, and sent with the extended protocol before.
        return psycopg.connect(host=database, user="postgres", dbname="postgres", autocommit=True, prepare_threshold=3)

    PAGE = "select repeat(md5(i::text), 30), case when i = 1 then pg_sleep({sleep})::text end from generate_series(1, {rows}) i"
    SMALL = "select md5(%s::text)"
else:
    import pymysql

    def connect():
        return pymysql.connect(host=database, user="web", database="page", autocommit=True)

    PAGE = "select repeat(md5(seq), 30), if(seq = 1, sleep({sleep}), null) from seq_1_to_{rows}"
    SMALL = "select md5(%s)"


def work(seconds):
    until = time.perf_counter() + seconds
    data = b"page"
    while time.perf_counter() < until:
        data = hashlib.md5(data).digest()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *_):
        pass

    def do_GET(self):
        stamps = [time.time_ns()]
        query = {key: values[0] for key, values in parse_qs(urlsplit(self.path).query).items()}
        work(0.002)
        if not hasattr(local, "connection"):
            local.connection = connect()
        cursor = local.connection.cursor()
        how = query.get("how", "simple")
        rows = []
        if how == "transaction":
            cursor.execute("begin")
        for n in range(int(query.get("queries", 1))):
            if n:
                work(0.003)
            mark = f"/* id={query.get('id')} */ "
            stamps.append(time.time_ns())
            if how == "prepared":
                cursor.execute(SMALL, (n,))
            else:
                cursor.execute(mark + PAGE.format(sleep=0.002 * (n + 1), rows=10 * (n + 1)))
            stamps.append(time.time_ns())
            rows += cursor.fetchall()
        if how == "transaction":
            cursor.execute("commit")
        work(0.004)
        body = "".join(f"<tr><td>{row[0]}</td></tr>\n" for row in rows).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        stamps.append(time.time_ns())
        log.write(" ".join([query.get("id", "-"), *map(str, stamps)]) + "\n")


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64


Server(("127.0.0.1", 8000), Handler).serve_forever()
