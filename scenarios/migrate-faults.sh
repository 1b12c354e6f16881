# Faults while guest `a` is migrated from the first host of scenarios/migrate.toml to the second: sourced after migrate.sh.
# Each ends with a line: FAULT | what the migration said | where `a` runs | leftovers | errors that `verify` found.

# outcome FAULT TEXT: a report's JSON, or what else was said.
outcome() {
    at=$(runs_at | tr '\n' ' ')
    case "$at" in
    *kvm2*) errors=$(verified_there || echo lost) ;;
    *) errors=$(verified || echo lost) ;;
    esac
    echo "$1 | $(echo "$2" | tr '\n' ' ') | $at| $(leftovers | tr '\n' ' ')| ${errors##* }" >>faults
}

# In what a daemon there has written, a line comes.
wait_there() { there "until grep -q '$1' daemon.log; do sleep 0.1; done"; }

# Kills what stands for the destination: its daemon, and the QEMU that waits for `a`.
kill_there="$qemu_line"'
kill -9 $(cat daemon.pid) $(qemu a) 2>/dev/null; sleep 0.2; rm -f /run/vmscope-layout.socket'
kill_daemon_there='kill -9 $(cat daemon.pid); rm -f /run/vmscope-layout.socket'
again_there() { there "$(start_line)"; }

# held: QEMU of `a` ($q) is frozen when it has stopped the guest, before the other QEMU has all of it.
held() {
    q=$(qemu a)
    until grep -q 'hands it over' daemon.log; do sleep 0.01; done
    kill -STOP $q
}

# home: `a` runs here again.
home() { case "$(runs_at)" in *kvm2*) back --policy none >&2 ;; esac; }

# As long as a QEMU that waits has something to wait for.
settle() { sleep 65; }
