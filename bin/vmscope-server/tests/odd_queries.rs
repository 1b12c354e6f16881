//! Odd queries against a running server: what becomes of each, and what is left of all.
//!
//! `VMSCOPE_ODD_QUERIES=10000` (`make odd-queries`) asks that many.

#![allow(clippy::unwrap_used)]

mod common;
mod odd;

use std::collections::BTreeMap;
use std::fs;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use common::{NS, Place, Reply, Server, memory_kib, now_ns, replayed, wait_until};
use serde_json::json;

/// A query has less time than by default, so that ten thousand end within the hour.
const CONFIG: &str = "[query]\nseconds = 1\nconcurrent = 4";
/// So many are queried at the same time.
const CONCURRENT: usize = 4;

/// What became of queries, and for how long the longest was waited for.
#[derive(Default)]
struct Outcomes {
    count: BTreeMap<&'static str, usize>,
    /// Reasons why there was no answer, without their details.
    reasons: BTreeMap<String, usize>,
    longest: Duration,
}

impl Outcomes {
    fn add(&mut self, sql: &str, reply: &Reply, took: Duration) {
        let outcome = outcome(reply);
        *self.count.entry(outcome).or_default() += 1;
        if let Some(error) = reply.json()["error"].as_str() {
            let reason: String = error.chars().take(100).collect();
            if reply.status == 503 {
                eprintln!("{reason}: {sql}");
            }
            *self.reasons.entry(reason).or_default() += 1;
        }
        self.longest = self.longest.max(took);
    }

    fn share(&self, outcome: &str) -> f64 {
        let of = |count: usize| f64::from(u32::try_from(count).unwrap());
        of(self.count.get(outcome).copied().unwrap_or(0)) / of(self.count.values().sum())
    }
}

fn outcome(reply: &Reply) -> &'static str {
    let content = reply.json();
    let error = content["error"].as_str().unwrap_or_default();
    match reply.status {
        200 if content["partial"] == json!([]) => "answered (200)",
        200 => "answered in part (200)",
        400 => "refused (400)",
        422 if error.contains("too much memory") => "too much memory (422)",
        422 => "too late (422)",
        503 => "its process ended (503)",
        status => panic!("{status}: {error}"),
    }
}

fn ask(server: &Server, reader: &str, sql: &str) -> Reply {
    server.ask("POST", "/v1/sql", reader, Some(&json!({ "sql": sql })))
}

/// Process ids of the server's children that answer queries.
fn children(server: &Server) -> Vec<u32> {
    let tasks = fs::read_dir(format!("/proc/{}/task", server.child.id())).unwrap();
    let lists = tasks.map_while(Result::ok).map(|task| task.path().join("children"));
    let text: String = lists.filter_map(|list| fs::read_to_string(list).ok()).collect();
    let ids = text.split_whitespace().map(|id| id.parse().unwrap());
    let is_of_queries = |id: &u32| {
        let name = fs::read_to_string(format!("/proc/{id}/comm"));
        name.is_ok_and(|name| name.trim() == "vmscope-query")
    };
    ids.filter(is_of_queries).collect()
}

#[test]
fn odd_queries_leave_nothing() {
    let count = std::env::var("VMSCOPE_ODD_QUERIES").map_or(150, |count| count.parse().unwrap());
    let place = Place::new();
    let server = place.start(CONFIG);
    let (reader, host) = (server.token("read"), server.enroll("kvm1"));
    for number in 0..4 {
        let window = replayed("kvm1", number, now_ns() - (100 - 20 * number) * NS);
        assert_eq!(server.put(&window, &host).status, 201);
    }
    place.wait_for_results(4);
    let count_rows = "SELECT count(*), sum(ns) FROM vcpu_time";
    let expected = ask(&server, &reader, count_rows).json()["rows"].clone();
    // As many children as there can be have answered once.
    std::thread::scope(|scope| {
        (0..8).for_each(|_| drop(scope.spawn(|| ask(&server, &reader, count_rows))));
    });
    // Without the program's own pages, of which more are read as more of it runs.
    let (before, began) = (server.memory_kib("RssAnon"), Instant::now());

    let queries = Mutex::new((odd::Random::new(29), 0));
    let outcomes = Mutex::new(Outcomes::default());
    let next = || {
        let (random, requested) = &mut *queries.lock().unwrap();
        (*requested < count).then(|| {
            *requested += 1;
            random.query()
        })
    };
    std::thread::scope(|scope| {
        for _ in 0..CONCURRENT {
            scope.spawn(|| {
                while let Some(sql) = next() {
                    let requested = Instant::now();
                    let reply = ask(&server, &reader, &sql);
                    outcomes.lock().unwrap().add(&sql, &reply, requested.elapsed());
                }
            });
        }
    });
    let took = began.elapsed().as_secs_f64();
    let requested = Instant::now();
    assert_eq!(ask(&server, &reader, "SELECT 1").json()["rows"], json!([[1]]));
    let one = requested.elapsed().as_secs_f64();
    let after = server.memory_kib("RssAnon");

    let outcomes = outcomes.into_inner().unwrap();
    eprintln!(
        "{count} queries in {took:.0} s, the longest {:.2} s",
        outcomes.longest.as_secs_f64()
    );
    for (outcome, count) in &outcomes.count {
        eprintln!("{count:8} {outcome}: {:.1} %", 100.0 * outcomes.share(outcome));
    }
    let mut reasons: Vec<_> = outcomes.reasons.iter().collect();
    reasons.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
    for (reason, count) in reasons.iter().take(20) {
        eprintln!("{count:8} times: {reason}");
    }
    let peak = server.memory_kib("VmHWM");
    eprintln!("SELECT 1 afterwards: {one:.3} s");
    eprintln!(
        "the server's own memory: {before} KiB before, {after} after; all of it at most: {peak}"
    );
    let left = children(&server);
    let memory: Vec<_> = left.iter().filter_map(|child| memory_kib(*child, "VmRSS")).collect();
    eprintln!("children left: {} with {memory:?} KiB", left.len());
    assert_eq!(ask(&server, &reader, count_rows).json()["rows"], expected);
    assert!(after < before + (64 << 10), "{before} KiB before, {after} after");
    assert!(left.len() <= CONCURRENT, "{left:?}");
    assert!(outcomes.share("refused (400)") < 0.5, "most queries are to be valid");
    if 1000 < count {
        // Children that no query needs end; one stays.
        wait_until("the end of unused children", || children(&server).len() <= 1);
        eprintln!("children a minute later: {}", children(&server).len());
    }
}
