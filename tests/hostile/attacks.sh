# Runs on the virtual host as root, beside guest `a` on CPU 0. Attackers are nobody, on CPU 1. Each recording is measured:
# `NAME.cost` has exit code, peak memory and CPU time. See attack.c. `quick` has the attacks of the quick half.
set -eu
gcc -O1 -pthread -o attack attack.c
chmod 666 /dev/kvm
place=/tmp/hostile
mkdir -p $place
chmod 777 $place
attack() {
    setpriv --reuid 65534 --regid 65534 --clear-groups taskset 2 "$PWD/attack" "$@" 2>>attackers.err &
    attackers="$attackers $!"
}
recorded() {
    name=$1
    shift
    echo "$name" >&2
    sleep 1
    ./attack measure "$name.cost" "$@" >"$name.out" 2>"$name.err" || true
    # shellcheck disable=SC2086
    kill -KILL $attackers 2>/dev/null || true
    wait
    attackers=""
    rm -rf $place/* /tmp/perf-*.map
}
record() { recorded "$1" vmscope record -o "$1" --duration 4; }
attackers=""

everything="fifos truncate symbols notes forks execs locks perfmap"
record quiet
for what in ${quick:-$everything}; do
    attack $what $place
    record $what
done
if [ -n "$quick" ]; then exit 0; fi

# VMs that say what is not so: that their guest is the other one; that it is behind a socket of theirs.
cid=$(cat /proc/[0-9]*/cmdline | tr '\0' '\n' | sed -n 's/.*guest-cid=\([0-9]*\).*/\1/p' | head -n 1)
attack vm -name evil -device vhost-vsock-pci,guest-cid="$cid"
record other-guest
for how in silent endless lies silent endless; do
    n=${n:-}x
    attack vm $place/$n $how -name "$how$n" -chardev socket,id=c,path=$place/$n,server=on \
        -device virtserialport,chardev=c,name=org.vmscope.guest.0
done
record five-guests

all() {
    for what in $everything; do attack $what $place; done
}
all
record all-at-once
all
recorded trace-all-at-once vmscope trace record -o trace-all-at-once --duration 3
all
recorded top-all-at-once vmscope top --once --format json
echo "all as expected"
