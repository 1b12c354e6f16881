//! A guest that runs a guest of its own.

use acceptance::{in_testbed, report, text};

/// The second guest jumps to itself at an address that is in no program of the first one. All that time is its VMM's, a
/// process of the first guest, whose code does nothing but wait for it.
pub(crate) fn time_of_a_guests_guest_is_its_process_that_runs_it() {
    let folder = tempfile::tempdir().unwrap();
    let script = "vmscope record --call-graph -o rec --duration 8
        vmscope record --edges switches -o switches --duration 4";
    let ran = in_testbed("nested", folder.path(), script).unwrap();
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    for name in ["rec", "switches"] {
        let report = report(&folder.path().join(name), &["--limit", "100000"]).unwrap();
        let is_outer = |row: &serde_json::Value| text(row, "vm") == "outer";
        let is_nested = |row: &serde_json::Value| text(row, "function") == "[nested]";
        let of_vm = report.sum(|row| is_outer(row) && text(row, "side") == "guest");
        let nested = report.sum(|row| is_outer(row) && is_nested(row));
        let by_process =
            report.sum(|row| is_outer(row) && is_nested(row) && text(row, "process") == "nested");
        eprintln!("{name}: {nested} of {of_vm} samples are nested, {by_process} of its process");
        assert!(1000 < of_vm && of_vm / 2 < nested, "{nested} of {of_vm}");
        // Before the guest's map came there are no processes.
        assert!(0.95 * nested as f64 <= by_process as f64, "{by_process} of {nested}");
        // No code of the first guest has it: its VMM's own function is main alone.
        let of_process = report.rows().iter().filter(|row| {
            is_outer(row)
                && text(row, "process") == "nested"
                && text(row, "module").ends_with("/nested")
        });
        for row in of_process {
            assert_eq!(text(row, "function"), "main", "{row}");
        }
        assert_eq!(report.sum(|row| text(row, "vm") == "plain" && is_nested(row)), 0);
    }
}
