#!/bin/sh
# PID 1 of a guest. With ROOT on the kernel's command line, goes over to the disk's file system, kept
# unchanged below a layer in memory, with the testbed's own files in /run/testbed.
export PATH=/bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
for module in /modules/*; do insmod "$module"; done
rm -r /modules

if [ -z "$ROOT" ]; then
    exec /testbed/start
fi

mkdir /disk /layer /new
for disk in /dev/vda /dev/vda[0-9]*; do
    mount -o ro "$disk" /disk 2>/dev/null || continue
    [ -d /disk/usr ] && break
    umount /disk
done
[ -d /disk/usr ] || { echo "testbed: no root file system on the disk"; poweroff -f; }
mount -t tmpfs layer /layer
mkdir /layer/upper /layer/work
mount -t overlay -o lowerdir=/disk,upperdir=/layer/upper,workdir=/layer/work root /new
mkdir -p /new/run /new/proc /new/sys /new/dev
mount -t tmpfs -o mode=755 run /new/run
mkdir -p /new/run/testbed/bin
cp /testbed/start /bin/busybox /new/run/testbed/
cp /usr/local/bin/* /usr/bin/vmscope-guest /new/run/testbed/bin/ 2>/dev/null
for tool in renice taskset; do ln -s ../busybox /new/run/testbed/bin/$tool; done
for fs in proc sys dev; do mount --move /$fs /new/$fs; done
exec switch_root /new /run/testbed/busybox sh /run/testbed/start
