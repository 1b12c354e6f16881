use super::*;
use crate::results::{Ending, Outcome};

const HEADER: &str = r#"{"vmscope_boot":1,"version":"0.1.0","cpu":{"vendor":"AuthenticAMD","brand":"QEMU CPU ","family":15,"model":107,"stepping":1,"hypervisor":"TCGTCGTCGTCG"},"tsc":{"hz":1000000000,"invariant":true,"calibrated_by":"pit","spread_ppm":12},"memory_bytes":100000,"cpus":2,"apic":true,"watchdog":null,"loader":"pvh","firmware":"unknown","plan":"short","command_line":"","operations":3}"#;
const CONDITION: &str = r#"{"condition":"long.cpl0","effective":true,"reason":null,"cr0":17,"cr4":0,"ring":0,"chase_ticks":3.1,"empty_ticks":41.0}"#;
const ADD: &str = r#"{"begin":"add","condition":"long.cpl0"}
{"result":"add","condition":"long.cpl0","status":"ok","unit":"ticks","single":{"min":1.0,"median":2.0,"p99":3.0,"max":4.0,"n":200},"batch":{"of":100,"min":0.8,"median":0.81},"bytes":0,"reliable":true}"#;
const CPUID: &str = r##"{"begin":"cpuid","condition":"long.cpl0"}
{"result":"cpuid","condition":"long.cpl0","status":"fault","vector":6,"name":"#UD"}"##;
const HLT: &str = r#"{"begin":"hlt","condition":"long.cpl0"}"#;
const END: &str = r#"{"end":"complete","results":2,"tsc_drift_ppm":-3,"backward_jumps":0}"#;

fn log(parts: &[&str]) -> String {
    parts.join("\n")
}

/// What came of each operation, and the notes.
fn shown(log: &str) -> String {
    let results = match parse(log.as_bytes()) {
        Ok(results) => results,
        Err(error) => return format!("error: {error}"),
    };
    let mut lines: Vec<String> = results
        .measurements
        .iter()
        .map(|m| match &m.outcome {
            Outcome::Measured(figures) => {
                format!("{} {} {:?}", m.operation, m.condition, figures.ticks().unwrap())
            }
            other => format!("{} {} {}", m.operation, m.condition, other.why()),
        })
        .collect();
    lines.extend(results.notes.all());
    lines.join("\n")
}

fn check(parts: &[&str], expected: &[&str]) {
    assert_eq!(shown(&log(parts)), expected.join("\n"));
}

#[test]
fn a_whole_log() {
    let text = log(&["SeaBIOS", HEADER, CONDITION, ADD, CPUID, END, ""]);
    let results = parse(text.as_bytes()).unwrap();
    assert_eq!(results.machine.brand, "QEMU CPU");
    assert_eq!(results.machine.tsc.hz, Some(1e9));
    assert_eq!(results.machine.tsc.drift_ppm, Some(-3));
    assert_eq!((results.machine.watchdog, results.ending), (None, Ending::Complete));
    assert_eq!(results.conditions[0].chase_ticks, Some(3.1));
    assert_eq!(shown(&text), "add long.cpl0 0.8\ncpuid long.cpl0 fault #UD");
}

#[test]
fn the_firmwares_words_stand_anywhere() {
    let mixed = format!("Booting...{HEADER}garbage {{\"x\":1}}");
    let cut_in = format!("\x1b[2J{ADD} tail\r");
    check(
        &[&mixed, "{not ours", "{\"other\":\"json\"}", &cut_in, END],
        &["add long.cpl0 0.8", "1 of 2 results are lost"],
    );
}

#[test]
fn what_is_lost_is_said() {
    let half = &CPUID[..CPUID.len() - 20];
    check(
        &[HEADER, CONDITION, ADD, half, HLT, END],
        &[
            "add long.cpl0 0.8",
            "cpuid long.cpl0 lost on the way",
            "hlt long.cpl0 lost on the way",
            "line 6: damaged: {\"result\":\"cpuid\",\"condition\":\"long.cpl0\",\"status\":\"fault\",\"",
            "1 of 2 results are lost",
        ],
    );
    check(
        &[ADD, END],
        &[
            "add long.cpl0 0.8",
            "the header is lost: machine and clock are not known",
            "1 of 2 results are lost",
        ],
    );
}

#[test]
fn the_last_operation_of_a_log_that_ends_hung() {
    check(
        &[HEADER, CONDITION, ADD, HLT],
        &[
            "add long.cpl0 0.8",
            "hlt long.cpl0 hung: the log ends there",
            "the end is missing: operations after the last one here were not tried",
        ],
    );
}

#[test]
fn a_machine_that_starts_again_goes_on() {
    check(
        &[HEADER, CONDITION, ADD, HLT, HEADER, CONDITION, ADD, CPUID, END],
        &[
            "add long.cpl0 0.8",
            "hlt long.cpl0 hung: the machine started again",
            "cpuid long.cpl0 fault #UD",
            "the machine started 2 times: taken together",
        ],
    );
    let other = HEADER.replace("QEMU CPU", "Another");
    check(
        &[HEADER, CONDITION, ADD, HLT, &other, CONDITION, CPUID, END],
        &[
            "cpuid long.cpl0 fault #UD",
            "results of several machines: only those of the last one are used",
            "1 of 2 results are lost",
        ],
    );
}

#[test]
fn figures_that_make_no_sense_are_no_figures() {
    let check = |from: &str, to: &str, expected: &str| {
        let text = log(&[HEADER, CONDITION, &ADD.replace(from, to), CPUID, END]);
        let found = shown(&text);
        assert!(found.contains(expected), "{to}: {found}");
        assert!(found.contains("add long.cpl0 lost on the way"), "{to}: {found}");
    };
    check("\"median\":2.0", "\"median\":9.0", "single shots out of order");
    check("\"min\":1.0", "\"min\":-1.0", "single shots without min");
    check("\"min\":0.8", "\"min\":1e300", "batches without min");
    check("\"unit\":\"ticks\"", "\"unit\":\"ns\"", "figures that are not in ticks");
    check("\"status\":\"ok\"", "\"status\":\"wonderful\"", "unknown status \"wonderful\"");
    check("\"result\":\"add\"", "\"result\":\"<script>\"", "is not an operation");
    check(
        "\"result\":\"add\",\"condition\":\"long.cpl0\"",
        "\"result\":\"add\",\"condition\":\"x\"",
        "is not a condition",
    );
}

#[test]
fn errors() {
    let check = |parts: &[&str], expected: &str| {
        assert_eq!(shown(&log(parts)), format!("error: {expected}"));
    };
    check(&["", "Linux version 6.1"], "no benchmark output in this file");
    check(
        &[&HEADER.replace("\"vmscope_boot\":1", "\"vmscope_boot\":2"), ADD],
        "its lines have version 2, this vmscope reads version 1: use the vmscope that the image was built with",
    );
    check(
        &[r#"{"error":"unknown plan 'x'","choices":["short","full"]}"#],
        "the image says: unknown plan 'x'; it knows: short, full",
    );
    check(&[HEADER, CONDITION, END], "the benchmark started, and measured nothing");
}

#[test]
fn an_error_amidst_results_is_a_note() {
    check(
        &[HEADER, CONDITION, ADD, r#"{"error":"no memory"}"#],
        &[
            "add long.cpl0 0.8",
            "it says: no memory",
            "the end is missing: operations after the last one here were not tried",
        ],
    );
}

/// A small generator of numbers that are the same each time (xorshift).
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % n as u64).unwrap()
    }
}

/// Bytes changed, lost, doubled and moved: whatever comes, reading ends, and no figure is there that was not said.
#[test]
fn any_damage_is_survived() {
    let log = include_bytes!("../../../../tests/golden/bench/vm.log");
    let whole = parse(log).unwrap();
    let known: Vec<f64> = whole.measurements.iter().filter_map(ticks).collect();
    let mut random = Random(0x5eed_0004);
    let (mut unharmed, mut all) = (0, 0);
    for _ in 0..300 {
        let mut damaged = log.to_vec();
        for _ in 0..1 + random.below(12) {
            damage(&mut damaged, &mut random);
        }
        let Ok(results) = parse(&damaged) else { continue };
        let n_notes = results.notes.all().len();
        assert!(n_notes <= 101, "{n_notes} notes");
        let figures: Vec<f64> = results.measurements.iter().filter_map(ticks).collect();
        all += figures.len();
        unharmed += figures.iter().filter(|ticks| known.contains(ticks)).count();
    }
    // A digit that became another digit can't be detected; all else can.
    assert!(all * 97 < unharmed * 100, "{unharmed} of {all}");
}

fn ticks(measurement: &crate::Measurement) -> Option<f64> {
    match &measurement.outcome {
        Outcome::Measured(figures) => figures.ticks(),
        _ => None,
    }
}

fn damage(log: &mut Vec<u8>, random: &mut Random) {
    if log.len() < 2 {
        return;
    }
    let at = random.below(log.len());
    let to = (at + random.below(80)).min(log.len());
    match random.below(5) {
        0 => log[at] = u8::try_from(random.below(256)).unwrap(),
        1 => drop(log.drain(at..to)),
        2 => {
            let copied = log[at..to].to_vec();
            let place = random.below(log.len());
            log.splice(place..place, copied);
        }
        3 => log.truncate(at),
        _ => drop(log.splice(at..at, b"\x1b[2J{\"".iter().copied())),
    }
}
