//! `vmscope doctor`.

use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use api::doctor::{AreaVerdict, Doctor, Finding, VERSION, Verdict};
use api::guest::SERIAL_PORT_NAME;
use host::capabilities::{self, Area, Facts, State, Trial, Trials};
use model::Trigger;
use probes::{ProbeError, Sampler};
use testbed::KvmVerdict;

/// How long a trial guest may take.
const TRIAL_TIME: Duration = Duration::from_secs(5);

const EMULATOR: &str = "qemu-system-x86_64";

const EXAMPLE: &str = "Examples:
  vmscope doctor
  vmscope doctor --format json | jq .verdict      for scripts";

/// Say what this machine can and cannot do, why, and what to do about it.
///
/// Tries what can be tried: loads and attaches the sampling program for a moment, and runs a small guest
/// under /dev/kvm for 5 s at most. Exit code 0: `vmscope record` will work here; 1: it won't.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLE)]
pub(crate) struct Args {
    /// How to print it
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Format {
    /// A table, and the verdict as its last line
    Text,
    /// JSON, see docs/operations.md
    Json,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let doctor = examine();
    let text = match args.format {
        Format::Text => text(&doctor),
        Format::Json => {
            serde_json::to_string_pretty(&doctor).context("failed to write JSON")? + "\n"
        }
    };
    io::stdout().write_all(text.as_bytes()).context("failed to write to standard output")?;
    Ok(ExitCode::from(u8::from(!doctor.verdict.record)))
}

fn examine() -> Doctor {
    let facts = Facts::read(Path::new("/"));
    let (sampler, vms) = try_sampler(&facts);
    let trials = Trials { sampler, guest: try_guest(), vms };
    let findings = capabilities::findings(&facts, &trials);
    let verdict = capabilities::verdict(&findings);
    Doctor {
        version: VERSION,
        hostname: host::machine::hostname(Path::new("/proc")),
        kernel: facts.kernel.release,
        findings: findings.into_iter().map(finding).collect(),
        verdict: Verdict {
            record: verdict.host.state != State::Missing,
            host: area(verdict.host),
            guests: area(verdict.guests),
        },
    }
}

/// Loads the program and attaches it to every CPU, for a moment; and looks for VMs.
fn try_sampler(facts: &Facts) -> (Trial, Option<Vec<String>>) {
    let attach = || -> Result<Option<Vec<String>>, ProbeError> {
        let sampler = Sampler::load(probes::Options {
            cpus: host::machine::online_cpus(Path::new("/sys")).unwrap_or_else(|_| vec![0]),
            trigger: Trigger::CpuClock,
            period: 100_000_000,
            slots: 256,
            call_graph: false,
            vendor: facts.vendor,
        })?;
        drop(sampler.start()?);
        // Without KVM there is nothing whose name the finder could look for.
        if facts.kvm.modules.is_empty() { Ok(None) } else { running_vms(&sampler).map(Some) }
    };
    match attach() {
        Ok(vms) => (Trial::Passed, vms),
        Err(ProbeError::Privilege) => (Trial::NotTried("it needs root".to_owned()), None),
        Err(error) => (Trial::Failed(format!("{:#}", anyhow::Error::from(error))), None),
    }
}

fn running_vms(sampler: &Sampler) -> Result<Vec<String>, ProbeError> {
    let mut pids: Vec<u32> = sampler.find_vcpus()?.iter().map(|vcpu| vcpu.pid.0).collect();
    pids.sort_unstable();
    pids.dedup();
    let describe = |pid| host::vms::describe(Path::new("/proc"), pid, SERIAL_PORT_NAME).name;
    Ok(pids.into_iter().map(describe).collect())
}

fn try_guest() -> Trial {
    let folders = std::env::var_os("PATH").unwrap_or_default();
    if !std::env::split_paths(&folders).any(|folder| folder.join(EMULATOR).exists()) {
        return Trial::NotTried(format!("{EMULATOR} is not installed"));
    }
    let device = std::fs::File::options().read(true).write(true).open("/dev/kvm");
    if device.is_err_and(|error| error.kind() == io::ErrorKind::PermissionDenied) {
        return Trial::NotTried("no permission to open /dev/kvm".to_owned());
    }
    match testbed::probe_kvm(TRIAL_TIME) {
        KvmVerdict::Works => Trial::Passed,
        KvmVerdict::Absent => Trial::Failed("there is no /dev/kvm".to_owned()),
        KvmVerdict::Unusable(reason) => Trial::Failed(reason),
    }
}

fn finding(finding: capabilities::Finding) -> Finding {
    let area = match finding.area {
        Area::Host => "host",
        Area::Guests => "guests",
    };
    Finding {
        area: area.to_owned(),
        what: finding.what.to_owned(),
        state: state(finding.state).to_owned(),
        reason: finding.reason,
        advice: finding.advice,
    }
}

fn area(verdict: capabilities::AreaVerdict) -> AreaVerdict {
    AreaVerdict { state: state(verdict.state).to_owned(), reasons: verdict.reasons }
}

fn state(state: State) -> &'static str {
    match state {
        State::Works => "works",
        State::Limited => "limited",
        State::Missing => "missing",
    }
}

fn text(doctor: &Doctor) -> String {
    let mut text = format!("{}, Linux {}\n", doctor.hostname, doctor.kernel);
    let width = doctor.findings.iter().map(|finding| finding.what.len()).max().unwrap_or(0);
    for (area, title) in [("host", "This host"), ("guests", "Guests")] {
        let _ = writeln!(text, "\n{title}");
        for Finding { what, state, reason, advice, .. } in
            doctor.findings.iter().filter(|finding| finding.area == area)
        {
            let _ = writeln!(text, "  {state:<8} {what:<width$}  {reason}");
            if let Some(advice) = advice {
                let _ = writeln!(text, "  {:8} {:width$}  -> {advice}", "", "");
            }
        }
    }
    let Verdict { record, host, guests } = &doctor.verdict;
    let will = if *record { "will" } else { "won't" };
    let host = if *record { "yes".to_owned() } else { answer(host) };
    let _ = writeln!(text, "\nvmscope record {will} work: host {host}; guests {}", answer(guests));
    text
}

/// `yes`, or the first thing that is in the way.
fn answer(verdict: &AreaVerdict) -> String {
    let reason = verdict.reasons.first().map(String::as_str).unwrap_or_default();
    match verdict.state.as_str() {
        "works" => "yes".to_owned(),
        "limited" => format!("in part, because {reason}"),
        _ => format!("no, because {reason}"),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod test {
    use super::*;

    fn doctor(host: State, guests: State) -> Doctor {
        let row = |area: &str, what: &str, state: State, reason: &str, advice: Option<&str>| {
            let (area, what) = (area.to_owned(), what.to_owned());
            let (state, reason) = (super::state(state).to_owned(), reason.to_owned());
            Finding { area, what, state, reason, advice: advice.map(str::to_owned) }
        };
        let verdict = |state: State, reason: &str| AreaVerdict {
            state: super::state(state).to_owned(),
            reasons: if state == State::Works { vec![] } else { vec![reason.to_owned()] },
        };
        Doctor {
            version: VERSION,
            hostname: "h1".to_owned(),
            kernel: "6.1.0".to_owned(),
            findings: vec![
                row("host", "privileges", host, "it is root", None),
                row("guests", "KVM", guests, "kvm_intel", Some("use AMD")),
            ],
            verdict: Verdict {
                record: host != State::Missing,
                host: verdict(host, "privileges: not root"),
                guests: verdict(guests, "KVM: kvm_intel"),
            },
        }
    }

    #[test]
    fn last_line_is_the_verdict() {
        let check = |host, guests, expected: &str| {
            assert_eq!(text(&doctor(host, guests)).lines().last(), Some(expected));
        };
        let (works, limited, missing) = (State::Works, State::Limited, State::Missing);
        check(works, works, "vmscope record will work: host yes; guests yes");
        let partly = "vmscope record will work: host yes; guests in part, because KVM: kvm_intel";
        check(limited, limited, partly);
        check(
            missing,
            missing,
            "vmscope record won't work: host no, because privileges: not root; guests no, because KVM: kvm_intel",
        );
    }

    #[test]
    fn the_table() {
        let file =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/doctor/table.txt");
        let got = text(&doctor(State::Works, State::Limited));
        if std::env::var_os("UPDATE").is_some() {
            return std::fs::write(file, got).unwrap();
        }
        assert_eq!(got, std::fs::read_to_string(file).unwrap(), "UPDATE=1 rewrites");
    }
}
