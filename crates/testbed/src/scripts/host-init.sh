#!/bin/sh
# PID 1 of the virtual host: gets this machine's root below a layer in memory, then runs
# `vmscope testbed inside` in it. An INTEL host has disks in place of shared folders: a root with what it needs of this
# machine's, and the run's folder; and serial ports. The kernel's command line gives MODULES, RELEASE,
# TERM and TERMINAL_SIZE, DISK, UPLINK and WATCHDOG when there is one, with a network its address and how many guests have
# a place in it, and with a second host the address in the network with it.
export PATH=/bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
for module in /modules/*; do insmod "$module"; done

p9=trans=virtio,version=9p2000.L,msize=512000
if [ -n "$INTEL" ]; then
    # Disks appear a moment after their driver is loaded.
    until [ -b /dev/sdb ]; do usleep 10000; done
    mount -o ro /dev/sda /lower
else
    mount -t 9p -o ro,cache=loose,$p9 machine /lower
fi || echo "testbed: this machine's root is not there"
mount -t tmpfs -o size=90% layer /layer
mkdir /layer/upper /layer/work
mount -t overlay -o lowerdir=/lower,upperdir=/layer/upper,workdir=/layer/work root /root

cd /root
mount -t proc proc proc
mount -t sysfs sys sys
mount -t devtmpfs dev dev
mkdir -p dev/pts dev/shm
mount -t devpts -o mode=620,ptmxmode=666 devpts dev/pts
mount -t tmpfs shm dev/shm
mount -t tmpfs -o mode=755 run run
mount -t debugfs debug sys/kernel/debug
mount -t tracefs trace sys/kernel/tracing
mount -t bpf bpf sys/fs/bpf
mount -t cgroup2 cgroup sys/fs/cgroup
ln -sf /proc/self/fd dev/fd
ln -sf /proc/self/fd/0 dev/stdin
ln -sf /proc/self/fd/1 dev/stdout
ln -sf /proc/self/fd/2 dev/stderr

mkdir -p run/testbed/machine run/testbed/share run/testbed/bin run/lock
mount --bind /lower run/testbed/machine
if [ -n "$INTEL" ]; then
    mount /dev/sdb run/testbed/share
    mount --bind run/testbed/share/bin run/testbed/bin
    mkdir run/testbed/ports
    for port in out:1 err:2 events:3; do
        stty -F "/dev/ttyS${port#*:}" 115200 raw -echo
        ln -s "/dev/ttyS${port#*:}" "run/testbed/ports/${port%:*}"
    done
else
    mount -t 9p -o cache=none,$p9 share run/testbed/share
    cp run/testbed/share/bin/* run/testbed/bin/
    mkdir -p "lib/modules/$RELEASE"
    mount --bind "/lower$MODULES" "lib/modules/$RELEASE"
fi
chroot /root modprobe -a ${INTEL:+kvm_intel} ${MODULES:+kvm_amd} vhost_vsock tun ${DISK:+virtio_blk} ${UPLINK:+virtio_net} ${WIRE:+virtio_net} ${WATCHDOG:+i6300esb}
[ -z "$WATCHDOG" ] || watchdog -t 5 -T 60 /dev/watchdog
hostname testbed
ip link set lo up
if [ -n "$UPLINK" ]; then
    ip addr add 10.20.0.2/24 dev eth0
    ip link set eth0 up
fi
if [ -n "$WIRE" ]; then
    wire=$(grep -l '^52:54:00:30:' /sys/class/net/*/address)
    wire=${wire%/address}
    ip addr add "$WIRE" dev "${wire##*/}"
    ip link set "${wire##*/}" up
fi
if [ -n "$NETWORK" ]; then
    chroot /root modprobe bridge
    brctl addbr guests
    ip addr add "$NETWORK" dev guests
    ip link set guests up
    tap=0
    while [ $tap -lt "$TAPS" ]; do
        tunctl -t tap$tap >/dev/null
        brctl addif guests tap$tap
        ip link set tap$tap up
        tap=$((tap + 1))
    done
fi

cd /
chroot /root /usr/bin/env -i HOME=/root TERM="$TERM" TERMINAL_SIZE="$TERMINAL_SIZE" LANG=C.UTF-8 \
    PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    /run/testbed/bin/vmscope-lab testbed inside
sync
poweroff -f
