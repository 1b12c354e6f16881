# Run on the host of faults.toml: records it quiet and with each of six faults, for replay_faults.
set -eu
in_guest() {
    vmscope testbed exec "$@"
}
begin() {
    in_guest "$1" -- sh -c "($2 >/dev/null 2>&1 </dev/null &)"
    sleep 1
}
record() {
    vmscope record -o "$1" --duration "$2"
}

# None: two busy vCPUs and their QEMU use more than the two CPUs of the scenario.
quota=/sys/fs/cgroup/testbed/web/cpu.max
echo max >$quota

# A new build of a program has the path of the one before.
in_guest web -- sh -c 'mkdir /srv; cp /usr/local/bin/serve /srv/serve'
begin web /srv/serve
record quiet 70

begin batch 'compute 600'
record vm 26
in_guest batch -- killall compute

in_guest web -- sh -c 'killall serve; cp /usr/local/bin/serve-new /srv/new; mv /srv/new /srv/serve'
begin web /srv/serve
record build 26
in_guest web -- sh -c 'killall serve; cp /usr/local/bin/serve /srv/new; mv /srv/new /srv/serve'
begin web /srv/serve

echo '20000 100000' >$quota
record quota 26
echo max >$quota

begin web 'convoy 2 19'
record convoy 26
in_guest web -- killall convoy

# The packet generator sends from a kernel thread of each CPU.
modprobe -a pktgen dummy
ip link add faults0 type dummy
ip link set faults0 up
echo 'add_device faults0' >/proc/net/pktgen/kpktgend_0
for line in 'count 0' 'dst 10.9.9.9' 'dst_mac 00:11:22:33:44:55'; do
    echo "$line" >/proc/net/pktgen/faults0
done
echo start >/proc/net/pktgen/pgctrl &
sleep 1
record kthread 26
echo stop >/proc/net/pktgen/pgctrl

begin web exits
record exits 26
