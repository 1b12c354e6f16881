//! S0.10: an agent beside one, four and ten guests; and a day of it, compressed.

use std::path::Path;

use anyhow::{Context, bail};

use super::Outcome;
use acceptance::in_testbed_within;

/// Runs an agent until so many windows have come to an `outcome`, and says meanwhile what it needs.
fn script(window_s: u32, windows: u32, outcome: &str) -> String {
    format!(
        "set -e
        cat >agent.toml <<END
state = \"$PWD/state\"
window_s = {window_s}
pending_windows = 20
spool_bytes = 67108864
max_cpu_percent = 10000.0
guest_timeout_s = 60
metrics = \"127.0.0.1:9188\"
END
        vmscope agent --short-windows --config agent.toml & agent=$!
        look() {{ curl -s http://127.0.0.1:9188/metrics >metrics || true; }}
        of() {{ sed -n \"s/^vmscope_agent_$1 //p\" metrics; }}
        n=0
        while [ ${{n%.*}} -lt {windows} ]; do
            kill -0 $agent
            sleep {window_s}
            look
            n=$(of 'windows_total{{outcome=\"{outcome}\"}}')
            n=${{n:-0}}
            echo $n $(of resident_bytes) $(of open_files) >>looks
        done
        kill -TERM $agent
        wait $agent
        rm -r state"
    )
}

/// What an agent said of itself at its end, and meanwhile.
struct Agent {
    metrics: String,
    /// Windows that had ended, bytes of memory, open files.
    looks: Vec<[f64; 3]>,
}

impl Agent {
    fn run(
        scenario: &str,
        files: &Path,
        (window_s, windows): (u32, u32),
        outcome: &str,
    ) -> anyhow::Result<Self> {
        // A guest's boot under emulation takes a minute where ten boot.
        let limit_s = 600 + 3 * window_s * windows;
        let script = script(window_s, windows, outcome);
        let ran = in_testbed_within(limit_s, scenario, files, &script)?;
        if ran.code != 0 {
            bail!("scenario {scenario} ended with exit code {}: {}", ran.code, ran.stderr);
        }
        let read = |name: &str| std::fs::read_to_string(files.join(name)).context(name.to_owned());
        let look = |line: &str| {
            let numbers: Vec<f64> = line.split(' ').filter_map(|word| word.parse().ok()).collect();
            numbers.try_into().ok()
        };
        let looks = read("looks")?.lines().filter_map(look).collect();
        Ok(Self { metrics: read("metrics")?, looks })
    }

    /// The sum over a metric's rows.
    fn sum(&self, name: &str) -> f64 {
        let rows = self.metrics.lines().filter_map(|line| {
            let rest = line.strip_prefix("vmscope_agent_")?.strip_prefix(name)?;
            rest.starts_with([' ', '{']).then(|| rest.rsplit(' ').next()?.parse::<f64>().ok())?
        });
        rows.sum()
    }

    /// The largest value of a column in the second and in the last quarter of its windows.
    fn grown(&self, column: usize) -> Option<[f64; 2]> {
        let quarter = self.looks.len() / 4;
        let largest = |looks: &[[f64; 3]]| looks.iter().map(|look| look[column]).reduce(f64::max);
        let second = largest(self.looks.get(quarter..2 * quarter)?)?;
        Some([second, largest(self.looks.get(3 * quarter..)?)?])
    }
}

/// S0.10: no time is without samples, whatever the number of guests.
pub(super) fn uncovered(files: &Path) -> anyhow::Result<Vec<Outcome>> {
    let mut outcomes = Vec::new();
    for (guests, scenario) in [(1, "one-guest"), (4, "agent-four"), (10, "agent-ten")] {
        let agent = Agent::run(scenario, &files.join(scenario), (10, 10), "finished")?;
        let uncovered = agent.sum("uncovered_seconds_total");
        let (samples, lost) = (agent.sum("samples_total"), agent.sum("samples_lost_total"));
        let guest_cpu = agent.sum("guest_map_cpu_seconds");
        outcomes.push(Outcome {
            mark: "S0.10",
            what: format!("{guests} guests: time without samples in ten windows of 10 s"),
            original: "7.75 to 8.47 s of each 60 s",
            ours: format!(
                "{uncovered} s; {lost} of {samples} samples lost; maps took {guest_cpu:.3} s of the guests' CPU time in \
                 the last window"
            ),
            limit: "0 s, 0 lost",
            pass: uncovered == 0.0 && lost == 0.0 && 0.0 < samples,
        });
    }
    Ok(outcomes)
}

/// 1,440 windows while guests come and go: memory and open files stay as they are. In four runs: few machines that are
/// emulated live for half an hour.
pub(super) fn day(files: &Path) -> anyhow::Result<Vec<Outcome>> {
    const GROWTH: f64 = 1.1;
    const WINDOWS: u32 = 1440 / 4;
    let mut outcomes = Vec::new();
    for quarter in 1..=4 {
        let files = files.join(quarter.to_string());
        let agent = Agent::run("agent-day", &files, (1, WINDOWS), "cut")?;
        let of = |outcome: &str| agent.sum(&format!("windows_total{{outcome=\"{outcome}\"}}"));
        // Emulated guests answer more slowly than windows of 1 s end.
        let reported = format!(
            "{} of {} windows finished, {} too late",
            of("finished"),
            of("cut"),
            of("dropped_unfinished")
        );
        for (what, column, unit) in [("MiB of memory", 1, 1_048_576.0), ("open files", 2, 1.0)] {
            let [second, last] = agent.grown(column).context("the agent was not looked at")?;
            outcomes.push(Outcome {
                mark: "agent-day",
                what: format!("{what} in the second and the last quarter of run {quarter} of 4"),
                original: "-",
                ours: format!("{:.1}, {:.1}; {reported}", second / unit, last / unit),
                limit: "10 % more",
                pass: last <= second * GROWTH,
            });
        }
    }
    Ok(outcomes)
}
