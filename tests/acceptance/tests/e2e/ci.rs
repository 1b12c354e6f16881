//! A job before and after a change.

use acceptance::{in_testbed, run, text};
use serde_json::Value;

/// A third more work in one of two functions, and none more.
pub(crate) fn a_slower_job_is_found_with_its_function() {
    let folder = tempfile::tempdir().unwrap();
    let script = "ci='vmscope ci record --runs 8'
        $ci -o before -- sh -c 'fixed 6 4'
        $ci -o again -- sh -c 'fixed 6 4'
        $ci -o after -- sh -c 'fixed 9 4'
        code=0; $ci -o fails -- sh -c 'exit 3' || code=$?; [ $code = 3 ]
        # Another process that runs all the time is no part of it.
        fixed 1000 1000 >other.txt & other=$!
        $ci -o beside -- sh -c 'fixed 6 4'
        kill $other";
    let ran = in_testbed("no-guests-6.12", folder.path(), &format!("set -e\n{script}")).unwrap();
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let compared = |after: &str| -> (i32, Value) {
        let (before, after) = (path("before"), path(after));
        let compare = ["ci", "compare", &before, &after, "--least", "10", "--format", "json"];
        let output = run(&compare).unwrap();
        (output.status.code().unwrap(), serde_json::from_slice(&output.stdout).unwrap())
    };
    for (name, verdict, code) in
        [("again", "no_change", 0), ("beside", "no_change", 0), ("after", "slower", 1)]
    {
        let (found, json) = compared(name);
        let cpu = &json["cpu"];
        eprintln!(
            "{name}: {} %, {} to {}",
            cpu["change_percent"], cpu["low_percent"], cpu["high_percent"]
        );
        assert_eq!((found, text(&json, "verdict")), (code, verdict), "{json}");
        assert_eq!((&json["base_runs"], &json["new_runs"]), (&8.into(), &8.into()));
    }
    let (_, slower) = compared("after");
    let first = &slower["functions"][0];
    assert_eq!((text(first, "function"), text(first, "process")), ("compute_a", "fixed"));
    // Half as much again of a function with 6 of 10 parts of the work.
    let by = first["change_percent"].as_f64().unwrap();
    assert!((20.0..40.0).contains(&by), "{first}");

    let markdown = run(&["ci", "compare", &path("before"), &path("after"), "--format", "markdown"]);
    let markdown = String::from_utf8(markdown.unwrap().stdout).unwrap();
    assert!(markdown.contains("**Verdict**: slower: CPU time grew by"), "{markdown}");
    assert!(markdown.contains("| `compute_a` | `fixed` |"), "{markdown}");
    let refused = run(&["ci", "compare", &path("before"), &path("fails")]).unwrap();
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
}
