# What the command of scenarios/migrate.toml is made of: sourced on its first host, where guest `a` runs; `there` runs a line
# on the second one, kvm2. Each host has a layout daemon in its folder: config layout.toml, log daemon.log.
set -e
here=10.30.0.1 there=10.30.0.2 port=9277

there() { vmscope testbed on kvm2 -- sh -ec "$1"; }

# write_there FILE: standard input to a file there.
write_there() { there "echo $(base64 -w 0) | base64 -d >$1"; }

# config ADDRESS: a daemon's configuration, for the folder of a host.
config() {
    cat <<END
listen = "$1:$port"
peers = "/run/testbed/work/peers"
state = "/run/testbed/work/state"
socket = "/run/vmscope-layout.socket"
counters = "/run/testbed/work/counters.toml"
END
}

# Uses of memory by all three: `a` waits for it most of its time, `b` some, `c` not at all.
counters() {
    cat <<END
[[vm]]
name = "a"
waiting = 0.57
instructions_per_s = 5e8
[[vm]]
name = "b"
waiting = 0.3
instructions_per_s = 5e8
[[vm]]
name = "c"
waiting = 0.0
instructions_per_s = 1e9
END
}

# Prepares both hosts: configurations with the template of `a`, keys, peers, daemons.
prepare() {
    vmscope layout template a >template.toml
    counters >counters.toml
    counters | write_there counters.toml
    { config $here; cat template.toml; } >layout.toml
    { config $there; cat template.toml; } | write_there layout.toml
    daemon='vmscope layout daemon --config /run/testbed/work/layout.toml'
    echo "kvm2 $there:$port $(there "$daemon --fingerprint")" >peers
    echo "kvm1 $here:$port $($daemon --fingerprint)" | write_there peers
    start
    there "$(start_line)"
}

start_line() {
    # With a unit's capabilities, where a test says so.
    cat <<END
${AS_UNIT-} vmscope layout daemon --config /run/testbed/work/layout.toml >>daemon.log 2>&1 &
echo \$! >daemon.pid
until [ -S /run/vmscope-layout.socket ]; do kill -0 \$(cat daemon.pid); sleep 0.1; done
END
}

start() { eval "$(start_line)"; }

# stop_line: ends a host's daemon in good order.
stop_line='kill $(cat daemon.pid); while kill -0 $(cat daemon.pid) 2>/dev/null; do sleep 0.1; done'

# restart_there LINES: the daemon there with other lines at the beginning of its configuration.
restart_there() {
    there "$stop_line; : >daemon.log"
    { echo "$1"; config $there; cat "${2:-template.toml}"; } | write_there layout.toml
    there "$(start_line)"
}

restart_here() {
    eval "$stop_line"
    { echo "$1"; config $here; cat template.toml; } >layout.toml
    start
}

# incoming_line, in a host: starts a QEMU that waits for `a`, as an operator would.
incoming_line() {
    cat <<'END'
sed -n '/^command = \[/,/^\]/p' layout.toml | sed '1d;$d;s/^ *"//;s/",$//;s/{numa}/policy=default/' >words
xargs -d '\n' -a words sh -c '"$@" -incoming tcp:10.30.0.2:4444 >/dev/null 2>&1 &' sh
until socat -u OPEN:/dev/null UNIX-CONNECT:/run/testbed/guests/a.qmp 2>/dev/null; do sleep 0.1; done
END
}

# operate COMMAND...: has QEMU of `a` on this host carry out commands in JSON, as an operator would.
operate() {
    printf '%s\n' '{"execute": "qmp_capabilities"}' "$@" | socat -t 1 - UNIX-CONNECT:/run/testbed/guests/a.qmp
}

migrate() { vmscope migrate a --config /run/testbed/work/layout.toml "$@"; }

# watch ARGUMENTS: from here on migrations of others are watched; watched: prints the first
# report.
watch() {
    vmscope migrate --watch --config /run/testbed/work/layout.toml "$@" >watch.out 2>watch.log &
    watcher=$!
    until grep -q 'watching a' watch.log; do sleep 0.1; done
}
watched() {
    until [ -s watch.out ]; do sleep 0.1; done
    kill $watcher
    wait $watcher
    cat watch.out
}

# back ARGUMENTS: from kvm2 to here.
back() { there "vmscope migrate a --to kvm1 --config /run/testbed/work/layout.toml $*"; }

# The QEMU of a guest on this host; qemus: how many there are.
qemu_line='qemu() { pgrep -f "^[^ ]*qemu.*-name $1," || true; }'
eval "$qemu_line"

# vcpu_to GUEST CPU, in a host: binds its vCPU.
bind_line="$qemu_line"'
bind() { for t in /proc/$(qemu $1)/task/*; do grep -q KVM $t/comm && taskset -cp $2 ${t##*/}; done; }'

# Where `a` runs: kvm1 and kvm2 as far as it does there: its vCPU uses CPU time.
busy_line="$qemu_line"'
busy() {
    for q in $(qemu a); do
        for t in /proc/$q/task/*; do
            grep -q KVM $t/comm 2>/dev/null || continue
            one=$(cut -d" " -f14,15 $t/stat); sleep 1; two=$(cut -d" " -f14,15 $t/stat)
            [ "$one" = "$two" ] || echo runs
        done
    done
}'
runs_at() {
    eval "$busy_line"
    [ -z "$(busy)" ] || echo kvm1
    [ -z "$(there "$busy_line; busy")" ] || echo kvm2
}

# What is left over on both hosts: QEMUs of `a` that do not run it, records, sockets of incoming QEMUs.
leftovers() {
    echo "qemus $(qemu a | wc -w) $(there "$qemu_line; qemu a | wc -w")"
    echo "records $(ls state/incoming state/outgoing | grep -c qemu$) $(there 'ls state/incoming state/outgoing | grep -c qemu$ || true')"
}

verified() { vmscope testbed exec a -- cat /run/verify; }
verified_there() { there 'vmscope testbed exec a -- cat /run/verify'; }
