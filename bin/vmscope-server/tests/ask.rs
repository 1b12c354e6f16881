//! Questions of `vmscope ask` to a real server.

#![allow(clippy::unwrap_used)]

mod common;

use std::time::SystemTime;

use ask::{Arguments, AskError, Fleet, MAX_WEIGHT, Question, Request, Source, weight};
use common::{Place, Server, hostile_window, now_ns, replayed, wait_until};
use serde_json::{Value, json};

fn now_us() -> i64 {
    i64::try_from(SystemTime::UNIX_EPOCH.elapsed().unwrap().as_micros()).unwrap()
}

/// A server as a source, by the requests of `vmscope ask`.
fn fleet(server: &Server, token: &str) -> impl Source {
    let client = |request: &Request<'_>| {
        let reply = match request {
            Request::Get { path, parameters } => {
                let pairs = parameters.iter().map(|(name, value)| format!("{name}={value}"));
                let path = format!("{path}?{}", pairs.collect::<Vec<_>>().join("&"));
                server.get(&path, token)
            }
            Request::Post { path, json } => {
                server.ask("POST", path, token, Some(&serde_json::from_str(json).unwrap()))
            }
        };
        let text = String::from_utf8(reply.content).unwrap();
        if reply.status == 200 { Ok(text) } else { Err(AskError::Arguments(text)) }
    };
    Fleet::new(client, "https://fleet", now_us)
}

/// Steal of kvm1's VM web in per cent of its time, by the rows of its windows.
fn stolen_percent(server: &Server, token: &str) -> f64 {
    let sql = "SELECT sum(ns) FILTER (WHERE state LIKE 'steal%'), sum(ns) FROM vcpu_time \
        WHERE host = 'kvm1' AND vm = 'web'";
    let answer = server.ask("POST", "/v1/sql", token, Some(&json!({ "sql": sql }))).json();
    let figure = |column: usize| answer["rows"][0][column].as_f64().unwrap();
    100.0 * figure(0) / figure(1)
}

fn given(question: Question, given: Value) -> Arguments {
    let Value::Object(given) = given else { panic!("an object") };
    question.arguments(given).unwrap()
}

#[test]
fn all_questions_are_answered_from_windows() {
    let place = Place::new();
    let server = place.start("");
    let reader = server.token("read");
    for (number, host) in (0..).zip(["kvm1", "kvm2"]) {
        let token = server.enroll(host);
        let window = replayed(host, number, now_ns() - 60_000_000_000);
        assert_eq!(server.put(&window, &token).status, 201);
    }
    let token = server.enroll("kvm3");
    assert_eq!(server.put(&hostile_window("kvm3", 100), &token).status, 201);
    place.wait_for_results(3);
    let source = fleet(&server, &reader);
    let ask = |question: Question, arguments: Value| -> Value {
        let answer = ask::answer(&source, question, &given(question, arguments)).unwrap();
        let json = answer.json();
        let weighs = weight(&json.to_string());
        assert!(weighs <= MAX_WEIGHT, "{}: {weighs}", question.name());
        assert!(!json.to_string().contains(['\u{202e}', '\u{200b}']), "{json}");
        json
    };
    let wrong = |question: Question, arguments: Value| -> String {
        let arguments = given(question, arguments);
        ask::answer(&source, question, &arguments).unwrap_err().to_string()
    };
    let several = wrong(Question::WhySlow, json!({ "vm": "web" }));
    assert!(several.contains("give one of [\"kvm1\",\"kvm2\"]"), "{several}");
    let none = wrong(Question::WhySlow, json!({ "vm": "x' OR '1'='1" }));
    assert!(none.contains("no host has a VM of this name"), "{none}");
    let early = json!({ "host": "kvm1", "vm": "web", "from": "3h", "to": "2h" });
    assert!(wrong(Question::WhySlow, early).contains("no windows of this host"));

    let web = json!({ "host": "kvm1", "vm": "web" });
    let slow = ask(Question::WhySlow, web.clone());
    let summary = slow["summary"].as_str().unwrap();
    let stolen = format!("{:.1} % to others (steal)", stolen_percent(&server, &reader));
    assert!(summary.contains(&stolen), "{stolen}: {slow}");
    let page = slow["about"]["page"].as_str().unwrap();
    assert!(page.starts_with("https://fleet/#/vm/kvm1/web?from=20"), "{page}");
    let took = ask(Question::WhoTookCpu, web.clone());
    ask(Question::Details, took["next"][0]["arguments"].clone());
    let hot = ask(Question::HotFunctions, web.clone());
    ask(Question::Details, hot["next"][0]["arguments"].clone());
    ask(Question::WhatHelps, web);
    ask(Question::WhatHelps, json!({}));
    ask(Question::WhatIsWrong, json!({}));
    ask(Question::WhatChanged, json!({ "since": "30m" }));
    ask(
        Question::Compare,
        json!({
            "host": "kvm1", "vm": "web", "from": "30m", "other_from": "40m", "other_to": "0",
        }),
    );
    wait_until("the fleet's sums", || {
        let wrong = ask(Question::WhatIsWrong, json!({}));
        wrong["tables"].to_string().contains("VMs that lost most")
    });
    // A VM whose name acts can be named as answers show it.
    let names = wrong(Question::WhySlow, json!({ "host": "kvm3", "vm": "x" }));
    let names: Value = serde_json::from_str(&names[names.find('[').unwrap()..]).unwrap();
    let name = names[0].as_str().unwrap();
    assert!(name.starts_with("0<img src=x onerror=alert(1)>\\u{1b}"), "{name}");
    for question in [Question::WhySlow, Question::HotFunctions, Question::WhoTookCpu] {
        ask(question, json!({ "host": "kvm3", "vm": name }));
    }
    ask(Question::HotFunctions, json!({ "host": "kvm3" }));
}

#[test]
fn an_assistant_has_tools_over_http_with_its_own_token() {
    let place = Place::new();
    let server = place.start("");
    let (reader, agent) = (server.token("read"), server.token("agent"));
    let token = server.enroll("kvm1");
    let window = replayed("kvm1", 0, now_ns() - 60_000_000_000);
    assert_eq!(server.put(&window, &token).status, 201);
    place.wait_for_results(1);
    let call = |token: &str, method: &str, parameters: Value| {
        let message = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": parameters });
        server.ask("POST", "/mcp", token, Some(&message))
    };
    let client = json!({
        "protocolVersion": "2025-06-18", "capabilities": {},
        "clientInfo": { "name": "test", "version": "1" },
    });
    call("", "initialize", client.clone()).check(401, "token");
    call(&agent, "initialize", client.clone()).check(403, "role");
    let hello = call(&reader, "initialize", client).json();
    assert_eq!(hello["result"]["serverInfo"]["name"], "vmscope", "{hello}");
    let tools = call(&reader, "tools/list", json!({})).json();
    let tools = tools["result"]["tools"].as_array().unwrap();
    assert_eq!(tools.len(), Question::ALL.len() - 1);
    let tool = |name: &str, arguments: Value| {
        let parameters = json!({ "name": name, "arguments": arguments });
        call(&reader, "tools/call", parameters).json()["result"].clone()
    };
    let slow = tool("why-slow", json!({ "vm": "web" }));
    let text = slow["content"][0]["text"].as_str().unwrap();
    let stolen = format!("{:.1} % to others (steal)", stolen_percent(&server, &reader));
    assert!(text.contains(&stolen) && weight(text) <= MAX_WEIGHT, "{stolen}: {text}");
    let wrong = tool("why-slow", json!({ "vm": "nosuch" }));
    assert_eq!(wrong["isError"], true);
    let words = wrong["content"][0]["text"].as_str().unwrap();
    assert!(words.contains("no host has a VM of this name"), "{words}");
    let large = json!({ "name": "why-slow", "arguments": { "vm": "x".repeat(100_000) } });
    assert_eq!(call(&reader, "tools/call", large).status, 413);
    assert_eq!(server.get("/mcp", &reader).status, 405);
}
