//! Who may do what, the server's certificate, and its command line.

#![allow(clippy::unwrap_used)]

mod common;

use std::fs;
use std::process::Command;

use common::{Place, window};
use serde_json::json;

#[test]
fn everybody_may_do_what_is_theirs() {
    let place = Place::new();
    let server = place.start("");
    let [agent, read, admin] = ["agent", "read", "admin"].map(|role| server.token(role));
    let host = server.enroll("kvm1");
    let other = server.enroll("kvm2");
    let window = window("kvm1", 100);

    server.put(&window, "").check(401, "a token is needed");
    for token in [&agent, &read, &admin, &format!("kvm1~{}", "0".repeat(64)), &"x".to_owned()] {
        server.put(&window, token).check(401, "not known");
    }
    // Whose it is follows from the token alone: it touches nothing of kvm1.
    assert_eq!(server.put(&window, &other).status, 201);
    assert_eq!(server.get(&format!("/v1/windows/{}", window.id), &read).status, 404);
    assert_eq!(server.put(&window, &host).status, 201);

    let get = format!("/v1/windows/{}", window.id);
    for path in ["/v1/windows", "/v1/hosts", &get] {
        server.get(path, "").check(401, "a token is needed");
        server.get(path, &host).check(401, "not known");
        server.get(path, &agent).check(403, "role");
        assert_eq!(server.get(path, &read).status, 200);
        assert_eq!(server.get(path, &admin).status, 200);
    }
    let new = json!({"role": "read", "name": "ann", "days": 1});
    server.ask("POST", "/v1/tokens", &read, Some(&new)).check(403, "role");
    let made = server.ask("POST", "/v1/tokens", &admin, Some(&new));
    assert_eq!(made.status, 201);
    let (token, id) = (made.json()["token"].clone(), made.json()["id"].clone());
    let token = token.as_str().unwrap();
    assert_eq!(server.get("/v1/hosts", token).status, 200);
    let list = server.get("/v1/tokens", &admin).json();
    assert!(list.as_array().unwrap().iter().any(|entry| entry["id"] == id));
    assert!(!list.to_string().contains(token));
    let path = format!("/v1/tokens/{}", id.as_str().unwrap());
    server.ask("DELETE", &path, &read, None).check(403, "role");
    assert_eq!(server.ask("DELETE", &path, &admin, None).status, 204);
    server.get("/v1/hosts", token).check(401, "not known");
    server.ask("DELETE", &path, &admin, None).check(404, "none");

    server.ask("DELETE", "/v1/hosts/kvm1", &read, None).check(403, "role");
    let again = json!({"token": agent, "host": "kvm1"});
    server.ask("POST", "/v1/enroll", "", Some(&again)).check(409, "enrolled already");
    assert_eq!(server.ask("DELETE", "/v1/hosts/kvm1", &admin, None).status, 204);
    server.put(&window, &host).check(401, "not known");
    assert_eq!(server.ask("POST", "/v1/enroll", "", Some(&again)).status, 201);
    for (token, name, status) in [(&read, "a", 403), (&agent, "../a", 400), (&agent, "", 400)] {
        let body = json!({"token": token, "host": name});
        assert_eq!(server.ask("POST", "/v1/enroll", "", Some(&body)).status, status);
    }
    for (body, status) in [(json!({}), 422), (json!({"token": 1, "host": "a"}), 422)] {
        server.ask("POST", "/v1/enroll", "", Some(&body)).check(status, "");
    }
    server.get("/v2", "").check(404, "no such path");
}

/// Users that the proxy names are believed, other senders of such headers are not.
#[test]
fn a_proxy_names_users_when_it_is_switched_on() {
    let section = |address: &str| {
        format!(
            "[proxy]\naddresses = ['{address}']\nuser_header = 'x-user'\ngroups_header = 'x-groups'\n\
             read_groups = ['staff']\nadmin_groups = ['root']"
        )
    };
    let place = Place::new();
    let ask = |more: &str, path: &str, headers: &[(&str, &str)]| {
        place.start(more).get_with(path, headers)
    };
    let (ann, root) =
        ([("x-user", "ann"), ("x-groups", "all, staff")], [("x-user", "r"), ("x-groups", "root")]);
    // Off, or not from the proxy.
    assert_eq!(ask("", "/v1/hosts", &root), 401);
    assert_eq!(ask(&section("192.0.2.1"), "/v1/hosts", &root), 401);
    // On.
    let server = place.start(&section("127.0.0.1"));
    assert_eq!(server.get_with("/v1/hosts", &ann), 200);
    assert_eq!(server.get_with("/v1/tokens", &ann), 403);
    assert_eq!(server.get_with("/v1/tokens", &root), 200);
    for headers in [
        &[("x-user", "ann")][..],
        &[("x-user", "ann"), ("x-groups", "staf, staff2")],
        &[("x-user", "ann"), ("x-groups", "x"), ("x-groups", "root")],
    ] {
        assert_eq!(server.get_with("/v1/hosts", headers), 403, "{headers:?}");
    }
    for headers in [
        &[("x-groups", "root")][..],
        &[("x-user", ""), ("x-groups", "root")],
        &[("x-user", "a"), ("x-user", "b"), ("x-groups", "root")],
    ] {
        assert_eq!(server.get_with("/v1/hosts", headers), 401, "{headers:?}");
    }
    // Tokens are good as before, but a proxy on this machine is not this machine's own user.
    let token = format!("Bearer {}", server.token("read"));
    assert_eq!(server.get_with("/v1/hosts", &[("authorization", &token)]), 200);
    assert_eq!(server.get_with("/metrics", &[]), 401);
    assert_eq!(server.get_with("/metrics", &ann), 200);
    // Windows need a host's token, whatever passes them on.
    let sent = server.ask("PUT", &window("kvm1", 100).put_path(), "", Some(&json!({})));
    sent.check(401, "a token is needed");
}

/// A browser's cookie lets the web page read, and nothing else.
#[test]
fn a_browser_logs_in_to_read() {
    let place = Place::new();
    let server = place.start("");
    let [agent, read, admin] = ["agent", "read", "admin"].map(|role| server.token(role));
    let log_in =
        |token: &str| server.ask("POST", "/v1/session", "", Some(&json!({ "token": token })));
    log_in("x").check(401, "not known");
    log_in(&agent).check(403, "role");
    for token in [&read, &admin] {
        let reply = log_in(token);
        assert_eq!(reply.status, 204);
        let expected = format!("__Host-vmscope={token}; Path=/; Secure; HttpOnly; SameSite=Strict");
        assert_eq!(reply.header("set-cookie"), Some(expected.as_str()));
    }
    let gone = server.ask("DELETE", "/v1/session", "", None);
    assert!(gone.header("set-cookie").is_some_and(|cookie| cookie.contains("=; Path=/")));

    let cookie = format!("a=b; __Host-vmscope={admin}");
    let ask = |path: &str, headers: &[(&str, &str)]| {
        server.get_with(path, &[headers, &[("cookie", &cookie)]].concat())
    };
    assert_eq!(ask("/v1/hosts", &[]), 200);
    assert_eq!(ask("/v1/hosts", &[("sec-fetch-site", "same-origin")]), 200);
    for site in ["same-site", "cross-site", ""] {
        assert_eq!(ask("/v1/hosts", &[("sec-fetch-site", site)]), 401, "{site}");
    }
    assert_eq!(ask("/v1/tokens", &[]), 401);
    for other in ["__Host-vmscope=", "__Host-vmscope=x", "__Host-vmscopes=x", "vmscope=x", ";;="] {
        assert_eq!(server.get_with("/v1/hosts", &[("cookie", other)]), 401, "{other}");
    }
}

#[test]
fn tokens_that_are_not_good_are_counted_wherever_they_are_sent() {
    let place = Place::new();
    let server = place.start("");
    let [agent, read] = ["agent", "read"].map(|role| server.token(role));
    let denied =
        |reason| server.metric(&format!("vmscope_server_denied_total{{reason=\"{reason}\"}}"));
    let log_in = |token: &str| {
        server.ask("POST", "/v1/session", "", Some(&json!({ "token": token }))).status
    };
    let enroll = |token: &str| {
        let request = json!({ "token": token, "host": "kvm1" });
        server.ask("POST", "/v1/enroll", "", Some(&request)).status
    };
    assert_eq!([log_in("x"), log_in(&agent), log_in(&read)], [401, 403, 204]);
    assert_eq!([enroll("x"), enroll(&read), enroll(&agent)], [401, 403, 201]);
    assert_eq!(server.get("/v1/hosts", "x").status, 401);
    assert_eq!(server.put(&window("kvm1", 100), "x").status, 401);
    let counts = ["session", "enroll", "token", "host"].map(denied);
    assert_eq!(counts, [2.0, 2.0, 1.0, 1.0]);
}

/// No browser guesses what an answer is, and none is kept, but the page's own files.
#[test]
fn every_answer_says_what_it_is_and_is_not_kept() {
    let place = Place::new();
    let server = place.start("");
    let read = server.token("read");
    let long = json!({ "token": "x".repeat(100_000) });
    let session = |body| server.ask("POST", "/v1/session", "", body);
    let replies = [
        (200, server.get("/v1/hosts", &read)),
        (200, server.get("/healthz", "")),
        (200, server.get("/metrics", "")),
        (200, server.get("/openapi.json", "")),
        (200, server.get("/v1/ca", "")),
        (400, server.get("/v1/windows?from=x", &read)),
        (401, server.get("/v1/hosts", "")),
        (404, server.get("/nothing", "")),
        (404, server.get("/assets/nothing.js", "")),
        (405, server.ask("DELETE", "/v1/fleet", &read, None)),
        (413, session(Some(&long))),
        (422, session(Some(&json!({})))),
    ];
    for (status, reply) in replies {
        assert_eq!(reply.status, status, "{reply:?}");
        assert_eq!(reply.header("x-content-type-options"), Some("nosniff"), "{reply:?}");
        assert_eq!(reply.header("cache-control"), Some("no-store"), "{reply:?}");
    }
    assert_eq!(server.get("/", "").header("x-content-type-options"), Some("nosniff"));
}

/// Also where the client reads it when all is sent: it is not cut off before.
#[test]
fn a_client_that_sends_too_much_reads_so() {
    let place = Place::new();
    let server = place.start("max_window_bytes = 65536");
    let host = server.enroll("kvm1");
    let large = vec![b'x'; 64 << 20];
    server.put(&window("kvm1", 100).with(large.clone()), &host).check(413, "at most");
    let body = ureq::SendBody::from_owned_reader(std::io::Cursor::new(large));
    let reply = server.try_send("POST", "/v1/session", "", body, true).unwrap();
    reply.check(413, "at most");
    let body = ureq::SendBody::from_owned_reader(std::io::Cursor::new(vec![b'x'; 4 << 20]));
    server.try_send("POST", "/mcp", "", body, true).unwrap().check(401, "token");
}

/// The web page, or how to build it.
#[test]
fn the_page_is_served() {
    let place = Place::new();
    let server = place.start("");
    let page = server.get("/", "");
    server.get("/assets/index.html", "").check(404, "no such path");
    server.get("/assets/..%2findex.html", "").check(404, "no such path");
    let text = String::from_utf8_lossy(&page.content);
    if page.status == 404 {
        assert!(text.contains("make ui"), "{text}");
        return;
    }
    assert!(
        page.header("content-security-policy")
            .is_some_and(|policy| policy.starts_with("default-src 'none'"))
    );
    let tag = page.header("etag").unwrap();
    assert_eq!(server.get_with("/", &[("if-none-match", tag)]), 304);
    let script =
        text.split('"').find(|part| part.starts_with("assets/") && part.ends_with(".js")).unwrap();
    let script = server.get(&format!("/{script}"), "");
    assert_eq!(script.status, 200);
    assert!(script.header("cache-control").is_some_and(|caching| caching.contains("immutable")));
}

/// The page's requests are checked against this description when it is built.
#[test]
fn the_page_knows_the_api() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../ui/openapi.json");
    let output =
        Command::new(env!("CARGO_BIN_EXE_vmscope-server")).arg("openapi").output().unwrap();
    if std::env::var_os("UPDATE").is_some() {
        fs::write(file, &output.stdout).unwrap();
    }
    let known = fs::read(file).unwrap();
    assert!(known == output.stdout, "ui/openapi.json is out of date: run this test with UPDATE=1");
}

#[test]
fn the_certificate_authority_stays() {
    let place = Place::new();
    let mut server = place.start("names = ['fleet.example.org']");
    let fingerprint = server.fingerprint.clone();
    server.kill();
    assert_eq!(place.start("").fingerprint, fingerprint);
}

#[test]
fn the_api_is_described() {
    let place = Place::new();
    let server = place.start("");
    let reported = server.get("/openapi.json", "").json();
    let output =
        Command::new(env!("CARGO_BIN_EXE_vmscope-server")).arg("openapi").output().unwrap();
    assert_eq!(serde_json::from_slice::<serde_json::Value>(&output.stdout).unwrap(), reported);
    for path in ["/v1/enroll", "/v1/windows/{boot}/{start}", "/v1/windows/{host}/{boot}/{start}"] {
        assert!(reported["paths"][path].is_object(), "{path}");
    }
    // What is said to be a part of the path is one.
    for (path, operations) in reported["paths"].as_object().unwrap() {
        let operations = operations.as_object().unwrap().values();
        let parameters = operations.filter_map(|of| of["parameters"].as_array()).flatten();
        for parameter in parameters.filter(|parameter| parameter["in"] == "path") {
            let name = format!("{{{}}}", parameter["name"].as_str().unwrap());
            assert!(path.contains(&name), "{name} is no part of {path}");
        }
    }
    // A body may come too slowly, or be too long.
    let paths = reported["paths"].as_object().unwrap().values();
    let operations = paths.flat_map(|path| path.as_object().unwrap().values());
    let with_body: Vec<_> = operations.filter(|of| of["requestBody"].is_object()).collect();
    assert_eq!(with_body.len(), 7);
    for operation in with_body {
        for status in ["408", "413"] {
            assert!(operation["responses"][status].is_object(), "{operation}");
        }
    }
    assert_eq!(reported["components"]["securitySchemes"]["token"]["scheme"], "bearer");
}

#[test]
fn a_configuration_is_checked() {
    let dir = tempfile::tempdir().unwrap();
    let check = |text: &str| {
        let file = dir.path().join("server.toml");
        fs::write(&file, text).unwrap();
        let program = env!("CARGO_BIN_EXE_vmscope-server");
        let output = Command::new(program).arg("--check").arg(&file).output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    assert_eq!(check("raw_days = 3\n[query]\nseconds = 5").0, Some(0));
    let (code, said) = check("raw_days = 0");
    assert!(code == Some(2) && said.contains("raw_days must be from 1"), "{said}");
    let (code, said) = check("\nlistn = 1");
    assert!(
        code == Some(2) && said.contains("server.toml: line 2: unknown field `listn`"),
        "{said}"
    );
    assert_eq!(said.lines().count(), 1, "{said}");
}

#[test]
fn wrong_usage_is_one_line() {
    let check = |arguments: &[&str], code: i32, expected: &str| {
        let program = env!("CARGO_BIN_EXE_vmscope-server");
        let output = Command::new(program).args(arguments).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{said}");
        assert!(said.lines().count() == 1 && said.contains(expected), "{said}");
    };
    check(&["--nosuch"], 2, "vmscope-server: unexpected argument '--nosuch' found");
    check(&["token", "--name", "me"], 2, "see vmscope-server token --help");
    check(&["analyze", "x"], 2, "see vmscope-server analyze --help");
    check(&["left", "--store", "/nowhere/store"], 1, "there is no store /nowhere/store");
    check(&["--config", "/nowhere.toml"], 2, "failed to read /nowhere.toml");
    check(&["token", "--role", "read", "--name", "", "--store", "/proc/x"], 1, "/proc/x");
}

/// For packages: a man page for each command that is shown, and completions.
#[test]
fn manuals_are_written() {
    let dir = tempfile::tempdir().unwrap();
    let program = env!("CARGO_BIN_EXE_vmscope-server");
    let status = Command::new(program).arg("manuals").arg(dir.path()).status().unwrap();
    assert!(status.success());
    for file in ["vmscope-server.8", "vmscope-server-analyze.8", "vmscope-server.bash"] {
        assert!(dir.path().join(file).exists(), "{file}");
    }
}
