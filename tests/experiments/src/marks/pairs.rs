//! What a trace says that a command would take without a part, beside what the command takes without that part: on this
//! machine, as root. A virtual host emulates its CPUs, where starting a program takes as long as a part.
//!
//! Parts have known lengths (`workloads/parts.c`). Commands run with a real-time priority, so that other load does not count.

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, bail};
use serde_json::Value;

use super::Outcome;
use acceptance::{root, run, text, trace};

/// Runs of each command without a part; the median counts.
const RUNS: usize = 3;
/// How far a prediction may be off, in per cent.
const LIMIT: f64 = 5.0;
/// A part that gains less than this share of the time may be offered or not.
const NO_GAIN: f64 = 0.05;

/// A shell command of several parts.
struct Program {
    name: &'static str,
    command: &'static str,
    /// A part by its name in the report, and the command without it.
    without: &'static [(&'static str, &'static str)],
    /// What the report may not offer: nothing would be gained.
    never: &'static [&'static str],
}

const LOCKS: &str = "all waiting for locks";

const PROGRAMS: &[Program] = &[
    Program {
        name: "a sleep beside work",
        command: "sleep 1.9 & parts burn: burn 2.0 & wait",
        without: &[("own code of burn", "sleep 1.9 & parts burn: burn 0 & wait")],
        never: &["timer", LOCKS],
    },
    Program {
        name: "work beside a sleep",
        command: "parts burn: burn 1.5 & sleep 2.0 & wait",
        without: &[("timer", "parts burn: burn 1.5 & sleep 0 & wait")],
        never: &["own code of burn", LOCKS],
    },
    Program {
        name: "make of a sleep and a compiler",
        command: "make -s -j2 -f make.txt CODE=code.c",
        without: &[("own code of cc1", "make -s -j2 -f make.txt CODE=empty.c")],
        never: &[LOCKS],
    },
    Program {
        name: "make of a sleep and work",
        command: "make -s -j2 -f make.txt TIME=2.4 BURN=1.6",
        without: &[("timer", "make -s -j2 -f make.txt TIME=0 BURN=1.6")],
        never: &["own code of burn", LOCKS],
    },
    Program {
        name: "threads joined in order",
        command: "parts a: sleep 1.0 b: burn 1.9 c: sleep 1.4",
        without: &[("own code of b", "parts a: sleep 1.0 b: burn 0 c: sleep 1.4")],
        never: &["timer", LOCKS],
    },
    Program {
        name: "a thread joined last",
        command: "parts a: burn 1.0 b: burn 1.3 c: sleep 1.9",
        without: &[("timer", "parts a: burn 1.0 b: burn 1.3 c: sleep 0")],
        never: &["own code of a", "own code of b", LOCKS],
    },
    Program {
        name: "a consumer after its producer",
        command: "parts made: burn 1.1 write | parts used: read burn 1.3",
        without: &[
            ("own code of made", "parts made: write | parts used: read burn 1.3"),
            ("own code of used", "parts made: burn 1.1 write | parts used: read"),
        ],
        never: &[LOCKS],
    },
    Program {
        name: "a consumer beside its producer",
        command: "parts made: repeat 8 burn 0.15 write | parts used: repeat 8 read burn 0.2",
        without: &[(
            "own code of used",
            "parts made: repeat 8 burn 0.15 write | parts used: repeat 8 read",
        )],
        never: &[LOCKS],
    },
    Program {
        name: "a mutex held asleep",
        command: "parts a: repeat 5 lock sleep 0.3 unlock b: repeat 5 lock sleep 0.3 unlock",
        without: &[(LOCKS, "parts a: repeat 5 sleep 0.3 b: repeat 5 sleep 0.3")],
        never: &[],
    },
    Program {
        name: "a mutex held at work",
        command: "parts a: repeat 5 lock burn 0.2 unlock b: repeat 5 lock sleep 0.25 unlock",
        without: &[
            (LOCKS, "parts a: repeat 5 burn 0.2 b: repeat 5 sleep 0.25"),
            ("own code of a", "parts a: repeat 5 lock unlock b: repeat 5 lock sleep 0.25 unlock"),
            ("timer", "parts a: repeat 5 lock burn 0.2 unlock b: repeat 5 lock unlock"),
        ],
        never: &[],
    },
    Program {
        name: "a file lock",
        command: "flock locked sleep 1.2 & flock locked sleep 1.3 & wait",
        without: &[(LOCKS, "flock locked-1 sleep 1.2 & flock locked-2 sleep 1.3 & wait")],
        never: &[],
    },
    Program {
        name: "a semaphore",
        command: "parts a: take burn 1.2 give b: sleep 0.2 take sleep 1.1 give",
        without: &[("own code of a", "parts a: take give b: sleep 0.2 take sleep 1.1 give")],
        never: &[LOCKS],
    },
    Program {
        name: "a sleep in the middle",
        command: "parts a: burn 0.7 sleep 1.3 burn 0.7",
        without: &[
            ("timer", "parts a: burn 0.7 burn 0.7"),
            ("own code of a", "parts a: sleep 1.3"),
        ],
        never: &[LOCKS],
    },
    Program {
        name: "one child after another",
        command: "parts a: burn 1.0; parts b: burn 1.3",
        without: &[("own code of a", "parts a: burn 0; parts b: burn 1.3")],
        never: &[LOCKS],
    },
    Program {
        name: "a join within a join",
        command: "(sleep 0.5 & parts a: burn 3.0 & wait) & sleep 2.4 & wait",
        without: &[("own code of a", "(sleep 0.5 & parts a: burn 0 & wait) & sleep 2.4 & wait")],
        never: &["timer", LOCKS],
    },
    Program {
        name: "a condition variable",
        command: "parts a: await burn 1.0 b: burn 1.2 raise sleep 0.3",
        without: &[
            ("own code of a", "parts a: await b: burn 1.2 raise sleep 0.3"),
            ("own code of b", "parts a: await burn 1.0 b: raise sleep 0.3"),
        ],
        never: &[LOCKS],
    },
    Program {
        name: "a stopped child",
        command: "parts job: burn 1.2 & job=$!; kill -STOP $job; sleep 1.0; kill -CONT $job; wait",
        without: &[
            (
                "timer",
                "parts job: burn 1.2 & job=$!; kill -STOP $job; sleep 0; kill -CONT $job; wait",
            ),
            (
                "own code of job",
                "parts job: burn 0 & job=$!; kill -STOP $job; sleep 1.0; kill -CONT $job; wait",
            ),
        ],
        never: &[LOCKS],
    },
    Program {
        name: "a loop that polls",
        command: "parts a: burn 1.0; parts b: sleep 1.2 write >polled & until [ -s polled ]; do sleep 0.02; done; rm polled",
        without: &[(
            "own code of a",
            "parts a: burn 0; parts b: sleep 1.2 write >polled & until [ -s polled ]; do sleep 0.02; done; rm polled",
        )],
        never: &["timer", LOCKS],
    },
    Program {
        name: "a barrier",
        command: "parts a: burn 1.4 meet burn 0.3 b: sleep 0.9 meet sleep 0.8",
        without: &[
            ("own code of a", "parts a: meet b: sleep 0.9 meet sleep 0.8"),
            ("timer", "parts a: burn 1.4 meet burn 0.3 b: meet"),
        ],
        never: &[LOCKS],
    },
    Program {
        name: "two programs on one CPU",
        command: "taskset 1 parts a: burn 1.0 & taskset 1 parts b: burn 2.1 & wait",
        without: &[(
            "own code of a",
            "taskset 1 parts a: burn 0 & taskset 1 parts b: burn 2.1 & wait",
        )],
        never: &[LOCKS],
    },
    Program {
        name: "a client and its server",
        command: "parts server: repeat 5 read burn 0.2 write <requests >replies & \
                  parts client: repeat 5 write read sleep 0.22 >requests <replies; wait",
        without: &[
            (
                "own code of server",
                "parts server: repeat 5 read write <requests >replies & \
                 parts client: repeat 5 write read sleep 0.22 >requests <replies; wait",
            ),
            (
                "timer",
                "parts server: repeat 5 read burn 0.2 write <requests >replies & \
                 parts client: repeat 5 write read >requests <replies; wait",
            ),
        ],
        never: &[LOCKS],
    },
    Program {
        name: "work between waits",
        command: "sleep 0.6 & parts a: burn 2.1; wait; parts b: burn 2.0",
        without: &[
            ("own code of a", "sleep 0.6 & parts a: burn 0; wait; parts b: burn 2.0"),
            ("own code of b", "sleep 0.6 & parts a: burn 2.1; wait; parts b: burn 0"),
        ],
        never: &[LOCKS],
    },
];

/// Named pipes, sources for the compiler, and what `make` makes.
const SETUP: &str = r#"
mkfifo requests replies
for number in $(seq 2000); do
    echo "int f$number(int a, int b) { for (int i = 0; i < a; i++) b = (b * i) % $number ? b + i : b ^ a; return b; }"
done >code.c
>empty.c
printf '%s\n' 'TIME = 2.5' 'all: sleep work' 'sleep:' '	sleep $(TIME)' 'work:' \
    '	$(if $(CODE),gcc -O2 -c -o code.o $(CODE))' '	$(if $(BURN),parts burn: burn $(BURN))' >make.txt
gcc -O2 -pthread -o parts "$SOURCE"
"#;

/// All pairs, and parts that are offered for nothing.
pub(super) fn parts_left_out(files: &Path) -> anyhow::Result<Vec<Outcome>> {
    let setup = shell(files, SETUP).env("SOURCE", root().join("workloads/parts.c")).status()?;
    if !setup.success() {
        bail!("failed to prepare {}: {setup}", files.display());
    }
    let mut outcomes = Vec::new();
    for (number, program) in PROGRAMS.iter().enumerate() {
        let path = critical_path(files, &format!("trace-{number}"), program.command)?;
        for (part, without) in program.without {
            let [took, predicted] = predicted(&path, part).map(|s| s.unwrap_or(f64::NAN));
            let measured = median_s(files, without)?;
            let off = 100.0 * (predicted - measured) / measured;
            outcomes.push(Outcome {
                mark: "S2-pairs",
                what: format!("{}, without {part}", program.name),
                original: "-",
                ours: format!(
                    "{took:.2} s; {predicted:.3} s predicted, {measured:.3} s measured, {off:+.1} %"
                ),
                limit: "within 5 %",
                pass: off.abs() <= LIMIT,
            });
        }
        outcomes.extend(program.never.iter().filter_map(|part| offered(program, &path, part)));
    }
    Ok(outcomes)
}

/// A part that is offered for a gain and may not be.
fn offered(program: &Program, path: &Value, part: &str) -> Option<Outcome> {
    let [Some(took), Some(without)] = predicted(path, part) else { return None };
    (without < (1.0 - NO_GAIN) * took).then(|| Outcome {
        mark: "S2-pairs",
        what: format!("{}, without {part}", program.name),
        original: "-",
        ours: format!("{took:.2} s; {without:.3} s predicted"),
        limit: "not offered",
        pass: false,
    })
}

fn shell(files: &Path, command: &str) -> Command {
    let path = std::env::var("PATH").unwrap_or_default();
    let mut shell = Command::new("chrt");
    shell.args(["-f", "10", "bash", "-c", command]);
    shell.current_dir(files).env("PATH", format!("{}:{path}", files.display()));
    shell
}

/// How long the command took, and would take without a part, in s; `None`: the part is not listed.
fn predicted(path: &Value, part: &str) -> [Option<f64>; 2] {
    let improvements = path["improvements"].as_array().map_or(&[][..], Vec::as_slice);
    let found = improvements.iter().find(|row| text(row, "what") == part);
    let seconds = |ns: &Value| ns.as_f64().map(|ns| ns / 1e9);
    [seconds(&path["wall_ns"]), found.and_then(|row| seconds(&row["without_ns"]))]
}

fn critical_path(files: &Path, name: &str, command: &str) -> anyhow::Result<Value> {
    let trace = files.join(name);
    let folder = trace.to_str().context("the path is not UTF-8")?;
    let wrapped = format!("cd {}\nPATH=$PWD:$PATH\n{command}", files.display());
    let words = ["trace", "record", "-o", folder, "--", "chrt", "-f", "10", "bash", "-c", &wrapped];
    let recorded = run(&words)?;
    if !recorded.status.success() {
        bail!("vmscope trace record failed: {}", String::from_utf8_lossy(&recorded.stderr));
    }
    Ok(trace::report(&trace, &["--view", "critical-path"])?["critical_path"].clone())
}

/// How long the command takes without a trace.
fn median_s(files: &Path, command: &str) -> anyhow::Result<f64> {
    let mut runs = Vec::new();
    for _ in 0..RUNS {
        let began = Instant::now();
        let status = shell(files, command).status().context("failed to start chrt")?;
        if !status.success() {
            bail!("{command:?} ended with {status}");
        }
        runs.push(began.elapsed().as_secs_f64());
    }
    runs.sort_by(f64::total_cmp);
    Ok(runs[RUNS / 2])
}
