//! The fleet under kills.

use std::path::Path;

use super::Outcome;
use crate::storm::{Storm, storm};

/// As many windows as 200 hosts send in 10 minutes, and 100 kills of those who send them and of the server.
const LONG: Storm = Storm {
    hosts: 200,
    senders: 10,
    rate: 200.0 / 60.0,
    seconds: 600.0,
    kills: 100,
    seed: 20_261_123,
};
/// Of the server, whatever the fleet does.
const MOST_BYTES: u64 = 1 << 30;

/// Nothing that was acknowledged is lost or counts twice: `storm` fails else.
pub(super) fn kills(_: &Path) -> anyhow::Result<Vec<Outcome>> {
    let survived = storm(&LONG)?;
    let [senders, server] = survived.kills;
    let [answers, partial] = survived.answers;
    let lost = Outcome {
        mark: "storm",
        what: format!("{} hosts, {senders} senders and {server} servers killed", LONG.hosts),
        original: "-",
        ours: format!(
            "{} windows acknowledged, {} stored, each analysed once; {answers} right answers, {partial} partial",
            survived.acknowledged, survived.stored
        ),
        limit: "none lost or twice",
        pass: true,
    };
    let memory = Outcome {
        mark: "storm",
        what: "peak of the server's memory meanwhile".to_owned(),
        original: "-",
        ours: format!("{} MiB", survived.server_bytes >> 20),
        limit: "1 GiB",
        pass: survived.server_bytes < MOST_BYTES,
    };
    Ok(vec![lost, memory])
}
