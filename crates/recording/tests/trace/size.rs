//! Bytes per event of a realistic trace.

use recording::trace::Trace;

use crate::common::synthetic_trace::Build;
use crate::common::traces::spool;

/// Two CPUs that build something, 300,000 events each.
#[test]
fn an_event_takes_less_than_eight_bytes() {
    let build = Build { cpus: 2, seed: 1 };
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("build");
    let writer = spool(&path, &build.header(), &build.tables(), &[]);
    let mut spooled = 0;
    for cpu in 0..build.cpus {
        let events = build.events(cpu, 300_000);
        let mut spool = writer.spool(events[0].machine, cpu).unwrap();
        events.chunks(1_000).for_each(|drained| spool.append(drained).unwrap());
        let file = writer.partial_path().join(format!("machine0-cpu{cpu}.raw"));
        spooled += file.metadata().unwrap().len();
    }
    let summary = writer.finish(&build.header(), &build.tables()).unwrap();
    eprintln!(
        "{summary:?} {:.2} bytes per event, spooled {:.1}",
        summary.bytes_per_event(),
        spooled as f64 / 600_000.0
    );
    assert_eq!(summary.events, 600_000);
    assert!(spooled < 24 * 600_000, "{spooled} bytes spooled");
    assert!(summary.bytes_per_event() < 8.0, "{summary:?}");

    let mut seen = 0;
    Trace::open(&path).unwrap().for_each_batch(&mut |batch| seen += batch.len()).unwrap();
    assert_eq!(seen, 600_000);
}
