#!/bin/sh
# A web application with its database: nginx before gunicorn, which runs webpage.py, and PostgreSQL. Runs for ever. For a guest
# whose root has Debian's packages nginx-light, gunicorn, python3-psycopg2 and postgresql.
# Usage: web
set -e
programs=$(echo /usr/lib/postgresql/*/bin)
data=$(echo /var/lib/postgresql/*/main)
settings=$(echo /etc/postgresql/*/main/postgresql.conf)
here=$(dirname "$(command -v webpage.py)")
as_postgres() { setpriv --reuid postgres --regid postgres --init-groups "$@"; }

cd /
mkdir -p /run/postgresql /run/web
chown postgres: /run/postgresql
# The database is in memory, and idle VMs are to have little to do.
as_postgres "$programs/postgres" -D "$data" -c config_file="$settings" -c autovacuum=off -c fsync=off \
    -c jit=off -c shared_buffers=16MB -c max_connections=20 -c max_parallel_workers_per_gather=0 &
until as_postgres "$programs/pg_isready" -q; do sleep 0.2; done
as_postgres "$programs/psql" -q -d postgres <<EOF
CREATE TABLE category AS SELECT i AS id, 'Category ' || i AS name FROM generate_series(1, 20) i;
CREATE TABLE product AS SELECT i AS id, 1 + i % 20 AS category, 'Product ' || i AS name, (i * 7919) % 10007 AS price,
    (i * 104729) % 997 AS sold FROM generate_series(1, 400) i;
CREATE TABLE review AS SELECT 1 + i % 400 AS product, 1 + (i * 31) % 5 AS stars, 'These are the words of review ' || i AS words
    FROM generate_series(1, 2000) i;
CREATE INDEX ON category (id);
CREATE INDEX ON product (category, price);
CREATE INDEX ON product (sold);
CREATE INDEX ON review (product);
ANALYZE;
CREATE ROLE "www-data" LOGIN;
GRANT SELECT ON ALL TABLES IN SCHEMA public TO "www-data";
EOF

cat >/run/web/nginx.conf <<EOF
worker_processes 1;
daemon off;
user www-data;
pid /run/web/nginx.pid;
error_log stderr;
events {}
http {
    access_log off;
    upstream page { server 127.0.0.1:8000; }
    server {
        listen 80;
        location / { proxy_pass http://page; }
    }
}
EOF
gunicorn --bind 127.0.0.1:8000 --workers 1 --threads 4 --user www-data --group www-data --worker-tmp-dir /dev/shm \
    --timeout 0 --pythonpath "$here" webpage:page &
nginx -c /run/web/nginx.conf &
wait
