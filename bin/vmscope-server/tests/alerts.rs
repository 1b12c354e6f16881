//! Findings on their way out: to a real Alertmanager, to webhooks, and back as what operators say about them.

#![allow(clippy::unwrap_used)]

mod common;

use std::process::Command;

use common::outside::{Outside, Sink, free_port, started};
use common::{Place, Server, now_ns, replayed, wait_until, window_at};
use serde_json::{Value, json};

const S: u64 = common::NS;

/// Sends windows of a host in which its VMs want more than there is, the first one so many seconds ago; ends when there is a
/// finding: its id.
fn disturbed(server: &Server, host: &str, since_s: u64) -> String {
    let (token, read) = (server.enroll(host), server.token("read"));
    for number in 0..6 {
        let window = replayed(host, number, now_ns() - (since_s - 20 * number) * S);
        assert_eq!(server.put(&window, &token).status, 201);
    }
    let mut id = String::new();
    wait_until("a finding", || {
        let list = server.get("/v1/findings?state=open", &read).json();
        let found = list["findings"].as_array().unwrap().clone();
        let found = found.iter().find(|found| {
            let text = found["text"].as_str().unwrap();
            text.contains(host) && text.contains("CPUs are wanted")
        });
        id = found.map_or(String::new(), |found| found["id"].as_str().unwrap().to_owned());
        !id.is_empty()
    });
    // What the host's token may do ends here: another test of the host enrols it again.
    assert_eq!(
        server.ask("DELETE", &format!("/v1/hosts/{host}"), &server.token("admin"), None).status,
        204
    );
    id
}

/// Sends windows in which the VMs are gone.
fn calm(server: &Server, host: &str, since_s: u64) {
    let token = server.enroll(host);
    for number in 0..6 {
        let window = window_at(host, 1000 + number, now_ns() - (since_s - 20 * number) * S, |_| {});
        assert_eq!(server.put(&window, &token).status, 201);
    }
}

fn alertmanager(place: &Place, port: u16, tell: &str) -> Option<Outside> {
    let file = place.dir.path().join("alertmanager.yml");
    let config = json!({
        "route": {
            "receiver": "sink", "group_by": ["kind"],
            "group_wait": "1s", "group_interval": "1s", "repeat_interval": "1h",
        },
        "receivers": [{"name": "sink", "webhook_configs": [{"url": tell, "send_resolved": true}]}],
    });
    std::fs::write(&file, config.to_string()).unwrap();
    let mut command = Command::new("prometheus-alertmanager");
    command.arg(format!("--config.file={}", file.display()));
    command.arg(format!("--storage.path={}", place.dir.path().join("alertmanager").display()));
    command.arg(format!("--web.listen-address=127.0.0.1:{port}"));
    command.arg("--cluster.listen-address=");
    started(command, None, port)
}

/// What an Alertmanager knows of a finding.
fn known(am: &Outside, id: &str) -> Vec<Value> {
    let all = am.get(&format!("/api/v2/alerts?filter=id%3D%22{id}%22"));
    serde_json::from_str::<Vec<Value>>(&all).unwrap()
}

#[test]
fn an_alertmanager_and_a_webhook_get_each_finding_once_and_to_its_end() {
    let place = Place::new();
    let (port, groups, sink) = (free_port(), Sink::start(), Sink::start());
    let Some(am) = alertmanager(&place, port, &groups.url()) else { return };
    let secret = place.dir.path().join("secret");
    std::fs::write(&secret, "whsec_c2VjcmV0\n").unwrap();
    let more = format!(
        "public_url = 'https://fleet.example'\n[[alertmanager]]\nurl = '{}'\n\
         [[webhook]]\nurl = '{}'\nsecret_file = '{}'",
        am.url(),
        sink.url(),
        secret.display()
    );
    // Two servers over one store see the same, and say it once.
    let (server, other) = (place.start_number(0, &more), place.start_number(1, &more));
    let id = disturbed(&server, "kvm1", 400);
    wait_until("the alert", || !known(&am, &id).is_empty());
    let alert = known(&am, &id)[0].clone();
    assert_eq!(alert["labels"]["host"], "kvm1");
    assert_eq!(alert["labels"]["alertname"], "VmscopeHostOvercommitted");
    assert!(alert["annotations"]["cause"].as_str().unwrap().contains("CPUs are wanted"), "{alert}");
    assert_eq!(alert["generatorURL"], format!("https://fleet.example/#/finding/{id}"));
    let reported = |sink: &Sink, status: &str| {
        let of = |message: &Value| message["id"] == *id && message["status"] == status;
        sink.bodies().into_iter().filter(of).collect::<Vec<_>>()
    };
    wait_until("the webhook", || !reported(&sink, "firing").is_empty());
    // Alertmanager puts alerts of a kind together.
    wait_until("a group", || {
        groups.bodies().iter().any(|group| {
            group["groupLabels"] == json!({"kind": "demand"})
                && group["alerts"].as_array().unwrap().iter().any(|of| of["labels"]["id"] == *id)
        })
    });

    calm(&server, "kvm1", 200);
    wait_until("the end", || !reported(&sink, "resolved").is_empty());
    wait_until("the end of the group", || {
        groups.bodies().iter().any(|group| {
            let mut alerts = group["alerts"].as_array().unwrap().iter();
            alerts.any(|of| of["labels"]["id"] == *id && of["status"] == "resolved")
        })
    });
    wait_until("the alert's end", || known(&am, &id).is_empty());
    assert_eq!((reported(&sink, "firing").len(), reported(&sink, "resolved").len()), (1, 1));
    let signed = sink.heads().into_iter().find(|head| head.contains(&format!("{id}-firing")));
    assert!(signed.unwrap().contains("webhook-signature: v1,"));
    for metric in ["alertmanager", "webhook"] {
        let name = format!("vmscope_server_messages_total{{to=\"{metric}\",outcome=\"sent\"}}");
        assert!(0.0 < server.metric(&name) + other.metric(&name), "{name}");
    }
}

#[test]
fn a_finding_outlives_the_server_and_the_results_that_showed_it() {
    let place = Place::new();
    let server = place.start("");
    let id = disturbed(&server, "kvm1", 400);
    let before = server.get("/v1/findings", &server.token("read")).json();
    server.stop();
    for folder in ["raw", "results"] {
        std::fs::remove_dir_all(place.store().join(folder)).unwrap();
    }
    let server = place.start("");
    let read = server.token("read");
    let found = || server.get("/v1/findings?state=open", &read).json()["findings"].clone();
    wait_until("what was learned", || found().to_string().contains(&id));
    assert_eq!(server.get("/v1/findings", &read).json()["findings"], before["findings"]);
    server.stop();

    let learned = place.objects("learned/v1/");
    assert!((1..=2).contains(&learned.len()), "{learned:?}");
    for object in &learned {
        std::fs::write(place.store().join(object), b"damaged").unwrap();
    }
    let server = place.start("");
    let read = server.token("read");
    let errors = "vmscope_server_store_errors_total{reason=\"learned\"}";
    wait_until("the damage", || server.metric(errors) == learned.len() as f64);
    assert_eq!(server.get("/v1/findings", &read).json()["findings"], json!([]));
}

#[test]
fn a_silent_receiver_is_tried_again_and_delays_no_other() {
    let place = Place::new();
    let (port, sink) = (free_port(), Sink::start());
    // Takes connections, and never answers.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let more = format!(
        "[[webhook]]\nurl = 'http://{}'\n[[webhook]]\nurl = 'http://127.0.0.1:{port}/hook'\n[[webhook]]\nurl = '{}'",
        silent.local_addr().unwrap(),
        sink.url()
    );
    let server = place.start(&more);
    let id = disturbed(&server, "kvm1", 400);
    let of = |message: &Value| message["id"] == *id;
    wait_until("the webhook", || sink.bodies().iter().any(of));
    let failed = "vmscope_server_messages_total{to=\"webhook\",outcome=\"failed\"}";
    wait_until("failures", || 2.0 <= server.metric(failed));
    let late = Sink::start_at(port);
    wait_until("the webhook that was away", || late.bodies().iter().any(of));
}

#[test]
fn operators_acknowledge_and_silence() {
    let (place, sink) = (Place::new(), Sink::start());
    let more = format!("[[webhook]]\nurl = '{}'", sink.url());
    let server = place.start_number(0, "");
    let [read, admin] = ["read", "admin"].map(|role| server.token(role));
    let post = |path: &str, token: &str, body: Value| server.ask("POST", path, token, Some(&body));
    let silence = json!({"host": "kvm1", "minutes": 60, "note": "test"});
    post("/v1/silences", "", silence.clone()).check(401, "token is needed");
    post("/v1/silences", &read, silence.clone()).check(403, "role");
    let cookie = format!("__Host-vmscope={admin}");
    assert_eq!(server.get_with("/v1/silences", &[("cookie", &cookie)]), 200);
    post("/v1/silences", &admin, json!({"minutes": 60})).check(400, "needs a finding");
    post("/v1/silences", &admin, json!({"host": "a", "minutes": 0})).check(400, "minutes must");
    post("/v1/silences", &admin, json!({"hots": "a", "minutes": 1})).check(422, "hots");
    let made = post("/v1/silences", &admin, silence);
    assert_eq!(made.status, 201);
    let made = made.json();
    assert_eq!((&made["by"], &made["note"]), (&json!("test"), &json!("test")));

    let id = disturbed(&server, "kvm1", 400);
    let finding = format!("/v1/findings/{id}");
    let found = server.get(&finding, &read).json();
    assert_eq!((&found["id"], &found["silenced"]), (&json!(id), &made));
    assert!(found["acknowledged"].is_null());
    server.get("/v1/findings/0000000000000000", &read).check(404, "no such finding");
    for bad in ["x", "+000000000000000", "00000000000000AB"] {
        let path = format!("/v1/findings/{bad}");
        server.get(&path, &read).check(400, "a finding's id has 16 hexadecimal digits");
    }

    let acknowledge = format!("{finding}/acknowledge");
    post(&acknowledge, &read, json!({})).check(403, "role");
    post(&acknowledge, &admin, json!({"note": "\u{202e}"})).check(400, "note has");
    assert_eq!(post(&acknowledge, &admin, json!({"note": "on it"})).status, 201);
    post(&acknowledge, &admin, json!({})).check(409, "acknowledged already");
    post("/v1/findings/0000000000000000/acknowledge", &admin, json!({})).check(404, "no such");
    assert_eq!(server.get(&finding, &read).json()["acknowledged"]["note"], "on it");

    // Another server over the store sees the same, and does not tell of what is silenced.
    let other = place.start_number(1, &more);
    wait_until("its finding", || other.get(&finding, &read).status == 200);
    let found = other.get(&finding, &read).json();
    assert_eq!((&found["silenced"], &found["acknowledged"]["note"]), (&made, &json!("on it")));
    std::thread::sleep(std::time::Duration::from_secs(3));
    assert!(!sink.bodies().iter().any(|message| message["id"] == *id));
    let silence = format!("/v1/silences/{}", made["id"].as_str().unwrap());
    other.ask("DELETE", &silence, &read, None).check(403, "role");
    assert_eq!(other.ask("DELETE", &silence, &admin, None).status, 204);
    other.ask("DELETE", &silence, &admin, None).check(404, "none");
    wait_until("the webhook", || sink.bodies().iter().any(|message| message["id"] == *id));
    assert_eq!(other.get("/v1/silences", &read).json(), json!([]));
    assert_eq!(other.ask("DELETE", &acknowledge, &admin, None).status, 204);
    other.ask("DELETE", &acknowledge, &admin, None).check(404, "none");
}

#[test]
fn a_refused_message_is_kept_shown_and_sent_again() {
    let (place, sink) = (Place::new(), Sink::start());
    sink.refuse(true);
    let more = format!("[[webhook]]\nurl = '{}'\nformat = 'slack'", sink.url());
    let server = place.start_number(0, &more);
    let [read, admin] = ["read", "admin"].map(|role| server.token(role));
    let id = disturbed(&server, "kvm1", 400);
    let refused = |server: &Server| {
        server.get(&format!("/v1/findings/{id}"), &read).json()["refused"].clone()
    };
    wait_until("the refusal", || refused(&server).is_array());
    let message = refused(&server)[0].clone();
    assert_eq!((&message["event"], &message["finding"]), (&json!("firing"), &json!(id)));
    assert_eq!(message["reason"], "400 Bad Request no_channel");
    let receiver = message["receiver"].as_str().unwrap();
    assert!(receiver.starts_with("http://127.0.0.1:") && !receiver.contains("hook"), "{receiver}");
    assert!(1.0 <= server.metric("vmscope_server_messages_kept"));
    let sent = "vmscope_server_messages_total{to=\"webhook\",outcome=\"sent\"}";
    assert!(server.metric(sent) < 1.0);
    let resend = |path: &str, token: &str| server.ask("POST", path, token, Some(&json!({})));
    let path = format!("/v1/findings/{id}/resend");
    resend(&path, &read).check(403, "role");
    resend("/v1/findings/0000000000000000/resend", &admin).check(404, "no such");
    // Refused again, it is kept again.
    let n_messages = sink.bodies().len();
    assert_eq!(resend(&path, &admin).json(), json!({"messages": 1}));
    wait_until("the second refusal", || {
        n_messages < sink.bodies().len() && refused(&server).is_array()
    });
    sink.refuse(false);
    assert_eq!(resend(&path, &admin).status, 202);
    wait_until("the message", || 1.0 <= server.metric(sent));
    assert!(refused(&server).is_null());
    resend(&path, &admin).check(409, "no receiver refused");
    let body = sink.bodies().pop().unwrap();
    assert_eq!(body["blocks"][0]["text"]["type"], "plain_text", "{body}");
}
