# Runs on the virtual host as root, beside guests `a` and `b` on CPU 0. Attackers have an unprivileged user id, on CPU 1. Each recording is
# measured: `NAME.cost` has exit code, peak memory, CPU time and time. See attack.c. `together` has attacks to try at once, beside
# all names; `alone` those to try one by one, as names are then, and much else.
set -eu
gcc -O1 -pthread -o attack attack.c
modprobe fuse
chmod 666 /dev/kvm /dev/fuse
# The program in b is queried, by its port.
mkdir -p /etc/vmscope
echo b >/etc/vmscope/no-guest-memory
place=/tmp/hostile
mkdir -p $place
chmod 777 $place
attack_on() {
    cpus=$1
    shift
    setpriv --reuid 65534 --regid 65534 --clear-groups taskset "$cpus" "$PWD/attack" "$@" 2>>attackers.err &
    attackers="$attackers $!"
}
attack() { attack_on 2 "$@"; }
# The next process is met before the guests' are. A user without privileges forks until that is so.
early() { echo 60 >/proc/sys/kernel/ns_last_pid; }
recorded() {
    name=$1
    shift
    echo "$name" >&2
    sleep 1
    ./attack measure "$name.cost" "$@" >"$name.out" 2>"$name.err" || true
    # shellcheck disable=SC2086
    kill -KILL $attackers 2>/dev/null || true
    wait
    for guest in a b; do
        pgrep -f "^[^ ]*qemu.*-name $guest," >/dev/null || echo "guest $guest is gone" >&2
    done
    attackers=""
    umount -l $place.mount 2>/dev/null || true
    rm -rf $place/* /tmp/perf-*.map
}
record() { recorded "$1" vmscope record -o "$1" --duration 4; }
attackers=""

# What calls itself KVM's, a VM, or its vhost; and a port that leads to b's.
name_files() { early; attack files $place -name a; }
name_fuse() {
    mkdir $place.mount
    early
    "$PWD/attack" fuse $place.mount -name b 2>>attackers.err &
    attackers="$attackers $!"
}
name_hand() { early; attack hand -name evil; }
name_vhost() { attack_on 1 vhost "$(pgrep -f 'qemu.*-name a')"; }
name_port() {
    ln -s /run/testbed/guests/b.agent $place/port
    early
    attack asleep -name port -chardev socket,id=c,path=$place/port,server=on \
        -device virtserialport,chardev=c,name=org.vmscope.guest.0
}

everything="fifos truncate symbols notes forks execs locks perfmap"
record quiet
for what in $together; do attack $what $place; done
[ -z "$together" ] || record files
for what in $alone; do
    attack $what $place
    record $what
done
for name in files fuse hand vhost port; do
    name_$name
    [ -z "$alone" ] || record names-$name
done
[ -n "$alone" ] || record names
mkdir /run/target
attack links $place links /run/target
recorded links vmscope record -o $place/links --duration 3
ls -A /run/target >links.made
if [ -z "$alone" ]; then exit 0; fi

attack crowd $place 400
until [ "$(find $place -type s | wc -l)" = 400 ]; do sleep 1; done
recorded crowd vmscope record -o crowd --duration 2

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
