#!/bin/sh
# A fixed number of pgbench's transactions, one after the other, against the server that `database` started,
# which it waits for. Prints `transactions SECONDS`, by this machine's own clock (hundredths).
# Usage: transactions N
set -e
cd /
until [ -e /run/postgresql/has-tables ]; do sleep 0.2; done
start=$(cut -d' ' -f1 /proc/uptime)
setpriv --reuid postgres --regid postgres --init-groups \
    /usr/lib/postgresql/*/bin/pgbench --no-vacuum --random-seed 1 --transactions "${1:?}" postgres >&2
end=$(cut -d' ' -f1 /proc/uptime)
echo "$start $end" | awk '{ printf "transactions %.2f\n", $2 - $1 }'
