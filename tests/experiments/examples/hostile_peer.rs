//! A peer that lies: says things to a layout daemon that no honest one says, by a key that it knows.
//!
//! ```text
//! hostile_peer STATE ADDRESS FINGERPRINT garbled|late|old|forged|stranger|command
//! ```
//!
//! Prints `ready: LAYOUT`, `refused: REASON` or `no entry: REASON`. STATE has the key; a stranger makes its own there.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use api::layout::{Counters, DestinationMessage, Offer, Sample, SourceMessage, StartedBy, VERSION};
use migration::Peer;
use migration::fuzzing::{converse, frame_of};

fn counters(misses: f64, age_s: f64) -> Vec<u8> {
    let sample = Sample { seconds: 1.0, misses, instructions: Some(5e8), remote: None };
    let source = "perf".to_owned();
    frame_of(&SourceMessage::Counters(Counters { source, age_s, samples: vec![sample; 10] }))
}

#[expect(clippy::print_stdout, reason = "what it heard is what the program is for")]
fn main() -> anyhow::Result<ExitCode> {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, state, address, fingerprint, kind] = &arguments[..] else {
        anyhow::bail!("usage: hostile_peer STATE ADDRESS FINGERPRINT KIND");
    };
    let fingerprint = fingerprint.parse().ok().context("no fingerprint")?;
    let peer = Peer { name: "victim".to_owned(), address: address.clone(), fingerprint };
    let vm = if kind == "command" { "a; reboot" } else { "a" };
    let offer = Offer {
        vm: vm.to_owned(),
        uuid: None,
        vcpus: 1,
        memory: 128 << 20,
        ran_s: 100.0,
        policy: None,
        started_by: StartedBy::Daemon,
    };
    let now = Duration::ZERO;
    let hello = frame_of(&SourceMessage::Hello { version: VERSION });
    let mut said = vec![(now, hello), (now, frame_of(&SourceMessage::Offer(offer)))];
    match kind.as_str() {
        "garbled" => said.push((now, frame_of(&"{\"samples\": [[[[["))),
        // After the destination has given up waiting for them.
        "late" => said.push((Duration::from_secs(15), counters(2.8e7, 0.0))),
        "old" => said.push((now, counters(2.8e7, 9999.0))),
        "forged" => said.push((now, counters(1e300, 0.0))),
        _ => said.push((now, counters(2.8e7, 0.0))),
    }
    match converse(state.as_ref(), &peer, &said, Duration::from_secs(120)) {
        Ok(answers) => {
            for answer in answers {
                match answer {
                    DestinationMessage::Ready { layout, .. } => {
                        println!("ready: {}", layout.outcome)
                    }
                    DestinationMessage::Refused { reason } => println!("refused: {reason}"),
                    _ => {}
                }
            }
        }
        Err(reason) => println!("no entry: {reason}"),
    }
    Ok(ExitCode::SUCCESS)
}
