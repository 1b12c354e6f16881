//! `vmscope doctor`.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io;
use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::Context;
use api::guest::SERIAL_PORT_NAME;
use host::capabilities::{self, Area, AreaVerdict, Facts, Finding, State, Trial, Trials, Verdict};
use host::vms::{STATE_FOLDER, VmNames, VmProcess};
use model::Trigger;
use probes::{ProbeError, Sampler};
use sandbox::Sandbox;
use serde_json::{Value, json};
use symbols::SymbolReader;
use table::{Cell, Column, Table};

use cli::print;

/// Version of the JSON that docs/operations.md describes.
const VERSION: u32 = 1;

const EMULATOR: &str = "qemu-system-x86_64";

const EXAMPLE: &str = "Examples:
  vmscope doctor                                  one line per requirement
  vmscope doctor --format json | jq .verdict      for scripts";

/// Check whether this host can be recorded, and print how to fix what is missing.
///
/// Attaches the sampling program for a moment. If no VM runs, starts a small guest under /dev/kvm for up to 5 s. Exit
/// code 0: `vmscope record` works here; 1: it does not.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLE)]
pub(crate) struct Args {
    /// Output format
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

/// What was found out.
struct Doctor {
    hostname: String,
    kernel: String,
    findings: Vec<Finding>,
    verdict: Verdict,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let doctor = examine();
    let text = match args.format {
        Format::Text => text(&doctor),
        Format::Json => table::pretty(&json(&doctor)),
    };
    print(&text).context("failed to write to standard output")?;
    Ok(ExitCode::from(u8::from(!can_record(&doctor))))
}

fn examine() -> Doctor {
    let facts = Facts::read(Path::new("/"));
    let (sampler, vms) = try_sampler(&facts);
    // VMs that run show that guests run here; a trial guest would only disturb them.
    let runs_vms = vms.as_ref().is_some_and(|names| !names.is_empty());
    let guest = if runs_vms { Trial::Passed } else { try_guest() };
    let landlock = sandbox::has_landlock();
    let trials = Trials { sampler, child: try_child(), landlock, guest, vms };
    let findings = capabilities::findings(&facts, &trials);
    let verdict = capabilities::verdict(&findings);
    let hostname = host::machine::hostname(Path::new("/proc"));
    Doctor { hostname, kernel: facts.kernel.release, findings, verdict }
}

fn can_record(doctor: &Doctor) -> bool {
    doctor.verdict.host.state != State::Missing
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

fn try_child() -> Trial {
    match Sandbox::<SymbolReader>::default().start() {
        Ok(()) => Trial::Passed,
        Err(failure) => Trial::Failed(failure.to_string()),
    }
}

fn running_vms(sampler: &Sampler) -> Result<Vec<String>, ProbeError> {
    let mut pids: Vec<u32> = sampler.find_vcpus()?.iter().map(|vcpu| vcpu.pid.0).collect();
    pids.sort_unstable();
    pids.dedup();
    let describe = |pid| host::vms::describe(Path::new("/proc"), pid, SERIAL_PORT_NAME);
    let vms: Vec<VmProcess> = pids.into_iter().map(describe).collect();
    let names = VmNames::in_folder(Path::new(STATE_FOLDER));
    Ok(names.of(&vms.iter().collect::<Vec<_>>(), &BTreeMap::new()))
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
    run_trial().unwrap_or_else(|error| Trial::NotTried(format!("{error:#}")))
}

/// The test host's trial boots a small guest.
fn run_trial() -> anyhow::Result<Trial> {
    let program = cli::find_program("vmscope-lab")?;
    let output = Command::new(&program).args(["testbed", "probe"]).output();
    let output = output.with_context(|| format!("failed to run {}", program.display()))?;
    if output.status.success() {
        return Ok(Trial::Passed);
    }
    let reason = String::from_utf8_lossy(&output.stderr);
    let reason = reason.trim_end().trim_start_matches("vmscope: ");
    Ok(Trial::Failed(reason.to_owned()))
}

/// The documented JSON.
fn json(doctor: &Doctor) -> Value {
    let keys = ["area", "what", "state", "reason", "advice"];
    let mut findings = Table::new("", keys.map(Column::json_only).to_vec());
    for Finding { area, what, state, reason, advice } in &doctor.findings {
        let area = match area {
            Area::Host => "host",
            Area::Guests => "guests",
        };
        let texts = [area, what, state_name(*state), reason].map(Cell::from);
        findings.row(texts.into_iter().chain([advice.clone().into()]));
    }
    let area = |verdict: &AreaVerdict| json!({ "state": state_name(verdict.state), "reasons": verdict.reasons });
    json!({
        "version": VERSION,
        "hostname": doctor.hostname,
        "kernel": doctor.kernel,
        "findings": findings.json(),
        "verdict": {
            "record": can_record(doctor),
            "host": area(&doctor.verdict.host),
            "guests": area(&doctor.verdict.guests),
        },
    })
}

fn state_name(state: State) -> &'static str {
    match state {
        State::Works => "works",
        State::Limited => "limited",
        State::Missing => "missing",
    }
}

fn text(doctor: &Doctor) -> String {
    let mut text = format!("{}, Linux {}\n", doctor.hostname, doctor.kernel);
    let width = doctor.findings.iter().map(|finding| finding.what.len()).max().unwrap_or(0);
    for (area, title) in [(Area::Host, "This host"), (Area::Guests, "Guests")] {
        let _ = writeln!(text, "\n{title}");
        for Finding { what, state, reason, advice, .. } in
            doctor.findings.iter().filter(|finding| finding.area == area)
        {
            let _ = writeln!(text, "  {:<8} {what:<width$}  {reason}", state_name(*state));
            if let Some(advice) = advice {
                let _ = writeln!(text, "  {:8} {:width$}  -> {advice}", "", "");
            }
        }
    }
    let Verdict { host, guests } = &doctor.verdict;
    let (will, host) = match can_record(doctor) {
        true => ("will", "yes".to_owned()),
        false => ("won't", answer(host)),
    };
    let _ = writeln!(text, "\nvmscope record {will} work: host {host}; guests {}", answer(guests));
    text
}

/// `yes`, or the first thing that is in the way.
fn answer(verdict: &AreaVerdict) -> String {
    let reason = verdict.reasons.first().map(String::as_str).unwrap_or_default();
    match verdict.state {
        State::Works => "yes".to_owned(),
        State::Limited => format!("in part, because {reason}"),
        State::Missing => format!("no, because {reason}"),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod test {
    use super::*;

    fn doctor(host: State, guests: State) -> Doctor {
        let row = |area, what, state, reason: &str, advice: Option<&str>| Finding {
            area,
            what,
            state,
            reason: reason.to_owned(),
            advice: advice.map(str::to_owned),
        };
        let verdict = |state: State, reason: &str| AreaVerdict {
            state,
            reasons: if state == State::Works { vec![] } else { vec![reason.to_owned()] },
        };
        Doctor {
            hostname: "h1".to_owned(),
            kernel: "6.1.0".to_owned(),
            findings: vec![
                row(Area::Host, "privileges", host, "it is root", None),
                row(Area::Guests, "KVM", guests, "kvm_intel", Some("use AMD")),
            ],
            verdict: Verdict {
                host: verdict(host, "privileges: not root"),
                guests: verdict(guests, "KVM: kvm_intel"),
            },
        }
    }

    #[test]
    fn json_as_documented() {
        let expected = json!({
            "version": 1, "hostname": "h1", "kernel": "6.1.0",
            "findings": [
                { "area": "host", "what": "privileges", "state": "works", "reason": "it is root", "advice": null },
                { "area": "guests", "what": "KVM", "state": "limited", "reason": "kvm_intel", "advice": "use AMD" },
            ],
            "verdict": {
                "record": true,
                "host": { "state": "works", "reasons": [] },
                "guests": { "state": "limited", "reasons": ["KVM: kvm_intel"] },
            },
        });
        assert_eq!(json(&doctor(State::Works, State::Limited)), expected);
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
