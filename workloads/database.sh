#!/bin/sh
# A PostgreSQL server with pgbench's tables in it; runs for ever. For a guest whose root has Debian's package
# postgresql, which brings a cluster, pgbench and psql. `transactions` is its client.
# Usage: database [SCALE]
set -e
programs=$(echo /usr/lib/postgresql/*/bin)
data=$(echo /var/lib/postgresql/*/main)
settings=$(echo /etc/postgresql/*/main/postgresql.conf)
as_postgres() { setpriv --reuid postgres --regid postgres --init-groups "$@"; }

cd /
mkdir -p /run/postgresql
chown postgres: /run/postgresql
# Vacuuming at its own times would make runs of the same work differ.
as_postgres "$programs/postgres" -D "$data" -c config_file="$settings" -c autovacuum=off &
until as_postgres "$programs/pg_isready" -q; do sleep 0.2; done
as_postgres "$programs/pgbench" --initialize --quiet --scale "${1:-1}" postgres
touch /run/postgresql/has-tables
wait
