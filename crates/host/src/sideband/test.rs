//! Against the running kernel: needs the right to watch all processes (root).

use super::*;

#[test]
fn a_short_process_is_seen_from_fork_to_exit() {
    let n_cpus = std::thread::available_parallelism().unwrap().get();
    let cpus: Vec<u32> = (0..u32::try_from(n_cpus).unwrap()).collect();
    let mut sideband = match Sideband::open(&cpus, 1 << 20) {
        Ok(sideband) => sideband,
        Err(error) => return skip::skip(error),
    };
    let mut child = std::process::Command::new("/bin/true").spawn().unwrap();
    let pid = child.id();
    child.wait().unwrap();

    let mut events = Vec::new();
    sideband.drain(&mut |event| events.push(event));
    assert!(events.is_sorted_by_key(|event| event.time_ns));
    events.retain(|event| event.pid == pid);

    let position = |wanted: &dyn Fn(&EventKind) -> bool| {
        events.iter().position(|event| wanted(&event.kind)).unwrap()
    };
    let own = std::process::id();
    let fork = position(&|kind| matches!(kind, EventKind::Fork { parent } if *parent == own));
    let exec =
        position(&|kind| matches!(kind, EventKind::Comm { name, exec: true } if name == "true"));
    let libc = position(
        &|kind| matches!(kind, EventKind::Map { path, build_id: Some(_), .. } if path.contains("libc")),
    );
    let exit = position(&|kind| *kind == EventKind::Exit);
    assert!(fork < exec && exec < libc && libc < exit, "{events:#?}");
    assert_eq!(sideband.lost(), 0);
}

#[test]
fn events_of_a_cpu_that_leaves_are_kept_and_it_may_come_back() {
    let mut sideband = match Sideband::open(&[0], 1 << 16) {
        Ok(sideband) => sideband,
        Err(error) => return skip::skip(error),
    };
    assert!(!sideband.set_cpus(&[0], 1 << 16).unwrap());
    assert!(!sideband.set_cpus(&[], 1 << 16).unwrap());
    assert_eq!(sideband.half_full().count(), 0);
    assert!(sideband.set_cpus(&[0], 1 << 16).unwrap());
    assert_eq!(sideband.half_full().count(), 1);
}
