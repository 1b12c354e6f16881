#!/bin/sh
# Starts what the kernel's command line asks for, says "ready", then runs the lines it is sent.
# NAME is the guest's, W0, W1, ... its workloads; AGENT asks for vmscope-guest; INIT becomes PID 1; IDENTITY asks for the
# program that gives a clone its own; ADDRESS is the guest's in the host's network.
busybox=/bin/busybox
[ -x /run/testbed/busybox ] && busybox=/run/testbed/busybox
export HOME=/root TERM=dumb PATH=/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin:/run/testbed/bin
# Debian's busybox prefers its own tools to a root's: lines are for the root's shell.
shell=/bin/sh
[ -x $shell ] || shell="$busybox sh"

b() { "$busybox" "$@"; }
# busybox has no `nice`; called as a background job, so it may become the workload itself.
nice() {
    shift
    exec "$busybox" sh -c 'level=$1; shift; renice -n "$level" -p $$ >/dev/null; exec "$@"' - "$@"
}
b mkdir -p /dev/pts /dev/shm /dev/virtio-ports /run /tmp
b mount -t devpts devpts /dev/pts
b mount -t tmpfs -o mode=1777 shm /dev/shm
b mount -t debugfs debug /sys/kernel/debug
b mount -t tracefs trace /sys/kernel/tracing
b hostname "$NAME"
b ip link set lo up
if [ -n "$ADDRESS" ]; then
    for link in /sys/class/net/e*; do
        b ip addr add "$ADDRESS" dev "${link##*/}"
        b ip link set "${link##*/}" up
    done
fi
b ln -sf /proc/self/fd /dev/fd

# Ports get their names a moment after their driver is loaded.
port=/dev/virtio-ports/org.vmscope.exec.0
tries=0
until [ -e "$port" ] || [ $tries -gt 500 ]; do
    for file in /sys/class/virtio-ports/*/name; do
        [ -e "$file" ] || continue
        node=${file%/name}
        read -r name <"$file"
        [ -n "$name" ] && [ ! -e "/dev/virtio-ports/$name" ] && b ln -s "../${node##*/}" "/dev/virtio-ports/$name"
    done
    [ -e "$port" ] || b usleep 20000
    tries=$((tries + 1))
done

if [ -n "$AGENT" ]; then
    vmscope-guest serve --allow-commands >/run/vmscope-guest.log 2>&1 </dev/null &
fi

serve() {
    exec 3<>"$port"
    i=0
    while eval "line=\${W$i}" && [ -n "$line" ]; do
        # The words were checked: they hold nothing that a shell would read differently.
        $line </dev/null >/dev/null 2>&1 3<&- &
        i=$((i + 1))
    done
    echo ready >&3
    while IFS= read -r line <&3; do
        echo begin >&3
        # What a line leaves running may write to its files for ever: each has its own, and of their growing ends only
        # as much is sent as was counted.
        $shell -c "$line" >/run/exec.out 2>/run/exec.err </dev/null 3<&-
        code=$?
        exec 4</run/exec.out 5</run/exec.err
        rm /run/exec.out /run/exec.err
        out=$(b stat -Lc %s /dev/fd/4) err=$(b stat -Lc %s /dev/fd/5)
        echo "$code $out $err" >&3
        b head -c "$out" <&4 >&3
        b head -c "$err" <&5 >&3
        exec 4<&- 5<&-
    done
}

if [ -n "$INIT" ]; then
    serve &
    exec "$INIT"
fi
serve &
if [ -n "$IDENTITY" ]; then
    exec identity
fi
# As PID 1, take in the processes that others leave behind.
while :; do wait; b sleep 1; done
