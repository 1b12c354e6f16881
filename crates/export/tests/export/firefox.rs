//! The Firefox export against the processed profile format, version 55, as the profiler's
//! `docs-developer/processed-profile-format.md` and `src/types/profile.ts` describe it: every table's
//! columns have its length, every index is in range, every required field is there.

use analysis::flow::Flow;
use serde_json::Value;

use crate::fixture;

/// Columns of each table of a thread, and what their numbers refer to.
const TABLES: [(&str, &[(&str, Refers)]); 7] = {
    use Refers::{Category, Nothing, Row, Text};
    [
        (
            "samples",
            &[
                ("stack", Row("stackTable")),
                ("timeDeltas", Nothing),
                ("weight", Nothing),
                ("threadCPUDelta", Nothing),
            ],
        ),
        ("stackTable", &[("prefix", Row("stackTable")), ("frame", Row("frameTable"))]),
        (
            "frameTable",
            &[
                ("address", Nothing),
                ("inlineDepth", Nothing),
                ("category", Category),
                ("subcategory", Nothing),
                ("func", Row("funcTable")),
                ("nativeSymbol", Row("nativeSymbols")),
                ("innerWindowID", Nothing),
                ("line", Nothing),
                ("column", Nothing),
            ],
        ),
        (
            "funcTable",
            &[
                ("name", Text),
                ("isJS", Nothing),
                ("relevantForJS", Nothing),
                ("resource", Row("resourceTable")),
                ("fileName", Text),
                ("lineNumber", Nothing),
                ("columnNumber", Nothing),
            ],
        ),
        (
            "resourceTable",
            &[("lib", Nothing), ("name", Text), ("host", Nothing), ("type", Nothing)],
        ),
        (
            "nativeSymbols",
            &[
                ("address", Nothing),
                ("functionSize", Nothing),
                ("libIndex", Refers::Lib),
                ("name", Text),
            ],
        ),
        (
            "markers",
            &[
                ("name", Text),
                ("startTime", Nothing),
                ("endTime", Nothing),
                ("phase", Nothing),
                ("category", Category),
                ("data", Nothing),
            ],
        ),
    ]
};

#[derive(Clone, Copy)]
enum Refers {
    /// Rows of a table of the same thread.
    Row(&'static str),
    /// The thread's strings.
    Text,
    /// The profile's categories.
    Category,
    /// The profile's libraries.
    Lib,
    Nothing,
}

fn export(flow: &Flow) -> Value {
    let mut json = Vec::new();
    export::firefox::write_json(flow, &mut json).unwrap();
    serde_json::from_slice(&json).unwrap()
}

fn length(table: &Value) -> usize {
    usize::try_from(table["length"].as_u64().unwrap()).unwrap()
}

fn check_thread(profile: &Value, thread: &Value) {
    for field in ["name", "pid", "tid", "processName", "processType"] {
        assert!(thread[field].is_string(), "{field}");
    }
    for field in ["registerTime", "processStartupTime"] {
        assert!(thread[field].is_number(), "{field}");
    }
    for (table, columns) in TABLES {
        for (column, refers) in columns {
            let rows =
                thread[table][*column].as_array().unwrap_or_else(|| panic!("{table}.{column}"));
            assert_eq!(rows.len(), length(&thread[table]), "{table}.{column}");
            let limit = match refers {
                Refers::Row(other) => length(&thread[*other]),
                Refers::Text => thread["stringArray"].as_array().unwrap().len(),
                Refers::Category => profile["meta"]["categories"].as_array().unwrap().len(),
                Refers::Lib => profile["libs"].as_array().unwrap().len(),
                Refers::Nothing => continue,
            };
            // null and -1 both stand for "none" in this format.
            for row in rows.iter().filter_map(Value::as_u64) {
                assert!(
                    usize::try_from(row).unwrap() < limit,
                    "{table}.{column}: {row} of {limit}"
                );
            }
        }
    }
    let deltas = thread["samples"]["timeDeltas"].as_array().unwrap();
    assert!(deltas.iter().all(|delta| delta.as_f64().unwrap() >= 0.0));
}

fn check(flow: &Flow) {
    let profile = export(flow);
    let meta = &profile["meta"];
    assert_eq!(meta["preprocessedProfileVersion"], 55);
    assert_eq!(meta["symbolicated"], true);
    for field in ["interval", "startTime", "version", "processType"] {
        assert!(meta[field].is_number(), "{field}");
    }
    for category in meta["categories"].as_array().unwrap() {
        assert!(category["name"].is_string() && category["color"].is_string());
        assert_eq!(category["subcategories"][0], "Other");
    }
    for field in ["libs", "threads", "pages", "counters"] {
        assert!(profile[field].is_array(), "{field}");
    }
    let mut ids: Vec<&str> = Vec::new();
    for thread in profile["threads"].as_array().unwrap() {
        check_thread(&profile, thread);
        ids.push(thread["tid"].as_str().unwrap());
    }
    let count = ids.len();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), count, "thread ids are unique");
}

#[test]
fn tables_are_whole() {
    check(&fixture::small());
    check(&fixture::hostile());
    check(&Flow::default());
}

/// The stack of a thread's first sample, outermost first, as `name (category)`.
fn first_stack(profile: &Value, thread: &Value) -> Vec<String> {
    let at = |value: &Value| usize::try_from(value.as_u64().unwrap()).unwrap();
    let mut stack = Vec::new();
    let mut next = &thread["samples"]["stack"][0];
    while !next.is_null() {
        let frame = at(&thread["stackTable"]["frame"][at(next)]);
        let function = at(&thread["frameTable"]["func"][frame]);
        let name = &thread["stringArray"][at(&thread["funcTable"]["name"][function])];
        let category = at(&thread["frameTable"]["category"][frame]);
        let category = &profile["meta"]["categories"][category]["name"];
        stack.insert(0, format!("{} ({})", name.as_str().unwrap(), category.as_str().unwrap()));
        next = &thread["stackTable"]["prefix"][at(next)];
    }
    stack
}

#[test]
fn threads_keep_their_process_and_stacks() {
    let profile = export(&fixture::small());
    let threads = profile["threads"].as_array().unwrap();
    let thread = |process: &str, tid: &str| {
        let is = |t: &&Value| t["processName"] == process && t["tid"] == tid;
        threads.iter().find(is).unwrap_or_else(|| panic!("{process} {tid}"))
    };
    for (process, tid, stack) in [
        (
            "[vm1] compute",
            "120",
            &["[vm1] (Other)", "compute (Other)", "compute_a (Guest user)"] as &[&str],
        ),
        ("[vm1] compute", "121", &["[vm1] (Other)", "compute (Other)", "schedule (Guest kernel)"]),
        // The same thread id in another guest, and an address beyond the format's 32 bits.
        ("[vm2] compute", "120.1", &["[vm2] (Other)", "compute (Other)", "memcpy (Guest user)"]),
        ("qemu-system-x86", "701", &["qemu-system-x86 (Other)", "qemu_read (Host user)"]),
        ("[vm3]", "0.1", &["[vm3] (Other)"]),
        ("swapper", "0", &["[idle] (Idle)", "default_idle (Idle)"]),
    ] {
        assert_eq!(first_stack(&profile, thread(process, tid)), stack);
    }
}

#[test]
fn sample_times_and_cpu_use() {
    let profile = export(&fixture::small());
    let by_process = |name: &str| {
        let threads = profile["threads"].as_array().unwrap();
        threads.iter().find(|thread| thread["processName"] == name).unwrap()["samples"].clone()
    };
    let first: Vec<Value> =
        by_process("[vm1] compute")["timeDeltas"].as_array().unwrap()[..3].to_vec();
    assert_eq!(first, [0.0, 1.0, 1.0]);
    assert_eq!(by_process("[vm2] compute")["timeDeltas"][0], 108.0);
    assert_eq!(by_process("[vm2] compute")["threadCPUDelta"][1], 1000);
    assert_eq!(by_process("swapper")["threadCPUDelta"][1], 0);
}

#[test]
fn libraries_carry_build_ids() {
    let profile = export(&fixture::small());
    let libs = profile["libs"].as_array().unwrap();
    let compute = libs.iter().find(|lib| lib["path"] == "[vm1]/usr/bin/compute").unwrap();
    assert_eq!(compute["name"], "compute");
    assert_eq!(compute["codeId"], "fedcba9876543210fedcba9876543210fedcba98");
    assert_eq!(compute["breakpadId"], "98BADCFE54761032FEDCBA98765432100");
}
