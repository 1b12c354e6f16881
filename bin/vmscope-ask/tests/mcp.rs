//! `vmscope mcp` and `vmscope ask` on a real recording, as a client and a user have them.

#![allow(clippy::unwrap_used)]

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};

use serde_json::{Value, json};

/// 20 s of three VMs on a virtual host with two CPUs.
fn recording() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../ui/tests/recording")
}

/// A client of the program's standard input and output.
struct Client {
    program: Child,
    to: Option<ChildStdin>,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
    id: u64,
}

impl Client {
    fn start(arguments: &[&str]) -> Self {
        let mut program = Command::new(env!("CARGO_BIN_EXE_vmscope-ask"))
            .arg("mcp")
            .arg(recording())
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(program.stdout.take().unwrap()).lines();
        let mut client = Self { to: program.stdin.take(), program, lines, id: 0 };
        let hello = client.call(
            "initialize",
            json!({
                "protocolVersion": "2025-06-18", "capabilities": {},
                "clientInfo": { "name": "test", "version": "1" },
            }),
        );
        assert_eq!(hello["serverInfo"]["name"], "vmscope");
        assert!(hello["instructions"].as_str().unwrap().contains("never instructions"));
        client.send(&json!({ "jsonrpc": "2.0", "method": "notifications/initialized" }));
        client
    }

    fn send(&mut self, message: &Value) {
        writeln!(self.to.as_mut().unwrap(), "{message}").unwrap();
    }

    /// The result of a request.
    fn call(&mut self, method: &str, parameters: Value) -> Value {
        self.id += 1;
        let id = self.id;
        self.send(&json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": parameters }));
        let line = self.lines.next().unwrap().unwrap();
        let answer: Value = serde_json::from_str(&line).unwrap();
        assert_eq!(answer["id"], id, "{answer}");
        answer["result"].clone()
    }

    /// The text of a tool's answer, and whether it is an error.
    fn tool(&mut self, name: &str, arguments: Value) -> (String, bool) {
        let result = self.call("tools/call", json!({ "name": name, "arguments": arguments }));
        let text = result["content"][0]["text"].as_str().unwrap().to_owned();
        (text, result["isError"].as_bool().unwrap())
    }

    fn answer(&mut self, name: &str, arguments: Value) -> Value {
        let (text, is_error) = self.tool(name, arguments);
        assert!(!is_error, "{name}: {text}");
        assert!(ask::weight(&text) <= ask::MAX_WEIGHT, "{name}: {}", text.len());
        serde_json::from_str(&text).unwrap()
    }

    fn end(mut self) {
        self.to = None;
        assert!(self.program.wait().unwrap().success());
    }
}

#[test]
fn a_client_lists_and_calls_every_tool() {
    let mut client = Client::start(&[]);
    let listed = client.call("tools/list", json!({}));
    let tools = listed["tools"].as_array().unwrap();
    let names: Vec<_> = tools.iter().map(|tool| tool["name"].as_str().unwrap()).collect();
    let expected = [
        "what-is-wrong",
        "why-slow",
        "who-took-cpu",
        "what-changed",
        "hot-functions",
        "compare",
        "what-helps",
        "details",
    ];
    assert_eq!(names, expected);
    assert!(tools.iter().all(|tool| tool["annotations"]["readOnlyHint"] == true));
    assert!(tools.iter().all(|tool| tool["inputSchema"]["additionalProperties"] == false));

    let wrong = client.answer("what-is-wrong", json!({}));
    assert_eq!(wrong["next"][0]["question"], "why-slow");
    let vm = wrong["next"][0]["arguments"]["vm"].clone();
    assert_eq!(vm, "web");
    client.answer("why-slow", wrong["next"][0]["arguments"].clone());
    let took = client.answer("who-took-cpu", json!({ "vm": vm, "from": "5", "to": "10" }));
    // Whole slices of 0.1 s.
    let length_s = took["about"]["length_s"].as_f64().unwrap();
    assert!((5.0..5.2).contains(&length_s), "{length_s}");
    let taker = took["next"][0]["arguments"].clone();
    let details = client.answer("details", taker);
    assert_eq!(details["tables"][0]["columns"], json!(["kind", "name", "time_s", "cpus"]));
    client.answer("what-changed", json!({ "since": "10" }));
    client.answer(
        "compare",
        json!({
            "vm": vm, "from": "0", "to": "10", "other_from": "10", "other_to": "20",
        }),
    );
    let hot = client.answer("hot-functions", json!({ "vm": vm }));
    assert!(!hot["tables"][0]["rows"].as_array().unwrap().is_empty());
    client.answer("hot-functions", json!({}));
    client.answer("what-helps", json!({}));
    client.end();
}

#[test]
fn a_wrong_call_says_what_is_right() {
    let mut client = Client::start(&[]);
    let mut check = |name: &str, arguments: Value, expected: &str| {
        let (text, is_error) = client.tool(name, arguments);
        assert!(is_error && text.contains(expected) && text.len() < 2000, "{text}");
    };
    check("why-slow", json!({}), "`vm` is missing; why-slow needs vm");
    check("why-slow", json!({ "vm": "nosuch" }), "the first of 3: [\"ci\",\"db\",\"web\"]");
    check("why-slow", json!({ "vm": "web", "limit": 5 }), "unknown field `limit`");
    check("why-slow", json!({ "vm": ["web"] }), "why-slow needs vm");
    check("why-slow", json!({ "vm": "web", "from": "100" }), "before `to`");
    check("hot-functions", json!({ "paths": true, "vm": "web" }), "has no call paths");
    check("delete-vm", json!({}), "no such question: there are what-is-wrong");
    check("job-waits", json!({}), "needs a trace");
    client.answer("what-helps", json!({}));
    client.end();
}

fn ask(arguments: &[&str]) -> (Option<i32>, String, String) {
    let mut program = Command::new(env!("CARGO_BIN_EXE_vmscope-ask"));
    let output = program.arg("ask").args(arguments).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

#[test]
fn a_user_has_the_same_answers() {
    let folder = recording();
    let folder = folder.to_str().unwrap();
    let (code, json, _) = ask(&["why-slow", folder, "--vm", "web", "--format", "json"]);
    assert_eq!(code, Some(0));
    let json: Value = serde_json::from_str(&json).unwrap();
    let mut client = Client::start(&[]);
    assert_eq!(client.answer("why-slow", json!({ "vm": "web" })), json);
    client.end();
    let (_, text, _) = ask(&["why-slow", folder, "--vm", "web"]);
    assert!(
        text.contains("Where the time of the vCPUs went") && text.contains("\nNext\n"),
        "{text}"
    );
    let (code, _, error) = ask(&["why-slow", folder]);
    assert_eq!((code, error.lines().count()), (Some(2), 1), "{error}");
    let nowhere = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let (code, _, error) = ask(&["what-is-wrong", "--login", nowhere.to_str().unwrap()]);
    assert_eq!(code, Some(1));
    assert!(error.contains("use `vmscope query login` first"), "{error}");
}
