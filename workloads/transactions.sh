#!/bin/sh
# A fixed number of pgbench's transactions, one after the other, against the server that `database` started,
# which it waits for. Prints `transactions SECONDS`, by this machine's own clock.
# Usage: transactions N
set -e
cd /
until [ -e /run/postgresql/has-tables ]; do sleep 0.2; done
start=$(date +%s%N)
setpriv --reuid postgres --regid postgres --init-groups \
    /usr/lib/postgresql/*/bin/pgbench --no-vacuum --random-seed 1 --transactions "${1:?}" postgres >&2
end=$(date +%s%N)
echo "$((end - start))" | awk '{ printf "transactions %.4f\n", $1 / 1e9 }'
