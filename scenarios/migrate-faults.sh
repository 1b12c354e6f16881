# Faults while guest `a` is migrated from the first host of scenarios/migrate.toml to the second: sourced after migrate.sh.
# Each ends with a line: FAULT | what the migration said | where `a` runs | leftovers | errors that `verify` found.

# outcome FAULT TEXT
outcome() {
    at=$(runs_at | tr '\n' ' ')
    case "$at" in
    *kvm2*) errors=$(verified_there) ;;
    *) errors=$(verified) ;;
    esac
    echo "$1 | $2 | $at| $(leftovers | tr '\n' ' ')| ${errors##* }" >>faults
}

# said FILE: what a migration's report says, of its JSON.
said() {
    python3 -c '
import json, sys
report = json.load(open(sys.argv[1]))
what = "moved" if report["moved"] else "stayed: " + str(report["reason"])
print(what + "; " + str(report["layout"]) + "; " + "; ".join(report["notes"]))' $1
}

# In what a daemon there has written, a line comes.
wait_there() { there "until grep -q '$1' daemon.log; do sleep 0.1; done"; }

# Kills what stands for the destination: its daemon, and the QEMU that waits for `a`.
kill_there="$qemu_line"'
kill -9 $(cat daemon.pid) $(qemu a) 2>/dev/null; sleep 0.2; rm -f socket'
kill_daemon_there='kill -9 $(cat daemon.pid); rm -f socket'
again_there() { there "$(start_line)"; }

# home: `a` runs here again.
home() { case "$(runs_at)" in *kvm2*) back --policy none >&2 ;; esac; }

# As long as a QEMU that waits has something to wait for.
settle() { sleep 65; }
