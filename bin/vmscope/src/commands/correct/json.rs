//! `vmscope correct` as the published JSON type. Names are cleaned: they may come from guests.

use analysis::steal::{Victim, VictimTime, Victims};
use api::steal as json;

use super::super::scene::cleaned;
use super::super::scene::json::{reasons, recording, stolen, thieves};
use super::{Answer, Corrected, Findings, rounded, run_bound_ns};

pub(super) fn correct(findings: &Findings<'_>) -> json::Correct {
    let scene = findings.scene;
    let start = scene.recording.header.start;
    let (correction, processes) = match &findings.answer {
        Answer::One(corrected) => (Some(one(findings, corrected)), Vec::new()),
        Answer::Processes(victims) => (None, processes(findings, victims)),
    };
    json::Correct {
        version: json::VERSION,
        recording: recording(scene),
        vm: cleaned(&scene.vm_row(findings.vm).name),
        from_ns: findings.window.from.since(start),
        to_ns: findings.window.to.since(start),
        correction,
        processes,
    }
}

fn one(findings: &Findings<'_>, corrected: &Corrected) -> json::Correction {
    let (scene, args, found) = (findings.scene, findings.args, &corrected.found);
    json::Correction {
        process: args.process.as_deref().map(cleaned),
        function: args.function.as_deref().map(cleaned),
        apparent_ns: corrected.apparent_ns,
        apparent_given: args.apparent.is_some(),
        corrected_ns: corrected.corrected_ns,
        bound_ns: corrected.bound_ns,
        beyond_ns: corrected.beyond_ns,
        samples: found.time.samples,
        stolen: stolen(&found.time.stolen),
        thieves: thieves(scene, &found.thieves, corrected.apparent_ns),
        reasons: reasons(scene, &found.reasons, corrected.apparent_ns),
        unattributed: stolen(&found.unattributed),
    }
}

fn processes(findings: &Findings<'_>, victims: &Victims) -> Vec<json::Process> {
    let period_ns = findings.scene.recording.header.period_ns;
    let row = |(victim, time): &(Victim, VictimTime)| json::Process {
        process: cleaned(&victim.process),
        pid: victim.pid,
        apparent_ns: time.apparent_ns(),
        corrected_ns: time.run_ns(),
        bound_ns: rounded(run_bound_ns(period_ns, time, victims.samples)),
        samples: time.samples,
        stolen: stolen(&time.stolen),
    };
    victims.rows.iter().map(row).collect()
}
